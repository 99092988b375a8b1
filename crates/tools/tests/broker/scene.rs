//! Two nodes with real interfaces; the first has an agent that grants, and processes of several users.

use std::fs::OpenOptions;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dipole_bpf::grant::{Grant, GrantError, pin_port, request};
use dipole_bpf::hook::{Attached, attached};
use dipole_bpf::{Bpf, BpfOptions, FastPath, InterfaceId};
use dipole_link::udp::UdpOptions;
use dipole_link::{Class, Link, Udp};
use dipole_testbed::Testbed;
use rustix::net::netdevice::name_to_index;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// May have rings.
pub(crate) const ALICE: u32 = 60_001;
/// May have rings because of a group.
pub(crate) const BOB: u32 = 65_534;
/// May have raw-frame sockets as well.
pub(crate) const CAROL: u32 = 60_003;
/// May have nothing.
pub(crate) const MALLORY: u32 = 60_004;
const GROUP: u32 = 60_100;
pub(crate) const RING_BYTES: u32 = 1 << 16;
/// Rings that a user may have.
pub(crate) const RINGS: u32 = 4;

/// Waits until a condition is true.
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Held by one test at a time, so that children inherit only the descriptors of their own test.
static ALONE: Mutex<()> = Mutex::new(());

/// A testbed whose first node has an agent, or had one.
pub(crate) struct Scene {
    pub(crate) testbed: Testbed,
    agent: Option<Child>,
    _alone: MutexGuard<'static, ()>,
}

/// Nanoseconds since the first call.
pub(crate) fn now_ns() -> u64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let since = BEGUN.get_or_init(Instant::now).elapsed();
    u64::try_from(since.as_nanos()).expect("not that long")
}

impl Scene {
    /// `None`, with a message, if a testbed cannot be created.
    pub(crate) fn set() -> Option<Scene> {
        if let Some(why) = Testbed::why_not() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let testbed = Testbed::builder().nodes(2).networks(2).build();
        let scene = Scene {
            testbed: testbed.expect("a testbed can be made here"),
            agent: None,
            _alone: alone,
        };
        let open = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(scene.testbed.folder(), open).expect("our own folder");
        scene.allow(&format!(
            "rings-per-user = {RINGS}\n[[interface]]\nname = 'net0'\nusers = [{ALICE}]\n\
             groups = ['{GROUP}']\nraw-users = [{CAROL}]\nring-bytes = {}\n",
            2 * RING_BYTES
        ));
        Some(scene)
    }

    /// A scene with an agent that grants.
    pub(crate) fn with_agent() -> Option<Scene> {
        let mut scene = Scene::set()?;
        let mut agent = scene.command();
        scene.start(&mut agent);
        Some(scene)
    }

    pub(crate) fn allow(&self, text: &str) {
        std::fs::write(self.path("interfaces.toml"), text).expect("our own folder");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.testbed.folder().join(name)
    }

    /// The command for the agent of the first node.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.inside(&self.words());
        let mut log = OpenOptions::new();
        let log = log
            .create(true)
            .append(true)
            .open(self.path("log"))
            .expect("our own folder");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(log);
        command
    }

    /// The output of the agents.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.path("log")).expect("our own folder")
    }

    /// A copy of the program that every user may start.
    pub(crate) fn program(&self) -> PathBuf {
        let program = self.path("dipole");
        if !program.exists() {
            // Copied by another process: a program cannot be executed while a process that a
            // concurrent test starts has inherited a descriptor that is open for writing.
            let this = Path::new(env!("CARGO_BIN_EXE_dipole"));
            let copied = Command::new("cp").args([this, &program]).status();
            assert!(copied.expect("cp").success());
            let open = PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&program, open).expect("our own folder");
        }
        program
    }

    /// A directory for files of a user's programs.
    pub(crate) fn runtime_of(&self, uid: u32) -> PathBuf {
        let runtime = self.path(&format!("runtime-{uid}"));
        std::fs::create_dir_all(&runtime).expect("our own folder");
        chown(&runtime, Some(uid), Some(uid)).expect("root may");
        runtime
    }

    pub(crate) fn words(&self) -> Vec<String> {
        let interfaces = self.path("interfaces.toml").display().to_string();
        let program = env!("CARGO_BIN_EXE_dipole");
        [program, "agent", "--interfaces", &interfaces]
            .map(str::to_owned)
            .to_vec()
    }

    /// A program on the first node.
    pub(crate) fn inside(&self, words: &[String]) -> Command {
        let mut command = self.testbed.command(1, &words[0]);
        command.args(&words[1..]);
        command.env("DIPOLE_BROKER", self.path("broker"));
        command.env("XDG_CONFIG_HOME", self.path("config"));
        command.env("DIPOLE_LOG", "info");
        command.env_remove("DIPOLE_KEY");
        command
    }

    /// Returns when the agent grants.
    pub(crate) fn start(&mut self, command: &mut Command) {
        self.agent = Some(command.spawn().expect("it starts"));
        self.answers();
    }

    pub(crate) fn answers(&self) {
        wait_for("an agent that grants", || {
            (self.asked(ALICE, RING_BYTES).is_ok()).then_some(())
        });
    }

    /// The agent, to be killed by the test.
    pub(crate) fn take_agent(&mut self) -> Child {
        self.agent.take().expect("there is one")
    }

    pub(crate) fn kill_agent(&mut self) {
        let mut agent = self.take_agent();
        agent.kill().expect("our child");
        agent.wait().expect("our child");
    }

    pub(crate) fn broker(&self) -> PathBuf {
        self.path("broker")
    }

    pub(crate) fn address(&self, node: u32) -> IpAddr {
        self.testbed.node(node).addresses[0].into()
    }

    /// Runs a function on a thread of the first node, as a user with one group.
    pub(crate) fn being<T: Send>(&self, uid: u32, function: impl FnOnce() -> T + Send) -> T {
        let done = self.testbed.inside(1, || {
            let group = if uid == BOB { GROUP } else { uid };
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
            set_thread_groups(&[Gid::from_raw(group)]).expect("root may");
            set_thread_res_gid(gid, gid, gid).expect("root may");
            set_thread_res_uid(uid, uid, uid).expect("root may");
            let caps = rustix::thread::capabilities(None).expect("the kernel says");
            assert!(caps.effective.is_empty(), "no privileges are left");
            function()
        });
        done.expect("the node")
    }

    /// A grant of a user, with the socket that it is for.
    pub(crate) fn grant(&self, uid: u32) -> Result<(Grant, UdpSocket), GrantError> {
        self.being(uid, || {
            let socket = self.bound();
            let grant = request(&self.broker(), socket.as_fd(), RING_BYTES)?;
            Ok((grant, socket))
        })
    }

    /// The broker's answer to a request for a ring of some length, which is released at once.
    pub(crate) fn asked(&self, uid: u32, ring_bytes: u32) -> Result<(), GrantError> {
        self.being(uid, || {
            let socket = self.bound();
            request(&self.broker(), socket.as_fd(), ring_bytes).map(drop)
        })
    }

    /// A bound socket of the calling thread.
    pub(crate) fn bound(&self) -> UdpSocket {
        let socket = UdpSocket::bind((self.address(1), 0)).expect("our own address");
        pin_port(socket.as_fd()).expect("a port");
        socket.set_nonblocking(true).expect("a socket");
        socket
    }

    /// A complete link of a user, made from what the agent grants.
    pub(crate) fn link(&self, uid: u32) -> Bpf {
        self.being(uid, || {
            let udp = Udp::bind(self.address(1), &UdpOptions::default()).expect("a link");
            let options = BpfOptions {
                ring_bytes: RING_BYTES,
                ..BpfOptions::default()
            };
            let granted = FastPath::request(&udp, &self.broker(), &options);
            Bpf::new(udp, granted.expect("it is granted"))
        })
    }

    /// A socket on the other node, to exchange packets with.
    pub(crate) fn peer(&self) -> (UdpSocket, SocketAddr) {
        let socket = self
            .testbed
            .inside(2, || UdpSocket::bind((self.address(2), 0)));
        let socket = socket.expect("the node").expect("its own address");
        socket.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let at = socket.local_addr().expect("bound");
        (socket, at)
    }

    pub(crate) fn interface(&self) -> InterfaceId {
        let index = self.testbed.inside(1, || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("loopback");
            name_to_index(&socket, "net0").expect("an interface")
        });
        InterfaceId {
            index: index.expect("the node"),
            name: "net0".to_owned(),
        }
    }

    /// The programs attached to the first node's interface.
    pub(crate) fn attached(&self) -> Vec<Attached> {
        let interface = self.interface();
        let found = self.testbed.inside(1, || attached(&interface));
        found.expect("the node").expect("root may ask")
    }

    /// What the agent reports about the interface that it grants.
    pub(crate) fn status(&self) -> serde_json::Value {
        let words = ["--json", "agent", "status"].map(str::to_owned);
        let program = [env!("CARGO_BIN_EXE_dipole").to_owned()];
        let output = self.inside(&[&program[..], &words].concat()).output();
        let output = output.expect("it runs");
        assert!(output.status.success(), "{output:?}");
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        status["broker"].clone()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let status = self.status();
        let interface = &status["interfaces"][0];
        let counted = match name {
            "refused" => &interface["refused_frames"],
            name => &interface["counters"][name],
        };
        counted.as_u64().unwrap_or(0)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.said());
        }
        if let Some(agent) = &mut self.agent {
            let _gone = agent.kill();
            let _gone = agent.wait();
        }
    }
}

/// Receives this many small packets, each a number of eight bytes, over any path.
pub(crate) fn numbers(link: &mut Bpf, count: usize) -> Vec<u64> {
    let mut found = Vec::new();
    let begun = Instant::now();
    while found.len() < count {
        let came = link.poll(now_ns(), Class::Small).expect("a link");
        for index in 0..came {
            let bytes = link.frame(index).bytes.try_into().expect("eight bytes");
            found.push(u64::from_le_bytes(bytes));
        }
        assert!(begun.elapsed() < PATIENCE, "only {found:?}");
    }
    found
}

//! Two nodes with real interfaces; the first has a broker, and processes of several users.

use std::fs::OpenOptions;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dipole_bpf::grant::status::read_status;
use dipole_bpf::grant::{Grant, GrantError, pin_port, request};
use dipole_bpf::hook::{AttachedProgram, attached};
use dipole_bpf::{Bpf, BpfOptions, FastPath, InterfaceId};
use dipole_link::udp::UdpOptions;
use dipole_link::{Class, Link, Udp};
use dipole_testbed::{Testbed, built};
use rustix::net::netdevice::name_to_index;
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A user who may have rings.
pub(crate) const ALICE: u32 = 60_001;
/// A user who may have rings as a member of a group.
pub(crate) const BOB: u32 = 65_534;
/// A user who may also have raw sockets.
pub(crate) const CAROL: u32 = 60_003;
/// A user without permissions.
pub(crate) const MALLORY: u32 = 60_004;
const GROUP: u32 = 60_100;
pub(crate) const RING_BYTES: u32 = 1 << 16;
/// Maximum number of rings per user.
pub(crate) const RINGS: u32 = 4;

/// Waits for a result.
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

/// One test at a time, because descriptors that a test passes to a child must not leak into others.
static ALONE: Mutex<()> = Mutex::new(());

/// A testbed whose first node has a broker, or has had one.
pub(crate) struct Scene {
    pub(crate) testbed: Testbed,
    broker: Option<Child>,
    _alone: MutexGuard<'static, ()>,
}

/// The broker's program.
fn broker_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built::program("dipole-broker"))
}

/// Nanoseconds since the first call.
pub(crate) fn now_ns() -> u64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let since = BEGUN.get_or_init(Instant::now).elapsed();
    u64::try_from(since.as_nanos()).expect("not that long")
}

impl Scene {
    /// `None`, with a message, where no testbed can be created.
    pub(crate) fn set() -> Option<Scene> {
        if let Some(why) = Testbed::why_not() {
            eprintln!("SKIPPED: {why}");
            return None;
        }
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let testbed = Testbed::builder().nodes(2).networks(2).build();
        let scene = Scene {
            testbed: testbed.expect("a testbed can be made here"),
            broker: None,
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

    pub(crate) fn with_broker() -> Option<Scene> {
        let mut scene = Scene::set()?;
        let mut broker = scene.command();
        scene.start(&mut broker);
        Some(scene)
    }

    pub(crate) fn allow(&self, text: &str) {
        std::fs::write(self.path("interfaces.toml"), text).expect("our own folder");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.testbed.folder().join(name)
    }

    /// The broker of the first node, to be started.
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

    /// The log of all brokers.
    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.path("log")).expect("our own folder")
    }

    /// A copy of the program that every user may run.
    pub(crate) fn program(&self) -> PathBuf {
        let program = self.path("dipole");
        if !program.exists() {
            // Copy in another process: otherwise a process that another test starts could inherit
            // the open copy, which then could not be executed.
            let this = Path::new(env!("CARGO_BIN_EXE_dipole"));
            let copied = Command::new("cp").args([this, &program]).status();
            assert!(copied.expect("cp").success());
            let open = PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&program, open).expect("our own folder");
        }
        program
    }

    /// A runtime directory for programs of a user.
    pub(crate) fn runtime_of(&self, uid: u32) -> PathBuf {
        let runtime = self.path(&format!("runtime-{uid}"));
        std::fs::create_dir_all(&runtime).expect("our own folder");
        chown(&runtime, Some(uid), Some(uid)).expect("root may");
        runtime
    }

    pub(crate) fn words(&self) -> Vec<String> {
        let interfaces = self.path("interfaces.toml").display().to_string();
        [broker_program().display().to_string(), interfaces].to_vec()
    }

    /// The command of a program on the first node.
    pub(crate) fn inside(&self, words: &[String]) -> Command {
        let mut command = self.testbed.command(1, &words[0]);
        command.args(&words[1..]);
        command.env("DIPOLE_BROKER", self.path("broker"));
        command.env("DIPOLE_LOG", "info");
        command
    }

    /// Starts the broker and waits until it grants rings.
    pub(crate) fn start(&mut self, command: &mut Command) {
        self.broker = Some(command.spawn().expect("it starts"));
        self.answers();
    }

    pub(crate) fn answers(&self) {
        wait_for("a broker that grants", || {
            (self.asked(ALICE, RING_BYTES).is_ok()).then_some(())
        });
    }

    /// The broker, for a test that ends it itself.
    pub(crate) fn take_broker(&mut self) -> Child {
        self.broker.take().expect("there is one")
    }

    pub(crate) fn kill_broker(&mut self) {
        let mut broker = self.take_broker();
        broker.kill().expect("our child");
        broker.wait().expect("our child");
    }

    pub(crate) fn broker(&self) -> PathBuf {
        self.path("broker")
    }

    pub(crate) fn address(&self, node: u32) -> IpAddr {
        self.testbed.node(node).addresses[0].into()
    }

    /// Runs a function on a thread of the first node, as a user who belongs to one group.
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

    /// A grant for a user, and its socket.
    pub(crate) fn grant(&self, uid: u32) -> Result<(Grant, UdpSocket), GrantError> {
        self.being(uid, || {
            let socket = self.bound();
            let grant = request(&self.broker(), socket.as_fd(), RING_BYTES)?;
            Ok((grant, socket))
        })
    }

    /// Requests a ring of some length and releases it at once.
    pub(crate) fn asked(&self, uid: u32, ring_bytes: u32) -> Result<(), GrantError> {
        self.being(uid, || {
            let socket = self.bound();
            request(&self.broker(), socket.as_fd(), ring_bytes).map(drop)
        })
    }

    /// A socket bound by the calling thread.
    pub(crate) fn bound(&self) -> UdpSocket {
        let socket = UdpSocket::bind((self.address(1), 0)).expect("our own address");
        pin_port(socket.as_fd()).expect("a port");
        socket.set_nonblocking(true).expect("a socket");
        socket
    }

    /// A complete link of a user, with what the broker grants.
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

    /// A socket of the other node that exchanges packets with the first.
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

    /// Programs attached to the first node's interface.
    pub(crate) fn attached(&self) -> Vec<AttachedProgram> {
        let interface = self.interface();
        let found = self.testbed.inside(1, || attached(&interface));
        found.expect("the node").expect("root may ask")
    }

    /// Status of the broker, as JSON.
    pub(crate) fn status(&self) -> serde_json::Value {
        let status = read_status(&self.broker()).expect("a broker");
        serde_json::to_value(status).expect("JSON")
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
        if let Some(broker) = &mut self.broker {
            let _gone = broker.kill();
            let _gone = broker.wait();
        }
    }
}

/// Receives this many small packets, each a number of eight bytes, from the ring or the socket.
pub(crate) fn numbers(link: &mut Bpf, count: usize) -> Vec<u64> {
    let mut found = Vec::new();
    let begun = Instant::now();
    while found.len() < count {
        let came = link.poll(now_ns(), Class::Small).expect("a link");
        for index in 0..came {
            let bytes = link.message(index).bytes.try_into().expect("eight bytes");
            found.push(u64::from_le_bytes(bytes));
        }
        assert!(begun.elapsed() < PATIENCE, "only {found:?}");
    }
    found
}

//! Resources that are short for a moment: calls fail with an error that names the resource, and
//! afterwards everything that was opened works.
//!
//! A child process repeats a session under a limit that leaves 0, 1, 2, ... descriptors or threads
//! free, until the whole session passes under it. Then the first, second, third, ... system call that
//! allocates a descriptor, thread, shared mapping or file fails, in one child each.

#![allow(missing_docs, reason = "tests")]

use std::fmt::Display;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dipole_group::{Group, Members};
use dipole_node::{
    ActivePort, Address, Config, Endpoint, EndpointId, Links, Node, NodeId, Region, RegionMemory,
    Rights,
};
use dipole_testbed::{Counted, FailingCalls, Resource as Failing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(30);
/// How long a call may wait during the shortage.
const MOMENT: Duration = Duration::from_millis(60);
/// How long members of a group wait for each other during the shortage.
const JOIN_TIME: Duration = Duration::from_secs(2);
const CHILD: &str = "DIPOLE_TEST_SHORTAGE";
/// The links of a child in which one call fails. Calls are counted while the file exists.
const LINKS: &str = "DIPOLE_TEST_LINKS";
const COUNTING: &str = "counting";
/// A user without other processes, for the limit of threads.
const UID: u32 = 54_321;

/// A resource that is short.
#[derive(Clone, Copy, Debug)]
enum Short {
    Descriptors,
    Threads,
}

impl Short {
    fn resource(self) -> Resource {
        match self {
            Short::Descriptors => Resource::Nofile,
            Short::Threads => Resource::Nproc,
        }
    }

    fn in_use(self) -> u64 {
        let folder = match self {
            Short::Descriptors => "/proc/self/fd",
            Short::Threads => "/proc/self/task",
        };
        let entries = std::fs::read_dir(folder).expect("/proc").count() as u64;
        // Reading the directory of descriptors takes one.
        entries - u64::from(matches!(self, Short::Descriptors))
    }

    fn as_failing(self) -> Failing {
        match self {
            Short::Descriptors => Failing::Descriptors,
            Short::Threads => Failing::Threads,
        }
    }
}

/// True if an error names this resource, or is only a consequence at a peer.
fn explains(short: Failing, error: &str) -> bool {
    let consequences = [
        "accepted nothing",
        "did not answer within",
        "timed out waiting for",
    ];
    short.is_named(error) || consequences.iter().any(|part| error.contains(part))
}

/// A limit that is lifted when this is dropped.
struct Limit(Resource, Rlimit);

impl Limit {
    fn leave(short: Short, free: u64) -> Limit {
        let before = getrlimit(short.resource());
        let now = Rlimit {
            current: Some(short.in_use() + free),
            ..before
        };
        setrlimit(short.resource(), now).expect("a lower limit");
        Limit(short.resource(), before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = setrlimit(self.0, self.1);
    }
}

/// The parts of a session that could be opened.
#[derive(Default)]
struct Session {
    faults: Vec<String>,
    nodes: Vec<Node>,
    inbox: Option<(Endpoint, OwnedFd)>,
    outbox: Option<Endpoint>,
    region: Option<Region>,
    port: Option<ActivePort>,
    groups: Vec<Group>,
}

impl Session {
    fn keep<T, E: Display>(&mut self, what: &str, done: Result<T, E>) -> Option<T> {
        done.map_err(|error| self.faults.push(format!("{what}: {error}")))
            .ok()
    }

    /// Runs as much of a session as possible.
    fn run(runtime: &Path, links: Links) -> Session {
        let mut session = Session::default();
        let first = Node::open(config(runtime, links));
        if let Some(first) = session.keep("node", first) {
            let inbox = session.keep("endpoint", first.endpoint(EndpointId(7)));
            if let Some(inbox) = inbox
                && let Some(descriptor) = session.keep("export", inbox.export())
            {
                let memory = RegionMemory::new(4096).expect("memory");
                let region = inbox.open_region(memory, Rights::ALL);
                session.region = session.keep("region", region);
                session.inbox = Some((inbox, descriptor));
            }
            let port = first.open_port(EndpointId(8), |_, _| ());
            session.port = session.keep("port", port);
            session.nodes.push(first);
        }
        let second = Node::open(config(runtime, links));
        if let Some(second) = session.keep("node", second) {
            session.outbox = session.keep("endpoint", second.endpoint(EndpointId(9)));
            if let Some(outbox) = &session.outbox {
                let sent = outbox.send_to_timeout(Address::new(1, 7), b"early", MOMENT);
                session.keep("send", sent);
            }
            session.nodes.push(second);
        }
        session.join_groups();
        session
    }

    /// Both nodes join a group.
    fn join_groups(&mut self) {
        let [first, second] = &self.nodes[..] else {
            return;
        };
        let members = || Members::first([Address::new(1, 11), Address::new(1, 12)]);
        let (one, other) = std::thread::scope(|scope| {
            let one = std::thread::Builder::new()
                .spawn_scoped(scope, || Group::join(first, members(), 0, JOIN_TIME));
            let other = one
                .is_ok()
                .then(|| Group::join(second, members(), 1, JOIN_TIME));
            (one.map(|one| one.join().expect("it returns")), other)
        });
        if let Some(one) = self.keep("thread", one) {
            let one = self.keep("group", one);
            self.groups.extend(one);
        }
        if let Some(other) = other {
            let other = self.keep("group", other);
            self.groups.extend(other);
        }
    }

    /// Everything that was opened works once there is enough again.
    fn check(&mut self, runtime: &Path, links: Links, what: &str) {
        let late = Node::open(config(runtime, links)).expect(what);
        let helper = late.endpoint(EndpointId(10)).expect(what);
        if let Some((inbox, descriptor)) = &self.inbox {
            let mut wanted = vec![b"late".to_vec()];
            let to = inbox.address();
            helper.send_to_timeout(to, b"late", PATIENCE).expect(what);
            if let Some(outbox) = &self.outbox {
                outbox.send_to_timeout(to, b"again", PATIENCE).expect(what);
                wanted.push(b"again".to_vec());
            }
            let started = Instant::now();
            while !wanted.is_empty() {
                assert!(started.elapsed() < PATIENCE, "{what}: deaf, {wanted:?}");
                let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
                let timeout = Timespec::try_from(PATIENCE).expect("short");
                let ready = poll(&mut polled, Some(&timeout)).expect("poll");
                assert_eq!(ready, 1, "{what}: poll does not report {wanted:?}");
                while let Ok(Some(message)) = inbox.try_receive() {
                    wanted.retain(|bytes| **bytes != *message);
                }
            }
        }
        if let Some(port) = &self.port {
            let before = port.handled();
            helper
                .send_to_timeout(port.address(), b"port", PATIENCE)
                .expect(what);
            let started = Instant::now();
            while port.handled() == before {
                assert!(started.elapsed() < PATIENCE, "{what}: the port is deaf");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if let [one, other] = &mut self.groups[..] {
            std::thread::scope(|scope| {
                scope.spawn(|| one.barrier(PATIENCE).expect(what));
                other.barrier(PATIENCE).expect(what);
            });
        }
    }
}

fn config(runtime: &Path, links: Links) -> Config {
    Config {
        links,
        connect_timeout: PATIENCE,
        linger: MOMENT,
        ..Config::local(NodeId(1), runtime.to_owned())
    }
}

/// Body of the child: sessions with ever more of the resource, until one passes.
fn sweep(runtime: &Path, links: Links, short: Short) {
    for free in 0..200 {
        let what = format!("{short:?}, {links:?}, {free} free");
        let limit = Limit::leave(short, free);
        let mut session = Session::run(runtime, links);
        drop(limit);
        for fault in &session.faults {
            assert!(explains(short.as_failing(), fault), "{what}: {fault}");
        }
        session.check(runtime, links, &what);
        if session.faults.is_empty() {
            println!("{what}: the whole session passed");
            assert!(free > 2, "the limit has no effect");
            return;
        }
    }
    panic!("{short:?}, {links:?}: no session passed");
}

/// Runs a test of this program in a process of its own.
fn in_child(test: &str, short: Short) {
    let folder = tempfile::tempdir().expect("a folder");
    let runtime = folder.path().join("runtime");
    let program = folder.path().join("program");
    std::fs::create_dir(&runtime).expect("a folder");
    std::fs::copy(std::env::current_exe().expect("known"), &program).expect("a copy");
    let mut command = Command::new(&program);
    child(&mut command, test, &runtime);
    let is_root = rustix::process::geteuid().is_root();
    if matches!(short, Short::Threads) && is_root {
        // The limit does not apply to root.
        for path in [folder.path(), &runtime] {
            std::os::unix::fs::chown(path, Some(UID), Some(UID)).expect("root");
        }
        command.uid(UID).gid(UID);
    }
    // A process that another test has just forked may hold the copy open for writing until its exec.
    let begun = Instant::now();
    let status = loop {
        match command.status() {
            Err(error)
                if error.kind() == ErrorKind::ExecutableFileBusy
                    && begun.elapsed() < Duration::from_secs(60) =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            status => break status.expect("it starts"),
        }
    };
    assert!(status.success(), "{status}");
}

/// Makes a command of this program run one test as a child.
fn child(command: &mut Command, test: &str, runtime: &Path) {
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, runtime)
        .env("HOME", runtime)
        .current_dir(runtime);
}

/// Runs sessions in children in which one call fails, a later one in each, until a whole session
/// passes.
fn each_call_fails(test: &str, resource: Failing, links: &str) {
    let tool = FailingCalls::new();
    for nth in 1.. {
        let folder = tempfile::tempdir().expect("a folder");
        let counting = folder.path().join(COUNTING);
        let words = tool.words(resource, nth, Counted::While(&counting));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command.arg(std::env::current_exe().expect("known"));
        child(&mut command, test, folder.path());
        let output = command.env(LINKS, links).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        let what = format!("{resource:?}, {links}, call {nth}:\n{said}{complaint}");
        assert!(output.status.success(), "{what}");
        if nth > tool.count() {
            // Without shared memory, nothing is mapped.
            let is_idle = resource == Failing::Mappings && links == "udp";
            assert!(nth > 2 || is_idle, "the tool has no effect: {what}");
            println!("{resource:?}, {links}: {} calls", tool.count());
            return;
        }
    }
}

/// Body of such a child.
fn session_with_failing_call(runtime: &Path, resource: Failing, links: &str) {
    let links = match links {
        "udp" => Links::Udp,
        _ => Links::Auto,
    };
    let counting = runtime.join(COUNTING);
    std::fs::write(&counting, "").expect("our folder");
    let mut session = Session::run(runtime, links);
    std::fs::remove_file(&counting).expect("our folder");
    for fault in &session.faults {
        assert!(explains(resource, fault), "{fault}");
    }
    session.check(runtime, links, &format!("after {:?}", session.faults));
}

/// A test that runs such children, and is run by them.
fn failing(test: &str, resource: Failing) {
    match (runtime(), std::env::var(LINKS)) {
        (Some(runtime), Ok(links)) => session_with_failing_call(&runtime, resource, &links),
        _ => {
            each_call_fails(test, resource, "udp");
            each_call_fails(test, resource, "auto");
        }
    }
}

fn runtime() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

/// A test that runs one child under limits, and is run by it.
fn limited(test: &str, short: Short) {
    match runtime() {
        None => in_child(test, short),
        Some(runtime) => {
            sweep(&runtime, Links::Udp, short);
            sweep(&runtime, Links::Auto, short);
        }
    }
}

#[test]
fn a_moment_without_descriptors_leaves_nothing_deaf() {
    let test = "a_moment_without_descriptors_leaves_nothing_deaf";
    limited(test, Short::Descriptors);
}

#[test]
fn a_moment_without_threads_leaves_nothing_deaf() {
    let test = "a_moment_without_threads_leaves_nothing_deaf";
    limited(test, Short::Threads);
}

#[test]
fn a_descriptor_that_is_missing_once_leaves_nothing_deaf() {
    let test = "a_descriptor_that_is_missing_once_leaves_nothing_deaf";
    failing(test, Failing::Descriptors);
}

#[test]
fn a_thread_that_is_missing_once_leaves_nothing_deaf() {
    let test = "a_thread_that_is_missing_once_leaves_nothing_deaf";
    failing(test, Failing::Threads);
}

#[test]
fn a_mapping_that_is_missing_once_leaves_nothing_deaf() {
    let test = "a_mapping_that_is_missing_once_leaves_nothing_deaf";
    failing(test, Failing::Mappings);
}

#[test]
fn a_disk_that_is_full_once_leaves_nothing_deaf() {
    failing(
        "a_disk_that_is_full_once_leaves_nothing_deaf",
        Failing::Files,
    );
}

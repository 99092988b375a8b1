//! Descriptors and threads that are short for a moment: calls fail with an error that names the
//! resource, and afterwards everything that was opened works.
//!
//! A child process repeats a session under a limit that leaves 0, 1, 2, ... free, until the whole
//! session passes under it.

#![allow(missing_docs, reason = "tests")]

use std::fmt::Display;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use dipole_node::{
    ActivePort, Address, Config, Endpoint, EndpointId, Links, Node, NodeId, Region, RegionMemory,
    Rights,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(30);
/// How long a call may wait during the shortage.
const MOMENT: Duration = Duration::from_millis(60);
const CHILD: &str = "DIPOLE_TEST_SHORTAGE";
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

    /// True if an error names this resource, or is only a consequence at a peer.
    fn explains(self, error: &str) -> bool {
        let names = match self {
            Short::Descriptors => ["os error 24", "Too many open files"],
            Short::Threads => ["os error 11", "Resource temporarily unavailable"],
        };
        let consequences = ["accepted nothing", "did not answer within"];
        names
            .iter()
            .chain(&consequences)
            .any(|part| error.contains(part))
    }
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
        session
    }

    /// Everything that was opened works once there is enough again.
    fn check(&self, runtime: &Path, links: Links, what: &str) {
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
        let session = Session::run(runtime, links);
        drop(limit);
        for fault in &session.faults {
            assert!(short.explains(fault), "{what}: {fault}");
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
    command
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, &runtime)
        .env("HOME", &runtime)
        .current_dir(&runtime);
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

fn runtime() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

#[test]
fn a_moment_without_descriptors_leaves_nothing_deaf() {
    match runtime() {
        None => in_child(
            "a_moment_without_descriptors_leaves_nothing_deaf",
            Short::Descriptors,
        ),
        Some(runtime) => {
            sweep(&runtime, Links::Udp, Short::Descriptors);
            sweep(&runtime, Links::Auto, Short::Descriptors);
        }
    }
}

#[test]
fn a_moment_without_threads_leaves_nothing_deaf() {
    match runtime() {
        None => in_child(
            "a_moment_without_threads_leaves_nothing_deaf",
            Short::Threads,
        ),
        Some(runtime) => {
            sweep(&runtime, Links::Udp, Short::Threads);
            sweep(&runtime, Links::Auto, Short::Threads);
        }
    }
}

//! Programs in a memory cgroup that is nearly full: the rings of their connections must not be what
//! the kernel kills them for.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Place, finished, library};
use rustix::process::{Pid, Signal, kill_process};

const LIMIT_BYTES: u64 = 64 << 20;
/// Rings of 2 MiB for each of them would exceed the limit.
const CONNECTIONS: &str = "60";

/// A memory cgroup, removed when dropped.
struct Group(PathBuf);

impl Group {
    /// `None` with a message where this user may not create one.
    fn new() -> Option<Group> {
        let versions = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        for (root, limit) in versions {
            let folder = Path::new(root).join(format!("dipole-test-{}", std::process::id()));
            if std::fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Group(folder);
            // Absent unless the root passes the controller on.
            let limit = group.0.join(limit);
            if limit.exists() && std::fs::write(&limit, LIMIT_BYTES.to_string()).is_ok() {
                return Some(group);
            }
        }
        eprintln!("SKIPPED: no memory cgroup can be created here (needs root)");
        None
    }

    /// A command that runs inside.
    fn command(&self, place: &Place) -> Command {
        let mut command = place.command("sh", false);
        let enter = format!(
            "echo $$ >{}/cgroup.procs && LD_PRELOAD={} exec \"$@\"",
            self.0.display(),
            library().display()
        );
        command.args(["-c", &enter, "sh"]);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let inside = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines().filter_map(|line| line.parse().ok()) {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        let begun = Instant::now();
        while std::fs::remove_dir(&self.0).is_err() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn many_connections_in_a_small_cgroup_survive() {
    if Command::new("iperf3").arg("-v").output().is_err() {
        eprintln!("SKIPPED: iperf3 is missing");
        return;
    }
    let Some(group) = Group::new() else { return };
    let place = Place::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("bound").port().to_string();
    drop(free);
    let mut server = group.command(&place);
    server.args(["iperf3", "-s", "-1", "-p", &port, "--forceflush"]);
    let mut server = server.spawn().expect("it starts");
    let mut said = BufReader::new(server.stdout.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("listening") {
        line.clear();
        assert_ne!(said.read_line(&mut line).expect("text"), 0, "no server");
    }
    let mut client = group.command(&place);
    client.args(["iperf3", "-c", "127.0.0.1", "-p", &port, "-l", "512K"]);
    client.args(["-P", CONNECTIONS, "-t", "2"]);
    finished(client.spawn().expect("it starts"));
    std::io::copy(&mut said, &mut std::io::sink()).expect("its output");
    finished(server);
}

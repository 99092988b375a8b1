//! Clocks of whole nodes that jump back, while agents and programs run and when they start.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use dipole_testbed::Testbed;

use crate::testbed::{Agent, Cluster};

/// A library that sets the wall clock of a program back by the seconds in the file `CLOCK_BACK`.
const LATE_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int before = errno;
    char text[24] = {0};
    const char *name = getenv("CLOCK_BACK");
    if (syscall(SYS_clock_gettime, clock, now) != 0)
        return -1;
    int file = clock == CLOCK_REALTIME && name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0 && read(file, text, sizeof text - 1) > 0)
        now->tv_sec -= atol(text);
    if (file >= 0)
        close(file);
    errno = before;
    return 0;
}
"#;

const HOUR: u64 = 3600;
const YEAR: u64 = 365 * 24 * HOUR;

/// A cluster whose nodes have adjustable clocks.
struct Late {
    cluster: Cluster,
    has_key: bool,
}

impl Late {
    fn make(has_key: bool) -> Option<Late> {
        let cluster = Cluster::make(Testbed::builder().nodes(3))?;
        let source = cluster.path("clock.c");
        std::fs::write(&source, LATE_CLOCK).expect("our own folder");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]);
        let compiled = compiler.arg(cluster.path("clock.so")).arg(source).status();
        if !compiled.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: no C compiler, which is needed to set clocks back");
            return None;
        }
        if has_key {
            let key = cluster.path("key");
            let made = cluster.dipole(1, &["key", "new"]).arg(key).output();
            assert!(made.expect("it starts").status.success());
        }
        let late = Late { cluster, has_key };
        (1..=3).for_each(|node| late.set_back(node, 0));
        Some(late)
    }

    fn set_back(&self, node: u32, seconds: u64) {
        let file = self.cluster.path(&format!("clock-{node}"));
        let new = file.with_extension("new");
        std::fs::write(&new, seconds.to_string()).expect("our own folder");
        std::fs::rename(new, file).expect("our own folder");
    }

    fn dipole(&self, node: u32, arguments: &[&str]) -> Command {
        let mut command = self.cluster.dipole(node, arguments);
        command
            .env("LD_PRELOAD", self.cluster.path("clock.so"))
            .env("CLOCK_BACK", self.cluster.path(&format!("clock-{node}")));
        if self.has_key {
            command.env("DIPOLE_KEY", self.cluster.path("key"));
        }
        command
    }

    fn agent(&self, node: u32) -> Agent {
        Agent::start(&mut self.dipole(node, &["agent", "--discover"]))
    }

    fn start(&self, node: u32, arguments: &[&str]) -> Talker {
        let mut command = self.dipole(node, arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Talker(command.spawn().expect("it starts"))
    }
}

/// `dipole send` or `dipole recv`, killed when this is dropped.
struct Talker(Child);

impl Drop for Talker {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// A line written to one arrives at the other.
fn talk(from: &mut Talker, to: &mut Talker, text: &str) {
    let input = from.0.stdin.as_mut().expect("a pipe");
    input.write_all(text.as_bytes()).expect("it reads");
    let mut got = vec![0; text.len()];
    let output = to.0.stdout.as_mut().expect("a pipe");
    output.read_exact(&mut got).expect("it writes");
    assert_eq!(String::from_utf8_lossy(&got), text);
}

fn assert_nobody_went(agents: &[Agent]) {
    for agent in agents {
        let said = agent.said();
        assert!(!said.contains("node is down"), "{said}");
    }
}

#[test]
fn programs_and_agents_continue_when_the_clocks_of_whole_nodes_jump_back() {
    for has_key in [false, true] {
        let Some(late) = Late::make(has_key) else {
            return;
        };
        let nodes = [1, 2, 3];
        let mut agents: Vec<Agent> = nodes.iter().map(|node| late.agent(*node)).collect();
        late.cluster.wait_for(&nodes);
        let mut reader = late.start(2, &["recv", "2:7"]);
        let mut writer = late.start(1, &["send", "2:7"]);
        talk(&mut writer, &mut reader, "begun\n");

        // Set the clock back while everything runs, on one node and then on all.
        for (back, whose) in [(HOUR, &nodes[..1]), (HOUR, &nodes), (YEAR, &nodes)] {
            whose.iter().for_each(|node| late.set_back(*node, back));
            assert_eq!(seconds_late(&late, whose[0]), back, "the clock is not late");
            talk(&mut writer, &mut reader, "and on\n");
            // Programs that start now can connect as well.
            let mut second = late.start(3, &["recv", "3:8"]);
            let mut first = late.start(2, &["send", "3:8"]);
            talk(&mut first, &mut second, "new here\n");
            late.cluster.wait_for(&nodes);
        }
        assert_nobody_went(&agents);

        // Agents that start with an earlier clock than in their last run, one after another.
        for (at, node) in nodes.into_iter().enumerate() {
            agents.remove(at).kill();
            agents.insert(at, late.agent(node));
            late.cluster.wait_for(&nodes);
            agents[at].says("the clock was set back");
            talk(&mut writer, &mut reader, "still\n");
        }
    }
}

/// How far a node's clock, as programs see it, is behind the machine's.
fn seconds_late(late: &Late, node: u32) -> u64 {
    let mut date = late.cluster.testbed.command(node, "date");
    let shown = |command: &mut Command| -> u64 {
        let output = command.arg("+%s").output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.trim().parse().expect("a number")
    };
    let file = late.cluster.path(&format!("clock-{node}"));
    date.env("LD_PRELOAD", late.cluster.path("clock.so"));
    let own = shown(date.env("CLOCK_BACK", file));
    let real = shown(&mut Command::new("date"));
    // The second clock was read a few seconds later.
    (real - own) / HOUR * HOUR
}

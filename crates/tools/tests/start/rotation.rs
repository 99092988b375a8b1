//! The cluster key is replaced while jobs run: processes that follow keep running on all nodes, and
//! those with only the old key are locked out. Needs root; skipped with a message otherwise.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use dipole_node::ClusterKey;
use dipole_testbed::built::example;

use crate::cluster::{Cluster, Job, assert_gone};

/// Takes a step of the rotation in the launcher's file and copies the result to an agent.
fn step(key: &Path, of_agent: &Path, goes_on: bool) -> String {
    let rotated = ClusterKey::rotate(key, goes_on).expect("our own file");
    let fresh = of_agent.with_extension("fresh");
    std::fs::copy(key, &fresh).expect("our own folder");
    std::fs::rename(&fresh, of_agent).expect("our own folder");
    rotated.fingerprint()
}

/// Waits for the next output of a running job.
fn told(job: &mut Job, ranks: usize, fingerprint: &str) {
    for _ in 0..ranks {
        let line = job.line();
        assert!(line.contains(fingerprint), "{line}, not {fingerprint}");
    }
}

#[test]
fn jobs_follow_a_key_rotation_and_processes_with_only_the_old_key_are_locked_out() {
    let Some(cluster) = Cluster::make() else {
        return;
    };
    let (key, of_agent, stale) = (
        cluster.path("key"),
        cluster.path("key-of-agent"),
        cluster.path("key-stale"),
    );
    for copy in [&of_agent, &stale] {
        std::fs::copy(&key, copy).expect("our own folder");
    }
    // Node 1 is this machine, node 2 has an agent, node 3 is reached through a remote shell.
    let place = |node| cluster.testbed.node(node);
    let line = |node: u32, more: &str| {
        let (address, folder) = (place(node).addresses[0], place(node).runtime_dir.display());
        format!("{node} {address} slots=1 runtime={folder}{more}\n")
    };
    let by_shell = format!(" ssh={}", place(3).namespace);
    let hosts = [line(1, ""), line(2, ""), line(3, &by_shell)].concat();
    std::fs::write(cluster.path("through-agents"), hosts).expect("our own folder");
    std::fs::write(cluster.path("only-agent"), line(2, "")).expect("our own folder");
    let ssh = cluster.path("ssh");
    let script = "#!/bin/sh\nwhile [ \"${1#-o}\" != \"$1\" ]; do shift; done\ndest=$1; shift\n\
                  unset DIPOLE_KEY\nexec ip netns exec \"$dest\" sh -c \"$*\"\n";
    std::fs::write(&ssh, script).expect("our own folder");
    std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).expect("our own file");
    let agent = cluster.agent_with(2, |command: &mut Command| {
        command.env("DIPOLE_KEY", &of_agent);
    });

    // Ranks print when the key that they would use, or accept, has changed.
    let (go, program) = (cluster.path("go"), example("all_to_all"));
    let script = format!(
        "echo place $DIPOLE_NID $DIPOLE_KEY; before=; while [ ! -e {go} ]; do now=$({dipole} key show $DIPOLE_KEY); \
         if [ \"$now\" != \"$before\" ]; then echo \"$now\"; before=$now; fi; sleep 0.1; done; \
         exec {program}",
        go = go.display(),
        dipole = env!("CARGO_BIN_EXE_dipole"),
        program = program.display(),
    );
    let first = ClusterKey::load(&key).expect("our own file").fingerprint();
    let mut job = Job::start(&mut cluster.run(&["-n", "3"], &script));
    // The launcher passes its key in memory, except where an agent has a file of its own.
    let (places, begun): (Vec<_>, Vec<_>) = (0..6)
        .map(|_| job.line())
        .partition(|line| line.starts_with("place "));
    assert!(begun.iter().all(|line| line.contains(&first)), "{begun:?}");
    let by_agent = format!("place 2 {}", of_agent.display());
    let in_memory = places.iter().filter(|line| line.contains(" /proc/"));
    assert_eq!((places.len(), in_memory.count()), (3, 2), "{places:?}");
    assert!(places.contains(&by_agent), "{places:?}");
    let mut left = cluster.run(&["-n", "1"], "echo $$; while :; do sleep 0.1; done");
    left.env("DIPOLE_KEY", &stale)
        .env("DIPOLE_HOSTS", cluster.path("only-agent"));
    let mut left = Job::start(&mut left);
    let of_left = left.pids(1);

    assert_eq!(step(&key, &of_agent, false), first);
    told(&mut job, 3, "next=");
    let second = step(&key, &of_agent, true);
    told(&mut job, 3, &format!("{second} auth old={first}"));
    assert_eq!(step(&key, &of_agent, true), second);
    told(&mut job, 3, &second);

    // The call of an agent that did not follow ends, and everything that it started with it.
    assert_gone(&of_left);
    agent.says("only a cluster key that was withdrawn; its job is ended");
    assert_eq!(agent.said().matches("its job is ended").count(), 1);
    let (status, said) = left.ends_saying();
    assert_eq!(status, Some(137), "{said}");
    assert!(said.contains("the agent ends this job"), "{said}");

    // New sessions of the job's ranks use the new key, on all three nodes.
    std::fs::write(&go, "").expect("our own folder");
    let (status, said) = job.ends_saying();
    assert_eq!(status, Some(0), "{said}");
}

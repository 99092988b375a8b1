//! Ranks of running jobs move to other nodes, while the others keep their processes, and the result is
//! that of an undisturbed run.

mod harness;
#[path = "harness/moving.rs"]
mod moving;

use std::fs;

use dipole_testbed::built;
use moving::{Cluster, STOPS, err, nodes, wait_until};

#[test]
fn ranks_move_and_return_while_the_others_keep_their_processes() {
    let Some(cluster) = Cluster::new(3, 2) else {
        return;
    };
    let expected = cluster.expected();
    for link in ["auto", "udp", "tcp"] {
        let job = cluster.start(&format!("moved-{link}"), link, "syncs", &[]);
        job.at(1);
        let before = job.processes();
        assert_eq!(nodes(&before), [1, 1, 2], "{link}");
        job.migrate(&["--rank", "1", "--to", "3"]);
        job.go(1);
        job.at(2);
        let moved = job.processes();
        assert_eq!(nodes(&moved), [1, 3, 2], "{link}");
        assert_eq!((&moved[0], &moved[2]), (&before[0], &before[2]), "{link}");
        // Back again, and another one in the same stop.
        job.migrate(&["--rank", "1", "--to", "1"]);
        job.migrate(&["--rank", "2"]);
        job.go(2);
        job.at(3);
        let returned = job.processes();
        assert_eq!(nodes(&returned), [1, 1, 3], "{link}");
        assert_eq!(returned[0], before[0], "{link}");
        // Rank 0, with the input that it has not read; then all ranks are on one node or two.
        job.migrate(&["--to", "2,3"]);
        job.go(3);
        job.at(4);
        let last = job.processes();
        assert_eq!(nodes(&last), [2, 2, 3], "{link}");
        assert_eq!(last[2], returned[2], "{link}");
        job.go(4);
        assert_eq!(job.end(), expected, "{link}");
    }
}

#[test]
fn a_refused_migration_leaves_the_job_where_it_is() {
    let Some(cluster) = Cluster::new(3, 2) else {
        return;
    };
    let expected = cluster.expected();
    let job = cluster.start("refused", "auto", "syncs", &[]);
    job.at(1);
    for (arguments, reason) in [
        (&["--to", "7"][..], "`7` is not a host of this job"),
        (&["--rank", "3", "--to", "2"], "rank 3 does not exist"),
        (&["--rank", "1", "--to", "1"], "rank 1 is on node 1"),
        (&["--to", "1,2"], "all ranks are on node 1"),
        (&["--to", "3"], "too few free slots for the 3 ranks"),
    ] {
        job.refused(arguments, reason);
    }
    let mut unknown = cluster.testbed.command(1, built::program("dipole"));
    unknown.args([
        "migrate",
        "00000000000000ff",
        "--to",
        "2",
        "--checkpoint-dir",
    ]);
    let output = unknown
        .arg(cluster.bench.path())
        .output()
        .expect("it starts");
    assert!(
        err(&output).contains("has no checkpoints of a job"),
        "{output:?}"
    );
    // The host does not start anything, or cannot restore the rank.
    job.set_refusing(3, true);
    job.refused(&["--rank", "1", "--to", "3"], "no thanks");
    job.set_refusing(3, false);
    fs::write(job.files.join("hides"), "").expect("own folder");
    let reason = "rank 1 could not be restored (status 125)";
    job.refused(&["--rank", "1", "--to", "3"], reason);
    fs::remove_file(job.files.join("hides")).expect("own file");
    job.go(1);
    job.at(2);
    assert_eq!(nodes(&job.processes()), [1, 1, 2]);
    // The next migration works.
    job.migrate(&["--rank", "1", "--to", "3"]);
    job.go(2);
    (3..=STOPS).for_each(|stop| job.go(stop));
    assert_eq!(job.end(), expected);
}

#[test]
fn a_rank_that_cannot_be_saved_stays() {
    let Some(cluster) = Cluster::new(3, 2) else {
        return;
    };
    let expected = cluster.expected();
    let job = cluster.start("socket", "auto", "socket", &[]);
    job.at(1);
    let before = job.processes();
    job.refused(
        &["--rank", "1", "--to", "3"],
        "rank 1 cannot be saved: this program cannot be saved: its descriptor",
    );
    // The others can move.
    job.migrate(&["--rank", "2", "--to", "3"]);
    job.go(1);
    job.at(2);
    let moved = job.processes();
    assert_eq!(nodes(&moved), [1, 1, 3]);
    assert_eq!(moved[..2], before[..2]);
    (2..=STOPS).for_each(|stop| job.go(stop));
    assert_eq!(job.end(), expected);
}

#[test]
fn the_loss_of_the_new_node_before_the_ranks_move_costs_nothing() {
    let Some(cluster) = Cluster::new(3, 2) else {
        return;
    };
    let expected = cluster.expected();
    let job = cluster.start("lost-target", "auto", "computes", &[]);
    job.at(1);
    let before = job.processes();
    let migrating = job.migrate_command(&["--rank", "1", "--to", "3"]).spawn();
    let migrating = migrating.expect("it starts");
    let order = job.files.join("checkpoints").join(job.name());
    let order = order.join("migration-order");
    wait_until("an order", || order.exists());
    // Rank 0 ends no superstep, so nothing has moved yet.
    cluster
        .testbed
        .kill_node(3)
        .expect("its processes are ours");
    let output = migrating.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("node 3"), "{output:?}");
    assert!(!order.exists());
    job.go(1);
    job.at(2);
    assert_eq!(job.processes(), before);
    // A superstep that takes too long: the order is withdrawn.
    job.refused(
        &["--rank", "1", "--to", "3", "--timeout", "1"],
        "no superstep has ended",
    );
    assert!(!order.exists());
    (2..=STOPS).for_each(|stop| job.go(stop));
    assert_eq!(job.end(), expected);
}

#[test]
fn the_loss_of_a_rank_during_a_migration_restarts_the_job() {
    let Some(cluster) = Cluster::new(3, 2) else {
        return;
    };
    let expected = cluster.expected();
    let options = ["--checkpoint-every", "50", "--on-loss", "restart"];
    let job = cluster.start("lost-rank", "auto", "computes", &options);
    job.at(1);
    let migrating = job.migrate_command(&["--rank", "1", "--to", "3"]).spawn();
    let migrating = migrating.expect("it starts");
    let folder = job.files.join("checkpoints").join(job.name());
    wait_until("an order", || folder.join("migration-order").exists());
    cluster
        .testbed
        .kill_node(2)
        .expect("its processes are ours");
    let output = migrating.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("is lost"), "{output:?}");
    (1..=STOPS).for_each(|stop| job.go(stop));
    let (mut printed, logged) = job.end();
    // What was printed since the checkpoint is printed again, and input is not given again.
    printed.retain(|line| !line.starts_with("stop"));
    let mut lines = expected.0;
    lines.retain(|line| !line.starts_with("stop"));
    assert_eq!((printed, logged), (lines, expected.1));
}

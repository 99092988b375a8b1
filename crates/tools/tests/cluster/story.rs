//! Four nodes with two interfaces each: an interface fails and comes back, a node is killed and comes back.

use std::thread;

use dipole_testbed::Testbed;

use crate::job::Job;

#[test]
fn survivors_lose_nothing_while_an_interface_and_then_a_node_fail_and_return() {
    let builder = Testbed::builder().nodes(4).networks(2).slots(2);
    let Some(testbed) = crate::testbed(builder) else {
        return;
    };
    let phase = crate::phase();
    let mut job = Job::soak_on(&testbed, 8, &["--on-loss", "restart"]);
    job.wait_for(8, "all ranks found");
    thread::sleep(phase / 2);
    job.note("node 2: the first interface is taken out");
    testbed.set_interface(2, 0, false).expect("an interface");
    // Each of the six other ranks reports the address that both processes there still have.
    job.wait_for(12, "node 2: 10.1.");
    // The two there report all six others.
    job.wait_for(12, "answers no longer: not used; 10.1.0.2 <-> ");
    thread::sleep(phase);
    assert_eq!(
        job.count("is lost"),
        0,
        "the loss of an interface is not the loss of a node"
    );
    let before = job.count("10.0.0.2 small and bulk");
    job.note("node 2: the first interface is put back");
    testbed.set_interface(2, 0, true).expect("an interface");
    job.wait_for(before + 12, "10.0.0.2 small and bulk");
    thread::sleep(phase / 2);
    job.note("node 4 is killed");
    // Some end before their turn, together with those that watched them.
    assert!(testbed.kill_node(4).expect("a node") >= 1);
    job.wait_for(1, "node 4 (10.0.0.4) is lost");
    for rank in [6, 7] {
        job.wait_for(6, &format!("rank {rank} is lost"));
    }
    job.wait_for(1, "rank 6, 7 restarted");
    for rank in [6, 7] {
        job.wait_for(6, &format!("rank {rank} sends again"));
    }
    job.note("node 4 is back");
    assert!(job.end().success());
    assert_eq!(job.count("to 7 ranks"), 8, "all eight end with all others");
    assert_eq!(job.count("every byte accounted for"), 8);
    assert_eq!(job.count("to and from ranks that died"), 6);
    assert_eq!(job.count("is lost: "), 12, "only node 4 was ever lost");
}

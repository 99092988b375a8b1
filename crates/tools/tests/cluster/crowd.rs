//! More processes than cores, all with the bpf link, on interfaces with several queues.

use dipole_testbed::Testbed;

use crate::job::Job;

#[test]
fn eight_processes_a_node_share_an_interface_of_four_queues() {
    let Some(testbed) = crate::testbed(Testbed::builder().nodes(2).slots(8).queues(4)) else {
        return;
    };
    let mut job = Job::soak(&testbed, 16, crate::phase().as_secs_f64(), &[]);
    assert!(job.end().success());
    assert_eq!(job.count("to 15 ranks"), 16);
    assert_eq!(job.count("every byte accounted for"), 16);
    assert_eq!(job.count("from rings and"), 16);
    let sent = job.numbers("messages, ", " bytes to 15 ranks");
    assert!(sent.iter().all(|bytes| *bytes > 0.0), "{sent:?}");
}

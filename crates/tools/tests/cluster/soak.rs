//! Full rate on a network that loses, duplicates and reorders real packets.

use dipole_testbed::{Faults, Testbed};

use crate::job::Job;

#[test]
fn every_byte_is_accounted_for_on_a_network_that_loses_duplicates_and_reorders() {
    soak("auto");
}

#[test]
fn every_byte_is_accounted_for_between_processes_with_the_bpf_link_and_without() {
    soak("bpf,udp,udp,bpf,udp");
}

fn soak(links: &str) {
    let faults = Faults {
        drop: 0.01,
        repeat: 0.01,
        reorder: 0.01,
        seed: 20,
        ..Faults::default()
    };
    let Some(testbed) = crate::testbed(Testbed::builder().nodes(4).slots(2).faults(faults)) else {
        return;
    };
    let mut job = Job::soak_by(&testbed, 8, crate::phase().as_secs_f64(), links);
    assert!(job.end().success());
    assert_eq!(job.count("to 7 ranks"), 8);
    assert_eq!(job.count("every byte accounted for"), 8);
    assert_eq!(job.count("is lost"), 0);
    assert!(job.count("from rings and") > 0, "the bpf link was not used");
    let harm = testbed.fault_counters();
    println!("{harm:?}");
    let struck = [harm.dropped, harm.repeated, harm.reordered];
    assert!(
        struck.iter().all(|count| *count > harm.frames / 200),
        "the network did less harm than it should"
    );
}

//! Whole clusters in network namespaces, under what clusters suffer: interfaces and nodes that fail and
//! come back, networks that lose, repeat and reorder, other traffic. Needs root; skipped aloud
//! without.
//!
//! `DIPOLE_CLUSTER_S` says how many seconds each phase takes; 3 unless it is set.

#![allow(missing_docs, reason = "tests")]

mod beside;
mod busy_poll;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod fairness;
mod first;
mod job;
mod soak;
mod story;

use std::time::Duration;

/// Makes a testbed, or says why there is none.
fn testbed(builder: dipole_testbed::Builder) -> Option<dipole_testbed::Testbed> {
    if let Some(why) = dipole_testbed::Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let testbed = builder.build().expect("a testbed");
    println!("{}", testbed.description());
    Some(testbed)
}

fn phase() -> Duration {
    let given = std::env::var("DIPOLE_CLUSTER_S").ok();
    Duration::from_secs(given.map_or(3, |text| text.parse().expect("seconds")))
}

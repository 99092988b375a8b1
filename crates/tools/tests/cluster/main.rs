//! Whole clusters in network namespaces with failures: interfaces and nodes that fail and come back,
//! networks that lose, duplicate and reorder packets, other traffic. Needs root; skipped with a message
//! otherwise.
//!
//! `DIPOLE_CLUSTER_S` sets the duration of each phase in seconds (3).

#![allow(missing_docs, reason = "tests")]

mod beside;
mod busy_poll;
mod crowd;
mod fairness;
mod first;
mod job;
mod soak;
mod story;

use std::time::Duration;

/// Creates a testbed; `None`, with the reason, if that is not possible.
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

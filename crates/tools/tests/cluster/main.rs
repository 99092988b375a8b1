//! Whole clusters in network namespaces, under what clusters suffer: cards and nodes that fail and
//! come back, networks that lose, repeat and reorder, other traffic. Needs root; skipped aloud
//! without.
//!
//! `DIPOLE_CLUSTER_S` says how many seconds each phase takes; 3 unless it is set.

#![allow(missing_docs, reason = "tests")]

mod beside;
#[path = "../common/mod.rs"]
mod common;
mod crowd;
mod fairness;
mod first;
mod job;
mod soak;
mod story;

use std::time::Duration;

/// Makes a bed, or says why there is none.
fn bed(builder: dipole_bed::Builder) -> Option<dipole_bed::Bed> {
    if let Some(why) = dipole_bed::Bed::why_not() {
        eprintln!("SKIPPED: {why}");
        return None;
    }
    let bed = builder.build().expect("a bed");
    println!("{}", bed.description());
    Some(bed)
}

fn phase() -> Duration {
    let given = std::env::var("DIPOLE_CLUSTER_S").ok();
    Duration::from_secs(given.map_or(3, |text| text.parse().expect("seconds")))
}

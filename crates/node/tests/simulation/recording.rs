//! Recordings of simulated clusters replay with the same results.

use std::path::Path;

use dipole_record::{LEAST_BYTES, Observed, Step, Steps, recordings};

use crate::scenario::Scenario;
use crate::world;

/// Totals of the replays of a cluster.
#[derive(Debug, Default)]
struct Seen {
    processes: usize,
    inputs: u64,
    packets: usize,
    events: usize,
    files: usize,
}

/// Records a cluster and replays all its processes.
fn replay(seed: u64, bytes: u64, seen: &mut Seen) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut scenario = Scenario::draw(seed);
    scenario.recording = Some((directory.path().to_path_buf(), bytes));
    world::run(scenario, false)
        .unwrap_or_else(|violation| panic!("seed {seed}: {}", violation.what));
    replay_all(seed, directory.path(), seen);
}

fn replay_all(seed: u64, directory: &Path, seen: &mut Seen) {
    let (found, refused) = recordings(directory).expect("recordings");
    assert!(refused.is_empty(), "seed {seed}: {refused:?}");
    for recording in found {
        seen.processes += 1;
        seen.files += recording.files.len();
        let mut steps = Steps::new(recording);
        while let Some((_, step)) = steps.next() {
            match step {
                Step::Observed(_, Observed::Packet { count, .. }) => seen.packets += count,
                Step::Observed(_, Observed::Event(_)) => seen.events += 1,
                Step::Observed(..) => {}
                // The oldest files may have been removed.
                Step::File { after_gap, .. } => {
                    assert!(!after_gap || steps.inputs() == 0, "seed {seed}");
                }
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        assert!(steps.replay().is_some_and(dipole_record::Replay::is_closed));
        seen.inputs += steps.inputs();
    }
}

#[test]
fn every_call_of_a_recorded_cluster_has_the_same_result_in_the_replay() {
    let mut seen = Seen::default();
    for seed in 0..60 {
        replay(seed, 1 << 30, &mut seen);
    }
    assert!(seen.processes > 100 && seen.packets > 50_000, "{seen:?}");
    assert!(seen.events > 10_000, "{seen:?}");
    crate::say(&format!("{seen:?}"));
}

#[test]
fn a_small_ring_of_files_can_be_replayed_from_its_oldest_file() {
    let mut seen = Seen::default();
    for seed in 60..80 {
        replay(seed, LEAST_BYTES, &mut seen);
    }
    assert!(seen.files > seen.processes + 20, "{seen:?}");
    crate::say(&format!("{seen:?}"));
}

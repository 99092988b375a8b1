//! Tests the model of single messages on the simulator: calibration finds the known parameters, and
//! predictions match the simulated times.

use dipole_model::{PointToPoint, Regime};

use super::switch;
use crate::cluster::{Cluster, Relation, Setup};
use dipole_bench::calibrate::parameters;
use dipole_bench::calibrate::side::{FRAGMENT_BYTES, LONG_BYTES, Metric, SHORT_BYTES, Sample};

/// Calls cost nothing here, and processes poll every microsecond.
const LOOK_NS: f64 = 1_000.0;

fn setup(mbit_per_second: u64, latency_ns: u64) -> Setup {
    Setup {
        processes: 2,
        mbit_per_second,
        latency_ns,
        skew_ns: 0,
        ..switch()
    }
}

/// Returns the time of one message between two processes.
fn trip_ns(cluster: &mut Cluster, bytes: usize) -> f64 {
    let mut relation = Relation::total_exchange(2, 0);
    relation.bytes[0][1] = bytes;
    cluster.exchange(&relation).ns as f64
}

/// Returns the result of a calibration on the simulated network.
fn calibrated(setup: &Setup) -> PointToPoint {
    let mut cluster = Cluster::new(setup);
    // Receivers must first measure the capacity of their links.
    trip_ns(&mut cluster, 4 << 20);
    let mut samples = Vec::new();
    for bytes in SHORT_BYTES.into_iter().chain(LONG_BYTES) {
        let trip = trip_ns(&mut cluster, bytes);
        let gap = setup.message_ns(bytes) as f64;
        for (what, ns) in [
            (Metric::Trip, trip),
            (Metric::Send, 0.0),
            (Metric::Work, 0.0),
            (Metric::PickUp, 0.0),
            (Metric::SendGap, gap),
            (Metric::ReceiveGap, gap),
        ] {
            let ns = vec![ns];
            samples.push(Sample { what, bytes, ns });
        }
    }
    parameters::of("simulation", &[samples], None).expect("all was measured")
}

#[test]
fn latency_and_gap_of_a_simulated_network_are_found_again() {
    for (mbit_per_second, latency_ns) in [(100, 20_000), (1_000, 5_000)] {
        let setup = setup(mbit_per_second, latency_ns);
        let found = calibrated(&setup);
        // A byte passes the sender's link and the link behind the switch. Messages in one piece have
        // no head of a piece, which is included here.
        let first = 2.0 * setup.message_ns(1) as f64 + latency_ns as f64;
        let spared = 2.0 * (setup.message_ns(33) - setup.message_ns(1)) as f64;
        let l_ns = found.short[0].l_ns.median;
        let expected = first - spared..first + 2.0 * LOOK_NS;
        assert!(expected.contains(&l_ns), "{l_ns} {expected:?}");
        let gap_ns = setup.message_ns(FRAGMENT_BYTES) as f64;
        for long in found.long.iter().filter(|long| long.bytes >= 256 << 10) {
            let g_r_ns = long.g_r_ns.median;
            assert!(
                (g_r_ns / gap_ns - 1.0).abs() < 0.05,
                "{g_r_ns} {gap_ns} {long:?}"
            );
        }
    }
}

#[test]
fn what_is_predicted_is_what_the_simulator_then_does() {
    for (mbit_per_second, latency_ns) in [(100, 20_000), (1_000, 5_000)] {
        let setup = setup(mbit_per_second, latency_ns);
        let found = calibrated(&setup);
        let mut cluster = Cluster::new(&Setup { seed: 7, ..setup });
        trip_ns(&mut cluster, 4 << 20);
        let mut errors = Vec::new();
        for bytes in [
            1, 100, 700, 1300, 3000, 5000, 14_000, 40_000, 100_000, 400_000, 2_000_000, 4_000_000,
        ] {
            let predicted = found.predict(bytes).expect("measured");
            let is_long = bytes > FRAGMENT_BYTES;
            assert_eq!(predicted.regime == Regime::NetworkBound, is_long);
            let took = trip_ns(&mut cluster, bytes);
            let error = (predicted.ns.median / took - 1.0).abs();
            assert!(error < 0.1, "{bytes}: {predicted:?} {took}");
            errors.push(error);
        }
        errors.sort_by(f64::total_cmp);
        assert!(errors[errors.len() / 2] < 0.03, "{errors:?}");
    }
}

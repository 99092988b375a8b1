//! Cost of one message between two processes.
//!
//! A message of one fragment takes `O_s + L + O_r + U_r`. A message of k fragments takes `(k - 1) g`
//! more if the gap g between fragments is the bottleneck, and `(k - 1) (O_r + U_r)` more if the
//! receiver is. The first fragment may cost more than later ones, so both costs are kept; if they
//! are equal, the sum is the paper's `O_s + L + k (O_r + U_r)`.
//!
//! # Source
//! Directed Point §3.2, eq. 1, and §5.1, eq. 2.

use serde::{Deserialize, Serialize};

use crate::interval::{MedianInterval, between, float};
use crate::wire::Wire;

/// Parameters of messages of one fragment, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Short {
    /// Length of the message in bytes.
    pub bytes: usize,
    /// One-way time, half a round trip. `l_ns` is computed from it.
    pub trip_ns: MedianInterval,
    /// Send overhead: duration of the send call.
    pub o_s_ns: MedianInterval,
    /// Asynchronous receive overhead: moving the message from the link to the endpoint's pool.
    pub o_r_ns: MedianInterval,
    /// User receive overhead: the call that takes the message from the pool.
    pub u_r_ns: MedianInterval,
    /// Network latency: the rest of the one-way time. Negative if the receiver starts before the
    /// send call returns.
    pub l_ns: MedianInterval,
    /// Transmit gap: time between two messages of a burst at the sender.
    pub g_s_ns: MedianInterval,
    /// Receive gap: the same at the receiver.
    pub g_r_ns: MedianInterval,
}

/// Parameters of messages of several fragments, in nanoseconds per fragment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Long {
    /// Length of the message in bytes.
    pub bytes: usize,
    /// One-way time of the whole message.
    pub trip_ns: MedianInterval,
    /// `O_r + U_r`: how long the receiver is busy, at most `g_r_ns`.
    pub work_ns: MedianInterval,
    /// Transmit gap: time between two fragments at the sender.
    pub g_s_ns: MedianInterval,
    /// Receive gap: the same at the receiver.
    pub g_r_ns: MedianInterval,
}

/// Parameters measured between two processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointToPoint {
    /// Location of the two processes: `node`, `loopback` or `veth`.
    pub place: String,
    /// Number of rounds, each with new processes.
    pub rounds: u32,
    /// Longest message of one fragment: b.
    pub fragment_bytes: usize,
    /// One-way time of a cache line between the two cores. On shared hosts this changes as the
    /// hypervisor moves virtual cores, and all other times change with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_line_ns: Option<MedianInterval>,
    /// The network between the two processes, if its speed is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<Wire>,
    /// Messages of at most one fragment, by length.
    pub short: Vec<Short>,
    /// Messages of more than one fragment, by length.
    pub long: Vec<Long>,
}

/// The bottleneck of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Regime {
    /// None: the message is one fragment.
    OneFragment,
    /// The gap between fragments limits the throughput.
    NetworkBound,
    /// The receiver's work on each fragment.
    ReceiverBound,
}

/// Predicted time of a message.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// From the start of the send call to the end of the receive call.
    pub ns: MedianInterval,
    /// Number of fragments, possibly fractional.
    pub fragments: f64,
    /// The bottleneck, which selects the formula.
    pub regime: Regime,
}

impl PointToPoint {
    /// Returns the parameters for a message of at most one fragment, interpolated linearly over the
    /// length. `None` if no length was measured.
    #[must_use]
    pub fn short(&self, bytes: usize) -> Option<Short> {
        let places = self.short.iter().map(|short| float(short.bytes));
        let (one, other, part) = between(places, float(bytes))?;
        let (one, other) = (self.short[one], self.short[other]);
        let of = |field: fn(&Short) -> MedianInterval| field(&one).towards(field(&other), part);
        Some(Short {
            bytes,
            trip_ns: of(|short| short.trip_ns),
            o_s_ns: of(|short| short.o_s_ns),
            o_r_ns: of(|short| short.o_r_ns),
            u_r_ns: of(|short| short.u_r_ns),
            l_ns: of(|short| short.l_ns),
            g_s_ns: of(|short| short.g_s_ns),
            g_r_ns: of(|short| short.g_r_ns),
        })
    }

    /// Returns the parameters for a longer message, interpolated linearly over the logarithm of the
    /// length. Beyond the longest measured length they stay constant.
    #[must_use]
    pub fn long(&self, bytes: usize) -> Option<Long> {
        let places = self.long.iter().map(|long| float(long.bytes).ln());
        let (one, other, part) = between(places, float(bytes).ln())?;
        let (one, other) = (self.long[one], self.long[other]);
        let of = |field: fn(&Long) -> MedianInterval| field(&one).towards(field(&other), part);
        Some(Long {
            bytes,
            trip_ns: of(|long| long.trip_ns),
            work_ns: of(|long| long.work_ns),
            g_s_ns: of(|long| long.g_s_ns),
            g_r_ns: of(|long| long.g_r_ns),
        })
    }

    /// Predicts the time of one message. `None` if too little was measured.
    #[must_use]
    pub fn predict(&self, bytes: usize) -> Option<Prediction> {
        if bytes <= self.fragment_bytes {
            let short = self.short(bytes)?;
            let sum = |bound: fn(&MedianInterval) -> f64| bound(&short.trip_ns);
            let parts = [short.o_s_ns, short.l_ns, short.o_r_ns, short.u_r_ns];
            return Some(Prediction {
                ns: MedianInterval {
                    median: parts.iter().map(|part| part.median).sum(),
                    // The parts add up to the one-way time, so they share its interval.
                    low: sum(|trip| trip.low),
                    high: sum(|trip| trip.high),
                },
                fragments: 1.0,
                regime: Regime::OneFragment,
            });
        }
        let first = self.predict(self.fragment_bytes)?.ns;
        let long = self.long(bytes)?;
        let fragments = float(bytes) / float(self.fragment_bytes);
        let regime = long.regime();
        let each = match regime {
            Regime::ReceiverBound => long.work_ns,
            _ => long.gap(),
        };
        let ns = first.each(each, |first, each| first + (fragments - 1.0) * each);
        Some(Prediction {
            ns,
            fragments,
            regime,
        })
    }
}

impl Long {
    /// g: the larger of the two gaps.
    fn gap(&self) -> MedianInterval {
        match self.g_s_ns.median > self.g_r_ns.median {
            true => self.g_s_ns,
            false => self.g_r_ns,
        }
    }

    fn regime(&self) -> Regime {
        match self.work_ns.median >= self.gap().median {
            true => Regime::ReceiverBound,
            false => Regime::NetworkBound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A sender, a wire and a receiver with known costs, which process fragments one by one.
    #[derive(Clone, Copy, Debug)]
    struct Pipeline {
        send_ns: f64,
        gap_ns: f64,
        latency_ns: f64,
        receive_ns: f64,
        pick_up_ns: f64,
    }

    const FRAGMENT: usize = 1000;

    impl Pipeline {
        /// Simulates the fragments one by one and returns when the receiver picks up the last one.
        /// The wire accepts one fragment per gap.
        fn simulate(self, fragments: usize) -> f64 {
            let (mut wire_free, mut receiver_free) = (self.send_ns, 0.0_f64);
            let mut done = 0.0;
            for _ in 0..fragments {
                let arrives = wire_free + self.latency_ns;
                wire_free += self.gap_ns;
                receiver_free = receiver_free.max(arrives) + self.receive_ns + self.pick_up_ns;
                done = receiver_free;
            }
            done
        }

        /// The parameters that calibration would find.
        fn calibrated(self) -> PointToPoint {
            let exactly = MedianInterval::exactly;
            let short = |bytes| Short {
                bytes,
                trip_ns: exactly(self.simulate(1)),
                o_s_ns: exactly(self.send_ns),
                o_r_ns: exactly(self.receive_ns),
                u_r_ns: exactly(self.pick_up_ns),
                l_ns: exactly(self.latency_ns),
                g_s_ns: exactly(self.gap_ns),
                g_r_ns: exactly(self.gap_ns),
            };
            PointToPoint {
                place: "node".to_owned(),
                rounds: 1,
                fragment_bytes: FRAGMENT,
                cache_line_ns: None,
                wire: None,
                short: vec![short(1), short(FRAGMENT)],
                long: vec![Long {
                    bytes: 4 * FRAGMENT,
                    trip_ns: exactly(self.simulate(4)),
                    work_ns: exactly(self.receive_ns + self.pick_up_ns),
                    g_s_ns: exactly(self.gap_ns),
                    g_r_ns: exactly(self.gap_ns),
                }],
            }
        }
    }

    proptest! {
        #[test]
        fn predictions_match_a_simulated_pipeline_in_both_regimes(
            send_ns in 0.0..5e3_f64,
            gap_ns in 1.0..5e3_f64,
            latency_ns in 0.0..5e4_f64,
            receive_ns in 0.0..5e3_f64,
            pick_up_ns in 0.0..5e2_f64,
            fragments in 1..300_usize,
        ) {
            let pipeline = Pipeline { send_ns, gap_ns, latency_ns, receive_ns, pick_up_ns };
            let predicted = pipeline.calibrated().predict(fragments * FRAGMENT).expect("measured");
            let simulated_ns = pipeline.simulate(fragments);
            prop_assert!((predicted.ns.median - simulated_ns).abs() < 1e-6 * simulated_ns, "{predicted:?} {simulated_ns}");
            let expected = match (fragments, receive_ns + pick_up_ns >= gap_ns) {
                (1, _) => Regime::OneFragment,
                (_, true) => Regime::ReceiverBound,
                (_, false) => Regime::NetworkBound,
            };
            prop_assert_eq!(predicted.regime, expected);
        }
    }

    proptest! {
        /// Profiles edited by hand may yield nonsense, but not a panic.
        #[test]
        fn invalid_profiles_do_not_panic(
            fragment_bytes: usize,
            lengths in proptest::collection::vec(any::<(usize, f64)>(), 0..4),
            bytes: usize,
        ) {
            let short = |&(bytes, ns): &(usize, f64)| {
                let ns = MedianInterval::exactly(ns);
                Short {
                    bytes,
                    trip_ns: ns,
                    o_s_ns: ns,
                    o_r_ns: ns,
                    u_r_ns: ns,
                    l_ns: ns,
                    g_s_ns: ns,
                    g_r_ns: ns,
                }
            };
            let long = |&(bytes, ns): &(usize, f64)| {
                let ns = MedianInterval::exactly(ns);
                Long { bytes, trip_ns: ns, work_ns: ns, g_s_ns: ns, g_r_ns: ns }
            };
            let model = PointToPoint {
                place: String::new(),
                rounds: 0,
                fragment_bytes,
                cache_line_ns: None,
                wire: None,
                short: lengths.iter().map(short).collect(),
                long: lengths.iter().map(long).collect(),
            };
            prop_assert_eq!(model.predict(bytes).is_some(), !lengths.is_empty());
        }
    }

    #[test]
    fn parameters_are_interpolated_between_measured_lengths() {
        let pipeline = Pipeline {
            send_ns: 1.0,
            gap_ns: 10.0,
            latency_ns: 100.0,
            receive_ns: 2.0,
            pick_up_ns: 3.0,
        };
        let mut model = pipeline.calibrated();
        model.short[1].trip_ns = MedianInterval::exactly(206.0);
        model.short[1].l_ns = MedianInterval::exactly(200.0);
        let middle = model.predict(1 + (FRAGMENT - 1) / 2).expect("measured");
        assert!((middle.ns.median - 155.95).abs() < 0.1, "{middle:?}");
        let nothing = PointToPoint {
            short: Vec::new(),
            ..model
        };
        assert_eq!(nothing.predict(1), None);
    }

    #[test]
    fn the_interval_of_a_long_message_grows_with_its_fragments() {
        let pipeline = Pipeline {
            send_ns: 1.0,
            gap_ns: 10.0,
            latency_ns: 100.0,
            receive_ns: 2.0,
            pick_up_ns: 3.0,
        };
        let mut model = pipeline.calibrated();
        let gap = MedianInterval {
            median: 10.0,
            low: 9.0,
            high: 12.0,
        };
        (model.long[0].g_r_ns, model.long[0].g_s_ns) = (gap, gap);
        let ns = model.predict(11 * FRAGMENT).expect("measured").ns;
        assert_eq!((ns.low, ns.median, ns.high), (196.0, 206.0, 226.0));
    }
}

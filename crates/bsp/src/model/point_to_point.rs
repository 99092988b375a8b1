//! One message from a process to another.
//!
//! A short message leaves as one fragment and takes `O_s + L + O_r + U_r`. A longer one leaves as k
//! fragments. Where these follow each other by a gap g in which the receiver can take one, that
//! adds `(k - 1) g`; where it is the receiver's work on a fragment that the next one waits for, it
//! adds `(k - 1) (O_r + U_r)`. As a further fragment may cost less than a first one, both costs are
//! kept; where they are the same, the sum is the paper's `O_s + L + k (O_r + U_r)`.
//!
//! # Source
//! Directed Point §3.2, eq. 1, and §5.1, eq. 2.

use serde::{Deserialize, Serialize};

use super::{Measured, between, float};

/// Parameters of messages that leave as one fragment, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Short {
    /// How long the messages were.
    pub bytes: usize,
    /// A single trip, half a round trip: what `l_ns` was computed from.
    pub trip_ns: Measured,
    /// Send overhead: the call that sends.
    pub o_s_ns: Measured,
    /// Asynchronous receive overhead: what takes the message from the link into the endpoint's
    /// pool.
    pub o_r_ns: Measured,
    /// User receive overhead: the call that takes it from the pool.
    pub u_r_ns: Measured,
    /// Network latency: what is left of the single trip. Below 0 where the receiver begins before
    /// the sender's call has returned.
    pub l_ns: Measured,
    /// Transmit gap: from one such message to the next in a burst, at the sender.
    pub g_s_ns: Measured,
    /// Receive gap: the same where they arrive.
    pub g_r_ns: Measured,
}

/// Parameters of messages of several fragments, in nanoseconds for each fragment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Long {
    /// How long the messages were.
    pub bytes: usize,
    /// A single trip of the whole.
    pub trip_ns: Measured,
    /// `O_r + U_r`: how long the receiver is busy, at most `g_r_ns`.
    pub work_ns: Measured,
    /// Transmit gap: from one fragment to the next at the sender.
    pub g_s_ns: Measured,
    /// Receive gap: the same where they arrive.
    pub g_r_ns: Measured,
}

/// What was measured between two processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointToPoint {
    /// Where the two processes were: `node`, `loopback` or `veth`.
    pub place: String,
    /// How often everything was measured, by new processes each time.
    pub rounds: u32,
    /// What leaves as one, at most: b.
    pub fragment_bytes: usize,
    /// How long a cache line takes from one side's core to the other's: machines that are shared
    /// move cores apart and together, and everything between them with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_line_ns: Option<Measured>,
    /// By length, up to a fragment.
    pub short: Vec<Short>,
    /// By length, longer than a fragment.
    pub long: Vec<Long>,
}

/// What a message waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Regime {
    /// It is one fragment.
    OneFragment,
    /// The gap between fragments.
    NetworkBound,
    /// The receiver's work on each fragment.
    ReceiverBound,
}

/// What a message will take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// From the call that sends to the end of the call that receives.
    pub ns: Measured,
    /// Fragments, and parts of one.
    pub fragments: f64,
    /// Which formula that is.
    pub regime: Regime,
}

impl PointToPoint {
    /// The parameters of messages of so many bytes, at most a fragment: between those that were
    /// measured along straight lines. `None` if none were measured.
    #[must_use]
    pub fn short(&self, bytes: usize) -> Option<Short> {
        let places = self.short.iter().map(|short| float(short.bytes));
        let (one, other, part) = between(places, float(bytes))?;
        let (one, other) = (self.short[one], self.short[other]);
        let of = |field: fn(&Short) -> Measured| field(&one).towards(field(&other), part);
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

    /// The parameters of longer messages: between those that were measured along straight lines
    /// over the logarithm of the length, and beyond the longest as there.
    #[must_use]
    pub fn long(&self, bytes: usize) -> Option<Long> {
        let places = self.long.iter().map(|long| float(long.bytes).ln());
        let (one, other, part) = between(places, float(bytes).ln())?;
        let (one, other) = (self.long[one], self.long[other]);
        let of = |field: fn(&Long) -> Measured| field(&one).towards(field(&other), part);
        Some(Long {
            bytes,
            trip_ns: of(|long| long.trip_ns),
            work_ns: of(|long| long.work_ns),
            g_s_ns: of(|long| long.g_s_ns),
            g_r_ns: of(|long| long.g_r_ns),
        })
    }

    /// How long one message takes from a process to the other. `None` if too little was measured.
    #[must_use]
    pub fn predict(&self, bytes: usize) -> Option<Prediction> {
        if bytes <= self.fragment_bytes {
            let short = self.short(bytes)?;
            let sum = |bound: fn(&Measured) -> f64| bound(&short.trip_ns);
            let parts = [short.o_s_ns, short.l_ns, short.o_r_ns, short.u_r_ns];
            return Some(Prediction {
                ns: Measured {
                    median: parts.iter().map(|part| part.median).sum(),
                    // The parts were taken from the single trip, whose interval is theirs together.
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
    /// The larger of both gaps: g.
    fn gap(&self) -> Measured {
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

    /// A sender, a wire and a receiver with known costs, each doing one fragment after the other.
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
        /// When the last of so many fragments has been picked up: simulated one by one. The wire
        /// takes the next fragment a gap after the last.
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

        /// What a calibration of this pipeline sees.
        fn calibrated(self) -> PointToPoint {
            let exactly = Measured::exactly;
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
        fn a_simulated_pipeline_takes_what_is_predicted_in_both_regimes(
            send_ns in 0.0..5e3_f64,
            gap_ns in 1.0..5e3_f64,
            latency_ns in 0.0..5e4_f64,
            receive_ns in 0.0..5e3_f64,
            pick_up_ns in 0.0..5e2_f64,
            fragments in 1..300_usize,
        ) {
            let pipeline = Pipeline { send_ns, gap_ns, latency_ns, receive_ns, pick_up_ns };
            let predicted = pipeline.calibrated().predict(fragments * FRAGMENT).expect("measured");
            let took = pipeline.simulate(fragments);
            prop_assert!((predicted.ns.median - took).abs() < 1e-6 * took, "{predicted:?} {took}");
            let expected = match (fragments, receive_ns + pick_up_ns >= gap_ns) {
                (1, _) => Regime::OneFragment,
                (_, true) => Regime::ReceiverBound,
                (_, false) => Regime::NetworkBound,
            };
            prop_assert_eq!(predicted.regime, expected);
        }
    }

    proptest! {
        /// Whoever writes profiles by hand gets numbers as senseless as theirs, and no panic.
        #[test]
        fn senseless_profiles_are_survived(
            fragment_bytes: usize,
            lengths in proptest::collection::vec(any::<(usize, f64)>(), 0..4),
            bytes: usize,
        ) {
            let short = |&(bytes, ns): &(usize, f64)| {
                let ns = Measured::exactly(ns);
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
                let ns = Measured::exactly(ns);
                Long { bytes, trip_ns: ns, work_ns: ns, g_s_ns: ns, g_r_ns: ns }
            };
            let model = PointToPoint {
                place: String::new(),
                rounds: 0,
                fragment_bytes,
                cache_line_ns: None,
                short: lengths.iter().map(short).collect(),
                long: lengths.iter().map(long).collect(),
            };
            prop_assert_eq!(model.predict(bytes).is_some(), !lengths.is_empty());
        }
    }

    #[test]
    fn parameters_between_measured_lengths_lie_between_those_measured() {
        let pipeline = Pipeline {
            send_ns: 1.0,
            gap_ns: 10.0,
            latency_ns: 100.0,
            receive_ns: 2.0,
            pick_up_ns: 3.0,
        };
        let mut model = pipeline.calibrated();
        model.short[1].trip_ns = Measured::exactly(206.0);
        model.short[1].l_ns = Measured::exactly(200.0);
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
        let gap = Measured {
            median: 10.0,
            low: 9.0,
            high: 12.0,
        };
        (model.long[0].g_r_ns, model.long[0].g_s_ns) = (gap, gap);
        let ns = model.predict(11 * FRAGMENT).expect("measured").ns;
        assert_eq!((ns.low, ns.median, ns.high), (196.0, 206.0, 226.0));
    }
}

//! Faults: what happens to a frame is a pure function of the seed, the network and the number of
//! the frame, so that runs can be repeated.

use std::time::Duration;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::error::TestbedError;

/// A reordered frame is overtaken by 1 to this many frames.
pub(crate) const MOST_OVERTAKERS: u32 = 8;

/// Random words per frame: one block of the generator.
const WORDS_PER_FRAME: u128 = 16;

/// Probabilities of faults.
///
/// They apply to unicast IP packets. Broadcast, multicast and ARP pass, so that the counters cover
/// only what programs have sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// The frame is lost and suffers no other fault.
    pub drop: f64,
    /// The frame arrives twice.
    pub repeat: f64,
    /// The frame is overtaken by 1 to 8 frames to the same node, or held for 10 ms without later frames.
    pub reorder: f64,
    /// The frame is held for [`delay_time`](Self::delay_time) and not reordered.
    pub delay: f64,
    /// Duration of a delay.
    pub delay_time: Duration,
    /// One bit of the payload is flipped. The checksum of UDP over IPv4 is cleared, so that the
    /// program receives the damaged packet. The receiving kernel drops other damaged packets.
    pub corrupt: f64,
    /// Two runs with the same seed treat frames of the same number in the same way.
    pub seed: u64,
}

/// Counters of the switch of one network.
///
/// All frames have arrived once `delivered + undelivered + dropped == frames + repeated`. Then
/// `held` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Unicast IP frames received, to which faults apply.
    pub frames: u64,
    /// Other frames received, which pass.
    pub spared: u64,
    /// Copies of `frames` written to an interface.
    pub delivered: u64,
    /// Copies of `frames` whose interface was down or full.
    pub undelivered: u64,
    /// Number of frames lost.
    pub dropped: u64,
    /// Number of frames sent twice.
    pub repeated: u64,
    /// Frames held until others have overtaken them.
    pub reordered: u64,
    /// Frames held for [`Faults::delay_time`].
    pub delayed: u64,
    /// Frames with a flipped bit.
    pub corrupted: u64,
    /// Frames of all kinds discarded because one of their nodes was cut off.
    pub cut: u64,
    /// Frames held at present.
    pub held: u64,
}

impl FaultCounters {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            frames: self.frames + other.frames,
            spared: self.spared + other.spared,
            delivered: self.delivered + other.delivered,
            undelivered: self.undelivered + other.undelivered,
            dropped: self.dropped + other.dropped,
            repeated: self.repeated + other.repeated,
            reordered: self.reordered + other.reordered,
            delayed: self.delayed + other.delayed,
            corrupted: self.corrupted + other.corrupted,
            cut: self.cut + other.cut,
            held: self.held + other.held,
        }
    }
}

/// The faults of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) drop: bool,
    pub(crate) repeat: bool,
    pub(crate) delay: bool,
    /// Number of frames that overtake this one.
    pub(crate) overtakers: u32,
    /// Selects the bit that is flipped, modulo their number.
    pub(crate) corrupt: Option<u32>,
}

impl Faults {
    pub(crate) fn check(&self) -> Result<(), TestbedError> {
        for (name, probability) in [
            ("drop", self.drop),
            ("repeat", self.repeat),
            ("reorder", self.reorder),
            ("delay", self.delay),
            ("corrupt", self.corrupt),
        ] {
            if !(0.0..=1.0).contains(&probability) {
                return Err(TestbedError::Refused {
                    why: format!(
                        "{probability} is not a probability for {name}; give a number from 0 to 1"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Draws the faults of a frame.
    pub(crate) fn fate(&self, network: u32, frame: u64) -> Fate {
        let mut dice = ChaCha8Rng::seed_from_u64(self.seed);
        dice.set_stream(u64::from(network));
        dice.set_word_pos(u128::from(frame) * WORDS_PER_FRAME);
        // The number of draws is constant, so that changing one probability leaves the others alone.
        let mut happens =
            |probability| f64::from(dice.next_u32()) < probability * (f64::from(u32::MAX) + 1.0);
        let drop = happens(self.drop);
        let repeat = happens(self.repeat);
        let reorder = happens(self.reorder);
        let delay = happens(self.delay);
        let corrupt = happens(self.corrupt);
        let overtakers = 1 + dice.next_u32() % MOST_OVERTAKERS;
        let bit = dice.next_u32();
        if drop {
            return Fate {
                drop,
                ..Fate::default()
            };
        }
        Fate {
            drop,
            repeat,
            delay,
            overtakers: if reorder && !delay { overtakers } else { 0 },
            corrupt: corrupt.then_some(bit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAULTS: Faults = Faults {
        drop: 0.05,
        repeat: 0.02,
        reorder: 0.03,
        delay: 0.1,
        delay_time: Duration::from_millis(1),
        corrupt: 0.01,
        seed: 7,
    };

    #[test]
    fn each_fault_occurs_with_its_probability() {
        const FRAMES: u64 = 100_000;
        let fates: Vec<Fate> = (0..FRAMES).map(|frame| FAULTS.fate(0, frame)).collect();
        let share = |strikes: fn(&Fate) -> bool| {
            let count = fates.iter().filter(|fate| strikes(fate)).count();
            f64::from(u32::try_from(count).unwrap()) / f64::from(u32::try_from(FRAMES).unwrap())
        };
        let left = 1.0 - FAULTS.drop;
        for (name, found, expected) in [
            ("drop", share(|fate| fate.drop), FAULTS.drop),
            ("repeat", share(|fate| fate.repeat), FAULTS.repeat * left),
            ("delay", share(|fate| fate.delay), FAULTS.delay * left),
            (
                "reorder",
                share(|fate| fate.overtakers > 0),
                FAULTS.reorder * left * (1.0 - FAULTS.delay),
            ),
            (
                "corrupt",
                share(|fate| fate.corrupt.is_some()),
                FAULTS.corrupt * left,
            ),
        ] {
            // Five standard deviations of the rarest fault are less than this.
            let apart = (found - expected).abs();
            assert!(apart < expected * 0.2, "{name}: {found}, not {expected}");
        }
        assert!(fates.iter().all(|fate| fate.overtakers <= MOST_OVERTAKERS));
    }

    #[test]
    fn a_fate_depends_on_seed_network_and_number_alone() {
        let fates = |faults: Faults, network| -> Vec<Fate> {
            (0..2000).map(|frame| faults.fate(network, frame)).collect()
        };
        let first = fates(FAULTS, 0);
        assert_eq!(first, fates(FAULTS, 0));
        assert_eq!(first[1234], FAULTS.fate(0, 1234));
        assert_ne!(first, fates(FAULTS, 1));
        assert_ne!(first, fates(Faults { seed: 8, ..FAULTS }, 0));
        assert!(FAULTS.fate(0, u64::MAX) == FAULTS.fate(0, u64::MAX));
    }

    #[test]
    fn probability_zero_is_never_and_one_is_always() {
        let always = Faults {
            drop: 1.0,
            ..Faults::default()
        };
        for frame in 0..1000 {
            assert_eq!(Faults::default().fate(0, frame), Fate::default());
            assert!(always.fate(0, frame).drop);
        }
    }

    #[test]
    fn values_outside_zero_to_one_are_rejected() {
        for drop in [-0.1, 1.1, f64::NAN] {
            let faults = Faults {
                drop,
                ..Faults::default()
            };
            assert!(faults.check().is_err(), "{drop}");
        }
        assert!(FAULTS.check().is_ok());
    }
}

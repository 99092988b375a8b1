//! Resources that seem exhausted, so that every caller that has to try again does so.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::chance::happens;

/// The probability, per attempt to use a resource, that it seems exhausted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shortages {
    /// Credit for another message, from the receiver.
    pub credit: f64,
    /// Frames for outgoing packets: all free ones are in use until the next step of the engine.
    pub frames: f64,
    /// Room in the rings of shared memory.
    pub rings: f64,
    /// Room for another posted operation.
    pub posts: f64,
    /// Room in the link's own queue.
    pub link: f64,
}

impl Shortages {
    /// The probability with this name.
    pub(super) fn named(&mut self, name: &str) -> Option<&mut f64> {
        match name {
            "credit" => Some(&mut self.credit),
            "frames" => Some(&mut self.frames),
            "rings" => Some(&mut self.rings),
            "posts" => Some(&mut self.posts),
            "link" => Some(&mut self.link),
            _ => None,
        }
    }
}

/// Decides by a seed when one resource is short.
#[derive(Debug)]
pub struct Shortage {
    rng: ChaCha8Rng,
    probability: f64,
    count: u64,
}

impl Shortage {
    /// `None` if the resource is never short.
    #[must_use]
    pub fn new(probability: f64, seed: u64) -> Option<Shortage> {
        (probability > 0.0).then(|| Shortage {
            rng: ChaCha8Rng::seed_from_u64(seed),
            probability,
            count: 0,
        })
    }

    /// True if the resource is short this time.
    pub fn strikes(&mut self) -> bool {
        let is_short = happens(&mut self.rng, self.probability);
        self.count += u64::from(is_short);
        is_short
    }

    /// The number of times it was short.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_when_a_resource_is_short() {
        let draws = |seed| {
            let mut shortage = Shortage::new(0.5, seed).unwrap();
            let draws: Vec<bool> = (0..1000).map(|_| shortage.strikes()).collect();
            let count = draws.iter().filter(|is_short| **is_short).count();
            assert_eq!(shortage.count(), count as u64);
            assert!((400..600).contains(&count), "{count}");
            draws
        };
        assert_eq!(draws(1), draws(1));
        assert_ne!(draws(1), draws(2));
        assert!(Shortage::new(0.0, 1).is_none());
    }
}

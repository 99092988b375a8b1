//! Dice for the faults that `sim` and `fault` inject.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// True with this probability; draws nothing when it cannot happen.
pub(crate) fn happens(dice: &mut ChaCha8Rng, probability: f64) -> bool {
    probability > 0.0 && dice.random::<f64>() < probability
}

/// Damages a frame: flips 1 to `most_bits` bits or, once in four, cuts the end
/// off. The result is never empty and never what it was.
pub(crate) fn corrupt(dice: &mut ChaCha8Rng, bytes: &mut Vec<u8>, most_bits: u32) {
    if bytes.is_empty() {
        return;
    }
    if bytes.len() > 1 && dice.random_range(0..4) == 0 {
        let len = dice.random_range(1..bytes.len());
        bytes.truncate(len);
        return;
    }
    let bits = bytes.len() * 8;
    let first = dice.random_range(0..bits);
    bytes[first / 8] ^= 1 << (first % 8);
    for _ in 1..dice.random_range(1..=most_bits.max(1)) {
        let bit = dice.random_range(0..bits);
        // Never the first again, or the damage could undo itself.
        if bit / 8 != first / 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn corruption_always_changes_a_frame_and_never_empties_it() {
        let mut dice = ChaCha8Rng::seed_from_u64(1);
        for len in 1..200 {
            let whole = vec![0x5a; len];
            let mut bytes = whole.clone();
            corrupt(&mut dice, &mut bytes, 8);
            assert!(!bytes.is_empty());
            assert_ne!(bytes, whole);
        }
    }

    #[test]
    fn probabilities_that_make_no_sense_never_or_always_happen() {
        let mut dice = ChaCha8Rng::seed_from_u64(1);
        assert!(!happens(&mut dice, f64::NAN));
        assert!(!happens(&mut dice, -1.0));
        assert!(happens(&mut dice, 2.0));
    }
}

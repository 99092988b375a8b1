//! Random faults for `sim` and `fault`.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// True with this probability; draws no random number if it is 0.
pub(crate) fn happens(rng: &mut ChaCha8Rng, probability: f64) -> bool {
    probability > 0.0 && rng.random::<f64>() < probability
}

/// Damages a frame: flips 1 to `most_bits` bits or, once in four times, cuts off the end. The
/// result is never empty and always differs from the original.
pub(crate) fn corrupt(rng: &mut ChaCha8Rng, bytes: &mut Vec<u8>, most_bits: u32) {
    if bytes.is_empty() {
        return;
    }
    if bytes.len() > 1 && rng.random_range(0..4) == 0 {
        let len = rng.random_range(1..bytes.len());
        bytes.truncate(len);
        return;
    }
    let bits = bytes.len() * 8;
    let first = rng.random_range(0..bits);
    bytes[first / 8] ^= 1 << (first % 8);
    for _ in 1..rng.random_range(1..=most_bits.max(1)) {
        let bit = rng.random_range(0..bits);
        // Avoid the byte of the first bit, or the damage could undo itself.
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
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for len in 1..200 {
            let whole = vec![0x5a; len];
            let mut bytes = whole.clone();
            corrupt(&mut rng, &mut bytes, 8);
            assert!(!bytes.is_empty());
            assert_ne!(bytes, whole);
        }
    }

    #[test]
    fn invalid_probabilities_mean_never_or_always() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        assert!(!happens(&mut rng, f64::NAN));
        assert!(!happens(&mut rng, -1.0));
        assert!(happens(&mut rng, 2.0));
    }
}

//! Random numbers, and messages made of them.

/// A small deterministic generator (SplitMix64), which is good enough for tests.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    pub fn chance(&mut self, share: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= share && share > 0.0
    }
}

/// The bytes of a message, by its number.
pub fn payload(index: u64, length: usize) -> Vec<u8> {
    let mut random = Random(index);
    (0..length).map(|_| random.next() as u8).collect()
}

//! CRC32C of a packet, fast for packet-sized input.
//!
//! The processor's instruction takes eight bytes per cycle but has a latency of three cycles, so
//! a packet is split into three lanes, whose sums are combined by one carry-less product each.
//! The factors come from a table: computing them, as `crc-fast` does, takes as long as half a
//! packet's sum. On processors with 512-bit products `crc-fast` needs no lanes and is used.

use crc_fast::{CrcAlgorithm, checksum};

/// The CRC32C of these bytes.
#[inline]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if lanes::are_best() {
        // SAFETY: `are_best` has checked that the processor has the instructions.
        return unsafe { lanes::crc32c(bytes) };
    }
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(sum).expect("a 32-bit checksum")
}

#[cfg(target_arch = "x86_64")]
mod lanes {
    use core::arch::x86_64::{
        _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi64_si128, _mm_cvtsi128_si64,
    };

    const WORD: usize = size_of::<u64>();
    /// Maximum words per lane: three lanes hold a packet of MTU 1500, and the table stays short.
    const MOST: usize = 64;
    /// Shorter input is summed in one lane.
    const MIN_BYTES: usize = 12 * WORD;
    /// The polynomial, bit-reversed as everywhere here.
    const POLYNOMIAL: u32 = 0x82F6_3B78;

    /// Entry n is the factor that turns a sum into the sum of the same data followed by n zero
    /// words: x^(64 n - 33); the rest is part of product and reduction.
    static SHIFTS: [u32; 2 * MOST + 1] = shifts();

    const fn shifts() -> [u32; 2 * MOST + 1] {
        let mut shifts = [0; 2 * MOST + 1];
        let mut power = times_x(1 << 31, 31);
        let mut words = 1;
        while words < shifts.len() {
            shifts[words] = power;
            power = times_x(power, 64);
            words += 1;
        }
        shifts
    }

    const fn times_x(mut value: u32, times: u32) -> u32 {
        let mut done = 0;
        while done < times {
            value = (value >> 1) ^ ((value & 1) * POLYNOMIAL);
            done += 1;
        }
        value
    }

    /// True if the processor has the instructions that [`crc32c`] uses.
    #[inline]
    pub(super) fn are_possible() -> bool {
        is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")
    }

    #[inline]
    pub(super) fn are_best() -> bool {
        let wide = is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("vpclmulqdq");
        !wide && are_possible()
    }

    #[target_feature(enable = "sse4.2,pclmulqdq")]
    pub(super) fn crc32c(mut bytes: &[u8]) -> u32 {
        let mut sum = u64::from(u32::MAX);
        while bytes.len() >= MIN_BYTES {
            let words = (bytes.len() / (3 * WORD)).min(MOST);
            let (lanes, rest) = bytes.split_at(3 * words * WORD);
            let (lanes, _) = lanes.as_chunks::<WORD>();
            let (one, lanes) = lanes.split_at(words);
            let (two, three) = lanes.split_at(words);
            let (mut second, mut third) = (0, 0);
            for ((one, two), three) in one.iter().zip(two).zip(three) {
                sum = _mm_crc32_u64(sum, u64::from_le_bytes(*one));
                second = _mm_crc32_u64(second, u64::from_le_bytes(*two));
                third = _mm_crc32_u64(third, u64::from_le_bytes(*three));
            }
            let before = product(sum, 2 * words) ^ product(second, words);
            sum = third ^ _mm_crc32_u64(0, before);
            bytes = rest;
        }
        let (words, rest) = bytes.as_chunks::<WORD>();
        for word in words {
            sum = _mm_crc32_u64(sum, u64::from_le_bytes(*word));
        }
        #[allow(clippy::cast_possible_truncation, reason = "sums have 32 bits")]
        let mut sum = sum as u32;
        for byte in rest {
            sum = _mm_crc32_u8(sum, *byte);
        }
        !sum
    }

    /// The sum times the factor for `words` words, before reduction.
    #[inline]
    #[target_feature(enable = "pclmulqdq")]
    fn product(sum: u64, words: usize) -> u64 {
        let sum = _mm_cvtsi64_si128(sum.cast_signed());
        let shift = _mm_cvtsi64_si128(SHIFTS[words].into());
        _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(sum, shift)).cast_unsigned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_vectors_of_the_standard_match() {
        // Test vectors of RFC 3720, appendix B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8A91_36AA);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn lanes_give_the_same_sums_as_crc_fast() {
        let bytes = (0..10_000_u32).map(|at| (at * 7 + at / 251).to_le_bytes()[0]);
        let bytes: Vec<u8> = bytes.collect();
        for length in (0..4000).chain([8999, 9216, 9999]) {
            for from in [0, 1] {
                let bytes = &bytes[from..from + length];
                let right = checksum(CrcAlgorithm::Crc32Iscsi, bytes);
                assert_eq!(u64::from(crc32c(bytes)), right, "{length} from {from}");
                #[cfg(target_arch = "x86_64")]
                if lanes::are_possible() {
                    // SAFETY: the processor has the instructions.
                    let sum = unsafe { lanes::crc32c(bytes) };
                    assert_eq!(u64::from(sum), right, "{length} from {from}");
                }
            }
        }
    }
}

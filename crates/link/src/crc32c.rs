//! CRC32C of a packet, fast for packet-sized input.
//!
//! A packet is a few hundred to a few thousand bytes, of any length. `crc-fast` sums blocks of 384
//! bytes quickly and the rest, of which a packet of MTU 1500 has 316, word by word: two thirds of
//! its time. The ways here sum every length fast: `wide` on processors with 512-bit carry-less
//! products, `lanes` on other x86-64 processors.

use crc_fast::{CrcAlgorithm, checksum};

/// The CRC32C of these bytes.
#[inline]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    {
        if bytes.len() >= wide::MIN_BYTES && wide::is_possible() {
            // SAFETY: `is_possible` has checked that the processor has the instructions.
            return unsafe { wide::crc32c(bytes) };
        }
        if lanes::are_possible() {
            // SAFETY: `are_possible` has checked that the processor has the instructions.
            return unsafe { lanes::crc32c(bytes) };
        }
    }
    let sum = checksum(CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(sum).expect("a 32-bit checksum")
}

/// The polynomial, bit-reversed as everywhere here.
#[cfg(target_arch = "x86_64")]
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// `value` times x^`times`, reduced.
#[cfg(target_arch = "x86_64")]
const fn times_x(mut value: u32, times: u32) -> u32 {
    let mut done = 0;
    while done < times {
        value = (value >> 1) ^ ((value & 1) * POLYNOMIAL);
        done += 1;
    }
    value
}

/// Folds 256 bytes at a time. Zeros in front extend the input to a multiple of that, which does not
/// change its sum.
///
/// Folding replaces 128 bits that are followed by others by 128 bits with the same sum that are added
/// to those at a distance (V. Gopal et al., Fast CRC computation for generic polynomials using
/// PCLMULQDQ, Intel 2009).
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::times_x;
    use core::arch::x86_64::{
        __m512i, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_xor_si128,
        _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_loadu_si512,
        _mm512_maskz_loadu_epi8, _mm512_maskz_mov_epi8, _mm512_set_epi64, _mm512_set1_epi8,
        _mm512_setzero_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
    };

    const BLOCK: usize = size_of::<__m512i>();
    /// Blocks that are folded independently of each other.
    const CHAINS: usize = 4;
    /// Shorter input is summed faster in lanes.
    pub(super) const MIN_BYTES: usize = 256;
    /// The truth table of an exclusive or of three bits.
    const XOR3: i32 = 0x96;

    /// The factors that fold both halves of 128 bits by a distance in bits.
    const fn factors(bits: u32) -> [i64; 2] {
        [
            (times_x(1 << 31, bits + 32) as i64) << 1,
            (times_x(1 << 31, bits - 32) as i64) << 1,
        ]
    }

    const BY_1: [i64; 2] = factors(512);
    const BY_2: [i64; 2] = factors(1024);
    const BY_3: [i64; 2] = factors(1536);
    const BY_CHAINS: [i64; 2] = factors(2048);
    /// Within a block: the first three parts onto the last.
    const ONTO_LAST: [[i64; 2]; 3] = [factors(384), factors(256), factors(128)];

    #[inline]
    pub(super) fn is_possible() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("sse4.2")
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn everywhere([low, high]: [i64; 2]) -> __m512i {
        _mm512_set_epi64(high, low, high, low, high, low, high, low)
    }

    /// `block` folded by the distance of `factors`, plus `onto`.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn fold(block: __m512i, factors: __m512i, onto: __m512i) -> __m512i {
        let low = _mm512_clmulepi64_epi128::<0x00>(block, factors);
        let high = _mm512_clmulepi64_epi128::<0x11>(block, factors);
        _mm512_ternarylogic_epi64::<XOR3>(low, high, onto)
    }

    /// # Panics
    /// If `bytes` has less than [`MIN_BYTES`].
    #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq,sse4.2")]
    pub(super) fn crc32c(bytes: &[u8]) -> u32 {
        assert!(bytes.len() >= MIN_BYTES, "short input is for the lanes");
        let blocks = bytes.len().div_ceil(BLOCK);
        // The first block is filled up with zeros in front.
        let missing = blocks * BLOCK - bytes.len();
        // The initial value of the sum, all ones, is added to the first four bytes, which may reach
        // into the second block.
        let ones = _mm512_set1_epi8(-1);
        let initial = 0xF_u128 << missing;
        #[allow(clippy::cast_possible_truncation, reason = "a mask for each block")]
        let (first_four, rest_of_four) = (initial as u64, (initial >> BLOCK) as u64);
        let start = bytes.as_ptr().wrapping_sub(missing);
        // SAFETY: the mask leaves out the `missing` bytes before the slice, which are not read; the
        // others are its first ones.
        let head = unsafe { _mm512_maskz_loadu_epi8(u64::MAX << missing, start.cast()) };
        let head = _mm512_xor_si512(head, _mm512_maskz_mov_epi8(first_four, ones));
        let load = |block: usize| {
            debug_assert!(0 < block && block < blocks);
            // SAFETY: `start` is `missing` bytes before the slice, and `blocks` blocks after it the
            // slice ends; the first block, which begins outside, is not loaded here. There are at
            // least four blocks, as asserted, so the first chains and the second block exist. The
            // number of blocks after the first chains is a multiple of `CHAINS`.
            unsafe { _mm512_loadu_si512(start.wrapping_add(block * BLOCK).cast()) }
        };
        let second = _mm512_xor_si512(load(1), _mm512_maskz_mov_epi8(rest_of_four, ones));
        // Zero blocks in front make the number of blocks a multiple of the chains.
        let zeros = blocks.next_multiple_of(CHAINS) - blocks;
        let mut chains = [_mm512_setzero_si512(); CHAINS];
        for (chain, block) in chains[zeros..].iter_mut().zip(0..) {
            *chain = match block {
                0 => head,
                1 => second,
                block => load(block),
            };
        }
        let mut next = CHAINS - zeros;
        let by_chains = everywhere(BY_CHAINS);
        if next == 1 {
            // The second block is not among the first ones.
            for (chain, block) in chains.iter_mut().zip(next..) {
                let more = if block == 1 { second } else { load(block) };
                *chain = fold(*chain, by_chains, more);
            }
            next += CHAINS;
        }
        while next < blocks {
            for (chain, block) in chains.iter_mut().zip(next..) {
                *chain = fold(*chain, by_chains, load(block));
            }
            next += CHAINS;
        }
        let [first, second, third, last] = chains;
        let first = fold(first, everywhere(BY_3), last);
        let second = fold(second, everywhere(BY_2), first);
        let sum = fold(third, everywhere(BY_1), second);
        reduce(sum)
    }

    /// The final sum of a block.
    #[inline]
    #[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
    fn reduce(block: __m512i) -> u32 {
        let [[a, b], [c, d], [e, f]] = ONTO_LAST;
        let folded = fold(
            block,
            _mm512_set_epi64(0, 0, f, e, d, c, b, a),
            _mm512_setzero_si512(),
        );
        let first = _mm_xor_si128(
            _mm512_extracti32x4_epi32::<0>(folded),
            _mm512_extracti32x4_epi32::<1>(folded),
        );
        let last = _mm_xor_si128(
            _mm512_extracti32x4_epi32::<2>(folded),
            _mm512_extracti32x4_epi32::<3>(block),
        );
        let part = _mm_xor_si128(first, last);
        let low = _mm_cvtsi128_si64(part).cast_unsigned();
        let high = _mm_extract_epi64::<1>(part).cast_unsigned();
        #[allow(clippy::cast_possible_truncation, reason = "sums have 32 bits")]
        let sum = _mm_crc32_u64(_mm_crc32_u64(0, low), high) as u32;
        !sum
    }
}

/// Three lanes, whose sums are combined by one carry-less product each: the processor's instruction
/// takes eight bytes per cycle but has a latency of three cycles. The factors come from a table, since
/// computing them takes as long as half a packet's sum.
#[cfg(target_arch = "x86_64")]
mod lanes {
    use super::times_x;
    use core::arch::x86_64::{
        _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi64_si128, _mm_cvtsi128_si64,
    };

    const WORD: usize = size_of::<u64>();
    /// Maximum words per lane: three lanes hold a packet of MTU 1500, and the table stays short.
    const MOST: usize = 64;
    /// Shorter input is summed in one lane.
    const MIN_BYTES: usize = 12 * WORD;
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

    /// True if the processor has the instructions that [`crc32c`] uses.
    #[inline]
    pub(super) fn are_possible() -> bool {
        is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")
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
    fn all_ways_give_the_same_sums_as_crc_fast() {
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
                #[cfg(target_arch = "x86_64")]
                if length >= wide::MIN_BYTES && wide::is_possible() {
                    // SAFETY: the processor has the instructions.
                    let sum = unsafe { wide::crc32c(bytes) };
                    assert_eq!(u64::from(sum), right, "{length} from {from}");
                }
            }
        }
    }
}

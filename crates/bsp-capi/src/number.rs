//! Converts arguments of both dialects, which use different types for ranks, sizes and offsets.

use std::ffi::{c_int, c_uint};

use dipole_bsp::misuse::Misuse;

/// A size or an offset: `int` in the classic dialect, `size_t` in MulticoreBSP's.
pub(crate) trait Size: Copy {
    /// Stands for the absence of a message.
    const NONE: Self;

    /// The value of the argument named `what`.
    fn number(self, what: &'static str) -> Result<u64, Misuse>;

    /// The value as this type, or the nearest that it can hold.
    fn nearest(number: u64) -> Self;
}

impl Size for c_int {
    const NONE: c_int = -1;

    #[inline]
    fn number(self, what: &'static str) -> Result<u64, Misuse> {
        u64::try_from(self).map_err(|_| Misuse::Negative {
            what,
            value: self.into(),
        })
    }

    #[inline]
    fn nearest(number: u64) -> c_int {
        c_int::try_from(number).unwrap_or(c_int::MAX)
    }
}

impl Size for usize {
    const NONE: usize = usize::MAX;

    #[inline]
    fn number(self, _what: &'static str) -> Result<u64, Misuse> {
        Ok(self as u64)
    }

    #[inline]
    fn nearest(number: u64) -> usize {
        usize::try_from(number).unwrap_or(usize::MAX)
    }
}

/// A rank, or a number of processes: `int`, or `unsigned int`.
pub(crate) trait Rank: Copy {
    /// The rank, if it is below `size`.
    fn rank(self, size: u32) -> Result<u32, Misuse>;

    /// The value as this type, or the nearest that it can hold.
    fn nearest(number: u64) -> Self;
}

/// A rank below `size`, from a number of any sign.
#[inline]
fn within(number: i64, size: u32) -> Result<u32, Misuse> {
    let rank = u32::try_from(number).ok().filter(|rank| *rank < size);
    rank.ok_or(Misuse::NoSuchRank { rank: number, size })
}

impl Rank for c_int {
    #[inline]
    fn rank(self, size: u32) -> Result<u32, Misuse> {
        within(self.into(), size)
    }

    #[inline]
    fn nearest(number: u64) -> c_int {
        Size::nearest(number)
    }
}

impl Rank for c_uint {
    #[inline]
    fn rank(self, size: u32) -> Result<u32, Misuse> {
        within(self.into(), size)
    }

    #[inline]
    fn nearest(number: u64) -> c_uint {
        c_uint::try_from(number).unwrap_or(c_uint::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_numbers_are_refused_and_large_ones_become_the_nearest() {
        assert_eq!(Size::number(7, "size"), Ok(7));
        let negative = Size::number(-3, "offset").unwrap_err();
        assert_eq!(negative.to_string(), "offset must not be negative: -3");
        assert_eq!(Size::number(usize::MAX, "size"), Ok(u64::MAX));
        assert_eq!(<c_int as Size>::nearest(1 << 40), c_int::MAX);
        assert_eq!(<usize as Size>::nearest(1 << 40), 1 << 40);
    }

    #[test]
    fn a_rank_is_at_least_0_and_below_the_number_of_processes() {
        assert_eq!(Rank::rank(3, 4), Ok(3));
        for wrong in [-1, 4] {
            let misuse = Rank::rank(wrong, 4).unwrap_err();
            let rank = wrong.into();
            assert_eq!(misuse, Misuse::NoSuchRank { rank, size: 4 });
        }
        assert_eq!(
            Rank::rank(c_uint::MAX, 4).unwrap_err(),
            Misuse::NoSuchRank {
                rank: 4_294_967_295,
                size: 4
            }
        );
    }
}

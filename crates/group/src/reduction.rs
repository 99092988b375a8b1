//! Predefined reductions of numbers.

use std::cmp::Ordering;

/// How numbers are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// The sum; integers wrap around.
    Sum,
    /// Keeps the minimum.
    Min,
    /// Keeps the maximum.
    Max,
}

/// The order in which a reduction combines the data of its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// By rank, in a tree that depends on the number of members only.
    Ranks,
    /// Any, because each order gives the same bytes. The members of a node combine their data first,
    /// and one message leaves the node.
    Any,
}

/// A number that a group can reduce: `u64`, `i64` or `f64`. It is sent in little-endian order.
///
/// Minimum and maximum of `f64` follow [`f64::total_cmp`], so that the result does not depend on
/// the order of combining: NaN is greater than all other values, and -0.0 is less than 0.0.
pub trait Number: Copy + sealed::Sealed {
    /// Encodes the number as little-endian bytes.
    #[must_use]
    fn to_bytes(self) -> [u8; 8];
    /// Decodes a number from little-endian bytes.
    #[must_use]
    fn from_bytes(bytes: [u8; 8]) -> Self;
    /// Adds two numbers.
    #[must_use]
    fn sum(self, other: Self) -> Self;
    /// Compares two numbers; `f64` by [`f64::total_cmp`].
    #[must_use]
    fn order(self, other: Self) -> Ordering;
}

mod sealed {
    pub trait Sealed {
        /// Sums do not depend on the order of the numbers.
        const SUMS_EXACTLY: bool;
    }
}

macro_rules! number {
    ($type:ty, $sum:expr, $order:expr, $sums_exactly:expr) => {
        impl sealed::Sealed for $type {
            const SUMS_EXACTLY: bool = $sums_exactly;
        }

        impl Number for $type {
            fn to_bytes(self) -> [u8; 8] {
                self.to_le_bytes()
            }

            fn from_bytes(bytes: [u8; 8]) -> $type {
                <$type>::from_le_bytes(bytes)
            }

            fn sum(self, other: $type) -> $type {
                $sum(self, other)
            }

            fn order(self, other: $type) -> Ordering {
                $order(&self, &other)
            }
        }
    };
}

number!(u64, u64::wrapping_add, u64::cmp, true);
number!(i64, i64::wrapping_add, i64::cmp, true);
number!(f64, |a, b| a + b, f64::total_cmp, false);

impl Combine {
    /// The order in which numbers must be combined: any, except for sums of `f64`, whose last bits
    /// depend on it.
    #[must_use]
    pub fn order<T: Number>(self) -> Order {
        match self == Combine::Sum && !T::SUMS_EXACTLY {
            true => Order::Ranks,
            false => Order::Any,
        }
    }

    fn of<T: Number>(self, left: T, right: T) -> T {
        match self {
            Combine::Sum => left.sum(right),
            Combine::Min if right.order(left).is_lt() => right,
            Combine::Max if right.order(left).is_gt() => right,
            Combine::Min | Combine::Max => left,
        }
    }

    /// Combines encoded numbers, for [`Group::reduce`](super::Group::reduce).
    pub fn bytes<T: Number>(self) -> impl Fn(&mut [u8], &[u8]) {
        move |left, right| {
            let (left, right) = (left.as_chunks_mut::<8>().0, right.as_chunks::<8>().0);
            for (left, right) in left.iter_mut().zip(right) {
                *left = self
                    .of(T::from_bytes(*left), T::from_bytes(*right))
                    .to_bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn combined<T: Number + PartialEq>(how: Combine, left: T, right: T) -> T {
        let mut bytes = left.to_bytes();
        how.bytes::<T>()(&mut bytes, &right.to_bytes());
        T::from_bytes(bytes)
    }

    #[test]
    fn numbers_of_each_type_are_combined() {
        assert_eq!(combined(Combine::Sum, u64::MAX, 2), 1);
        assert_eq!(combined(Combine::Sum, -5_i64, 2), -3);
        assert_eq!(
            combined(Combine::Sum, 0.5_f64, 0.25).to_bits(),
            0.75_f64.to_bits()
        );
        assert_eq!(combined(Combine::Min, -5_i64, 2), -5);
        assert_eq!(combined(Combine::Max, -5_i64, 2), 2);
        assert_eq!(combined(Combine::Min, u64::MAX, 2), 2);
        let zero = combined(Combine::Min, 0.0_f64, -0.0);
        assert!(zero.is_sign_negative());
        assert!(combined(Combine::Max, f64::NAN, 1.0).is_nan());
    }
}

//! Chooses the fastest algorithm of a collective.
//!
//! Costs are in units of g, the time of a byte: an empty superstep costs l / g bytes, or
//! [`Collectives::USUAL_SUPERSTEP_BYTES`] without a profile. All ranks must make the same choice, so
//! all must use the same parameters.
//!
//! # Source
//! `bsp-protocols-thesis` ch. 2: a superstep of an h-relation takes h g + l.

use crate::interval::float;
use crate::superstep::Parameters;

/// Chooses algorithms for one number of ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Collectives {
    size: u32,
    superstep_bytes: f64,
    short_bytes: u64,
}

impl Collectives {
    /// Default of l / g where nothing was measured.
    pub const USUAL_SUPERSTEP_BYTES: u32 = 8 << 10;
    /// Limit for the values of all ranks that one rank gathers in order to combine them.
    const MOST_BYTES: u64 = 16 << 20;

    /// Creates the chooser for `size` ranks. Data of at most `short_bytes` per rank fits memory that
    /// is already registered; longer data costs another superstep for registration.
    #[must_use]
    pub fn new(size: u32, parameters: Option<Parameters>, short_bytes: u64) -> Collectives {
        let measured = parameters.map(|of| of.l_ns / of.g_ns_per_byte);
        let usual = f64::from(Collectives::USUAL_SUPERSTEP_BYTES);
        Collectives {
            size,
            superstep_bytes: measured.filter(|bytes| bytes.is_finite()).unwrap_or(usual),
            short_bytes,
        }
    }

    /// True if the root should send everything to all ranks, instead of a piece to each rank, which
    /// the ranks then exchange.
    #[must_use]
    pub fn broadcast_directly(&self, bytes: u64) -> bool {
        self.direct_broadcast(bytes) <= self.broadcast_in_pieces(bytes)
    }

    /// True if all ranks should send their values to all others, instead of along a tree and back.
    #[must_use]
    pub fn fold_directly(&self, bytes: u64) -> bool {
        let back = self
            .direct_broadcast(bytes)
            .min(self.broadcast_in_pieces(bytes));
        self.has_room(bytes) && self.all_to_one(bytes) <= self.in_rounds(bytes) + back
    }

    /// True if all ranks should send their values to the root, instead of along a tree. With a root
    /// other than rank 0 the tree takes one more superstep.
    #[must_use]
    pub fn reduce_directly(&self, root: u32, bytes: u64) -> bool {
        let further = if root == 0 {
            0.0
        } else {
            self.transfer(bytes, bytes)
        };
        self.has_room(bytes) && self.all_to_one(bytes) <= self.in_rounds(bytes) + further
    }

    /// True if all ranks should send their values to all others, instead of in rounds of doubling
    /// distance.
    #[must_use]
    pub fn scan_directly(&self, bytes: u64) -> bool {
        self.has_room(bytes) && self.all_to_one(bytes) <= self.in_rounds(bytes)
    }

    /// Cost of a superstep that exchanges `h_bytes`, plus one for registration if a rank receives
    /// more than `short_bytes`.
    fn transfer(&self, h_bytes: u64, received_bytes: u64) -> f64 {
        let supersteps = if received_bytes <= self.short_bytes {
            1.0
        } else {
            2.0
        };
        bytes_of(h_bytes) + supersteps * self.superstep_bytes
    }

    fn direct_broadcast(&self, bytes: u64) -> f64 {
        self.transfer(bytes.saturating_mul(self.others()), bytes)
    }

    /// Three supersteps: registration, scatter, exchange.
    fn broadcast_in_pieces(&self, bytes: u64) -> f64 {
        let piece = bytes.div_ceil(u64::from(self.size.max(1)));
        let h_bytes = piece.saturating_mul(self.others());
        2.0 * bytes_of(h_bytes) + 3.0 * self.superstep_bytes
    }

    fn all_to_one(&self, bytes: u64) -> f64 {
        let all = bytes.saturating_mul(u64::from(self.size));
        self.transfer(bytes.saturating_mul(self.others()), all)
    }

    fn in_rounds(&self, bytes: u64) -> f64 {
        let rounds = self.size.next_power_of_two().trailing_zeros();
        // A single rank has no rounds, but still ends a superstep.
        f64::from(rounds.max(1)) * self.transfer(bytes, bytes)
    }

    fn has_room(&self, bytes: u64) -> bool {
        bytes.saturating_mul(u64::from(self.size)) <= Collectives::MOST_BYTES || self.size <= 2
    }

    fn others(&self) -> u64 {
        u64::from(self.size.saturating_sub(1))
    }
}

fn bytes_of(bytes: u64) -> f64 {
    usize::try_from(bytes).map_or(f64::MAX, float)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superstep::Basis;
    use proptest::prelude::*;

    /// A machine on which an empty superstep costs as much as this many bytes.
    fn with_superstep_cost(size: u32, bytes: f64) -> Collectives {
        let parameters = Parameters {
            p: size,
            l_ns: bytes * 0.25,
            g_ns_per_byte: 0.25,
            l_ci_ns: 0.0,
            g_sd: 0.0,
            contention: None,
            s_mflops: 1000.0,
            basis: Basis::Measured,
        };
        Collectives::new(size, Some(parameters), 64 << 10)
    }

    #[test]
    fn expensive_supersteps_are_avoided() {
        for choice in [
            |of: Collectives| of.broadcast_directly(32 << 10),
            |of: Collectives| of.fold_directly(4 << 10),
            |of: Collectives| of.reduce_directly(0, 4 << 10),
            |of: Collectives| of.scan_directly(4 << 10),
        ] {
            assert!(choice(with_superstep_cost(8, 1e6)));
            assert!(!choice(with_superstep_cost(8, 100.0)));
        }
    }

    #[test]
    fn without_usable_parameters_the_default_applies() {
        let usual = Collectives::new(8, None, 64 << 10);
        assert_eq!(usual, with_superstep_cost(8, 8192.0));
        // g was 0, or both g and l were.
        assert_eq!(with_superstep_cost(8, f64::NAN), usual);
        assert_eq!(with_superstep_cost(8, f64::INFINITY), usual);
    }

    #[test]
    fn one_or_two_ranks_always_send_directly() {
        for size in [1, 2] {
            for bytes in [1, 4 << 10, 60 << 10, 1 << 30] {
                assert!(
                    with_superstep_cost(size, 1.0).broadcast_directly(bytes),
                    "{size} {bytes}"
                );
            }
        }
        assert!(with_superstep_cost(1, 1.0).fold_directly(1 << 30));
    }

    proptest! {
        /// A choice with fewer supersteps stays the best one if supersteps cost more.
        #[test]
        fn a_higher_superstep_cost_never_adds_supersteps(
            size in 1..200_u32,
            bytes in 0..1_u64 << 34,
            superstep in 0.0..1e7_f64,
            more in 1.0..100.0_f64,
        ) {
            let (one, other) = (with_superstep_cost(size, superstep), with_superstep_cost(size, superstep * more));
            // Compare lengths that need no registration, which also costs supersteps.
            let bytes = bytes % ((64 << 10) / u64::from(size)).max(1);
            prop_assert!(!one.broadcast_directly(bytes) || other.broadcast_directly(bytes));
            prop_assert!(!one.fold_directly(bytes) || other.fold_directly(bytes));
            prop_assert!(!one.reduce_directly(1, bytes) || other.reduce_directly(1, bytes));
            prop_assert!(!one.scan_directly(bytes) || other.scan_directly(bytes));
        }
    }
}

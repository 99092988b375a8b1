//! Which algorithm of a collective takes the least time.
//!
//! Costs are counted in the time of a byte, g: an empty superstep is worth l / g bytes. Where nothing
//! was measured it is worth [`Collectives::USUAL_SUPERSTEP_BYTES`]. All ranks must choose alike, so
//! all must know the same parameters.
//!
//! # Source
//! `bsp-protocols-thesis` ch. 2: a superstep of an h-relation takes h g + l.

use super::{Parameters, float};

/// The choices of so many ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Collectives {
    size: u32,
    superstep_bytes: f64,
    short_bytes: u64,
}

impl Collectives {
    /// l / g, in round numbers, of machines that nobody has measured.
    pub const USUAL_SUPERSTEP_BYTES: u32 = 8 << 10;
    /// Values of all ranks that one of them holds at most, to combine them.
    const MOST_BYTES: u64 = 16 << 20;

    /// For so many ranks with these parameters. What comes to a rank has memory already if it is
    /// at most `short_bytes`; longer needs a superstep more, for its registration.
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

    /// The root sends all to everybody, rather than a piece to each, which all then send on.
    #[must_use]
    pub fn broadcast_directly(&self, bytes: u64) -> bool {
        self.direct_broadcast(bytes) <= self.broadcast_in_pieces(bytes)
    }

    /// Everybody sends its value to everybody, rather than along a tree and back.
    #[must_use]
    pub fn fold_directly(&self, bytes: u64) -> bool {
        let back = self
            .direct_broadcast(bytes)
            .min(self.broadcast_in_pieces(bytes));
        self.has_room(bytes) && self.all_to_one(bytes) <= self.in_rounds(bytes) + back
    }

    /// Everybody sends its value to the root, rather than along a tree; to a root other than rank 0
    /// the tree takes a superstep more.
    #[must_use]
    pub fn reduce_directly(&self, root: u32, bytes: u64) -> bool {
        let further = if root == 0 {
            0.0
        } else {
            self.transfer(bytes, bytes)
        };
        self.has_room(bytes) && self.all_to_one(bytes) <= self.in_rounds(bytes) + further
    }

    /// Everybody sends its value to everybody, rather than in rounds of doubled distance.
    #[must_use]
    pub fn scan_directly(&self, bytes: u64) -> bool {
        self.has_room(bytes) && self.all_to_one(bytes) <= self.in_rounds(bytes)
    }

    /// A superstep in which h bytes are exchanged, and at most so many come to a rank, whose memory
    /// may have to be registered before.
    fn transfer(&self, h_bytes: u64, most: u64) -> f64 {
        let supersteps = if most <= self.short_bytes { 1.0 } else { 2.0 };
        bytes_of(h_bytes) + supersteps * self.superstep_bytes
    }

    fn direct_broadcast(&self, bytes: u64) -> f64 {
        self.transfer(bytes.saturating_mul(self.others()), bytes)
    }

    /// Registration, pieces, and the exchange of pieces.
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
        // Alone there are no rounds, but a superstep ends in any case.
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
    use super::super::Basis;
    use super::*;
    use proptest::prelude::*;

    /// A machine on which an empty superstep is worth so many bytes.
    fn worth(size: u32, bytes: f64) -> Collectives {
        let parameters = Parameters {
            p: size,
            l_ns: bytes * 0.25,
            g_ns_per_byte: 0.25,
            s_mflops: 1000.0,
            basis: Basis::Measured,
        };
        Collectives::new(size, Some(parameters), 64 << 10)
    }

    #[test]
    fn costly_supersteps_are_avoided_and_cheap_ones_save_bytes() {
        for choice in [
            |of: Collectives| of.broadcast_directly(32 << 10),
            |of: Collectives| of.fold_directly(4 << 10),
            |of: Collectives| of.reduce_directly(0, 4 << 10),
            |of: Collectives| of.scan_directly(4 << 10),
        ] {
            assert!(choice(worth(8, 1e6)));
            assert!(!choice(worth(8, 100.0)));
        }
    }

    #[test]
    fn what_was_not_measured_is_as_usual() {
        let usual = Collectives::new(8, None, 64 << 10);
        assert_eq!(usual, worth(8, 8192.0));
        // No bytes were too slow to be measured, or nothing took time: no number to choose by.
        assert_eq!(worth(8, f64::NAN), usual);
        assert_eq!(worth(8, f64::INFINITY), usual);
    }

    #[test]
    fn two_ranks_or_one_have_nothing_to_gain_by_more_supersteps() {
        for size in [1, 2] {
            for bytes in [1, 4 << 10, 60 << 10, 1 << 30] {
                assert!(worth(size, 1.0).broadcast_directly(bytes), "{size} {bytes}");
            }
        }
        assert!(worth(1, 1.0).fold_directly(1 << 30));
    }

    proptest! {
        /// Who avoids supersteps on one machine avoids them where they cost more.
        #[test]
        fn dearer_supersteps_never_lead_to_more_of_them(
            size in 1..200_u32,
            bytes in 0..1_u64 << 34,
            superstep in 0.0..1e7_f64,
            more in 1.0..100.0_f64,
        ) {
            let (one, other) = (worth(size, superstep), worth(size, superstep * more));
            // Registration costs supersteps as well: compare where none is needed.
            let bytes = bytes % ((64 << 10) / u64::from(size)).max(1);
            prop_assert!(!one.broadcast_directly(bytes) || other.broadcast_directly(bytes));
            prop_assert!(!one.fold_directly(bytes) || other.fold_directly(bytes));
            prop_assert!(!one.reduce_directly(1, bytes) || other.reduce_directly(1, bytes));
            prop_assert!(!one.scan_directly(bytes) || other.scan_directly(bytes));
        }
    }
}

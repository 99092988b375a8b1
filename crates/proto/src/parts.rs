//! Reassembly of units that arrive in parts. Spec §5.8.
//!
//! A unit that is too long for its path is cut, and the bytes of its records are joined here. It is
//! used only when it is complete. Its first complete arrival counts, in parts or as a whole.

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::send::MAX_CUT;
use crate::wire::{HEADER_BYTES, Part};

/// A unit of which some parts have arrived.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Assembly {
    unit: u64,
    /// Content of each part by index; missing ones are empty.
    parts: Vec<Vec<u8>>,
}

impl Assembly {
    fn bytes(&self) -> usize {
        self.parts.iter().map(Vec::len).sum()
    }
}

/// How an arriving part relates to those that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartArrival {
    /// It is new, and others are still missing.
    New,
    /// It is the last missing part.
    Last,
    /// It has arrived before.
    Duplicate,
    /// It does not match the other parts, or makes the unit too long.
    Contradiction,
}

/// The incomplete units of one session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Assemblies(Vec<Assembly>);

impl Assemblies {
    /// Number of incomplete units.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// True if the session may begin another unit.
    pub(crate) fn has_room(&self) -> bool {
        self.0.len() < MAX_CUT
    }

    /// True if parts of this unit have arrived.
    pub(crate) fn has(&self, unit: u64) -> bool {
        self.find(unit).is_some()
    }

    /// Classifies a part of a unit of at most `most` bytes.
    pub(crate) fn classify(&self, unit: u64, part: Part, body: &[u8], most: usize) -> PartArrival {
        let Some(assembly) = self.find(unit) else {
            return match body.is_empty() || body.len() > most {
                true => PartArrival::Contradiction,
                false => PartArrival::New,
            };
        };
        if assembly.parts.len() != usize::from(part.last) + 1 {
            return PartArrival::Contradiction;
        }
        if !assembly.parts[usize::from(part.index)].is_empty() {
            return PartArrival::Duplicate;
        }
        if body.is_empty() || assembly.bytes() + body.len() > most {
            return PartArrival::Contradiction;
        }
        let missing = assembly.parts.iter().filter(|part| part.is_empty());
        match missing.count() {
            1 => PartArrival::Last,
            _ => PartArrival::New,
        }
    }

    /// Stores a part that is [`New`](PartArrival::New).
    pub(crate) fn keep(&mut self, unit: u64, part: Part, body: &[u8]) {
        let at = match self.0.iter().position(|known| known.unit == unit) {
            Some(at) => at,
            None => {
                let parts = alloc::vec![Vec::new(); usize::from(part.last) + 1];
                self.0.push(Assembly { unit, parts });
                self.0.len() - 1
            }
        };
        self.0[at].parts[usize::from(part.index)] = body.to_vec();
    }

    /// The unit that is complete with the [`Last`](PartArrival::Last) part `body`, after room for a
    /// header. The stored parts stay until [`forget`](Self::forget).
    pub(crate) fn join(&self, unit: u64, part: Part, body: &[u8]) -> Vec<u8> {
        let mut whole = alloc::vec![0; HEADER_BYTES];
        if let Some(assembly) = self.find(unit) {
            for (index, known) in assembly.parts.iter().enumerate() {
                let own = index == usize::from(part.index);
                whole.extend_from_slice(if own { body } else { known });
            }
        }
        whole
    }

    /// Removes a unit that has arrived.
    pub(crate) fn forget(&mut self, unit: u64) {
        self.0.retain(|assembly| assembly.unit != unit);
    }

    fn find(&self, unit: u64) -> Option<&Assembly> {
        self.0.iter().find(|assembly| assembly.unit == unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 100;

    fn part(index: u8) -> Part {
        Part { index, last: 2 }
    }

    #[test]
    fn parts_in_any_order_make_the_unit() {
        let mut open = Assemblies::default();
        for (index, body) in [(2, b"gh"), (0, b"ab")] {
            assert_eq!(open.classify(5, part(index), body, MOST), PartArrival::New);
            open.keep(5, part(index), body);
            let again = open.classify(5, part(index), body, MOST);
            assert_eq!(again, PartArrival::Duplicate);
        }
        assert_eq!(open.classify(5, part(1), b"cdef", MOST), PartArrival::Last);
        let whole = open.join(5, part(1), b"cdef");
        assert_eq!(&whole[HEADER_BYTES..], b"abcdefgh");
        assert!(open.has(5));
        open.forget(5);
        assert_eq!(open.len(), 0);
    }

    #[test]
    fn contradicting_parts_are_detected() {
        let mut open = Assemblies::default();
        let long = [7; 60];
        open.keep(5, part(0), &long);
        let other_cut = Part { index: 1, last: 3 };
        for (part, body) in [(other_cut, &b"x"[..]), (part(1), &long), (part(1), b"")] {
            let arrival = open.classify(5, part, body, MOST);
            assert_eq!(arrival, PartArrival::Contradiction);
        }
        let too_long = open.classify(6, part(0), &[0; 101], MOST);
        assert_eq!(too_long, PartArrival::Contradiction);
    }
}

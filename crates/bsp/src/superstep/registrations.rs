//! Areas of memory that all ranks have registered together.
//!
//! The n-th push of all ranks makes one area, with a part on each rank. Pushes and pops take effect
//! in the next superstep.

use std::collections::VecDeque;

use rustc_hash::{FxHashMap, FxHashSet};

use super::collective::Part;
use super::summary::Summary;
use crate::misuse::Misuse;

/// Registered areas of all ranks, and those that wait for the end of the superstep.
#[derive(Debug)]
pub struct Registrations {
    own: u32,
    size: u32,
    /// Areas in use, by number: the part of each rank.
    areas: FxHashMap<u32, Box<[Part]>>,
    /// Areas in use, by the start of this rank's part, the newest last.
    by_address: FxHashMap<u64, Vec<u32>>,
    /// Areas that have not been popped, those of this superstep included, in the same way.
    poppable: FxHashMap<u64, VecDeque<u32>>,
    /// Number of the next area.
    next: u32,
    pushed: Vec<Part>,
    popped: Vec<u32>,
}

impl Registrations {
    /// Creates an empty table for rank `own` of `size` ranks.
    #[must_use]
    pub fn new(own: u32, size: u32) -> Registrations {
        Registrations {
            own,
            size,
            areas: FxHashMap::default(),
            by_address: FxHashMap::default(),
            poppable: FxHashMap::default(),
            next: 0,
            pushed: Vec::new(),
            popped: Vec::new(),
        }
    }

    /// Adds this rank's part of a new area.
    ///
    /// # Errors
    /// The address is NULL and the size is not 0.
    pub fn push(&mut self, part: Part) -> Result<(), Misuse> {
        if part.is_null() && part.bytes > 0 {
            return Err(Misuse::NullWithSize { bytes: part.bytes });
        }
        let number = self.next + u32::try_from(self.pushed.len()).unwrap_or(u32::MAX);
        self.poppable
            .entry(part.address)
            .or_default()
            .push_back(number);
        self.pushed.push(part);
        Ok(())
    }

    /// Removes the newest area whose part on this rank begins at `address`. For NULL it is the oldest
    /// area without a part on this rank, so that ranks with and without parts agree on the area.
    ///
    /// # Errors
    /// The area is not registered.
    pub fn pop(&mut self, address: u64) -> Result<(), Misuse> {
        let known = self.poppable.get_mut(&address);
        let number = known.and_then(|known| match address {
            0 => known.pop_front(),
            _ => known.pop_back(),
        });
        self.popped
            .push(number.ok_or(Misuse::NeverPushed { address })?);
        Ok(())
    }

    /// This rank's parts of the areas in use, by number.
    #[must_use]
    pub fn own_parts(&self) -> Vec<Part> {
        let parts = self.in_order().into_iter();
        parts
            .map(|number| self.areas[&number][self.own as usize])
            .collect()
    }

    /// Replaces the keys of a rank's parts of the areas in use; they are in the order of
    /// [`own_parts`](Self::own_parts). Missing keys become 0.
    pub fn set_keys(&mut self, rank: u32, keys: &[u64]) {
        let mut keys = keys.iter().copied();
        for number in self.in_order() {
            let key = keys.next().unwrap_or(0);
            if let Some(area) = self.areas.get_mut(&number) {
                area[rank as usize].key = key;
            }
        }
    }

    fn in_order(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.areas.keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    /// The pushes of this superstep.
    pub fn pushes(&self) -> impl Iterator<Item = Part> {
        self.pushed.iter().copied()
    }

    /// The areas popped in this superstep.
    #[must_use]
    pub fn pops(&self) -> &[u32] {
        &self.popped
    }

    /// The area with this rank's part at `address`, and the address of byte `offset` of another rank's
    /// part of it.
    ///
    /// # Errors
    /// The area is not registered, or `bytes` bytes from `offset` on exceed that part.
    #[inline]
    pub fn find(
        &self,
        address: u64,
        rank: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<(u32, u64), Misuse> {
        let newest = match address {
            0 => return Err(Misuse::Null("the registered address")),
            _ => self.by_address.get(&address).and_then(|all| all.last()),
        };
        let Some(&number) = newest else {
            let is_fresh = |part: &Part| part.address == address;
            return Err(match self.pushed.iter().any(is_fresh) {
                true => Misuse::NotYetRegistered { address },
                false => Misuse::NotRegistered { address },
            });
        };
        let part = self.areas[&number][rank as usize];
        if part.is_null() {
            return Err(Misuse::NoPart { rank });
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= part.bytes => Ok((number, part.address.wrapping_add(offset))),
            _ => Err(Misuse::OutOfBounds {
                rank,
                offset,
                bytes,
                registered: part.bytes,
            }),
        }
    }

    /// The key for direct writes into another rank's part of an area.
    #[must_use]
    pub fn key(&self, area: u32, rank: u32) -> Option<u64> {
        let key = self.areas.get(&area)?[rank as usize].key;
        (key != 0).then_some(key)
    }

    /// The address of byte `offset` of this rank's part of an area, if `bytes` bytes from there are
    /// inside.
    #[must_use]
    #[inline]
    pub fn own(&self, area: u32, offset: u64, bytes: u64) -> Option<u64> {
        let part = self.areas.get(&area)?[self.own as usize];
        let end = offset.checked_add(bytes)?;
        (!part.is_null() && end <= part.bytes).then(|| part.address.wrapping_add(offset))
    }

    /// Makes the pushes and pops of all ranks take effect. Returns the keys of this rank's parts of
    /// areas that no longer exist.
    pub fn commit(&mut self, known: &Summary) -> Vec<u64> {
        for (number, index) in (self.next..).zip(0..self.pushed.len()) {
            let parts = (0..self.size).map(|rank| known.collectives(rank).pushes[index]);
            self.areas.insert(number, parts.collect());
            let address = self.pushed[index].address;
            self.by_address.entry(address).or_default().push(number);
        }
        self.next += u32::try_from(self.pushed.len()).unwrap_or(u32::MAX);
        self.pushed.clear();
        let (mut keys, mut changed) = (Vec::new(), FxHashSet::default());
        for number in self.popped.drain(..) {
            let Some(parts) = self.areas.remove(&number) else {
                continue;
            };
            let Part { address, key, .. } = parts[self.own as usize];
            keys.extend((key != 0).then_some(key));
            changed.insert(address);
        }
        for address in changed {
            if let Some(known) = self.by_address.get_mut(&address) {
                known.retain(|number| self.areas.contains_key(number));
                if known.is_empty() {
                    self.by_address.remove(&address);
                    self.poppable.remove(&address);
                }
            }
        }
        keys
    }
}

#[cfg(test)]
mod tests {
    use super::super::collective::CollectiveCalls;
    use super::*;

    const X: u64 = 0x1000;

    fn part(address: u64, bytes: u64) -> Part {
        // A key that differs between parts.
        let key = address + bytes;
        Part {
            address,
            bytes,
            key,
        }
    }

    /// Ends a superstep in which the other of two ranks pushed `others`.
    fn sync(own: &mut Registrations, others: &[Part]) -> Vec<u64> {
        let mut known = Summary::new(2);
        for (rank, pushes) in [(0, own.pushes().collect()), (1, others.to_vec())] {
            let collectives = CollectiveCalls {
                pushes,
                ..CollectiveCalls::default()
            };
            known.add_collectives(rank, collectives);
        }
        own.commit(&known)
    }

    #[test]
    fn an_area_takes_effect_in_the_next_superstep_and_its_newest_registration_wins() {
        let mut own = Registrations::new(0, 2);
        own.push(part(X, 16)).expect("an area");
        assert_eq!(
            own.find(X, 1, 0, 8),
            Err(Misuse::NotYetRegistered { address: X })
        );
        sync(&mut own, &[part(X + 64, 8)]);
        assert_eq!(own.find(X, 1, 0, 8), Ok((0, X + 64)));
        assert_eq!(own.key(0, 1), Some(X + 72));
        assert_eq!(own.find(X, 0, 8, 8), Ok((0, X + 8)));
        assert!(matches!(
            own.find(X, 1, 1, 8),
            Err(Misuse::OutOfBounds { registered: 8, .. })
        ));
        assert!(own.find(X, 1, u64::MAX, 8).is_err());
        own.push(part(X, 4)).expect("again");
        sync(&mut own, &[part(0, 0)]);
        assert_eq!(own.find(X, 1, 0, 4), Err(Misuse::NoPart { rank: 1 }));
        own.pop(X).expect("the second");
        assert_eq!(own.find(X, 0, 0, 4), Ok((1, X)), "until the superstep ends");
        assert_eq!(own.key(1, 1), None, "NULL was registered");
        assert_eq!(sync(&mut own, &[]), [X + 4], "its key is closed");
        assert_eq!(own.key(1, 0), None);
        assert_eq!(own.find(X, 1, 0, 4), Ok((0, X + 64)));
    }

    #[test]
    fn a_pop_removes_the_newest_area_in_any_order() {
        let mut own = Registrations::new(0, 2);
        let y = X + 8;
        own.push(part(X, 4)).expect("an area");
        own.push(part(y, 4)).expect("an area");
        own.push(part(X, 2)).expect("an area");
        own.pop(X).expect("the third");
        own.pop(X).expect("the first");
        assert_eq!(own.pops(), [2, 0]);
        assert_eq!(own.pop(X), Err(Misuse::NeverPushed { address: X }));
        let gone = sync(&mut own, &[part(X, 4), part(y, 4), part(X, 2)]);
        assert_eq!(gone, [X + 2, X + 4]);
        assert_eq!(
            own.find(X, 1, 0, 1),
            Err(Misuse::NotRegistered { address: X })
        );
        assert_eq!(own.find(y, 1, 0, 4), Ok((1, y)));
        assert!(own.push(part(0, 1)).is_err());
        own.push(part(0, 0)).expect("no part");
        own.push(part(0, 0)).expect("no part");
        own.pop(0).expect("the older");
        assert_eq!(own.pops(), [3]);
        assert_eq!(own.own(1, 0, 4), Some(y));
        assert_eq!(own.own(1, 1, 4), None);
        assert_eq!(own.own(0, 0, 1), None);
    }
}

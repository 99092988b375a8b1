//! Edges of one direction, found by their two endpoints or by their position.
//!
//! Positions are reused under another generation, so the [`EdgeId`](crate::EdgeId) of a forgotten
//! edge finds nothing.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Slot<E> {
    generation: u32,
    edge: Option<E>,
}

/// Edges of one direction.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EdgeTable<E> {
    slots: Vec<Slot<E>>,
    free: Vec<u32>,
    by_ends: BTreeMap<(u32, u32), u32>,
    /// Generation of new positions.
    first_generation: u32,
}

impl<E> Default for EdgeTable<E> {
    fn default() -> EdgeTable<E> {
        EdgeTable {
            slots: Vec::new(),
            free: Vec::new(),
            by_ends: BTreeMap::new(),
            first_generation: 0,
        }
    }
}

impl<E> EdgeTable<E> {
    /// Edges in the table.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The position of the edge between two endpoints.
    pub(crate) fn find(&self, ends: (u32, u32)) -> Option<u32> {
        self.by_ends.get(&ends).copied()
    }

    /// Positions of the edges whose first end is `first`.
    pub(crate) fn range(&self, first: u32) -> impl Iterator<Item = u32> + '_ {
        let ends = (first, 0)..=(first, u32::MAX);
        self.by_ends.range(ends).map(|(_, index)| *index)
    }

    /// Adds an edge and returns its position. An older edge with the same ends can no longer be found
    /// by them.
    pub(crate) fn insert(&mut self, ends: (u32, u32), edge: E) -> u32 {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                if self.slots.is_empty() {
                    // Most peers have one edge.
                    self.slots.reserve_exact(1);
                }
                self.slots.push(Slot {
                    generation: self.first_generation,
                    edge: None,
                });
                u32::try_from(self.slots.len() - 1).expect("edges are few")
            }
        };
        self.slots[index as usize].edge = Some(edge);
        self.by_ends.insert(ends, index);
        index
    }

    /// Removes an edge from the look-up by ends, but not from the table.
    pub(crate) fn hide(&mut self, ends: (u32, u32), index: u32) {
        if self.by_ends.get(&ends) == Some(&index) {
            self.by_ends.remove(&ends);
        }
    }

    /// Removes an edge. Its position may be reused.
    pub(crate) fn remove(&mut self, ends: (u32, u32), index: u32) -> Option<E> {
        let slot = self.slots.get_mut(index as usize)?;
        let edge = slot.edge.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.hide(ends, index);
        self.free.push(index);
        if self.free.len() == self.slots.len() {
            // Most tables become empty again after a peak: free its memory.
            let newest = self.slots.iter().map(|slot| slot.generation).max();
            *self = EdgeTable {
                first_generation: newest.unwrap_or(0),
                ..EdgeTable::default()
            };
        }
        Some(edge)
    }

    /// The generation of the edge at a position.
    #[inline]
    pub(crate) fn generation(&self, index: u32) -> u32 {
        let slot = self.slots.get(index as usize);
        slot.map_or(self.first_generation, |slot| slot.generation)
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&E> {
        self.slots.get(index as usize)?.edge.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: u32) -> Option<&mut E> {
        self.slots.get_mut(index as usize)?.edge.as_mut()
    }

    /// The edge at a position, if its generation matches.
    #[inline]
    pub(crate) fn get_exact(&mut self, index: u32, generation: u32) -> Option<&mut E> {
        let slot = self.slots.get_mut(index as usize)?;
        match slot.generation == generation {
            true => slot.edge.as_mut(),
            false => None,
        }
    }

    /// All edges with their positions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &E)> {
        let numbered = (0_u32..).zip(&self.slots);
        numbered.filter_map(|(index, slot)| Some((index, slot.edge.as_ref()?)))
    }

    /// All edges with their positions, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut E)> {
        let numbered = (0_u32..).zip(&mut self.slots);
        numbered.filter_map(|(index, slot)| Some((index, slot.edge.as_mut()?)))
    }
}

/// Generations only grow. Tables that differ only in them behave alike.
impl<E: core::hash::Hash> core::hash::Hash for EdgeTable<E> {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        for slot in &self.slots {
            slot.edge.hash(state);
        }
        (&self.free, &self.by_ends).hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_position_does_not_find_its_earlier_edge() {
        let mut table = EdgeTable::default();
        let first = table.insert((1, 2), 'a');
        let other = table.insert((1, 3), 'b');
        let generation = table.generation(first);
        assert_eq!(table.remove((1, 2), first), Some('a'));
        assert_eq!(table.remove((1, 2), first), None);
        let second = table.insert((5, 6), 'c');
        assert_eq!(first, second);
        assert_eq!(table.get_exact(first, generation), None);
        assert_eq!(table.find((1, 2)), None);
        assert_eq!(table.find((5, 6)), Some(second));
        assert_eq!(table.get(other), Some(&'b'));
    }

    #[test]
    fn an_empty_table_frees_its_memory_and_reuses_no_generation() {
        let mut table = EdgeTable::default();
        let index = table.insert((1, 2), ());
        let generation = table.generation(index);
        table.remove((1, 2), index);
        assert_eq!((table.len(), table.slots.capacity()), (0, 0));
        let again = table.insert((1, 2), ());
        assert_ne!(table.generation(again), generation);
    }

    #[test]
    fn a_hidden_edge_is_found_by_its_position_only() {
        let mut table = EdgeTable::default();
        let old = table.insert((1, 2), 'a');
        table.hide((1, 2), old);
        assert_eq!(table.find((1, 2)), None);
        let new = table.insert((1, 2), 'b');
        table.remove((1, 2), old);
        assert_eq!(table.find((1, 2)), Some(new));
    }
}

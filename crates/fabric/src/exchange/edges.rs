//! The ways to other endpoints.

use dipole_node::Edge;
use rustc_hash::FxHashMap;

/// Messages to one endpoint that leave at once, each in a packet of its own, before the program
/// looks at what has come: further ones share packets.
const ALONE: u32 = 2;

/// A way to an endpoint.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) edge: Edge,
    /// Through memory, where nothing is gained by gathering.
    pub(super) shares_memory: bool,
    /// The turn of the last message, and how many there were in it.
    turn: u64,
    count: u32,
}

impl Way {
    /// Notes a message, and says whether it is one of many.
    #[inline]
    pub(super) fn is_burst(&mut self, turn: u64) -> bool {
        if self.turn != turn {
            (self.turn, self.count) = (turn, 0);
        }
        self.count = self.count.saturating_add(1);
        self.count > ALONE
    }
}

/// By the numbers of those to whom they lead.
#[derive(Debug, Default)]
pub(super) struct Edges {
    list: Vec<Way>,
    by_number: FxHashMap<u64, usize>,
    /// The one used last, by number and place.
    last: (u64, usize),
}

impl Edges {
    #[inline]
    pub(super) fn find(&mut self, number: u64) -> Option<usize> {
        if self.last.0 != number || self.list.is_empty() {
            self.last = (number, *self.by_number.get(&number)?);
        }
        Some(self.last.1)
    }

    /// A way that was found.
    #[inline]
    pub(super) fn at(&mut self, at: usize) -> &mut Way {
        &mut self.list[at]
    }

    pub(super) fn insert(&mut self, number: u64, edge: Edge, shares_memory: bool) -> &mut Way {
        let at = self.list.len();
        self.by_number.insert(number, at);
        self.list.push(Way {
            edge,
            shares_memory,
            turn: 0,
            count: 0,
        });
        self.at(at)
    }
}

//! What the engine keeps of each endpoint of this process, found by its number.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::way::Target;
use crate::inbox::Inbox;

/// An open endpoint.
#[derive(Debug)]
pub(super) struct Room {
    endpoint: u32,
    pub(super) inbox: Inbox,
    /// Where it points.
    pub(super) targets: Option<Arc<[Target]>>,
    /// It has a descriptor to be made ready.
    pub(super) exported: bool,
    /// In the list of those that got a message since the last turn.
    pub(super) fresh: bool,
}

impl Room {
    /// Where it points.
    #[inline]
    pub(super) fn targets(&self) -> Option<&[Target]> {
        self.targets.as_deref()
    }
}

/// All of them. The one used last is found without a search, since most programs use one
/// many times before they use another.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    rooms: Vec<Room>,
    by_endpoint: FxHashMap<u32, u32>,
    last: usize,
}

impl Rooms {
    pub(super) fn open(&mut self, endpoint: u32) {
        self.close(endpoint);
        let index = u32::try_from(self.rooms.len()).expect("endpoints have 32-bit numbers");
        self.by_endpoint.insert(endpoint, index);
        self.rooms.push(Room {
            endpoint,
            inbox: Inbox::default(),
            targets: None,
            exported: false,
            fresh: false,
        });
    }

    pub(super) fn close(&mut self, endpoint: u32) -> Option<Room> {
        let index = self.by_endpoint.remove(&endpoint)? as usize;
        let room = self.rooms.swap_remove(index);
        if let Some(moved) = self.rooms.get(index) {
            let place = self.by_endpoint.get_mut(&moved.endpoint);
            *place.expect("every room is in the table") =
                u32::try_from(index).expect("as many as numbers");
        }
        Some(room)
    }

    /// Endpoints that point somewhere, and where.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &[Target])> {
        self.rooms
            .iter()
            .filter_map(|room| Some((room.endpoint, room.targets.as_deref()?)))
    }

    #[inline]
    pub(super) fn get(&self, endpoint: u32) -> Option<&Room> {
        match self.rooms.get(self.last) {
            Some(room) if room.endpoint == endpoint => Some(room),
            _ => self.rooms.get(*self.by_endpoint.get(&endpoint)? as usize),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, endpoint: u32) -> Option<&mut Room> {
        let is_last = self
            .rooms
            .get(self.last)
            .is_some_and(|room| room.endpoint == endpoint);
        if !is_last {
            self.last = *self.by_endpoint.get(&endpoint)? as usize;
        }
        self.rooms.get_mut(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_found_until_it_is_closed_whatever_others_do() {
        let mut rooms = Rooms::default();
        for endpoint in 0..100 {
            rooms.open(endpoint * 7);
        }
        for endpoint in (0..100).step_by(3) {
            assert!(rooms.close(endpoint * 7).is_some());
        }
        for endpoint in 0..100 {
            let open = endpoint % 3 != 0;
            assert_eq!(rooms.get(endpoint * 7).is_some(), open);
            let found = rooms.get_mut(endpoint * 7).map(|room| room.endpoint);
            assert_eq!(found, open.then_some(endpoint * 7));
        }
        assert!(rooms.close(0).is_none());
    }
}

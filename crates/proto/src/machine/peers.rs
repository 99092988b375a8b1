//! The table of peers.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::channel::Channel;
use crate::event::{INDEX_BITS, PeerId};
use crate::pipe::Pipe;
use crate::session::{Remote, Session};
use crate::wire::Address;

/// A remote process: a session or a pipe.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Peer {
    /// A process on another node.
    Session(Box<Session>),
    /// It is on the same node.
    Pipe(Box<Pipe>),
}

impl Peer {
    fn id(&self) -> PeerId {
        match self {
            Peer::Session(session) => session.id,
            Peer::Pipe(pipe) => pipe.id,
        }
    }

    pub(super) fn channel(&self) -> &Channel {
        match self {
            Peer::Session(session) => &session.channel,
            Peer::Pipe(pipe) => &pipe.channel,
        }
    }

    pub(super) fn channel_mut(&mut self) -> &mut Channel {
        match self {
            Peer::Session(session) => &mut session.channel,
            Peer::Pipe(pipe) => &mut pipe.channel,
        }
    }
}

/// Peers by position. Positions are reused, ids are not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerTable {
    slots: Vec<Option<Peer>>,
    /// Free positions, each with the last peer that used it.
    free: Vec<PeerId>,
}

impl PeerTable {
    /// Adds a peer whose id contains `random`. Returns `None` if there are `limit` peers.
    pub(super) fn add(
        &mut self,
        limit: u32,
        random: u32,
        make: impl FnOnce(PeerId) -> Peer,
    ) -> Option<PeerId> {
        let limit = limit.min((1 << INDEX_BITS) - 1) as usize;
        let former = self.free.pop();
        let index = match former {
            Some(former) => former.index(),
            None if self.slots.len() < limit => {
                self.slots.push(None);
                self.slots.len() - 1
            }
            None => return None,
        };
        let low = u32::try_from(index).ok()?;
        let id_of = |random: u32| PeerId((random << INDEX_BITS | low).max(1 << INDEX_BITS | low));
        let mut id = id_of(random);
        if former == Some(id) {
            // The random bits are the same as for the former peer.
            id = id_of(!random);
        }
        self.slots[index] = Some(make(id));
        Some(id)
    }

    pub(super) fn remove(&mut self, peer: PeerId) -> Option<Peer> {
        let slot = self.slots.get_mut(peer.index())?;
        let found = slot.take_if(|found| found.id() == peer)?;
        self.free.push(peer);
        Some(found)
    }

    /// Returns the number of peers.
    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Number of positions, in use or free.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    pub(super) fn get(&self, peer: PeerId) -> Option<&Peer> {
        let found = self.slots.get(peer.index())?.as_ref()?;
        (found.id() == peer).then_some(found)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, peer: PeerId) -> Option<&mut Peer> {
        let found = self.slots.get_mut(peer.index())?.as_mut()?;
        (found.id() == peer).then_some(found)
    }

    #[inline]
    pub(super) fn session(&self, peer: PeerId) -> Option<&Session> {
        match self.get(peer)? {
            Peer::Session(session) => Some(session),
            Peer::Pipe(_) => None,
        }
    }

    #[inline]
    pub(super) fn session_mut(&mut self, peer: PeerId) -> Option<&mut Session> {
        match self.get_mut(peer)? {
            Peer::Session(session) => Some(session),
            Peer::Pipe(_) => None,
        }
    }

    #[inline]
    pub(super) fn pipe_mut(&mut self, peer: PeerId) -> Option<&mut Pipe> {
        match self.get_mut(peer)? {
            Peer::Pipe(pipe) => Some(pipe),
            Peer::Session(_) => None,
        }
    }

    /// The session at a position, if there is one.
    #[inline]
    pub(super) fn session_at(&self, index: u32) -> Option<&Session> {
        match self.slots.get(index as usize)? {
            Some(Peer::Session(session)) => Some(session),
            _ => None,
        }
    }

    /// The session at a position, if there is one.
    #[inline]
    pub(super) fn session_at_mut(&mut self, index: u32) -> Option<&mut Session> {
        match self.slots.get_mut(index as usize)? {
            Some(Peer::Session(session)) => Some(session),
            _ => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.slots.iter().flatten()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.iter().map(Peer::id)
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.iter().filter_map(|peer| match peer {
            Peer::Session(session) => Some(&**session),
            Peer::Pipe(_) => None,
        })
    }

    pub(super) fn sessions_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        let peers = self.slots.iter_mut().flatten();
        peers.filter_map(|peer| match peer {
            Peer::Session(session) => Some(&mut **session),
            Peer::Pipe(_) => None,
        })
    }
}

/// Finds sessions by what their peers report; values are positions in the [`PeerTable`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PeerIndex {
    by_home: BTreeMap<Address, u32>,
    /// Open sessions by the peer's incarnation; the newest if there are several.
    by_incarnation: BTreeMap<u64, u32>,
    /// Open sessions by the peer's connection id, which several may share.
    by_connection: BTreeSet<(u32, u32)>,
}

impl PeerIndex {
    /// Adds a session, open or opening.
    pub(super) fn insert_home(&mut self, home: Address, index: u32) {
        self.by_home.insert(home, index);
    }

    /// Adds a session that has opened.
    pub(super) fn insert_open(&mut self, remote: &Remote, index: u32) {
        self.by_incarnation.insert(remote.incarnation, index);
        self.by_connection.insert((remote.connection, index));
    }

    pub(super) fn remove(&mut self, remote: &Remote, index: u32) {
        if self.by_incarnation.get(&remote.incarnation) == Some(&index) {
            self.by_incarnation.remove(&remote.incarnation);
        }
        self.by_connection.remove(&(remote.connection, index));
        self.leave_home(remote.home, index);
    }

    /// A session has another home than before. One that is known there already keeps it.
    pub(super) fn move_home(&mut self, from: Address, to: Address, index: u32) {
        self.leave_home(from, index);
        self.by_home.entry(to).or_insert(index);
    }

    fn leave_home(&mut self, home: Address, index: u32) {
        if self.by_home.get(&home) == Some(&index) {
            self.by_home.remove(&home);
        }
    }

    /// The session with the process at this address.
    pub(super) fn at_home(&self, home: Address) -> Option<u32> {
        self.by_home.get(&home).copied()
    }

    /// The open session with the process of this incarnation; zero stands for none.
    pub(super) fn of_process(&self, incarnation: u64) -> Option<u32> {
        let index = self.by_incarnation.get(&incarnation);
        index.filter(|_| incarnation != 0).copied()
    }

    /// The open sessions whose peers have this connection id.
    pub(super) fn of_connection(&self, connection: u32) -> impl Iterator<Item = u32> + '_ {
        let range = (connection, 0)..=(connection, u32::MAX);
        self.by_connection.range(range).map(|(_, index)| *index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_session_leaves_a_newer_one_of_the_same_process() {
        let mut index = PeerIndex::default();
        let remote = |port, connection| Remote {
            home: Address { ip: [1; 16], port },
            connection,
            incarnation: 9,
            ..Remote::default()
        };
        let (old, new) = (remote(1, 7), remote(2, 7));
        for (position, remote) in [(3, &old), (4, &new)] {
            index.insert_home(remote.home, position);
            index.insert_open(remote, position);
        }
        assert!(index.of_connection(7).eq([3, 4]));
        index.remove(&old, 3);
        assert_eq!(index.at_home(old.home), None);
        assert_eq!(index.at_home(new.home), Some(4));
        assert_eq!(index.of_process(9), Some(4));
        assert!(index.of_connection(7).eq([4]));
        assert_eq!(index.of_process(0), None);
    }

    #[test]
    fn a_session_that_moves_is_found_at_its_new_home_unless_another_one_is_there() {
        let mut index = PeerIndex::default();
        let home = |port| Address { ip: [1; 16], port };
        index.insert_home(home(1), 3);
        index.insert_home(home(2), 4);
        index.move_home(home(1), home(5), 3);
        assert_eq!(
            (index.at_home(home(1)), index.at_home(home(5))),
            (None, Some(3))
        );
        index.move_home(home(5), home(2), 3);
        let moved = Remote {
            home: home(2),
            ..Remote::default()
        };
        index.remove(&moved, 3);
        assert_eq!(index.at_home(home(2)), Some(4));
    }
}

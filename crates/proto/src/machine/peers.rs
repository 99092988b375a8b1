//! The peers of one process, by the ids that they are told.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::channel::Channel;
use crate::event::{INDEX_BITS, PeerId};
use crate::pipe::Pipe;
use crate::session::Session;

/// A remote process, by what carries its records.
#[derive(Clone, Debug)]
pub(super) enum Peer {
    /// Packets.
    Session(Box<Session>),
    /// Records in order.
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

/// See the module. Positions are used again, ids are not.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerTable {
    slots: Vec<Option<Peer>>,
    /// Positions that are free, by the peer that was there last.
    free: Vec<PeerId>,
}

impl PeerTable {
    /// Adds what `make` makes of its id, with `random` in it; `None` beyond `limit`.
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
            // Chance has drawn the same once more.
            id = id_of(!random);
        }
        self.slots[index] = Some(make(id));
        Some(id)
    }

    /// Takes a peer out.
    pub(super) fn remove(&mut self, peer: PeerId) -> Option<Peer> {
        let slot = self.slots.get_mut(peer.index())?;
        let found = slot.take_if(|found| found.id() == peer)?;
        self.free.push(peer);
        Some(found)
    }

    /// Peers in the table.
    pub(super) fn in_use(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Positions in use or used before.
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

    /// The session at a position.
    #[inline]
    pub(super) fn session_at(&self, index: u32) -> Option<&Session> {
        match self.slots.get(index as usize)? {
            Some(Peer::Session(session)) => Some(session),
            _ => None,
        }
    }

    /// The session at a position.
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

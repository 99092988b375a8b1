//! A hub's connections: their state, and the table of slots that holds them.

use std::os::fd::OwnedFd;

use super::bell::{Bell, Waking};
use super::pull::Probe;
use super::ring::{Consumer, Producer};
use super::{CloseReason, ConnId};
use crate::segment::Segment;

/// The rings and wake-up state of a connection after the handshake.
#[derive(Debug)]
pub(super) struct OpenRings {
    pub(super) bell: Bell,
    pub(super) waking: Waking,
    pub(super) out: Producer,
    /// True if `out` is the large ring.
    pub(super) large: bool,
    /// The small ring was full, so the next record must go to a large ring.
    pub(super) was_full: bool,
    pub(super) into: Consumer,
    pub(super) pid: i32,
    pub(super) probe: Probe,
    pub(super) can_pull: bool,
    /// A large ring that the peer has passed but not switched to yet.
    pub(super) next: Option<Segment>,
}

/// A connection, from the first contact to its end.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: ConnId,
    pub(super) socket: OwnedFd,
    /// The page that we created, until the peer's hello arrives.
    pub(super) page: Option<Segment>,
    /// We opened the connection, not the peer.
    pub(super) initiated_here: bool,
    pub(super) open: Option<Box<OpenRings>>,
    pub(super) hung_up: bool,
    /// Why a connection that hangs up has ended, if that is known.
    pub(super) refusal: Option<CloseReason>,
    pub(super) broken: Option<&'static str>,
}

impl Connection {
    /// A connection before the handshake; `page` is ours if we opened it.
    pub(super) fn new(id: ConnId, socket: OwnedFd, page: Option<Segment>) -> Connection {
        Connection {
            id,
            socket,
            initiated_here: page.is_some(),
            page,
            open: None,
            hung_up: false,
            refusal: None,
            broken: None,
        }
    }
}

/// Slots for connections. A slot is reused with a new generation, so an id never refers to a later
/// connection.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Vec<Option<Connection>>,
    /// Generation of each slot's last connection.
    generations: Vec<u32>,
    free: Vec<u32>,
}

impl Table {
    /// Number of slots, used or free.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Number of connections, including reserved slots.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Reserves a slot; `None` if there are 2^32 already. Ends with [`fill`](Self::fill) or
    /// [`cancel`](Self::cancel).
    pub(super) fn reserve(&mut self) -> Option<ConnId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.slots.len()).ok()?;
                self.slots.push(None);
                self.generations.push(0);
                index
            }
        };
        let generation = &mut self.generations[index as usize];
        *generation = generation.wrapping_add(1);
        Some(ConnId::new(index, *generation))
    }

    /// Stores a connection in its reserved slot.
    pub(super) fn fill(&mut self, connection: Connection) {
        let at = connection.id.index();
        self.slots[at] = Some(connection);
    }

    /// Frees a reserved slot.
    pub(super) fn cancel(&mut self, id: ConnId) {
        self.free.push(id.index);
    }

    pub(super) fn remove(&mut self, id: ConnId) -> Option<Connection> {
        let slot = self.slots.get_mut(id.index())?;
        let found = slot.take_if(|found| found.id == id)?;
        self.free.push(id.index);
        Some(found)
    }

    pub(super) fn get(&self, id: ConnId) -> Option<&Connection> {
        let found = self.slots.get(id.index())?.as_ref();
        found.filter(|found| found.id == id)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: ConnId) -> Option<&mut Connection> {
        let found = self.slots.get_mut(id.index())?.as_mut();
        found.filter(|found| found.id == id)
    }

    /// The connection in a slot.
    pub(super) fn at(&self, index: usize) -> Option<&Connection> {
        self.slots.get(index)?.as_ref()
    }

    /// The connection in a slot.
    #[inline]
    pub(super) fn at_mut(&mut self, index: usize) -> Option<&mut Connection> {
        self.slots.get_mut(index)?.as_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        self.slots.iter_mut().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(id: ConnId) -> Connection {
        let (ours, _) = std::os::unix::net::UnixStream::pair().expect("sockets");
        Connection::new(id, ours.into(), None)
    }

    #[test]
    #[cfg(not(miri))]
    fn an_id_does_not_refer_to_a_later_connection_in_its_slot() {
        let mut table = Table::default();
        let first = table.reserve().expect("a slot");
        table.fill(connection(first));
        assert!(table.get(first).is_some() && table.len() == 1);
        assert!(table.remove(first).is_some() && table.remove(first).is_none());
        let second = table.reserve().expect("a slot");
        assert_eq!(second.index(), first.index());
        table.fill(connection(second));
        assert!(table.get(first).is_none() && table.get_mut(second).is_some());
        let third = table.reserve().expect("a slot");
        table.cancel(third);
        assert_eq!((table.len(), table.slots()), (1, 2));
    }
}

//! Long messages between processes of a node: one copy, made by the receiver.
//!
//! The sender offers where the message lies and waits; the receiver fetches it into
//! a buffer of its own as soon as its pool has room, a part in each turn. Where the
//! kernel does not allow that, it asks for the message, which then goes through the
//! ring in pieces. A sender that cannot wait offers a copy.

use std::io;

use dipole_link::AnyHub;
use dipole_link::shm::{ConnId, PushError};

use super::super::deliver::Receivers;
use super::tag::{Kind, Tag};
use super::{Blocked, Local, LocalEdge, blocked, find_mut};
use crate::inbox::Buffer;

/// Bytes of a long message fetched in one turn, so that others get theirs.
const FETCH_BYTES: usize = 1 << 20;
/// Bytes of a long message in one record, where it cannot be fetched.
pub(super) const PIECE_BYTES: usize = 16 << 10;
/// Copies of long messages that wait for their receivers to fetch them.
const COPIES_BYTES: usize = 32 << 20;

/// An offer that waits for room, or is being fetched.
#[derive(Debug)]
pub(super) struct Fetch {
    pub(super) conn: ConnId,
    pub(super) edge: u32,
    pub(super) life: u32,
    pub(super) address: u64,
    pub(super) length: u64,
    /// Where it goes, and how much is there, once it has room.
    pub(super) begun: Option<(Buffer, usize)>,
}

/// A long message offered to the peer.
#[derive(Debug)]
pub(super) struct Long {
    pub(super) length: usize,
    /// How much has gone by the ring; `None` while the peer may fetch it.
    pub(super) streamed: Option<usize>,
    /// The message itself, where its sender did not wait.
    pub(super) copy: Option<Box<[u8]>>,
}

impl Local {
    /// Offers a long message, which must stay where it is until
    /// [`is_taken`](Self::is_taken) says that it has been taken. With `copy` it is
    /// copied and the caller's need not stay.
    ///
    /// # Errors
    /// [`Blocked`]; nothing was offered.
    pub fn offer(&mut self, edge: LocalEdge, payload: &[u8], copy: bool) -> Result<(), Blocked> {
        if payload.len() as u64 > dipole_proto::MAX_MESSAGE_BYTES {
            let limit = dipole_proto::MAX_MESSAGE_BYTES;
            return Err(Blocked::TooLong { limit });
        }
        if copy && self.copied_bytes + payload.len() > COPIES_BYTES {
            return Err(match self.copied_bytes {
                0 => Blocked::TooLong {
                    limit: COPIES_BYTES as u64,
                },
                _ => Blocked::NoFrame,
            });
        }
        let (peer, hub) = (find_mut(&mut self.peers, edge.conn), &mut self.hub);
        let peer = peer.ok_or(Blocked::Gone(None))?;
        let outgoing = peer.ready(edge)?;
        let kept: Option<Box<[u8]>> = copy.then(|| payload.into());
        let address = hub.address_of(kept.as_deref().unwrap_or(payload));
        let words = [payload.len() as u64, address].map(u64::to_le_bytes);
        hub.push(
            edge.conn,
            Tag::new(Kind::Offer, edge.index).to_word(),
            words.as_flattened(),
        )
        .map_err(|error| blocked(hub, edge.conn, &error))?;
        self.copied_bytes += kept.as_ref().map_or(0, |kept| kept.len());
        outgoing.long = Some(Long {
            length: payload.len(),
            streamed: None,
            copy: kept,
        });
        hub.ring(edge.conn);
        Ok(())
    }

    /// Goes on with the long message offered last; true once it has been taken.
    ///
    /// # Errors
    /// [`Blocked`]: it was refused, or the peer is gone.
    pub fn is_taken(&mut self, edge: LocalEdge, payload: &[u8]) -> Result<bool, Blocked> {
        let (peer, hub) = (find_mut(&mut self.peers, edge.conn), &mut self.hub);
        let peer = peer.ok_or(Blocked::Gone(None))?;
        let outgoing = peer.outgoing(edge)?;
        let Some(long) = &mut outgoing.long else {
            return match outgoing.refused {
                Some(reason) => Err(Blocked::Refused(reason)),
                None => Ok(true),
            };
        };
        if push_pieces(hub, edge.conn, edge.index, long, payload) {
            outgoing.long = None;
            return Ok(true);
        }
        hub.want_room(edge.conn);
        Ok(false)
    }

    /// Fetches a part of the long message at the front of the line.
    pub(super) fn fetch(&mut self, receivers: &mut Receivers<'_>) {
        let Some(fetch) = self.fetches.front_mut() else {
            return;
        };
        let (conn, edge) = (fetch.conn, fetch.edge);
        let charge = dipole_proto::charge(fetch.length);
        if !self.pool.lets_begin(fetch) {
            return;
        }
        let length = usize::try_from(fetch.length).expect("no message is longer than memory");
        let (buffer, got) = match &mut fetch.begun {
            Some(begun) => begun,
            none => {
                self.pool.used += charge;
                none.insert((receivers.buffers.take(length), 0))
            }
        };
        let end = length.min(*got + FETCH_BYTES);
        let fetched = match self.hub.can_pull(conn) {
            true => self.hub.pull(
                conn,
                fetch.address.wrapping_add(*got as u64),
                &mut buffer.bytes_mut()[*got..end],
            ),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        };
        *got = end;
        if fetched.is_ok() && end < length {
            return;
        }
        let Some(done) = self.fetches.pop_front() else {
            return;
        };
        let Some((buffer, _)) = done.begun else {
            return;
        };
        let Some(peer) = find_mut(&mut self.peers, conn) else {
            self.pool.release(done.length);
            return;
        };
        match fetched {
            Ok(()) => {
                peer.fetched(edge, done.life, buffer, &mut self.pool, receivers);
                self.control(conn, Tag::new(Kind::Taken, edge), &[]);
            }
            Err(_) if peer.gone.is_none() => {
                peer.assemble(edge, done.life, buffer, &mut self.pool);
                self.control(conn, Tag::new(Kind::Stream, edge), &[]);
            }
            Err(_) => self.pool.release(done.length),
        }
    }

    /// Sends pieces of copied long messages that cannot be fetched.
    pub(super) fn stream_copies(&mut self) {
        let (hub, copied) = (&mut self.hub, &mut self.copied_bytes);
        for peer in self.peers.iter_mut().flatten() {
            let conn = peer.conn;
            for (index, outgoing) in (0_u32..).zip(&mut peer.edges) {
                let Some(long) = &mut outgoing.long else {
                    continue;
                };
                let Some(copy) = long.copy.take() else {
                    continue;
                };
                if push_pieces(hub, conn, index, long, &copy) {
                    *copied -= copy.len();
                    outgoing.long = None;
                } else {
                    long.copy = Some(copy);
                }
            }
        }
    }
}

/// Pushes as much of a long message as the ring takes; true when all of it has gone.
fn push_pieces(hub: &mut AnyHub, conn: ConnId, edge: u32, long: &mut Long, payload: &[u8]) -> bool {
    let Some(streamed) = &mut long.streamed else {
        return false;
    };
    let tag = Tag::new(Kind::Piece, edge).to_word();
    while *streamed < long.length {
        let end = long.length.min(*streamed + PIECE_BYTES);
        match hub.push(conn, tag, &payload[*streamed..end]) {
            Ok(()) => *streamed = end,
            Err(PushError::Full) => break,
            // Its end is reported by `attend`.
            Err(_) => return false,
        }
    }
    hub.ring(conn);
    *streamed == long.length
}

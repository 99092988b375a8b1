//! Long messages that go on without their senders.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use dipole_link::Region as Memory;
use dipole_proto::EdgeId;

use super::peers::Peers;
use crate::address::Address;
use crate::gone::GoneReason;
use crate::inbox::{Buffer, Buffers};
use crate::operation::{Context, QueueRef};

/// Who has posted an operation, and where its completion goes.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// The poster's.
    pub context: Context,
    /// Where its completion goes.
    pub queue: Option<QueueRef>,
    /// The endpoint it is for.
    pub to: Address,
}

/// How the bytes of a long message stay when its sender does not.
#[derive(Clone, Copy)]
pub(super) enum Keep<'a> {
    /// The sender stays: see `continue_long`.
    No,
    /// Copied.
    Copy(&'a Arc<Buffers>),
    /// The engine shares them.
    Shared(&'a Bytes, Option<Posted>),
    /// They lie in an open region, until that is closed.
    Region(&'a Part),
}

/// A part of a region.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) key: u64,
    pub(super) memory: Memory,
    pub(super) offset: usize,
    pub(super) length: usize,
}

impl Part {
    /// Shows its bytes; `None` if its memory was revoked.
    pub(super) fn show<R>(&self, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.memory.show(self.offset, self.length, look).ok()
    }
}

/// Bytes that outlive the call that sends them.
#[derive(Debug)]
enum Lasting {
    Copy(Buffer),
    Shared(Bytes),
    Region(Part),
}

/// What is left of a message whose sender does not wait.
#[derive(Debug)]
pub(super) struct Rest {
    bytes: Lasting,
    /// How much of the message lies before it.
    pub(super) skipped: usize,
    posted: Option<Posted>,
}

impl Rest {
    /// A copy of the end of a message.
    pub(super) fn copy(payload: &[u8], skipped: usize, buffers: &Arc<Buffers>) -> Rest {
        let mut buffer = buffers.take(payload.len() - skipped);
        buffer.bytes_mut().copy_from_slice(&payload[skipped..]);
        Rest {
            bytes: Lasting::Copy(buffer),
            skipped,
            posted: None,
        }
    }

    /// All of a message, where it lies.
    pub(super) fn shared(bytes: &Bytes, posted: Option<Posted>) -> Rest {
        Rest {
            bytes: Lasting::Shared(bytes.clone()),
            skipped: 0,
            posted,
        }
    }

    /// All of a message, in its region.
    pub(super) fn region(part: &Part) -> Rest {
        Rest {
            bytes: Lasting::Region(part.clone()),
            skipped: 0,
            posted: None,
        }
    }

    /// The copy, if it is one.
    pub(super) fn copied(&self) -> Option<&[u8]> {
        match &self.bytes {
            Lasting::Copy(buffer) => Some(buffer.bytes()),
            Lasting::Shared(_) | Lasting::Region(_) => None,
        }
    }

    /// The region that it lies in.
    pub(super) fn key(&self) -> Option<u64> {
        match &self.bytes {
            Lasting::Region(part) => Some(part.key),
            Lasting::Copy(_) | Lasting::Shared(_) => None,
        }
    }

    /// Bytes that were copied, or will be if their region is closed.
    pub(super) fn copied_bytes(&self) -> usize {
        match &self.bytes {
            Lasting::Copy(buffer) => buffer.bytes().len(),
            Lasting::Shared(_) => 0,
            Lasting::Region(part) => part.length,
        }
    }

    /// Shows its bytes; `None` if they were in a region whose memory was revoked.
    pub(super) fn show<R>(&self, look: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match &self.bytes {
            Lasting::Copy(buffer) => Some(look(buffer.bytes())),
            Lasting::Shared(bytes) => Some(look(bytes)),
            Lasting::Region(part) => part.show(look),
        }
    }

    /// Lets go of the bytes: all of them have been sent, or the peer is gone. Who posted them is
    /// to be told.
    pub(super) fn release(self, edge: EdgeId, sent: bool, peers: &Peers, posts: &mut SentPosts) {
        if let Some(posted) = self.posted {
            let gone = || peers.gone_reason(edge.peer);
            let sent = if sent { Ok(()) } else { Err(gone()) };
            posts.push_back((posted, sent));
        }
    }
}

/// Posted messages whose bytes are no longer needed, or whose peer is gone.
pub(super) type SentPosts = VecDeque<(Posted, Result<(), Option<GoneReason>>)>;

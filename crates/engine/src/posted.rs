//! Long messages that go on without their senders.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use dipole_link::Region as Memory;
use dipole_proto::EdgeId;

use super::core::Core;
use crate::address::Address;
use crate::completion::{Context, QueueRef};
use crate::error::GoneReason;
use crate::inbox::{Buffer, Buffers};

/// Who has posted an operation, and where its completion goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PostedOperation {
    pub(crate) context: Context,
    pub(crate) queue: Option<QueueRef>,
    pub(crate) to: Address,
}

/// How the bytes of a long message stay when its sender does not.
#[derive(Clone, Copy)]
pub(super) enum PayloadOwner<'a> {
    /// The sender stays: see `continue_long`.
    Caller,
    /// Copied.
    Copy(&'a Arc<Buffers>),
    /// The engine shares them.
    Shared(&'a Bytes, Option<PostedOperation>),
    /// They lie in an open region, until that is closed.
    Region(&'a RegionPart),
}

/// A part of a region.
#[derive(Clone, Debug)]
pub(super) struct RegionPart {
    pub(super) key: u64,
    pub(super) memory: Memory,
    pub(super) offset: usize,
    pub(super) length: usize,
}

impl RegionPart {
    /// Shows its bytes; `None` if its memory was revoked.
    pub(super) fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.memory.show(self.offset, self.length, read).ok()
    }
}

/// Bytes that outlive the call that sends them.
#[derive(Debug)]
enum OwnedPayload {
    Copy(Buffer),
    Shared(Bytes),
    Region(RegionPart),
}

/// What is left of a message whose sender does not wait.
#[derive(Debug)]
pub(super) struct Remainder {
    bytes: OwnedPayload,
    /// How much of the message lies before it.
    pub(super) skipped: usize,
    posted: Option<PostedOperation>,
}

impl Remainder {
    /// A copy of the end of a message.
    pub(super) fn copy(payload: &[u8], skipped: usize, buffers: &Arc<Buffers>) -> Remainder {
        let mut buffer = buffers.take(payload.len() - skipped);
        buffer.bytes_mut().copy_from_slice(&payload[skipped..]);
        Remainder {
            bytes: OwnedPayload::Copy(buffer),
            skipped,
            posted: None,
        }
    }

    /// All of a message, where it lies.
    pub(super) fn shared(bytes: &Bytes, posted: Option<PostedOperation>) -> Remainder {
        Remainder {
            bytes: OwnedPayload::Shared(bytes.clone()),
            skipped: 0,
            posted,
        }
    }

    /// All of a message, in its region.
    pub(super) fn region(part: &RegionPart) -> Remainder {
        Remainder {
            bytes: OwnedPayload::Region(part.clone()),
            skipped: 0,
            posted: None,
        }
    }

    /// The copy, if it is one.
    pub(super) fn copied(&self) -> Option<&[u8]> {
        match &self.bytes {
            OwnedPayload::Copy(buffer) => Some(buffer.bytes()),
            OwnedPayload::Shared(_) | OwnedPayload::Region(_) => None,
        }
    }

    /// The region that it lies in.
    pub(super) fn key(&self) -> Option<u64> {
        match &self.bytes {
            OwnedPayload::Region(part) => Some(part.key),
            OwnedPayload::Copy(_) | OwnedPayload::Shared(_) => None,
        }
    }

    /// Bytes that were copied, or will be if their region is closed.
    pub(super) fn copied_bytes(&self) -> usize {
        match &self.bytes {
            OwnedPayload::Copy(buffer) => buffer.bytes().len(),
            OwnedPayload::Shared(_) => 0,
            OwnedPayload::Region(part) => part.length,
        }
    }

    /// Shows its bytes; `None` if they were in a region whose memory was revoked.
    pub(super) fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match &self.bytes {
            OwnedPayload::Copy(buffer) => Some(read(buffer.bytes())),
            OwnedPayload::Shared(bytes) => Some(read(bytes)),
            OwnedPayload::Region(part) => part.with_bytes(read),
        }
    }

    /// Lets go of the bytes: all of them have been sent, or the peer is gone. Who posted them is
    /// to be told.
    pub(super) fn release(self, edge: EdgeId, core: &mut Core, sent: bool) {
        if let Some(posted) = self.posted {
            let gone = || core.peers.gone_reason(edge.peer);
            let sent = if sent { Ok(()) } else { Err(gone()) };
            core.sent_posts.push_back((posted, sent));
        }
    }
}

/// Posted messages whose bytes are no longer needed, or whose peer is gone.
pub(super) type SentPosts = VecDeque<(PostedOperation, Result<(), Option<GoneReason>>)>;

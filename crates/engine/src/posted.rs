//! Long messages that are sent in the background.

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

/// The origin of a posted operation, and where its completion goes.
#[derive(Clone, Copy, Debug)]
pub struct PostedOperation {
    /// The caller's number for it.
    pub context: Context,
    /// The queue or counter for its completion.
    pub queue: Option<QueueRef>,
    /// Address of the target endpoint.
    pub to: Address,
}

/// Where the bytes of a long message stay until they have been sent.
#[derive(Clone, Copy)]
pub(super) enum PayloadOwner<'a> {
    /// In the caller's memory, until `continue_long` returns true.
    Caller,
    /// The payload is in a copy.
    Copy(&'a Arc<Buffers>),
    /// The payload is in bytes that the engine shares.
    Shared(&'a Bytes, Option<PostedOperation>),
    /// The payload is in an open region, until that is closed.
    Region(&'a RegionPart),
}

/// Part of a region.
#[derive(Clone, Debug)]
pub(super) struct RegionPart {
    pub(super) key: u64,
    pub(super) memory: Memory,
    pub(super) offset: usize,
    pub(super) length: usize,
}

impl RegionPart {
    /// Passes its bytes to `read`; `None` if its memory was revoked.
    pub(super) fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        self.memory.show(self.offset, self.length, read).ok()
    }
}

/// Bytes that remain valid after the call that sends them.
#[derive(Debug)]
enum OwnedPayload {
    Copy(Buffer),
    Shared(Bytes),
    Region(RegionPart),
}

/// The unsent rest of a message in the background.
#[derive(Debug)]
pub(super) struct Remainder {
    bytes: OwnedPayload,
    /// Bytes of the message before it.
    pub(super) skipped: usize,
    posted: Option<PostedOperation>,
}

impl Remainder {
    /// Copies the rest of a message.
    pub(super) fn copy(payload: &[u8], skipped: usize, buffers: &Arc<Buffers>) -> Remainder {
        let mut buffer = buffers.take(payload.len() - skipped);
        buffer.bytes_mut().copy_from_slice(&payload[skipped..]);
        Remainder {
            bytes: OwnedPayload::Copy(buffer),
            skipped,
            posted: None,
        }
    }

    /// Shares a whole message.
    pub(super) fn shared(bytes: &Bytes, posted: Option<PostedOperation>) -> Remainder {
        Remainder {
            bytes: OwnedPayload::Shared(bytes.clone()),
            skipped: 0,
            posted,
        }
    }

    /// Refers to a whole message in a region.
    pub(super) fn region(part: &RegionPart) -> Remainder {
        Remainder {
            bytes: OwnedPayload::Region(part.clone()),
            skipped: 0,
            posted: None,
        }
    }

    /// The bytes, if they are a copy.
    pub(super) fn copied(&self) -> Option<&[u8]> {
        match &self.bytes {
            OwnedPayload::Copy(buffer) => Some(buffer.bytes()),
            OwnedPayload::Shared(_) | OwnedPayload::Region(_) => None,
        }
    }

    /// The key of the region they are in.
    pub(super) fn key(&self) -> Option<u64> {
        match &self.bytes {
            OwnedPayload::Region(part) => Some(part.key),
            OwnedPayload::Copy(_) | OwnedPayload::Shared(_) => None,
        }
    }

    /// Number of bytes that are copied, or will be if their region is closed.
    pub(super) fn copied_bytes(&self) -> usize {
        match &self.bytes {
            OwnedPayload::Copy(buffer) => buffer.bytes().len(),
            OwnedPayload::Shared(_) => 0,
            OwnedPayload::Region(part) => part.length,
        }
    }

    /// Passes its bytes to `read`; `None` if they were in revoked memory.
    pub(super) fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        match &self.bytes {
            OwnedPayload::Copy(buffer) => Some(read(buffer.bytes())),
            OwnedPayload::Shared(bytes) => Some(read(bytes)),
            OwnedPayload::Region(part) => part.with_bytes(read),
        }
    }

    /// Releases the bytes after all have been sent or the peer is gone, and completes the posted
    /// operation.
    pub(super) fn release(self, edge: EdgeId, sent: bool, peers: &Peers, posts: &mut SentPosts) {
        if let Some(posted) = self.posted {
            let gone = || peers.gone_reason(edge.peer);
            let sent = if sent { Ok(()) } else { Err(gone()) };
            posts.push_back((posted, sent));
        }
    }
}

/// Posted messages that have been sent, or whose peer is gone.
pub(super) type SentPosts = VecDeque<(PostedOperation, Result<(), Option<GoneReason>>)>;

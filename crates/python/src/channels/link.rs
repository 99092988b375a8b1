//! A link: the connection between an endpoint of this process and one of another, which all channels
//! between the two share.

use std::collections::VecDeque;

use dipole_node::{Address, Bytes, Edge, Operation, PeerId, SendError};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::per_process::PerProcess;

/// Longest message that is tried without a posted operation.
const SHORT_BYTES: usize = 16 << 10;

/// Buffers that have been sent, until a thread with the interpreter's lock releases them.
static SENT: PerProcess<Vec<Buffer>> = PerProcess::new();

/// Forgets the parent's buffers in a forked child.
pub(crate) fn forget_sent() {
    SENT.forget();
}

/// Releases the buffers that have been sent.
pub(super) fn release_sent(_py: Python<'_>) {
    let released = std::mem::take(&mut *SENT.lock());
    drop(released);
}

/// A buffer that the library shares until it has been sent. Threads of the library drop it, which
/// must not wait for the interpreter.
pub(super) struct Lent(Option<Buffer>);

impl Lent {
    pub(super) fn new(buffer: Buffer) -> Lent {
        Lent(Some(buffer))
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], Buffer::bytes)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        SENT.lock().extend(self.0.take());
    }
}

/// A message whose separate buffers are arriving.
pub(super) struct Arriving {
    /// The channel; `None` if it was closed here.
    pub(super) channel: Option<u64>,
    pub(super) buffers: Vec<Py<PyAny>>,
    /// Place in `buffers` and length of those that have not arrived.
    pub(super) missing: VecDeque<(usize, usize)>,
}

pub(super) struct Link {
    pub(super) edge: Edge,
    /// Endpoint of this process.
    pub(super) own: u32,
    pub(super) to: Address,
    /// The other process, once it has sent something.
    pub(super) peer: Option<PeerId>,
    pub(super) channels: Vec<u64>,
    pub(super) arriving: Option<Arriving>,
    /// Messages for which the edge has no room.
    backlog: VecDeque<Bytes>,
}

impl Link {
    pub(super) fn new(edge: Edge, own: u32, to: Address) -> Link {
        Link {
            edge,
            own,
            to,
            peer: None,
            channels: Vec::new(),
            arriving: None,
            backlog: VecDeque::new(),
        }
    }

    /// Sends a message now or later, in order, without a copy if it is long. `context` is that of
    /// its completion.
    pub(super) fn send(&mut self, bytes: Bytes, context: u64) -> Result<(), SendError> {
        let may_go = self.backlog.is_empty();
        if may_go && bytes.len() <= SHORT_BYTES && self.edge.send_if_room(&bytes)? {
            return Ok(());
        }
        self.backlog.push_back(bytes);
        self.advance(context)
    }

    /// Posts waiting messages for which there is room.
    pub(super) fn advance(&mut self, context: u64) -> Result<(), SendError> {
        while let Some(bytes) = self.backlog.front() {
            let posted = self
                .edge
                .post_bytes(Operation::Message, bytes.clone(), context);
            match posted {
                Err(SendError::Full { .. }) => return Ok(()),
                posted => posted?,
            }
            self.backlog.pop_front();
        }
        Ok(())
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.backlog.is_empty()
    }
}

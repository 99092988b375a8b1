//! Atomic operations on the memory of this process.
//!
//! An active port of the node receives the requests, so they are served even while the program
//! computes. All operations hold one lock, so they are atomic to each other, whichever regions of
//! the same memory they name.

use std::sync::{Arc, Mutex};

use dipole_node::{ActivePort, EndpointId, Node, OpenError, RegionMemory, Rights, SendError};
use rustc_hash::FxHashMap;

use crate::abi::errno::{FI_EACCES, FI_EINVAL, FI_ENOKEY};
use crate::arithmetic::{Mode, Operation};
use crate::completion::lock;
use crate::ffi::Failure;
use crate::wire::{AtomicTarget, Head, Kind};

/// The regions of this process, by their keys.
#[derive(Default)]
pub(crate) struct Atomics {
    regions: Mutex<FxHashMap<u64, (RegionMemory, Rights)>>,
}

impl Atomics {
    pub(crate) fn add(&self, key: u64, memory: RegionMemory, rights: Rights) {
        lock(&self.regions).insert(key, (memory, rights));
    }

    pub(crate) fn remove(&self, key: u64) {
        lock(&self.regions).remove(&key);
    }

    /// Performs an operation; returns the previous contents if the operation reads them.
    ///
    /// # Errors
    /// The region does not exist, does not allow the operation, or is too short.
    pub(crate) fn apply(
        &self,
        operation: Operation,
        key: u64,
        offset: u64,
        operands: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        let regions = lock(&self.regions);
        let (memory, rights) = regions.get(&key).ok_or(Failure(FI_ENOKEY))?;
        let (reads, writes) = operation.access();
        if reads && !rights.get || writes && !rights.put {
            return Err(Failure(FI_EACCES));
        }
        let (operands, compared) = match operation.mode {
            Mode::Compare => operands.split_at(operands.len() / 2),
            _ => (operands, &[][..]),
        };
        let at = usize::try_from(offset).map_err(|_| Failure(FI_EINVAL))?;
        let done = memory.fill(at, operands.len(), |elements| {
            let before = if reads { elements.to_vec() } else { Vec::new() };
            operation.apply(elements, operands, compared);
            before
        });
        done.map_err(|_| Failure(FI_EINVAL))
    }

    /// Opens the port that serves requests of other processes.
    pub(crate) fn serve(self: &Arc<Atomics>, node: &Node) -> Result<ActivePort, OpenError> {
        let atomics = Arc::clone(self);
        node.open_port(EndpointId::ANY, move |port, message| {
            let Some((head, target, operands)) = decode_request(&message) else {
                tracing::warn!(
                    source = %message.source(),
                    "dropped a message that is not an atomic operation"
                );
                return;
            };
            let done = Operation::decode(head.data)
                .ok_or(Failure(FI_EINVAL))
                .and_then(|operation| {
                    atomics.apply(operation, target.key(), target.offset(), operands)
                });
            let (failure, before) = match done {
                Ok(before) => (0, before),
                Err(Failure(failure)) => (failure, Vec::new()),
            };
            let failure = u64::from(failure.unsigned_abs());
            let reply = Head::control(Kind::AtomicReply, head.tag, failure);
            let mut bytes = reply.encode().to_vec();
            bytes.extend_from_slice(&before);
            // If the requester is gone, it does not need the reply. One that takes no replies is waited
            // for, since it waits for this one.
            if let Err(SendError::Full { .. }) = port.reply(&message, &bytes) {
                let _gone = port.send_to(message.source(), &bytes);
            }
        })
    }
}

fn decode_request(message: &[u8]) -> Option<(Head, AtomicTarget, &[u8])> {
    let (head, rest) = Head::decode(message)?;
    let (target, operands) = AtomicTarget::decode(rest)?;
    (head.kind == Kind::AtomicRequest).then_some((head, target, operands))
}

//! Atomic operations on this process's memory, done by the process itself.
//!
//! An active port of the node takes them, so they are done also while the program computes; an
//! answer goes to who asked. One lock is held by whatever operation is done, so all of them are
//! atomic to each other, whichever regions of the same memory they name and whoever asks.

use std::sync::{Arc, Mutex};

use dipole_node::{ActivePort, EndpointId, Node, OpenError, RegionMemory, Rights};
use rustc_hash::FxHashMap;

use crate::abi::errno::{FI_EACCES, FI_EINVAL, FI_ENOKEY};
use crate::arithmetic::{Mode, Operation};
use crate::completion::lock;
use crate::guard::Failure;
use crate::wire::{Head, Kind, Update};

/// Regions of this process, by their keys.
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

    /// Does an operation; what was there, if that is asked for.
    ///
    /// # Errors
    /// There is no such region, it does not allow that, or ends before.
    pub(crate) fn apply(
        &self,
        operation: Operation,
        (key, offset): (u64, u64),
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

    /// Opens the port that does what others ask.
    pub(crate) fn serve(self: &Arc<Atomics>, node: &Node) -> Result<ActivePort, OpenError> {
        let atomics = Arc::clone(self);
        node.open_port(EndpointId::ANY, move |port, message| {
            let Some((head, update, operands)) = asked(&message) else {
                tracing::warn!(source = %message.source(), "no atomic operation: it was dropped");
                return;
            };
            let done = Operation::decode(head.data)
                .ok_or(Failure(FI_EINVAL))
                .and_then(|operation| {
                    atomics.apply(operation, (update.key, update.offset), operands)
                });
            let (failure, before) = match done {
                Ok(before) => (0, before),
                Err(Failure(failure)) => (failure, Vec::new()),
            };
            let answer = Head {
                kind: Kind::Updated,
                is_tagged: false,
                has_data: false,
                tag: head.tag,
                data: u64::from(failure.unsigned_abs()),
            };
            let mut bytes = answer.encode().to_vec();
            bytes.extend_from_slice(&before);
            // Whoever is gone wants no answer.
            let _gone = port.reply(&message, &bytes);
        })
    }
}

fn asked(message: &[u8]) -> Option<(Head, Update, &[u8])> {
    let (head, rest) = Head::decode(message)?;
    let (update, operands) = Update::decode(rest)?;
    (head.kind == Kind::Update).then_some((head, update, operands))
}

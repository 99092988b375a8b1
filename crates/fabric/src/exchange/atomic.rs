//! Atomic operations of the program on the memory of other processes, which perform them.

use super::{Entry, Exchange};
use crate::abi::errno::FI_EIO;
use crate::abi::fabric::{FI_ATOMIC, FI_READ, FI_WRITE};
use crate::arithmetic::{Mode, Operation};
use crate::ffi::Failure;
use crate::memory::Pieces;
use crate::name::{Name, number};
use crate::wire::{AtomicTarget, Head, Kind};

/// An atomic operation as the program requests it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AtomicRequest {
    pub(crate) operation: Operation,
    pub(crate) operands: Pieces,
    /// Operands to compare with, of the same length.
    pub(crate) compared: Option<Pieces>,
    /// Receives the previous contents.
    pub(crate) result: Option<Pieces>,
    pub(crate) offset: u64,
    pub(crate) key: u64,
    pub(crate) context: usize,
    /// The program wants a completion even if the operation succeeds.
    pub(crate) notify: bool,
}

/// An operation that has not been answered.
pub(super) struct PendingUpdate {
    /// The address of the process that performs it, as a number.
    pub(super) to: u64,
    notify: bool,
    result: Option<Pieces>,
    entry: Entry,
}

impl Exchange {
    /// Sends an operation to the process that owns the memory.
    ///
    /// # Errors
    /// The peer is gone.
    pub(crate) fn update(&mut self, to: &Name, request: &AtomicRequest) -> Result<(), Failure> {
        let mut operands = Vec::with_capacity(2 * request.operands.length());
        request.operands.gather(&mut operands);
        if let Some(compared) = &request.compared {
            compared.gather(&mut operands);
        }
        let direction = match request.operation.mode {
            Mode::Update => FI_WRITE,
            Mode::Fetch | Mode::Compare => FI_READ,
        };
        let update = PendingUpdate {
            to: number(to.messages),
            notify: request.notify,
            result: request.result,
            entry: Entry {
                context: request.context,
                flags: FI_ATOMIC | direction,
                length: request.operands.length(),
                ..Entry::default()
            },
        };
        let (key, offset) = (request.key, request.offset);
        if to.atomics == self.own.atomics {
            let done = (self.atomics).apply(request.operation, key, offset, &operands);
            self.finish_update(update, done.as_deref().map_err(|failure| failure.0));
            return Ok(());
        }
        let number = self.outstanding.next_number();
        let head = Head::control(Kind::AtomicRequest, number, request.operation.encode());
        let mut bytes = head.encode().to_vec();
        bytes.extend_from_slice(&AtomicTarget::new(key, offset).encode());
        bytes.extend_from_slice(&operands);
        self.send_bytes(to.atomic_port(), &bytes)?;
        self.outstanding.updates.insert(number, update);
        Ok(())
    }

    /// Handles the reply to an operation: `failure` is 0 or an error number.
    pub(super) fn on_atomic_reply(&mut self, number: u64, failure: u64, before: &[u8]) {
        if let Some(update) = self.outstanding.updates.remove(&number) {
            let result = match i32::try_from(failure) {
                Ok(0) => Ok(before),
                Ok(failure) => Err(failure),
                Err(_) => Err(FI_EIO),
            };
            self.finish_update(update, result);
        }
    }

    fn finish_update(&mut self, update: PendingUpdate, result: Result<&[u8], i32>) {
        let mut entry = update.entry;
        match (result, update.result) {
            (Ok(before), Some(buffer)) => buffer.fill(before),
            (Ok(_), None) => {}
            (Err(failure), _) => entry.failure = Some((failure, 0)),
        }
        self.sinks.complete(update.notify, entry);
    }

    /// Fails the operations that were sent to a process that is gone.
    pub(super) fn fail_updates_to(&mut self, address: u64, failure: i32) {
        let updates = self.outstanding.updates.iter();
        let lost: Vec<u64> = updates
            .filter(|(_, update)| update.to == address)
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            self.on_atomic_reply(number, u64::from(failure.unsigned_abs()), &[]);
        }
    }
}

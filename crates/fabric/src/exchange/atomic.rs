//! Atomic operations of the program on others' memory: asked of their process, which answers.

use super::{Entry, Exchange};
use crate::abi::errno::FI_EIO;
use crate::abi::fabric::{FI_ATOMIC, FI_READ, FI_WRITE};
use crate::arithmetic::{Mode, Operation};
use crate::guard::Failure;
use crate::memory::Pieces;
use crate::name::{Name, number};
use crate::wire::{Head, Kind, Update};

/// What the program asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Updating {
    pub(crate) operation: Operation,
    pub(crate) operands: Pieces,
    /// Operands to compare with, of the same length.
    pub(crate) compared: Option<Pieces>,
    /// Where what was there goes.
    pub(crate) result: Option<Pieces>,
    pub(crate) offset: u64,
    pub(crate) key: u64,
    pub(crate) context: usize,
    pub(crate) wanted: bool,
}

/// One that has not been answered.
pub(super) struct Asked {
    pub(super) of: u64,
    wanted: bool,
    result: Option<Pieces>,
    entry: Entry,
}

impl Exchange {
    /// Asks the process that has the memory to do an operation on it.
    ///
    /// # Errors
    /// The peer is gone.
    pub(crate) fn update(&mut self, of: &Name, updating: &Updating) -> Result<(), Failure> {
        let mut operands = Vec::with_capacity(2 * updating.operands.length());
        updating.operands.gather(&mut operands);
        if let Some(compared) = &updating.compared {
            compared.gather(&mut operands);
        }
        let number = self.next();
        let direction = match updating.operation.mode {
            Mode::Update => FI_WRITE,
            Mode::Fetch | Mode::Compare => FI_READ,
        };
        let asked = Asked {
            of: self::number(of.messages),
            wanted: updating.wanted,
            result: updating.result,
            entry: Entry {
                context: updating.context,
                flags: FI_ATOMIC | direction,
                length: updating.operands.length(),
                ..Entry::default()
            },
        };
        let (key, offset) = (updating.key, updating.offset);
        if of.atomics == self.own.atomics {
            let done = self
                .atomics
                .apply(updating.operation, (key, offset), &operands);
            self.update_ends(asked, done.as_deref().map_err(|failure| failure.0));
            return Ok(());
        }
        let head = Head {
            kind: Kind::Update,
            is_tagged: false,
            has_data: false,
            tag: number,
            data: updating.operation.encode(),
        };
        let mut bytes = head.encode().to_vec();
        bytes.extend_from_slice(&Update { key, offset }.encode());
        bytes.extend_from_slice(&operands);
        self.send_bytes((of.atomics, Some(of.ports)), &bytes)?;
        self.updates.insert(number, asked);
        Ok(())
    }

    /// An operation was done, or refused with the number of a failure.
    pub(super) fn updated(&mut self, number: u64, failure: u64, before: &[u8]) {
        if let Some(asked) = self.updates.remove(&number) {
            let result = match i32::try_from(failure) {
                Ok(0) => Ok(before),
                Ok(failure) => Err(failure),
                Err(_) => Err(FI_EIO),
            };
            self.update_ends(asked, result);
        }
    }

    fn update_ends(&mut self, asked: Asked, result: Result<&[u8], i32>) {
        let mut entry = asked.entry;
        match (result, asked.result) {
            (Ok(before), Some(place)) => place.fill(before),
            (Ok(_), None) => {}
            (Err(failure), _) => entry.failure = Some((failure, 0)),
        }
        self.sinks.complete(asked.wanted, entry);
    }

    /// Nobody will answer what was asked of this process.
    pub(super) fn fail_updates_of(&mut self, address: u64, why: i32) {
        let lost = self.updates.iter().filter(|(_, asked)| asked.of == address);
        let lost: Vec<u64> = lost.map(|(number, _)| *number).collect();
        for number in lost {
            self.updated(number, u64::from(why.unsigned_abs()), &[]);
        }
    }
}

//! Objects that C programs refer to by a number that is not a file descriptor: edges, counters,
//! regions, ports, groups, streams and interfaces.
//!
//! A closed number is reused only after all other free ones, so that a stale number rarely refers
//! to a new object.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem;
use std::sync::{Arc, Mutex};

use dipole_node::SendError;

use crate::failure::Failure;
use crate::per_process::{PerProcess, generation, lock};
use crate::process::{self, CloseOrder, OpenObjects};
use crate::table::Table;

/// All objects of one kind that C programs hold.
pub(crate) struct Numbered<T> {
    table: Table<Entry<T>>,
    numbers: PerProcess<Mutex<Numbers>>,
    close_order: CloseOrder,
    /// The error for a number that refers to no object of this kind.
    unknown: fn(c_int) -> Failure,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    object: T,
}

/// Set of numbers in use.
#[derive(Debug, Default)]
struct Numbers {
    /// One more than the highest that was ever in use.
    next: c_int,
    free: VecDeque<c_int>,
}

impl<T> Numbered<T> {
    pub(crate) const fn new(close_order: CloseOrder, unknown: fn(c_int) -> Failure) -> Numbered<T> {
        Numbered {
            table: Table::new(),
            numbers: PerProcess::new(),
            close_order,
            unknown,
        }
    }

    /// Runs a call on the object with a number.
    #[inline]
    pub(crate) fn with<A>(
        &self,
        number: c_int,
        body: impl FnOnce(&T) -> Result<A, Failure>,
    ) -> Result<A, Failure> {
        let slot = self.table.slot(number);
        let slot = slot.ok_or_else(|| (self.unknown)(number))?;
        match &*slot.load() {
            Some(entry) if entry.generation == generation() => body(&entry.object),
            Some(_) => Err(Failure::Send(SendError::Forked)),
            None => Err((self.unknown)(number)),
        }
    }

    /// Removes the object and drops it as soon as no call uses it any more.
    pub(crate) fn close(&self, number: c_int) -> Result<(), Failure> {
        if self.remove(number)? {
            lock(&self.numbers.get()).free.push_back(number);
        }
        Ok(())
    }

    /// Takes an object out of the table; false if it belongs to the parent process.
    fn remove(&self, number: c_int) -> Result<bool, Failure> {
        let removed = self.table.slot(number).and_then(|slot| slot.swap(None));
        let removed = removed.ok_or_else(|| (self.unknown)(number))?;
        Ok(!leak_inherited(Some(removed)))
    }
}

impl<T: Send + Sync> Numbered<T> {
    /// Adds an object; returns its number.
    pub(crate) fn insert(&'static self, object: T) -> Result<c_int, Failure> {
        process::current().register(self.close_order, self);
        let number = {
            let instance = self.numbers.get();
            let mut numbers = lock(&instance);
            numbers.free.pop_front().unwrap_or_else(|| {
                numbers.next += 1;
                numbers.next - 1
            })
        };
        let slot = self.table.make_slot(number);
        let slot = slot.ok_or_else(|| (self.unknown)(number))?;
        let generation = generation();
        leak_inherited(slot.swap(Some(Arc::new(Entry { generation, object }))));
        Ok(number)
    }
}

impl<T: Send + Sync> OpenObjects for Numbered<T> {
    fn close_all(&self) {
        let numbers = mem::take(&mut *lock(&self.numbers.get()));
        for number in 0..numbers.next {
            // Some objects are closed already.
            let _closed = self.remove(number);
        }
    }
}

/// Leaks an object of the parent process instead of dropping it: dropping could wait for a lock
/// that one of the parent's threads held at the fork. True if it was such an object.
fn leak_inherited<T>(entry: Option<Arc<Entry<T>>>) -> bool {
    let generation = generation();
    let inherited = entry.filter(|entry| entry.generation != generation);
    inherited.map(mem::forget).is_some()
}

//! What C programs hold by a number that is no descriptor: edges, counters, regions, ports
//! and groups.
//!
//! A number is used again only after all others that are free, so that one held too long
//! rarely stands for something else.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem;
use std::sync::{Arc, Mutex};

use dipole_node::SendError;

use crate::failure::Failure;
use crate::process::{self, Process, lock};
use crate::table::Table;

/// Everything of one kind that C programs hold.
pub(crate) struct Numbered<T> {
    table: Table<Held<T>>,
    /// Which numbers a process uses.
    numbers: fn(&Process) -> &Mutex<Numbers>,
    /// The number stands for nothing of this kind.
    unknown: fn(c_int) -> Failure,
}

#[derive(Debug)]
struct Held<T> {
    generation: u32,
    it: T,
}

/// Which numbers of a kind are in use.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// One more than the highest that was ever in use.
    next: c_int,
    free: VecDeque<c_int>,
}

impl<T> Numbered<T> {
    pub(crate) const fn new(
        numbers: fn(&Process) -> &Mutex<Numbers>,
        unknown: fn(c_int) -> Failure,
    ) -> Numbered<T> {
        Numbered {
            table: Table::new(),
            numbers,
            unknown,
        }
    }

    /// Runs a call on what a number stands for.
    #[inline]
    pub(crate) fn with<A>(
        &self,
        number: c_int,
        body: impl FnOnce(&T) -> Result<A, Failure>,
    ) -> Result<A, Failure> {
        let slot = self.table.slot(number);
        let slot = slot.ok_or_else(|| (self.unknown)(number))?;
        match &*slot.load() {
            Some(held) if held.generation == process::generation() => body(&held.it),
            Some(_) => Err(Failure::Send(SendError::Forked)),
            None => Err((self.unknown)(number)),
        }
    }

    /// Gives it a number.
    pub(crate) fn enter(&self, it: T) -> Result<c_int, Failure> {
        let process = process::current();
        let number = {
            let mut numbers = lock((self.numbers)(&process));
            numbers.free.pop_front().unwrap_or_else(|| {
                numbers.next += 1;
                numbers.next - 1
            })
        };
        let slot = self.table.make_slot(number);
        let slot = slot.ok_or_else(|| (self.unknown)(number))?;
        let generation = process::generation();
        keep_inherited(slot.swap(Some(Arc::new(Held { generation, it }))));
        Ok(number)
    }

    /// Takes it back and drops it, when no call uses it any more.
    pub(crate) fn close(&self, number: c_int) -> Result<(), Failure> {
        if self.remove(number)? {
            let process = process::current();
            lock((self.numbers)(&process)).free.push_back(number);
        }
        Ok(())
    }

    /// Takes it out of the table; false if its number stands for nothing of this process.
    fn remove(&self, number: c_int) -> Result<bool, Failure> {
        let removed = self.table.slot(number).and_then(|slot| slot.swap(None));
        let removed = removed.ok_or_else(|| (self.unknown)(number))?;
        Ok(!keep_inherited(Some(removed)))
    }

    /// Closes all of a process.
    pub(crate) fn close_all(&self, process: &Process) {
        let numbers = mem::take(&mut *lock((self.numbers)(process)));
        for number in 0..numbers.next {
            // Some are closed already.
            let _closed = self.remove(number);
        }
    }
}

/// Never drops what belongs to the parent process, since that could wait for a lock that one
/// of its threads held when this process was forked. True if it was so.
fn keep_inherited<T>(held: Option<Arc<Held<T>>>) -> bool {
    let generation = process::generation();
    let inherited = held.filter(|held| held.generation != generation);
    inherited.map(mem::forget).is_some()
}

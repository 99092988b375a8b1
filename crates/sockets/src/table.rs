//! Which descriptors are connections that the library knows.

use std::cell::RefCell;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use crate::connection::Connection;

/// Descriptors above are not followed.
const MOST: usize = 1 << 16;

static KNOWN: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];
type Table = Vec<Option<Arc<Connection>>>;

static TABLE: RwLock<Table> = RwLock::new(Vec::new());

thread_local! {
    /// Held over a fork, so that the child finds the table whole.
    static HELD: RefCell<Option<RwLockWriteGuard<'static, Table>>> =
        const { RefCell::new(None) };
}

fn index(fd: RawFd) -> Option<usize> {
    usize::try_from(fd).ok().filter(|fd| *fd < MOST)
}

/// The connection of a descriptor.
pub(crate) fn find(fd: RawFd) -> Option<Arc<Connection>> {
    let at = index(fd).filter(|at| KNOWN[*at].load(Acquire))?;
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.get(at).cloned().flatten()
}

/// From now on the descriptor is this connection, or none.
pub(crate) fn set(fd: RawFd, connection: Option<Arc<Connection>>) {
    let Some(at) = index(fd) else {
        return;
    };
    if connection.is_none() && !KNOWN[at].load(Acquire) {
        return;
    }
    let known = connection.is_some();
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    if table.len() <= at {
        table.resize(at + 1, None);
    }
    let before = std::mem::replace(&mut table[at], connection);
    KNOWN[at].store(known, Release);
    drop(table);
    // Unmaps, if it was the last.
    drop(before);
}

/// All, with their descriptors.
pub(crate) fn all() -> Vec<(RawFd, Arc<Connection>)> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let of = |(at, one): (usize, &Option<Arc<Connection>>)| {
        Some((RawFd::try_from(at).ok()?, one.clone()?))
    };
    table.iter().enumerate().filter_map(of).collect()
}

/// Before a fork.
pub(crate) fn hold() {
    let table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    HELD.with_borrow_mut(|held| *held = Some(table));
}

/// After a fork, in parent and child.
pub(crate) fn release() {
    HELD.with_borrow_mut(Option::take);
}

//! From a descriptor's number to its endpoint.
//!
//! [`TABLE`] answers for the numbers that `dp_open` returned, without a lock and
//! without a system call.
//!
//! Any other number, and one whose endpoint has ended, is looked up by what it stands
//! for (`fstat`): that finds the copies that `dup` makes, and tells what a forked child
//! inherited. A number that was closed by `close` and given to a *copy* of another
//! endpoint would be mistaken only until its old endpoint is known to have ended, or
//! until a call that looks closer ([`find`]).

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dipole_node::{Address, Endpoint, Message};
use dipole_trace::waits::WaitRecorder;

use crate::failure::Failure;
use crate::guard;
use crate::process::{self, lock, place};
use crate::table::Table;

/// An open endpoint.
#[derive(Debug)]
pub(crate) struct Handle {
    generation: u32,
    /// The number that `dp_open` returned.
    pub(crate) fd: c_int,
    file: FileId,
    pub(crate) endpoint: Endpoint,
    /// Messages read where they lie and not yet given back.
    pub(crate) read: Mutex<VecDeque<Message>>,
    pub(crate) targets: Targets,
    /// Another number was seen to stand for it: its own number may go while it lives.
    copied: AtomicBool,
    /// Calls were not to wait when that was last looked at.
    nonblocking: AtomicBool,
    /// How long a call waits before it looks.
    pub(crate) probe: Duration,
    /// Who keeps what calls have waited for.
    pub(crate) recorder: Option<Arc<WaitRecorder>>,
}

/// What a descriptor stands for: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId(u64, u64);

/// Where the endpoint points, as far as calls here need to know.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    known: Mutex<Vec<Address>>,
    several: AtomicBool,
}

impl Targets {
    pub(crate) fn add(&self, target: Address) {
        let mut known = lock(&self.known);
        if !known.contains(&target) {
            known.push(target);
        }
        self.several.store(known.len() > 1, Ordering::Relaxed);
    }

    /// False if it was none.
    pub(crate) fn remove(&self, target: Address) -> bool {
        let mut known = lock(&self.known);
        let before = known.len();
        known.retain(|other| *other != target);
        self.several.store(known.len() > 1, Ordering::Relaxed);
        known.len() < before
    }

    /// The one target, if there is one.
    pub(crate) fn only(&self) -> Option<Address> {
        match lock(&self.known)[..] {
            [only] => Some(only),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn are_several(&self) -> bool {
        self.several.load(Ordering::Relaxed)
    }
}

impl Handle {
    /// Ends the endpoint for all who know it.
    pub(crate) fn end(self: &Arc<Self>) {
        self.endpoint.end();
        self.forget();
    }

    /// What [`look_nonblocking`](Self::look_nonblocking) has said last.
    #[inline]
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// True if calls on the descriptor shall not wait.
    pub(crate) fn look_nonblocking(&self, fd: c_int) -> Result<bool, Failure> {
        let flags = rustix::fs::fcntl_getfl(guard::borrow(fd)?)
            .map_err(|_| Failure::NotAnEndpoint { fd })?;
        let nonblocking = flags.contains(rustix::fs::OFlags::NONBLOCK);
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(nonblocking)
    }

    /// Takes it out of the table.
    fn forget(self: &Arc<Self>) {
        if let Some(slot) = TABLE.slot(self.fd) {
            let held = Some(Arc::clone(self));
            slot.compare_and_swap(&held, None);
        }
    }
}

static TABLE: Table<Handle> = Table::new();

/// Runs a call on the endpoint of a descriptor.
#[inline]
pub(crate) fn with<A>(
    fd: c_int,
    body: impl Fn(&Handle) -> Result<A, Failure>,
) -> Result<A, Failure> {
    if let Some(slot) = TABLE.slot(fd)
        && let Some(handle) = &*slot.load()
        && handle.generation == process::generation()
        && !handle.copied.load(Ordering::Relaxed)
    {
        let answer = body(handle);
        match answer {
            // Perhaps the number stands for another endpoint by now.
            Err(failure) if failure.is_ended() => {}
            answer => return answer,
        }
    }
    let handle = find(fd)?;
    body(&handle).map_err(|failure| match failure.is_ended() {
        true => Failure::NotAnEndpoint { fd },
        false => failure,
    })
}

/// The endpoint that a descriptor stands for, whatever was there before.
pub(crate) fn find(fd: c_int) -> Result<Arc<Handle>, Failure> {
    let file = identify(fd)?;
    let process = process::current();
    let known = lock(&process.endpoints).by_file.get(&file).cloned();
    let slot = TABLE.slot(fd);
    if let Some(handle) = known {
        if handle.fd != fd {
            handle.copied.store(true, Ordering::Relaxed);
        }
        if let Some(slot) = slot {
            let old = slot.load_full();
            if old.as_ref().is_some_and(|old| !Arc::ptr_eq(old, &handle)) {
                slot.compare_and_swap(&old, None);
            }
        }
        return Ok(handle);
    }
    let inherited = std::iter::successors(process.parent.as_ref(), |older| older.parent.as_ref())
        .any(|older| {
            // A thread of the parent may have held the lock when this process was forked.
            let endpoints = match older.endpoints.try_lock() {
                Ok(endpoints) => endpoints,
                Err(std::sync::TryLockError::Poisoned(poisoned)) => {
                    PoisonError::into_inner(poisoned)
                }
                Err(std::sync::TryLockError::WouldBlock) => return false,
            };
            endpoints.by_file.contains_key(&file)
        });
    match inherited {
        true => Err(Failure::Inherited { fd }),
        false => Err(Failure::NotAnEndpoint { fd }),
    }
}

/// Enters a new endpoint under the number of its descriptor, which becomes the caller's.
pub(crate) fn enter(
    endpoint: Endpoint,
    descriptor: OwnedFd,
    nonblocking: bool,
    probe: Duration,
) -> Result<c_int, Failure> {
    let fd = descriptor.as_raw_fd();
    let process = process::current();
    let recorder = process.recorder();
    if let Some(recorder) = &recorder {
        recorder.add_endpoint(place(endpoint.address()));
    }
    let handle = Arc::new(Handle {
        generation: process::generation(),
        fd,
        file: identify(fd)?,
        endpoint,
        read: Mutex::default(),
        targets: Targets::default(),
        copied: AtomicBool::new(false),
        nonblocking: AtomicBool::new(nonblocking),
        probe,
        recorder,
    });
    let Some(slot) = TABLE.make_slot(fd) else {
        return Err(Failure::NotAnEndpoint { fd });
    };
    let mut endpoints = lock(&process.endpoints);
    if endpoints.by_file.len() >= endpoints.sweep_at {
        endpoints.by_file.retain(|_, old| {
            let lives = !old.endpoint.is_ended();
            if !lives {
                old.forget();
            }
            lives
        });
        endpoints.sweep_at = 2 * endpoints.by_file.len() + 64;
    }
    endpoints.by_file.insert(handle.file, Arc::clone(&handle));
    drop(endpoints);
    slot.store(Some(handle));
    Ok(std::os::fd::IntoRawFd::into_raw_fd(descriptor))
}

/// Ends the endpoint of a descriptor and forgets it.
pub(crate) fn end(fd: c_int) -> Result<(), Failure> {
    let handle = match find(fd) {
        Ok(handle) => handle,
        // The parent's endpoint is none of ours; the copied number is.
        Err(Failure::Inherited { .. }) => return Ok(()),
        Err(failure) => return Err(failure),
    };
    let process = process::current();
    lock(&process.endpoints).by_file.remove(&handle.file);
    handle.end();
    Ok(())
}

/// What a descriptor stands for now.
pub(crate) fn identify(fd: c_int) -> Result<FileId, Failure> {
    let facts = rustix::fs::fstat(guard::borrow(fd)?).map_err(|_| Failure::NotAnEndpoint { fd })?;
    Ok(FileId(facts.st_dev, facts.st_ino))
}

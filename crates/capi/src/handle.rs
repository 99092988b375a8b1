//! Maps descriptors to endpoints.
//!
//! [`TABLE`] has the numbers that `dp_open` returned; it is read without a lock or a system call.
//!
//! Any other number, and one whose endpoint has ended, is looked up by the file it refers to
//! (`fstat`). That finds copies made with `dup`, and descriptors that a forked child inherited. If a
//! number was closed with `close` and then given to a *copy* of another endpoint, calls use the old
//! endpoint until that has ended or a call uses [`find`].

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use dipole_node::{Address, Endpoint, Message};

use crate::carrier::{Carrier, Owner};
use crate::failure::Failure;
use crate::ffi;
use crate::per_process::{Instance, PerProcess, generation, lock};
use crate::process::{self, CloseOrder, OpenObjects};
use crate::table::Table;

/// An open endpoint.
#[derive(Debug)]
pub(crate) struct Handle {
    generation: u32,
    /// The number that `dp_open` returned.
    pub(crate) fd: c_int,
    file: FileId,
    pub(crate) endpoint: Endpoint,
    /// Messages that were read in place and not yet released.
    pub(crate) unreleased: Mutex<VecDeque<Message>>,
    pub(crate) targets: Targets,
    /// Another number refers to the same endpoint, so this one may be closed while it lives.
    copied: AtomicBool,
    /// True if `O_NONBLOCK` was set when the flags were last read.
    nonblocking: AtomicBool,
    /// How long a call waits before it reads the flags.
    pub(crate) probe: Duration,
    /// True if the waits of calls are recorded.
    pub(crate) is_traced: bool,
    /// How long closing waits for what was written to the descriptor.
    pub(crate) linger: Duration,
    /// With `DP_IO`, what carries messages through the descriptor.
    carrier: OnceLock<Carrier>,
}

/// The file that a descriptor refers to: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId(u64, u64);

/// The targets of an endpoint.
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

    /// Removes a target; false if the endpoint did not have it.
    pub(crate) fn remove(&self, target: Address) -> bool {
        let mut known = lock(&self.known);
        let before = known.len();
        known.retain(|other| *other != target);
        self.several.store(known.len() > 1, Ordering::Relaxed);
        known.len() < before
    }

    #[inline]
    pub(crate) fn are_several(&self) -> bool {
        self.several.load(Ordering::Relaxed)
    }
}

impl Owner for Handle {
    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn linger(&self) -> Duration {
        self.linger
    }
}

impl Handle {
    /// Closes the endpoint, for all descriptors that refer to it.
    pub(crate) fn end(self: &Arc<Self>) {
        match self.carrier.get() {
            Some(carrier) => carrier.close(|| self.endpoint.end()),
            None => self.endpoint.end(),
        }
        self.remove_from_table();
    }

    /// The last result of [`look_nonblocking`](Self::look_nonblocking).
    #[inline]
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Reads the flags of the descriptor; true if calls must not wait.
    pub(crate) fn look_nonblocking(&self, fd: c_int) -> Result<bool, Failure> {
        let flags =
            rustix::fs::fcntl_getfl(ffi::borrow(fd)?).map_err(|_| Failure::NotAnEndpoint { fd })?;
        let nonblocking = flags.contains(rustix::fs::OFlags::NONBLOCK);
        self.nonblocking.store(nonblocking, Ordering::Relaxed);
        Ok(nonblocking)
    }

    /// Removes the endpoint from the table.
    fn remove_from_table(self: &Arc<Self>) {
        if let Some(slot) = TABLE.slot(self.fd) {
            let entry = Some(Arc::clone(self));
            slot.compare_and_swap(&entry, None);
        }
    }
}

static TABLE: Table<Handle> = Table::new();
static ENDPOINTS: PerProcess<Mutex<Endpoints>> = PerProcess::new();

/// Endpoints by the files that their descriptors refer to.
#[derive(Debug, Default)]
struct Endpoints {
    by_file: HashMap<FileId, Arc<Handle>>,
    /// Number of entries at which those whose descriptors were closed with `close` are removed.
    sweep_at: usize,
}

/// The endpoints of this process, for `dp_finalize`.
struct AllEndpoints;

impl OpenObjects for AllEndpoints {
    fn close_all(&self) {
        let endpoints = std::mem::take(&mut *lock(&ENDPOINTS.get()));
        for handle in endpoints.by_file.into_values() {
            handle.end();
        }
    }
}

/// Runs a call on the endpoint of a descriptor.
#[inline]
pub(crate) fn with<A>(
    fd: c_int,
    body: impl Fn(&Handle) -> Result<A, Failure>,
) -> Result<A, Failure> {
    if let Some(slot) = TABLE.slot(fd)
        && let Some(handle) = &*slot.load()
        && handle.generation == generation()
        && !handle.copied.load(Ordering::Relaxed)
    {
        let answer = body(handle);
        match answer {
            // The number may refer to another endpoint by now.
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

/// The endpoint that a descriptor refers to now, even if the table is out of date.
pub(crate) fn find(fd: c_int) -> Result<Arc<Handle>, Failure> {
    let file = identify(fd)?;
    let endpoints = ENDPOINTS.get();
    let known = lock(&endpoints).by_file.get(&file).cloned();
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
    let parent = |instance: &Arc<Instance<_>>| instance.parent.clone();
    let inherited = std::iter::successors(parent(&endpoints), parent).any(|older| {
        // A thread of the parent may have held the lock at the fork.
        let endpoints = match older.try_lock() {
            Ok(endpoints) => endpoints,
            Err(std::sync::TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(std::sync::TryLockError::WouldBlock) => return false,
        };
        endpoints.by_file.contains_key(&file)
    });
    match inherited {
        true => Err(Failure::Inherited { fd }),
        false => Err(Failure::NotAnEndpoint { fd }),
    }
}

/// Adds a new endpoint under the number of its descriptor, which the caller owns from now on.
pub(crate) fn insert(
    endpoint: Endpoint,
    descriptor: OwnedFd,
    nonblocking: bool,
    probe: Duration,
) -> Result<c_int, Failure> {
    let fd = descriptor.as_raw_fd();
    let process = process::current();
    let is_traced = process.open_node()?.is_traced();
    let handle = Arc::new(Handle {
        generation: generation(),
        fd,
        file: identify(fd)?,
        endpoint,
        unreleased: Mutex::default(),
        targets: Targets::default(),
        copied: AtomicBool::new(false),
        nonblocking: AtomicBool::new(nonblocking),
        probe,
        is_traced,
        linger: process.linger(),
        carrier: OnceLock::new(),
    });
    let Some(slot) = TABLE.make_slot(fd) else {
        return Err(Failure::NotAnEndpoint { fd });
    };
    process.register(CloseOrder::Endpoints, &AllEndpoints);
    let instance = ENDPOINTS.get();
    let mut endpoints = lock(&instance);
    if endpoints.by_file.len() >= endpoints.sweep_at {
        endpoints.by_file.retain(|_, old| {
            let lives = !old.endpoint.is_ended();
            if !lives {
                old.remove_from_table();
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

/// Carries the messages of a new endpoint through its descriptor, whose other end is `own`.
pub(crate) fn carry(fd: c_int, own: OwnedFd) -> Result<(), Failure> {
    let handle = find(fd)?;
    let started = Carrier::start(&handle, own).map_err(|cause| Failure::Descriptor {
        doing: "starting the threads of a DP_IO descriptor",
        cause,
    })?;
    handle.carrier.get_or_init(|| started);
    Ok(())
}

/// Closes the endpoint of a descriptor.
pub(crate) fn end(fd: c_int) -> Result<(), Failure> {
    let handle = match find(fd) {
        Ok(handle) => handle,
        // The endpoint belongs to the parent; only the inherited descriptor is closed.
        Err(Failure::Inherited { .. }) => return Ok(()),
        Err(failure) => return Err(failure),
    };
    lock(&ENDPOINTS.get()).by_file.remove(&handle.file);
    handle.end();
    Ok(())
}

/// The file that a descriptor refers to now.
pub(crate) fn identify(fd: c_int) -> Result<FileId, Failure> {
    let stat = rustix::fs::fstat(ffi::borrow(fd)?).map_err(|_| Failure::NotAnEndpoint { fd })?;
    Ok(FileId(stat.st_dev, stat.st_ino))
}

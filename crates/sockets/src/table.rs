//! Distinguishes descriptors of connections that the library handles from plain sockets that
//! it leaves to the kernel but may spin on.
//!
//! No call blocks another here, and no lock is held over a fork. A connection occupies one of a
//! fixed number of slots. A call registers at the slot ([`ConnectionRef`]) and then checks that
//! the descriptor still refers to that connection. A slot whose last descriptor was closed is
//! reused once no call is registered there.

use std::ops::Deref;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicUsize};

use crate::account::{self, Baseline, Reason, Usage};
use crate::connection::Connection;
use crate::counter::{Count, Counter};
use crate::spin::AdaptiveSpin;

/// Descriptors at or above this number are not handled.
const MAX_DESCRIPTORS: usize = 1 << 16;

/// Instead of a slot number: a plain socket, left to the kernel, whose reads may block.
const PLAIN: u32 = u32::MAX;
/// A plain socket whose reads did not block when this was last checked.
const PLAIN_POLLED: u32 = u32::MAX - 1;

/// For each descriptor: the connection's slot number plus one, or one of the values above.
static KNOWN: [AtomicU32; MAX_DESCRIPTORS] = [const { AtomicU32::new(0) }; MAX_DESCRIPTORS];
/// Spin statistics of plain sockets.
static SPINS: [AdaptiveSpin; MAX_DESCRIPTORS] = [const { AdaptiveSpin::new() }; MAX_DESCRIPTORS];
static SLOTS: [Connection; MAX_DESCRIPTORS] = [const { Connection::none() }; MAX_DESCRIPTORS];
/// For each descriptor that is a plain socket: the code of the [`Reason`], or [`IS_COPY`].
static REASONS: [AtomicU8; MAX_DESCRIPTORS] = [const { AtomicU8::new(0) }; MAX_DESCRIPTORS];
/// A plain socket with another descriptor, whose bytes are counted there.
const IS_COPY: u8 = u8::MAX;
/// For each descriptor: bytes that another process counts.
static BASELINES: [Baseline; MAX_DESCRIPTORS] = [const { Baseline::none() }; MAX_DESCRIPTORS];
/// The highest descriptor ever listed.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// Number of listed descriptors.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The process that owns the table, set before a `vfork`, whose child runs in the same memory.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// A registered call on a connection.
#[derive(Debug)]
pub(crate) struct ConnectionRef {
    number: u32,
    connection: &'static Connection,
    counter: &'static Counter,
    before: Count,
    /// Bytes that the call has moved over TCP.
    pub(crate) moved: u64,
}

impl ConnectionRef {
    /// True if both calls are on the same connection.
    pub(crate) fn is_same(&self, other: &ConnectionRef) -> bool {
        std::ptr::eq(self.connection, other.connection)
    }

    /// Value of the counter before the call.
    pub(crate) fn before(&self) -> Count {
        self.before
    }
}

impl Deref for ConnectionRef {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl Drop for ConnectionRef {
    fn drop(&mut self) {
        self.counter.exit(self.moved);
        self.connection.free_if_gone();
    }
}

fn index(fd: RawFd) -> Option<usize> {
    usize::try_from(fd).ok().filter(|fd| *fd < MAX_DESCRIPTORS)
}

fn slot(number: u32) -> Option<&'static Connection> {
    SLOTS.get((number as usize).checked_sub(1)?)
}

/// True if the descriptor is a connection now.
pub(crate) fn is_known(fd: RawFd) -> bool {
    index(fd).is_some_and(|at| slot(KNOWN[at].load(Relaxed)).is_some())
}

/// True if the descriptor is a connection or a plain socket.
pub(crate) fn is_listed(fd: RawFd) -> bool {
    index(fd).is_some_and(|at| KNOWN[at].load(Relaxed) != 0)
}

/// Spin statistics of a plain socket whose reads block.
pub(crate) fn plain(fd: RawFd) -> Option<&'static AdaptiveSpin> {
    let at = index(fd).filter(|at| KNOWN[*at].load(Relaxed) == PLAIN)?;
    Some(&SPINS[at])
}

/// Turns off spinning for reads of the descriptor.
pub(crate) fn disable_spinning(fd: RawFd) {
    if let Some(found) = enter_read(fd) {
        found.is_polled().store(true, Relaxed);
    } else if let Some(at) = index(fd) {
        let _other = KNOWN[at].compare_exchange(PLAIN, PLAIN_POLLED, Relaxed, Relaxed);
    }
}

/// True if any descriptor is listed.
pub(crate) fn any_known() -> bool {
    COUNT.load(Relaxed) != 0
}

fn enter(
    fd: RawFd,
    counter_of: impl Fn(&'static Connection) -> &'static Counter,
) -> Option<ConnectionRef> {
    let at = index(fd)?;
    loop {
        let number = KNOWN[at].load(Acquire);
        let connection = slot(number)?;
        let counter = counter_of(connection);
        let before = counter.enter();
        let found = ConnectionRef {
            number,
            connection,
            counter,
            before,
            moved: 0,
        };
        // The slot cannot be reused while this call is registered, unless that was too late.
        if KNOWN[at].load(SeqCst) == number {
            return Some(found);
        }
    }
}

/// Registers a call that may read from a descriptor's connection.
pub(crate) fn enter_read(fd: RawFd) -> Option<ConnectionRef> {
    enter(fd, Connection::reads)
}

/// Registers a call that writes over TCP. Waits while another thread copies into the ring, since
/// no byte may come between a record and its marker.
pub(crate) fn enter_write(fd: RawFd) -> Option<ConnectionRef> {
    loop {
        let found = enter(fd, Connection::writes)?;
        if !found.before.is_claimed() {
            return Some(found);
        }
        drop(found);
        std::thread::yield_now();
    }
}

/// Prepares for a child that shares this memory: its changes to descriptors must be ignored.
#[cfg(target_arch = "x86_64")]
pub(crate) fn guard_against_vfork() {
    OWNER.store(rustix::process::getpid().as_raw_pid(), Relaxed);
}

/// Called in a child that has its own copy of the memory.
pub(crate) fn clear_owner() {
    OWNER.store(0, Relaxed);
}

fn is_own() -> bool {
    let owner = OWNER.load(Relaxed);
    owner == 0 || owner == rustix::process::getpid().as_raw_pid()
}

/// Adds up the bytes of a connection that is about to be closed, or to end with the program.
pub(crate) fn count(fd: RawFd, at_exit: bool) {
    let (Some(at), true) = (index(fd), account::is_enabled() && is_own()) else {
        return;
    };
    // SAFETY: the program has not closed it yet.
    let own = unsafe { BorrowedFd::borrow_raw(fd) };
    match KNOWN[at].load(Relaxed) {
        0 => {}
        PLAIN | PLAIN_POLLED => match REASONS[at].load(Relaxed) {
            IS_COPY => {}
            code => {
                let reason = Reason::from_code(code);
                account::add(own, &Usage::default(), reason, &BASELINES[at]);
            }
        },
        _ => {
            if let Some(found) = enter_read(fd)
                && (found.has_one_descriptor() || (at_exit && is_first(fd, &found)))
            {
                account::add(own, &found.usage(), found.reason(), &BASELINES[at]);
            }
        }
    }
}

/// True if no lower descriptor is the same connection.
fn is_first(fd: RawFd, found: &ConnectionRef) -> bool {
    all_connections()
        .take_while(|(other, _)| *other < fd)
        .all(|(_, other)| !other.is_same(found))
}

/// Called in a forked child: what was moved before is its parent's.
pub(crate) fn count_from_here() {
    account::start_again();
    for fd in listed_descriptors() {
        // SAFETY: the program's; if it has closed it unnoticed, the call fails.
        let own = unsafe { BorrowedFd::borrow_raw(fd) };
        let usage = enter_read(fd).map_or_else(Usage::default, |found| found.usage());
        if let Some(at) = index(fd) {
            account::start_from_here(own, &usage, &BASELINES[at]);
        }
    }
}

/// Stores a number for a descriptor; the new connection already counts the descriptor.
fn put(at: usize, number: u32) {
    HIGHEST.fetch_max(at, Relaxed);
    let before = KNOWN[at].swap(number, SeqCst);
    match (before, number) {
        (0, 1..) => _ = COUNT.fetch_add(1, Relaxed),
        (1.., 0) => _ = COUNT.fetch_sub(1, Relaxed),
        _ => {}
    }
    if let Some(gone) = slot(before) {
        gone.lose_descriptor();
    }
}

/// Makes the descriptor a new connection.
pub(crate) fn track_connection(fd: RawFd, connected_here: bool) {
    let Some(at) = index(fd).filter(|_| is_own()) else {
        return;
    };
    // The slot with the descriptor's number is nearly always free.
    let free = (at..MAX_DESCRIPTORS)
        .chain(0..at)
        .find(|at| SLOTS[*at].claim(connected_here));
    let number = free.and_then(|place| u32::try_from(place + 1).ok());
    clear_baseline(at);
    put(at, number.unwrap_or(0));
}

fn clear_baseline(at: usize) {
    if account::is_enabled() {
        BASELINES[at].clear();
    }
}

/// Makes the descriptor a plain socket.
pub(crate) fn track_plain(fd: RawFd, reason: Reason) {
    track_plain_as(fd, reason.code());
}

fn track_plain_as(fd: RawFd, code: u8) {
    if let Some(at) = index(fd).filter(|_| is_own()) {
        SPINS[at].reset();
        REASONS[at].store(code, Relaxed);
        clear_baseline(at);
        put(at, PLAIN);
    }
}

pub(crate) fn forget(fd: RawFd) {
    if account::is_enabled() {
        count(fd, false);
    }
    if let Some(at) = index(fd).filter(|at| KNOWN[*at].load(Relaxed) != 0 && is_own()) {
        put(at, 0);
    }
}

/// Makes `new` a duplicate of `old`.
pub(crate) fn duplicate(old: RawFd, new: RawFd) {
    let Some(at) = index(new).filter(|_| is_listed(old) || is_listed(new)) else {
        return;
    };
    if !is_own() {
        return;
    }
    if is_listed(old) && !is_known(old) {
        return track_plain_as(new, IS_COPY);
    }
    let copied = enter_read(old).filter(|found| found.gain_descriptor());
    if let Some(from) = index(old).filter(|_| account::is_enabled()) {
        BASELINES[at].copy(&BASELINES[from]);
    }
    put(at, copied.map_or(0, |found| found.number));
}

/// Makes the descriptor of a connection with another node a plain socket, if it still refers to this connection.
pub(crate) fn demote_to_plain(fd: RawFd, found: &ConnectionRef) {
    if let Some(at) = index(fd)
        && is_own()
    {
        REASONS[at].store(Reason::OTHER_NODE.code(), Relaxed);
    }
    if let Some(at) = index(fd)
        && is_own()
        && KNOWN[at]
            .compare_exchange(found.number, PLAIN, SeqCst, Relaxed)
            .is_ok()
    {
        found.lose_descriptor();
    }
}

pub(crate) fn listed_descriptors() -> impl Iterator<Item = RawFd> {
    let fds = 0..=HIGHEST.load(Relaxed);
    let fds = fds.filter_map(|at| RawFd::try_from(at).ok());
    fds.filter(|fd| is_listed(*fd))
}

/// All connections with their descriptors. Allocates nothing, because a fork may hold the allocator's
/// locks.
pub(crate) fn all_connections() -> impl Iterator<Item = (RawFd, ConnectionRef)> {
    listed_descriptors().filter_map(|fd| Some((fd, enter_read(fd)?)))
}

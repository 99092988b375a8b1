//! Which descriptors are connections that the library knows, and which are sockets that it leaves to the
//! kernel but may wait for awake.
//!
//! No call waits for another here, and nothing is held over a fork. A connection has one of a
//! fixed number of places; a call says at the place that it is there ([`Use`]) and then looks
//! whether the descriptor is still that connection's. A place whose last descriptor has gone is
//! given to another connection once no call is there.

use std::ops::Deref;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize};

use crate::connection::Connection;
use crate::counter::{Count, Counter};
use crate::spin::AdaptiveSpin;

/// Descriptors above are not followed.
const MOST: usize = 1 << 16;

/// Instead of a place: a socket whose bytes stay the kernel's, and whose reads may wait.
const PLAIN: u32 = u32::MAX;
/// The same, whose reads do not wait, as far as they did not when it was last asked.
const PLAIN_POLLED: u32 = u32::MAX - 1;

/// The place of each descriptor's connection, plus one, or what it is instead.
static KNOWN: [AtomicU32; MOST] = [const { AtomicU32::new(0) }; MOST];
/// What reads of the plain ones taught.
static SPINS: [AdaptiveSpin; MOST] = [const { AdaptiveSpin::new() }; MOST];
static PLACES: [Connection; MOST] = [const { Connection::none() }; MOST];
/// No descriptor above was ever known.
static HIGHEST: AtomicUsize = AtomicUsize::new(0);
/// How many are known.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The process whose table it is, once it has had a child by `vfork`, which runs in its memory.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// A call that is at a connection.
#[derive(Debug)]
pub(crate) struct Use {
    number: u32,
    connection: &'static Connection,
    counter: &'static Counter,
    before: Count,
    /// Bytes it has moved by TCP.
    pub(crate) moved: u64,
}

impl Use {
    /// What the counter of its way said before it.
    pub(crate) fn before(&self) -> Count {
        self.before
    }
}

impl Deref for Use {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.counter.exit(self.moved);
        self.connection.free_if_gone();
    }
}

fn index(fd: RawFd) -> Option<usize> {
    usize::try_from(fd).ok().filter(|fd| *fd < MOST)
}

fn place(number: u32) -> Option<&'static Connection> {
    PLACES.get((number as usize).checked_sub(1)?)
}

/// True if the descriptor is a connection now.
pub(crate) fn is_known(fd: RawFd) -> bool {
    index(fd).is_some_and(|at| place(KNOWN[at].load(Relaxed)).is_some())
}

/// True if it is that or a plain socket.
pub(crate) fn is_listed(fd: RawFd) -> bool {
    index(fd).is_some_and(|at| KNOWN[at].load(Relaxed) != 0)
}

/// What reads of a plain socket taught, if they wait.
pub(crate) fn plain(fd: RawFd) -> Option<&'static AdaptiveSpin> {
    let at = index(fd).filter(|at| KNOWN[*at].load(Relaxed) == PLAIN)?;
    Some(&SPINS[at])
}

/// Reads of the descriptor are not waited for awake any more.
pub(crate) fn stop_waiting(fd: RawFd) {
    if let Some(found) = find(fd) {
        found.is_polled().store(true, Relaxed);
    } else if let Some(at) = index(fd) {
        let _other = KNOWN[at].compare_exchange(PLAIN, PLAIN_POLLED, Relaxed, Relaxed);
    }
}

/// True while any descriptor is one of them.
pub(crate) fn any_known() -> bool {
    COUNT.load(Relaxed) != 0
}

fn enter(fd: RawFd, way: impl Fn(&'static Connection) -> &'static Counter) -> Option<Use> {
    let at = index(fd)?;
    loop {
        let number = KNOWN[at].load(Acquire);
        let connection = place(number)?;
        let counter = way(connection);
        let before = counter.enter();
        let found = Use {
            number,
            connection,
            counter,
            before,
            moved: 0,
        };
        // Its place is not given away while this call is there, unless that was too late.
        if KNOWN[at].load(SeqCst) == number {
            return Some(found);
        }
    }
}

/// The connection of a descriptor, for a call that may read it.
pub(crate) fn find(fd: RawFd) -> Option<Use> {
    enter(fd, Connection::reads)
}

/// The same for one that writes by TCP: not while another thread copies into the ring, since no
/// byte may come between a record and its marker.
pub(crate) fn writing(fd: RawFd) -> Option<Use> {
    loop {
        let found = enter(fd, Connection::writes)?;
        if !found.before.is_taken() {
            return Some(found);
        }
        drop(found);
        std::thread::yield_now();
    }
}

/// A child that runs in this memory comes: what it does to its descriptors is not ours.
pub(crate) fn expect_guest() {
    OWNER.store(rustix::process::getpid().as_raw_pid(), Relaxed);
}

/// In a child that has a copy of it.
pub(crate) fn expect_none() {
    OWNER.store(0, Relaxed);
}

fn is_own() -> bool {
    let owner = OWNER.load(Relaxed);
    owner == 0 || owner == rustix::process::getpid().as_raw_pid()
}

/// Puts a number into the table, whose connection counts the descriptor already.
fn put(at: usize, number: u32) {
    HIGHEST.fetch_max(at, Relaxed);
    let before = KNOWN[at].swap(number, SeqCst);
    match (before, number) {
        (0, 1..) => _ = COUNT.fetch_add(1, Relaxed),
        (1.., 0) => _ = COUNT.fetch_sub(1, Relaxed),
        _ => {}
    }
    if let Some(gone) = place(before) {
        gone.lose_descriptor();
    }
}

/// From now on the descriptor is a new connection.
pub(crate) fn follow(fd: RawFd, connected_here: bool) {
    let Some(at) = index(fd).filter(|_| is_own()) else {
        return;
    };
    // Its own place is nearly always free.
    let free = (at..MOST)
        .chain(0..at)
        .find(|at| PLACES[*at].claim(connected_here));
    let number = free.and_then(|place| u32::try_from(place + 1).ok());
    put(at, number.unwrap_or(0));
}

/// From now on the descriptor is a plain socket.
pub(crate) fn watch(fd: RawFd) {
    if let Some(at) = index(fd).filter(|_| is_own()) {
        SPINS[at].reset();
        put(at, PLAIN);
    }
}

/// From now on it is none.
pub(crate) fn forget(fd: RawFd) {
    if let Some(at) = index(fd).filter(|at| KNOWN[*at].load(Relaxed) != 0 && is_own()) {
        put(at, 0);
    }
}

/// From now on `new` is what `old` is.
pub(crate) fn copy(old: RawFd, new: RawFd) {
    let Some(at) = index(new).filter(|_| is_listed(old) || is_listed(new)) else {
        return;
    };
    if !is_own() {
        return;
    }
    if is_listed(old) && !is_known(old) {
        return watch(new);
    }
    let copied = find(old).filter(|found| found.gain_descriptor());
    put(at, copied.map_or(0, |found| found.number));
}

/// The descriptor is a plain socket from now on, if it is still this connection.
pub(crate) fn give_up(fd: RawFd, found: &Use) {
    if let Some(at) = index(fd)
        && is_own()
        && KNOWN[at]
            .compare_exchange(found.number, PLAIN, SeqCst, Relaxed)
            .is_ok()
    {
        found.lose_descriptor();
    }
}

/// All descriptors that are connections or plain sockets.
pub(crate) fn listed() -> impl Iterator<Item = RawFd> {
    let fds = 0..=HIGHEST.load(Relaxed);
    let fds = fds.filter_map(|at| RawFd::try_from(at).ok());
    fds.filter(|fd| is_listed(*fd))
}

/// All connections, with their descriptors.
pub(crate) fn all() -> Vec<(RawFd, Use)> {
    listed().filter_map(|fd| Some((fd, find(fd)?))).collect()
}

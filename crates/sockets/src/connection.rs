//! One connection of a program: counted while it uses only TCP, negotiated after large writes,
//! and then read and written through both TCP and shared memory.

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};
use rustix::thread::futex;

use crate::account::{Reason, Usage};
use crate::area::RING;
use crate::counter::Counter;
use crate::directory::{Agreement, join_or_create};
use crate::kernel::{self, Socket};
use crate::mux::{Direction, MARKER, Stream, Unread, min_shm_bytes};
use crate::pointer::{Access, is_accessible};
use crate::signals::{Handled, SignalsBlocked};
use crate::spin::AdaptiveSpin;

/// Bytes that a connection must move before its ends look for each other; less would not repay
/// the cost.
const MIN_BYTES_BEFORE_SEARCH: u64 = 128 << 10;
/// How long a writer waits for room in the ring before it continues over TCP.
const MAX_ROOM_WAIT: Duration = Duration::from_millis(4);

/// How long a writer waits for a reader that is taking bytes from TCP.
const MAX_READER_WAIT: Duration = Duration::from_micros(20);

// States of a slot in the table: free, in use, or its last descriptor was closed.
const FREE: u32 = 0;
const OPEN: u32 = 1;
const GONE: u32 = 2;
const FREEING: u32 = 3;

/// The state of a connection, shared by descriptors that are duplicates. The slot is reused for
/// later connections, so calls access it only through a
/// [`ConnectionRef`](crate::table::ConnectionRef).
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Connection {
    /// Claimed: all reads go through the direction.
    reads: Counter,
    /// Claimed: one writer copies into the ring.
    writes: Counter,
    /// Number of bytes read at which this end next looks for the peer's file.
    search_at: AtomicU64,
    state: AtomicU32,
    /// The program uses non-blocking reads.
    is_polled: AtomicBool,
    spin: AdaptiveSpin,
    descriptors: AtomicU32,
    /// Bytes that the kernel counts as sent before the first data byte.
    base: AtomicU64,
    agreement: AtomicPtr<Agreement>,
    /// A thread is looking for the peer, or the last search has been made.
    is_searching: AtomicBool,
    /// The peer is known to use the library.
    mutual: AtomicBool,
    /// The connection uses only TCP from now on.
    tcp_only: AtomicBool,
    /// Error to return from the next read.
    deferred_error: AtomicI32,
    /// `SO_RCVLOWAT` to set once no records are left: readers wait for their markers, which are shorter.
    low_water: AtomicI32,
    /// The process that opened the connection.
    opener: AtomicI32,
    /// Code of the first [`Reason`] to use only TCP, or of the last one to do so for a while.
    reason: AtomicU8,
    /// Bytes of large writes that went over TCP although the ends share memory.
    without_room: AtomicU64,
}

impl Connection {
    /// Creates a free slot.
    pub(crate) const fn none() -> Connection {
        Connection {
            reads: Counter::new(),
            writes: Counter::new(),
            search_at: AtomicU64::new(0),
            state: AtomicU32::new(FREE),
            is_polled: AtomicBool::new(false),
            spin: AdaptiveSpin::new(),
            descriptors: AtomicU32::new(0),
            base: AtomicU64::new(0),
            agreement: AtomicPtr::new(ptr::null_mut()),
            is_searching: AtomicBool::new(false),
            mutual: AtomicBool::new(false),
            tcp_only: AtomicBool::new(false),
            deferred_error: AtomicI32::new(0),
            low_water: AtomicI32::new(0),
            opener: AtomicI32::new(0),
            reason: AtomicU8::new(0),
            without_room: AtomicU64::new(0),
        }
    }

    /// Claims a free slot for a connection with one descriptor; false if it is not free.
    pub(crate) fn claim(&self, connected_here: bool) -> bool {
        let state = &self.state;
        if state.compare_exchange(FREE, OPEN, SeqCst, Relaxed).is_err() {
            return false;
        }
        self.search_at.store(MIN_BYTES_BEFORE_SEARCH, Relaxed);
        self.base.store(u64::from(connected_here), Relaxed);
        for flag in [&self.is_searching, &self.mutual, &self.is_polled] {
            flag.store(false, Relaxed);
        }
        self.spin.reset();
        let is_supported = cfg!(target_arch = "x86_64");
        self.tcp_only.store(!is_supported, Relaxed);
        let reason = match is_supported {
            true => Reason::UNKNOWN,
            false => Reason::PROCESSOR,
        };
        self.reason.store(reason.code(), Relaxed);
        self.without_room.store(0, Relaxed);
        self.deferred_error.store(0, Relaxed);
        self.low_water.store(0, Relaxed);
        self.opener.store(own_pid(), Relaxed);
        self.descriptors.store(1, SeqCst);
        true
    }

    /// Adds a descriptor; false if the last one was just closed.
    pub(crate) fn gain_descriptor(&self) -> bool {
        let more = |now: u32| now.checked_add(1).filter(|_| now > 0);
        let gained = self.descriptors.fetch_update(SeqCst, SeqCst, more);
        gained.is_ok()
    }

    /// Removes a descriptor; the last one closes the connection.
    pub(crate) fn lose_descriptor(&self) {
        if self.descriptors.fetch_sub(1, SeqCst) == 1 {
            self.state.swap(GONE, SeqCst);
            self.free_if_gone();
        }
    }

    /// Frees the slot if the last descriptor is closed and no call is in progress.
    pub(crate) fn free_if_gone(&self) {
        let state = &self.state;
        if state.load(SeqCst) != GONE
            || !self.reads.now().is_idle()
            || !self.writes.now().is_idle()
            || state
                .compare_exchange(GONE, FREEING, SeqCst, Relaxed)
                .is_err()
        {
            return;
        }
        let agreement = self.agreement.swap(ptr::null_mut(), AcqRel);
        if !agreement.is_null() {
            // SAFETY: `agree` created it from a box. No call uses this slot, and none will: no
            // descriptor refers to it any more, so a call that counts itself in now leaves again
            // before it accesses anything.
            drop(unsafe { Box::from_raw(agreement) });
        }
        self.reads.reset();
        self.writes.reset();
        state.store(FREE, SeqCst);
    }

    pub(crate) fn reads(&self) -> &Counter {
        &self.reads
    }

    pub(crate) fn writes(&self) -> &Counter {
        &self.writes
    }

    /// Spin statistics of its reads.
    pub(crate) fn spin(&self) -> &AdaptiveSpin {
        &self.spin
    }

    /// True if the program is known to use non-blocking reads.
    pub(crate) fn is_polled(&self) -> &AtomicBool {
        &self.is_polled
    }

    fn socket<'a>(&self, fd: BorrowedFd<'a>, flags: SendFlags) -> Socket<'a> {
        Socket {
            fd,
            base: self.base.load(Relaxed),
            flags,
            written: self.writes.now().bytes(),
            is_foreign: false,
            is_held: true,
        }
    }

    fn agreement(&self) -> Option<&Agreement> {
        // SAFETY: null, or created from a box by `agree` and freed by `free_if_gone` only when no
        // call is in progress; the caller is one.
        unsafe { self.agreement.load(Acquire).as_ref() }
    }

    /// Looks for the peer; with `make`, creates the file for it and does not look again.
    fn agree(&self, fd: BorrowedFd<'_>, make: bool) -> Option<&Agreement> {
        if self.agreement().is_none() && !self.is_searching.swap(true, AcqRel) {
            match join_or_create(fd, make) {
                Some(found) => self
                    .agreement
                    .store(Box::into_raw(Box::new(found)), Release),
                None => self.is_searching.store(make, Release),
            }
        }
        self.agreement()
    }

    /// The direction that this end reads, if the ends share memory.
    fn incoming(&self) -> Option<Direction<'_>> {
        let agreement = self.agreement()?;
        Some(Direction::new(&agreement.area, 1 - agreement.index))
    }

    /// True if the descriptor is still the socket of the agreement.
    pub(crate) fn is_of(&self, fd: BorrowedFd<'_>) -> bool {
        let agreed = self.agreement().map(|agreement| agreement.cookie);
        agreed.is_some() && sockopt::socket_cookie(fd).ok() == agreed
    }

    fn is_mutual(&self, fd: BorrowedFd<'_>, agreement: &Agreement) -> bool {
        let known = self.mutual.load(Acquire);
        known || {
            let socket = self.socket(fd, SendFlags::empty());
            let mutual = socket.is_established() && agreement.is_mutual();
            self.mutual.store(mutual, Release);
            mutual
        }
    }

    /// Makes the connection use only TCP from now on.
    ///
    /// # Errors
    /// [`Unread`]: data has arrived that can only be read through this library.
    pub(crate) fn fall_back_to_tcp(&self, reason: Reason) -> Result<(), Unread> {
        if !self.tcp_only.swap(true, AcqRel) {
            self.reason.store(reason.code(), Relaxed);
        }
        let Some(agreement) = self.agreement() else {
            return Ok(());
        };
        let _theirs = Direction::new(&agreement.area, agreement.index).close();
        Direction::new(&agreement.area, 1 - agreement.index).close()
    }

    /// Sets a low-water mark, at once or when all records have been read.
    pub(crate) fn set_low_water(&self, fd: BorrowedFd<'_>, bytes: i32) -> Result<(), Errno> {
        match self.fall_back_to_tcp(Reason::of_call("setsockopt")) {
            Ok(()) => kernel::set_low_water(fd, bytes),
            Err(Unread) => {
                self.low_water.store(bytes, Release);
                Ok(())
            }
        }
    }

    /// Returns a low-water mark that is to be set later, and forgets it.
    pub(crate) fn take_low_water(&self) -> Option<i32> {
        Some(self.low_water.swap(0, AcqRel)).filter(|bytes| *bytes != 0)
    }

    /// Bytes through shared memory so far.
    pub(crate) fn usage(&self) -> Usage {
        let Some(agreement) = self.agreement() else {
            return Usage::default();
        };
        let direction = |index| Direction::new(&agreement.area, index).totals();
        let (outgoing, incoming) = (direction(agreement.index), direction(1 - agreement.index));
        Usage {
            sent_by_ring: outgoing.published_bytes,
            received_by_ring: incoming.read_bytes,
            markers_sent: outgoing.published,
            markers_received: incoming.read,
            without_room: self.without_room.load(Relaxed),
        }
    }

    /// Why bytes of this connection went over TCP.
    pub(crate) fn reason(&self) -> Reason {
        let usage = self.usage();
        if usage.sent_by_ring + usage.received_by_ring > 0 {
            return Reason::SMALL_OR_EARLY;
        }
        let stored = Reason::from_code(self.reason.load(Relaxed));
        let is_mutual = self.mutual.load(Relaxed);
        if self.tcp_only.load(Relaxed) || (is_mutual && stored != Reason::UNKNOWN) {
            return stored;
        }
        let was_searched = self.search_at.load(Relaxed) != MIN_BYTES_BEFORE_SEARCH;
        match self.is_searching.load(Relaxed) || was_searched {
            true if is_mutual => Reason::SMALL_OR_EARLY,
            true => Reason::NO_PEER,
            false => Reason::FEW_BYTES,
        }
    }

    /// Why the connection uses only TCP.
    pub(crate) fn reason_to_leave(&self) -> Reason {
        Reason::from_code(self.reason.load(Relaxed))
    }

    /// Counts bytes of a large write that went over TCP.
    pub(crate) fn add_without_room(&self, bytes: u64) {
        let is_shared = self
            .agreement()
            .is_some_and(|agreement| Direction::new(&agreement.area, agreement.index).was_opened());
        if is_shared && !self.tcp_only.load(Relaxed) {
            self.without_room.fetch_add(bytes, Relaxed);
        }
    }

    /// True if there is only one descriptor.
    pub(crate) fn has_one_descriptor(&self) -> bool {
        self.descriptors.load(Relaxed) == 1
    }

    /// True if this process opened the connection, instead of inheriting it.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.opener.load(Relaxed) == own_pid()
    }

    /// True if data has arrived that only this library can read.
    pub(crate) fn has_unread(&self) -> bool {
        self.incoming()
            .is_some_and(|direction| direction.unread() > 0)
    }

    /// True if a read with `MSG_WAITALL` ends here, before an urgent byte.
    pub(crate) fn is_at_mark(&self, fd: BorrowedFd<'_>) -> bool {
        self.incoming()
            .is_some_and(|direction| direction.is_closed())
            && kernel::is_at_mark(fd)
    }

    /// True if the kernel alone has what can be read, from now on.
    pub(crate) fn has_left_shared_memory(&self) -> bool {
        self.tcp_only.load(Acquire) && !self.has_unread() && self.deferred_error.load(Relaxed) == 0
    }

    /// True if, after `read` bytes over TCP, [`search_peer`](Self::search_peer) should be called.
    pub(crate) fn is_search_due(&self, read: u64) -> bool {
        read >= self.search_at.load(Relaxed)
    }

    /// Called after a counted read: enables records if the peer uses the library, too. False if
    /// it never will.
    pub(crate) fn search_peer(&self, fd: BorrowedFd<'_>) -> bool {
        if self.tcp_only.load(Relaxed) || !kernel::may_be_near(fd) {
            self.search_at.store(u64::MAX, Relaxed);
            return self.tcp_only.load(Relaxed);
        }
        let read = self.reads.now().bytes();
        self.search_at.store(2 * read, Relaxed);
        if let Some(agreement) = self.agree(fd, false) {
            self.open(fd, agreement);
        }
        true
    }

    /// Enables records, if that is safe.
    fn open(&self, fd: BorrowedFd<'_>, agreement: &Agreement) {
        if self.reads.now().is_claimed() || !self.is_of(fd) {
            return;
        }
        let socket = self.socket(fd, SendFlags::empty());
        // Confirms, if the peer waits for that. Records may arrive before the peer confirms to us:
        // only the socket connected to this one could publish them.
        let _later = self.is_mutual(fd, agreement);
        let direction = Direction::new(&agreement.area, 1 - agreement.index);
        // Concurrent reads wait for the lock and then see the outcome.
        let Ok(_locked) = direction.lock(me(), is_alive) else {
            return;
        };
        // Do not take this path while another thread reads: it would not know where a marker is.
        if !self.reads.claim() {
            self.search_at.store(0, Relaxed);
            return;
        }
        match socket.position() {
            Some(position) if position == self.reads.now().bytes() => {
                match agreement.allocate_incoming() {
                    true => direction.open(position),
                    // Tried again after twice as many bytes.
                    false => {
                        self.reason.store(Reason::NO_MEMORY.code(), Relaxed);
                        self.reads.unclaim();
                    }
                }
            }
            // Bytes arrived meanwhile, or the connection is closing: try later, or never.
            None => {
                self.search_at.store(0, Relaxed);
                self.reads.unclaim();
            }
            // The connection was read without this library.
            Some(_) => {
                let _none_can_have_come = self.fall_back_to_tcp(Reason::OTHER_READER);
                self.reads.unclaim();
            }
        }
    }

    /// Reads available data, without waiting.
    ///
    /// # Errors
    /// The errors of [`Direction::read`].
    pub(crate) fn receive(
        &self,
        fd: BorrowedFd<'_>,
        to: &mut [u8],
        peek: bool,
    ) -> Result<usize, Errno> {
        let direction = self.incoming().ok_or(Errno::IO)?;
        let unread = direction.unread();
        if unread > 0 && !self.is_of(fd) {
            // The number is another file now.
            return Err(Errno::NOTSOCK);
        }
        let most = usize::try_from(unread).unwrap_or(usize::MAX).min(to.len());
        if most > 0 && !is_accessible(to.as_ptr().cast(), most, Access::Write) {
            return Err(Errno::FAULT);
        }
        let locked = direction.lock(me(), is_alive)?;
        if !self.reads.now().is_claimed() {
            // Opening was in progress and failed.
            let count = self.socket(fd, SendFlags::empty()).receive(to, peek)?;
            self.reads.add(if peek { 0 } else { count as u64 });
            return Ok(count);
        }
        let later = self.deferred_error.swap(0, AcqRel);
        if later != 0 {
            return Err(Errno::from_raw_os_error(later));
        }
        let mut socket = self.socket(fd, SendFlags::empty());
        let mut later = None;
        let found = match peek {
            true => direction.peek(to, &mut socket),
            false => direction.read(to, &mut socket, &mut later),
        };
        if let Some(error) = later {
            self.deferred_error.store(error.raw_os_error(), Release);
        }
        if self.low_water.load(Relaxed) != 0 && direction.unread() == 0 {
            let _as_before = kernel::set_low_water(fd, self.low_water.swap(0, AcqRel));
        }
        drop(locked);
        // Pairs with the fence in `wait_for_room`.
        std::sync::atomic::fence(SeqCst);
        if direction.waiting().load(Relaxed) != 0 && direction.waiting().swap(0, AcqRel) != 0 {
            let _ = futex::wake(
                direction.head(),
                futex::Flags::empty(),
                i32::MAX.unsigned_abs(),
            );
        }
        found
    }

    /// The value for FIONREAD if all data went over TCP.
    pub(crate) fn readable(&self, queued: u64) -> u64 {
        match self.incoming() {
            Some(direction) if direction.unread() > 0 => direction.readable(queued),
            _ => queued,
        }
    }

    /// Sends as much as possible through shared memory; the rest goes over TCP. Waits briefly for
    /// room if `wait` returns true; it is called only when needed. If the caller is not the only
    /// writer, everything goes over TCP. `EINTR` in the result: a signal ended the wait for room.
    ///
    /// # Errors
    /// The kernel's: the connection has ended.
    pub(crate) fn send(
        &self,
        fd: BorrowedFd<'_>,
        from: &[u8],
        flags: SendFlags,
        wait: impl Fn() -> bool,
    ) -> Result<(usize, Option<Errno>), Errno> {
        const NOTHING: (usize, Option<Errno>) = (0, None);
        if from.len() < min_shm_bytes() || self.tcp_only.load(Acquire) {
            return Ok(NOTHING);
        }
        if self.agreement().is_none()
            && self.writes.now().bytes().saturating_add(from.len() as u64) < MIN_BYTES_BEFORE_SEARCH
        {
            return Ok(NOTHING);
        }
        let Some(agreement) = self.agree(fd, true) else {
            return Ok(NOTHING);
        };
        let direction = Direction::new(&agreement.area, agreement.index);
        if !self.is_of(fd) || direction.is_closed() || !self.is_mutual(fd, agreement) {
            return Ok(NOTHING);
        }
        let mut done = 0;
        // A handler that writes to this connection would wait for its own thread.
        let signals = SignalsBlocked::new();
        while from.len() - done >= min_shm_bytes() {
            let piece = &from[done..from.len().min(done + RING)];
            if !is_accessible(piece.as_ptr().cast(), piece.len(), Access::Read) {
                // The kernel answers, as it does for TCP.
                break;
            }
            wait_while_taking(&direction);
            match self.send_some(fd, &direction, piece, flags) {
                Ok(Some(count)) => done += count,
                Ok(None) if direction.room() < min_shm_bytes() && wait() => {
                    let has_room = self.wait_for_room(&direction);
                    match signals.deliver() {
                        Some(Handled::Restarts) if done == 0 => {}
                        Some(_) => return Ok((done, Some(Errno::INTR))),
                        None if has_room => {}
                        None => break,
                    }
                }
                Err(error) if done == 0 => return Err(error),
                _ => break,
            }
        }
        Ok((done, None))
    }

    fn send_some(
        &self,
        fd: BorrowedFd<'_>,
        direction: &Direction<'_>,
        from: &[u8],
        flags: SendFlags,
    ) -> Result<Option<usize>, Errno> {
        if !self.writes.claim() {
            return Ok(None);
        }
        let mut socket = self.socket(fd, flags);
        let sent = direction.write(from, &mut socket);
        if socket.is_foreign {
            let _theirs_stay = self.fall_back_to_tcp(Reason::OTHER_WRITER);
        }
        if let Ok(Some(_)) = sent {
            self.writes.add(MARKER as u64);
        }
        self.writes.unclaim();
        sent
    }

    /// Waits for the reader to make room; false if it does not do so soon.
    fn wait_for_room(&self, direction: &Direction<'_>) -> bool {
        let head = direction.head();
        let seen = head.load(Acquire);
        direction.waiting().store(1, Release);
        std::sync::atomic::fence(SeqCst);
        if direction.room() >= min_shm_bytes() {
            return true;
        }
        let most = Timespec::try_from(MAX_ROOM_WAIT).ok();
        let _ = futex::wait(head, futex::Flags::empty(), seen, most.as_ref());
        direction.room() >= min_shm_bytes()
    }
}

/// Waits briefly for a reader that is taking bytes from TCP. Writing over TCP meanwhile would
/// give the reader more to take, and the next write would miss its chance as well.
fn wait_while_taking(direction: &Direction<'_>) {
    if !direction.is_taking() {
        return;
    }
    let end = Instant::now() + MAX_READER_WAIT;
    while direction.is_taking() && Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_pid()
}

fn me() -> u32 {
    let me = rustix::thread::gettid().as_raw_nonzero().get();
    me.unsigned_abs()
}

fn is_alive(owner: u32) -> bool {
    let owner = i32::try_from(owner).ok();
    let owner = owner.and_then(rustix::process::Pid::from_raw);
    owner.is_some_and(|owner| rustix::process::test_kill_process(owner) != Err(Errno::SRCH))
}

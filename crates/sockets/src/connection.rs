//! One connection of a program: counted while it is TCP's alone, agreed on once it has shown large
//! writes, read and written by both ways from then on.

use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};
use rustix::thread::futex;

use crate::counter::Counter;
use crate::directory::{Agreement, meet};
use crate::kernel::{self, Socket};
use crate::spin::AdaptiveSpin;
use crate::switch::{Lane, MARKER, Stream, Unread, least};

/// What a connection must move before its ends look for each other, which small ones would not
/// repay.
const SHOWN: u64 = 128 << 10;
/// How long a writer waits for room in the ring before it goes on by TCP.
const PATIENCE: Duration = Duration::from_millis(4);

/// How long a writer waits for a reader to have taken what TCP has.
const MOST_TAKING: Duration = Duration::from_micros(20);

// What a place in the table is: free, a connection's, or of one whose last descriptor has gone.
const FREE: u32 = 0;
const OPEN: u32 = 1;
const GONE: u32 = 2;
const FREEING: u32 = 3;

/// What the library knows of a connection, shared by the descriptors that are copies of another.
/// The place is used for other connections later: a call may be here only by [`Use`](crate::table::Use).
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Connection {
    /// Taken: all reads go through the lane.
    reads: Counter,
    /// Taken: one writer copies into the ring.
    writes: Counter,
    /// Bytes read after which the other end's file is looked for next.
    look_at: AtomicU64,
    place: AtomicU32,
    /// The program does not wait in its reads.
    is_polled: AtomicBool,
    spin: AdaptiveSpin,
    descriptors: AtomicU32,
    /// What the kernel counts as sent before the first byte.
    base: AtomicU64,
    agreement: AtomicPtr<Agreement>,
    /// A thread looks for the other end, or one did for the last time.
    meeting: AtomicBool,
    /// The other end is known to have the library.
    mutual: AtomicBool,
    /// TCP's for good.
    left: AtomicBool,
    /// What the next read says.
    later: AtomicI32,
}

impl Connection {
    /// A free place.
    pub(crate) const fn none() -> Connection {
        Connection {
            reads: Counter::new(),
            writes: Counter::new(),
            look_at: AtomicU64::new(0),
            place: AtomicU32::new(FREE),
            is_polled: AtomicBool::new(false),
            spin: AdaptiveSpin::new(),
            descriptors: AtomicU32::new(0),
            base: AtomicU64::new(0),
            agreement: AtomicPtr::new(ptr::null_mut()),
            meeting: AtomicBool::new(false),
            mutual: AtomicBool::new(false),
            left: AtomicBool::new(false),
            later: AtomicI32::new(0),
        }
    }

    /// Makes a free place a connection of one descriptor; false if it is not free.
    pub(crate) fn claim(&self, connected_here: bool) -> bool {
        let place = &self.place;
        if place.compare_exchange(FREE, OPEN, SeqCst, Relaxed).is_err() {
            return false;
        }
        self.look_at.store(SHOWN, Relaxed);
        self.base.store(u64::from(connected_here), Relaxed);
        for flag in [&self.meeting, &self.mutual, &self.is_polled] {
            flag.store(false, Relaxed);
        }
        self.spin.reset();
        self.left.store(!cfg!(target_arch = "x86_64"), Relaxed);
        self.later.store(0, Relaxed);
        self.descriptors.store(1, SeqCst);
        true
    }

    /// One more descriptor is this connection; false if its last has just gone.
    pub(crate) fn gain_descriptor(&self) -> bool {
        let more = |now: u32| now.checked_add(1).filter(|_| now > 0);
        let gained = self.descriptors.fetch_update(SeqCst, SeqCst, more);
        gained.is_ok()
    }

    /// A descriptor is it no longer.
    pub(crate) fn lose_descriptor(&self) {
        if self.descriptors.fetch_sub(1, SeqCst) == 1 {
            self.place.swap(GONE, SeqCst);
            self.free_if_gone();
        }
    }

    /// After a call, or the last descriptor: frees the place, if both are over.
    pub(crate) fn free_if_gone(&self) {
        let place = &self.place;
        if place.load(SeqCst) != GONE
            || !self.reads.now().is_idle()
            || !self.writes.now().is_idle()
            || place
                .compare_exchange(GONE, FREEING, SeqCst, Relaxed)
                .is_err()
        {
            return;
        }
        let agreement = self.agreement.swap(ptr::null_mut(), AcqRel);
        if !agreement.is_null() {
            // SAFETY: `agree` made it of a box. No call is at this place, and none comes: no
            // descriptor leads here any more, so whoever counts itself in now goes again before
            // it looks at anything.
            drop(unsafe { Box::from_raw(agreement) });
        }
        self.reads.reset();
        self.writes.reset();
        place.store(FREE, SeqCst);
    }

    pub(crate) fn reads(&self) -> &Counter {
        &self.reads
    }

    pub(crate) fn writes(&self) -> &Counter {
        &self.writes
    }

    /// What its reads taught.
    pub(crate) fn spin(&self) -> &AdaptiveSpin {
        &self.spin
    }

    /// Whether the program is known not to wait in its reads.
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
        // SAFETY: null, or made of a box by `agree` and freed by `free_if_gone` when no call is
        // here; the caller is one.
        unsafe { self.agreement.load(Acquire).as_ref() }
    }

    /// Looks for the other end; if `make`, leaves something for it, and does not look again.
    fn agree(&self, fd: BorrowedFd<'_>, make: bool) -> Option<&Agreement> {
        if self.agreement().is_none() && !self.meeting.swap(true, AcqRel) {
            match meet(fd, make) {
                Some(found) => self
                    .agreement
                    .store(Box::into_raw(Box::new(found)), Release),
                None => self.meeting.store(make, Release),
            }
        }
        self.agreement()
    }

    /// The direction in which this end reads, if it has ever been open for records.
    fn incoming(&self) -> Option<Lane<'_>> {
        let agreement = self.agreement()?;
        Some(Lane::new(&agreement.area, 1 - agreement.index))
    }

    /// True if the descriptor is still the socket of the agreement.
    fn is_of(&self, fd: BorrowedFd<'_>) -> bool {
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

    /// Puts the connection on TCP, for good.
    ///
    /// # Errors
    /// [`Unread`]: what has come already can only be read through this library.
    pub(crate) fn leave(&self) -> Result<(), Unread> {
        self.left.store(true, Release);
        let Some(agreement) = self.agreement() else {
            return Ok(());
        };
        let _theirs = Lane::new(&agreement.area, agreement.index).close();
        Lane::new(&agreement.area, 1 - agreement.index).close()
    }

    /// True if bytes have come that only this library can read.
    pub(crate) fn has_unread(&self) -> bool {
        self.incoming().is_some_and(|lane| lane.unread() > 0)
    }

    /// True if a read by TCP that made it so many bytes is to be told to [`look`](Self::look).
    pub(crate) fn is_to_look(&self, read: u64) -> bool {
        read >= self.look_at.load(Relaxed)
    }

    /// After a read of the library, whose bytes are counted: records may come, if the other end
    /// has the library, too. False if it never will.
    pub(crate) fn look(&self, fd: BorrowedFd<'_>) -> bool {
        if self.left.load(Relaxed) || !kernel::may_be_near(fd) {
            self.look_at.store(u64::MAX, Relaxed);
            return self.left.load(Relaxed);
        }
        let read = self.reads.now().bytes();
        self.look_at.store(2 * read, Relaxed);
        if let Some(agreement) = self.agree(fd, false) {
            self.open(fd, agreement);
        }
        true
    }

    /// Lets records come, if that is sure to be right.
    fn open(&self, fd: BorrowedFd<'_>, agreement: &Agreement) {
        if self.reads.now().is_taken() || !self.is_of(fd) {
            return;
        }
        let socket = self.socket(fd, SendFlags::empty());
        // Confirms, if the other end waits for it. Records may come before it confirms to us: only
        // the socket that is connected to this one could publish them.
        let _later = self.is_mutual(fd, agreement);
        let lane = Lane::new(&agreement.area, 1 - agreement.index);
        // Reads that come meanwhile wait for the lane, and see then how this ended.
        let Ok(_locked) = lane.lock(me(), is_alive) else {
            return;
        };
        // Not while another thread reads: it would not know where a marker stands.
        if !self.reads.take() {
            self.look_at.store(0, Relaxed);
            return;
        }
        match socket.position() {
            Some(position) if position == self.reads.now().bytes() => lane.open(position),
            // Bytes came meanwhile, or the connection is ending: later, or never.
            None => {
                self.look_at.store(0, Relaxed);
                self.reads.give_back();
            }
            // Something else has read of it.
            Some(_) => {
                let _none_can_have_come = self.leave();
                self.reads.give_back();
            }
        }
    }

    /// Reads what has arrived, without waiting.
    ///
    /// # Errors
    /// As [`Lane::read`].
    pub(crate) fn receive(
        &self,
        fd: BorrowedFd<'_>,
        to: &mut [u8],
        peek: bool,
    ) -> Result<usize, Errno> {
        let lane = self.incoming().ok_or(Errno::IO)?;
        if lane.unread() > 0 && !self.is_of(fd) {
            return Err(Errno::BADF);
        }
        let locked = lane.lock(me(), is_alive)?;
        if !self.reads.now().is_taken() {
            // It was about to be opened, and was not.
            let count = self.socket(fd, SendFlags::empty()).receive(to, peek)?;
            self.reads.add(if peek { 0 } else { count as u64 });
            return Ok(count);
        }
        let later = self.later.swap(0, AcqRel);
        if later != 0 {
            return Err(Errno::from_raw_os_error(later));
        }
        let mut socket = self.socket(fd, SendFlags::empty());
        let mut later = None;
        let found = match peek {
            true => lane.peek(to, &mut socket),
            false => lane.read(to, &mut socket, &mut later),
        };
        if let Some(error) = later {
            self.later.store(error.raw_os_error(), Release);
        }
        drop(locked);
        // Pairs with the one in `room_comes`.
        std::sync::atomic::fence(SeqCst);
        if lane.waiting().load(Relaxed) != 0 && lane.waiting().swap(0, AcqRel) != 0 {
            let _ = futex::wake(lane.head(), futex::Flags::empty(), i32::MAX.unsigned_abs());
        }
        found
    }

    /// What FIONREAD would say if all went by TCP.
    pub(crate) fn readable(&self, queued: u64) -> u64 {
        match self.incoming() {
            Some(lane) if lane.unread() > 0 => lane.readable(queued),
            _ => queued,
        }
    }

    /// Offers bytes to memory; how many went there. The rest is to be written to TCP. Waits a
    /// little for room if `wait` says so, which is asked only then. The caller is the only one who writes, or all goes by TCP.
    ///
    /// # Errors
    /// The kernel's: the connection has ended.
    pub(crate) fn send(
        &self,
        fd: BorrowedFd<'_>,
        from: &[u8],
        flags: SendFlags,
        wait: impl Fn() -> bool,
    ) -> Result<usize, Errno> {
        if from.len() < least() || self.left.load(Acquire) {
            return Ok(0);
        }
        if self.agreement().is_none()
            && self.writes.now().bytes().saturating_add(from.len() as u64) < SHOWN
        {
            return Ok(0);
        }
        let Some(agreement) = self.agree(fd, true) else {
            return Ok(0);
        };
        let lane = Lane::new(&agreement.area, agreement.index);
        if !self.is_of(fd) || lane.is_closed() || !self.is_mutual(fd, agreement) {
            return Ok(0);
        }
        let mut done = 0;
        while from.len() - done >= least() {
            wait_while_taking(&lane);
            match self.send_some(fd, &lane, &from[done..], flags) {
                Ok(Some(count)) => done += count,
                Ok(None) if lane.room() < least() && wait() && self.room_comes(&lane) => {}
                Err(error) if done == 0 => return Err(error),
                _ => break,
            }
        }
        Ok(done)
    }

    fn send_some(
        &self,
        fd: BorrowedFd<'_>,
        lane: &Lane<'_>,
        from: &[u8],
        flags: SendFlags,
    ) -> Result<Option<usize>, Errno> {
        if !self.writes.take() {
            return Ok(None);
        }
        let mut socket = self.socket(fd, flags);
        let sent = lane.write(from, &mut socket);
        if socket.is_foreign {
            let _theirs_stay = self.leave();
        }
        if let Ok(Some(_)) = sent {
            self.writes.add(MARKER as u64);
        }
        self.writes.give_back();
        sent
    }

    /// Waits until the reader has made room; false if it does not soon.
    fn room_comes(&self, lane: &Lane<'_>) -> bool {
        let head = lane.head();
        let seen = head.load(Acquire);
        lane.waiting().store(1, Release);
        std::sync::atomic::fence(SeqCst);
        if lane.room() >= least() {
            return true;
        }
        let most = Timespec::try_from(PATIENCE).ok();
        let _ = futex::wait(head, futex::Flags::empty(), seen, most.as_ref());
        lane.room() >= least()
    }
}

/// A reader that takes bytes of TCP is done in a moment; writing to TCP meanwhile would give it more to take, and
/// the next write none to wait for either.
fn wait_while_taking(lane: &Lane<'_>) {
    if !lane.is_taking() {
        return;
    }
    let end = Instant::now() + MOST_TAKING;
    while lane.is_taking() && Instant::now() < end {
        std::hint::spin_loop();
    }
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

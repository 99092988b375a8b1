//! One connection of a program: counted while it is TCP's alone, agreed on once it has shown large
//! writes, read and written by both ways from then on.

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};
use rustix::thread::futex;

use crate::directory::{Agreement, meet};
use crate::kernel::Socket;
use crate::switch::{Lane, MARKER, Unread, least};

/// In `readers`: all go through the lane. In `writers`: one has the connection for itself.
const ALL: u32 = 1 << 31;
/// What a connection must move before its ends look for each other, which small ones would not
/// repay.
const SHOWN: u64 = 128 << 10;
/// How long a writer waits for room in the ring before it goes on by TCP.
const PATIENCE: Duration = Duration::from_millis(4);

/// What the library knows of a connection, shared by the descriptors that are copies of another.
#[derive(Debug)]
pub(crate) struct Connection {
    /// What the kernel counts as sent before the first byte.
    base: u64,
    read: AtomicU64,
    written: AtomicU64,
    /// Bytes read after which the other end's file is looked for next.
    look_at: AtomicU64,
    agreement: OnceLock<Option<Agreement>>,
    open: AtomicBool,
    /// The other end is known to have the library.
    mutual: AtomicBool,
    /// TCP's for good.
    left: AtomicBool,
    readers: AtomicU32,
    writers: AtomicU32,
    /// What the next read says.
    later: AtomicI32,
}

impl Connection {
    pub(crate) fn new(connected_here: bool) -> Connection {
        Connection {
            base: u64::from(connected_here),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            look_at: AtomicU64::new(SHOWN),
            agreement: OnceLock::new(),
            open: AtomicBool::new(false),
            mutual: AtomicBool::new(false),
            left: AtomicBool::new(!cfg!(target_arch = "x86_64")),
            readers: AtomicU32::new(0),
            writers: AtomicU32::new(0),
            later: AtomicI32::new(0),
        }
    }

    fn socket<'a>(&self, fd: BorrowedFd<'a>, flags: SendFlags) -> Socket<'a> {
        Socket {
            fd,
            base: self.base,
            flags,
            written: self.written.load(Relaxed),
            is_foreign: false,
            is_held: true,
        }
    }

    fn agreement(&self) -> Option<&Agreement> {
        self.agreement.get().and_then(Option::as_ref)
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

    /// Says that a plain read begins; false if reads go through [`receive`](Self::receive).
    pub(crate) fn begin_read(&self) -> bool {
        let more = |now: u32| (now & ALL == 0).then_some(now + 1);
        self.readers.fetch_update(AcqRel, Acquire, more).is_ok()
    }

    /// Says what a plain read took. The program reads by this library, so records may come.
    pub(crate) fn end_read(&self, fd: BorrowedFd<'_>, count: usize) {
        let read = self.read.fetch_add(count as u64, AcqRel) + count as u64;
        self.readers.fetch_sub(1, AcqRel);
        if read < self.look_at.load(Relaxed) || self.left.load(Relaxed) {
            return;
        }
        self.look_at.store(2 * read, Relaxed);
        if self.agreement.get().is_none()
            && let Some(found) = meet(fd, false)
        {
            let _ = self.agreement.set(Some(found));
        }
        self.open(fd);
    }

    /// Lets records come, if that is sure to be right.
    fn open(&self, fd: BorrowedFd<'_>) {
        let Some(agreement) = self.agreement() else {
            return;
        };
        if self.open.load(Relaxed) || !self.is_of(fd) {
            return;
        }
        let socket = self.socket(fd, SendFlags::empty());
        // Confirms, if the other end waits for it. Records may come before it confirms to us: only
        // the socket that is connected to this one could publish them.
        let _later = self.is_mutual(fd, agreement);
        // Not while another thread reads: it would not know where a marker stands.
        if self
            .readers
            .compare_exchange(0, ALL, AcqRel, Relaxed)
            .is_err()
        {
            self.look_at.store(self.read.load(Relaxed), Relaxed);
            return;
        }
        match socket.position() {
            Some(position) if position == self.read.load(Acquire) => {
                Lane::new(&agreement.area, 1 - agreement.index).open(position);
                self.open.store(true, Release);
            }
            // Bytes came meanwhile, or the connection is ending: later, or never.
            None => {
                self.readers.store(0, Release);
                self.look_at.store(self.read.load(Relaxed), Relaxed);
            }
            // Something else has read of it.
            Some(_) => {
                let _none_can_have_come = self.leave();
                self.readers.store(0, Release);
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
        let me = rustix::thread::gettid().as_raw_nonzero().get();
        let alive = |owner: u32| {
            let owner = i32::try_from(owner).ok();
            let owner = owner.and_then(rustix::process::Pid::from_raw);
            owner.is_some_and(|owner| rustix::process::test_kill_process(owner) != Err(Errno::SRCH))
        };
        let locked = lane.lock(me.unsigned_abs(), alive)?;
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

    /// Says that a write by TCP begins: no record is published until it ends.
    pub(crate) fn begin_write(&self) {
        let more = |now: u32| (now & ALL == 0).then_some(now + 1);
        while self.writers.fetch_update(AcqRel, Acquire, more).is_err() {
            // Another thread copies into the ring.
            std::thread::yield_now();
        }
    }

    /// Says how many bytes it wrote.
    pub(crate) fn end_write(&self, count: usize) {
        self.written.fetch_add(count as u64, AcqRel);
        self.writers.fetch_sub(1, AcqRel);
    }

    /// Offers bytes to memory; how many went there. The rest is to be written to TCP. Waits a
    /// little for room if `wait`.
    ///
    /// # Errors
    /// The kernel's: the connection has ended.
    pub(crate) fn send(
        &self,
        fd: BorrowedFd<'_>,
        from: &[u8],
        flags: SendFlags,
        wait: bool,
    ) -> Result<usize, Errno> {
        if from.len() < least() || self.left.load(Acquire) {
            return Ok(0);
        }
        if self.agreement.get().is_none()
            && self.written.load(Relaxed).saturating_add(from.len() as u64) < SHOWN
        {
            return Ok(0);
        }
        let found = self.agreement.get_or_init(|| meet(fd, true));
        let Some(agreement) = found else {
            return Ok(0);
        };
        let lane = Lane::new(&agreement.area, agreement.index);
        if !self.is_of(fd) || lane.is_closed() || !self.is_mutual(fd, agreement) {
            return Ok(0);
        }
        let mut done = 0;
        while from.len() - done >= least() {
            match self.send_some(fd, &lane, &from[done..], flags) {
                Ok(Some(count)) => done += count,
                Ok(None) if wait && lane.room() < least() && self.room_comes(&lane) => {}
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
        if self
            .writers
            .compare_exchange(0, ALL, AcqRel, Relaxed)
            .is_err()
        {
            return Ok(None);
        }
        let mut socket = self.socket(fd, flags);
        let sent = lane.write(from, &mut socket);
        if socket.is_foreign {
            let _theirs_stay = self.leave();
        }
        if let Ok(Some(_)) = sent {
            self.written.fetch_add(MARKER as u64, Relaxed);
        }
        self.writers.store(0, Release);
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

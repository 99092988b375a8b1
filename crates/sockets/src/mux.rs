//! One direction of a connection whose ends share memory: which of its bytes go over TCP, which
//! through shared memory, and in what order. `docs/design/sockets.md` §2.
//!
//! TCP remains the byte stream. A *record* states that at position P of the TCP stream there are
//! [`MARKER`] bytes of ours, in place of which N bytes from the ring are to be read. A record is
//! published before its marker is sent, and only while no reader takes bytes without knowing
//! where the next marker is; one compare-and-swap of the *gate* ensures both. The kernel decides
//! whether data can be read or written and whether it has ended: a record without its marker has
//! not arrived.
//!
//! No I/O and no clock: the TCP stream is a [`Stream`], the memory an [`Area`].

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::io::Errno;

use crate::area::{Area, RING};

/// Length of a marker: the connection's nonce.
pub const MARKER: usize = 8;
/// Maximum number of unread records.
const RECORDS: u64 = 64;
/// Minimum write that goes through shared memory: below it a marker costs more than it saves
/// (`docs/design/sockets.md` §8).
pub const MIN_SHM_BYTES: usize = 32 << 10;
/// Maximum bytes per record: the reader copies one while the writer copies the next, and both
/// stay in a cache.
const MAX_RECORD_BYTES: usize = 128 << 10;
/// Overrides [`MIN_SHM_BYTES`], for machines on which another limit was measured to be better.
const MIN_BYTES_VARIABLE: &str = "DIPOLE_SOCKETS_MIN_BYTES";

/// The minimum of this process: [`MIN_SHM_BYTES`], or the value from the environment.
pub fn min_shm_bytes() -> usize {
    static OWN: OnceLock<usize> = OnceLock::new();
    *OWN.get_or_init(|| {
        let given = std::env::var(MIN_BYTES_VARIABLE).ok();
        let given = given.and_then(|text| text.parse::<usize>().ok());
        given.map_or(MIN_SHM_BYTES, |bytes| bytes.clamp(MARKER, MAX_RECORD_BYTES))
    })
}

/// The reader takes bytes from TCP without a limit: no record may be published.
const TAKING: u64 = 1;
/// The reader accepts records.
const OPEN: u64 = 2;
/// Permanent: this direction uses only TCP.
const CLOSED: u64 = 4;
/// The number of published records is stored above the flags.
const SHIFT: u32 = 3;

// Offsets within a direction's control words.
const GATE: usize = 0;
const CONSUMED: usize = 64;
const HEAD: usize = 72;
const TAKEN: usize = 80;
const POSITION: usize = 88;
const LOCK: usize = 96;
const TAIL: usize = 128;
const WAITING: usize = 136;
const LIST: usize = 256;

/// The TCP operations of one end. None of them blocks, except `insist`.
pub trait Stream {
    /// Reads or peeks at bytes; 0 at the end of the stream.
    ///
    /// # Errors
    /// The error of the kernel; `AGAIN` if no bytes are available.
    fn receive(&mut self, to: &mut [u8], peek: bool) -> Result<usize, Errno>;
    /// Sends bytes of a marker.
    ///
    /// # Errors
    /// The error that the kernel returns.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno>;
    /// Number of bytes written to TCP since the connection was made, by anyone; `None` if that
    /// is unknown or nothing more can be written.
    fn sent(&mut self) -> Option<u64>;
    /// True if TCP would accept a marker now.
    fn writable(&mut self) -> bool;
    /// Waits until TCP may accept a marker, in a case that `writable` did not foresee.
    fn insist(&mut self);
    /// True if the next byte is urgent: a read ends before it.
    fn is_at_mark(&mut self) -> bool {
        false
    }
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Direction<'a> {
    area: &'a Area,
    index: usize,
}

/// There are unread records: bytes that only this library can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread;

/// Counts of a direction since it was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub(crate) published: u64,
    pub(crate) published_bytes: u64,
    pub(crate) read: u64,
    pub(crate) read_bytes: u64,
}

impl<'a> Direction<'a> {
    /// Direction 0 or 1 of a connection.
    pub fn new(area: &'a Area, index: usize) -> Direction<'a> {
        assert!(index < 2, "a connection has two directions");
        Direction { area, index }
    }

    fn word(&self, offset: usize) -> &'a AtomicU64 {
        self.area.word(256 + self.index * 2048 + offset)
    }

    /// The reader's position, as a futex for a writer that waits for room in the ring.
    pub fn head(&self) -> &'a AtomicU32 {
        self.area.half_word(256 + self.index * 2048 + HEAD)
    }

    /// Nonzero while the writer waits on `head`.
    pub fn waiting(&self) -> &'a AtomicU64 {
        self.word(WAITING)
    }

    fn nonce(&self) -> [u8; MARKER] {
        self.area.word(8).load(Relaxed).to_le_bytes()
    }

    fn record(&self, number: u64) -> (u64, u64) {
        let at = LIST + usize::try_from(number % RECORDS).unwrap_or(0) * 16;
        let (position, length) = (self.word(at), self.word(at + 8));
        (position.load(Relaxed), length.load(Relaxed))
    }

    /// Lets the reader accept records; `position` bytes of the TCP stream have been read.
    pub fn open(&self, position: u64) {
        self.word(POSITION).store(position, Relaxed);
        self.word(GATE).fetch_or(OPEN, Release);
    }

    /// Number of TCP bytes read, as counted here.
    pub fn position(&self) -> u64 {
        self.word(POSITION).load(Relaxed)
    }

    /// True once no record can follow.
    pub fn is_closed(&self) -> bool {
        self.word(GATE).load(Acquire) & CLOSED != 0
    }

    /// Prevents further records. Either end may call this.
    ///
    /// # Errors
    /// [`Unread`]: the reader has not taken all records.
    pub fn close(&self) -> Result<(), Unread> {
        let gate = self.word(GATE).fetch_or(CLOSED, AcqRel);
        match gate >> SHIFT == self.word(CONSUMED).load(Acquire) {
            true => Ok(()),
            false => Err(Unread),
        }
    }

    /// Number of records that are published and not fully read.
    pub fn unread(&self) -> u64 {
        let published = self.word(GATE).load(Acquire) >> SHIFT;
        published.saturating_sub(self.word(CONSUMED).load(Acquire))
    }

    /// Number of bytes that can be read now, given `queued` bytes in TCP.
    pub fn readable(&self, queued: u64) -> u64 {
        let (mut position, mut left, mut all) = (self.position(), queued, 0);
        let mut taken = self.word(TAKEN).load(Relaxed);
        let consumed = self.word(CONSUMED).load(Acquire);
        for number in consumed..consumed + self.unread().min(RECORDS) {
            let (at, length) = self.record(number);
            let plain = at.saturating_sub(position);
            if left < plain + MARKER as u64 {
                return all + left.min(plain);
            }
            all += plain + length.saturating_sub(taken);
            left -= plain + MARKER as u64;
            (position, taken) = (at + MARKER as u64, 0);
        }
        all + left
    }

    /// Writes bytes to the ring; returns how many were taken after their marker was sent. `None`
    /// means that the bytes must go over TCP. Only one thread may write to the connection
    /// meanwhile.
    ///
    /// # Errors
    /// The error that the kernel returns, from sending the marker: the connection has ended.
    pub fn write(&self, from: &[u8], stream: &mut impl Stream) -> Result<Option<usize>, Errno> {
        let gate = self.word(GATE).load(Acquire);
        let published = gate >> SHIFT;
        let unread = published.saturating_sub(self.word(CONSUMED).load(Acquire));
        if gate & (OPEN | CLOSED | TAKING) != OPEN || unread >= RECORDS {
            return Ok(None);
        }
        let length = self.room().min(from.len()).min(MAX_RECORD_BYTES);
        if length < min_shm_bytes() || !stream.writable() {
            return Ok(None);
        }
        let tail = self.word(TAIL).load(Relaxed);
        self.area.write(self.index, tail, &from[..length]);
        let Some(position) = stream.sent() else {
            return Ok(None);
        };
        let at = LIST + usize::try_from(published % RECORDS).unwrap_or(0) * 16;
        self.word(at).store(position, Relaxed);
        self.word(at + 8).store(length as u64, Relaxed);
        let next = (published + 1) << SHIFT | OPEN;
        let swap = self.word(GATE);
        if swap.compare_exchange(gate, next, AcqRel, Relaxed).is_err() {
            return Ok(None);
        }
        self.word(TAIL).store(tail + length as u64, Relaxed);
        let marker = self.nonce();
        let mut sent = 0;
        while sent < MARKER {
            match stream.send(&marker[sent..]) {
                Ok(count) => sent += count,
                Err(Errno::AGAIN) => stream.insist(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(length))
    }

    /// Records that were published and that were read, and their bytes.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            published: self.word(GATE).load(Acquire) >> SHIFT,
            published_bytes: self.word(TAIL).load(Relaxed),
            read: self.word(CONSUMED).load(Acquire),
            read_bytes: self.word(HEAD).load(Relaxed),
        }
    }

    /// True if the reader accepts, or has accepted, records.
    pub(crate) fn was_opened(&self) -> bool {
        self.word(GATE).load(Acquire) & OPEN != 0
    }

    /// True while the reader takes bytes from TCP, so that no record can be published.
    pub fn is_taking(&self) -> bool {
        self.word(GATE).load(Acquire) & TAKING != 0
    }

    /// Free bytes in the ring.
    pub fn room(&self) -> usize {
        let tail = self.word(TAIL).load(Relaxed);
        let used = tail.saturating_sub(self.word(HEAD).load(Acquire));
        RING.saturating_sub(usize::try_from(used).unwrap_or(RING))
    }

    /// Reads available bytes; a short count means that no more have arrived. An error after some
    /// bytes is stored in `later`.
    ///
    /// # Errors
    /// The error that the kernel returns; `AGAIN` if there is nothing; `IO` if the connection was read or written
    /// without this library.
    pub fn read(
        &self,
        to: &mut [u8],
        stream: &mut impl Stream,
        later: &mut Option<Errno>,
    ) -> Result<usize, Errno> {
        let mut got = 0;
        while got < to.len() {
            // A writer closes the direction before it sends urgent bytes.
            if got > 0 && self.is_closed() && stream.is_at_mark() {
                break;
            }
            match self.read_some(&mut to[got..], stream) {
                Ok((0, _)) => break,
                Ok((count, more)) => {
                    got += count;
                    if !more {
                        break;
                    }
                }
                Err(error) if got == 0 => return Err(error),
                Err(error) => {
                    *later = (error != Errno::AGAIN).then_some(error);
                    break;
                }
            }
        }
        Ok(got)
    }

    /// Reads one piece, from TCP or from the ring; the flag is true if more may follow.
    fn read_some(&self, to: &mut [u8], stream: &mut impl Stream) -> Result<(usize, bool), Errno> {
        let gate = self.word(GATE);
        let position = self.word(POSITION);
        let consumed = self.word(CONSUMED).load(Relaxed);
        loop {
            let seen = gate.load(Acquire);
            if seen >> SHIFT != consumed {
                break;
            }
            if gate
                .compare_exchange(seen, seen | TAKING, AcqRel, Relaxed)
                .is_err()
            {
                continue;
            }
            let received = stream.receive(to, false);
            gate.fetch_and(!TAKING, Release);
            let count = received?;
            position.fetch_add(count as u64, Relaxed);
            return Ok((count, false));
        }
        let (at, length) = self.record(consumed);
        let before = at.checked_sub(position.load(Relaxed)).ok_or(Errno::IO)?;
        if before > 0 {
            let most = usize::try_from(before).unwrap_or(usize::MAX).min(to.len());
            let count = stream.receive(&mut to[..most], false)?;
            position.fetch_add(count as u64, Relaxed);
            return Ok((count, count > 0));
        }
        let taken = self.word(TAKEN).load(Relaxed);
        let left = length.checked_sub(taken).ok_or(Errno::IO)?;
        let count = usize::try_from(left).map_err(|_| Errno::IO)?;
        let count = count.min(to.len()).min(RING);
        let mut marker = [0; MARKER];
        // After part of the record was taken its marker is known to be there; check again before removing it.
        if taken == 0 || count as u64 == left {
            match stream.receive(&mut marker, true)? {
                0 => return Ok((0, false)),
                MARKER if marker == self.nonce() => {}
                MARKER => return Err(Errno::IO),
                _ => return Err(Errno::AGAIN),
            }
        }
        let head = self.word(HEAD);
        let begin = head.load(Relaxed);
        self.area.read(self.index, begin, &mut to[..count]);
        if count as u64 == left {
            // The whole record is taken: remove its marker, which also clears readiness in poll.
            let swallowed = stream.receive(&mut marker, false)?;
            position.fetch_add(swallowed as u64, Relaxed);
            self.word(TAKEN).store(0, Relaxed);
            self.word(CONSUMED).store(consumed + 1, Release);
        } else {
            self.word(TAKEN).store(taken + count as u64, Relaxed);
        }
        head.store(begin + count as u64, Release);
        Ok((count, true))
    }

    /// Reads available bytes without removing them.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
    pub fn peek(&self, to: &mut [u8], stream: &mut impl Stream) -> Result<usize, Errno> {
        loop {
            let gate = self.word(GATE).load(Acquire) >> SHIFT;
            let found = self.peek_until(gate, to, stream);
            // A record published meanwhile may have its marker among the peeked bytes.
            if self.word(GATE).load(Acquire) >> SHIFT == gate {
                return found;
            }
        }
    }

    fn peek_until(
        &self,
        published: u64,
        to: &mut [u8],
        stream: &mut impl Stream,
    ) -> Result<usize, Errno> {
        let consumed = self.word(CONSUMED).load(Relaxed);
        if published == consumed {
            return stream.receive(to, true);
        }
        let (mut position, mut ring) = (self.position(), self.word(HEAD).load(Relaxed));
        let mut taken = self.word(TAKEN).load(Relaxed);
        // Lengths of TCP bytes, and of the ring bytes that follow them.
        let mut pieces = Vec::new();
        let mut wanted = 0;
        let mut of_tcp = 0;
        for number in consumed..published.min(consumed + RECORDS) {
            let (at, length) = self.record(number);
            let plain = at.checked_sub(position).ok_or(Errno::IO)?;
            let plain = usize::try_from(plain).map_err(|_| Errno::IO)?;
            let left = length.checked_sub(taken).ok_or(Errno::IO)?;
            let left = usize::try_from(left).map_err(|_| Errno::IO)?.min(RING);
            (position, taken) = (at + MARKER as u64, 0);
            // Do not peek at more TCP bytes than requested.
            let plain = plain.min(to.len() - wanted);
            pieces.push((plain, left));
            of_tcp += plain + MARKER;
            wanted = (wanted + plain + left).min(to.len());
            if wanted == to.len() {
                break;
            }
        }
        let rest = to.len() - wanted;
        let mut queue = vec![0; of_tcp + rest];
        let arrived = stream.receive(&mut queue, true)?;
        let (mut queue, mut done) = (&queue[..arrived], 0);
        for (plain, left) in pieces {
            let count = plain.min(queue.len());
            to[done..done + count].copy_from_slice(&queue[..count]);
            done += count;
            queue = &queue[count..];
            if done == to.len() {
                return Ok(done);
            }
            if queue.len() < MARKER {
                return if done == 0 && arrived > 0 {
                    Err(Errno::AGAIN)
                } else {
                    Ok(done)
                };
            }
            if queue[..MARKER] != self.nonce() {
                return Err(Errno::IO);
            }
            queue = &queue[MARKER..];
            let count = left.min(to.len() - done);
            self.area
                .read(self.index, ring, &mut to[done..done + count]);
            ring += left as u64;
            done += count;
        }
        let count = queue.len().min(to.len() - done);
        to[done..done + count].copy_from_slice(&queue[..count]);
        Ok(done + count)
    }

    /// Locks the reading side against other threads and processes with this connection. `me` is
    /// the thread id; `alive` is true if another thread still exists.
    ///
    /// # Errors
    /// `AGAIN` in a signal handler that interrupted its own thread's read.
    pub fn lock(&self, me: u32, alive: impl Fn(u32) -> bool) -> Result<Locked<'a>, Errno> {
        let word = self.area.half_word(256 + self.index * 2048 + LOCK);
        let mut tries = 0_u32;
        loop {
            match word.compare_exchange(0, me, Acquire, Relaxed) {
                Ok(_) => return Ok(Locked { word }),
                Err(owner) if owner == me => return Err(Errno::AGAIN),
                Err(owner) => {
                    tries += 1;
                    std::thread::yield_now();
                    if tries.is_multiple_of(1000) && !alive(owner) {
                        // The next owner repeats whatever the dead one left unfinished.
                        let _ = word.compare_exchange(owner, 0, Acquire, Relaxed);
                        self.word(GATE).fetch_and(!TAKING, Release);
                    }
                }
            }
        }
    }
}

/// Releases the reading side when dropped.
#[derive(Debug)]
pub struct Locked<'a> {
    word: &'a AtomicU32,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.word.store(0, Release);
    }
}

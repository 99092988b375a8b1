//! One direction of a connection that both ends have agreed on: which of its bytes go by TCP and
//! which through shared memory, and their order. `docs/design/sockets.md` §2.
//!
//! TCP stays the stream. A *record* says that at position P of the TCP stream stand [`MARKER`]
//! bytes of ours, in whose place so many bytes of the ring are to be read. A record is published
//! before its marker is sent, and only while no reader takes bytes without knowing where the next
//! marker stands; both is decided by one compare-and-swap of the *gate*. Whether something can be
//! read, written or has ended is the kernel's to say: a record without its marker has not arrived.
//!
//! No I/O, no clock: the TCP stream is a [`Stream`], the memory an [`Area`].

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::io::Errno;

use crate::area::{Area, RING};

/// Bytes of a marker: the connection's nonce.
pub const MARKER: usize = 8;
/// Records that may be unread.
const RECORDS: u64 = 64;
/// What goes through memory at least: below it a marker costs more than it saves
/// (`docs/design/sockets.md` §7).
pub const LEAST: usize = 32 << 10;
/// What one record has at most: a reader takes it while the writer copies the next, and both find
/// it in a cache.
const MOST: usize = 128 << 10;
/// Bytes that replace [`LEAST`], on machines where another limit was measured to be better.
const LEAST_VARIABLE: &str = "DIPOLE_SOCKETS_LEAST";

/// The limit of this process: [`LEAST`], or what the environment says instead.
pub fn least() -> usize {
    static OWN: OnceLock<usize> = OnceLock::new();
    *OWN.get_or_init(|| {
        let given = std::env::var(LEAST_VARIABLE).ok();
        let given = given.and_then(|text| text.parse::<usize>().ok());
        given.map_or(LEAST, |bytes| bytes.clamp(MARKER, MOST))
    })
}

/// The reader takes bytes of TCP without a bound: no record may be published.
const TAKING: u64 = 1;
/// The reader knows of records.
const OPEN: u64 = 2;
/// For good: this direction is TCP's alone.
const CLOSED: u64 = 4;
/// How many records were published, above the flags.
const SHIFT: u32 = 3;

// Offsets within a direction's words.
const GATE: usize = 0;
const CONSUMED: usize = 64;
const HEAD: usize = 72;
const TAKEN: usize = 80;
const POSITION: usize = 88;
const LOCK: usize = 96;
const TAIL: usize = 128;
const WAITING: usize = 136;
const LIST: usize = 256;

/// What TCP does for one end. Nothing of it waits, except `insist`.
pub trait Stream {
    /// Takes bytes, or looks at them; 0 after the end.
    ///
    /// # Errors
    /// The kernel's; `AGAIN` if there are none.
    fn receive(&mut self, to: &mut [u8], peek: bool) -> Result<usize, Errno>;
    /// Sends bytes of a marker.
    ///
    /// # Errors
    /// The kernel's.
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno>;
    /// How many bytes were written to TCP since it was connected, whoever wrote them; `None` if
    /// that is not known or nothing more can be written.
    fn sent(&mut self) -> Option<u64>;
    /// True if a marker would be accepted now.
    fn writable(&mut self) -> bool;
    /// Waits until a marker may be accepted, in a case that `writable` did not foresee.
    fn insist(&mut self);
}

/// One direction.
#[derive(Clone, Copy, Debug)]
pub struct Lane<'a> {
    area: &'a Area,
    index: usize,
}

/// A record is unread here: bytes that only this library can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread;

impl<'a> Lane<'a> {
    /// Direction 0 or 1 of a connection.
    pub fn new(area: &'a Area, index: usize) -> Lane<'a> {
        assert!(index < 2, "a connection has two directions");
        Lane { area, index }
    }

    fn word(&self, offset: usize) -> &'a AtomicU64 {
        self.area.word(256 + self.index * 2048 + offset)
    }

    /// How far the reader is, for who waits for room in the ring; a futex.
    pub fn head(&self) -> &'a AtomicU32 {
        self.area.half_word(256 + self.index * 2048 + HEAD)
    }

    /// Whether the writer waits for `head`.
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

    /// The reader begins to take records; `position` bytes of the TCP stream have been read.
    pub fn open(&self, position: u64) {
        self.word(POSITION).store(position, Relaxed);
        self.word(GATE).fetch_or(OPEN, Release);
    }

    /// Bytes of TCP that were read, as counted here.
    pub fn position(&self) -> u64 {
        self.word(POSITION).load(Relaxed)
    }

    /// True once no record can follow.
    pub fn is_closed(&self) -> bool {
        self.word(GATE).load(Acquire) & CLOSED != 0
    }

    /// From now on no record is published. Either end may say so.
    ///
    /// # Errors
    /// [`Unread`]: there are some that the reader has still to take.
    pub fn close(&self) -> Result<(), Unread> {
        let gate = self.word(GATE).fetch_or(CLOSED, AcqRel);
        match gate >> SHIFT == self.word(CONSUMED).load(Acquire) {
            true => Ok(()),
            false => Err(Unread),
        }
    }

    /// Records that are published and not yet read to their end.
    pub fn unread(&self) -> u64 {
        let published = self.word(GATE).load(Acquire) >> SHIFT;
        published.saturating_sub(self.word(CONSUMED).load(Acquire))
    }

    /// What can be read now, if TCP has `queued` bytes.
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

    /// Offers bytes to the ring: how many it took, whose marker was sent. `None`: none, they go
    /// by TCP. Only one thread may write to the connection meanwhile.
    ///
    /// # Errors
    /// The kernel's, about the marker: the connection has ended.
    pub fn write(&self, from: &[u8], stream: &mut impl Stream) -> Result<Option<usize>, Errno> {
        let gate = self.word(GATE).load(Acquire);
        let published = gate >> SHIFT;
        let unread = published.saturating_sub(self.word(CONSUMED).load(Acquire));
        if gate & (OPEN | CLOSED | TAKING) != OPEN || unread >= RECORDS {
            return Ok(None);
        }
        let length = self.room().min(from.len()).min(MOST);
        if length < least() || !stream.writable() {
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

    /// True while the reader takes bytes of TCP, and no record can be published.
    pub fn is_taking(&self) -> bool {
        self.word(GATE).load(Acquire) & TAKING != 0
    }

    /// Bytes that the ring has room for.
    pub fn room(&self) -> usize {
        let tail = self.word(TAIL).load(Relaxed);
        let used = tail.saturating_sub(self.word(HEAD).load(Acquire));
        RING.saturating_sub(usize::try_from(used).unwrap_or(RING))
    }

    /// Reads what has arrived: a short count means that no more has. What an error that came
    /// after bytes said is left in `later`.
    ///
    /// # Errors
    /// The kernel's; `AGAIN` if there is nothing; `IO` if something else than this library read or
    /// wrote the connection.
    pub fn read(
        &self,
        to: &mut [u8],
        stream: &mut impl Stream,
        later: &mut Option<Errno>,
    ) -> Result<usize, Errno> {
        let mut got = 0;
        while got < to.len() {
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

    /// One piece, by TCP or of the ring, and whether more may follow.
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
        // It has arrived if a part of the record was taken. Before it goes it is looked at again.
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
            // Its last bytes are taken: the marker goes, and with it what poll says of them.
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

    /// Looks at what has arrived and leaves it there.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn peek(&self, to: &mut [u8], stream: &mut impl Stream) -> Result<usize, Errno> {
        loop {
            let gate = self.word(GATE).load(Acquire) >> SHIFT;
            let found = self.peek_until(gate, to, stream);
            // A record published meanwhile could have had its marker among the bytes.
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
        // Lengths of what goes by TCP and of what follows it in the ring.
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
            // Bytes of TCP beyond what is wanted are not looked at.
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

    /// The right to read, among threads and processes that have the connection; `me` is a thread.
    /// `alive` says whether another still lives.
    ///
    /// # Errors
    /// `AGAIN` to a handler of a signal that interrupts its own thread's reading.
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
                        // Nothing is half done that its successor would not do again.
                        let _ = word.compare_exchange(owner, 0, Acquire, Relaxed);
                        self.word(GATE).fetch_and(!TAKING, Release);
                    }
                }
            }
        }
    }
}

/// Gives the right to read back.
#[derive(Debug)]
pub struct Locked<'a> {
    word: &'a AtomicU32,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.word.store(0, Release);
    }
}

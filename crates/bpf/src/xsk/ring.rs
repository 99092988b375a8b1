//! The rings of an AF_XDP socket, and the memory whose pieces travel in them.
//!
//! The kernel is at the other end of each ring. What it writes is checked all the same: no
//! position makes us read outside a ring, no entry is believed to lie in the memory.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use dipole_link::segment::{MapFlags, ProtFlags, Segment};
use rustix::net::xdp::{XdpMmapOffsets, XdpRingOffset};

/// Memory shared with the kernel alone.
#[derive(Debug)]
pub(super) struct Memory(Segment);

impl Memory {
    pub(super) fn new(length: usize) -> io::Result<Memory> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        Segment::anonymous(length, flags).map(Memory)
    }

    pub(super) fn address(&self) -> u64 {
        self.0.at(0, 0).as_ptr().addr() as u64
    }

    /// Bytes of it; the caller says by its borrow that nobody writes them.
    ///
    /// # Panics
    /// When they are not inside.
    #[inline]
    pub(super) fn bytes(&self, at: usize, length: usize) -> &[u8] {
        let start = self.0.at(at, length);
        // SAFETY: inside the mapping (checked by `at`), initialised by the kernel (zeros).
        // The kernel writes to a piece only while it has been given away, and whoever gave
        // it away held the owner by an exclusive borrow that ended before it came back.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), length) }
    }

    /// The same to write.
    ///
    /// # Panics
    /// When they are not inside.
    #[inline]
    pub(super) fn bytes_mut(&mut self, at: usize, length: usize) -> &mut [u8] {
        let start = self.0.at(at, length);
        // SAFETY: as in `bytes`, and the exclusive borrow keeps other users away.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), length) }
    }
}

/// One of the four rings.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    /// Empty pieces for what comes.
    Fill,
    /// Pieces of frames that have been sent.
    Completion,
    /// What has come.
    Receive,
    /// What is to be sent.
    Transmit,
}

/// A piece of the memory, as the kernel's `struct xdp_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) at: u64,
    pub(super) length: u32,
    pub(super) options: u32,
}

/// One end of a ring whose entries are `T`: [`Piece`] for receiving and transmitting,
/// `u64` (where the piece lies) for the other two.
#[derive(Debug)]
pub(super) struct Ring<T> {
    mapping: Segment,
    producer: usize,
    consumer: usize,
    flags: usize,
    entries: usize,
    count: u32,
    _kind: std::marker::PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps a ring of so many entries, a power of two, as the kernel lays it out.
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        which: Which,
        offsets: &XdpMmapOffsets,
        count: u32,
    ) -> io::Result<Ring<T>> {
        assert!(count.is_power_of_two());
        let (layout, offset): (&XdpRingOffset, u64) = match which {
            Which::Receive => (&offsets.rx, 0),
            Which::Transmit => (&offsets.tx, 0x8000_0000),
            Which::Fill => (&offsets.fr, 0x1_0000_0000),
            Which::Completion => (&offsets.cr, 0x1_8000_0000),
        };
        let place = |offset: u64| {
            usize::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
        };
        let flags = layout.flags.ok_or(io::ErrorKind::Unsupported)?;
        let (producer, consumer) = (place(layout.producer)?, place(layout.consumer)?);
        let (flags, entries) = (place(flags)?, place(layout.desc)?);
        let bytes = count as usize * size_of::<T>();
        let end = [producer + 4, consumer + 4, flags + 4, entries + bytes];
        let length = end.into_iter().max().unwrap_or(0);
        let aligned = [producer, consumer, flags].iter().all(|at| at % 4 == 0)
            && entries.is_multiple_of(align_of::<T>());
        if !aligned {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        Ok(Ring {
            mapping: Segment::of_file(socket, offset, length, access, MapFlags::POPULATE)?,
            producer,
            consumer,
            flags,
            entries,
            count,
            _kind: std::marker::PhantomData,
        })
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: inside the mapping and aligned (checked by `map`; mappings begin at a
        // page); an atomic, as which the kernel uses it, too.
        unsafe { self.mapping.at(at, 4).cast().as_ref() }
    }

    #[inline]
    fn entry(&self, position: u32) -> NonNull<T> {
        let index = (position & (self.count - 1)) as usize;
        let at = self.entries + index * size_of::<T>();
        self.mapping.at(at, size_of::<T>()).cast()
    }

    /// Entries that may be put now: this end is the producer.
    #[inline]
    pub(super) fn room(&self) -> u32 {
        let ours = self.word(self.producer).load(Ordering::Relaxed);
        let theirs = self.word(self.consumer).load(Ordering::Acquire);
        // A position that can't be makes no room.
        self.count.saturating_sub(ours.wrapping_sub(theirs))
    }

    /// Entries that have been put and not been taken.
    #[inline]
    pub(super) fn waiting(&self) -> u32 {
        self.count - self.room()
    }

    /// Puts an entry, visible after [`publish`](Self::publish); `ahead` have been put since
    /// the last. The caller has seen the room for it.
    #[inline]
    pub(super) fn put(&mut self, ahead: u32, entry: T) {
        let position = self.word(self.producer).load(Ordering::Relaxed);
        let place = self.entry(position.wrapping_add(ahead));
        // SAFETY: inside the ring, aligned (checked by `map`); the kernel does not read it
        // before it is published.
        unsafe { place.write(entry) };
    }

    #[inline]
    pub(super) fn publish(&mut self, count: u32) {
        let word = self.word(self.producer);
        let position = word.load(Ordering::Relaxed).wrapping_add(count);
        word.store(position, Ordering::Release);
    }

    /// Entries that may be taken now, at most the whole ring: this end is the consumer.
    #[inline]
    pub(super) fn filled(&self) -> u32 {
        let theirs = self.word(self.producer).load(Ordering::Acquire);
        let ours = self.word(self.consumer).load(Ordering::Relaxed);
        theirs.wrapping_sub(ours).min(self.count)
    }

    /// The entry `ahead` of the next; the caller has seen that it is filled.
    #[inline]
    pub(super) fn peek(&self, ahead: u32) -> T {
        let position = self.word(self.consumer).load(Ordering::Relaxed);
        // SAFETY: inside the ring, aligned; the kernel has published it and will not write
        // it again before it is released. Any bits are a valid entry.
        unsafe { self.entry(position.wrapping_add(ahead)).read() }
    }

    #[inline]
    pub(super) fn release(&mut self, count: u32) {
        let word = self.word(self.consumer);
        let position = word.load(Ordering::Relaxed).wrapping_add(count);
        word.store(position, Ordering::Release);
    }

    /// True when the kernel wants a system call to go on.
    #[inline]
    pub(super) fn needs_wakeup(&self) -> bool {
        self.word(self.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

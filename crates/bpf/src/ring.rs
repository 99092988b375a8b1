//! The reader of a ring buffer that the kernel fills.
//!
//! Records are read in place. Those of one [`poll`](Ring::poll) are returned to the kernel by the
//! next one, so they do not change in between.
//!
//! The kernel wakes a sleeper when it finishes a record and the published consumer position is
//! exactly the start of that record. While awake, the reader publishes a position that no record
//! has (plus one), so senders pay for no wake-up; before it sleeps it publishes the exact
//! position, and then polls once more. While awake it publishes rarely.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use super::layout::{MAX_PAYLOAD_BYTES, RECORD_HEADER_BYTES};
use dipole_link::word::Word;

/// Maximum records per poll.
const BATCH: usize = 64;
/// Size of the header before a record, which holds its length.
const PREFIX_BYTES: usize = 8;
/// Flags of a record that is being written, and of a discarded one.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
/// Added to the published position while the reader is awake.
const AWAKE: u64 = 1;

/// While awake, the position is published after this fraction of the ring was read.
const UNPUBLISHED_SHARE: u64 = 8;

/// The memory of a ring buffer.
pub(super) trait Memory {
    type Word: Word;

    /// Size of the data; a power of two.
    fn ring_bytes(&self) -> usize;

    /// Returns the word with the reader's position.
    fn consumer(&self) -> &Self::Word;

    /// Returns the word with the kernel's position.
    fn producer(&self) -> &Self::Word;

    /// The header word of the record at this offset. Once it reads as finished, the whole record
    /// can be read.
    fn length(&self, at: usize) -> u32;

    /// Prefetches the first cache lines of a record that another core has just written, so that
    /// they are fetched in parallel.
    fn fetch(&self, at: usize) {
        let _by_itself = at;
    }

    /// Address of a range of bytes, which may extend past the end of the data.
    ///
    /// # Panics
    /// If the range is out of bounds.
    fn data(&self, at: usize, length: usize) -> NonNull<u8>;
}

/// The ring contains data that the kernel's program never writes: it must not be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) &'static str);

/// A packet in the ring.
#[derive(Clone, Copy, Debug)]
struct Packet {
    from: SocketAddr,
    /// Offset of the payload in the data.
    at: usize,
    length: usize,
}

/// The reader's state of a ring.
#[derive(Debug)]
pub(super) struct Ring<M> {
    memory: M,
    /// Interface index for link-local senders.
    scope_id: u32,
    /// The first record that was not returned by a poll.
    position: u64,
    /// The last published position.
    published: u64,
    /// The kernel's last known position.
    written: u64,
    /// While awake, the position is published after this many bytes were read.
    unpublished_bytes: u64,
    asleep: bool,
    packets: Vec<Packet>,
}

impl<M: Memory> Ring<M> {
    /// Continues from the position that an earlier reader published, which is where it slept or
    /// a little before where it stopped; a fresh ring starts at zero.
    pub(super) fn new(memory: M, scope_id: u32) -> Ring<M> {
        let position = memory.consumer().load(Ordering::Relaxed) & !7;
        let unpublished_bytes = memory.ring_bytes() as u64 / UNPUBLISHED_SHARE;
        let mut ring = Ring {
            memory,
            unpublished_bytes,
            scope_id,
            position,
            // As if asleep: the first published position announces that the reader is awake.
            published: position,
            written: position,
            asleep: false,
            packets: Vec::with_capacity(BATCH),
        };
        ring.give_back();
        ring
    }

    /// Returns the records of the last call to the kernel, and collects new ones.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<usize, Broken> {
        self.give_back();
        self.packets.clear();
        while self.packets.len() < BATCH {
            if self.position == self.written {
                let written = self.memory.producer().load(Ordering::Acquire);
                let unread = written.wrapping_sub(self.position);
                if unread == 0 {
                    break;
                }
                if unread > self.memory.ring_bytes() as u64 || !unread.is_multiple_of(8) {
                    return Err(Broken("a position outside the ring"));
                }
                self.written = written;
            }
            if !self.take()? {
                break;
            }
        }
        Ok(self.packets.len())
    }

    /// Parses the next record; false if it is still being written.
    #[inline]
    fn take(&mut self) -> Result<bool, Broken> {
        let at = self.place(self.position);
        let header = self.memory.length(at);
        if header & BUSY != 0 {
            return Ok(false);
        }
        self.memory.fetch(at);
        let length = (header & !DISCARDED) as usize;
        let whole = (length + PREFIX_BYTES).next_multiple_of(8) as u64;
        if whole > self.written.wrapping_sub(self.position) {
            return Err(Broken("a record longer than what was written"));
        }
        if header & DISCARDED == 0 {
            let at = self.place(self.position + PREFIX_BYTES as u64);
            let packet = self.packet(at, length)?;
            self.packets.push(packet);
        }
        self.position += whole;
        Ok(true)
    }

    #[inline]
    fn packet(&self, at: usize, length: usize) -> Result<Packet, Broken> {
        if length < RECORD_HEADER_BYTES {
            return Err(Broken("a record shorter than its header"));
        }
        let header = self.memory.data(at, RECORD_HEADER_BYTES).cast();
        // SAFETY: inside the data (checked by `data`), fully written before the record was
        // finished, and not changed by the kernel until it is returned.
        let header: [u8; RECORD_HEADER_BYTES] = unsafe { header.read() };
        let (address, rest) = header.split_at(16);
        let address: [u8; 16] = address.try_into().unwrap_or_default();
        let port = u16::from_be_bytes([rest[0], rest[1]]);
        let payload = usize::from(u16::from_ne_bytes([rest[2], rest[3]]));
        if payload > length - RECORD_HEADER_BYTES || payload > MAX_PAYLOAD_BYTES {
            return Err(Broken("a payload longer than its record"));
        }
        let from = match rest[4] {
            4 => {
                let [a, b, c, d, ..] = address;
                SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port)
            }
            6 => {
                let ip = Ipv6Addr::from(address);
                let scope_id = match ip.is_unicast_link_local() {
                    true => self.scope_id,
                    false => 0,
                };
                SocketAddrV6::new(ip, port, 0, scope_id).into()
            }
            _ => return Err(Broken("a record of no IP version")),
        };
        Ok(Packet {
            from,
            at: self.place(at as u64 + RECORD_HEADER_BYTES as u64),
            length: payload,
        })
    }

    /// A packet of the last poll: its sender and payload.
    ///
    /// # Panics
    /// If `index` is not below the number that `poll` returned.
    #[inline]
    pub(super) fn packet_at(&self, index: usize) -> (SocketAddr, &[u8]) {
        let packet = &self.packets[index];
        let start = self.memory.data(packet.at, packet.length);
        // SAFETY: inside the data (checked by `data`); finished records do not change until they
        // are returned, which needs the ring mutably.
        let payload = unsafe { std::slice::from_raw_parts(start.as_ptr(), packet.length) };
        (packet.from, payload)
    }

    /// Prepares to sleep on the ring's descriptor. Returns false, and stays awake, if a record is
    /// pending.
    pub(super) fn arm(&mut self) -> bool {
        self.packets.clear();
        self.asleep = true;
        self.published = u64::MAX;
        self.give_back();
        // A record that is finished before the kernel sees this is found below.
        M::Word::full_fence();
        if self.has_record() {
            self.disarm();
        }
        self.asleep
    }

    /// Ends the sleep state, so that senders pay for no wake-ups.
    pub(super) fn disarm(&mut self) {
        self.asleep = false;
        self.give_back();
    }

    /// True if a finished record is pending.
    fn has_record(&self) -> bool {
        self.memory.producer().load(Ordering::Acquire) != self.position
            && self.memory.length(self.place(self.position)) & BUSY == 0
    }

    /// Publishes the reader's position, which also determines whether the kernel wakes the reader.
    /// While awake this happens rarely, because each time the kernel's core must fetch the cache
    /// line again while it processes a packet.
    #[inline]
    fn give_back(&mut self) {
        let position = match self.asleep {
            true => self.position,
            false => self.position | AWAKE,
        };
        let awake_already = self.published & position & AWAKE != 0;
        let unpublished = position.wrapping_sub(self.published);
        if position != self.published && !(awake_already && unpublished < self.unpublished_bytes) {
            self.published = position;
            self.memory.consumer().store(position, Ordering::Release);
        }
    }

    #[inline]
    #[allow(
        clippy::cast_possible_truncation,
        reason = "below the size of the data"
    )]
    fn place(&self, position: u64) -> usize {
        (position & (self.memory.ring_bytes() as u64 - 1)) as usize
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

//! `bare-shm`: rings in memory between two pinned threads, one producer and one consumer each: the
//! limit of two cores without a kernel.
//!
//! Work: the sender copies a message in and the receiver copies it out into its own buffer, each
//! once. Short messages use a ring of slots of two cache lines. The first word of a slot is its
//! sequence number, so there is no separate index line. Long messages use a ring of bytes ([`rtrb`])
//! with `memcpy` in pieces, so that the receiver copies out while the sender still copies in. The
//! ring is narrow or wide, whichever is faster for the work. No program between these two cores can
//! be much faster, so this is an upper limit, not a competitor over a network. In safe Rust, every
//! word of a slot is an atomic, ordered by the slot's number.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

use crate::channel::{Channel, SendMode};
use crate::work::{Kind, Workload};

/// Slots of the ring, for the window of 1024 messages.
const SLOTS: usize = 1024;
const WORD_BYTES: usize = 8;
/// Words of payload in a slot; with the number they fill two lines of 64 bytes.
const SLOT_WORDS: usize = 15;
const SLOT_BYTES: usize = SLOT_WORDS * WORD_BYTES;

/// From this length on `memcpy` through the ring of bytes is faster than words through slots.
const LONG_BYTES: usize = 2048;
/// From this length on a stream uses the wide ring.
const WIDE_BYTES: usize = 64 << 10;

/// A ring of bytes, and the pieces in which a long message is published.
#[derive(Clone, Copy)]
struct Shape {
    ring_bytes: usize,
    piece_bytes: usize,
}

/// Fits the first-level caches, which transfer lines up to twice as fast as the second-level caches
/// (measured with rings of 8 KiB to 8 MiB).
const NARROW: Shape = Shape {
    ring_bytes: 8 << 10,
    piece_bytes: 2 << 10,
};
/// Exceeds the second-level caches: a stream of long messages passes through the shared third level,
/// up to three times as fast as from core to core where these are far apart.
const WIDE: Shape = Shape {
    ring_bytes: 8 << 20,
    piece_bytes: 256 << 10,
};

impl Shape {
    /// Returns the faster ring for the work.
    fn of(work: &Workload) -> Self {
        if work.kind != Kind::Pingpong && work.size_bytes >= WIDE_BYTES {
            WIDE
        } else {
            NARROW
        }
    }
}

#[repr(align(128))]
struct Slot {
    /// Position of the contents plus one; smaller if not yet written.
    number: AtomicU64,
    words: [AtomicU64; SLOT_WORDS],
}

/// Number of slots that the consumer has returned, on a line of its own.
#[repr(align(128))]
struct Consumed(AtomicU64);

struct Ring {
    slots: Box<[Slot]>,
    consumed: Consumed,
}

impl Ring {
    fn new() -> Arc<Self> {
        let slot = || Slot {
            number: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Arc::new(Self {
            slots: (0..SLOTS).map(|_| slot()).collect(),
            consumed: Consumed(AtomicU64::new(0)),
        })
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "the remainder is below 1024"
    )]
    fn slot(&self, position: u64) -> &Slot {
        &self.slots[(position % SLOTS as u64) as usize]
    }
}

/// One end of two rings.
pub(crate) struct Shm {
    shape: Shape,
    out: Arc<Ring>,
    produced: u64,
    /// Last known value of `out.consumed`.
    known_consumed: u64,
    left_bytes: usize,
    long_out: Producer<u8>,
    inward: Arc<Ring>,
    consumed: u64,
    long_inward: Consumer<u8>,
    message: Vec<u8>,
    got_bytes: usize,
}

impl Shm {
    /// Creates the two ends for this work.
    pub(crate) fn pair(work: &Workload) -> (Self, Self) {
        Self::pair_of(work.size_bytes, Shape::of(work))
    }

    /// Creates the two ends for messages of up to `size_bytes`.
    fn pair_of(size_bytes: usize, shape: Shape) -> (Self, Self) {
        let (there, back) = (Ring::new(), Ring::new());
        let (long_there, long_at_follow) = RingBuffer::new(shape.ring_bytes);
        let (long_back, long_at_lead) = RingBuffer::new(shape.ring_bytes);
        let end = |out: &Arc<Ring>, inward: &Arc<Ring>, long_out, long_inward| Self {
            shape,
            out: Arc::clone(out),
            produced: 0,
            known_consumed: 0,
            left_bytes: 0,
            long_out,
            inward: Arc::clone(inward),
            consumed: 0,
            long_inward,
            message: vec![0; size_bytes.max(WORD_BYTES)],
            got_bytes: 0,
        };
        (
            end(&there, &back, long_there, long_at_lead),
            end(&back, &there, long_back, long_at_follow),
        )
    }

    /// True if all of a long message is in the ring of bytes.
    fn send_long(&mut self, payload: &[u8]) -> bool {
        while self.left_bytes < payload.len() {
            let end = payload.len().min(self.left_bytes + self.shape.piece_bytes);
            let (pushed, _) = self
                .long_out
                .push_partial_slice(&payload[self.left_bytes..end]);
            if pushed.is_empty() {
                return false;
            }
            self.left_bytes += pushed.len();
        }
        self.left_bytes = 0;
        true
    }

    /// True if all of a long message has been copied out of the ring of bytes.
    fn receive_long(&mut self, length: usize) -> bool {
        while self.got_bytes < length {
            let end = length.min(self.got_bytes + self.shape.piece_bytes);
            let (popped, _) = self
                .long_inward
                .pop_partial_slice(&mut self.message[self.got_bytes..end]);
            if popped.is_empty() {
                return false;
            }
            self.got_bytes += popped.len();
        }
        self.got_bytes = 0;
        true
    }

    fn give_back(&mut self) {
        self.inward
            .consumed
            .0
            .store(self.consumed, Ordering::Release);
    }
}

impl Channel for Shm {
    fn try_send(&mut self, payload: &[u8], _manner: SendMode) -> io::Result<bool> {
        if payload.len() >= LONG_BYTES {
            return Ok(self.send_long(payload));
        }
        while self.left_bytes < payload.len() {
            if self.produced - self.known_consumed == SLOTS as u64 {
                // Acquire: the consumer has read the slots that it returns.
                self.known_consumed = self.out.consumed.0.load(Ordering::Acquire);
                if self.produced - self.known_consumed == SLOTS as u64 {
                    return Ok(false);
                }
            }
            let part = &payload[self.left_bytes..payload.len().min(self.left_bytes + SLOT_BYTES)];
            let slot = self.out.slot(self.produced);
            let (whole, rest) = part.as_chunks::<WORD_BYTES>();
            for (word, bytes) in slot.words.iter().zip(whole) {
                word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
            }
            if !rest.is_empty() {
                let mut bytes = [0; WORD_BYTES];
                bytes[..rest.len()].copy_from_slice(rest);
                slot.words[whole.len()].store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
            self.produced += 1;
            slot.number.store(self.produced, Ordering::Release);
            self.left_bytes += part.len();
        }
        self.left_bytes = 0;
        Ok(true)
    }

    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>> {
        if length >= LONG_BYTES {
            let received = self.receive_long(length);
            return Ok(received.then(|| consume(&self.message[..length])));
        }
        while self.got_bytes < length {
            let slot = self.inward.slot(self.consumed);
            if slot.number.load(Ordering::Acquire) != self.consumed + 1 {
                return Ok(None);
            }
            let end = length.min(self.got_bytes + SLOT_BYTES);
            let part = &mut self.message[self.got_bytes..end];
            let (whole, rest) = part.as_chunks_mut::<WORD_BYTES>();
            for (bytes, word) in whole.iter_mut().zip(&slot.words) {
                *bytes = word.load(Ordering::Relaxed).to_le_bytes();
            }
            if !rest.is_empty() {
                let bytes = slot.words[whole.len()]
                    .load(Ordering::Relaxed)
                    .to_le_bytes();
                rest.copy_from_slice(&bytes[..rest.len()]);
            }
            self.got_bytes = end;
            self.consumed += 1;
            // Returning slots in quarters keeps this line from moving with every message.
            if self.consumed.is_multiple_of(SLOTS as u64 / 4) {
                self.give_back();
            }
        }
        self.got_bytes = 0;
        Ok(Some(consume(&self.message[..length])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_every_length_arrive_whole_and_in_order() {
        let (mut one, mut other) = Shm::pair_of(3000, NARROW);
        for length in 1..=3000_usize {
            let sent: Vec<u8> = (0..length)
                .map(|index| (index * 7 + length).to_le_bytes()[0])
                .collect();
            assert!(one.try_send(&sent, SendMode::Now).expect("no error"));
            let received = other.try_receive(length, <[u8]>::to_vec).expect("no error");
            assert_eq!(received.as_ref(), Some(&sent));
        }
        assert_eq!(other.try_receive(1, <[u8]>::len).expect("no error"), None);
    }

    #[test]
    fn a_full_ring_takes_a_long_message_in_parts() {
        for shape in [NARROW, WIDE] {
            takes_a_long_message_in_parts(shape);
        }
    }

    fn takes_a_long_message_in_parts(shape: Shape) {
        let length = shape.ring_bytes * 3 + 1;
        let (mut one, mut other) = Shm::pair_of(length, shape);
        let sent: Vec<u8> = (0..length)
            .map(|index| (index / 5).to_le_bytes()[0])
            .collect();
        let mut received = None;
        let mut taken = false;
        while received.is_none() {
            if !taken {
                taken = one.try_send(&sent, SendMode::Now).expect("no error");
            }
            received = other.try_receive(length, <[u8]>::to_vec).expect("no error");
        }
        assert!(taken && received == Some(sent));
    }

    #[test]
    fn a_full_ring_of_slots_takes_no_more_until_some_are_read() {
        let (mut one, mut other) = Shm::pair_of(SLOT_BYTES, NARROW);
        let mut sent = 0_usize;
        while one
            .try_send(&[1; SLOT_BYTES], SendMode::Now)
            .expect("no error")
        {
            sent += 1;
        }
        assert_eq!(sent, SLOTS);
        for _ in 0..SLOTS / 4 {
            assert!(matches!(
                other.try_receive(SLOT_BYTES, |_| ()),
                Ok(Some(()))
            ));
        }
        assert!(
            one.try_send(&[1; SLOT_BYTES], SendMode::Now)
                .expect("no error")
        );
    }

    #[test]
    fn two_threads_hand_over_many_messages() {
        let (mut one, mut other) = Shm::pair_of(64, NARROW);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..100_000_u64 {
                    let message = [number; 8].map(u64::to_le_bytes).concat();
                    while !one.try_send(&message, SendMode::Now).expect("no error") {
                        std::thread::yield_now();
                    }
                }
            });
            for number in 0..100_000_u64 {
                let expected = [number; 8].map(u64::to_le_bytes).concat();
                loop {
                    match other.try_receive(64, |message| message == expected) {
                        Ok(None) => std::thread::yield_now(),
                        same => break assert!(matches!(same, Ok(Some(true))), "{number}"),
                    }
                }
            }
        });
    }
}

//! `bare-shm`: a ring of cache lines in memory between two pinned threads, one
//! producer and one consumer: what the two cores can do without any kernel.
//!
//! Work: the sender copies a message into slots of two cache lines, the
//! receiver copies it out into its own buffer. A slot is published by storing
//! its number into its own first word, so a short message costs no separate
//! index line. Fair: no program between these two cores gets below it by much;
//! it is a limit to be seen beside the others, not a rival over a network.
//! Safe Rust: every word is an atomic, ordered by the slot's number.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::channel::{Channel, Manner};

/// Slots of the ring: the window of 1024 messages.
const SLOTS: usize = 1024;
const WORD_BYTES: usize = 8;
/// Words of payload in a slot; with the number two lines of 64 bytes.
const SLOT_WORDS: usize = 15;
const SLOT_BYTES: usize = SLOT_WORDS * WORD_BYTES;

#[repr(align(128))]
struct Slot {
    /// One more than the position of what lies here; smaller: not yet written.
    number: AtomicU64,
    words: [AtomicU64; SLOT_WORDS],
}

/// How many slots the consumer has given back, on lines of its own.
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
    out: Arc<Ring>,
    produced: u64,
    /// The last known value of `out.consumed`.
    known_consumed: u64,
    left_bytes: usize,
    inward: Arc<Ring>,
    consumed: u64,
    message: Vec<u8>,
    got_bytes: usize,
}

impl Shm {
    /// The two ends, for messages of up to `size_bytes`.
    pub(crate) fn pair(size_bytes: usize) -> (Self, Self) {
        let (there, back) = (Ring::new(), Ring::new());
        let end = |out: &Arc<Ring>, inward: &Arc<Ring>| Self {
            out: Arc::clone(out),
            produced: 0,
            known_consumed: 0,
            left_bytes: 0,
            inward: Arc::clone(inward),
            consumed: 0,
            message: vec![0; size_bytes.max(WORD_BYTES)],
            got_bytes: 0,
        };
        (end(&there, &back), end(&back, &there))
    }

    fn give_back(&mut self) {
        self.inward
            .consumed
            .0
            .store(self.consumed, Ordering::Release);
    }
}

impl Channel for Shm {
    fn try_send(&mut self, payload: &[u8], _manner: Manner) -> io::Result<bool> {
        while self.left_bytes < payload.len() {
            if self.produced - self.known_consumed == SLOTS as u64 {
                // Acquire: the consumer has read the slots it gives back.
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

    fn try_flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>> {
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
            // Giving back in quarters keeps this line from travelling with every message.
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
        let (mut one, mut other) = Shm::pair(1000);
        for length in 1..=1000_usize {
            let sent: Vec<u8> = (0..length)
                .map(|index| (index * 7 + length).to_le_bytes()[0])
                .collect();
            assert!(one.try_send(&sent, Manner::Now).expect("no error"));
            let received = other.try_receive(length, <[u8]>::to_vec).expect("no error");
            assert_eq!(received.as_ref(), Some(&sent));
        }
        assert_eq!(other.try_receive(1, <[u8]>::len).expect("no error"), None);
    }

    #[test]
    fn a_full_ring_takes_a_long_message_in_parts() {
        let length = SLOT_BYTES * SLOTS * 3;
        let (mut one, mut other) = Shm::pair(length);
        let sent: Vec<u8> = (0..length)
            .map(|index| (index / 5).to_le_bytes()[0])
            .collect();
        let mut received = None;
        let mut taken = false;
        while received.is_none() {
            if !taken {
                taken = one.try_send(&sent, Manner::Now).expect("no error");
            }
            received = other.try_receive(length, <[u8]>::to_vec).expect("no error");
        }
        assert!(taken && received == Some(sent));
    }

    #[test]
    fn two_threads_hand_over_many_messages() {
        let (mut one, mut other) = Shm::pair(64);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..100_000_u64 {
                    let message = [number; 8].map(u64::to_le_bytes).concat();
                    while !one.try_send(&message, Manner::Now).expect("no error") {
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

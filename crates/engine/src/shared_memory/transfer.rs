//! Chooses how long messages are sent within a node: through the ring, where sender and receiver
//! copy concurrently, or by a fetch of the receiver, which is a single copy but needs the kernel
//! to look up every page.
//!
//! Two copies by cores that share a cache are up to four times as fast as one by the kernel.
//! Between distant cores the single copy is up to three times as fast. A virtual machine cannot
//! see where its cores are, and they move, so both methods are timed now and then.
//!
//! The time counts only inside calls of the sender, and the bytes are those that the receiver has
//! taken meanwhile. Otherwise a ring that is still filling up would look as fast as one copy.

/// Bytes per timed trial. The receiver reports its progress in steps of a quarter of that.
const TRIAL_BYTES: u64 = 1 << 20;
/// Bytes sent by the better method before the other one is tried again: first a little, because the
/// first trials touch new memory, and more each time that the choice is confirmed.
const FIRST_INTERVAL_BYTES: u64 = 4 << 20;
const LAST_INTERVAL_BYTES: u64 = 256 << 20;
const INTERVAL_GROWTH: u64 = 4;
/// The known time of the method in use moves towards a new one by this fraction.
const SMOOTHING: u64 = 8;

/// How a long message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    Ring,
    Fetch,
}

impl Transfer {
    fn other(self) -> Transfer {
        match self {
            Transfer::Ring => Transfer::Fetch,
            Transfer::Fetch => Transfer::Ring,
        }
    }
}

/// A long message that has been sent: its length, and its time in the sender's calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) bytes: u64,
    pub(super) begun_ns: u64,
    pub(super) ended_ns: u64,
}

/// The choice for one connection.
#[derive(Debug)]
pub(super) struct TransferChoice {
    current: Transfer,
    /// The next message is not timed, because the receiver may still take what the other method
    /// left in the ring.
    is_first: bool,
    /// Bytes and time of the current trial.
    bytes: u64,
    ns: u64,
    /// Bytes in the ring when the trial began.
    unread: u64,
    /// When the last message ended; messages that overlap share their time.
    ended_ns: u64,
    /// Nanoseconds for [`TRIAL_BYTES`], through the ring and by fetching.
    took: [Option<u64>; 2],
    /// Bytes left until the other method is tried, and the interval.
    left: u64,
    interval: u64,
}

impl Default for TransferChoice {
    fn default() -> TransferChoice {
        TransferChoice {
            current: Transfer::Ring,
            is_first: true,
            bytes: 0,
            ns: 0,
            unread: 0,
            ended_ns: 0,
            took: [None; 2],
            left: FIRST_INTERVAL_BYTES,
            interval: FIRST_INTERVAL_BYTES,
        }
    }
}

impl TransferChoice {
    /// How to send the next message.
    pub(super) fn current(&self) -> Transfer {
        self.current
    }

    /// Records a message that was sent. `unread` returns the number of bytes in the ring; it is
    /// called at the ends of trials.
    pub(super) fn note(&mut self, transfer: Transfer, sent: Sent, unread: impl FnOnce() -> u64) {
        let begun_ns = sent.begun_ns.max(self.ended_ns);
        self.ended_ns = self.ended_ns.max(sent.ended_ns);
        if transfer != self.current {
            return;
        }
        if std::mem::take(&mut self.is_first) {
            self.unread = unread();
            return;
        }
        self.bytes += sent.bytes;
        self.ns += sent.ended_ns.saturating_sub(begun_ns);
        if self.bytes < TRIAL_BYTES {
            return;
        }
        let unread = unread();
        let taken = (self.bytes + self.unread).saturating_sub(unread);
        let taken = taken.max(TRIAL_BYTES / 8);
        self.unread = unread;
        let took = u128::from(self.ns) * u128::from(TRIAL_BYTES) / u128::from(taken);
        self.tried(transfer, u64::try_from(took).unwrap_or(u64::MAX));
    }

    /// The peer cannot fetch, so the offered message goes through the ring.
    pub(super) fn cannot_fetch(&mut self) {
        self.tried(Transfer::Fetch, u64::MAX);
    }

    /// A trial has ended: chooses the method of the next one.
    fn tried(&mut self, transfer: Transfer, took: u64) {
        self.left = self.left.saturating_sub(self.bytes);
        (self.bytes, self.ns) = (0, 0);
        let better = self.better();
        let known = &mut self.took[transfer as usize];
        *known = Some(match *known {
            // It is used all the time, so one slow message changes little.
            Some(known) if better == Some(transfer) => {
                let step = known / SMOOTHING + 1;
                took.clamp(known.saturating_sub(step), known.saturating_add(step))
            }
            _ => took,
        });
        let Some(now_better) = self.better() else {
            // The other method has not been tried.
            return self.switch_to(transfer.other());
        };
        if better.is_some_and(|before| before != now_better) {
            self.interval = FIRST_INTERVAL_BYTES;
            self.left = self.interval;
        } else if transfer != now_better {
            if better.is_some() {
                self.interval = LAST_INTERVAL_BYTES.min(self.interval * INTERVAL_GROWTH);
            }
            self.left = self.interval;
        }
        let is_other_due = transfer == now_better && self.left == 0;
        self.switch_to(match is_other_due {
            true => now_better.other(),
            false => now_better,
        });
    }

    /// The faster method, once both have been tried.
    fn better(&self) -> Option<Transfer> {
        let [ring, fetch] = self.took;
        Some(match fetch? < ring? {
            true => Transfer::Fetch,
            false => Transfer::Ring,
        })
    }

    fn switch_to(&mut self, transfer: Transfer) {
        self.is_first = self.current != transfer;
        self.current = transfer;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender whose messages take a given time per method.
    #[derive(Default)]
    struct Sender {
        choice: TransferChoice,
        now_ns: u64,
    }

    impl Sender {
        /// Sends one message, of which the receiver leaves `unread` bytes in the ring.
        fn send(&mut self, bytes: u64, ns: u64, unread: u64) {
            let begun_ns = self.now_ns;
            self.now_ns += ns;
            let sent = Sent {
                bytes,
                begun_ns,
                ended_ns: self.now_ns,
            };
            let current = self.choice.current();
            self.choice.note(current, sent, || unread);
        }

        /// Sends messages of 1 MiB; returns how many used the ring.
        fn send_all(&mut self, count: u32, ring_ns: u64, fetch_ns: u64) -> u32 {
            let mut through_ring = 0;
            for _ in 0..count {
                let current = self.choice.current();
                let ns = match current {
                    Transfer::Ring => ring_ns,
                    Transfer::Fetch => fetch_ns,
                };
                through_ring += u32::from(current == Transfer::Ring);
                self.send(1 << 20, ns, 0);
            }
            through_ring
        }
    }

    #[test]
    fn nearly_all_messages_use_the_faster_method() {
        for (ring_ns, fetch_ns) in [(20, 80), (300, 80)] {
            let mut sender = Sender::default();
            let through_ring = sender.send_all(10_000, 1000 * ring_ns, 1000 * fetch_ns);
            let slower = match ring_ns < fetch_ns {
                true => 10_000 - through_ring,
                false => through_ring,
            };
            assert!(
                (4..120).contains(&slower),
                "{slower} used the slower method"
            );
        }
    }

    #[test]
    fn the_choice_changes_when_the_cores_move() {
        let mut sender = Sender::default();
        sender.send_all(1000, 20_000, 80_000);
        assert!(sender.send_all(1000, 300_000, 80_000) < 100);
        assert!(sender.send_all(1000, 20_000, 80_000) > 600);
    }

    #[test]
    fn one_slow_message_changes_nothing() {
        let mut sender = Sender::default();
        sender.send_all(50, 20_000, 80_000);
        sender.send(1 << 20, 1_000_000_000, 0);
        assert_eq!(sender.choice.current(), Transfer::Ring);
    }

    #[test]
    fn without_fetching_the_ring_is_used_and_fetching_is_rarely_retried() {
        let mut sender = Sender::default();
        let mut fetched = 0;
        for _ in 0..1000 {
            match sender.choice.current() {
                Transfer::Ring => sender.send(1 << 20, 80_000, 0),
                Transfer::Fetch => {
                    fetched += 1;
                    sender.choice.cannot_fetch();
                }
            }
        }
        assert!((2..10).contains(&fetched), "{fetched}");
    }

    #[test]
    fn filling_the_ring_faster_than_the_receiver_empties_it_does_not_count_as_speed() {
        let mut sender = Sender::default();
        // The sender copies 64 KiB in 5 us, but the receiver has taken only a quarter of them.
        for sent in 1..=17 {
            assert_eq!(sender.choice.current(), Transfer::Ring);
            sender.send(64 << 10, 5_000, sent * (48 << 10));
        }
        for _ in 0..17 {
            assert_eq!(sender.choice.current(), Transfer::Fetch);
            sender.send(64 << 10, 10_000, 0);
        }
        assert_eq!(sender.choice.current(), Transfer::Fetch);
    }

    #[test]
    fn the_first_choice_is_tried_again_after_four_mebibytes() {
        let mut sender = Sender::default();
        // Untouched memory makes the ring slow at first.
        sender.send_all(2, 900_000, 80_000);
        assert_eq!(sender.send_all(2, 20_000, 80_000), 0);
        assert!(sender.send_all(10, 20_000, 80_000) >= 6);
    }

    #[test]
    fn messages_that_overlap_share_their_time() {
        let mut choice = TransferChoice::default();
        for message in 0..5 {
            let sent = Sent {
                bytes: 1 << 20,
                begun_ns: 0,
                ended_ns: 1000 * (message + 1),
            };
            choice.note(Transfer::Ring, sent, || 0);
        }
        assert_eq!(choice.took[Transfer::Ring as usize], Some(1000));
    }
}

//! Chooses how long messages are sent within a node: through the ring, where sender and receiver
//! copy concurrently, or by a fetch of the receiver, which is a single copy but needs the kernel
//! to look up every page.
//!
//! Two copies by cores that share a cache are up to four times as fast as one by the kernel.
//! Between distant cores the single copy is up to three times as fast. A virtual machine cannot
//! see where its cores are, and they move, so both methods are timed now and then.

/// Bytes per timed trial.
const TRIAL_BYTES: u64 = 256 << 10;
/// Trials of the faster method between two of the other one.
const TRIALS_BETWEEN: u32 = 256;
/// If the best time is not reached again, it moves towards the current one by this fraction.
const FORGETTING: u64 = 8;

/// How a long message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    Ring,
    Fetch,
}

/// The choice for one connection.
#[derive(Debug)]
pub(super) struct TransferChoice {
    current: Transfer,
    /// Bytes in the current trial.
    bytes: u64,
    ns: u64,
    /// Recent best times in nanoseconds for [`TRIAL_BYTES`], through the ring and by fetching.
    best: [Option<u64>; 2],
    /// Trials since the other method was last tried.
    trials: u32,
}

impl Default for TransferChoice {
    fn default() -> TransferChoice {
        TransferChoice {
            current: Transfer::Ring,
            bytes: 0,
            ns: 0,
            best: [None; 2],
            trials: 0,
        }
    }
}

impl TransferChoice {
    /// How to send the next message.
    pub(super) fn current(&self) -> Transfer {
        self.current
    }

    /// Records the time that a message took.
    pub(super) fn note(&mut self, transfer: Transfer, bytes: usize, ns: u64) {
        if transfer != self.current {
            return;
        }
        self.bytes += bytes as u64;
        self.ns = self.ns.saturating_add(ns);
        if self.bytes < TRIAL_BYTES {
            return;
        }
        let took = u128::from(self.ns) * u128::from(TRIAL_BYTES) / u128::from(self.bytes);
        self.tried(transfer, u64::try_from(took).unwrap_or(u64::MAX));
    }

    /// The peer cannot fetch, so the offered message goes through the ring.
    pub(super) fn cannot_fetch(&mut self) {
        self.best[Transfer::Fetch as usize] = Some(u64::MAX);
        self.choose();
    }

    fn tried(&mut self, transfer: Transfer, took: u64) {
        let best = &mut self.best[transfer as usize];
        *best = Some(match *best {
            Some(best) if took > best => took.min(best.saturating_add(best / FORGETTING + 1)),
            _ => took,
        });
        self.trials += 1;
        self.choose();
    }

    fn choose(&mut self) {
        (self.bytes, self.ns) = (0, 0);
        let [ring, fetch] = self.best;
        let better = match (ring, fetch) {
            (Some(ring), Some(fetch)) if fetch < ring => Transfer::Fetch,
            (Some(_), None) => Transfer::Fetch,
            _ => Transfer::Ring,
        };
        self.current = better;
        if self.trials >= TRIALS_BETWEEN {
            self.trials = 0;
            self.current = match better {
                Transfer::Ring => Transfer::Fetch,
                Transfer::Fetch => Transfer::Ring,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends messages with these times per method; returns how many used the ring.
    fn send(choice: &mut TransferChoice, count: u32, ring_ns: u64, fetch_ns: u64) -> u32 {
        let mut from_ring = 0;
        for _ in 0..count {
            let transfer = choice.current();
            let ns = match transfer {
                Transfer::Ring => ring_ns,
                Transfer::Fetch => fetch_ns,
            };
            from_ring += u32::from(transfer == Transfer::Ring);
            choice.note(transfer, 1 << 20, ns);
        }
        from_ring
    }

    #[test]
    fn nearly_all_messages_use_the_faster_method() {
        for (ring_ns, fetch_ns) in [(20, 80), (300, 80)] {
            let mut choice = TransferChoice::default();
            let from_ring = send(&mut choice, 10_000, 1000 * ring_ns, 1000 * fetch_ns);
            let slower = match ring_ns < fetch_ns {
                true => 10_000 - from_ring,
                false => from_ring,
            };
            assert!(
                (1..100).contains(&slower),
                "{slower} used the slower method"
            );
        }
    }

    #[test]
    fn the_choice_changes_when_the_cores_move() {
        let mut choice = TransferChoice::default();
        send(&mut choice, 1000, 20_000, 80_000);
        assert!(send(&mut choice, 1000, 300_000, 80_000) < 100);
        assert!(send(&mut choice, 1000, 20_000, 80_000) > 600);
    }

    #[test]
    fn one_slow_message_changes_nothing() {
        let mut choice = TransferChoice::default();
        send(&mut choice, 50, 20_000, 80_000);
        choice.note(Transfer::Ring, 1 << 20, 1_000_000_000);
        assert_eq!(choice.current(), Transfer::Ring);
    }

    #[test]
    fn without_fetching_the_ring_is_used_and_fetching_is_rarely_retried() {
        let mut choice = TransferChoice::default();
        let mut fetched = 0;
        for _ in 0..1000 {
            match choice.current() {
                Transfer::Ring => choice.note(Transfer::Ring, 1 << 20, 80_000),
                Transfer::Fetch => {
                    fetched += 1;
                    choice.cannot_fetch();
                }
            }
        }
        assert!((1..8).contains(&fetched), "{fetched}");
    }

    #[test]
    fn short_messages_are_timed_together() {
        let mut choice = TransferChoice::default();
        for _ in 0..15 {
            choice.note(Transfer::Ring, 17 << 10, 1000);
            assert_eq!(choice.current(), Transfer::Ring);
        }
        choice.note(Transfer::Ring, 17 << 10, 1000);
        assert_eq!(
            choice.current(),
            Transfer::Fetch,
            "the other method is tried"
        );
    }
}

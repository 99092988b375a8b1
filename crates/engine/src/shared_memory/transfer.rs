//! How long messages go to a process of this node: through the ring, copied in by the sender
//! and out by the receiver while more is copied in, or fetched by the receiver in one copy,
//! for which the kernel must look up every page.
//!
//! Two copies by cores that share a cache are up to four times as fast as one by the kernel;
//! between cores that are far apart the one is up to three times as fast as the two. A guest
//! cannot see where its cores are, and they move. So both ways are timed now and then.

/// Bytes after which a way has been timed.
const TRIAL_BYTES: u64 = 256 << 10;
/// Trials of the better way between two of the other.
const TRIALS_BETWEEN: u32 = 256;
/// A best time that is no longer reached comes closer to what is, by this part of itself.
const FORGETTING: u64 = 8;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transfer {
    Ring,
    Fetch,
}

/// Which way long messages take on one connection.
#[derive(Debug)]
pub(super) struct TransferChoice {
    current: Transfer,
    /// Of the trial that is under way.
    bytes: u64,
    ns: u64,
    /// Nanoseconds for [`TRIAL_BYTES`], by the ring and fetched; the best of late.
    best: [Option<u64>; 2],
    /// Trials since the other way was tried.
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
    /// The way of the next message.
    pub(super) fn current(&self) -> Transfer {
        self.current
    }

    /// A message of so many bytes kept its sender for so long.
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

    /// The peer cannot fetch: what is offered goes through the ring after all.
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

    /// Sends messages that take so many nanoseconds each way; how many went by the ring.
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
    fn nearly_all_messages_go_the_faster_way() {
        for (ring_ns, fetch_ns) in [(20, 80), (300, 80)] {
            let mut choice = TransferChoice::default();
            let from_ring = send(&mut choice, 10_000, 1000 * ring_ns, 1000 * fetch_ns);
            let slower = match ring_ns < fetch_ns {
                true => 10_000 - from_ring,
                false => from_ring,
            };
            assert!((1..100).contains(&slower), "{slower} went the slower way");
        }
    }

    #[test]
    fn when_the_cores_move_the_way_changes() {
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
    fn where_nothing_can_be_fetched_the_ring_is_taken_and_fetching_tried_seldom() {
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
    fn short_ones_are_timed_together() {
        let mut choice = TransferChoice::default();
        for _ in 0..15 {
            choice.note(Transfer::Ring, 17 << 10, 1000);
            assert_eq!(choice.current(), Transfer::Ring);
        }
        choice.note(Transfer::Ring, 17 << 10, 1000);
        assert_eq!(choice.current(), Transfer::Fetch, "the other is tried");
    }
}

//! When a process may send its next chunk.
//!
//! Time is divided into cycles of Q slots of length epsilon. A process sends in one slot of each cycle,
//! drawn at random because clocks do not agree: so Q processes use the whole network without flooding
//! it. The capacity and length of a slot are measured ([`Slots`]). Without a measurement, or where
//! pacing gains nothing, everything leaves at once. Thesis ch. 4.

use dipole_model::Slots;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The pace of one process in one superstep.
#[derive(Clone, Debug)]
pub struct Pace {
    slots: Option<Slots>,
    in_cycle: u32,
    /// Start of the next cycle, once one has begun.
    cycle_at_ns: Option<u64>,
    rng: StdRng,
}

impl Pace {
    /// A pace for `senders` processes that send. Without slots everything leaves at once. The seed
    /// should differ between processes and supersteps.
    #[must_use]
    pub fn new(slots: Option<Slots>, senders: u32, seed: u64) -> Pace {
        Pace {
            slots,
            in_cycle: slots.map_or(1, |slots| slots.in_cycle(senders)),
            cycle_at_ns: None,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Takes the next slot for a chunk of `bytes` bytes. Returns its start, `now_ns` at the earliest.
    ///
    /// A process that is late, because of a timer or a full link, catches up by at most one cycle,
    /// to avoid a burst.
    pub fn next(&mut self, now_ns: u64, bytes: usize) -> u64 {
        let Some(slots) = self.slots else {
            return now_ns;
        };
        let epsilon_ns = slots.epsilon_ns(bytes);
        let cycle_ns = epsilon_ns.saturating_mul(u64::from(self.in_cycle));
        let earliest_ns = now_ns.saturating_sub(cycle_ns);
        let begin_ns = self
            .cycle_at_ns
            .map_or(now_ns, |at_ns| at_ns.max(earliest_ns));
        self.cycle_at_ns = Some(begin_ns.saturating_add(cycle_ns));
        let slot = u64::from(self.rng.random_range(0..self.in_cycle));
        begin_ns
            .saturating_add(epsilon_ns.saturating_mul(slot))
            .max(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_model::Medium;

    const BUS: Slots = Slots {
        bytes: 1000,
        epsilon_ns: 10_000,
        medium: Medium::Bus,
    };
    const SWITCH: Slots = Slots {
        medium: Medium::Switch,
        ..BUS
    };

    /// Send times of full chunks, in a process that is never late.
    fn times(mut pace: Pace, chunks: usize) -> Vec<u64> {
        let mut now_ns = 500;
        let mut next = || {
            now_ns = pace.next(now_ns, 1000);
            now_ns
        };
        (0..chunks).map(|_| next()).collect()
    }

    #[test]
    fn without_slots_everything_leaves_at_once() {
        assert_eq!(times(Pace::new(None, 8, 1), 3), [500; 3]);
    }

    #[test]
    fn on_a_switch_chunks_leave_one_slot_apart_however_many_send() {
        let own = times(Pace::new(Some(SWITCH), 8, 1), 4);
        assert_eq!(own, [500, 10_500, 20_500, 30_500]);
    }

    #[test]
    fn on_a_bus_a_process_sends_once_in_each_cycle_and_equally_often_in_every_slot() {
        let (senders, cycles) = (5, 5_000);
        let cycle_ns = 10_000 * u64::from(senders);
        let mut drawn = [0; 5];
        let own = times(Pace::new(Some(BUS), senders, 3), cycles);
        for (cycle, at_ns) in own.into_iter().enumerate() {
            let within_ns = at_ns - 500 - cycle as u64 * cycle_ns;
            assert!(within_ns < cycle_ns && within_ns.is_multiple_of(10_000));
            drawn[(within_ns / 10_000) as usize] += 1;
        }
        // The mean is 1000; the bounds are four standard deviations away.
        let is_even = drawn.iter().all(|count| (887..1113).contains(count));
        assert!(is_even, "{drawn:?}");
    }

    #[test]
    fn a_short_chunk_takes_a_short_slot() {
        let mut pace = Pace::new(Some(SWITCH), 8, 1);
        assert_eq!(pace.next(0, 100), 0);
        assert_eq!(pace.next(0, 1000), 1_000);
        assert_eq!(pace.next(1_000, 0), 11_000);
        assert_eq!(pace.next(11_000, 1000), 11_000);
    }

    #[test]
    fn a_late_process_catches_up_by_one_cycle_without_a_burst() {
        let mut pace = Pace::new(Some(SWITCH), 8, 1);
        assert_eq!(pace.next(0, 1000), 0);
        // A little late: the cycles keep their start times.
        assert_eq!(pace.next(12_000, 1000), 12_000);
        assert_eq!(pace.next(12_000, 1000), 20_000);
        // Long after its time slot.
        let late = [900_000; 3].map(|now_ns| pace.next(now_ns, 1000));
        assert_eq!(late, [900_000, 900_000, 910_000]);
    }
}

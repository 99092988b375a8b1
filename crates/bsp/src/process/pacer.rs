//! When chunks leave for other nodes: at once, or in time slots.

use std::time::Duration;

use crate::record_buffer::CHUNK_BYTES;
use crate::superstep::exchange::Outgoing;
use crate::superstep::pace::Pace;
use dipole_model::Slots;

/// A chunk that has its slot.
#[derive(Debug)]
struct Scheduled {
    due: Duration,
    to: u32,
    chunk: Outgoing,
}

/// Decides when chunks leave. A chunk never exceeds one slot, and at most one chunk holds a slot.
#[derive(Debug)]
pub(super) struct Pacer {
    /// Slots of this link, if pacing is worthwhile on it.
    slots: Option<Slots>,
    chunk_bytes: usize,
    pace: Pace,
    next: Option<Scheduled>,
}

impl Pacer {
    /// Sends everything at once.
    pub(super) fn unpaced() -> Pacer {
        Pacer {
            slots: None,
            chunk_bytes: CHUNK_BYTES,
            pace: Pace::new(None, 1, 0),
            next: None,
        }
    }

    pub(super) fn set_slots(&mut self, slots: Option<Slots>) {
        self.slots = slots;
        let bytes = slots.and_then(|slots| usize::try_from(slots.bytes).ok());
        self.chunk_bytes = bytes.unwrap_or(CHUNK_BYTES);
    }

    /// Longest message of records: what one slot holds.
    #[inline]
    pub(super) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    #[inline]
    pub(super) fn is_paced(&self) -> bool {
        self.slots.is_some()
    }

    /// Starts a new pace for `senders` ranks that send. The seed should differ between ranks and
    /// supersteps.
    pub(super) fn begin(&mut self, senders: u32, seed: u64) {
        self.pace = Pace::new(self.slots, senders, seed);
    }

    /// True if a chunk waits for its slot.
    #[inline]
    pub(super) fn has_chunk(&self) -> bool {
        self.next.is_some()
    }

    /// When the chunk that waits is due.
    pub(super) fn due(&self) -> Option<Duration> {
        self.next.as_ref().map(|next| next.due)
    }

    /// The next chunk if its slot has begun at `now`. Takes it from `poll` if none waits for a slot.
    pub(super) fn take_due(
        &mut self,
        now: Duration,
        poll: impl FnOnce() -> Option<(u32, Outgoing)>,
    ) -> Option<(u32, Outgoing)> {
        if self.next.is_none() {
            let (to, chunk) = poll()?;
            let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            let due = Duration::from_nanos(self.pace.next(now_ns, chunk.length()));
            self.next = Some(Scheduled { due, to, chunk });
        }
        let next = self.next.take_if(|next| next.due <= now)?;
        Some((next.to, next.chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_model::Medium;

    #[test]
    fn a_chunk_keeps_its_slot_until_it_is_due() {
        let mut pacer = Pacer::unpaced();
        assert!(!pacer.is_paced() && pacer.chunk_bytes() == CHUNK_BYTES);
        pacer.set_slots(Some(Slots {
            bytes: 1000,
            epsilon_ns: 10_000,
            medium: Medium::Switch,
        }));
        pacer.begin(2, 1);
        assert!(pacer.is_paced() && pacer.chunk_bytes() == 1000);
        let chunk = |to| move || Some((to, Outgoing::Message(vec![0; 1000])));
        let now = Duration::from_micros(5);
        assert_eq!(pacer.take_due(now, chunk(1)).map(|(to, _)| to), Some(1));
        assert_eq!(pacer.take_due(now, chunk(2)), None);
        assert_eq!(pacer.due(), Some(Duration::from_micros(15)));
        let due = pacer.take_due(Duration::from_micros(15), || unreachable!("one waits"));
        assert_eq!(due.map(|(to, _)| to), Some(2));
        assert!(!pacer.has_chunk());
        assert_eq!(pacer.take_due(now, || None), None);
    }
}

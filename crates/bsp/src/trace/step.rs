//! The record of one superstep on one rank.

use dipole_trace::bytes::{len_u32, put32, put64, take32, take64};
use dipole_trace::{BLOCK_BYTES, BLOCK_HEAD_BYTES, total};

/// Peers that a record lists; the rest are added up.
const MAX_PEERS: usize = 1024;
/// Stands for the peers that a record does not list.
const OTHERS: u32 = u32::MAX;
/// Encodes a CPU time that was not measured.
const UNKNOWN: u64 = u64::MAX;
/// Bytes of a record without its peers.
const FIXED_BYTES: usize = 3 * 4 + 7 * 8 + 9 * 4;
/// The longest record, with its length.
pub(super) const MAX_RECORD_BYTES: usize = 4 + FIXED_BYTES + 3 * 12 * MAX_PEERS;

const _: () = assert!(MAX_RECORD_BYTES + BLOCK_HEAD_BYTES <= BLOCK_BYTES);

/// Measurements of one superstep on one rank. Times are of the rank's own clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The superstep, counted as in [`Header::first`](super::Header::first).
    pub epoch: u32,
    /// Index of the site that ended it.
    pub site: u32,
    /// Index of the stack there, counted from 1; 0 if it is not known.
    pub stack: u32,
    /// When its computation began.
    pub began_ns: u64,
    /// When its computation ended with the call of `bsp_sync`.
    pub entered_ns: u64,
    /// Time to pack records and hand them over.
    pub pack_ns: u64,
    /// Time until all ranks were known to have arrived.
    pub barrier_ns: u64,
    /// Time to wait for messages and to send them.
    pub exchange_ns: u64,
    /// Time to apply records.
    pub apply_ns: u64,
    /// CPU time of the computation. `None` if the computation was too short to be measured.
    pub cpu_ns: Option<u64>,
    /// Times during the computation that the kernel gave the core to another thread.
    pub preemptions: u32,
    /// Times during the computation that the rank slept.
    pub sleeps: u32,
    /// Number of packets sent again.
    pub repeats: u32,
    /// Packets received that had arrived before: the sender had repeated them too early.
    pub duplicates: u32,
    /// Packets that only requested an acknowledgement.
    pub ack_requests: u32,
    /// Number of times that nothing could be sent, because credit or window was used up.
    pub stalls: u32,
    /// Bytes that this rank put or sent, by rank.
    pub put: Vec<(u32, u64)>,
    /// Bytes that it got, by rank.
    pub get: Vec<(u32, u64)>,
    /// Nanoseconds that it waited, by the rank waited for.
    pub waits: Vec<(u32, u64)>,
}

impl Step {
    /// Duration of the computation.
    #[must_use]
    pub fn compute_ns(&self) -> u64 {
        self.entered_ns.saturating_sub(self.began_ns)
    }

    /// Part of the computation in which the rank was ready to run but had no core. Where it was
    /// preempted and slept as well, the time is divided in proportion to the context switches.
    #[must_use]
    pub fn preempted_ns(&self) -> u64 {
        let compute_ns = self.compute_ns();
        let off_ns = compute_ns.saturating_sub(self.cpu_ns.unwrap_or(compute_ns));
        let switches = u128::from(self.preemptions) + u128::from(self.sleeps);
        let preempted = u128::from(off_ns) * u128::from(self.preemptions) / switches.max(1);
        u64::try_from(preempted).unwrap_or(off_ns)
    }

    /// Duration of the computation on a core of its own: without the time in which it was preempted.
    #[must_use]
    pub fn work_ns(&self) -> u64 {
        self.compute_ns().saturating_sub(self.preempted_ns())
    }

    /// Duration of the call that ended the superstep.
    #[must_use]
    pub fn sync_ns(&self) -> u64 {
        total([
            self.pack_ns,
            self.barrier_ns,
            self.exchange_ns,
            self.apply_ns,
        ])
    }

    /// When that call returned.
    #[must_use]
    pub fn left_ns(&self) -> u64 {
        self.entered_ns.saturating_add(self.sync_ns())
    }

    /// Appends the record, preceded by its length.
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        put32(into, 0);
        put32(into, self.epoch);
        put32(into, self.site);
        put32(into, self.stack);
        for time in [
            self.began_ns,
            self.entered_ns,
            self.pack_ns,
            self.barrier_ns,
            self.exchange_ns,
            self.apply_ns,
            self.cpu_ns.unwrap_or(UNKNOWN),
        ] {
            put64(into, time);
        }
        for count in [
            self.preemptions,
            self.sleeps,
            self.repeats,
            self.duplicates,
            self.ack_requests,
            self.stalls,
        ] {
            put32(into, count);
        }
        let lists = [&self.put, &self.get, &self.waits];
        for list in lists {
            put32(into, len_u32(list.len().min(MAX_PEERS)));
        }
        for list in lists {
            let listed = match list.len() > MAX_PEERS {
                true => MAX_PEERS - 1,
                false => list.len(),
            };
            for (rank, value) in &list[..listed] {
                put32(into, *rank);
                put64(into, *value);
            }
            if listed < list.len() {
                put32(into, OTHERS);
                put64(into, list[listed..].iter().map(|(_, value)| value).sum());
            }
        }
        let length = len_u32(into.len() - start - 4);
        into[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Option<Step> {
        let at = &mut bytes;
        let mut step = Step {
            epoch: take32(at)?,
            site: take32(at)?,
            stack: take32(at)?,
            began_ns: take64(at)?,
            entered_ns: take64(at)?,
            pack_ns: take64(at)?,
            barrier_ns: take64(at)?,
            exchange_ns: take64(at)?,
            apply_ns: take64(at)?,
            cpu_ns: Some(take64(at)?).filter(|ns| *ns != UNKNOWN),
            preemptions: take32(at)?,
            sleeps: take32(at)?,
            repeats: take32(at)?,
            duplicates: take32(at)?,
            ack_requests: take32(at)?,
            stalls: take32(at)?,
            ..Step::default()
        };
        let counts = [take32(at)?, take32(at)?, take32(at)?];
        let lists = [&mut step.put, &mut step.get, &mut step.waits];
        for (count, list) in counts.into_iter().zip(lists) {
            if count as usize > at.len() / 12 {
                return None;
            }
            for _ in 0..count {
                list.push((take32(at)?, take64(at)?));
            }
        }
        at.is_empty().then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_core_is_not_work() {
        let step = |cpu_ns, preemptions, sleeps| Step {
            entered_ns: 1000,
            cpu_ns,
            preemptions,
            sleeps,
            ..Step::default()
        };
        assert_eq!(step(None, 9, 0).work_ns(), 1000);
        assert_eq!(step(Some(400), 2, 0).work_ns(), 400);
        assert_eq!(step(Some(400), 0, 2).work_ns(), 1000);
        assert_eq!(step(Some(400), 1, 2).preempted_ns(), 200);
        assert_eq!(step(Some(u64::MAX), u32::MAX, u32::MAX).preempted_ns(), 0);
    }

    #[test]
    fn peers_beyond_the_limit_of_a_record_are_added_up() {
        let many: Vec<(u32, u64)> = (0..5000).map(|rank| (rank, 2)).collect();
        let step = Step {
            put: many.clone(),
            get: many.clone(),
            waits: many,
            ..Step::default()
        };
        let mut bytes = Vec::new();
        step.encode(&mut bytes);
        assert!(bytes.len() <= MAX_RECORD_BYTES);
        let read = Step::decode(&bytes[4..]).expect("as written");
        assert_eq!(read.put.iter().map(|(_, bytes)| bytes).sum::<u64>(), 10_000);
        assert_eq!(read.put.last().map(|(rank, _)| *rank), Some(OTHERS));
    }
}

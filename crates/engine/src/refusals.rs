//! Refusals of messages that were not reported to a caller yet. They outlive their edges and peers.

use dipole_proto::PeerId;
use dipole_proto::wire::RefusedReason;
use rustc_hash::FxHashMap;

/// Most edges whose refusals are remembered, for callers that never look.
const MAX_REMEMBERED: usize = 4096;

/// The latest refusals by peer, source and target, with their place in the order.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    latest: FxHashMap<(PeerId, u32, u32), (u64, RefusedReason)>,
    count: u64,
}

impl Refusals {
    pub(super) fn record(&mut self, peer: PeerId, ends: (u32, u32), reason: RefusedReason) {
        if self.latest.len() == MAX_REMEMBERED {
            let mut counts: Vec<u64> = self.latest.values().map(|(count, _)| *count).collect();
            let (_, middle, _) = counts.select_nth_unstable(MAX_REMEMBERED / 2);
            let middle = *middle;
            self.latest.retain(|_, (count, _)| *count > middle);
        }
        self.count += 1;
        let key = (peer, ends.0, ends.1);
        self.latest.insert(key, (self.count, reason));
    }

    pub(super) fn contains(&self, peer: PeerId, ends: (u32, u32)) -> bool {
        self.latest.contains_key(&(peer, ends.0, ends.1))
    }

    /// The refusal, which is about to be reported.
    pub(super) fn take(&mut self, peer: PeerId, ends: (u32, u32)) -> Option<RefusedReason> {
        let (_, reason) = self.latest.remove(&(peer, ends.0, ends.1))?;
        Some(reason)
    }

    /// Forgets those of an endpoint: they do not concern another one that gets its number.
    pub(super) fn forget_source(&mut self, source: u32) {
        self.latest.retain(|(_, from, _), _| *from != source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_refusals_are_remembered() {
        let mut machine =
            dipole_proto::Machine::new(dipole_proto::Config::default(), 1, [2, 3], &[]);
        let peer = machine.open_pipe(machine.greeting()).expect("room");
        let mut refusals = Refusals::default();
        let all = 3 * u32::try_from(MAX_REMEMBERED).expect("few");
        for target in 0..all {
            refusals.record(peer, (1, target), RefusedReason::Closed);
        }
        assert!(refusals.latest.len() <= MAX_REMEMBERED);
        for target in all - 1000..all {
            assert!(refusals.contains(peer, (1, target)));
            assert_eq!(
                refusals.take(peer, (1, target)),
                Some(RefusedReason::Closed)
            );
            assert_eq!(refusals.take(peer, (1, target)), None);
        }
        refusals.forget_source(1);
        assert!(refusals.latest.is_empty());
    }
}

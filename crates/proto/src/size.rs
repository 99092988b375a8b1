//! The length of packets to a peer. Spec §5.8.
//!
//! [`PacketSize`] starts with the longest packet that both sides accept. It falls when the link
//! refuses a length, or when long packets are lost and probes show that only shorter ones get
//! through. It rises when longer probes are answered. It has no clock: the session decides when to
//! probe and when a round ends. Packets from outside the session cannot change it.

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::wire::MAX_LANES;

/// Lengths that are probed in addition to the limits: jumbo frames, half of that, Ethernet, and
/// Ethernet minus the headers of common tunnels.
const LADDER: [u16; 4] = [8972, 4000, 1472, 1392];
/// After this many lost long packets in a row, without an arrival of that length, a length is
/// suspect.
const MISSES: u8 = 4;

/// A round of probes of several lengths, and the answers so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Round {
    /// Probes are longer than the present size. Otherwise they are at most as long.
    upwards: bool,
    /// The longest probe that was answered, by lane.
    answered: [u16; MAX_LANES],
}

/// Result of a round of probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundResult {
    /// The size has changed.
    pub(crate) changed: bool,
    /// Lanes that answered only probes shorter than the size, one bit for each index.
    pub(crate) too_short: u16,
}

/// Packet length towards one peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct PacketSize {
    least: u16,
    most: u16,
    current: u16,
    misses: u8,
    /// Length of the shortest lost packet.
    shortest_missed: u16,
    round: Option<Round>,
}

impl PacketSize {
    /// Starts with packets of `most` bytes, which never get shorter than `least`.
    pub(crate) fn new(least: usize, most: usize) -> PacketSize {
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        let least = u16::try_from(least).unwrap_or(u16::MAX).min(most);
        PacketSize {
            least,
            most,
            current: most,
            misses: 0,
            shortest_missed: u16::MAX,
            round: None,
        }
    }

    /// Length of the longest packet, with its trailer.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        usize::from(self.current)
    }

    /// A length that every path is assumed to carry.
    pub(crate) fn least_bytes(&self) -> usize {
        usize::from(self.least)
    }

    /// True if longer packets may become possible.
    pub(crate) fn may_rise(&self) -> bool {
        self.current < self.most
    }

    /// Called when a packet has arrived.
    #[inline]
    pub(crate) fn arrived(&mut self, bytes: u16) {
        if bytes >= self.shortest_missed {
            self.forget_misses();
        }
    }

    /// A packet was lost. Returns true if its length is suspect now.
    pub(crate) fn lost(&mut self, bytes: u16) -> bool {
        if bytes <= self.least || bytes > self.current {
            return false;
        }
        self.shortest_missed = self.shortest_missed.min(bytes);
        self.misses = self.misses.saturating_add(1);
        self.misses >= MISSES && self.round.is_none()
    }

    fn forget_misses(&mut self) {
        self.misses = 0;
        self.shortest_missed = u16::MAX;
    }

    /// Begins a round. Returns the lengths of its probes.
    pub(crate) fn begin_round(&mut self, upwards: bool) -> Vec<u16> {
        self.round = Some(Round {
            upwards,
            answered: [0; MAX_LANES],
        });
        let (least, current, most) = (self.least, self.current, self.most);
        let all = [most, current].into_iter().chain(LADDER).chain([least]);
        let mut lengths: Vec<u16> = all
            .filter(|bytes| match upwards {
                true => (current + 1..=most).contains(bytes),
                false => (least..=current).contains(bytes),
            })
            .collect();
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// A probe was answered on the lane with this index.
    pub(crate) fn answered(&mut self, lane: usize, bytes: u16) {
        if let Some(round) = &mut self.round
            && let Some(answered) = round.answered.get_mut(lane)
        {
            *answered = bytes.max(*answered);
        }
    }

    /// Ends a round. `asked` are the lanes that were probed, one bit for each index.
    pub(crate) fn end_round(&mut self, asked: u16) -> RoundResult {
        let Some(round) = self.round.take() else {
            return RoundResult::default();
        };
        let lanes = (0..MAX_LANES).filter(|lane| asked & 1 << lane != 0);
        let answers = lanes.map(|lane| (lane, round.answered[lane]));
        if round.upwards {
            // All lanes in use must carry it.
            let least = answers.map(|(_, bytes)| bytes).min().unwrap_or(0);
            return RoundResult {
                changed: self.change(least.min(self.most), least > self.current),
                too_short: 0,
            };
        }
        let most = answers.clone().map(|(_, bytes)| bytes).max().unwrap_or(0);
        // Without any answer the peer or the path is silent, whatever the length.
        if self.misses < MISSES || most < self.least {
            return RoundResult::default();
        }
        let changed = self.change(most, most < self.current);
        self.forget_misses();
        let too_short = answers.filter(|(_, bytes)| (1..self.current).contains(bytes));
        RoundResult {
            changed,
            too_short: too_short.fold(0, |lanes, (lane, _)| lanes | 1 << lane),
        }
    }

    /// The link refuses packets of this length. Returns true if the size has changed.
    pub(crate) fn refused(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes() {
            return false;
        }
        let shorter = LADDER.into_iter().find(|step| usize::from(*step) < bytes);
        let next = shorter.unwrap_or(self.least).max(self.least);
        self.round = None;
        self.change(next, next < self.current)
    }

    fn change(&mut self, bytes: u16, changes: bool) -> bool {
        if changes {
            self.current = bytes;
            self.forget_misses();
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    fn suspect() -> PacketSize {
        let mut size = PacketSize::new(1200, 8972);
        let suspects: Vec<bool> = (0..4).map(|_| size.lost(8972)).collect();
        assert_eq!(suspects, [false, false, false, true]);
        size
    }

    #[test]
    fn a_length_is_suspect_only_if_no_packet_as_long_arrives() {
        let mut size = PacketSize::new(1200, 8972);
        for _ in 0..10 {
            assert!(!size.lost(8972) && !size.lost(5000) && !size.lost(5000));
            size.arrived(4999);
            assert!(!size.lost(1200), "every path carries that");
            size.arrived(5000);
        }
        assert_eq!(size.bytes(), 8972);
    }

    #[test]
    fn the_size_falls_to_the_longest_answered_probe() {
        let mut size = suspect();
        assert_eq!(size.begin_round(false), [1200, 1392, 1472, 4000, 8972]);
        size.answered(0, 1200);
        size.answered(0, 1472);
        assert!(size.end_round(1).changed);
        assert_eq!(size.bytes(), 1472);
        assert_eq!(size.begin_round(true), [4000, 8972]);
        size.answered(0, 8972);
        size.answered(1, 4000);
        assert!(size.end_round(3).changed);
        assert_eq!(size.bytes(), 4000, "all lanes must carry it");
        assert!(size.may_rise());
    }

    #[test]
    fn silence_and_a_full_answer_do_not_change_the_size() {
        let mut size = suspect();
        let _lengths = size.begin_round(false);
        assert_eq!(size.end_round(1), RoundResult::default());
        assert!(size.lost(8972), "suspect again");
        let _lengths = size.begin_round(false);
        size.answered(0, 1200);
        size.answered(1, 8972);
        let outcome = size.end_round(3);
        assert_eq!((outcome.changed, outcome.too_short), (false, 1));
        assert!(!size.lost(8972), "the count starts again");
        assert_eq!(size.bytes(), 8972);
    }

    #[test]
    fn an_arrival_during_the_round_prevents_a_fall() {
        let mut size = suspect();
        let _lengths = size.begin_round(false);
        size.answered(0, 1200);
        size.arrived(8972);
        assert_eq!(size.end_round(1), RoundResult::default());
    }

    #[test]
    fn lengths_that_the_link_refuses_are_not_used_again() {
        let mut size = PacketSize::new(1200, 8972);
        assert!(!size.refused(9000), "not a packet of this session");
        let sizes: Vec<usize> = core::iter::from_fn(|| {
            let bytes = size.bytes();
            size.refused(bytes).then(|| size.bytes())
        })
        .collect();
        assert_eq!(sizes, [4000, 1472, 1392, 1200]);
        assert!(!size.refused(1200));
    }
}

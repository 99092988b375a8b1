//! The length of packets to a peer. Spec §5.8.
//!
//! [`PacketSize`] starts with the longest packet that both sides accept. It falls when the link
//! refuses a length, or when long packets are lost and probes show that only shorter ones get
//! through. It rises when longer probes are answered. It has no clock: the session decides when to
//! probe and when a round ends. Packets from outside the session cannot change it.
//!
//! Most paths carry the base length. Only if no probe of it or more is answered, a round tries less;
//! a second one must confirm what it finds, because probes are also lost by chance.

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::wire::{MAX_LANES, MIN_PACKET_BYTES};

/// Lengths that are probed in addition to the limits: jumbo frames, half of that, Ethernet, and
/// Ethernet minus the headers of common tunnels.
const LADDER: [u16; 4] = [8972, 4000, 1472, 1392];
/// A length between the base length and the least: the payload of UDP over IPv6 in 1000 bytes.
const NARROW: u16 = 952;
/// A probe that shows whether shorter packets than the least size get through.
#[allow(clippy::cast_possible_truncation, reason = "256")]
const SHORT: u16 = MIN_PACKET_BYTES as u16;
/// After this many lost long packets in a row, without an arrival of that length, a length is
/// suspect.
const MISSES: u8 = 4;

/// A round of probes of several lengths, and the answers so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Round {
    aim: Aim,
    /// The longest probe that was answered, by lane.
    answered: [u16; MAX_LANES],
}

/// The purpose of a round of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Aim {
    /// A longer size.
    Longer,
    /// Whether the present size gets through, or a shorter one.
    Shorter,
    /// Whether anything gets through that is shorter than the base length.
    Narrow,
}

/// How narrow the path seems to be.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
enum Width {
    /// It carries the base length.
    #[default]
    Usual,
    /// No probe of the base length or more was answered.
    Silent,
    /// Only shorter probes were answered, once.
    Narrow,
    /// Probes shorter than the least size were answered, and no others. That was reported.
    TooNarrow,
}

/// Result of a round of probes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoundResult {
    /// The size has changed.
    pub(crate) changed: bool,
    /// Lanes that answered only probes shorter than the size, one bit for each index.
    pub(crate) too_short: u16,
    /// Only packets shorter than the least size get through. Reported once, until longer ones do.
    pub(crate) is_too_narrow: bool,
}

/// Packet length towards one peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct PacketSize {
    least: u16,
    /// A length that most paths carry.
    base: u16,
    most: u16,
    current: u16,
    misses: u8,
    /// Length of the shortest lost packet.
    shortest_missed: u16,
    width: Width,
    round: Option<Round>,
}

impl PacketSize {
    /// Starts with packets of `most` bytes, which never get shorter than `least`.
    pub(crate) fn new(least: usize, base: usize, most: usize) -> PacketSize {
        let [least, base, most] =
            [least, base, most].map(|bytes| u16::try_from(bytes).unwrap_or(u16::MAX));
        let least = least.min(most);
        PacketSize {
            least,
            base: base.clamp(least, most),
            most,
            current: most,
            misses: 0,
            shortest_missed: u16::MAX,
            width: Width::Usual,
            round: None,
        }
    }

    /// Length of the longest packet, with its trailer.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        usize::from(self.current)
    }

    /// The least length.
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
        // Packets as short are lost for other reasons, unless nothing longer is sent.
        let blameless = match self.current == self.least {
            true => SHORT,
            false => self.least,
        };
        if bytes <= blameless || bytes > self.current {
            return false;
        }
        self.shortest_missed = self.shortest_missed.min(bytes);
        self.misses = self.misses.saturating_add(1);
        self.misses >= MISSES && self.round.is_none()
    }

    fn forget_misses(&mut self) {
        self.misses = 0;
        self.shortest_missed = u16::MAX;
        self.width = Width::Usual;
    }

    /// Begins a round. Returns the lengths of its probes.
    pub(crate) fn begin_round(&mut self, upwards: bool) -> Vec<u16> {
        let aim = match self.width {
            _ if upwards => Aim::Longer,
            Width::Usual if self.current > self.base => Aim::Shorter,
            _ => Aim::Narrow,
        };
        self.round = Some(Round {
            aim,
            answered: [0; MAX_LANES],
        });
        let (least, base, current, most) = (self.least, self.base, self.current, self.most);
        let probed = match aim {
            Aim::Longer => current + 1..=most,
            Aim::Shorter => base..=current,
            Aim::Narrow => SHORT.min(least)..=base.min(current),
        };
        let all = [SHORT, least, NARROW, base, current, most];
        let all = all.into_iter().chain(LADDER);
        let mut lengths: Vec<u16> = all.filter(|bytes| probed.contains(bytes)).collect();
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
        if round.aim == Aim::Longer {
            // All lanes in use must carry it.
            let least = answers.map(|(_, bytes)| bytes).min().unwrap_or(0);
            return RoundResult {
                changed: self.change(least.min(self.most), least > self.current),
                ..RoundResult::default()
            };
        }
        if self.misses < MISSES {
            return RoundResult::default();
        }
        let most = answers.clone().map(|(_, bytes)| bytes).max().unwrap_or(0);
        let (width, is_found) = match round.aim {
            // Longer probes may get through, too.
            Aim::Narrow if most >= self.base && self.current > self.base => (Width::Usual, false),
            _ if most >= self.base.min(self.current) => (Width::Usual, true),
            // Without any answer the peer or the path is silent, whatever the length.
            _ if most == 0 => (self.width.max(Width::Silent), false),
            _ if most < self.least => (Width::TooNarrow, false),
            _ => (Width::Narrow, self.width == Width::Narrow),
        };
        let is_too_narrow = width == Width::TooNarrow && self.width != width;
        self.width = width;
        if !is_found {
            return RoundResult {
                is_too_narrow,
                ..RoundResult::default()
            };
        }
        let changed = self.change(most, most < self.current);
        self.forget_misses();
        let too_short = answers.filter(|(_, bytes)| (1..self.current).contains(bytes));
        RoundResult {
            changed,
            too_short: too_short.fold(0, |lanes, (lane, _)| lanes | 1 << lane),
            is_too_narrow: false,
        }
    }

    /// The link refuses packets of this length. Returns true if the size has changed.
    pub(crate) fn refused(&mut self, bytes: usize) -> bool {
        if bytes > self.bytes() {
            return false;
        }
        let mut steps = LADDER.into_iter().chain([self.base, NARROW]);
        let shorter = steps.find(|step| usize::from(*step) < bytes);
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
        let mut size = PacketSize::new(617, 1200, 8972);
        let suspects: Vec<bool> = (0..4).map(|_| size.lost(8972)).collect();
        assert_eq!(suspects, [false, false, false, true]);
        size
    }

    #[test]
    fn a_length_is_suspect_only_if_no_packet_as_long_arrives() {
        let mut size = PacketSize::new(617, 1200, 8972);
        for _ in 0..10 {
            assert!(!size.lost(8972) && !size.lost(5000) && !size.lost(5000));
            size.arrived(4999);
            assert!(!size.lost(617), "the least size is not to blame");
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

    /// Runs a round that must probe these lengths. Probes up to `longest` are answered.
    fn round(size: &mut PacketSize, lengths: &[u16], longest: u16) -> RoundResult {
        assert_eq!(size.begin_round(false), lengths);
        for bytes in lengths.iter().filter(|bytes| **bytes <= longest) {
            size.answered(0, *bytes);
        }
        size.end_round(1)
    }

    const SHORTER: [u16; 5] = [1200, 1392, 1472, 4000, 8972];
    const NARROWER: [u16; 4] = [SHORT, 617, 952, 1200];

    #[test]
    fn less_than_the_base_length_is_tried_after_silence_and_must_be_found_twice() {
        let mut size = suspect();
        assert_eq!(round(&mut size, &SHORTER, 1000), RoundResult::default());
        assert!(size.lost(8972), "it is tried again");
        assert_eq!(round(&mut size, &NARROWER, 1000), RoundResult::default());
        assert!(size.lost(8972));
        assert!(round(&mut size, &NARROWER, 1000).changed);
        assert_eq!(size.bytes(), 952);
        // It may get worse, and better.
        let suspects: Vec<bool> = (0..4).map(|_| size.lost(952)).collect();
        assert_eq!(suspects, [false, false, false, true]);
        let narrower = [SHORT, 617, 952];
        assert_eq!(round(&mut size, &narrower, 700), RoundResult::default());
        assert!(round(&mut size, &narrower, 700).changed);
        assert_eq!(size.bytes(), 617);
        assert_eq!(size.begin_round(true)[..3], [952, 1200, 1392]);
    }

    #[test]
    fn one_round_without_long_answers_is_chance() {
        for longest in [1200, 0] {
            let mut size = suspect();
            assert_eq!(round(&mut size, &SHORTER, 0), RoundResult::default());
            assert_eq!(round(&mut size, &NARROWER, 1000), RoundResult::default());
            assert_eq!(round(&mut size, &NARROWER, longest), RoundResult::default());
            assert_eq!(size.bytes(), 8972);
            if longest == 1200 {
                assert!(round(&mut size, &SHORTER, 4000).changed);
            }
        }
    }

    #[test]
    fn a_path_for_short_packets_only_is_reported_once_until_it_carries_more() {
        let mut size = suspect();
        assert_eq!(round(&mut size, &SHORTER, SHORT), RoundResult::default());
        for is_news in [true, false, false] {
            let outcome = round(&mut size, &NARROWER, SHORT);
            assert_eq!((outcome.changed, outcome.is_too_narrow), (false, is_news));
            assert!(size.lost(8972), "it is tried again");
        }
        size.arrived(8972);
        // At the least size, the path may get worse.
        let mut size = PacketSize::new(548, 1200, 1472);
        while size.refused(size.bytes()) {}
        assert!(!size.lost(SHORT));
        let suspects: Vec<bool> = (0..4).map(|_| size.lost(500)).collect();
        assert_eq!(suspects, [false, false, false, true]);
        assert!(round(&mut size, &[SHORT, 548], SHORT).is_too_narrow);
    }

    #[test]
    fn silence_and_a_full_answer_do_not_change_the_size() {
        let mut size = suspect();
        let _lengths = size.begin_round(false);
        assert_eq!(size.end_round(1), RoundResult::default());
        let mut size = suspect();
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
        let mut size = PacketSize::new(617, 1200, 8972);
        assert!(!size.refused(9000), "not a packet of this session");
        let sizes: Vec<usize> = core::iter::from_fn(|| {
            let bytes = size.bytes();
            size.refused(bytes).then(|| size.bytes())
        })
        .collect();
        assert_eq!(sizes, [4000, 1472, 1392, 1200, 952, 617]);
        assert!(!size.refused(617));
    }
}

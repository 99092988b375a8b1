//! When a session probes how long its packets may be. Spec §5.8.

use alloc::vec::Vec;

use crate::event::{Event, PathChange};
use crate::lane::LaneTimeouts;
use crate::session::{Backoff, Session};
use crate::shared::Shared;
use crate::size::PacketSize;
use crate::time::{Instant, SECOND};

/// Pause before the first probe for longer packets, and the longest between two.
const FIRST_RISE_NS: u64 = 10 * SECOND;
const LONGEST_RISE_NS: u64 = 600 * SECOND;

/// The size, and the probes that test it.
#[derive(Clone, Debug)]
pub(crate) struct Sizing {
    pub(super) size: PacketSize,
    /// Probes to be sent: by which lane, as an index, and how long.
    due: Vec<(usize, u16)>,
    /// Lanes that the present round asks, a bit for each index.
    asked: u16,
    /// When the round ends.
    ends_at: Instant,
    /// When longer packets are tried again.
    rise: Backoff,
}

impl Sizing {
    pub(super) fn new(least: usize, most: usize) -> Sizing {
        Sizing {
            size: PacketSize::new(least, most),
            due: Vec::new(),
            asked: 0,
            ends_at: Instant::NEVER,
            rise: Backoff::OFF,
        }
    }

    /// True if a probe is to be sent.
    #[inline]
    pub(super) fn has_transmit(&self) -> bool {
        !self.due.is_empty()
    }

    /// When the present round ends.
    pub(super) fn ends_at(&self) -> Instant {
        self.ends_at
    }

    /// The next probe to be sent: lane, as an index, and length.
    pub(super) fn next_probe(&mut self) -> Option<(usize, u16)> {
        self.due.pop()
    }

    /// Everything but the times, for [`View`](crate::View).
    pub(super) fn hash_rest(&self, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        (&self.size, &self.due, self.asked, self.rise.pause_ns).hash(hasher);
    }
}

impl Session {
    /// Longest packet to the peer, trailer included.
    #[inline]
    pub(crate) fn packet_bytes(&self) -> usize {
        self.sizing.size.bytes()
    }

    /// When [`on_sizing`](Self::on_sizing) has work.
    #[inline]
    pub(super) fn sizing_at(&self) -> Instant {
        // A session at rest tries nothing.
        match self.window.flying() {
            0 => self.sizing.ends_at,
            _ => self.sizing.ends_at.min(self.sizing.rise.at),
        }
    }

    /// Asks all lanes in use for packets as long as now and shorter, or for longer ones.
    pub(super) fn probe_sizes(&mut self, upwards: bool, now: Instant, shared: &Shared) {
        let lengths = self.sizing.size.begin_round(upwards);
        self.sizing.due.clear();
        self.sizing.asked = 0;
        for (index, lane) in self.lanes.iter().enumerate() {
            if lane.path.is_proven() {
                self.sizing.asked |= 1 << index;
                let probes = lengths.iter().map(|bytes| (index, *bytes));
                self.sizing.due.extend(probes);
            }
        }
        let config = &shared.config;
        let pause = self
            .trip
            .timeout_ns(config.min_timeout_ns, config.max_timeout_ns);
        self.sizing.ends_at = now.after(pause);
    }

    /// A round of probes has ended, or longer packets shall be tried again.
    pub(super) fn on_sizing(&mut self, now: Instant, shared: &mut Shared) {
        if now >= self.sizing.ends_at {
            self.sizing.ends_at = Instant::NEVER;
            self.sizing.due.clear();
            let outcome = self.sizing.size.end_round(self.sizing.asked);
            if outcome.changed {
                self.size_changed(now, shared);
            }
            for index in 0..self.lanes.len() {
                let mut lanes = self.lanes.iter().enumerate();
                let spare = lanes.any(|(other, lane)| other != index && lane.path.is_proven());
                if outcome.too_short & 1 << index != 0 && spare {
                    self.lane_lost(index, now, shared);
                }
            }
        }
        if now >= self.sizing.rise.at && self.window.flying() > 0 {
            self.sizing.rise.again(now, LONGEST_RISE_NS);
            if self.sizing.ends_at == Instant::NEVER {
                self.probe_sizes(true, now, shared);
            }
        }
    }

    /// The link does not take packets of this length.
    pub(crate) fn packet_refused(&mut self, bytes: usize, now: Instant, shared: &mut Shared) {
        if self.sizing.size.refused(bytes) {
            self.sizing.due.clear();
            self.size_changed(now, shared);
        }
    }

    fn size_changed(&mut self, now: Instant, shared: &mut Shared) {
        let bytes = self.sizing.size.bytes();
        if !self.sizing.size.may_rise() {
            self.sizing.rise = Backoff::OFF;
        } else if self.sizing.rise.is_off() {
            self.sizing.rise.start(now, FIRST_RISE_NS);
        }
        // What is too long now is sent again, in parts; no lane is to blame.
        self.window
            .repeat_longer(u16::try_from(bytes).unwrap_or(u16::MAX));
        for lane in &mut self.lanes {
            lane.timeouts = LaneTimeouts::default();
        }
        self.detour = false;
        self.progress(now, shared);
        self.ask_lanes_again(now, shared);
        shared.event(Event::Paths {
            peer: self.id,
            change: PathChange::PacketBytes { bytes },
        });
    }
}

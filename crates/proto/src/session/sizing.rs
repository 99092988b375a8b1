//! When a session probes for the packet size of its paths. Spec §5.8.

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::event::{Event, PathChange};
use crate::lane::LaneTimeouts;
use crate::session::Session;
use crate::shared::Shared;
use crate::size::PacketSize;
use crate::time::{Instant, SECOND};

/// Pause before the first probe for longer packets, and the longest pause between two.
const FIRST_RISE_NS: u64 = 10 * SECOND;
const LONGEST_RISE_NS: u64 = 600 * SECOND;

/// The packet size and the probes that test it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sizing {
    pub(super) size: PacketSize,
    /// Probes to send: index of the lane, and length.
    due: Vec<(usize, u16)>,
    /// Lanes that are probed in the present round, one bit for each index.
    asked: u16,
    /// When the round ends.
    ends_at: Instant,
    /// When longer packets are tried again.
    rise: Backoff,
}

impl Sizing {
    pub(super) fn new(least: usize, base: usize, most: usize) -> Sizing {
        Sizing {
            size: PacketSize::new(least, base, most),
            due: Vec::new(),
            asked: 0,
            ends_at: Instant::NEVER,
            rise: Backoff::OFF,
        }
    }

    /// True if there are probes to send.
    #[inline]
    pub(super) fn has_transmit(&self) -> bool {
        !self.due.is_empty()
    }

    /// When the present round ends.
    pub(super) fn ends_at(&self) -> Instant {
        self.ends_at
    }

    /// The next probe to send: index of the lane, and length.
    pub(super) fn next_probe(&mut self) -> Option<(usize, u16)> {
        self.due.pop()
    }

    /// Hashes everything but the times, for [`View`](crate::View).
    pub(super) fn hash_rest(&self, hasher: &mut impl core::hash::Hasher) {
        use core::hash::Hash;
        (&self.size, &self.due, self.asked, self.rise.pause_ns).hash(hasher);
    }
}

impl Session {
    /// Length of the longest packet to the peer, with its trailer.
    #[inline]
    pub(crate) fn packet_bytes(&self) -> usize {
        self.sizing.size.bytes()
    }

    /// When [`on_sizing`](Self::on_sizing) has work.
    #[inline]
    pub(super) fn sizing_at(&self) -> Instant {
        // An idle session does not probe.
        match self.window.flying() {
            0 => self.sizing.ends_at,
            _ => self.sizing.ends_at.min(self.sizing.rise.at),
        }
    }

    /// Probes all lanes in use with the present and shorter lengths, or with longer ones.
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
        let pause = self.retransmission.timeout_ns(&shared.config);
        self.sizing.ends_at = now.after(pause);
    }

    /// A round of probes has ended, or longer packets are to be tried again.
    pub(super) fn on_sizing(&mut self, now: Instant, shared: &mut Shared) {
        if now >= self.sizing.ends_at {
            self.sizing.ends_at = Instant::NEVER;
            self.sizing.due.clear();
            let outcome = self.sizing.size.end_round(self.sizing.asked);
            if outcome.changed {
                self.size_changed(now, shared);
            }
            if outcome.is_too_narrow {
                let bytes = self.sizing.size.least_bytes();
                shared.event(Event::Paths {
                    peer: self.id,
                    change: PathChange::TooNarrow { bytes },
                });
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

    /// The link has refused a packet of this length.
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
        // Units that are too long now are sent again in parts. Their losses do not count against
        // their lanes.
        self.window
            .repeat_longer(u16::try_from(bytes).unwrap_or(u16::MAX));
        for lane in &mut self.lanes {
            lane.timeouts = LaneTimeouts::default();
        }
        self.retransmission.set_detour(false);
        self.progress(now, shared);
        self.probe_again(now, shared);
        shared.event(Event::Paths {
            peer: self.id,
            change: PathChange::PacketBytes { bytes },
        });
    }
}

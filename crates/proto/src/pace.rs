//! How many packets one session may have in flight. Spec §6.2.
//!
//! The peer's window protects its socket buffer. Below it, the limit depends on the packets lost
//! among the last window's worth of packets:
//!
//! - A few losses while no queue builds up change nothing, because holes are filled at the cost of
//!   one packet each.
//! - Losses while packets queue up mean that a queue overflows which others may share. The limit
//!   shrinks and then grows slowly, as TCP's does.
//! - Many losses mean that too much is sent, whatever the reason.
//!
//! A receiver that is often off its core grants a *wide* window, because its queue holds the packets
//! meanwhile. Then late acknowledgements say nothing about the path, but losses still do.

use serde::{Deserialize, Serialize};

/// The limit shrinks when more than one packet in this many is lost.
const TOLERATED_LOSS: u32 = 8;
const FLOOR: u32 = 4;
/// Smaller losses do not push the limit below this. Two sessions and a TCP connection that share a
/// switch port with a queue of 86 packets still leave TCP two thirds of its share.
const SHARE: u32 = 16;
const START: u32 = 64;
/// Losses do not push the limit below this while the receiver grants less than the maximum.
const LEAST_GRANTED: u32 = 8;

/// The limit of packets in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Pace {
    limit: u32,
    /// Largest limit unless the window is wide.
    usual: u32,
    /// Frames of this process.
    frames: u32,
    /// Packets in flight that the peer permits.
    granted: u32,
    /// From here on the limit grows by one packet per window.
    knee: u32,
    sent: u32,
    lost: u32,
    /// Some packets were lost while a queue had built up.
    overflowed: bool,
    /// The limit has just shrunk: the next losses are still a consequence of the old one.
    settling: bool,
}

/// Everything that affects the limit: limit, granted, knee, sent, lost, overflowed, settling.
pub(crate) type View = (u32, u32, u32, u32, u32, bool, bool);

impl Pace {
    /// At most `usual` packets in flight unless the peer grants more, and never more than `frames`.
    pub(crate) fn new(frames: u32, usual: u32) -> Pace {
        let frames = frames.max(1);
        let usual = usual.clamp(1, frames);
        Pace {
            limit: START.min(usual),
            usual,
            frames,
            granted: usual,
            knee: u32::MAX,
            sent: 0,
            lost: 0,
            overflowed: false,
            settling: false,
        }
    }

    /// Packets allowed in flight now.
    pub(crate) fn allowed(&self) -> u32 {
        // A receiver that limits its grants knows its link better than losses show.
        let least = self.restricted_to().map_or(0, |_| LEAST_GRANTED);
        self.limit.max(least).min(self.granted)
    }

    /// The peer's grant, if that is below the usual limit.
    pub(crate) fn restricted_to(&self) -> Option<u32> {
        (self.granted < self.usual).then_some(self.granted)
    }

    /// True while the peer grants more than usual.
    fn is_wide(&self) -> bool {
        self.granted > self.usual
    }

    /// The state, without fields that cannot affect the limit.
    pub(crate) fn view(&self) -> View {
        if self.usual <= FLOOR {
            return (self.limit, self.granted, 0, 0, 0, false, false);
        }
        let Pace {
            limit,
            granted,
            knee,
            sent,
            lost,
            overflowed,
            settling,
            ..
        } = *self;
        (limit, granted, knee, sent, lost, overflowed, settling)
    }

    /// The peer allows at most this many packets in flight.
    pub(crate) fn grant(&mut self, packets: u32) {
        self.granted = packets.min(self.frames);
        self.limit = self.limit.min(self.most());
    }

    fn most(&self) -> u32 {
        self.usual.max(self.granted)
    }

    pub(crate) fn sent(&mut self) {
        self.sent += 1;
        if self.sent < self.allowed() {
            return;
        }
        if self.lost * TOLERATED_LOSS > self.sent {
            self.shrink(self.limit / 4, FLOOR);
        } else if self.overflowed && !self.settling {
            // The factor of TCP CUBIC (RFC 9438 §4.6): two flows that share a queue converge.
            self.shrink(self.limit * 3 / 10, SHARE.min(self.limit));
        } else {
            self.settling = false;
            self.limit += match self.limit < self.knee {
                true if self.is_wide() => self.limit,
                true => self.limit / 4 + 1,
                false => 1,
            };
            self.limit = self.limit.min(self.most());
        }
        self.begin_window();
    }

    /// A packet was lost; `waiting` if packets queue up on the path.
    pub(crate) fn lost(&mut self, waiting: bool) {
        self.lost += 1;
        self.overflowed |= waiting;
    }

    /// Nothing was acknowledged in time: restart carefully, unless that is expected.
    pub(crate) fn timed_out(&mut self) {
        if !self.is_wide() {
            self.limit = (self.limit / 2).max(FLOOR).min(self.usual);
        }
        self.begin_window();
    }

    fn shrink(&mut self, by: u32, floor: u32) {
        self.limit = (self.limit - by).max(floor).min(self.most());
        self.knee = self.limit;
        self.settling = true;
    }

    fn begin_window(&mut self) {
        self.sent = 0;
        self.lost = 0;
        self.overflowed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pace: &mut Pace, packets: u32, lose_one_in: u32) {
        run_queued(pace, packets, lose_one_in, false);
    }

    fn run_queued(pace: &mut Pace, packets: u32, lose_one_in: u32, waiting: bool) {
        for packet in 0..packets {
            pace.sent();
            if packet % lose_one_in == 0 {
                pace.lost(waiting);
            }
        }
    }

    #[test]
    fn a_few_losses_keep_the_window_open_and_many_shrink_it() {
        let mut pace = Pace::new(1000, 1000);
        run(&mut pace, 20_000, 100);
        assert_eq!(pace.allowed(), 1000);
        run(&mut pace, 20_000, 3);
        assert!(pace.allowed() <= 8, "{}", pace.allowed());
        // Above the knee it grows by one packet per window.
        run(&mut pace, 1_000_000, 10_000);
        assert_eq!(pace.allowed(), 1000);
    }

    #[test]
    fn an_overflowing_queue_is_shared_and_free_capacity_is_used() {
        let mut pace = Pace::new(256, 256);
        run(&mut pace, 20_000, 1_000);
        assert_eq!(pace.allowed(), 256);
        run_queued(&mut pace, 256 * 3, 100, true);
        assert!(pace.allowed() < 256 * 8 / 10, "{}", pace.allowed());
        run_queued(&mut pace, 20_000, 20, true);
        assert!(
            (SHARE..SHARE + 4).contains(&pace.allowed()),
            "{}",
            pace.allowed()
        );
        // A window's worth of packets adds one packet.
        run(&mut pace, SHARE * 4, 10_000);
        assert!(pace.allowed() <= SHARE + 8);
        run(&mut pace, 40_000, 10_000);
        assert_eq!(pace.allowed(), 256);
    }

    #[test]
    fn a_wide_window_survives_silence_but_not_losses() {
        let mut pace = Pace::new(4096, 256);
        run(&mut pace, 20_000, 10_000);
        assert_eq!(pace.allowed(), 256, "the usual limit");
        pace.grant(3000);
        run(&mut pace, 256 + 512 + 1024 + 2048, 10_000);
        assert_eq!(pace.allowed(), 3000);
        pace.timed_out();
        assert_eq!(pace.allowed(), 3000);
        run(&mut pace, 20_000, 3);
        assert!(pace.allowed() <= 32, "{}", pace.allowed());
        run(&mut pace, 1_000_000_000, 10_000_000);
        pace.grant(10_000);
        assert!(pace.allowed() <= 4096, "no more than there are frames");
        pace.grant(256);
        assert_eq!(pace.restricted_to(), None);
        pace.timed_out();
        assert_eq!(pace.allowed(), 128);
    }

    #[test]
    fn the_peers_window_is_never_exceeded() {
        let mut pace = Pace::new(1000, 1000);
        run(&mut pace, 20_000, 1000);
        pace.grant(10);
        assert_eq!(pace.allowed(), 10);
        pace.grant(0);
        assert_eq!(pace.restricted_to(), Some(0));
    }
}

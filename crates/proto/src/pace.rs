//! How many packets one session may have in flight. Spec §6.2.
//!
//! The peer's window protects its socket buffer. Below it the limit moves with
//! the packets lost in a window's worth of sends:
//!
//! - scattered losses on a path where nothing waits change nothing: hole filling mends
//!   them at the price of the packet;
//! - losses on a path where packets wait mean that a queue overflows, which others may
//!   share: the limit shrinks and grows slowly from there, as TCP's does;
//! - many losses mean that too much is sent whatever the reason.

/// A loss of more than one packet in this many shrinks the limit, and down to the floor.
const TOLERATED_LOSS: u32 = 8;
const FLOOR: u32 = 4;
/// Fewer lost packets leave so many: less than any switch port holds, enough for a peer that
/// takes its packets seldom because it has no core of its own.
const SHARE: u32 = 32;
const START: u32 = 64;
/// Of what a receiver grants that holds others back, losses leave so many.
const LEAST_GRANTED: u32 = 8;

/// The limit of packets in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pace {
    limit: u32,
    max: u32,
    /// What the peer grants.
    granted: u32,
    /// From here on it grows by one packet per window.
    knee: u32,
    sent: u32,
    lost: u32,
    /// Some were lost where packets wait.
    overflowed: bool,
    /// The limit has just shrunk: losses still tell of the time before.
    settling: bool,
}

/// What can move the limit: limit, granted, knee, sent, lost, overflowed, settling.
pub(crate) type View = (u32, u32, u32, u32, u32, bool, bool);

impl Pace {
    pub(crate) fn new(max: u32) -> Pace {
        let max = max.max(1);
        Pace {
            limit: START.min(max),
            max,
            granted: max,
            knee: u32::MAX,
            sent: 0,
            lost: 0,
            overflowed: false,
            settling: false,
        }
    }

    /// Packets allowed in flight now.
    pub(crate) fn allowed(&self) -> u32 {
        // A receiver that grants little knows its link better than losses tell.
        let least = self.restricted_to().map_or(0, |_| LEAST_GRANTED);
        self.limit.max(least).min(self.granted)
    }

    /// What the peer grants, if that is less than could be.
    pub(crate) fn restricted_to(&self) -> Option<u32> {
        (self.granted < self.max).then_some(self.granted)
    }

    /// The state, what cannot move the limit left out.
    pub(crate) fn view(&self) -> View {
        if self.max <= FLOOR {
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

    /// The peer takes at most this many packets from us now.
    pub(crate) fn grant(&mut self, packets: u32) {
        self.granted = packets;
    }

    pub(crate) fn sent(&mut self) {
        self.sent += 1;
        if self.sent < self.allowed() {
            return;
        }
        if self.lost * TOLERATED_LOSS > self.sent {
            self.shrink(self.limit / 4, FLOOR);
        } else if self.overflowed && !self.settling {
            // TCP CUBIC's factor (RFC 9438 §4.6): of two that share a queue neither starves.
            self.shrink(self.limit * 3 / 10, SHARE.min(self.limit));
        } else {
            self.settling = false;
            self.limit += match self.limit < self.knee {
                true => self.limit / 4 + 1,
                false => 1,
            };
            self.limit = self.limit.min(self.max);
        }
        self.begin_window();
    }

    /// A packet was lost, on a path where packets wait or not.
    pub(crate) fn lost(&mut self, waiting: bool) {
        self.lost += 1;
        self.overflowed |= waiting;
    }

    /// Nothing came back in time: start again carefully.
    pub(crate) fn timed_out(&mut self) {
        self.limit = (self.limit / 2).max(FLOOR).min(self.max);
        self.begin_window();
    }

    fn shrink(&mut self, by: u32, floor: u32) {
        self.limit = (self.limit - by).max(floor).min(self.max);
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
    fn scattered_losses_leave_the_window_open_and_overflow_shrinks_it() {
        let mut pace = Pace::new(1000);
        run(&mut pace, 20_000, 100);
        assert_eq!(pace.allowed(), 1000);
        run(&mut pace, 20_000, 3);
        assert!(pace.allowed() <= 8, "{}", pace.allowed());
        // Above the knee it grows a packet per window.
        run(&mut pace, 1_000_000, 10_000);
        assert_eq!(pace.allowed(), 1000);
    }

    #[test]
    fn a_queue_that_overflows_is_shared_and_what_others_leave_is_taken() {
        let mut pace = Pace::new(256);
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
        // A window's worth brings one packet.
        run(&mut pace, SHARE * 4, 10_000);
        assert!(pace.allowed() <= SHARE + 8);
        run(&mut pace, 40_000, 10_000);
        assert_eq!(pace.allowed(), 256);
    }

    #[test]
    fn the_peers_window_is_never_exceeded() {
        let mut pace = Pace::new(1000);
        run(&mut pace, 20_000, 1000);
        pace.grant(10);
        assert_eq!(pace.allowed(), 10);
        pace.grant(0);
        assert_eq!(pace.restricted_to(), Some(0));
    }
}

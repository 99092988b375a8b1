//! How many packets one session may have in flight. Spec §6.2.
//!
//! The peer's window protects its socket buffer. Below it the limit moves with
//! the share of packets lost in a window's worth of sends: scattered losses
//! change nothing (hole filling mends them at the price of the packet), a
//! switch queue that overflows loses many and makes the limit shrink.

/// A loss of more than one packet in this many shrinks the limit.
const TOLERATED_LOSS: u32 = 8;
const FLOOR: u32 = 4;
const START: u32 = 64;

/// The limit of packets in flight.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pace {
    limit: u32,
    max: u32,
    sent: u32,
    lost: u32,
}

impl Pace {
    pub(crate) fn new(max: u32) -> Pace {
        let max = max.max(1);
        Pace {
            limit: START.min(max),
            max,
            sent: 0,
            lost: 0,
        }
    }

    /// Packets allowed in flight now.
    pub(crate) fn allowed(&self) -> u32 {
        self.limit
    }

    /// Limit and counters, the counters only where they can move the limit.
    pub(crate) fn view(&self) -> (u32, u32, u32) {
        if self.max <= FLOOR {
            (self.limit, 0, 0)
        } else {
            (self.limit, self.sent, self.lost)
        }
    }

    /// The peer takes at most this many packets from us.
    pub(crate) fn cap(&mut self, max: u32) {
        self.max = max.max(1);
        self.limit = self.limit.min(self.max);
    }

    pub(crate) fn sent(&mut self) {
        self.sent += 1;
        if self.sent < self.limit {
            return;
        }
        self.limit = if self.lost * TOLERATED_LOSS > self.sent {
            (self.limit - self.limit / 4).max(FLOOR)
        } else {
            self.limit + self.limit / 4 + 1
        }
        .min(self.max);
        self.sent = 0;
        self.lost = 0;
    }

    pub(crate) fn lost(&mut self) {
        self.lost += 1;
    }

    /// Nothing came back in time: start again carefully.
    pub(crate) fn timed_out(&mut self) {
        self.limit = (self.limit / 2).max(FLOOR).min(self.max);
        self.sent = 0;
        self.lost = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(pace: &mut Pace, packets: u32, lose_one_in: u32) {
        for packet in 0..packets {
            pace.sent();
            if packet % lose_one_in == 0 {
                pace.lost();
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
        run(&mut pace, 20_000, 1000);
        assert_eq!(pace.allowed(), 1000);
    }

    #[test]
    fn the_peers_window_is_never_exceeded() {
        let mut pace = Pace::new(1000);
        run(&mut pace, 20_000, 1000);
        pace.cap(10);
        assert_eq!(pace.allowed(), 10);
    }
}

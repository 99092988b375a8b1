//! How many packets on their way here fill the link to this process. Spec §6.7.
//!
//! While no queue before the link has overflowed with several senders, [`Downlink`] only
//! measures how fast packets come. Then it keeps a limit: more if the link could carry more,
//! less if it is full for long, or packets are lost where it is.

use crate::time::{Instant, MICROSECOND, MILLISECOND};

/// The limit at first, and the least.
const FIRST: u32 = 16;
const LEAST: u32 = 8;
/// The speed is measured over at least so many packets, the limit's, and this time.
const METER_PACKETS: u32 = 32;
const METER_NS: u64 = 2 * MICROSECOND;
/// Measurements of a full link after which the limit shrinks a little.
const PATIENCE: u32 = 16;
/// What a frame has on the wire beside its packet: Ethernet, IP, UDP.
const FRAME_BYTES: u64 = 66;

/// What has come since a moment at which all had been taken.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    since: Instant,
    units: u32,
    bytes: u64,
    /// All of the limit was granted all the time.
    used: bool,
    lost: bool,
}

/// See the module. Speeds are bytes per millisecond.
#[derive(Clone, Debug)]
pub(crate) struct Downlink {
    limit: Option<u32>,
    most: u32,
    meter: Meter,
    /// All of the limit is granted.
    used: bool,
    speed: u64,
    full_speed: u64,
    /// The limit has sufficed once: from then on one slow measurement means nothing.
    found: bool,
    slow: u32,
    full: u32,
    /// Limit and speed before the limit last grew.
    before: Option<(u32, u64)>,
    /// What the last measurement shows began before it grew.
    settling: bool,
}

impl Downlink {
    /// At most `most` packets.
    pub(crate) fn new(most: u32) -> Downlink {
        Downlink {
            limit: None,
            most,
            meter: Meter::default(),
            used: false,
            speed: 0,
            full_speed: 0,
            found: false,
            slow: 0,
            full: 0,
            before: None,
            settling: false,
        }
    }

    /// Packets that may be on their way; `None` while the queue has never overflowed.
    pub(crate) fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// A packet of so many bytes has arrived.
    #[inline]
    pub(crate) fn heard(&mut self, bytes: u16) {
        self.meter.bytes += u64::from(bytes) + FRAME_BYTES;
    }

    /// It carried a unit.
    #[inline]
    pub(crate) fn unit_arrived(&mut self) {
        self.meter.units += 1;
    }

    /// Whether all of the limit is granted from now on.
    pub(crate) fn is_used(&mut self, used: bool) {
        self.used = used;
        self.meter.used &= used;
    }

    /// Nobody waits any more.
    pub(crate) fn rest(&mut self) {
        self.is_used(false);
        (self.before, self.settling) = (None, false);
    }

    /// A unit had been lost while several sent. That says something where the link is full.
    pub(crate) fn lost(&mut self) {
        if core::mem::replace(&mut self.meter.lost, true) {
            return;
        }
        match self.limit {
            None => self.set(FIRST),
            Some(limit) if self.speed * 5 >= self.full_speed * 4 => {
                self.set(limit * 3 / 4);
                (self.before, self.found) = (None, true);
            }
            Some(_) => {}
        }
    }

    /// All packets at hand have been taken; true if the speed was measured.
    #[inline]
    pub(crate) fn stepped(&mut self, now: Instant) -> bool {
        let ns = now.since(self.meter.since);
        let least = METER_PACKETS.max(self.limit.unwrap_or(0));
        let due = self.meter.units >= least && ns >= METER_NS;
        if due {
            self.measure(ns, now);
        }
        due
    }

    fn measure(&mut self, ns: u64, now: Instant) {
        let next = Meter {
            since: now,
            used: self.used,
            ..Meter::default()
        };
        let meter = core::mem::replace(&mut self.meter, next);
        self.speed = meter.bytes * MILLISECOND / ns;
        let Some(limit) = self.limit else {
            self.full_speed = self.full_speed.max(self.speed);
            return;
        };
        if !meter.used || core::mem::take(&mut self.settling) {
            return;
        }
        self.full_speed = self.full_speed.max(self.speed);
        if let Some((before, speed)) = self.before.take() {
            let (more, faster) = (
                limit.saturating_sub(before),
                self.speed.saturating_sub(speed),
            );
            if faster * 4 * u64::from(before) < u64::from(more) * speed {
                // The link is full after all, or slower than it seemed.
                self.set(before);
                self.full_speed = (self.full_speed + self.speed) / 2;
                return;
            }
        }
        if self.speed >= self.full_speed - self.full_speed / 32 {
            (self.found, self.slow) = (true, 0);
            self.full += 1;
            if self.full == PATIENCE {
                self.full = 0;
                self.set(limit - limit / 32);
            }
            return;
        }
        self.slow += 1;
        if self.slow >= 2 || !self.found {
            (self.slow, self.full) = (0, 0);
            (self.before, self.settling) = (Some((limit, self.speed)), true);
            let wanted = u64::from(limit) * self.full_speed / self.speed.max(1);
            let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
            self.set(wanted.clamp(limit + limit / 8, 2 * limit) + 1);
        }
    }

    fn set(&mut self, limit: u32) {
        self.limit = Some(limit.max(LEAST).min(self.most));
    }
}

/// Only what decides who may send: models compare as equal what differs in times.
impl core::hash::Hash for Downlink {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.limit.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of 1 byte/ns and this round trip, always granted all of the limit: runs for so
    /// many round trips.
    fn run(downlink: &mut Downlink, now: &mut Instant, round_trip_ns: u64, rounds: u32) {
        downlink.is_used(true);
        for _ in 0..rounds {
            let packets = downlink.limit().unwrap_or(256);
            for _ in 0..packets {
                downlink.heard(1434);
                downlink.unit_arrived();
            }
            *now = now.after(round_trip_ns.max(u64::from(packets) * 1500));
            downlink.stepped(*now);
        }
    }

    #[test]
    fn the_limit_is_found_that_fills_the_link_and_no_more() {
        for full in [20, 80, 300] {
            let (mut downlink, mut now) = (Downlink::new(1024), Instant(0));
            run(&mut downlink, &mut now, full * 1500, 10);
            assert_eq!(downlink.limit(), None);
            downlink.lost();
            assert_eq!(downlink.limit(), Some(FIRST));
            run(&mut downlink, &mut now, full * 1500, 1000);
            let found = u64::from(downlink.limit().expect("it has overflowed"));
            assert!(found * 10 >= full * 9, "{found} of {full}");
            assert!(found * 2 <= full * 3, "{found} of {full}");
        }
    }

    #[test]
    fn losses_shrink_the_limit_only_where_the_link_is_full() {
        let (mut downlink, mut now) = (Downlink::new(1024), Instant(0));
        run(&mut downlink, &mut now, 100 * 1500, 10);
        downlink.lost();
        run(&mut downlink, &mut now, 100 * 1500, 100);
        let before = downlink.limit();
        downlink.lost();
        assert!(downlink.limit() < before);
        // Senders that have become slow.
        let before = downlink.limit();
        run(&mut downlink, &mut now, 1000 * 1500, 1);
        downlink.lost();
        assert!(downlink.limit() >= before);
    }

    #[test]
    fn the_limit_stays_within_the_window() {
        let (mut downlink, mut now) = (Downlink::new(4), Instant(0));
        run(&mut downlink, &mut now, 100, 10);
        downlink.lost();
        run(&mut downlink, &mut now, 100 * 1500, 100);
        assert_eq!(downlink.limit(), Some(4));
    }
}

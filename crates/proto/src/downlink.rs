//! How many packets in flight fill the link to this process. Spec §6.6.
//!
//! Until a queue before the link overflows while several peers send, [`Downlink`] only measures
//! the rate of arrivals. From then on it keeps a limit, which grows if the link can carry more, and
//! shrinks if the link stays full or loses packets while it is full.

use crate::time::{Instant, MICROSECOND, MILLISECOND};
use serde::{Deserialize, Serialize};

/// Initial and smallest limit.
const FIRST: u32 = 16;
const LEAST: u32 = 8;
/// A rate is measured over at least this many packets, the limit, and this time.
const METER_PACKETS: u32 = 32;
const METER_NS: u64 = 2 * MICROSECOND;
/// After this many measurements of a full link the limit shrinks a little.
const PATIENCE: u32 = 16;
/// Bytes of a frame around its packet: Ethernet, IP and UDP.
const FRAME_BYTES: u64 = 66;

/// Arrivals since the start of a measurement.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Meter {
    since: Instant,
    units: u32,
    bytes: u64,
    /// The whole limit was granted all the time.
    used: bool,
    lost: bool,
}

/// State of the link to this process. Rates are in bytes per millisecond.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Downlink {
    limit: Option<u32>,
    most: u32,
    meter: Meter,
    /// The whole limit is granted.
    used: bool,
    speed: u64,
    full_speed: u64,
    /// The limit has once been enough. From then on a single slow measurement does not count.
    found: bool,
    slow: u32,
    full: u32,
    /// Limit and rate before the limit last grew.
    before: Option<(u32, u64)>,
    /// The present measurement began before the limit grew.
    settling: bool,
}

impl Downlink {
    /// The state before any overflow; the limit will be at most `most` packets.
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

    /// Packets that may be in flight; `None` before the first overflow.
    pub(crate) fn limit(&self) -> Option<u32> {
        self.limit
    }

    /// Counts packets of this length.
    #[inline]
    pub(crate) fn on_packets(&mut self, bytes: u16, count: u32) {
        self.meter.bytes += (u64::from(bytes) + FRAME_BYTES) * u64::from(count);
    }

    #[inline]
    pub(crate) fn units_arrived(&mut self, units: u32) {
        self.meter.units += units;
    }

    /// Sets whether the whole limit is granted from now on.
    pub(crate) fn set_used(&mut self, used: bool) {
        self.used = used;
        self.meter.used &= used;
    }

    /// No peer waits any more.
    pub(crate) fn on_idle(&mut self) {
        self.set_used(false);
        (self.before, self.settling) = (None, false);
    }

    /// A unit was lost while several peers sent, which matters if the link is full.
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

    /// All available packets were handled. Returns true if a measurement is complete.
    #[inline]
    pub(crate) fn stepped(&mut self, now: Instant) -> bool {
        let ns = now.since(self.meter.since);
        let due = self.has_measurement() && ns >= METER_NS;
        if due {
            self.measure(ns, now);
        }
        due
    }

    /// True if enough packets have arrived for a measurement.
    #[inline]
    pub(crate) fn has_measurement(&self) -> bool {
        self.meter.units >= METER_PACKETS.max(self.limit.unwrap_or(0))
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
                // The link is full after all, or slower than measured.
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

/// Hashes only what affects grants: models ignore times.
impl core::hash::Hash for Downlink {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        self.limit.hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a link of 1 byte/ns whose limit is always granted in full, for this many round trips.
    fn run(downlink: &mut Downlink, now: &mut Instant, round_trip_ns: u64, rounds: u32) {
        downlink.set_used(true);
        for _ in 0..rounds {
            let packets = downlink.limit().unwrap_or(256);
            for _ in 0..packets {
                downlink.on_packets(1434, 1);
                downlink.units_arrived(1);
            }
            *now = now.after(round_trip_ns.max(u64::from(packets) * 1500));
            downlink.stepped(*now);
        }
    }

    #[test]
    fn the_limit_just_fills_the_link() {
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
    fn losses_shrink_the_limit_only_if_the_link_is_full() {
        let (mut downlink, mut now) = (Downlink::new(1024), Instant(0));
        run(&mut downlink, &mut now, 100 * 1500, 10);
        downlink.lost();
        run(&mut downlink, &mut now, 100 * 1500, 100);
        let before = downlink.limit();
        downlink.lost();
        assert!(downlink.limit() < before);
        // The senders have become slow.
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

//! How much each peer may send to this process. Spec §6.6.
//!
//! Everything sent to this process passes one link, and before it the queue of one switch port.
//! While that queue has never overflowed, the window is shared evenly among the senders.
//! Afterwards [`Grants`] keeps the packets in flight below the limit that [`Downlink`] finds.
//! Senders that are held back announce their backlog. Few send at a time, those with the least
//! backlog first.
//!
//! A process that does not run for a while because others use its core (not because of the network)
//! finds that out from the packets waiting for it, and grants windows as wide as its receive queues.

#[cfg(test)]
mod model;

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::downlink::Downlink;
use crate::event::PeerId;
use crate::time::{Instant, MICROSECOND, MILLISECOND, SECOND};

/// Packets that may arrive without a grant. No switch port buffers fewer.
const UNASKED: u32 = 32;
/// Smallest grant, so that packets are acknowledged seldom. If none is left, a sender waits.
const SHARE: u32 = 8;
/// The limit is redistributed when this many packets of it are free.
const LEAST_FREE: u32 = 4;
/// A sender that does not use its grant for this long does not keep others waiting.
const STALL_NS: u64 = MILLISECOND;
/// Packets of different peers within this time mean that several are sending.
const CROWDED_NS: u64 = SECOND;

/// A pause between two steps that is longer than a full window takes to handle.
const ABSENCE_NS: u64 = 400 * MICROSECOND;
/// Windows stay wide for this long after an absence: some turns of the scheduler.
const WIDE_NS: u64 = 50 * MILLISECOND;
/// Longest wide window of a peer. More packets would leave the processor's cache for no gain.
const WIDE_BYTES: u64 = 4 << 20;

/// Finds out that this process is often off its core while packets wait for it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Absence {
    stepped_at: Instant,
    /// Units that arrived in the current step.
    arriving: u32,
    /// Units found since the last late step, while each step found some.
    found: Option<u32>,
    wide_until: Instant,
}

impl Absence {
    /// Ends a step. A late one, after which at least `window` units are found waiting, shows that
    /// their senders could not go on.
    fn stepped(&mut self, window: u32, now: Instant) {
        if now.since(self.stepped_at) > ABSENCE_NS {
            self.found = Some(0);
        }
        self.stepped_at = now;
        let arrived = core::mem::take(&mut self.arriving);
        self.found = self.found.filter(|_| arrived > 0).map(|it| it + arrived);
        if self.found.is_some_and(|found| found >= window) {
            self.found = None;
            self.wide_until = now.after(WIDE_NS);
        }
    }

    fn is_recent(&self) -> bool {
        self.stepped_at < self.wide_until
    }
}

/// Counts the peers that send within periods of about 4 ms.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Senders {
    period: u64,
    this: u32,
    last: u32,
}

impl Senders {
    /// Counts a sender that was last counted in the period `heard`. Returns the present period.
    fn count_sender(&mut self, heard: u64, now: Instant) -> u64 {
        let period = now.0 >> 22;
        if period != self.period {
            self.last = if period == self.period + 1 {
                self.this
            } else {
                0
            };
            self.this = 0;
            self.period = period;
        }
        if heard != period {
            self.this += 1;
        }
        period
    }

    fn count(self) -> u32 {
        self.this.max(self.last).max(1)
    }
}

/// A peer with more packets to send than it is granted.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Waiting {
    peer: PeerId,
    /// Position in the order of arrival.
    turn: u64,
    /// Announced packets that have not arrived.
    left: u32,
    window: u32,
    /// Packets that may be in flight. A smaller window takes effect at the sender only later.
    bound: u32,
    /// When its last packet arrived, or its grant changed.
    active_at: Instant,
}

impl Waiting {
    /// Packets of the limit that it takes.
    fn charged(&self, now: Instant) -> u32 {
        match self.is_stalled(now) {
            true => 0,
            false => self.bound.min(self.left),
        }
    }

    fn is_stalled(&self, now: Instant) -> bool {
        self.bound > 0 && now.since(self.active_at) > STALL_NS
    }
}

/// Shares of all peers in the limit of this process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Grants {
    window_packets: u32,
    session_packets: u32,
    /// Packets of all wide windows together, and of one.
    wide_packets: (u32, u32),
    absence: Absence,
    senders: Senders,
    downlink: Downlink,
    waiting: Vec<Waiting>,
    turns: u64,
    /// Packets of the limit that are not granted, approximately.
    free: u32,
    /// Part of the limit that is granted. It grows with each packet while peers wait.
    opened: u32,
    /// Most peers that have waited at the same time, now and in the last such phase.
    crowd: u32,
    former_crowd: u32,
    /// Peers whose window has changed.
    changed: Vec<PeerId>,
    last_sender: Option<PeerId>,
    last_arrival: Instant,
    crowded_until: Instant,
}

impl Grants {
    pub(crate) fn new(config: &Config) -> Grants {
        let wide_packets = WIDE_BYTES / config.packet_bytes.max(1) as u64;
        let wide_packets = u32::try_from(wide_packets).unwrap_or(u32::MAX);
        Grants {
            window_packets: config.window_packets,
            session_packets: config.session_packets,
            wide_packets: (config.queue_packets, wide_packets),
            absence: Absence::default(),
            senders: Senders::default(),
            downlink: Downlink::new(config.window_packets),
            waiting: Vec::new(),
            turns: 0,
            free: 0,
            opened: UNASKED,
            crowd: 0,
            former_crowd: 0,
            changed: Vec::new(),
            last_sender: None,
            last_arrival: Instant(0),
            crowded_until: Instant(0),
        }
    }

    /// True once the queue has overflowed. Then each acknowledgement contains the window.
    pub(crate) fn is_limited(&self) -> bool {
        self.downlink.limit().is_some()
    }

    fn is_crowded(&self) -> bool {
        self.last_arrival < self.crowded_until
    }

    /// Packets that this peer may have in flight.
    pub(crate) fn window(&self, peer: PeerId) -> u32 {
        let known = self.waiting.iter().find(|it| it.peer == peer);
        match (known, self.downlink.limit()) {
            (Some(waiting), Some(_)) => waiting.window,
            (None, Some(limit)) if self.is_crowded() => {
                // The room is shared by all peers that may start at the same time.
                let crowd = self.crowd.max(self.former_crowd).max(self.senders.count());
                limit.min(UNASKED) / crowd
            }
            _ if self.absence.is_recent() => {
                let (all, one) = self.wide_packets;
                (all / self.senders.count())
                    .min(one)
                    .max(self.usual_window())
            }
            _ => self.usual_window(),
        }
    }

    /// The window of a peer while this process runs and the queue has not overflowed.
    fn usual_window(&self) -> u32 {
        let share = self.window_packets / self.senders.count();
        share.min(self.session_packets).max(4)
    }

    /// Counts packets of this length.
    #[inline]
    pub(crate) fn on_packets(&mut self, bytes: u16, count: u32) {
        self.downlink.on_packets(bytes, count);
    }

    /// Counts units from a peer that was last counted in `period` and then has `left` announced
    /// packets to send. If grants are [limited](Self::is_limited), it is one unit. Returns the new
    /// period.
    #[inline]
    pub(crate) fn arrived(
        &mut self,
        (peer, period): (PeerId, u64),
        (units, left): (u32, u32),
        now: Instant,
    ) -> u64 {
        self.downlink.units_arrived(units);
        self.absence.arriving += units;
        if self.last_sender != Some(peer) {
            if self.last_sender.is_some() {
                self.crowded_until = now.after(CROWDED_NS);
            }
            self.last_sender = Some(peer);
        }
        self.last_arrival = now;
        if let Some(limit) = self.downlink.limit()
            && (left > 0 || !self.waiting.is_empty())
        {
            if self.opened < limit {
                self.opened += 1;
                self.free = self.free.saturating_add(1);
            }
            self.set_backlog(peer, left, now);
        }
        self.senders.count_sender(period, now)
    }

    /// A unit has arrived that had been lost before.
    pub(crate) fn lost(&mut self) {
        if self.is_crowded() {
            self.downlink.lost();
        }
    }

    /// A peer has this many announced packets to send.
    pub(crate) fn set_backlog(&mut self, peer: PeerId, left: u32, now: Instant) {
        if !self.is_limited() {
            return;
        }
        let known = self.waiting.iter().position(|it| it.peer == peer);
        let Some(index) = known else {
            if left > 0 {
                self.wait(peer, left, now);
            }
            return;
        };
        if left == 0 {
            self.waiting.swap_remove(index);
            self.free = u32::MAX;
            return;
        }
        let waiting = &mut self.waiting[index];
        let charged = waiting.charged(now);
        // It has a larger backlog, or repeats its request because its grant is zero: redistribute.
        if left > waiting.left || waiting.window == 0 {
            self.free = u32::MAX;
        }
        waiting.bound = waiting.window.max(waiting.bound.saturating_sub(1));
        (waiting.left, waiting.active_at) = (left, now);
        let freed = charged.saturating_sub(waiting.charged(now));
        self.free = self.free.saturating_add(freed);
    }

    fn wait(&mut self, peer: PeerId, left: u32, now: Instant) {
        self.waiting.push(Waiting {
            peer,
            turn: self.turns,
            left,
            window: 0,
            bound: 0,
            active_at: now,
        });
        self.turns += 1;
        let count = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        self.crowd = self.crowd.max(count);
        self.free = u32::MAX;
    }

    /// Removes a peer; its share becomes free.
    pub(crate) fn forget(&mut self, peer: PeerId) {
        self.waiting.retain(|it| it.peer != peer);
        self.changed.retain(|it| *it != peer);
        self.free = u32::MAX;
    }

    /// All available packets were handled.
    #[inline]
    pub(crate) fn stepped(&mut self, now: Instant) {
        self.absence.stepped(self.usual_window() / 2, now);
        if self.downlink.stepped(now) && !self.waiting.is_empty() {
            self.free = u32::MAX;
        }
        if self.free >= LEAST_FREE {
            self.share_out(now);
        }
    }

    /// True if a step would only note the time.
    pub(crate) fn is_idle(&self) -> bool {
        self.absence.arriving == 0
            && !self.downlink.has_measurement()
            && self.free < LEAST_FREE
            && self.changed.is_empty()
    }

    /// A peer whose window has changed and must be sent.
    pub(crate) fn next_changed(&mut self) -> Option<PeerId> {
        self.changed.pop()
    }

    /// Divides the limit among the peers again.
    fn share_out(&mut self, now: Instant) {
        self.free = 0;
        let Some(limit) = self.downlink.limit() else {
            return;
        };
        if self.waiting.is_empty() {
            if self.crowd > 0 {
                self.former_crowd = self.crowd.max(self.former_crowd - self.former_crowd / 8);
                self.crowd = 0;
            }
            self.opened = UNASKED;
            self.downlink.on_idle();
            return;
        }
        // Smallest backlog first; but the oldest waiting peer keeps its share so as not to starve.
        let oldest = self.waiting.iter().map(|it| it.turn).min();
        self.waiting
            .sort_unstable_by_key(|it| (Some(it.turn) != oldest, it.left, it.turn));
        let opened = limit.min(self.opened);
        let count = u32::try_from(self.waiting.len()).unwrap_or(u32::MAX);
        let share = (opened / count).max(SHARE);
        let charged = self.waiting.iter().map(|it| it.charged(now)).sum();
        let mut free = opened.saturating_sub(charged);
        let mut rest = opened;
        for waiting in &mut self.waiting {
            let wanted = share.min(rest);
            let more = wanted.saturating_sub(waiting.bound).min(free);
            let window = wanted.min(waiting.bound + more);
            free -= more;
            if !waiting.is_stalled(now) {
                rest -= window.min(waiting.left);
            }
            waiting.bound = waiting.bound.max(window);
            if window != waiting.window {
                (waiting.window, waiting.active_at) = (window, now);
                if !self.changed.contains(&waiting.peer) {
                    self.changed.push(waiting.peer);
                }
            }
        }
        self.downlink.set_used(rest == 0 && opened == limit);
    }
}

/// Hashes only what affects grants: models ignore times.
impl core::hash::Hash for Grants {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        let crowd = self.crowd.max(self.former_crowd).max(self.senders.count());
        let is_wide = self.absence.is_recent();
        (&self.downlink, crowd, self.opened, is_wide).hash(state);
        for it in &self.waiting {
            (it.peer, it.turn, it.left, it.window, it.bound).hash(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Grants after an overflow, the time, and this many peers.
    pub(super) fn overflowed(peers: u32) -> (Grants, Instant, Vec<PeerId>) {
        let (mut grants, now) = (Grants::new(&Config::default()), Instant(1));
        let peers: Vec<PeerId> = (1..=peers).map(PeerId).collect();
        for peer in &peers {
            grants.arrived((*peer, u64::MAX), (1, 0), now);
        }
        grants.lost();
        (grants, now, peers)
    }

    fn windows(grants: &Grants, peers: &[PeerId]) -> Vec<u32> {
        peers.iter().map(|peer| grants.window(*peer)).collect()
    }

    #[test]
    fn the_window_is_shared_evenly_while_nothing_overflows() {
        let mut grants = Grants::new(&Config::default());
        assert_eq!(grants.window(PeerId(1)), 256);
        for peer in 1..=64 {
            grants.arrived((PeerId(peer), u64::MAX), (1, 0), Instant(1));
        }
        assert_eq!(grants.window(PeerId(1)), 16);
    }

    #[test]
    fn the_window_is_wide_while_packets_wait_for_a_process_without_a_core() {
        let config = Config {
            queue_packets: 3000,
            ..Config::default()
        };
        let mut grants = Grants::new(&config);
        let peer = PeerId(1);
        let mut period = u64::MAX;
        let mut step = |grants: &mut Grants, now: u64, packets: u32| {
            for _ in 0..packets {
                period = grants.arrived((peer, period), (1, 0), Instant(now));
            }
            grants.stepped(Instant(now));
            grants.window(peer)
        };
        let mut now = SECOND;
        assert_eq!(step(&mut grants, now, 0), 256);
        for _ in 0..100 {
            now += ABSENCE_NS / 2;
            assert_eq!(step(&mut grants, now, 200), 256, "it runs often enough");
        }
        now += 2 * ABSENCE_NS;
        assert_eq!(step(&mut grants, now, 60), 256, "its peer was not held up");
        assert_eq!(step(&mut grants, now + 1, 0), 256);
        assert_eq!(step(&mut grants, now + 2, 200), 256);
        now += 2 * ABSENCE_NS;
        assert_eq!(step(&mut grants, now, 60), 256);
        assert_eq!(step(&mut grants, now + 1, 80), 2849, "4 MiB of packets");
        assert_eq!(step(&mut grants, now + WIDE_NS, 200), 2849);
        assert_eq!(step(&mut grants, now + 2 * WIDE_NS, 0), 256);
    }

    #[test]
    fn few_peers_send_at_a_time_smallest_backlog_and_oldest_first() {
        let (mut grants, now, peers) = overflowed(64);
        assert_eq!(
            windows(&grants, &peers),
            [0; 64],
            "no grant without request"
        );
        for (peer, left) in peers.iter().zip([100, 90, 80, 10]) {
            grants.set_backlog(*peer, left, now);
        }
        grants.stepped(now);
        assert_eq!(windows(&grants, &peers[..4]), [8, 0, 0, 8]);
        // Each peer is reported once.
        let mut changed: Vec<PeerId> = core::iter::from_fn(|| grants.next_changed()).collect();
        changed.sort_unstable();
        assert_eq!(changed, [peers[0], peers[3]]);
        // The smallest backlog is gone: the next one gets its share.
        grants.set_backlog(peers[3], 0, now);
        grants.stepped(now);
        assert_eq!(windows(&grants, &peers[..3]), [8, 0, 8]);
    }

    #[test]
    fn a_shrunk_window_is_not_granted_again_before_its_packets_arrived() {
        let (mut grants, now, peers) = overflowed(2);
        grants.set_backlog(peers[0], 100, now);
        grants.stepped(now);
        assert_eq!(grants.window(peers[0]), 16);
        grants.set_backlog(peers[1], 100, now);
        grants.stepped(now);
        assert_eq!(windows(&grants, &peers), [8, 0]);
        for left in (92..100).rev() {
            grants.arrived((peers[0], 0), (1, left), now);
        }
        grants.stepped(now);
        assert_eq!(windows(&grants, &peers), [8, 8]);
    }

    #[test]
    fn an_unused_share_does_not_keep_others_waiting() {
        let (mut grants, now, peers) = overflowed(3);
        for peer in &peers {
            grants.set_backlog(*peer, 100, now);
        }
        grants.stepped(now);
        assert_eq!(windows(&grants, &peers), [8, 8, 0]);
        let later = now.after(2 * STALL_NS);
        grants.set_backlog(peers[2], 100, later);
        grants.stepped(later);
        assert_eq!(windows(&grants, &peers), [8, 8, 8]);
        grants.forget(peers[0]);
        grants.stepped(later);
        assert_eq!(grants.waiting.len(), 2);
    }
}

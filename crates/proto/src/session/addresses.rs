//! Addresses that appear and disappear while a session is open. Spec §5.3.
//!
//! A process whose addresses have changed sends its peers the new list of lanes in a unit, so the
//! list arrives. The receiver continues on the lanes that are left at once, without waiting for
//! time-outs, and probes addresses that are new to it.

use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

use crate::event::{Event, PathChange};
use crate::lane::{Lane, LaneTimeouts};
use crate::path_state::LaneState;
use crate::session::Session;
use crate::shared::Shared;
use crate::time::Instant;
use crate::wire::{Address, LANES_BYTES, LaneAddress, LaneList, emit_lanes};

/// Lists of lanes that a session sends and has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Announcements {
    /// Number of the list that must be sent; zero if the peer has the latest one.
    due: u32,
    /// Number of the newest list of the peer.
    received: u32,
    /// The peer is behind NAT: none of its addresses is the one that the handshake used.
    pub(super) is_translated: bool,
}

impl Announcements {
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due != 0
    }

    /// True if a list of the peer is newer than all before. Units may overtake each other.
    fn accept(&mut self, serial: u32) -> bool {
        let is_new = serial > self.received;
        self.received = self.received.max(serial);
        is_new
    }
}

impl Session {
    /// The peer must be sent the present list of lanes, which has this number.
    pub(crate) fn announce(&mut self, serial: u32) {
        self.paths.announcements.due = serial;
    }

    /// Writes the list of lanes if it is due. Returns its length.
    pub(super) fn put_lanes(&mut self, bytes: &mut [u8], shared: &Shared) -> usize {
        let due = self.paths.announcements.due;
        if due == 0 || bytes.len() < LANES_BYTES {
            return 0;
        }
        self.paths.announcements.due = 0;
        emit_lanes(bytes, due, &shared.lanes)
    }

    /// The addresses in a list of the peer's lanes.
    pub(super) fn listed(
        &self,
        lanes: impl Iterator<Item = LaneAddress>,
    ) -> Vec<(u8, bool, Address)> {
        let home = self.remote.home;
        let mut listed: Vec<(u8, bool, Address)> = lanes
            .map(|lane| {
                let mut to = lane.address;
                if to.is_unspecified() {
                    to.ip = home.ip;
                }
                (lane.lane, lane.bulk, to)
            })
            .collect();
        // Behind NAT the first small lane uses the address of the handshake; the listed ones are only
        // claims.
        if self.paths.announcements.is_translated {
            let first = listed.iter().position(|(_, bulk, _)| !bulk).unwrap_or(0);
            if let Some((.., to)) = listed.get_mut(first) {
                *to = home;
            }
        }
        listed
    }

    /// State of a lane to an address that the peer claims to have.
    pub(super) fn claimed(&self, to: Address, own: &[LaneAddress]) -> LaneState {
        let is_own = |ip: [u8; 16]| own.iter().any(|lane| lane.address.ip == ip);
        match !is_own(self.remote.home.ip) && is_own(to.ip) {
            true => LaneState::OwnAddress,
            false => LaneState::Waiting,
        }
    }

    /// The peer listens on these lanes from now on. What is in flight to an address that it has lost
    /// is sent to the others.
    pub(super) fn on_lanes(&mut self, list: &LaneList<'_>, now: Instant, shared: &mut Shared) {
        if !self.paths.announcements.accept(list.serial) {
            return;
        }
        let mut changed = false;
        let listed = self.listed(list.lanes());
        for &(id, bulk, to) in &listed {
            let state = self.claimed(to, &shared.lanes);
            match self.lanes.iter().position(|lane| lane.id == id) {
                None => {
                    let first = u64::from(shared.config.first_number);
                    self.lanes.push(Lane::new(id, bulk, to, state, first));
                }
                Some(index) => {
                    let lane = &mut self.lanes[index];
                    let is_known = lane.path.state() != LaneState::Missing;
                    if is_known && (lane.bulk, lane.to) == (bulk, to) {
                        continue;
                    }
                    (lane.bulk, lane.to) = (bulk, to);
                    lane.path.offer(state);
                    self.leave_lane(index);
                }
            }
            changed = true;
        }
        for index in 0..self.lanes.len() {
            let lane = &mut self.lanes[index];
            let is_listed = listed.iter().any(|(id, ..)| *id == lane.id);
            if !is_listed && lane.path.state() != LaneState::Missing {
                lane.path.withdraw();
                self.leave_lane(index);
                changed = true;
            }
        }
        if changed {
            self.choose_reply_lane();
            shared.event(Event::Paths {
                peer: self.id,
                change: PathChange::Moved,
            });
            self.probe_anew(now, shared);
        }
    }

    /// The addresses of this process have changed, or its routes: packets to these addresses of the
    /// peer leave through another interface than before, or not at all. Those lanes must prove
    /// themselves again, unless no other one is left.
    pub(crate) fn own_addresses_changed(
        &mut self,
        moved: &[[u8; 16]],
        now: Instant,
        shared: &mut Shared,
    ) {
        self.add_own_lanes(shared);
        self.compare_with_own(shared);
        let has_moved = |lane: &Lane| moved.contains(&lane.to.ip);
        let stays = |lane: &Lane| lane.path.is_proven() && !has_moved(lane);
        if self.lanes.iter().any(stays) {
            for index in 0..self.lanes.len() {
                let lane = &self.lanes[index];
                if lane.path.is_proven() && has_moved(lane) {
                    self.lanes[index].timeouts = LaneTimeouts::default();
                    self.lane_lost(index, now, shared);
                }
            }
            self.choose_reply_lane();
        }
        self.probe_anew(now, shared);
    }

    /// Adds the lanes on which only this side listens, so that what arrives there is accepted.
    fn add_own_lanes(&mut self, shared: &Shared) {
        let first = u64::from(shared.config.first_number);
        for own in &shared.lanes {
            if self.lanes.iter().all(|lane| lane.id != own.lane) {
                let (id, bulk, home) = (own.lane, own.bulk, self.remote.home);
                let lane = Lane::new(id, bulk, home, LaneState::Missing, first);
                self.lanes.push(lane);
            }
        }
    }

    /// Finds the lanes to addresses that this process has now, too, or has no longer.
    fn compare_with_own(&mut self, shared: &Shared) {
        for index in 0..self.lanes.len() {
            let (to, before) = (self.lanes[index].to, self.lanes[index].path.state());
            let claimed = self.claimed(to, &shared.lanes);
            let is_own = claimed == LaneState::OwnAddress;
            if before != LaneState::Missing && is_own != (before == LaneState::OwnAddress) {
                self.lanes[index].path.offer(claimed);
                self.leave_lane(index);
            }
        }
    }

    /// The peer has answered at the address of this lane. If it no longer listens where the handshake
    /// found it, that becomes its home, so that further look-ups find this session, and a process that
    /// takes over the former address does not. Behind NAT the peer's own addresses lead nowhere.
    pub(super) fn move_home(&mut self, index: usize, shared: &mut Shared) {
        let (lane, home) = (&self.lanes[index], self.remote.home);
        let is_home = |lane: &Lane| {
            !lane.bulk && lane.to.ip == home.ip && lane.path.state() != LaneState::Missing
        };
        if lane.bulk || self.paths.announcements.is_translated || self.lanes.iter().any(is_home) {
            return;
        }
        self.remote.home = lane.to;
        shared.moved_homes.push((self.id, home));
    }

    /// Sends what is in flight on a lane on others. Nothing is known of its new address, if it has one.
    fn leave_lane(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        lane.timeouts = LaneTimeouts::default();
        self.window.abandon_lane(lane.id);
    }

    /// Replies leave through a lane that works, until the next packet arrives.
    fn choose_reply_lane(&mut self) {
        let current = self.lanes.get(self.paths.reply_lane());
        if current.is_some_and(|lane| lane.path.is_proven()) {
            return;
        }
        let works = |lane: &Lane| !lane.bulk && lane.path.is_proven();
        if let Some(index) = self.lanes.iter().position(works) {
            self.paths.set_reply_lane(index);
        }
    }

    /// Destination of a hello: until the session is open, the address that was given for the peer.
    pub(crate) fn hello_address(&self) -> Address {
        match self.is_open() {
            true => self.bye_address(),
            false => self.remote.home,
        }
    }
}

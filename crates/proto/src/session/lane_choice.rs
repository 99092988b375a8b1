//! Selection of the lane on which a packet leaves. Spec §5.3.

use crate::lane::Lane;
use crate::session::Session;
use crate::wire::Kind;

/// Bulk packets sent through one interface before the next one is used.
const BULK_TURN: u32 = 32;
/// A control packet is sent to an unproven address only if this many bytes are allowed there.
const MIN_UNPROVEN_BYTES: usize = 128;

impl Session {
    /// Selects a lane for a data packet: a proven one of the right class if possible. Bulk packets
    /// use the interfaces in turn. A retransmission on a detour gives the last lane of its piece and
    /// avoids lanes with recent time-outs. If all have time-outs, it takes the lane after its last
    /// one, so that each piece tries all lanes.
    pub(super) fn pick_lane(&mut self, bulk: bool, detour: Option<u8>) -> usize {
        // The first lane fits nearly always; the search below would find it, too.
        if !bulk
            && let Some(lane) = self.lanes.first()
            && !lane.bulk
            && lane.path.is_proven()
            && !(detour.is_some() && lane.timeouts.is_suspect())
        {
            return 0;
        }
        let count = self.lanes.len();
        let first = if bulk { self.paths.next_bulk_lane() } else { 0 };
        let order = (0..count).map(|step| (first + step) % count);
        let usable = |index: &usize| {
            let lane = &self.lanes[*index];
            lane.path.is_proven() && !(detour.is_some() && lane.timeouts.is_suspect())
        };
        let chosen = order
            .clone()
            .find(|index| usable(index) && self.lanes[*index].bulk == bulk)
            .or_else(|| order.clone().find(usable))
            .or_else(|| {
                let before = self.lanes.iter().position(|lane| Some(lane.id) == detour);
                let first = before.map_or(first, |index| index + 1);
                let mut order = (0..count).map(|step| (first + step) % count);
                order.find(|index| self.lanes[*index].path.is_proven())
            })
            .unwrap_or(0);
        if bulk {
            self.end_bulk_turn(chosen);
        }
        chosen
    }

    /// Continues with the next lane if the turn of this one ends with the bulk packet that leaves now.
    #[inline]
    pub(super) fn end_bulk_turn(&mut self, chosen: usize) {
        if self.is_turn_over() {
            let next = (chosen + 1) % self.lanes.len();
            self.paths.set_next_bulk_lane(next);
        }
    }

    /// True if the bulk packet that leaves now is the last one of its lane's turn.
    #[inline]
    pub(super) fn is_turn_over(&self) -> bool {
        self.window.flying().is_multiple_of(BULK_TURN)
    }

    /// True if [`pick_lane`](Self::pick_lane) would choose the same lane again for each packet.
    pub(super) fn has_one_lane(&self, bulk: bool) -> bool {
        let of_class = |lane: &&Lane| lane.bulk && lane.path.is_proven();
        !bulk || self.lanes.iter().filter(of_class).count() == 1
    }

    /// Selects a lane for a packet that is never acknowledged, so that its loss on a dead interface
    /// goes unnoticed. Replies go to the source of the newest packet. Requests without an answer
    /// try all interfaces in turn.
    pub(super) fn pick_control_lane(&mut self, kind: Kind) -> usize {
        let may_go = self.paths.unproven_left() >= MIN_UNPROVEN_BYTES;
        let leads_there = |lane: &Lane| {
            !lane.bulk && lane.path.may_lead_there() && (may_go || lane.path.is_heard())
        };
        let interfaces = self.lanes.iter().filter(|lane| leads_there(lane)).count();
        if interfaces < 2 {
            return self.pick_lane(false, None);
        }
        let small = self.lanes.iter().enumerate();
        let mut small = small.filter(|(_, lane)| leads_there(lane));
        let heard = small
            .clone()
            .position(|(index, _)| index == self.paths.reply_lane());
        let first = heard.unwrap_or(0);
        // Credit requests count as requests, too.
        let asks = kind == Kind::AckRequest || self.channel.credit_requests_due;
        let step = if asks { self.requests.unanswered() } else { 0 };
        let chosen = small.nth((first + step) % interfaces);
        let chosen = chosen.map_or(0, |(index, _)| index);
        if asks {
            self.requests.sent();
        }
        chosen
    }
}

//! Addresses of this process that appear and disappear.

use alloc::vec::Vec;

use crate::event::PeerId;
use crate::machine::Machine;
use crate::time::Instant;
use crate::wire::LaneAddress;

impl Machine {
    /// This process listens on these lanes from now on, and packets to the IP addresses `moved`
    /// leave through another interface than before, or not at all. Peers are sent the list. A lane
    /// that stays must keep its number, because packets under way carry it. Spec §5.3.
    pub fn set_lanes(&mut self, now: Instant, lanes: &[LaneAddress], moved: &[[u8; 16]]) {
        let is_new = self.shared.lanes != lanes;
        if is_new {
            self.shared.lanes = lanes.to_vec();
            self.lanes_serial += 1;
        }
        let serial = self.lanes_serial;
        let open = self.peers.sessions().filter(|session| session.is_open());
        let open: Vec<PeerId> = open.map(|session| session.id).collect();
        for peer in open {
            self.with(peer, |session, shared| {
                if is_new {
                    session.announce(serial);
                }
                session.own_addresses_changed(moved, now, shared);
            });
        }
    }
}

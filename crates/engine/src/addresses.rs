//! Addresses of this machine that appear and disappear while the process runs.

use std::collections::BTreeSet;
use std::net::IpAddr;

use dipole_link::{Class, Link};
use dipole_proto::Instant;
use dipole_proto::wire::Address;

use super::Engine;
use crate::link::AnyLink;
use crate::net::{from_wire, to_wire};
use crate::packets;

impl Engine {
    /// Uses the interfaces whose addresses are `present`, and sends peers the list if that is a change.
    /// What is in flight on the others is sent again at once.
    pub fn follow_addresses(&mut self, now: Instant, present: &[IpAddr]) {
        let destinations = self.destinations();
        let link = self.packets.link_mut();
        if let Some(moved) = link.set_present(present, &destinations) {
            self.addresses_changed(now, &moved);
        }
    }

    /// Uses another link for an interface, by its position in the list of its addresses, because its
    /// address has changed, and sends peers the list. The caller must let sleeping threads wait for
    /// the new [`descriptors`](Self::descriptors).
    pub fn move_interface(&mut self, now: Instant, interface: usize, link: AnyLink) {
        let destinations = self.destinations();
        let moved = (self.packets).replace_interface(interface, link, &destinations);
        self.addresses_changed(now, &moved);
    }

    /// The addresses of all peers.
    fn destinations(&self) -> Vec<IpAddr> {
        let machine = &self.core.machine;
        let lanes = machine.peers().flat_map(|peer| machine.lanes(peer));
        let all: BTreeSet<IpAddr> = lanes.map(|lane| from_wire(lane.to).ip()).collect();
        all.into_iter().collect()
    }

    /// Sends peers the list of lanes. Packets to the addresses in `moved` leave through another
    /// interface than before, or from another address.
    fn addresses_changed(&mut self, now: Instant, moved: &[IpAddr]) {
        let ip = |ip: &IpAddr| {
            let Address { ip, .. } = to_wire((*ip, 0).into());
            ip
        };
        let moved: Vec<[u8; 16]> = moved.iter().map(ip).collect();
        let lanes = packets::lanes(self.packets.link());
        self.core.machine.set_lanes(now, &lanes, &moved);
        let used = self.addresses_in_use();
        tracing::info!("this process now uses {}", used.join(", "));
        if self.core.machine.has_event() {
            self.core.handle_events(&[][..]);
        }
        if let Err(cause) = self.transmit(now) {
            // The next thread that steps gets the error.
            tracing::debug!("the new list of addresses was not sent: {cause}");
        }
        self.log_path_changes();
    }

    fn addresses_in_use(&self) -> Vec<String> {
        let link = self.packets.link();
        let addresses = link.locals(Class::Small).into_iter().enumerate();
        let in_use = addresses.filter(|(interface, _)| link.is_in_use(*interface));
        in_use
            .map(|(_, address)| address.ip().to_string())
            .collect()
    }
}

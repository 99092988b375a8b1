//! Exchange of the table of loads with other members (`load`), as packets of the membership: these
//! come from members that hold our key and have answered from their addresses.

use std::time::Duration;

use super::Membership;
use super::auth::Body;
use crate::load::{Exchange, Message};

impl Membership {
    /// The table of loads.
    pub(crate) fn load(&self) -> &Exchange {
        &self.load
    }

    pub(crate) fn load_mut(&mut self) -> &mut Exchange {
        &mut self.load
    }

    /// Sends the table to some members, if that is due.
    pub(super) fn exchange_load(&mut self, now: Duration) {
        for (node, message) in self.load.on_timer(now) {
            self.send_load(node, message);
        }
    }

    pub(super) fn on_load(&mut self, now: Duration, from: u32, message: &Message) {
        if let Some(response) = self.load.on_message(now, from, message) {
            self.send_load(from, response);
        }
    }

    fn send_load(&mut self, node: u32, message: Message) {
        if let Some(member) = self.up.get(&node).cloned() {
            self.queue(member, Body::Load(message), false);
        }
    }
}

//! Silent peers. The control thread queries their nodes.

use dipole_proto::{Instant, PeerId};

use super::Engine;
use crate::command::Command;
use dipole_naming::liveness::Liveness;

impl Engine {
    /// Lets the control thread query the nodes of peers that are silent.
    #[inline]
    pub(super) fn report_suspects(&mut self) {
        if self.core.peers.has_suspects() {
            self.ask_about_suspects();
        }
    }

    #[cold]
    fn ask_about_suspects(&mut self) {
        for peer in self.core.peers.take_suspects() {
            self.command(Command::Suspect {
                peer,
                node: self.core.peers.node(peer),
                incarnation: self.core.peers.incarnation(peer),
            });
        }
    }

    /// Applies the report on a silent peer.
    pub fn judge(&mut self, now: Instant, peer: PeerId, liveness: Liveness) {
        match liveness {
            Liveness::Runs => self.core.machine.confirm_alive(now, peer, true),
            Liveness::Stopped => self.core.machine.confirm_alive(now, peer, false),
            Liveness::Ended => self.core.machine.give_up(peer),
        }
        self.core.handle_events(&[][..]);
    }
}

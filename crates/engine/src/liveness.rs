//! Silent peers, and what their nodes say of them. The control thread asks.

use dipole_proto::{Instant, PeerId};

use super::Engine;
use crate::command::Command;
use dipole_naming::liveness::Verdict;

impl Engine {
    /// Has the control thread ask about peers that have fallen silent.
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

    /// What has become known of a silent peer.
    pub fn judge(&mut self, now: Instant, peer: PeerId, verdict: Verdict) {
        match verdict {
            Verdict::Lives => self.core.machine.vouch(now, peer),
            Verdict::Ended => self.core.machine.give_up(peer),
        }
        self.core.handle_events(&[][..]);
    }
}

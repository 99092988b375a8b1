//! Silent peers, and what their nodes say of them.

use dipole_proto::{Instant, PeerId};

use super::Engine;
use crate::liveness::{LivenessProber, Verdict};

impl Engine {
    /// From now on a silent peer's node is asked whether it lives.
    pub(crate) fn set_liveness(&mut self, liveness: LivenessProber<PeerId>) {
        self.liveness = Some(liveness);
    }

    #[inline]
    pub(super) fn poll_liveness(&mut self, now: Instant) {
        let busy = self.liveness.as_ref().is_some_and(LivenessProber::is_busy);
        if busy || self.core.peers.has_suspects() {
            self.ask_about_suspects(now);
        }
    }

    #[cold]
    fn ask_about_suspects(&mut self, now: Instant) {
        let suspects = self.core.peers.take_suspects();
        let Some(liveness) = &mut self.liveness else {
            return;
        };
        let (machine, peers) = (&mut self.core.machine, &self.core.peers);
        let mut tell = |id, verdict| match verdict {
            Verdict::Lives => machine.vouch(now, id),
            Verdict::Ended => machine.give_up(id),
        };
        for id in suspects {
            let (node, incarnation) = (peers.node(id), peers.incarnation(id));
            if let Some(verdict) = liveness.suspect(id, node, incarnation, now.0) {
                tell(id, verdict);
            }
        }
        liveness.poll(now.0, tell);
        self.core.handle_events(&[][..]);
    }
}

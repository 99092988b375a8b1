//! Silent peers, and what their nodes say of them.

use dipole_proto::{Instant, PeerId};

use super::Engine;
use super::peer::find;
use crate::address::NodeId;
use crate::liveness::{LivenessProber, Verdict};

impl Engine {
    /// From now on somebody is asked about peers that fall silent.
    pub(crate) fn set_witness(&mut self, witness: LivenessProber<PeerId>) {
        self.witness = Some(witness);
    }

    #[inline]
    pub(super) fn attend_witness(&mut self, now: Instant) {
        let busy = self.witness.as_ref().is_some_and(LivenessProber::is_busy);
        if busy || !self.quiet.is_empty() {
            self.ask_and_hear(now);
        }
    }

    #[cold]
    fn ask_and_hear(&mut self, now: Instant) {
        let Some(witness) = &mut self.witness else {
            self.quiet.clear();
            return;
        };
        let machine = &mut self.machine;
        let mut tell = |id, verdict| match verdict {
            Verdict::Lives => machine.vouch(now, id),
            Verdict::Ended => machine.give_up(id),
        };
        for id in self.quiet.drain(..) {
            if let Some(peer) = find(&mut self.peers, id)
                && let Some(verdict) =
                    witness.suspect(id, NodeId(peer.node), peer.incarnation, now.0)
            {
                tell(id, verdict);
            }
        }
        witness.poll(now.0, tell);
        self.handle_events();
    }
}

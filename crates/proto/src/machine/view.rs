//! The machine laid open, for model checkers and debuggers.

use core::hash::{Hash, Hasher};

use crate::event::PeerId;
use crate::machine::{Machine, Peer};
use crate::session::View;
use crate::time::Instant;

impl Machine {
    /// Numbers and times of a session; everything else of it goes into `hasher`.
    /// Two machines behave alike if their views are alike but for a shift of the
    /// numbers and times, and they feed the same to their hashers here and in
    /// [`hash_shared`](Self::hash_shared). Counters are left out, and what only
    /// estimates a round trip.
    pub fn view(&self, now: Instant, peer: PeerId, hasher: &mut impl Hasher) -> Option<View> {
        let session = self.session(peer)?;
        Some(session.view(now, &self.shared, hasher))
    }

    /// Feeds all of a pipe to `hasher`; false if there is no such pipe.
    pub fn hash_pipe(&self, peer: PeerId, hasher: &mut impl Hasher) -> bool {
        match self.peers.get(peer) {
            Some(Peer::Pipe(pipe)) => {
                pipe.hash_state(hasher);
                true
            }
            _ => false,
        }
    }

    /// Feeds what all sessions share to `hasher`: pool, endpoints, packets.
    pub fn hash_shared(&self, hasher: &mut impl Hasher) {
        let shared = &self.shared;
        (&shared.pool, shared.processes, shared.committed).hash(hasher);
        (&shared.endpoints, &shared.grants).hash(hasher);
        (&self.ready, self.random, self.peers.len()).hash(hasher);
        self.outbox.packets().hash(hasher);
    }
}

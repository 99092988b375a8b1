//! The state of a machine for model checkers and debuggers.

use core::hash::{Hash, Hasher};

use crate::event::PeerId;
use crate::machine::{Machine, Peer};
use crate::session::View;
use crate::time::Instant;

impl Machine {
    /// Numbers and times of a session; the rest of its state goes into `hasher`. Two machines behave
    /// alike if their views differ only by a shift of numbers and times, and if they feed the same to
    /// their hashers here and in [`hash_shared`](Self::hash_shared). Counters and details of the
    /// round-trip estimate are left out.
    pub fn view(&self, now: Instant, peer: PeerId, hasher: &mut impl Hasher) -> Option<View> {
        let session = self.session(peer)?;
        Some(session.view(now, &self.shared, hasher))
    }

    /// Hashes the state of a pipe. Returns false if it does not exist.
    pub fn hash_pipe(&self, peer: PeerId, hasher: &mut impl Hasher) -> bool {
        match self.peers.get(peer) {
            Some(Peer::Pipe(pipe)) => {
                pipe.hash_state(hasher);
                true
            }
            _ => false,
        }
    }

    /// Hashes the state that all sessions share: pool, endpoints, handshake packets.
    pub fn hash_shared(&self, hasher: &mut impl Hasher) {
        let shared = &self.shared;
        (&shared.pool, shared.processes, shared.committed).hash(hasher);
        (&shared.endpoints, &shared.grants).hash(hasher);
        (&self.ready, self.random, self.peers.len()).hash(hasher);
        self.outbox.packets().hash(hasher);
    }
}

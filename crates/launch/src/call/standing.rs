//! Whether the other end of a call is still a member.
//!
//! Each end proves that it holds the cluster key when the call begins and whenever the key that it
//! proves with has changed. A proof covers the handshake, so it holds for this call and from
//! that end only. Once a key is withdrawn, an end whose last proof was of that key has a while to
//! give another, then the call is over.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dipole_naming::key::MacKey;
use dipole_node::ClusterKey;

use super::channel::{Frame, Sender};

/// How often each end of an accepted call sends a keepalive, and looks at its key.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
/// How long an end may take to prove itself again, seen from the other.
const RENEWAL_LIMIT: Duration = Duration::from_secs(10);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The purpose of the codes.
const PURPOSE: &str = "dipole 2026 call standing";

/// An end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Caller,
    Called,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Caller => Side::Called,
            Side::Called => Side::Caller,
        }
    }
}

/// What both ends of a call have proven last.
pub struct Standing {
    key: ClusterKey,
    codes: MacKey,
    /// The hash of the handshake, which no other call has.
    handshake: Vec<u8>,
    side: Side,
    heard: Mutex<Vec<u8>>,
}

impl Standing {
    pub(super) fn new(key: &ClusterKey, handshake: &[u8], side: Side) -> Standing {
        Standing {
            key: key.clone(),
            codes: key.mac_key(PURPOSE),
            handshake: handshake.to_vec(),
            side,
            heard: Mutex::default(),
        }
    }

    fn covered(&self, side: Side) -> Vec<u8> {
        let mut covered = vec![side as u8];
        covered.extend_from_slice(&self.handshake);
        covered
    }

    /// Proves that this end holds the key.
    #[must_use]
    pub fn proof(&self) -> Frame {
        Frame::Proof(self.codes.mac(&self.covered(self.side)).to_vec())
    }

    /// The other end has sent this [`Frame::Proof`].
    pub fn heard(&self, proof: Vec<u8>) {
        // A wrong one takes nothing back.
        if self.is_right(&proof) {
            *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = proof;
        }
    }

    /// True if the other end's last proof is of a key that is still taken.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.is_right(&self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_right(&self, proof: &[u8]) -> bool {
        self.codes.verify(&self.covered(self.side.other()), proof)
    }
}

/// Sends keepalives and proofs, on a thread of its own, until sending fails.
pub fn send_keepalives<W: Write + Send + 'static>(
    sender: Arc<Mutex<Sender<W>>>,
    standing: Arc<Standing>,
) {
    std::thread::spawn(move || {
        let mut proven = None;
        loop {
            let own = standing.key.fingerprint();
            let frame = match proven.as_ref() == Some(&own) {
                true => Frame::Alive,
                false => standing.proof(),
            };
            proven = Some(own);
            let sent = {
                let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
                sender.send(&frame)
            };
            if sent.is_err() {
                return;
            }
            std::thread::sleep(KEEPALIVE_EVERY);
        }
    });
}

/// Calls `expel`, on a thread of its own, when the other end has nothing but a withdrawn key. It
/// must not wait for the other end, which may not read.
pub fn watch_standing(standing: Arc<Standing>, expel: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        let mut doubted_since: Option<Instant> = None;
        loop {
            std::thread::sleep(LOOK_EVERY);
            if standing.key.withdrawals() == 0 || standing.holds() {
                doubted_since = None;
            } else if doubted_since.get_or_insert_with(Instant::now).elapsed() >= RENEWAL_LIMIT {
                return expel();
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_call_one_end_and_the_keys_that_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        ClusterKey::random().unwrap().save(&file).unwrap();
        let key = ClusterKey::load(&file).unwrap();
        let stale = ClusterKey::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let caller = Standing::new(&key, b"this call", Side::Caller);
        let called = Standing::new(&key, b"this call", Side::Called);
        let withdrawn = Standing::new(&stale, b"this call", Side::Caller);
        let hear = |from: &Standing| match from.proof() {
            Frame::Proof(proof) => called.heard(proof),
            other => panic!("{other:?}"),
        };
        assert!(!called.holds(), "nothing is proven yet");
        hear(&called);
        hear(&Standing::new(&key, b"another call", Side::Caller));
        hear(&Standing::new(
            &ClusterKey::new([1; 32]),
            b"this call",
            Side::Caller,
        ));
        assert!(!called.holds(), "its own, of another call, of another key");
        hear(&withdrawn);
        assert!(called.holds());
        // Whoever follows the file goes on, whoever has the old key alone is out.
        for step in 0..3 {
            ClusterKey::rotate(&file, step > 0).unwrap();
            std::thread::sleep(Duration::from_millis(60));
            assert_eq!(called.holds(), step < 2, "{step}");
        }
        assert_eq!(key.withdrawals(), 1);
        hear(&withdrawn);
        assert!(!called.holds());
        hear(&caller);
        assert!(called.holds());
        hear(&withdrawn);
        assert!(called.holds(), "a wrong one takes nothing back");
    }
}

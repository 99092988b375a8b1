//! Checks during a call that the other end is still a member.
//!
//! Each end proves that it holds the cluster key when the call begins and whenever the key that it
//! makes proofs with has changed. A proof covers the handshake, so it is valid for this call and
//! that end only. After a key is withdrawn, an end whose last proof was made with it has 10 s to
//! send another; then the call ends.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dipole_naming::key::MacKey;
use dipole_naming::threads;
use dipole_node::ClusterKey;

use super::channel::{Channel, Frame, Sender, Side};

/// How often each end of an accepted call sends a keepalive, and checks its key.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
/// How long an end may take to send a new proof.
const RENEWAL_LIMIT: Duration = Duration::from_secs(10);
/// How often that is checked.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// Purpose of the MAC key.
const PURPOSE: &str = "dipole 2026 call standing";

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Caller => Side::Called,
            Side::Called => Side::Caller,
        }
    }
}

/// The proofs of both ends of a call.
pub struct Standing {
    key: ClusterKey,
    codes: MacKey,
    /// Hash of the handshake, which is unique to this call.
    handshake: Vec<u8>,
    side: Side,
    last_proof: Mutex<Vec<u8>>,
}

impl Standing {
    /// The standing of the ends of this call.
    #[must_use]
    pub fn of(channel: &Channel, key: &ClusterKey) -> Standing {
        Standing::new(key, &channel.handshake, channel.side)
    }

    fn new(key: &ClusterKey, handshake: &[u8], side: Side) -> Standing {
        Standing {
            key: key.clone(),
            codes: key.mac_key(PURPOSE),
            handshake: handshake.to_vec(),
            side,
            last_proof: Mutex::default(),
        }
    }

    fn covered(&self, side: Side) -> Vec<u8> {
        let mut covered = vec![side as u8];
        covered.extend_from_slice(&self.handshake);
        covered
    }

    /// A proof that this end holds the key.
    #[must_use]
    pub fn proof(&self) -> Frame {
        Frame::Proof(self.codes.mac(&self.covered(self.side)).to_vec())
    }

    /// Handles a [`Frame::Proof`] of the other end.
    pub fn on_proof(&self, proof: Vec<u8>) {
        // An invalid proof does not replace a valid one.
        if self.is_valid(&proof) {
            *self
                .last_proof
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = proof;
        }
    }

    /// True if the other end's last proof was made with a key that is still accepted.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.is_valid(
            &self
                .last_proof
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    fn is_valid(&self, proof: &[u8]) -> bool {
        self.codes.verify(&self.covered(self.side.other()), proof)
    }
}

/// Starts a thread that sends keepalives and proofs until sending fails.
///
/// # Errors
/// No thread can be started.
pub fn send_keepalives<W: Write + Send + 'static>(
    sender: Arc<Mutex<Sender<W>>>,
    standing: Arc<Standing>,
) -> io::Result<()> {
    threads::start("dipole-alive", move || {
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
    })?;
    Ok(())
}

/// Starts a thread that calls `expel` when the other end has only a withdrawn key. `expel` must not
/// wait for the other end, which may not read.
///
/// # Errors
/// No thread can be started.
pub fn watch_standing(
    standing: Arc<Standing>,
    expel: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    threads::start("dipole-standing", move || {
        let mut invalid_since: Option<Instant> = None;
        loop {
            std::thread::sleep(CHECK_EVERY);
            if standing.key.withdrawals() == 0 || standing.holds() {
                invalid_since = None;
            } else if invalid_since.get_or_insert_with(Instant::now).elapsed() >= RENEWAL_LIMIT {
                return expel();
            }
        }
    })?;
    Ok(())
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
        let receive = |from: &Standing| match from.proof() {
            Frame::Proof(proof) => called.on_proof(proof),
            other => panic!("{other:?}"),
        };
        assert!(!called.holds(), "nothing is proven yet");
        receive(&called);
        receive(&Standing::new(&key, b"another call", Side::Caller));
        receive(&Standing::new(
            &ClusterKey::new([1; 32]),
            b"this call",
            Side::Caller,
        ));
        assert!(!called.holds(), "its own, of another call, of another key");
        receive(&withdrawn);
        assert!(called.holds());
        // An end that follows the file stays a member, one that has only the old key does not.
        for step in 0..3 {
            ClusterKey::rotate(&file, step > 0).unwrap();
            std::thread::sleep(Duration::from_millis(60));
            assert_eq!(called.holds(), step < 2, "{step}");
        }
        assert_eq!(key.withdrawals(), 1);
        receive(&withdrawn);
        assert!(!called.holds());
        receive(&caller);
        assert!(called.holds());
        receive(&withdrawn);
        assert!(
            called.holds(),
            "an invalid proof does not replace a valid one"
        );
    }
}

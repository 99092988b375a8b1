//! The start of a call: the agent sends a greeting, the caller proves that it holds the key.
//!
//! The greeting has a random number for this call, which the proof (the first message of the Noise
//! handshake) covers. So a proof cannot be reused, and the agent can verify it without the
//! expensive part of the handshake.

use std::io;
use std::sync::LazyLock;

use dipole_naming::key::random_bytes;
use dipole_node::ClusterKey;
use snow::params::NoiseParams;
use snow::{Builder, HandshakeState};

/// Length of the agent's greeting.
pub const GREETING_BYTES: usize = 26;
/// Length of the caller's proof: a public key, and the tag of an empty payload.
pub const PROOF_BYTES: usize = 48;

const MAGIC: [u8; 8] = *b"dipole\x1a\n";
const VERSION: u8 = 2;
const STATUS_AT: usize = 9;
const NUMBER_AT: usize = 10;
const NUMBER_BYTES: usize = GREETING_BYTES - NUMBER_AT;
const PURPOSE: &str = "dipole 2026 reach";

static PARAMETERS: LazyLock<NoiseParams> = LazyLock::new(|| {
    "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s"
        .parse()
        .expect("a pattern of the Noise specification")
});

/// The first message of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting([u8; GREETING_BYTES]);

impl Greeting {
    /// A greeting for a new call.
    pub fn draw() -> io::Result<Greeting> {
        Ok(Greeting::of(0, random_bytes()?))
    }

    /// For a call that is refused because the agent is busy; also sent instead of the reply to a
    /// proof.
    pub fn busy() -> Greeting {
        Greeting::of(1, [0; NUMBER_BYTES])
    }

    /// Sent instead of the reply to a proof of another key.
    pub fn other_key() -> Greeting {
        Greeting::of(2, [0; NUMBER_BYTES])
    }

    fn of(status: u8, number: [u8; NUMBER_BYTES]) -> Greeting {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8] = VERSION;
        bytes[STATUS_AT] = status;
        bytes[NUMBER_AT..].copy_from_slice(&number);
        Greeting(bytes)
    }

    /// A greeting that [`draw`](Self::draw) made in another process.
    pub fn from_bytes(bytes: [u8; GREETING_BYTES]) -> Greeting {
        Greeting(bytes)
    }

    /// Returns the encoded greeting.
    pub fn bytes(&self) -> &[u8; GREETING_BYTES] {
        &self.0
    }

    /// True if the agent is too busy for this call; a later one may succeed.
    pub fn is_busy(&self) -> bool {
        *self == Greeting::busy()
    }

    /// Checks that the agent accepts calls; the error contains the reason if not.
    pub fn check(&self) -> Result<(), String> {
        if self.0[..8] != MAGIC {
            return Err("another program than an agent of Dipole listens there".to_owned());
        }
        if self.0[8] != VERSION {
            let version = self.0[8];
            return Err(format!(
                "its agent uses version {version} of the call protocol, not {VERSION}; install the same \
                 dipole there"
            ));
        }
        match self.0[STATUS_AT] {
            0 => Ok(()),
            2 => Err("its agent holds another cluster key".to_owned()),
            _ => Err("its agent already has too many jobs or callers".to_owned()),
        }
    }
}

/// Starts a handshake as the caller, with its proof.
pub(super) fn prove(
    key: &ClusterKey,
    greeting: &Greeting,
) -> Result<(HandshakeState, [u8; PROOF_BYTES]), snow::Error> {
    let secret = key.derive(PURPOSE).next().expect("the key's own");
    let mut caller = Builder::new(PARAMETERS.clone())
        .prologue(&greeting.0)?
        .psk(0, &secret)?
        .build_initiator()?;
    let mut proof = [0; PROOF_BYTES];
    caller.write_message(&[], &mut proof)?;
    Ok((caller, proof))
}

/// Continues the handshake of a caller that sent this proof; `None` if the caller holds no accepted
/// key.
pub(super) fn accept_proof(
    key: &ClusterKey,
    greeting: &Greeting,
    proof: &[u8; PROOF_BYTES],
) -> Option<HandshakeState> {
    key.derive(PURPOSE).find_map(|secret| {
        let builder = Builder::new(PARAMETERS.clone()).prologue(&greeting.0);
        let mut called = builder.ok()?.psk(0, &secret).ok()?.build_responder().ok()?;
        let length = called.read_message(proof, &mut [0; PROOF_BYTES]).ok()?;
        (length == 0).then_some(called)
    })
}

/// True if the sender of this proof holds the key and received this greeting.
#[must_use]
pub fn verify(key: &ClusterKey, greeting: &Greeting, proof: &[u8; PROOF_BYTES]) -> bool {
    accept_proof(key, greeting, proof).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_one_key_and_one_greeting_only() {
        let (key, other) = (ClusterKey::new([1; 32]), ClusterKey::new([2; 32]));
        let greeting = Greeting::draw().unwrap();
        let (_, proof) = prove(&key, &greeting).unwrap();
        assert!(verify(&key, &greeting, &proof));
        assert!(!verify(&other, &greeting, &proof));
        assert!(!verify(&key, &Greeting::draw().unwrap(), &proof));
        for bit in 0..PROOF_BYTES * 8 {
            let mut bad = proof;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(&key, &greeting, &bad), "bit {bit}");
        }
        assert!(!verify(&key, &greeting, &[0; PROOF_BYTES]));
    }

    #[test]
    fn an_invalid_greeting_is_distinguished_from_a_busy_server() {
        let greeting = Greeting::draw().unwrap();
        assert_eq!(greeting.check(), Ok(()));
        assert!(Greeting::busy().check().unwrap_err().contains("too many"));
        assert!(Greeting::busy().is_busy() && !greeting.is_busy());
        let error = Greeting::other_key().check().unwrap_err();
        assert!(error.contains("another cluster key"), "{error}");
        let mut bytes = *greeting.bytes();
        bytes[8] = 9;
        let error = Greeting::from_bytes(bytes).check().unwrap_err();
        assert!(error.contains("version 9"), "{error}");
        let ssh = Greeting::from_bytes(*b"SSH-2.0-OpenSSH_9.2 Debian");
        assert!(ssh.check().unwrap_err().contains("another program"));
    }
}

//! Both directions of a call: frames in Noise messages with a length prefix.
//!
//! A message that was damaged, dropped, repeated or reordered is an error, and so is an end without
//! [`Frame::Last`] where one is expected. One message holds at most [`MAX_CHUNK_BYTES`] of a
//! stream.

use std::io::{self, Read, Write};
use std::sync::Arc;

use dipole_node::ClusterKey;
use snow::{Error, StatelessTransportState};

use super::greeting::{GREETING_BYTES, Greeting, PROOF_BYTES, accept_proof, prove};

/// Maximum bytes of a stream in one message.
pub const MAX_CHUNK_BYTES: usize = 32 << 10;
const TAG_BYTES: usize = 16;
/// Kind, payload and tag.
const LONGEST_MESSAGE: usize = 1 + MAX_CHUNK_BYTES + TAG_BYTES;
/// The second message of the handshake: a public key, and the tag of an empty payload.
const REPLY_BYTES: usize = 48;

/// The content of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Standard input or output.
    Data(Vec<u8>),
    /// Bytes of standard error.
    Errors(Vec<u8>),
    /// Standard input has ended.
    InputEnd,
    /// The last frame: the exit status of the guard.
    Last(u8),
    /// A [`Request`](super::Request).
    Request(Vec<u8>),
    /// An [`Answer`](super::Answer).
    Answer(Vec<u8>),
    /// Sent periodically while there is nothing else to send.
    Alive,
    /// Proof that this end still holds the key: see [`Standing`](super::Standing).
    Proof(Vec<u8>),
}

/// An end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Caller,
    Called,
}

/// A call whose ends have authenticated each other. The first frame completes the caller's proof.
pub struct Channel {
    cipher: Arc<StatelessTransportState>,
    /// Hash of the handshake, which is unique to this call.
    pub(super) handshake: Vec<u8>,
    pub(super) side: Side,
}

impl Channel {
    /// Proves to the agent that this caller holds the key, and verifies the agent's proof.
    ///
    /// # Errors
    /// Among others [`io::ErrorKind::ResourceBusy`] if the agent is busy, and
    /// [`io::ErrorKind::PermissionDenied`] if the agent reports that it holds another key.
    pub fn call(
        stream: &mut (impl Read + Write),
        key: &ClusterKey,
        greeting: &Greeting,
    ) -> io::Result<Channel> {
        let (mut state, proof) = prove(key, greeting).map_err(broken)?;
        let mut reply = [0; REPLY_BYTES];
        stream.write_all(&proof)?;
        let mut length = 0;
        while length < REPLY_BYTES {
            match stream.read(&mut reply[length..]) {
                Ok(0) => return Err(closed(&reply[..length])),
                Ok(read) => length += read,
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                Err(cause) if cause.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(closed(&reply[..length]));
                }
                Err(cause) => return Err(cause),
            }
        }
        state
            .read_message(&reply, &mut [0; REPLY_BYTES])
            .map_err(broken)?;
        Channel::from(state, Side::Caller)
    }

    /// Completes the handshake with a caller that sent this proof.
    pub fn answer(
        stream: &mut impl Write,
        key: &ClusterKey,
        greeting: &Greeting,
        proof: &[u8; PROOF_BYTES],
    ) -> io::Result<Channel> {
        let mut state = accept_proof(key, greeting, proof).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "the proof is of another cluster key",
            )
        })?;
        let mut reply = [0; REPLY_BYTES];
        state.write_message(&[], &mut reply).map_err(broken)?;
        stream.write_all(&reply)?;
        Channel::from(state, Side::Called)
    }

    fn from(state: snow::HandshakeState, side: Side) -> io::Result<Channel> {
        let handshake = state.get_handshake_hash().to_vec();
        let cipher = state.into_stateless_transport_mode().map_err(broken)?;
        Ok(Channel {
            cipher: Arc::new(cipher),
            handshake,
            side,
        })
    }

    /// Splits the call into its two directions, so that each can have a thread.
    pub fn split<R: Read, W: Write>(self, from: R, to: W) -> (Receiver<R>, Sender<W>) {
        let receiver = Receiver {
            from,
            cipher: Arc::clone(&self.cipher),
            next: 0,
        };
        let sender = Sender {
            to,
            cipher: self.cipher,
            next: 0,
        };
        (receiver, sender)
    }
}

/// The sending direction of a call.
pub struct Sender<W> {
    to: W,
    cipher: Arc<StatelessTransportState>,
    next: u64,
}

impl<W: Write> Sender<W> {
    /// Returns the underlying stream.
    pub fn stream(&self) -> &W {
        &self.to
    }

    /// Encrypts a frame and writes it.
    pub fn send(&mut self, frame: &Frame) -> io::Result<()> {
        let status;
        let (kind, payload): (u8, &[u8]) = match frame {
            Frame::Data(bytes) => (1, bytes),
            Frame::Errors(bytes) => (2, bytes),
            Frame::InputEnd => (3, &[]),
            Frame::Last(number) => {
                status = [*number];
                (4, &status)
            }
            Frame::Request(bytes) => (5, bytes),
            Frame::Answer(bytes) => (6, bytes),
            Frame::Alive => (7, &[]),
            Frame::Proof(bytes) => (8, bytes),
        };
        if payload.len() > MAX_CHUNK_BYTES {
            return Err(io::Error::other("a frame of more than 32 KiB"));
        }
        let mut plain = Vec::with_capacity(1 + payload.len());
        plain.push(kind);
        plain.extend_from_slice(payload);
        let mut message = vec![0; 2 + plain.len() + TAG_BYTES];
        let length = self
            .cipher
            .write_message(self.next, &plain, &mut message[2..])
            .map_err(broken)?;
        self.next += 1;
        let prefix = u16::try_from(length).map_err(|_| io::Error::other("a message too long"))?;
        message[..2].copy_from_slice(&prefix.to_le_bytes());
        self.to.write_all(&message)?;
        self.to.flush()
    }
}

/// The receiving direction of a call.
pub struct Receiver<R> {
    from: R,
    cipher: Arc<StatelessTransportState>,
    next: u64,
}

impl<R: Read> Receiver<R> {
    /// Receives the next frame; `None` if the stream has ended.
    pub fn receive(&mut self) -> io::Result<Option<Frame>> {
        let mut prefix = [0; 2];
        let first = loop {
            match self.from.read(&mut prefix[..1]) {
                Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        if first == 0 {
            return Ok(None);
        }
        self.from.read_exact(&mut prefix[1..])?;
        let length = usize::from(u16::from_le_bytes(prefix));
        if !(1 + TAG_BYTES..=LONGEST_MESSAGE).contains(&length) {
            return Err(io::Error::other(format!("a message of {length} bytes")));
        }
        let mut message = vec![0; length];
        self.from.read_exact(&mut message)?;
        let mut plain = vec![0; length];
        let length = self
            .cipher
            .read_message(self.next, &message, &mut plain)
            .map_err(broken)?;
        self.next += 1;
        plain.truncate(length);
        let kind = plain.remove(0);
        Ok(Some(match (kind, plain.as_slice()) {
            (1, _) => Frame::Data(plain),
            (2, _) => Frame::Errors(plain),
            (3, []) => Frame::InputEnd,
            (4, [status]) => Frame::Last(*status),
            (5, _) => Frame::Request(plain),
            (6, _) => Frame::Answer(plain),
            (7, []) => Frame::Alive,
            (8, _) => Frame::Proof(plain),
            _ => return Err(io::Error::other(format!("a frame of unknown kind {kind}"))),
        }))
    }
}

/// Why the agent closed the connection, from what it sent instead of its reply. It is not
/// authenticated: an attacker on the path can forge it, as it can close the connection.
fn closed(reply: &[u8]) -> io::Error {
    let reply: Option<[u8; GREETING_BYTES]> = reply.try_into().ok();
    match reply.map(Greeting::from_bytes) {
        Some(reply) if reply.is_busy() => io::ErrorKind::ResourceBusy.into(),
        Some(reply) if reply == Greeting::other_key() => io::ErrorKind::PermissionDenied.into(),
        _ => io::ErrorKind::UnexpectedEof.into(),
    }
}

fn broken(error: Error) -> io::Error {
    match error {
        Error::Decrypt => io::Error::new(
            io::ErrorKind::InvalidData,
            "the other end holds another key, or its data was changed on the way",
        ),
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use std::os::unix::net::UnixStream;

    /// A call over a socket pair: caller and called.
    fn call() -> (Channel, Channel) {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let key = ClusterKey::new([3; 32]);
        let greeting = Greeting::draw().unwrap();
        std::thread::scope(|scope| {
            let called = scope.spawn(|| {
                let mut proof = [0; PROOF_BYTES];
                theirs.read_exact(&mut proof).unwrap();
                Channel::answer(&mut theirs, &key, &greeting, &proof).unwrap()
            });
            let caller = Channel::call(&mut ours, &key, &greeting).unwrap();
            (caller, called.join().unwrap())
        })
    }

    fn frames() -> Vec<Frame> {
        vec![
            Frame::Request(b"{}".to_vec()),
            Frame::Answer(b"[]".to_vec()),
            Frame::Data(vec![7; MAX_CHUNK_BYTES]),
            Frame::Errors(Vec::new()),
            Frame::Alive,
            Frame::Proof(vec![9; 16]),
            Frame::InputEnd,
            Frame::Last(137),
        ]
    }

    /// A caller's frames on the wire, and the cipher of the receiver.
    fn sent() -> (Vec<u8>, Arc<StatelessTransportState>) {
        let (caller, called) = call();
        let mut wire = Vec::new();
        let (_, mut sender) = caller.split(io::empty(), &mut wire);
        for frame in frames() {
            sender.send(&frame).unwrap();
        }
        (wire, called.cipher)
    }

    fn read(wire: &[u8], cipher: &Arc<StatelessTransportState>) -> (Vec<Frame>, bool) {
        let mut receiver = Receiver {
            from: wire,
            cipher: Arc::clone(cipher),
            next: 0,
        };
        let mut found = Vec::new();
        loop {
            match receiver.receive() {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => return (found, true),
                Err(_) => return (found, false),
            }
        }
    }

    #[test]
    fn frames_read_back_as_sent() {
        let (wire, cipher) = sent();
        assert_eq!(read(&wire, &cipher), (frames(), true));
        let (caller, _) = call();
        let (_, mut sender) = caller.split(io::empty(), Vec::new());
        assert!(
            sender
                .send(&Frame::Data(vec![0; MAX_CHUNK_BYTES + 1]))
                .is_err()
        );
    }

    #[test]
    fn changed_cut_repeated_and_exchanged_messages_are_errors() {
        let (wire, cipher) = sent();
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..300 {
            let mut bad = wire.clone();
            let bit = random.random_range(0..bad.len() * 8);
            bad[bit / 8] ^= 1 << (bit % 8);
            let (found, whole) = read(&bad, &cipher);
            assert!(!whole, "bit {bit}");
            assert!(frames().starts_with(&found), "bit {bit}");
            let cut = random.random_range(0..wire.len());
            let (found, _) = read(&wire[..cut], &cipher);
            assert!(found.len() < frames().len() && frames().starts_with(&found));
        }
        let first = 2 + usize::from(u16::from_le_bytes([wire[0], wire[1]]));
        assert_eq!(read(&wire[first..], &cipher), (Vec::new(), false));
        let twice = [&wire[..first], &wire[..first]].concat();
        assert_eq!(read(&twice, &cipher), (frames()[..1].to_vec(), false));
    }

    #[test]
    fn garbage_is_an_error_and_never_a_frame() {
        let (_, cipher) = sent();
        let mut random = StdRng::seed_from_u64(2);
        for _ in 0..2000 {
            let length = random.random_range(0..200);
            let garbage: Vec<u8> = (0..length).map(|_| random.random()).collect();
            let (found, _) = read(&garbage, &cipher);
            assert_eq!(found, [], "{garbage:?}");
        }
    }

    #[test]
    fn a_caller_reports_why_the_agent_closed_the_connection() {
        use io::ErrorKind::{PermissionDenied, ResourceBusy, UnexpectedEof};
        for (message, kind) in [
            (Some(Greeting::busy()), ResourceBusy),
            (Some(Greeting::other_key()), PermissionDenied),
            (Some(Greeting::draw().unwrap()), UnexpectedEof),
            (None, UnexpectedEof),
        ] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            if let Some(message) = message {
                theirs.write_all(message.bytes()).unwrap();
            }
            theirs.shutdown(std::net::Shutdown::Write).unwrap();
            let greeting = Greeting::draw().unwrap();
            let call = Channel::call(&mut ours, &ClusterKey::new([3; 32]), &greeting);
            assert_eq!(call.err().map(|cause| cause.kind()), Some(kind));
        }
    }

    #[test]
    fn a_caller_notices_an_agent_without_the_key() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&[5; REPLY_BYTES]).unwrap();
        let greeting = Greeting::draw().unwrap();
        let Err(cause) = Channel::call(&mut ours, &ClusterKey::new([3; 32]), &greeting) else {
            panic!("it proved itself");
        };
        assert_eq!(cause.kind(), io::ErrorKind::InvalidData);
    }
}

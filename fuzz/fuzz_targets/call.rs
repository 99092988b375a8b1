//! Calls between an agent and its caller: arbitrary greetings, proofs and frames, also from a peer
//! that has the key.

#![cfg_attr(fuzzing, no_main)]

use std::io::Cursor;

use dipole_fuzz::fuzz_target;
use dipole_launch::call::{
    Answer, Channel, Frame, GREETING_BYTES, Greeting, PROOF_BYTES, Request, verify,
};
use dipole_node::ClusterKey;

fuzz_target!(|bytes: &[u8]| {
    let key = ClusterKey::new([7; 32]);
    let _ = serde_json::from_slice::<Request>(bytes);
    let _ = serde_json::from_slice::<Answer>(bytes);
    let Some((head, rest)) = bytes.split_first_chunk::<GREETING_BYTES>() else {
        return;
    };
    let greeting = Greeting::from_bytes(*head);
    let _ = (greeting.is_busy(), greeting.check());
    if let Some(proof) = rest.first_chunk::<PROOF_BYTES>() {
        assert!(!verify(&key, &greeting, proof), "a proof cannot be guessed");
    }
    // An agent that this side calls and that does not have the key.
    let mut stranger = Stream {
        says: rest,
        heard: Vec::new(),
    };
    assert!(Channel::call(&mut stranger, &key, &greeting).is_err());
    // A peer that has the key and then sends arbitrary bytes, or arbitrary messages in valid frames.
    let proof: [u8; PROOF_BYTES] = stranger.heard.try_into().expect("the caller's proof");
    let mut reply = Vec::new();
    let called = Channel::answer(&mut reply, &key, &greeting, &proof).expect("the right key");
    let (mut receiver, mut sender) = called.split(Cursor::new(rest), Vec::new());
    while let Ok(Some(frame)) = receiver.receive() {
        let _ = sender.send(&frame);
    }
    let _ = sender.send(&Frame::Data(rest.to_vec()));
});

/// A peer that sends these bytes.
struct Stream<'a> {
    says: &'a [u8],
    heard: Vec<u8>,
}

impl std::io::Read for Stream<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.says.read(into)
    }
}

impl std::io::Write for Stream<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.heard.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

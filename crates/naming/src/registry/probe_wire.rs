//! The look-up that asks who answers, and its answer: both as long as the asker wants.
//!
//! They tell whether packets of a length get through. Bytes not named are zero; the last
//! four are the CRC32C of all before them.
//!
//! ```text
//! LOOKUP  0 header(32)  32 nonce(8)  40 node(4)  44 zero(4)  48 question(1) = 1
//! FOUND   0 header(32)  32 nonce(8)  40 node(4)  44 zero(4)  48 status(1) = 3  49 zero(3)
//!         52 max packet(2)  54 version(6)
//! ```

use super::directory_wire::{
    CRC_BYTES, FOUND, LOOKUP, Lookup, PACKET_BYTES, WireError, array, check, crc, decode_lookup,
    zero,
};
use crate::address::NodeId;

/// The longest probe: what the longest frame of a link has.
pub const MAX_PROBE_BYTES: usize = dipole_link::udp::MAX_FRAME_BYTES;
const QUESTION_AT: usize = 48;
/// In a look-up: who answers here?
const WHO: u8 = 1;
/// In an answer: this node does.
const PRESENT: u8 = 3;
const USED_BYTES: usize = 60;

/// A question: who answers here?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Random; the answer repeats it.
    pub nonce: u64,
    /// Whom the asker expects.
    pub node: NodeId,
    /// Length of the packet, and of its answer.
    pub length_bytes: usize,
}

/// The answer to a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presence {
    /// That of the question.
    pub nonce: u64,
    /// Who answers.
    pub node: NodeId,
    /// The longest packet that processes of this node take; 0 if unknown.
    pub max_packet_bytes: u16,
    /// Version of the program that answers: major, minor, patch.
    pub version: [u16; 3],
}

/// What a directory can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Where an endpoint is.
    Where(Lookup),
    /// Who answers.
    Who(Probe),
}

/// Reads a question of either kind.
///
/// # Errors
/// The packet is no well-formed LOOKUP.
pub fn decode_question(bytes: &[u8]) -> Result<Question, WireError> {
    if bytes.len() < PACKET_BYTES || bytes[QUESTION_AT] != WHO {
        return decode_lookup(bytes).map(Question::Where);
    }
    opened(bytes, LOOKUP)?;
    zero(bytes, 44, QUESTION_AT)?;
    zero(bytes, QUESTION_AT + 1, bytes.len() - CRC_BYTES)?;
    Ok(Question::Who(Probe {
        nonce: u64::from_le_bytes(array(bytes, 32)),
        node: NodeId(u32::from_le_bytes(array(bytes, 40))),
        length_bytes: bytes.len(),
    }))
}

/// Writes a probe.
///
/// # Panics
/// When the length is not from [`PACKET_BYTES`] to [`MAX_PROBE_BYTES`].
#[must_use]
pub fn encode_probe(probe: &Probe) -> Vec<u8> {
    let mut bytes = begin(LOOKUP, probe.nonce, probe.node, probe.length_bytes);
    bytes[QUESTION_AT] = WHO;
    sealed(bytes)
}

/// Writes the answer to a probe of that length.
///
/// # Panics
/// As [`encode_probe`].
#[must_use]
pub fn encode_presence(presence: &Presence, length_bytes: usize) -> Vec<u8> {
    let mut bytes = begin(FOUND, presence.nonce, presence.node, length_bytes);
    bytes[QUESTION_AT] = PRESENT;
    bytes[52..54].copy_from_slice(&presence.max_packet_bytes.to_le_bytes());
    for (index, part) in presence.version.iter().enumerate() {
        let at = 54 + 2 * index;
        bytes[at..at + 2].copy_from_slice(&part.to_le_bytes());
    }
    sealed(bytes)
}

/// Reads the answer to a probe.
///
/// # Errors
/// The packet is no well-formed answer of that kind.
pub fn decode_presence(bytes: &[u8]) -> Result<Presence, WireError> {
    opened(bytes, FOUND)?;
    if bytes[QUESTION_AT] != PRESENT {
        return Err(WireError::Field {
            offset_bytes: QUESTION_AT,
        });
    }
    zero(bytes, 44, QUESTION_AT)?;
    zero(bytes, 49, 52)?;
    zero(bytes, USED_BYTES, bytes.len() - CRC_BYTES)?;
    Ok(Presence {
        nonce: u64::from_le_bytes(array(bytes, 32)),
        node: NodeId(u32::from_le_bytes(array(bytes, 40))),
        max_packet_bytes: u16::from_le_bytes(array(bytes, 52)),
        version: [54, 56, 58].map(|at| u16::from_le_bytes(array(bytes, at))),
    })
}

fn begin(kind: u8, nonce: u64, node: NodeId, length_bytes: usize) -> Vec<u8> {
    assert!(
        (PACKET_BYTES..=MAX_PROBE_BYTES).contains(&length_bytes),
        "a probe of {length_bytes} bytes"
    );
    let length = u16::try_from(length_bytes).expect("checked above");
    let mut bytes = vec![0; length_bytes];
    bytes[0] = kind;
    bytes[2..4].copy_from_slice(&length.to_le_bytes());
    bytes[32..40].copy_from_slice(&nonce.to_le_bytes());
    bytes[40..44].copy_from_slice(&node.0.to_le_bytes());
    bytes
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.len() - CRC_BYTES;
    let sum = crc(&bytes[..end]);
    bytes[end..].copy_from_slice(&sum);
    bytes
}

fn opened(bytes: &[u8], kind: u8) -> Result<(), WireError> {
    let length = bytes.len();
    if !(PACKET_BYTES..=MAX_PROBE_BYTES).contains(&length) {
        return Err(WireError::Length {
            found_bytes: length,
        });
    }
    check(bytes, kind)
}

#[cfg(test)]
mod tests {
    use super::super::directory_wire::{decode_found, encode_lookup};
    use super::*;
    use crate::address::Address;

    const PROBE: Probe = Probe {
        nonce: 0x0102_0304_0506_0708,
        node: NodeId(3),
        length_bytes: PACKET_BYTES,
    };
    const PRESENCE: Presence = Presence {
        nonce: 9,
        node: NodeId(u32::MAX),
        max_packet_bytes: 1472,
        version: [0, 1, 65_535],
    };

    #[test]
    fn probes_and_answers_of_every_length_read_back() {
        for length_bytes in [PACKET_BYTES, 101, 1472, MAX_PROBE_BYTES] {
            let probe = Probe {
                length_bytes,
                ..PROBE
            };
            let bytes = encode_probe(&probe);
            assert_eq!(bytes.len(), length_bytes);
            assert_eq!(decode_question(&bytes), Ok(Question::Who(probe)));
            let bytes = encode_presence(&PRESENCE, length_bytes);
            assert_eq!(bytes.len(), length_bytes);
            assert_eq!(decode_presence(&bytes), Ok(PRESENCE));
        }
        let lookup = Lookup {
            nonce: 1,
            address: Address::new(2, 3),
        };
        let question = decode_question(&encode_lookup(&lookup));
        assert_eq!(question, Ok(Question::Where(lookup)));
    }

    #[test]
    fn every_single_changed_bit_is_refused_and_a_cut_packet_too() {
        for length_bytes in [PACKET_BYTES, 140] {
            let probe = encode_probe(&Probe {
                length_bytes,
                ..PROBE
            });
            let answer = encode_presence(&PRESENCE, length_bytes);
            for bit in 0..length_bytes * 8 {
                let (mut bad, mut worse) = (probe.clone(), answer.clone());
                bad[bit / 8] ^= 1 << (bit % 8);
                worse[bit / 8] ^= 1 << (bit % 8);
                assert!(decode_question(&bad).is_err(), "bit {bit}");
                assert!(decode_presence(&worse).is_err(), "bit {bit}");
            }
            for length in 0..length_bytes {
                assert!(decode_question(&probe[..length]).is_err(), "{length}");
                assert!(decode_presence(&answer[..length]).is_err(), "{length}");
            }
        }
    }

    #[test]
    fn undefined_values_are_refused_and_neither_answer_passes_for_the_other() {
        for at in [1, 4, 31, 44, 49, 60, 135] {
            let mut bytes = encode_presence(&PRESENCE, 140);
            bytes[at] = 1;
            let field = WireError::Field { offset_bytes: at };
            assert_eq!(decode_presence(&sealed(bytes)), Err(field), "byte {at}");
        }
        let mut bytes = encode_probe(&PROBE);
        bytes[50] = 1;
        assert!(decode_question(&sealed(bytes)).is_err());
        // Who does not know probes refuses them.
        assert!(decode_lookup(&encode_probe(&PROBE)).is_err());
        assert!(decode_found(&encode_presence(&PRESENCE, PACKET_BYTES)).is_err());
    }
}

//! Messages between a client and the broker: one each way, encoded with postcard.
//!
//! A message is the protocol's magic, its version (two bytes, little-endian), and the encoded
//! value. Descriptors are attached to it (`SCM_RIGHTS`); how many are expected follows from the
//! value. Both sides distrust the bytes: length, version and every field are checked, and nothing
//! may follow the value.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::InterfaceId;

/// Version of the protocol between client and broker.
pub const VERSION: u16 = 2;

/// Maximum length of a message.
pub const MAX_MESSAGE_BYTES: usize = 512;

const MAGIC: [u8; 4] = *b"DPgr";
/// Maximum length of a refusal's text, so that the message fits.
const MAX_TEXT_BYTES: usize = 400;

/// A client's request to the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Only query whether it would be granted.
    pub dry: bool,
    /// Bytes of the ring.
    pub ring_bytes: u32,
}

/// The broker's reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The ring comes along, unless the request was a dry run.
    Granted(Granted),
    /// No descriptors come along.
    Refused(Refusal),
}

/// Content of a grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The interface whose packets are put into the ring.
    pub interface: InterfaceId,
    /// Bytes of the ring.
    pub ring_bytes: u32,
    /// A socket for raw frames comes along.
    pub sender: bool,
}

/// Why nothing is granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Reason as a code, for programs.
    pub reason: Reason,
    /// Reason as text, for people.
    pub text: String,
}

/// Why nothing is granted, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The request is of another version.
    Version,
    /// The request is malformed.
    Malformed,
    /// The socket does not prove that its holder owns an address and a port.
    Proof,
    /// No interface that the broker serves has the address.
    Interface,
    /// The policy does not permit this user.
    User,
    /// The ring is longer than the policy allows, or not a power of two of pages.
    Size,
    /// The offered descriptor is not a ring.
    Ring,
    /// This user has as many rings as the policy allows.
    Limit,
    /// Too many requests at once; try again later.
    Busy,
    /// Address and port are granted to another user.
    Taken,
    /// The kernel refused a required operation.
    Kernel,
}

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The message is of another version.
    Version {
        /// Version in the message.
        found: u16,
    },
    /// Malformed, or of another protocol.
    Malformed,
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    let head = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
    postcard::to_extend(value, head).expect("memory takes any bytes")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(WireError::Malformed)?;
    let (version, rest) = rest.split_first_chunk().ok_or(WireError::Malformed)?;
    match u16::from_le_bytes(*version) {
        VERSION => {}
        found => return Err(WireError::Version { found }),
    }
    match postcard::take_from_bytes(rest) {
        Ok((value, [])) if bytes.len() <= MAX_MESSAGE_BYTES => Ok(value),
        _ => Err(WireError::Malformed),
    }
}

impl Request {
    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    /// Parses a request from an untrusted client.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Request, WireError> {
        decode(bytes)
    }
}

impl Reply {
    /// The bytes to send; a text that is too long is cut.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Reply::Refused(refusal) if refusal.text.len() > MAX_TEXT_BYTES => {
                let mut refusal = refusal.clone();
                let mut end = MAX_TEXT_BYTES;
                while !refusal.text.is_char_boundary(end) {
                    end -= 1;
                }
                refusal.text.truncate(end);
                encode(&Reply::Refused(refusal))
            }
            _ => encode(self),
        }
    }

    /// Parses a reply from an untrusted broker.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Reply, WireError> {
        match decode(bytes)? {
            Reply::Refused(refusal) if refusal.text.len() > MAX_TEXT_BYTES => {
                Err(WireError::Malformed)
            }
            reply => Ok(reply),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn replies() -> impl Strategy<Value = Reply> {
        let granted = ("[ -~]{0,15}", any::<[u32; 2]>(), any::<bool>());
        let granted = granted.prop_map(|(name, [index, ring_bytes], sender)| {
            Reply::Granted(Granted {
                interface: InterfaceId { index, name },
                ring_bytes,
                sender,
            })
        });
        let refused = ".{0,100}".prop_map(|text| {
            let reason = Reason::Kernel;
            Reply::Refused(Refusal { reason, text })
        });
        prop_oneof![granted, refused]
    }

    proptest! {
        #[test]
        fn messages_survive_encoding_and_decoding(
            dry: bool, ring_bytes: u32, reply in replies(),
        ) {
            let request = Request { dry, ring_bytes };
            prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
            let bytes = reply.encode();
            prop_assert!(bytes.len() <= MAX_MESSAGE_BYTES);
            prop_assert_eq!(Reply::decode(&bytes), Ok(reply));
        }

        #[test]
        fn any_bytes_are_parsed_safely(
            known: bool, rest in proptest::collection::vec(any::<u8>(), 0..2 * MAX_MESSAGE_BYTES),
        ) {
            let head = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
            let bytes = if known { [head, rest].concat() } else { rest };
            if let Ok(request) = Request::decode(&bytes) {
                prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
            }
            if let Ok(reply) = Reply::decode(&bytes) {
                prop_assert!(bytes.len() <= MAX_MESSAGE_BYTES);
                prop_assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
            }
        }
    }

    #[test]
    fn truncated_and_extended_messages_and_other_versions_are_refused() {
        let request = Request {
            dry: false,
            ring_bytes: 4096,
        };
        let bytes = request.encode();
        for length in 0..bytes.len() {
            let cut = Request::decode(&bytes[..length]);
            assert_eq!(cut, Err(WireError::Malformed), "{length}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Request::decode(&longer), Err(WireError::Malformed));
        let mut other = bytes;
        other[4] = 9;
        let found = Request::decode(&other);
        assert_eq!(found, Err(WireError::Version { found: 9 }));
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_between_characters() {
        let reply = Reply::Refused(Refusal {
            reason: Reason::User,
            text: "ä".repeat(MAX_TEXT_BYTES) + "b",
        });
        let bytes = reply.encode();
        assert!(bytes.len() <= MAX_MESSAGE_BYTES);
        let Ok(Reply::Refused(refusal)) = Reply::decode(&bytes) else {
            panic!("a refusal");
        };
        assert_eq!(refusal.text, "ä".repeat(MAX_TEXT_BYTES / 2));
    }
}

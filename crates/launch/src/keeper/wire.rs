//! Messages between the keepers of a job's hosts, encoded with postcard.
//!
//! An image is a [`Message::Begin`], pieces, and a [`Message::End`], without anything else from the
//! same host in between.

use dipole_checkpoint::ImageName;
use serde::{Deserialize, Serialize};

/// Longest piece of an image in one message.
pub(super) const PIECE_BYTES: usize = 128 << 10;

/// A message from another keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Message {
    /// An image follows.
    Begin { token: String, image: ImageName },
    /// Its next bytes.
    Piece(#[serde(with = "serde_bytes")] Vec<u8>),
    /// All of it has been sent.
    End,
    /// The sender needs an image.
    Request { token: String, image: ImageName },
    /// The sender does not have an image that was requested.
    Missing { token: String, image: ImageName },
    /// The sender could not store an image.
    Refused { token: String, image: ImageName },
}

/// Reads a message; `None` if the bytes are not exactly one.
pub(super) fn parse(bytes: &[u8]) -> Option<Message> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

/// The bytes of a message.
pub(super) fn encode(message: &Message) -> Vec<u8> {
    // Strings, numbers and bytes can always be encoded into memory.
    postcard::to_stdvec(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn image() -> ImageName {
        let name = (7, "rank-1-of-4-after-6.image".to_owned());
        ImageName::try_from(name).expect("a name")
    }

    #[test]
    fn messages_read_back_as_written_and_cut_or_longer_ones_are_refused() {
        let (token, image) = ("0f".to_owned(), image());
        for message in [
            Message::Begin {
                token: token.clone(),
                image,
            },
            Message::Piece(vec![7; 1000]),
            Message::End,
            Message::Request {
                token: token.clone(),
                image,
            },
            Message::Missing {
                token: token.clone(),
                image,
            },
            Message::Refused { token, image },
        ] {
            let mut bytes = encode(&message);
            assert_eq!(parse(&bytes), Some(message));
            assert_eq!(parse(&bytes[..bytes.len() - 1]), None);
            bytes.push(0);
            assert_eq!(parse(&bytes), None);
        }
    }

    #[test]
    fn a_name_that_leads_out_of_the_folder_is_no_message() {
        let begin = |name: &str| {
            let content = (0_u8, "0f", 7_u64, name);
            postcard::to_stdvec(&content).expect("memory")
        };
        assert!(parse(&begin("rank-1-of-4-after-6.image")).is_some());
        for name in ["../../.bashrc", "rank-1-of-4/../../x.image", ""] {
            assert_eq!(parse(&begin(name)), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic_and_what_is_accepted_is_a_message(
            bytes in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            if let Some(message) = parse(&bytes) {
                prop_assert_eq!(parse(&encode(&message)), Some(message));
            }
        }

        #[test]
        fn a_damaged_message_never_panics(at in 0_usize..40, value in any::<u8>()) {
            let message = Message::Begin { token: "0123456789abcdef".to_owned(), image: image() };
            let mut bytes = encode(&message);
            let index = at % bytes.len();
            bytes[index] = value;
            if let Some(message) = parse(&bytes) {
                prop_assert_eq!(parse(&encode(&message)), Some(message));
            }
        }
    }
}

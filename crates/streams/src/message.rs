//! Messages between ranks and an interface.

use std::time::Duration;

use dipole_node::Address;
use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::progress::{StreamStatus, Volume, WaitsFor};

/// Maximum length of the data in one message.
pub(crate) const BLOCK_BYTES: u64 = 128 << 10;
/// Maximum number of ranks of a stream.
pub(crate) const MAX_RANKS: usize = 65_536;

/// The address of an endpoint, as it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireAddress {
    node: u32,
    endpoint: u32,
}

impl From<Address> for WireAddress {
    fn from(address: Address) -> WireAddress {
        WireAddress {
            node: address.node.0,
            endpoint: address.endpoint.0,
        }
    }
}

impl From<WireAddress> for Address {
    fn from(address: WireAddress) -> Address {
        Address::new(address.node, address.endpoint)
    }
}

/// A message between a rank and an interface. `transfer` numbers the reads and writes that all ranks make together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message<'a> {
    /// Rank 0 requests the interface to connect these ranks with `to`.
    Open {
        to: &'a str,
        ranks: Vec<WireAddress>,
        timeout_ms: u64,
    },
    /// The reply to `Open` and `Accept`: the stream's endpoint and the address of the TCP peer. Rank 0
    /// passes it on to the other ranks.
    Opened { at: WireAddress, peer: &'a str },
    /// Rank 0 writes bytes outside of transfers.
    WriteRaw {
        #[serde(with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// Rank 0 reads at most `max` bytes outside of transfers.
    ReadRaw { max: u64 },
    /// The reply to `ReadRaw`; empty at the end of the stream.
    RawBytes {
        #[serde(with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// All ranks write to the stream.
    Write {
        transfer: u64,
        total: u64,
        layout: Layout,
    },
    /// All ranks read from the stream.
    Read {
        transfer: u64,
        total: u64,
        layout: Layout,
    },
    /// The interface requests bytes of a rank's part.
    Request {
        transfer: u64,
        offset: u64,
        local: u64,
        length: u64,
    },
    /// The reply to `Request`.
    Data {
        transfer: u64,
        offset: u64,
        #[serde(with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// The interface sends a rank bytes that it has read for its part.
    Block {
        transfer: u64,
        local: u64,
        #[serde(with = "serde_bytes")]
        bytes: &'a [u8],
    },
    /// The interface reports to all ranks how many bytes of a transfer were written or read.
    Done { transfer: u64, bytes: u64 },
    /// The stream has failed. Sent to all ranks, or in place of a reply.
    Ended { why: &'a str },
    /// Rank 0 writes no more, so the remote host reads the end of the stream.
    Finish,
    /// Rank 0 closes the stream.
    Close,
    /// Rank 0 requests the interface to connect these ranks with a TCP client that connects to a port.
    Accept {
        port: u16,
        ranks: Vec<WireAddress>,
        timeout_ms: u64,
        wait_ms: u64,
    },
    /// Requests the state of the interface's streams.
    GetStatus,
    /// The reply to `GetStatus` and `Stop`.
    Status { streams: Vec<WireStatus> },
    /// Requests the interface to accept no more streams.
    Stop,
}

/// The state of a stream, as it is encoded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WireStatus {
    at: WireAddress,
    ranks: Vec<WireAddress>,
    peer: String,
    read: Volume,
    written: Volume,
    open_for: Duration,
    waits_for: WaitsFor,
    waited: Duration,
}

impl From<StreamStatus> for WireStatus {
    fn from(status: StreamStatus) -> WireStatus {
        WireStatus {
            at: status.at.into(),
            ranks: status.ranks.into_iter().map(WireAddress::from).collect(),
            peer: status.peer,
            read: status.read,
            written: status.written,
            open_for: status.open_for,
            waits_for: status.waits_for,
            waited: status.waited,
        }
    }
}

impl From<WireStatus> for StreamStatus {
    fn from(status: WireStatus) -> StreamStatus {
        StreamStatus {
            at: status.at.into(),
            ranks: status.ranks.into_iter().map(Address::from).collect(),
            peer: status.peer,
            read: status.read,
            written: status.written,
            open_for: status.open_for,
            waits_for: status.waits_for,
            waited: status.waited,
        }
    }
}

/// Bytes that are not a valid message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl<'a> Message<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Encoding into memory cannot fail.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Message<'a>, Malformed> {
        let (message, rest) = postcard::take_from_bytes(bytes).map_err(|_| Malformed)?;
        let is_valid = rest.is_empty()
            && match &message {
                Message::Open { ranks, .. } | Message::Accept { ranks, .. } => {
                    !ranks.is_empty() && ranks.len() <= MAX_RANKS
                }
                Message::Write { layout, .. } | Message::Read { layout, .. } => {
                    layout.ranks() as usize <= MAX_RANKS && layout.is_valid()
                }
                _ => true,
            };
        is_valid.then_some(message).ok_or(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_are_decoded_as_they_were_encoded() {
        let (transfer, total) = (3, 1 << 40);
        let bytes = &b"bytes"[..];
        let layout = Layout::by_key(2, 7, vec![0, 1, 1]);
        let ranks = [Address::new(1, 2), Address::new(u32::MAX, 4_000_000_000)];
        let status = StreamStatus {
            at: ranks[0],
            ranks: ranks.to_vec(),
            peer: "10.0.0.9:80".into(),
            read: Volume::default(),
            written: Volume {
                bytes: 7,
                bytes_per_s: 3,
            },
            open_for: Duration::from_secs(9),
            waits_for: WaitsFor::Data(vec![1, 2]),
            waited: Duration::from_millis(4),
        };
        let all = [
            Message::Open {
                to: "10.0.0.9:80",
                ranks: ranks.map(WireAddress::from).to_vec(),
                timeout_ms: 5,
            },
            Message::Opened {
                at: Address::new(3, 501).into(),
                peer: "10.0.0.9:80",
            },
            Message::WriteRaw { bytes },
            Message::ReadRaw { max: 9 },
            Message::RawBytes { bytes: &[] },
            Message::Write {
                transfer,
                total,
                layout: Layout::cyclic(3, 8),
            },
            Message::Read {
                transfer,
                total,
                layout,
            },
            Message::Request {
                transfer,
                offset: 4,
                local: 5,
                length: 6,
            },
            Message::Data {
                transfer,
                offset: 4,
                bytes,
            },
            Message::Block {
                transfer,
                local: 5,
                bytes,
            },
            Message::Done { transfer, bytes: 6 },
            Message::Ended { why: "refused" },
            Message::Finish,
            Message::Close,
            Message::Accept {
                port: 7000,
                ranks: ranks.map(WireAddress::from).to_vec(),
                timeout_ms: 5,
                wait_ms: u64::MAX,
            },
            Message::GetStatus,
            Message::Status {
                streams: vec![status.into()],
            },
            Message::Stop,
        ];
        for message in all {
            assert_eq!(Message::decode(&message.encode()), Ok(message.clone()));
        }
    }

    #[test]
    fn layouts_and_lists_of_ranks_that_make_no_sense_are_refused() {
        let open = Message::Open {
            to: "a:1",
            ranks: Vec::new(),
            timeout_ms: 1,
        };
        assert_eq!(Message::decode(&open.encode()), Err(Malformed));
        let write = |layout| {
            let (transfer, total) = (1, 8);
            Message::Write {
                transfer,
                total,
                layout,
            }
            .encode()
        };
        let many = u32::try_from(MAX_RANKS).expect("small") + 1;
        assert_eq!(
            Message::decode(&write(Layout::cyclic(many, 8))),
            Err(Malformed)
        );
        let foreign = Layout::by_key(2, 8, vec![0, 2]);
        assert_eq!(Message::decode(&write(foreign)), Err(Malformed));
        let mut trailing = Message::Close.encode();
        trailing.push(0);
        assert_eq!(Message::decode(&trailing), Err(Malformed));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_decoded_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..80), kind in 0_u8..20,
        ) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = kind;
            }
            if let Ok(message) = Message::decode(&bytes) {
                let again = message.encode();
                prop_assert_eq!(Message::decode(&again), Ok(message));
            }
        }
    }
}

//! Packets without their payloads.
//!
//! The core knows a message by its length and the position of its bytes. So a recorded packet has
//! its headers and records, and of each payload only the length. Parts of units that were cut are
//! kept whole, because the core joins their bytes.

use std::borrow::Cow;

use dipole_proto::wire::{HEADER_BYTES, Header, Kind, Packet, Record};
use serde::{Deserialize, Serialize};

/// Longest packet that a recording may contain.
const MAX_BYTES: usize = 1 << 16;

/// A packet whose payloads are left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image<'a> {
    length: u32,
    /// Position and length of what is left out, in order.
    gaps: Cow<'a, [(u32, u32)]>,
    /// All other bytes.
    #[serde(borrow, with = "serde_bytes")]
    kept: Cow<'a, [u8]>,
}

/// Memory that is reused for the images of packets.
#[derive(Debug, Default)]
pub(crate) struct ImageBuffer {
    gaps: Vec<(u32, u32)>,
    kept: Vec<u8>,
}

impl ImageBuffer {
    /// The image of a packet of the protocol, without its trailer.
    pub(crate) fn packet(&mut self, packet: &Packet<'_>) -> Image<'_> {
        self.gaps.clear();
        if has_records(&packet.header()) {
            for record in packet.records().map_while(Result::ok) {
                if let Record::Message { payload, .. } = record {
                    self.gaps.push((small(payload.start), small(payload.len())));
                }
            }
        }
        self.finish(packet.covered())
    }

    /// The image of bytes of which the core has read only the header.
    pub(crate) fn header_of(&mut self, bytes: &[u8]) -> Image<'_> {
        self.gaps.clear();
        if let Some(rest) = bytes.len().checked_sub(HEADER_BYTES) {
            self.gaps.push((small(HEADER_BYTES), small(rest)));
        }
        self.finish(bytes)
    }

    fn finish(&mut self, bytes: &[u8]) -> Image<'_> {
        self.gaps.retain(|(_, length)| *length > 0);
        self.kept.clear();
        let mut at = 0;
        for &(start, length) in &self.gaps {
            let start = start as usize;
            self.kept.extend_from_slice(&bytes[at..start]);
            at = start + length as usize;
        }
        self.kept.extend_from_slice(&bytes[at..]);
        Image {
            length: small(bytes.len()),
            gaps: Cow::Borrowed(&self.gaps),
            kept: Cow::Borrowed(&self.kept),
        }
    }
}

/// True if the packet consists of whole records.
fn has_records(header: &Header) -> bool {
    let in_session = matches!(header.kind, Kind::Data | Kind::Ack | Kind::AckRequest);
    in_session && header.part.is_whole()
}

/// Positions in packets are below 64 KiB.
fn small(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

impl Image<'_> {
    /// Length of the packet.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length as usize
    }

    /// The packet with zeros as payload, followed by `more` zeros. `None` if the image contradicts
    /// itself.
    #[must_use]
    pub fn restore(&self, more: usize) -> Option<Vec<u8>> {
        let length = self.length();
        if length > MAX_BYTES || more > MAX_BYTES {
            return None;
        }
        let mut bytes = Vec::with_capacity(length + more);
        let mut kept = &self.kept[..];
        for &(start, gap) in self.gaps.iter() {
            let (head, rest) = kept.split_at_checked((start as usize).checked_sub(bytes.len())?)?;
            kept = rest;
            bytes.extend_from_slice(head);
            let end = (start as usize).checked_add(gap as usize)?;
            if end > length {
                return None;
            }
            bytes.resize(end, 0);
        }
        bytes.extend_from_slice(kept);
        if bytes.len() != length {
            return None;
        }
        bytes.resize(length + more, 0);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_proto::wire::{EdgeKey, Flags, MESSAGE_BYTES, emit_message};
    use proptest::prelude::*;

    fn data_packet(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + MESSAGE_BYTES];
        let mut header = Header::handshake(Kind::Data, 7);
        header.flags.set(Flags::UNIT);
        header.lane = 0;
        header.length = u16::try_from(bytes.len() + payload.len() + 4).expect("short");
        header.emit(&mut bytes);
        let key = EdgeKey {
            source: 1,
            target: 2,
            life: 0,
        };
        emit_message(
            &mut bytes[HEADER_BYTES..],
            key,
            5,
            payload.len(),
            false,
            false,
        );
        bytes.extend_from_slice(payload);
        bytes.extend([1; 4]);
        bytes
    }

    #[test]
    fn the_payload_is_not_in_the_image_but_its_length_is() {
        let packet = data_packet(b"a secret of the program");
        let mut buffer = ImageBuffer::default();
        let parsed = Packet::parse(&packet, 4).expect("a packet");
        let image = buffer.packet(&parsed);
        let encoded = postcard::to_allocvec(&image).expect("memory");
        let has_secret = encoded.windows(6).any(|window| window == b"secret");
        assert!(!has_secret && encoded.len() < 64, "{encoded:?}");
        let restored = image.restore(4).expect("an image");
        let head = HEADER_BYTES + MESSAGE_BYTES;
        assert_eq!(restored[..head], packet[..head]);
        assert_eq!(restored.len(), packet.len());
        assert!(restored[head..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn other_bytes_are_kept() {
        let mut buffer = ImageBuffer::default();
        let hello = {
            let mut bytes = vec![9; HEADER_BYTES + 40];
            let mut header = Header::handshake(Kind::Hello, 7);
            header.length = u16::try_from(bytes.len()).expect("short");
            header.emit(&mut bytes);
            bytes
        };
        let parsed = Packet::parse(&hello, 0).expect("a packet");
        assert_eq!(buffer.packet(&parsed).restore(0), Some(hello.clone()));
        let restored = buffer.header_of(&hello).restore(0).expect("an image");
        assert_eq!(restored[..HEADER_BYTES], hello[..HEADER_BYTES]);
        assert_eq!(restored.len(), hello.len());
    }

    proptest! {
        #[test]
        fn any_bytes_have_an_image_of_their_length(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = ImageBuffer::default();
            let head = buffer.header_of(&bytes).restore(0);
            prop_assert_eq!(head.map(|it| it.len()), Some(bytes.len()));
        }

        #[test]
        fn contradicting_images_are_refused(
            length in 0_u32..300,
            gaps in prop::collection::vec((0_u32..400, any::<u32>()), 0..4),
            kept in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let image = Image { length, gaps: gaps.into(), kept: kept.into() };
            if let Some(bytes) = image.restore(0) {
                prop_assert_eq!(bytes.len(), length as usize);
            }
        }
    }
}

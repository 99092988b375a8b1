//! Fast paths for packets that contain only whole messages of one edge with consecutive numbers, or
//! only one piece of a longer message. Spec §4.2.

use core::ops::Range;

use super::cursor::{u16_at, u32_at, u64_at};
use super::header::HEADER_BYTES;
use super::record::{EdgeKey, FRAGMENT, FRAGMENT_BYTES, MESSAGE, MESSAGE_BYTES, PREFIX_BYTES};

/// Consecutive reliable messages of one edge that fill a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRun {
    /// Key of the edge.
    pub key: EdgeKey,
    /// Number of the first on the edge, low 32 bits.
    pub sequence: u32,
    /// Number of messages, at least one.
    pub count: u32,
    /// Position of their records in the packet.
    pub records: Range<usize>,
}

impl MessageRun {
    /// Parses a packet without its trailer, if it contains only a run.
    #[inline]
    pub(super) fn parse(packet: &[u8]) -> Option<MessageRun> {
        let records = packet.get(HEADER_BYTES..)?;
        let first = records.first_chunk::<MESSAGE_BYTES>()?;
        let (kind, flags, ends) = (first[0], first[1], u64_at(first, PREFIX_BYTES));
        let key = EdgeKey::of_reliable(flags, &first[PREFIX_BYTES..])?;
        if kind != MESSAGE {
            return None;
        }
        let sequence = u32_at(first, 12);
        let (mut rest, mut count) = (records, 0_u32);
        while !rest.is_empty() {
            let head = rest.first_chunk::<MESSAGE_BYTES>()?;
            let continues = [head[0], head[1]] == [kind, flags]
                && u64_at(head, PREFIX_BYTES) == ends
                && u32_at(head, 12) == sequence.wrapping_add(count);
            if !continues {
                return None;
            }
            rest = rest.get(record_bytes(head)?..)?;
            count += 1;
        }
        Some(MessageRun {
            key,
            sequence,
            count,
            records: HEADER_BYTES..packet.len(),
        })
    }

    /// Bytes of all payloads together.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.records.len() - self.count as usize * MESSAGE_BYTES
    }
}

/// A piece of a reliable message that fills a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Key of the edge.
    pub key: EdgeKey,
    /// Number of the message on its edge, low 32 bits.
    pub sequence: u32,
    /// Position of the piece in the message. The piece does not exceed the message.
    pub offset: u64,
    /// Bytes of the whole message.
    pub total: u64,
    /// Position of the piece in the packet.
    pub payload: Range<usize>,
}

impl Fragment {
    /// Parses a packet without its trailer, if it contains only a piece.
    #[inline]
    pub(super) fn parse(packet: &[u8]) -> Option<Fragment> {
        let records = packet.get(HEADER_BYTES..)?;
        let head = records.first_chunk::<FRAGMENT_BYTES>()?;
        let key = EdgeKey::of_reliable(head[1], &head[PREFIX_BYTES..])?;
        let length = records.len() - FRAGMENT_BYTES;
        let fills = PREFIX_BYTES + usize::from(u16_at(head, 2)) == records.len();
        let (offset, total) = (u64_at(head, 16), u64_at(head, 24));
        let end = offset.checked_add(length as u64)?;
        if head[0] != FRAGMENT || !fills || length == 0 || end > total {
            return None;
        }
        Some(Fragment {
            key,
            sequence: u32_at(head, 12),
            offset,
            total,
            payload: packet.len() - length..packet.len(),
        })
    }
}

/// Length of the record that begins with `head`, if it is a reliable message to an endpoint.
#[inline]
fn record_bytes(head: &[u8; MESSAGE_BYTES]) -> Option<usize> {
    let bytes = PREFIX_BYTES + usize::from(u16_at(head, 2));
    (bytes >= MESSAGE_BYTES).then_some(bytes)
}

/// The payloads of the records of a [`MessageRun`], in order.
#[derive(Clone, Debug)]
pub struct Payloads<'a> {
    records: &'a [u8],
}

impl<'a> Payloads<'a> {
    /// The payloads of the bytes at [`MessageRun::records`].
    #[must_use]
    pub fn new(records: &'a [u8]) -> Payloads<'a> {
        Payloads { records }
    }
}

impl<'a> Iterator for Payloads<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let head = self.records.first_chunk::<MESSAGE_BYTES>()?;
        let (record, rest) = self.records.split_at_checked(record_bytes(head)?)?;
        self.records = rest;
        Some(&record[MESSAGE_BYTES..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{FragmentHead, emit_fragment, emit_message, emit_window};
    use alloc::vec;
    use alloc::vec::Vec;

    const KEY: EdgeKey = EdgeKey {
        source: 7,
        target: 9,
        life: 3,
    };

    fn packet(messages: &[(EdgeKey, u32, &[u8])]) -> Vec<u8> {
        let mut packet = vec![0; HEADER_BYTES];
        for (key, sequence, payload) in messages {
            let at = packet.len();
            packet.resize(at + MESSAGE_BYTES, 0);
            emit_message(
                &mut packet[at..],
                *key,
                *sequence,
                payload.len(),
                false,
                false,
            );
            packet.extend_from_slice(payload);
        }
        packet
    }

    #[test]
    fn consecutive_messages_of_one_edge_are_a_run() {
        let packet = packet(&[(KEY, u32::MAX, b"one"), (KEY, 0, b""), (KEY, 1, b"three")]);
        let run = MessageRun::parse(&packet).expect("a run");
        assert_eq!((run.key, run.sequence, run.count), (KEY, u32::MAX, 3));
        assert_eq!(run.payload_bytes(), 8);
        let payloads: Vec<&[u8]> = Payloads::new(&packet[run.records]).collect();
        assert_eq!(payloads, [&b"one"[..], b"", b"three"]);
    }

    #[test]
    fn other_packets_are_not_runs() {
        let other = EdgeKey { target: 8, ..KEY };
        let later = EdgeKey { life: 4, ..KEY };
        for second in [(other, 6), (later, 6), (KEY, 5), (KEY, 7)] {
            let packet = packet(&[(KEY, 5, b"one"), (second.0, second.1, b"two")]);
            assert_eq!(MessageRun::parse(&packet), None, "{second:?}");
        }
        let whole = packet(&[(KEY, 5, b"one")]);
        assert!(MessageRun::parse(&whole).is_some());
        for shorter in 0..whole.len() {
            assert_eq!(MessageRun::parse(&whole[..shorter]), None, "{shorter}");
        }
        let mut more = whole.clone();
        more.resize(whole.len() + 8, 0);
        emit_window(&mut more[whole.len()..], 5);
        assert_eq!(MessageRun::parse(&more), None);
        for (unreliable, port) in [(true, false), (false, true)] {
            let mut flagged = whole.clone();
            emit_message(&mut flagged[HEADER_BYTES..], KEY, 5, 3, unreliable, port);
            assert_eq!(MessageRun::parse(&flagged), None);
        }
        let mut short = whole;
        short[HEADER_BYTES + 2] = 11;
        assert_eq!(
            MessageRun::parse(&short),
            None,
            "shorter than its own fields"
        );
    }

    #[test]
    fn a_piece_that_fills_a_packet_is_a_fragment() {
        let whole = |offset, total, unreliable, port| {
            let mut packet = vec![0; HEADER_BYTES + FRAGMENT_BYTES + 5];
            let place = (offset, total);
            emit_fragment(
                &mut packet[HEADER_BYTES..],
                FragmentHead {
                    key: KEY,
                    sequence: 7,
                    offset: place.0,
                    total: place.1,
                    unreliable,
                    operation: port,
                },
                5,
            );
            packet
        };
        let packet = whole(10, 100, false, false);
        let piece = Fragment::parse(&packet).expect("a piece");
        assert_eq!((piece.key, piece.sequence), (KEY, 7));
        assert_eq!((piece.offset, piece.total), (10, 100));
        assert_eq!(piece.payload, HEADER_BYTES + FRAGMENT_BYTES..packet.len());
        assert!(Fragment::parse(&whole(95, 100, false, false)).is_some());
        let others = [
            whole(96, 100, false, false),
            whole(u64::MAX, u64::MAX, false, false),
            whole(10, 100, true, false),
            whole(10, 100, false, true),
        ];
        for other in others {
            assert_eq!(Fragment::parse(&other), None);
        }
        for shorter in 0..packet.len() {
            assert_eq!(Fragment::parse(&packet[..shorter]), None, "{shorter}");
        }
        let mut more = packet;
        more.resize(more.len() + 8, 0);
        let at = more.len() - 8;
        emit_window(&mut more[at..], 5);
        assert_eq!(Fragment::parse(&more), None);
    }
}

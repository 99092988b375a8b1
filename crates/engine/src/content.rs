//! The content of an edge's records: a message, or a memory operation with its data.

use dipole_proto::wire::{self, EdgeKey, MESSAGE_BYTES, OPERATION_BYTES};

/// The head of a memory operation, in wire format.
pub(super) type Head = [u8; OPERATION_BYTES];

/// Content of one message or operation.
#[derive(Clone, Copy, Debug)]
pub struct Content<'a> {
    /// The operation's [head](wire::Operation); none for a message.
    pub(super) head: Option<&'a Head>,
    pub(super) payload: &'a [u8],
}

impl<'a> From<&'a [u8]> for Content<'a> {
    #[inline]
    fn from(payload: &'a [u8]) -> Content<'a> {
        Content {
            head: None,
            payload,
        }
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Content<'a> {
    fn from(payload: &'a [u8; N]) -> Content<'a> {
        Content::from(&payload[..])
    }
}

impl<'a> From<&'a Vec<u8>> for Content<'a> {
    fn from(payload: &'a Vec<u8>) -> Content<'a> {
        Content::from(&payload[..])
    }
}

impl<'a> Content<'a> {
    /// A memory operation with its data.
    pub fn operation(head: &'a Head, payload: &'a [u8]) -> Content<'a> {
        Content {
            head: Some(head),
            payload,
        }
    }

    /// The message, or the operation's data.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Bytes after the record header.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.head.map_or(0, |head| head.len()) + self.payload.len()
    }

    /// Bytes that count against credit; an operation's data needs no room at the receiver.
    #[inline]
    pub(super) fn charged_bytes(&self) -> u64 {
        match self.head {
            Some(_) => 0,
            None => self.payload.len() as u64,
        }
    }

    /// Writes the content into a packet as one record.
    #[inline]
    pub(super) fn emit(&self, place: &mut [u8], key: EdgeKey, sequence: u32) {
        let head = self.head.map_or(&[][..], |head| &head[..]);
        let is_operation = self.head.is_some();
        wire::emit_message(place, key, sequence, self.bytes(), false, is_operation);
        let (record_head, data) = place[MESSAGE_BYTES..].split_at_mut(head.len());
        record_head.copy_from_slice(head);
        data.copy_from_slice(self.payload);
    }
}

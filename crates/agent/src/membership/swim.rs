//! Packets of the SWIM protocol, as foca encodes them.

use std::num::NonZeroUsize;

use foca::{Codec, Header, Message, PostcardCodec};

use crate::member::Member;

/// Converts to a number of at least 1, as foca's configuration requires.
pub(super) fn nonzero(number: usize) -> NonZeroUsize {
    NonZeroUsize::new(number).unwrap_or(NonZeroUsize::MIN)
}

/// A decoded packet of foca.
pub(super) struct Swim<'a> {
    pub(super) header: Header<Member>,
    pub(super) head: &'a [u8],
    pub(super) updates: Vec<foca::Member<Member>>,
}

impl Swim<'_> {
    pub(super) fn decode(data: &[u8]) -> Option<Swim<'_>> {
        let mut rest = data;
        let header = PostcardCodec.decode_header(&mut rest).ok()?;
        let head = &data[..data.len() - rest.len()];
        let mut updates = Vec::new();
        if let Some((count, members)) = rest.split_first_chunk() {
            rest = members;
            for _ in 0..u16::from_be_bytes(*count) {
                updates.push(PostcardCodec.decode_member(&mut rest).ok()?);
            }
        }
        rest.is_empty().then_some(Swim {
            header,
            head,
            updates,
        })
    }

    pub(super) fn encode(head: &[u8], updates: &[foca::Member<Member>]) -> Vec<u8> {
        let mut data = head.to_vec();
        if let Ok(count @ 1..) = u16::try_from(updates.len()) {
            data.extend(count.to_be_bytes());
            for update in updates {
                // Encoding into a vector cannot fail.
                let _written = PostcardCodec.encode_member(update, &mut data);
            }
        }
        data
    }
}

/// True for packets of indirect probes: the probed node did not answer a direct one.
pub(super) fn is_indirect(body: &[u8]) -> bool {
    let header: Result<Header<Member>, _> = PostcardCodec.decode_header(body);
    header.is_ok_and(|header| {
        matches!(
            header.message,
            Message::PingReq { .. }
                | Message::IndirectPing { .. }
                | Message::IndirectAck { .. }
                | Message::ForwardedAck { .. }
        )
    })
}

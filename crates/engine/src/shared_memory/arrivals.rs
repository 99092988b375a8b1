//! Handles records that arrive through shared memory.

use dipole_link::shm::Payload;
use dipole_proto::wire::{PIPE_WORDS, PipeKind, PipeTag};
use dipole_proto::{Instant, PeerId, ProtocolViolation};

use crate::address::{Address, EndpointId, NodeId};
use crate::core::Core;
use crate::dispatch::Arrival;
use crate::inbox::{Charge, Message, Origin};
use crate::reader::{Arriving, Reader};

/// A whole message in a ring: its sender and edge.
#[derive(Clone, Copy)]
pub(super) struct PipeMessage<'a> {
    pub(super) peer: PeerId,
    pub(super) node: NodeId,
    /// The number of its edge.
    pub(super) number: u32,
    pub(super) payload: Payload<'a>,
}

impl PipeMessage<'_> {
    /// The address of an endpoint of the sender.
    #[inline]
    fn source(&self, endpoint: u32) -> Address {
        Address {
            node: self.node,
            endpoint: EndpointId(endpoint),
        }
    }
}

/// Takes a message directly for a waiting reader, if its inbox is empty.
#[inline]
pub(super) fn hand_over(
    core: &mut Core,
    now: Instant,
    message: &PipeMessage<'_>,
    reader: u32,
) -> Option<Message> {
    let PipeMessage {
        peer,
        number,
        payload,
        ..
    } = *message;
    let state = core.dispatch.endpoints.get_mut(reader)?;
    if !state.inbox.is_empty() {
        return None;
    }
    let machine = &mut core.machine;
    let delivery = machine.on_pipe_message_read(now, peer, number, payload.len(), reader)?;
    let source = message.source(delivery.key.source);
    let place = |place: &mut [u8]| payload.copy_to(place);
    Some((state.inbox).message(Origin { source, peer }, payload.len(), place))
}

/// Passes a message to a reader in place; false if it is not for this reader.
#[inline]
pub(super) fn read_in_place(
    core: &mut Core,
    now: Instant,
    message: &PipeMessage<'_>,
    endpoint: u32,
    reader: &mut impl Reader,
) -> bool {
    let PipeMessage {
        peer,
        number,
        payload,
        ..
    } = *message;
    let Some(state) = core.dispatch.endpoints.get_mut(endpoint) else {
        return false;
    };
    if !state.inbox.is_empty() {
        return false;
    }
    let machine = &mut core.machine;
    let read = machine.on_pipe_message_read(now, peer, number, payload.len(), endpoint);
    let Some(delivery) = read else {
        return false;
    };
    let source = message.source(delivery.key.source);
    if !reader.read(source, &Arriving(payload)) {
        let place = |place: &mut [u8]| payload.copy_to(place);
        let origin = Origin { source, peer };
        reader.take(state.inbox.message(origin, payload.len(), place));
    }
    true
}

/// Handles a message record: delivers it directly and returns true if it is next in order.
#[inline]
pub(super) fn on_message(
    core: &mut Core,
    now: Instant,
    message: &PipeMessage<'_>,
) -> Result<bool, ProtocolViolation> {
    let PipeMessage {
        peer,
        number,
        payload,
        ..
    } = *message;
    match core
        .machine
        .on_pipe_message(now, peer, number, payload.len())?
    {
        Some(delivery) => {
            let (source, target) = delivery.key.ends();
            let arrival = Arrival {
                origin: Origin {
                    source: message.source(source),
                    peer,
                },
                target,
                charge: Charge::Edge(delivery.edge),
            };
            let ready = &mut core.ready;
            core.dispatch
                .deliver(&arrival, payload.len(), ready, |place| {
                    payload.copy_to(place);
                });
            Ok(true)
        }
        None => {
            core.handle_events(&payload);
            Ok(false)
        }
    }
}

/// Handles any other record. A control record is copied before it is parsed, because the peer
/// could change it meanwhile.
pub(super) fn on_record(
    core: &mut Core,
    now: Instant,
    peer: PeerId,
    tag: PipeTag,
    payload: &Payload<'_>,
) -> Result<(), ProtocolViolation> {
    let mut words = [0; 8 * PIPE_WORDS];
    let control: &[u8] = match tag.kind {
        PipeKind::Piece | PipeKind::Unreliable | PipeKind::Operation => &[],
        _ => {
            let words = words.get_mut(..payload.len());
            let words = words.ok_or(ProtocolViolation("a control record that is too long"))?;
            payload.copy_to(words);
            words
        }
    };
    let taken = core
        .machine
        .on_pipe_record(now, peer, tag, control, payload.len());
    core.handle_events(payload);
    taken
}

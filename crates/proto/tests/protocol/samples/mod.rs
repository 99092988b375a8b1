//! Records that own their contents, to be emitted, parsed and compared. Shared by `wire.rs`
//! and the fuzzer.

use dipole_proto::wire::{
    self, CreditRequest, EdgeKey, FRAGMENT_BYTES, LaneAddress, MESSAGE_BYTES, OPERATION_BYTES,
    Range, Record, RefusedReason,
};

/// A record to emit and the expected result of parsing it. It is a separate type, because `Record`
/// borrows from its packet.
#[derive(Clone, Debug, PartialEq)]
pub enum Sample {
    Message(EdgeKey, u32, Vec<u8>, bool, bool),
    Fragment(EdgeKey, u32, (u64, u64), Vec<u8>, bool, bool),
    EdgeEnd(EdgeKey, u32, u32),
    EdgeForgotten(EdgeKey),
    Refused((u32, u32), u32, RefusedReason),
    LaneAck(u8, (u32, u32), Vec<(u32, u16)>),
    Credit(EdgeKey, u64),
    CreditRequest(EdgeKey, CreditRequest),
    Window(u32),
    /// Lane, token, bytes of the whole record.
    Probe(u8, u64, usize),
    Echo(u8, u64, u16),
    Backlog(u32),
    Lanes(u32, Vec<LaneAddress>),
}

impl Sample {
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![0; 512];
        let length = match self {
            Sample::Message(edge, sequence, data, unreliable, operation) => {
                let size = data.len();
                wire::emit_message(&mut bytes, *edge, *sequence, size, *unreliable, *operation);
                fill(&mut bytes, MESSAGE_BYTES, data)
            }
            Sample::Fragment(edge, sequence, place, data, unreliable, operation) => {
                let size = data.len();
                wire::emit_fragment(
                    &mut bytes,
                    wire::FragmentHead {
                        key: *edge,
                        sequence: *sequence,
                        offset: place.0,
                        total: place.1,
                        unreliable: *unreliable,
                        operation: *operation,
                    },
                    size,
                );
                fill(&mut bytes, FRAGMENT_BYTES, data)
            }
            Sample::EdgeEnd(edge, sequence, control) => {
                wire::emit_edge_end(&mut bytes, *edge, *sequence, *control)
            }
            Sample::EdgeForgotten(edge) => wire::emit_edge_forgotten(&mut bytes, *edge),
            Sample::Refused(edge, sequence, reason) => {
                wire::emit_refused(&mut bytes, *edge, *sequence, *reason)
            }
            Sample::LaneAck(lane, numbers, ranges) => {
                let ranges: Vec<Range> = ranges
                    .iter()
                    .map(|&(start, count)| Range { start, count })
                    .collect();
                wire::emit_lane_ack(&mut bytes, *lane, *numbers, &ranges)
            }
            Sample::Credit(edge, limit) => wire::emit_credit(&mut bytes, *edge, *limit),
            Sample::CreditRequest(edge, request) => {
                wire::emit_credit_request(&mut bytes, *edge, *request)
            }
            Sample::Window(packets) => wire::emit_window(&mut bytes, *packets),
            Sample::Probe(lane, token, length) => {
                wire::emit_probe(&mut bytes[..*length], *lane, *token)
            }
            Sample::Echo(lane, token, length) => {
                wire::emit_echo(&mut bytes, *lane, *token, *length)
            }
            Sample::Backlog(end) => wire::emit_backlog(&mut bytes, *end),
            Sample::Lanes(serial, lanes) => wire::emit_lanes(&mut bytes, *serial, lanes),
        };
        bytes.truncate(length);
        bytes
    }

    /// Converts a parsed record; `packet` contains its payload.
    pub fn of(record: Record<'_>, packet: &[u8]) -> Sample {
        match record {
            Record::Message {
                key,
                sequence,
                offset,
                total,
                unreliable,
                operation,
                payload,
            } => {
                let (edge, data) = (key, packet[payload].to_vec());
                let head = if operation { OPERATION_BYTES } else { 0 };
                if offset == 0 && total == (data.len() - head) as u64 {
                    Sample::Message(edge, sequence, data, unreliable, operation)
                } else {
                    Sample::Fragment(edge, sequence, (offset, total), data, unreliable, operation)
                }
            }
            Record::EdgeEnd {
                key,
                sequence,
                control,
            } => Sample::EdgeEnd(key, sequence, control),
            Record::EdgeForgotten { key } => Sample::EdgeForgotten(key),
            Record::Refused {
                source,
                target,
                sequence,
                reason,
            } => Sample::Refused((source, target), sequence, reason),
            Record::LaneAck(ack) => {
                let ranges = ack.ranges().map(|range| (range.start, range.count));
                Sample::LaneAck(ack.lane, (ack.next, ack.top), ranges.collect())
            }
            Record::Credit { key, limit } => Sample::Credit(key, limit),
            Record::CreditRequest { key, request } => Sample::CreditRequest(key, request),
            Record::Window { packets } => Sample::Window(packets),
            Record::Probe { lane, token } => Sample::Probe(lane, token, wire::PROBE_BYTES),
            Record::Echo {
                lane,
                token,
                length,
            } => Sample::Echo(lane, token, length),
            Record::Backlog { end } => Sample::Backlog(end),
            Record::Lanes(list) => Sample::Lanes(list.serial, list.lanes().collect()),
        }
    }

    /// A fragment with all bytes of its message is the same as a whole message, and the length of a
    /// probe does not matter.
    pub fn normal(self) -> Sample {
        match self {
            Sample::Fragment(edge, sequence, (0, total), data, unreliable, operation)
                if total == data.len() as u64 =>
            {
                Sample::Message(edge, sequence, data, unreliable, operation)
            }
            Sample::Probe(lane, token, _) => Sample::Probe(lane, token, wire::PROBE_BYTES),
            other => other,
        }
    }
}

fn fill(bytes: &mut [u8], at: usize, data: &[u8]) -> usize {
    bytes[at..at + data.len()].copy_from_slice(data);
    at + data.len()
}

//! Readable descriptions of packets.

use std::fmt::Write;

use dipole_proto::wire::{
    CRC_BYTES, Flags, HEADER_BYTES, Header, Hello, Kind, Packet, Record, Reset,
};

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer.
    In,
    /// To the peer.
    Out,
}

/// The contents of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Kind of the packet.
    pub kind: Kind,
    /// It is a retransmission.
    pub is_repeat: bool,
    /// Number of the unit that it carries.
    pub unit: Option<u32>,
    /// Units below this are acknowledged.
    pub acknowledges: Option<u32>,
    /// Description of the records.
    pub records: String,
    /// The reliable messages, or the pieces of them, that it carries.
    pub messages: Vec<MessagePart>,
}

/// Messages of one edge in a row, or a piece of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagePart {
    /// The sending and the receiving endpoint.
    pub ends: (u32, u32),
    /// Number of the first message on the edge.
    pub first: u32,
    /// Number of messages.
    pub count: u32,
    /// True for a piece that is not the end of its message.
    pub continues: bool,
}

/// Describes a packet without its trailer; `None` if it is not a packet of the protocol.
#[must_use]
pub fn describe_packet(bytes: &[u8]) -> Option<Description> {
    let header = Header::parse(bytes).ok()?;
    let body = bytes.get(HEADER_BYTES..).unwrap_or_default();
    let has = |flag| header.flags.has(flag);
    let (mut records, mut messages) = (String::new(), Vec::new());
    match header.kind {
        Kind::Data | Kind::Ack | Kind::AckRequest => {
            if let Some(part) = (!header.part.is_whole()).then_some(header.part) {
                let (number, count) = (part.index + 1, part.last + 1);
                let _text = write!(records, "part {number} of {count}, {} bytes", body.len());
            } else {
                messages = describe_records(bytes, &mut records);
            }
        }
        Kind::Hello | Kind::Welcome => {
            if let Ok(hello) = Hello::parse(body) {
                let (node, limit) = (hello.node, hello.max_packet_bytes);
                let _text = write!(records, "node {node}, packets of up to {limit} bytes");
            }
        }
        Kind::Reset => {
            if let Ok(reset) = Reset::parse(body) {
                let _text = write!(records, "{:?}", reset.reason);
            }
        }
        Kind::Challenge | Kind::Bye | Kind::Lookup | Kind::Found => {}
    }
    Some(Description {
        kind: header.kind,
        is_repeat: has(Flags::REPEAT),
        unit: has(Flags::UNIT).then_some(header.unit),
        acknowledges: has(Flags::ACK).then_some(header.unit_next),
        records,
        messages,
    })
}

/// Messages of one edge in a row.
struct Row {
    ends: (u32, u32),
    first: u32,
    count: u32,
    bytes: usize,
}

impl Row {
    fn text(&self) -> String {
        let Row {
            ends: (source, target),
            first,
            count,
            bytes,
        } = self;
        match count {
            1 => format!("message {first} of {source}>{target}, {bytes} bytes"),
            _ => {
                let last = first.wrapping_add(count - 1);
                format!("messages {first} to {last} of {source}>{target}, {bytes} bytes")
            }
        }
    }
}

/// Describes the records of a packet; returns the messages among them.
fn describe_records(bytes: &[u8], text: &mut String) -> Vec<MessagePart> {
    // The records do not depend on the trailer, which is not here.
    let mut whole = bytes.to_vec();
    let length = u16::try_from(whole.len() + CRC_BYTES).unwrap_or(u16::MAX);
    if let Some(field) = whole.get_mut(2..4) {
        field.copy_from_slice(&length.to_le_bytes());
    }
    whole.extend([0; CRC_BYTES]);
    let Ok(packet) = Packet::parse(&whole, CRC_BYTES) else {
        return Vec::new();
    };
    let (mut all, mut parts) = (Vec::new(), Vec::new());
    let mut row: Option<Row> = None;
    for record in packet.records().map_while(Result::ok) {
        add_part(&mut parts, &record);
        let next = match &record {
            Record::Message {
                key,
                sequence,
                offset: 0,
                total,
                operation: false,
                unreliable: false,
                payload,
            } if *total == payload.len() as u64 => Some((key.ends(), *sequence, payload.len())),
            _ => None,
        };
        match (&mut row, next) {
            (Some(row), Some((ends, sequence, length)))
                if ends == row.ends && sequence == row.first.wrapping_add(row.count) =>
            {
                row.count += 1;
                row.bytes += length;
            }
            (_, Some((ends, first, bytes))) => {
                all.extend(row.take().map(|row| row.text()));
                row = Some(Row {
                    ends,
                    first,
                    count: 1,
                    bytes,
                });
            }
            (_, None) => {
                all.extend(row.take().map(|row| row.text()));
                all.push(describe_record(&record));
            }
        }
    }
    all.extend(row.take().map(|row| row.text()));
    text.push_str(&all.join("; "));
    parts
}

/// Adds the message of a record to the row that it continues, or as a new one.
fn add_part(parts: &mut Vec<MessagePart>, record: &Record<'_>) {
    let Record::Message {
        key,
        sequence,
        offset,
        total,
        unreliable: false,
        payload,
        ..
    } = record
    else {
        return;
    };
    let (ends, continues) = (key.ends(), offset + (payload.len() as u64) < *total);
    if let Some(last) = parts.last_mut()
        && last.ends == ends
        && *sequence == last.first.wrapping_add(last.count)
    {
        last.count += 1;
        last.continues = continues;
        return;
    }
    parts.push(MessagePart {
        ends,
        first: *sequence,
        count: 1,
        continues,
    });
}

fn describe_record(record: &Record<'_>) -> String {
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
            let (source, target) = key.ends();
            let what = match (operation, unreliable) {
                (true, _) => "operation",
                (false, true) => "unreliable message",
                (false, false) => "message",
            };
            let end = offset + payload.len() as u64;
            format!("{what} {sequence} of {source}>{target}, bytes {offset} to {end} of {total}")
        }
        Record::EdgeEnd { key, sequence, .. } => {
            let (source, target) = key.ends();
            format!("end of {source}>{target} after message {sequence}")
        }
        Record::EdgeForgotten { key } => {
            let (source, target) = key.ends();
            format!("{source}>{target} is forgotten")
        }
        Record::Refused {
            source,
            target,
            sequence,
            reason,
        } => format!("message {sequence} of {source}>{target} is refused: {reason:?}"),
        Record::LaneAck(ack) => {
            let holes = ack.ranges().map(|range| {
                let end = range.start.wrapping_add(range.count.into());
                format!(", missing {} to {}", range.start, end.wrapping_sub(1))
            });
            let holes: String = holes.collect();
            format!(
                "lane {}: packets below {} have arrived{holes}",
                ack.lane, ack.top
            )
        }
        Record::Credit { key, limit } => {
            let (source, target) = key.ends();
            format!("credit for {source}>{target}: {limit} bytes in total")
        }
        Record::CreditRequest { key, request } => {
            let (source, target) = key.ends();
            let need = request.need;
            format!("{source}>{target} requests credit: {need} bytes in total")
        }
        Record::Window { packets } => format!("window of {packets} packets"),
        Record::Probe { lane, .. } => format!("probe of lane {lane}"),
        Record::Echo { lane, .. } => format!("echo of lane {lane}"),
        Record::Lanes(list) => format!("listens on {} lanes", list.lanes().count()),
        Record::Backlog { end } => format!("units below {end} wait for a window"),
    }
}

//! The timeline of a run in Perfetto's format (ui.perfetto.dev): a process for each node, a thread for
//! each rank, with computation, calls and their parts.
//!
//! Times are those of rank 0's clock, from the beginning of the trace.

use std::io::{self, Write};

use dipole_bsp::trace::{Clocks, Step, TraceFile, total};
use prost::Message;

/// Identifies the writer of all tracks.
const SEQUENCE: u32 = 1;
const SLICE_BEGIN: i32 = 1;
const SLICE_END: i32 = 2;
const COUNTER: i32 = 4;
/// First track ids of nodes, ranks and counters.
const NODES: u64 = 1 << 32;
const RANKS: u64 = 2 << 32;
const BYTES: u64 = 3 << 32;

/// The fields of `perfetto.protos.TracePacket` that are written.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Packet {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    sequence: Option<u32>,
    #[prost(message, optional, tag = "11")]
    event: Option<Event>,
    #[prost(message, optional, tag = "60")]
    track: Option<Track>,
}

/// Fields of `TrackEvent`.
#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(message, repeated, tag = "4")]
    notes: Vec<Note>,
    #[prost(int32, optional, tag = "9")]
    kind: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    value: Option<i64>,
}

/// Fields of `DebugAnnotation`.
#[derive(Clone, PartialEq, Message)]
struct Note {
    #[prost(uint64, optional, tag = "3")]
    number: Option<u64>,
    #[prost(string, optional, tag = "6")]
    text: Option<String>,
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
}

/// Fields of `TrackDescriptor`.
#[derive(Clone, PartialEq, Message)]
struct Track {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(message, optional, tag = "3")]
    process: Option<Process>,
    #[prost(message, optional, tag = "4")]
    thread: Option<Thread>,
    #[prost(uint64, optional, tag = "5")]
    parent: Option<u64>,
    #[prost(message, optional, tag = "8")]
    counter: Option<Counter>,
}

/// Fields of `ProcessDescriptor`.
#[derive(Clone, PartialEq, Message)]
struct Process {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(string, optional, tag = "6")]
    name: Option<String>,
}

/// Fields of `ThreadDescriptor`.
#[derive(Clone, PartialEq, Message)]
struct Thread {
    #[prost(int32, optional, tag = "1")]
    pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    tid: Option<i32>,
    #[prost(string, optional, tag = "5")]
    name: Option<String>,
}

/// Fields of `CounterDescriptor`.
#[derive(Clone, PartialEq, Message)]
struct Counter {
    #[prost(int32, optional, tag = "3")]
    unit: Option<i32>,
}

/// Values of `CounterDescriptor.Unit`.
const SIZE_BYTES: i32 = 3;

/// Writes packets of a trace, each as a field of `perfetto.protos.Trace`.
struct Writer<W> {
    to: W,
    bytes: Vec<u8>,
}

impl<W: Write> Writer<W> {
    fn packet(&mut self, packet: &Packet) -> io::Result<()> {
        const PACKET: u8 = 0x0a;
        self.bytes.clear();
        self.bytes.push(PACKET);
        packet
            .encode_length_delimited(&mut self.bytes)
            .map_err(io::Error::other)?;
        self.to.write_all(&self.bytes)
    }

    fn track(&mut self, track: Track) -> io::Result<()> {
        self.packet(&Packet {
            sequence: Some(SEQUENCE),
            track: Some(track),
            ..Packet::default()
        })
    }

    fn event(&mut self, at: u64, event: Event) -> io::Result<()> {
        self.packet(&Packet {
            timestamp: Some(at),
            sequence: Some(SEQUENCE),
            event: Some(event),
            ..Packet::default()
        })
    }

    fn begin(&mut self, at: u64, track: u64, name: &str, notes: Vec<Note>) -> io::Result<()> {
        self.event(
            at,
            Event {
                notes,
                kind: Some(SLICE_BEGIN),
                track: Some(track),
                categories: vec!["bsp".to_owned()],
                name: Some(name.to_owned()),
                value: None,
            },
        )
    }

    fn end(&mut self, at: u64, track: u64) -> io::Result<()> {
        self.event(
            at,
            Event {
                kind: Some(SLICE_END),
                track: Some(track),
                ..Event::default()
            },
        )
    }

    fn slice(&mut self, from: u64, to: u64, track: u64, name: &str) -> io::Result<()> {
        self.begin(from, track, name, Vec::new())?;
        self.end(to, track)
    }
}

/// Activities of one process, on a track of its own below its node's.
pub(super) struct Lane {
    pub(super) node: String,
    pub(super) name: String,
    pub(super) slices: Vec<Slice>,
}

/// An interval; intervals of a track are ordered and do not overlap.
pub(super) struct Slice {
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
    pub(super) name: String,
    pub(super) texts: Vec<(&'static str, String)>,
    pub(super) bytes: u64,
}

/// Writes tracks of processes.
pub(super) fn write_lanes(lanes: &[Lane], to: impl Write) -> io::Result<()> {
    let mut writer = Writer {
        to,
        bytes: Vec::new(),
    };
    let mut nodes: Vec<&str> = Vec::new();
    for (index, lane) in (0_u32..).zip(lanes) {
        let known = nodes.iter().position(|node| *node == lane.node);
        let node = known.unwrap_or(nodes.len());
        let pid = i32::try_from(node).unwrap_or(i32::MAX - 1) + 1;
        if known.is_none() {
            nodes.push(&lane.node);
            writer.track(Track {
                uuid: Some(NODES + node as u64),
                process: Some(Process {
                    pid: Some(pid),
                    name: Some(format!("node {}", lane.node)),
                }),
                ..Track::default()
            })?;
        }
        let track = RANKS + u64::from(index);
        writer.track(Track {
            uuid: Some(track),
            parent: Some(NODES + node as u64),
            thread: Some(Thread {
                pid: Some(pid),
                tid: Some(number(index).saturating_add(1_000_000)),
                name: Some(lane.name.clone()),
            }),
            ..Track::default()
        })?;
        for slice in &lane.slices {
            let mut notes = vec![count("bytes", slice.bytes)];
            notes.extend(slice.texts.iter().map(|(name, text)| Note {
                name: Some((*name).to_owned()),
                text: Some(text.clone()),
                ..Note::default()
            }));
            writer.begin(slice.from_ns, track, &slice.name, notes)?;
            writer.end(slice.to_ns, track)?;
        }
    }
    writer.to.flush()
}

/// Writes the files of all ranks of a run, in order of ranks.
pub(super) fn write(files: &[TraceFile], clocks: &Clocks, to: impl Write) -> io::Result<()> {
    let mut writer = Writer {
        to,
        bytes: Vec::new(),
    };
    let begins = files.iter().filter_map(|file| {
        let step = file.steps.first()?;
        Some(clocks.common_ns(file.header.rank, step.began_ns))
    });
    let begin_ns = begins.min().unwrap_or(0);
    for file in files {
        let head = &file.header;
        let pid = number(head.leader).saturating_add(1);
        if head.leader == head.rank {
            writer.track(Track {
                uuid: Some(NODES + u64::from(head.leader)),
                process: Some(Process {
                    pid: Some(pid),
                    name: Some(format!("node {}", head.host)),
                }),
                ..Track::default()
            })?;
        }
        let rank = u64::from(head.rank);
        writer.track(Track {
            uuid: Some(RANKS + rank),
            parent: Some(NODES + u64::from(head.leader)),
            thread: Some(Thread {
                pid: Some(pid),
                // Perfetto would take thread 1 for the process itself.
                tid: Some(number(head.rank).saturating_add(1_000_000)),
                name: Some(format!("rank {}", head.rank)),
            }),
            ..Track::default()
        })?;
        writer.track(Track {
            uuid: Some(BYTES + rank),
            parent: Some(NODES + u64::from(head.leader)),
            name: Some(format!("rank {} put and got", head.rank)),
            counter: Some(Counter {
                unit: Some(SIZE_BYTES),
            }),
            ..Track::default()
        })?;
        for step in &file.steps {
            let time = |ns: u64| {
                let since = clocks.common_ns(head.rank, ns).saturating_sub(begin_ns);
                u64::try_from(since).unwrap_or(0)
            };
            superstep(&mut writer, file, step, time)?;
        }
    }
    writer.to.flush()
}

fn superstep<W: Write>(
    writer: &mut Writer<W>,
    file: &TraceFile,
    step: &Step,
    time: impl Fn(u64) -> u64,
) -> io::Result<()> {
    let rank = u64::from(file.header.rank);
    let (track, counter) = (RANKS + rank, BYTES + rank);
    let (began, entered, left) = (
        time(step.began_ns),
        time(step.entered_ns),
        time(step.left_ns()),
    );
    writer.slice(began, entered, track, "compute")?;
    let bytes = |list: &[(u32, u64)]| total(list.iter().map(|(_, bytes)| *bytes));
    let (put, got) = (bytes(&step.put), bytes(&step.get));
    let is_own = step.epoch >= file.header.first;
    let mut notes = match is_own {
        true => vec![count(
            "superstep",
            u64::from(step.epoch - file.header.first),
        )],
        false => Vec::new(),
    };
    notes.extend([count("bytes put", put), count("bytes got", got)]);
    for (name, value) in [
        ("packets sent again", step.repeats),
        ("ack requests", step.ack_requests),
        ("no room to send", step.stalls),
    ] {
        if value > 0 {
            notes.push(count(name, u64::from(value)));
        }
    }
    for (other, ns) in &step.waits {
        notes.push(count(&format!("ns waited for rank {other}"), *ns));
    }
    let site = &file.sites[step.site as usize];
    if site.line > 0 {
        notes.push(Note {
            name: Some("source".to_owned()),
            text: Some(format!("{}:{}", site.file, site.line)),
            ..Note::default()
        });
    }
    let name = match is_own {
        true => site.to_string(),
        false => "comparing clocks".to_owned(),
    };
    writer.begin(entered, track, &name, notes)?;
    let mut from = step.entered_ns;
    for (part, ns) in [
        ("pack", step.pack_ns),
        ("barrier", step.barrier_ns),
        ("exchange", step.exchange_ns),
        ("apply", step.apply_ns),
    ] {
        let to = from.saturating_add(ns);
        if ns > 0 {
            writer.slice(time(from), time(to), track, part)?;
        }
        from = to;
    }
    writer.end(left, track)?;
    for (at, value) in [(entered, total([put, got])), (left, 0)] {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        writer.event(
            at,
            Event {
                kind: Some(COUNTER),
                track: Some(counter),
                value: Some(value),
                ..Event::default()
            },
        )?;
    }
    Ok(())
}

fn count(name: &str, value: u64) -> Note {
    Note {
        number: Some(value),
        name: Some(name.to_owned()),
        ..Note::default()
    }
}

fn number(rank: u32) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `perfetto.protos.Trace`.
    #[derive(Clone, PartialEq, Message)]
    struct Trace {
        #[prost(message, repeated, tag = "1")]
        packets: Vec<Packet>,
    }

    fn file(rank: u32) -> TraceFile {
        let mut file = crate::trace::tests::file(rank);
        let header = &mut file.header;
        (header.size, header.nodes, header.leader) = (2, 2, rank);
        file.steps = (0..3)
            .map(|epoch| {
                let began_ns = 1000 + 1_000_000 * u64::from(rank) + 100 * u64::from(epoch);
                Step {
                    epoch,
                    began_ns,
                    entered_ns: began_ns + 40,
                    pack_ns: 10,
                    barrier_ns: 30,
                    put: vec![(1 - rank, 8)],
                    waits: vec![(1 - rank, 20)],
                    ..Step::default()
                }
            })
            .collect();
        file
    }

    #[test]
    fn slices_nest_on_tracks_that_are_described_and_times_are_of_one_clock() {
        let files = [file(0), file(1)];
        let clocks = Clocks::of(&files).expect("common supersteps");
        let mut bytes = Vec::new();
        write(&files, &clocks, &mut bytes).expect("memory takes all");
        let trace = Trace::decode(&bytes[..]).expect("as written");
        let tracks: Vec<u64> = (trace.packets.iter())
            .filter_map(|packet| packet.track.as_ref()?.uuid)
            .collect();
        assert_eq!(tracks.len(), 6);
        let (mut open, mut names, mut last) = (
            std::collections::BTreeMap::<u64, Vec<String>>::new(),
            Vec::new(),
            0,
        );
        for packet in &trace.packets {
            let Some(event) = &packet.event else { continue };
            let track = event.track.expect("each event has one");
            assert!(tracks.contains(&track));
            let at = packet.timestamp.expect("each event has one");
            last = last.max(at);
            let stack = open.entry(track).or_default();
            match event.kind {
                Some(SLICE_BEGIN) => {
                    stack.push(event.name.clone().expect("a name"));
                    names.push(stack.join("/"));
                }
                Some(SLICE_END) => assert!(stack.pop().is_some()),
                kind => assert_eq!((kind, event.value.is_some()), (Some(COUNTER), true)),
            }
        }
        assert!(open.values().all(Vec::is_empty));
        for name in [
            "compute",
            "lu.c:30",
            "lu.c:30/pack",
            "lu.c:30/barrier",
            "comparing clocks",
        ] {
            assert!(names.iter().any(|known| known == name), "{name} {names:?}");
        }
        // Clocks that differ by a millisecond must not make the trace long.
        assert!(last < 1000, "{last}");
    }
}

//! Lines of the output, as text or JSON.

use std::io::{self, Write};

use dipole_naming::lines::printable;
use dipole_proto::{Event, PeerId, PeerStatus};
use dipole_record::{Description, Direction, Observed, Replay, Step};
use serde_json::{Value, json};

use super::duration;
use super::process::Process;
use super::reasons::{States, reasons};
use super::time::{Window, seconds};
use crate::output::json as line;

/// Prints steps and states.
pub(super) struct Printer {
    json: bool,
    begin_ns: u64,
    /// Several processes of one node were recorded, so the process id is needed.
    needs_pid: bool,
}

impl Printer {
    pub(super) fn new(json: bool, window: &Window, processes: &[Process]) -> Printer {
        let mut nodes: Vec<u32> = processes.iter().map(|it| it.header.node).collect();
        nodes.sort_unstable();
        Printer {
            json,
            begin_ns: window.begin_ns,
            needs_pid: nodes.windows(2).any(|pair| pair[0] == pair[1]),
        }
    }

    fn name(&self, process: &Process) -> String {
        let header = &process.header;
        match self.needs_pid {
            true => format!("node {} process {}", header.node, header.pid),
            false => format!("node {}", header.node),
        }
    }

    /// Prints that nothing happened for a while.
    pub(super) fn pause(&self, at_ns: u64, ns: u64, out: &mut dyn Write) -> io::Result<()> {
        match self.json {
            true => {
                let value = json!({"event": "pause", "at_ns": self.since(at_ns), "ns": ns});
                writeln!(out, "{}", line(&value))
            }
            false => writeln!(out, "  -- nothing happens for {} --", duration(ns)),
        }
    }

    fn since(&self, at_ns: u64) -> u64 {
        at_ns.saturating_sub(self.begin_ns)
    }

    /// Prints a step.
    pub(super) fn step(
        &self,
        process: &Process,
        at_ns: u64,
        step: &Step,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if self.json {
            let mut value = json_of(process, step);
            value["at_ns"] = self.since(at_ns).into();
            value["node"] = process.header.node.into();
            value["pid"] = process.header.pid.into();
            return writeln!(out, "{}", line(&value));
        }
        let text = match step {
            Step::Observed(_, observed) => text_of(process, observed),
            Step::File { segment: 0, .. } => "the recording begins".to_owned(),
            Step::File {
                segment,
                after_gap: false,
            } => format!("file {segment} begins; its state is that of the replay"),
            Step::File { segment, .. } => {
                format!("the replay begins with the state in file {segment}")
            }
            Step::Differs(difference) => format!("!! {difference}"),
            Step::Damaged(path, cause) => {
                let name = path.display().to_string();
                format!(
                    "!! {} cannot be replayed further: {cause}",
                    printable(&name)
                )
            }
            Step::Partial(bytes) => {
                format!("the file ends within a write; {bytes} bytes of inputs are lost")
            }
        };
        let time = seconds(self.since(at_ns), 6);
        writeln!(out, "{time:>13}  {}  {text}", self.name(process))
    }

    /// Prints totals of a process, and the state of its sessions.
    pub(super) fn end(
        &self,
        process: &Process,
        states: &States<'_>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let Some(replay) = process.steps.replay() else {
            return Ok(());
        };
        let machine = replay.machine();
        let statuses: Vec<PeerStatus> = (machine.peers())
            .filter_map(|peer| machine.status(peer))
            .collect();
        let waits =
            |status: &PeerStatus| reasons(process.header.incarnation, status, states, replay.now());
        if self.json {
            let value = self.json_end(process, replay);
            writeln!(out, "{}", line(&value))?;
            for status in &statuses {
                let mut value = json_session(status);
                value["node"] = process.header.node.into();
                value["pid"] = process.header.pid.into();
                value["waits_for"] = waits(status).into();
                writeln!(out, "{}", line(&value))?;
            }
            return Ok(());
        }
        self.text_end(process, replay, out)?;
        for status in &statuses {
            writeln!(out, "  {}", session_title(status))?;
            let waits = waits(status);
            if waits.is_empty() {
                writeln!(
                    out,
                    "    waits for nothing: neither side owes anything. If the program hangs, it \
                     waits for a message that the peer has not sent."
                )?;
            }
            for reason in waits {
                writeln!(out, "    waits: {reason}")?;
            }
        }
        Ok(())
    }

    fn text_end(&self, process: &Process, replay: &Replay, out: &mut dyn Write) -> io::Result<()> {
        let header = &process.header;
        let (totals, inputs) = (&process.totals, process.steps.inputs());
        let end = seconds(self.since(process.now_ns()), 3);
        writeln!(out)?;
        writeln!(
            out,
            "{} (process {} on {}, Dipole {}) at {end} s, {}",
            self.name(process),
            header.pid,
            printable(&header.host),
            printable(&header.version),
            ending(process, replay)
        )?;
        match (&process.trouble, process.has_panicked) {
            (None, false) => writeln!(
                out,
                "  {inputs} calls in {} files, all with the same results as when they were recorded",
                process.files
            )?,
            (Some(trouble), false) => writeln!(out, "  {inputs} calls; {trouble}")?,
            (_, true) => writeln!(out, "  {inputs} calls; then the core panicked (see above)")?,
        }
        writeln!(
            out,
            "  packets: {} out ({} retransmissions), {} in ({} dropped); {} deliveries; {} sends had \
             to wait",
            totals.packets_out,
            totals.retransmissions,
            totals.packets_in,
            totals.dropped,
            totals.delivered,
            totals.refused_calls
        )
    }

    fn json_end(&self, process: &Process, replay: &Replay) -> Value {
        let (header, totals) = (&process.header, &process.totals);
        json!({
            "event": "process",
            "node": header.node,
            "pid": header.pid,
            "host": printable(&header.host),
            "version": printable(&header.version),
            "at_ns": self.since(process.now_ns()),
            "closed": replay.is_closed(),
            "files": process.files,
            "calls": process.steps.inputs(),
            "same": process.trouble.is_none() && !process.has_panicked,
            "trouble": process.trouble,
            "lost_bytes": process.lost_bytes,
            "packets_out": totals.packets_out,
            "retransmissions": totals.retransmissions,
            "packets_in": totals.packets_in,
            "dropped": totals.dropped,
            "deliveries": totals.delivered,
            "blocked_sends": totals.refused_calls,
        })
    }
}

/// How a recording ends.
fn ending(process: &Process, replay: &Replay) -> String {
    match (replay.is_closed(), process.lost_bytes) {
        (true, _) => "when the process ended its recording".to_owned(),
        (false, 0) => {
            "where the recording ends: the process was killed, or it still runs".to_owned()
        }
        (false, bytes) => format!(
            "where the recording ends: the process was killed or the disk was full while it wrote, \
             {bytes} bytes are lost"
        ),
    }
}

fn session_title(status: &PeerStatus) -> String {
    let node = status.node;
    match &status.session {
        None => format!("shared memory with a process of node {node}"),
        Some(session) if !session.is_open => {
            format!("session with {}", address(session.home))
        }
        Some(session) => {
            let round_trip = session.round_trip_ns.map(|ns| {
                let ns = duration(ns);
                format!(", round trip {ns}")
            });
            let round_trip = round_trip.unwrap_or_default();
            format!(
                "session with node {node} at {}{round_trip}",
                address(session.home)
            )
        }
    }
}

fn json_session(status: &PeerStatus) -> Value {
    let session = status.session.as_ref().map(|session| {
        json!({
            "address": address(session.home),
            "open": session.is_open,
            "in_flight": session.in_flight,
            "lost": session.lost,
            "queued": session.queued,
            "oldest_unit": session.oldest.map(|(unit, _)| unit),
            "restricted_to": session.restricted_to,
            "units_next": session.units_next,
            "units_missing": session.units_missing,
            "suspected": session.is_suspected,
            "round_trip_ns": session.round_trip_ns,
        })
    });
    let outgoing: Vec<Value> = (status.outgoing.iter())
        .map(|edge| {
            let (source, target) = edge.key.ends();
            json!({
                "source": source, "target": target, "next": edge.next,
                "credit_left": edge.credit_left, "credit_missing": edge.credit_missing,
            })
        })
        .collect();
    let incoming: Vec<Value> = (status.incoming.iter())
        .map(|edge| {
            let (source, target) = edge.key.ends();
            json!({
                "source": source, "target": target, "next": edge.next,
                "unread_bytes": edge.unread_bytes, "incomplete": edge.incomplete,
            })
        })
        .collect();
    json!({
        "event": "session",
        "peer": status.peer.to_string(),
        "peer_node": status.node,
        "shared_memory": status.session.is_none(),
        "session": session,
        "outgoing": outgoing,
        "incoming": incoming,
    })
}

fn peer_name(process: &Process, peer: PeerId) -> String {
    match process.node_of(peer) {
        Some(node) => format!("node {node}"),
        None => format!("peer {peer}"),
    }
}

fn text_of(process: &Process, observed: &Observed) -> String {
    match observed {
        Observed::Packet {
            direction,
            address: at,
            peer,
            bytes,
            count,
            description,
            dropped,
        } => {
            let arrow = match direction {
                Direction::In => "<-",
                Direction::Out => "->",
            };
            let whom = match peer {
                Some(peer) => peer_name(process, *peer),
                None => address(*at),
            };
            let contents = (description.as_ref()).map_or("unknown".to_owned(), packet_text);
            let many = match count {
                1 => String::new(),
                _ => format!("{count} packets in a row, the first: "),
            };
            let dropped = dropped.map(|why| format!("  (dropped: {why})"));
            let dropped = dropped.unwrap_or_default();
            format!("{arrow} {whom}  {many}{contents} [{bytes} bytes]{dropped}")
        }
        Observed::Event(event) => format!("*  {}", event_text(process, event)),
        Observed::Call { peer, text, .. } => {
            let whom = peer.map(|peer| format!("  ({})", peer_name(process, peer)));
            format!("   {text}{}", whom.unwrap_or_default())
        }
    }
}

fn packet_text(packet: &Description) -> String {
    let mut parts = vec![format!("{:?}", packet.kind)];
    if let Some(unit) = packet.unit {
        let verb = if packet.is_repeat { "retransmits " } else { "" };
        parts.push(format!("{verb}unit {unit}"));
    }
    if !packet.records.is_empty() {
        parts.push(packet.records.clone());
    }
    if let Some(below) = packet.acknowledges {
        parts.push(format!("acknowledges units below {below}"));
    }
    parts.join("; ")
}

fn event_text(process: &Process, event: &Event) -> String {
    let name = |peer: &PeerId| peer_name(process, *peer);
    match event {
        Event::Connected { peer, node, .. } => {
            let _known_by_node = peer;
            format!("the session with node {node} is open")
        }
        Event::Suspected { peer } => format!("{} owes an answer and is silent", name(peer)),
        Event::Gone { peer, reason, .. } => format!("{} is gone: {reason}", name(peer)),
        Event::Paths { peer, change } => format!("paths to {}: {change:?}", name(peer)),
        Event::Deliver {
            source,
            target,
            bytes,
            ..
        } => format!(
            "delivers a message of {} bytes of {source}>{target}",
            bytes.len()
        ),
        Event::DeliverRun { source, target, .. } => {
            format!("delivers several messages of {source}>{target}")
        }
        Event::Complete {
            source,
            target,
            sequence,
            ..
        } => format!("delivers message {sequence} of {source}>{target}, whose pieces are complete"),
        Event::Hold {
            target,
            sequence,
            offset,
            total,
            ..
        } => format!(
            "holds a piece of message {sequence} for {target}, from byte {offset} of {total}"
        ),
        Event::Operation { source, target, .. } => {
            format!("executes an operation of {source} on the memory of {target}")
        }
        Event::Credit { .. } => "an edge that waited for credit may send".to_owned(),
        Event::Refused {
            sequence, reason, ..
        } => format!("the peer refuses message {sequence}: {reason:?}"),
        Event::Settled { .. } => "the peer's refusals have arrived".to_owned(),
        Event::EdgeForgotten { .. } => "both sides have forgotten a closed edge".to_owned(),
        other => format!("{other:?}"),
    }
}

fn json_of(process: &Process, step: &Step) -> Value {
    match step {
        Step::Observed(
            _,
            Observed::Packet {
                direction,
                address: at,
                peer,
                bytes,
                count,
                description,
                dropped,
            },
        ) => json!({
            "event": "packet",
            "direction": match direction { Direction::In => "in", Direction::Out => "out" },
            "address": address(*at),
            "peer_node": peer.and_then(|peer| process.node_of(peer)),
            "bytes": bytes,
            "count": count,
            "kind": description.as_ref().map(|it| format!("{:?}", it.kind)),
            "unit": description.as_ref().and_then(|it| it.unit),
            "retransmission": description.as_ref().is_some_and(|it| it.is_repeat),
            "acknowledges": description.as_ref().and_then(|it| it.acknowledges),
            "records": description.as_ref().map(|it| &it.records),
            "dropped": dropped,
        }),
        Step::Observed(_, Observed::Event(event)) => {
            json!({"event": "core", "text": event_text(process, event)})
        }
        Step::Observed(_, Observed::Call { peer, text, .. }) => {
            let node = peer.and_then(|peer| process.node_of(peer));
            json!({"event": "call", "text": text, "peer_node": node})
        }
        Step::File { segment, after_gap } => {
            json!({"event": "file", "segment": segment, "after_gap": after_gap})
        }
        Step::Differs(difference) => json!({
            "event": "difference",
            "segment": difference.segment,
            "position": difference.position,
            "call": difference.call,
            "recorded": difference.recorded,
            "replayed": difference.replayed,
        }),
        Step::Damaged(path, cause) => {
            let name = printable(&path.display().to_string());
            json!({"event": "damaged", "file": name, "cause": cause.to_string()})
        }
        Step::Partial(bytes) => json!({"event": "partial", "lost_bytes": bytes}),
    }
}

/// An address as people write it.
fn address(at: dipole_proto::wire::Address) -> String {
    let ip = std::net::Ipv6Addr::from(at.ip).to_canonical();
    std::net::SocketAddr::new(ip, at.port).to_string()
}

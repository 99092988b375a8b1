//! Sending flows: opens sessions and edges, and sends short, long, shared and unreliable messages.

use std::path::PathBuf;

use dipole_engine::{Blocked, Destination, Target};
use dipole_link::Class;
use dipole_link::shm::ShmError;
use dipole_link::sim::SharedMemory;
use dipole_node::{Address, Bytes, Operation};
use dipole_proto::Instant;
use rand::Rng;

use super::RETRY_NS;
use super::flow::{Carrier, Pending};
use crate::ledger::{Ends, Life};
use crate::memory::By;
use crate::payload::TAG_BYTES;
use crate::scenario::{MILLISECOND, Presence, address};
use crate::trace::What;
use crate::world::{Process, Stage, World};

/// Messages that a flow sends in a row.
const BURST: u32 = 64;
/// How often a flow that has sent everything checks whether all of it is acknowledged.
const DRAIN_NS: u64 = 50 * MILLISECOND;

/// A message whose bytes the engine shares; they are overwritten once it releases them.
struct Lent {
    bytes: Vec<u8>,
    socket: PathBuf,
    memory: SharedMemory,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.memory.overwrite(&self.socket, &self.bytes);
    }
}

impl World {
    /// Lets a node's flows send what they can.
    pub fn send(&mut self, index: usize, process: &mut Process) -> Result<(), String> {
        if self.stage >= Stage::Quiet {
            return Ok(());
        }
        if self.scenario.nodes[index].watches {
            process.engine.watch_peers(Instant(self.now_ns), true);
        }
        // Rotate which one is first.
        let count = self.flows.len();
        let first = self.dice.random_range(0..count);
        for step in 0..count {
            let flow = (first + step) % count;
            if self.flows[flow].plan.from == index {
                self.drive(index, flow, process)?;
            }
        }
        Ok(())
    }

    /// Continues long messages that have begun. A real call does not return in the middle of one, so
    /// an application cannot get stuck there.
    pub fn send_rest(&mut self, index: usize, process: &mut Process) -> Result<(), String> {
        for flow in 0..self.flows.len() {
            if self.flows[flow].plan.from == index && self.flows[flow].long.is_some() {
                self.send_one(index, flow, process)?;
            }
        }
        Ok(())
    }

    fn drive(&mut self, index: usize, flow: usize, process: &mut Process) -> Result<(), String> {
        if self.scenario.has_regions {
            self.take_answers(flow, process)?;
        }
        for _ in 0..BURST {
            if self.flows[flow].at_ns > self.now_ns {
                let at_ns = self.flows[flow].at_ns;
                self.wake_app(index, at_ns);
                return Ok(());
            }
            if self.flows[flow].has_sent_all() {
                return self.drain(index, flow, process);
            }
            if !self.has_edge(index, flow, process)? {
                return Ok(());
            }
            let storm = self.stage == Stage::Storm;
            if storm && self.flows[flow].long.is_none() && self.flows[flow].due_ns > self.now_ns {
                let due_ns = self.flows[flow].due_ns;
                self.wake_app(index, due_ns);
                return Ok(());
            }
            if self.scenario.has_regions && self.flows[flow].pending.is_none() {
                self.ask(flow, process);
            }
            if !self.send_one(index, flow, process)? {
                return Ok(());
            }
            self.close_old_edge(flow, process);
            if self.dice.random_range(0..4) == 0 {
                self.transmit(index, process)?;
            }
        }
        self.wake_app(index, self.now_ns);
        Ok(())
    }

    /// Sends packets. The link returns frames, for which a flow may be waiting.
    pub fn transmit(&mut self, index: usize, process: &mut Process) -> Result<(), String> {
        let free = process.engine.free_frames();
        process
            .engine
            .transmit(Instant(self.now_ns))
            .map_err(|error| error.to_string())?;
        let mut flows = self.flows.iter();
        if process.engine.free_frames() > free
            && flows.any(|flow| flow.plan.from == index && flow.pending.is_some())
        {
            self.nodes[index].app_at_ns = self.now_ns;
        }
        Ok(())
    }

    /// Handles the answers to a flow's operations.
    fn take_answers(&mut self, flow: usize, process: &mut Process) -> Result<(), String> {
        let asking = (flow, &mut self.flows[flow].asking);
        let taken = self.regions.answers(asking, &mut process.engine)?;
        if taken > 0 {
            self.totals.operations += taken;
            self.read_at_ns = self.now_ns;
        }
        Ok(())
    }

    /// Starts an operation on the memory of a flow's target now and then.
    fn ask(&mut self, flow: usize, process: &mut Process) {
        let state = &mut self.flows[flow];
        let at = (state.plan.to, state.plan.target);
        if let Some(edge) = state.edge
            && state.done < state.plan.messages
            && self.dice.random_range(0..3) == 0
        {
            let by = By {
                engine: &mut process.engine,
                edge,
                now: Instant(self.now_ns),
            };
            let asking = (flow, &mut state.asking);
            self.regions.ask(asking, at, by, &mut self.dice);
        }
    }

    /// Opens a session and an edge; false while that takes time.
    fn has_edge(
        &mut self,
        index: usize,
        flow: usize,
        process: &mut Process,
    ) -> Result<bool, String> {
        let plan = self.flows[flow].plan.clone();
        let carrier = match self.flows[flow].carrier {
            Some(carrier) => carrier,
            None => match self.connect(index, flow, process)? {
                Some(carrier) => carrier,
                None => return Ok(false),
            },
        };
        self.flows[flow].carrier = Some(carrier);
        let edge = self.flows[flow].edge;
        let reached = |peer, early| {
            let is_open = process.engine.is_open(peer)?;
            Ok((is_open || early).then_some(peer))
        };
        let peer = match (carrier, self.flows[flow].peer) {
            (Carrier::Packets { peer }, _) => reached(peer, plan.early),
            // Two processes that connect to each other at once may use either connection.
            (Carrier::Memory { .. }, Some(peer)) => reached(peer, false),
            (Carrier::Memory { conn, .. }, None) => process.engine.memory_peer(conn),
        };
        let peer = match (peer, carrier) {
            (Ok(Some(peer)), _) => peer,
            (Ok(None), _) => return Ok(false),
            // It was never open, so no error is reported.
            (Err(Blocked::Gone(_)), Carrier::Memory { .. })
                if self.flows[flow].stream.is_none() =>
            {
                self.flows[flow].forget_session(self.now_ns);
                self.wake_app(index, self.now_ns + RETRY_NS);
                return Ok(false);
            }
            (Err(blocked), _) => {
                return Err(format!(
                    "flow {flow} lost its peer without an error: {blocked:?}"
                ));
            }
        };
        if edge.is_none() {
            let edge = process.engine.edge(peer, plan.source, plan.target);
            let edge = edge.map_err(|error| {
                format!("flow {flow}: no edge although the peer is there: {error}")
            })?;
            (self.flows[flow].edge, self.flows[flow].peer) = (Some(edge), Some(peer));
        }
        if self.flows[flow].stream.is_none() {
            let inlet = self.nodes[plan.to]
                .inlets
                .iter()
                .find(|inlet| inlet.plan.id == plan.target);
            let target = &inlet.expect("flows lead to planned endpoints").plan;
            let stream = self.ledger.begin(Ends {
                from: Life {
                    node: index,
                    life: process.life,
                },
                source: plan.source,
                to: Life {
                    node: plan.to,
                    life: match &self.nodes[plan.to].process {
                        Some(there) => there.life,
                        None if plan.to == index => process.life,
                        None => 0,
                    },
                },
                target: plan.target,
                may_refuse: target.presence != Presence::Always,
                idle_reader: target.reader.is_idle() || self.sticks(index) || self.sticks(plan.to),
            });
            self.flows[flow].stream = Some(stream);
            self.trace
                .note(self.now_ns, index, What::Stream { flow, stream });
        }
        Ok(true)
    }

    /// Reopens a flow's edge now and then.
    fn close_old_edge(&mut self, flow: usize, process: &mut Process) {
        let state = &mut self.flows[flow];
        let (every, sent) = (state.plan.edge_messages, state.done);
        if every > 0
            && state.pending.is_none()
            && sent.is_multiple_of(every)
            && let Some(edge) = state.edge.take()
        {
            process.engine.close_edge(edge);
            self.totals.edges_closed += 1;
        }
    }

    /// Opens a session with the process of a flow's target.
    fn connect(
        &mut self,
        index: usize,
        flow: usize,
        process: &mut Process,
    ) -> Result<Option<Carrier>, String> {
        let plan = self.flows[flow].plan.clone();
        let there = self.nodes[plan.to].process.as_ref();
        let there = there.map(|there| there.incarnation);
        let there = there.or_else(|| (plan.to == index).then_some(process.incarnation));
        let to = plan.to + 1;
        if self.scenario.share_memory(index, plan.to) {
            let begun = there.and_then(|incarnation| {
                let socket = self.scenario.nodes[plan.to].socket();
                let begun = process.engine.connect_memory(&socket, incarnation)?;
                Some((incarnation, begun))
            });
            match begun {
                Some((incarnation, Ok(conn))) => {
                    self.trace
                        .note(self.now_ns, index, What::Connecting { flow, to });
                    return Ok(Some(Carrier::Memory { conn, incarnation }));
                }
                // Shared memory is full, so use the network.
                Some((_, Err(ShmError::TooMany { .. }))) => self.totals.memory_full += 1,
                _ => {
                    self.flows[flow].at_ns = self.now_ns + RETRY_NS;
                    self.wake_app(index, self.now_ns + RETRY_NS);
                    return Ok(None);
                }
            }
        }
        let interface = self.scenario.way_to(plan.to, self.now_ns);
        let destination = Destination {
            small: address(self.scenario.nodes[plan.to].place, Class::Small, interface),
            incarnation: there.filter(|_| plan.particular).unwrap_or(0),
        };
        let peer = process
            .engine
            .connect(Instant(self.now_ns), destination)
            .map_err(|error| error.to_string())?;
        self.trace
            .note(self.now_ns, index, What::Connecting { flow, to });
        Ok(Some(Carrier::Packets { peer }))
    }

    /// Sends a message or a part of it; false if it has to wait.
    fn send_one(
        &mut self,
        index: usize,
        flow: usize,
        process: &mut Process,
    ) -> Result<bool, String> {
        self.prepare(flow);
        let state = &self.flows[flow];
        let (Some(carrier), Some(edge), Some(pending)) =
            (state.carrier, state.edge, &state.pending)
        else {
            return Ok(false);
        };
        let (tag, length) = (pending.tag, pending.bytes.len());
        if state.long.is_some() {
            return self.continue_one(index, flow, process);
        }
        if tag.unreliable {
            return self.send_loose(index, flow, process);
        }
        let sent = self.begin_one(index, flow, process)?;
        self.flows[flow].blocked = sent.err();
        match sent {
            Ok(()) => {
                self.ledger.accepted(tag, length);
                self.totals.accepted += 1;
                let (stream, number) = (tag.stream, tag.index);
                self.trace.note(
                    self.now_ns,
                    index,
                    What::Sent {
                        stream,
                        index: number,
                        bytes: length,
                    },
                );
                if self.flows[flow].long.is_none() {
                    self.dealt_with(flow);
                }
                Ok(true)
            }
            Err(Blocked::NoFrame | Blocked::Opening) => Ok(false),
            // The peer is gone, which is reported next.
            Err(Blocked::Gone(None)) if matches!(carrier, Carrier::Memory { .. }) => Ok(false),
            Err(Blocked::NoCredit) => {
                if self.permille(self.flows[flow].plan.impatient_permille) {
                    process.engine.cancel(edge);
                    self.totals.cancelled += 1;
                    let stream = tag.stream;
                    self.trace.note(
                        self.now_ns,
                        index,
                        What::Cancelled {
                            stream,
                            bytes: length,
                        },
                    );
                    self.dealt_with(flow);
                    return Ok(true);
                }
                Ok(false)
            }
            Err(Blocked::Refused(_)) => {
                self.refused(index, flow, process)?;
                Ok(false)
            }
            Err(blocked) => Err(format!("flow {flow}: {blocked:?}")),
        }
    }
    /// Continues a long message; false if it has to wait.
    fn continue_one(
        &mut self,
        index: usize,
        flow: usize,
        process: &mut Process,
    ) -> Result<bool, String> {
        let state = &mut self.flows[flow];
        let (Some(long), Some(pending)) = (&mut state.long, &state.pending) else {
            return Ok(false);
        };
        match process.engine.continue_long(long, &pending.bytes) {
            Ok(true) => {
                self.keep_no_longer(index, flow);
                self.dealt_with(flow);
                Ok(true)
            }
            Ok(false) => {
                state.blocked = Some(Blocked::NoFrame);
                Ok(false)
            }
            Err(blocked) => Err(format!("flow {flow}, in a long message: {blocked:?}")),
        }
    }

    /// Sends an unreliable message; false if it has to wait.
    fn send_loose(
        &mut self,
        index: usize,
        flow: usize,
        process: &mut Process,
    ) -> Result<bool, String> {
        let now = Instant(self.now_ns);
        let state = &mut self.flows[flow];
        let (Some(carrier), Some(edge), Some(pending)) =
            (state.carrier, state.edge, &state.pending)
        else {
            return Ok(false);
        };
        let (tag, length) = (pending.tag, pending.bytes.len());
        let sent = process.engine.send_unreliable(now, edge, &pending.bytes);
        match sent {
            Ok(()) => {
                self.ledger.accepted(tag, length);
                self.totals.unreliable_accepted += 1;
                let (stream, number) = (tag.stream, tag.index);
                self.trace.note(
                    self.now_ns,
                    index,
                    What::SentLoose {
                        stream,
                        index: number,
                        bytes: length,
                    },
                );
            }
            Err(Blocked::NoFrame | Blocked::TooLong { .. }) => {}
            // The peer has not forgotten the edge's previous use.
            Err(Blocked::NoCredit) if state.plan.edge_messages > 0 => {}
            Err(Blocked::Refused(_)) if matches!(carrier, Carrier::Memory { .. }) => {
                self.refused(index, flow, process)?;
                return Ok(false);
            }
            Err(Blocked::Opening) => return Ok(false),
            // The peer is gone, which is reported next.
            Err(Blocked::Gone(None)) => return Ok(false),
            Err(blocked) => return Err(format!("flow {flow}, unreliably: {blocked:?}")),
        }
        self.dealt_with(flow);
        Ok(true)
    }

    /// Starts to send a message.
    fn begin_one(
        &mut self,
        index: usize,
        flow: usize,
        process: &mut Process,
    ) -> Result<Result<(), Blocked>, String> {
        let now = Instant(self.now_ns);
        let node_memory = self.memory(index).clone();
        let state = &mut self.flows[flow];
        let (Some(carrier), Some(edge), Some(pending)) =
            (state.carrier, state.edge, &state.pending)
        else {
            return Ok(Err(Blocked::Opening));
        };
        let (tag, length) = (pending.tag, pending.bytes.len());
        let engine = &mut process.engine;
        let sent = if length <= engine.whole_limit(edge.peer) {
            // Use the fast path or the general one.
            let alone = !pending.more
                && tag.index % 2 == 0
                && engine
                    .send_alone(now, edge, &pending.bytes)
                    .map_err(|error| error.to_string())?;
            match alone {
                true => Ok(()),
                false => engine.send_whole(now, edge, &pending.bytes, pending.more),
            }
        } else {
            // A sender that cannot wait lets the engine copy or share the message.
            let in_memory = matches!(carrier, Carrier::Memory { .. });
            if pending.more && tag.index.is_multiple_of(2) {
                let lent = Lent {
                    bytes: pending.bytes.clone(),
                    socket: self.scenario.nodes[index].socket(),
                    memory: node_memory,
                };
                self.totals.shared += 1;
                let bytes = Bytes::from_owner(lent);
                let begun = engine.begin_operation(now, edge, &Operation::Message, &bytes);
                begun.map(drop)
            } else {
                let kept = pending.more && in_memory;
                let begun = engine.begin_long(now, edge, &pending.bytes, kept);
                begun.map(|long| state.long = (!kept).then_some(long))
            }
        };
        Ok(sent)
    }

    /// A long message has been fetched: its memory is overwritten.
    fn keep_no_longer(&mut self, index: usize, flow: usize) {
        if let Some(bytes) = self.flows[flow].offered() {
            let socket = self.scenario.nodes[index].socket();
            self.memory(index).overwrite(&socket, bytes);
        }
        self.flows[flow].long = None;
    }

    /// Generates the next message of a flow, unless one is waiting.
    fn prepare(&mut self, flow: usize) {
        if self.flows[flow].pending.is_some() {
            return;
        }
        let Some(stream) = self.flows[flow].stream else {
            return;
        };
        let unreliable = self.permille(self.flows[flow].plan.unreliable_permille);
        let more = self.permille(self.flows[flow].plan.more_permille);
        let tag = self.ledger.next_tag(stream, unreliable);
        let (shortest, longest) = self.flows[flow].plan.bytes;
        let mut length = self.dice.random_range(shortest..=longest);
        if unreliable || tag.index == 0 {
            length = length.max(TAG_BYTES);
        }
        self.flows[flow].pending = Some(Pending {
            tag,
            bytes: tag.message(length),
            more,
        });
    }

    fn dealt_with(&mut self, flow: usize) {
        let state = &mut self.flows[flow];
        state.pending = None;
        state.done += 1;
        state.due_ns = self.now_ns + state.plan.gap_ns;
    }

    /// The receiver refuses messages: the waiting message is given up.
    fn refused(&mut self, index: usize, flow: usize, process: &mut Process) -> Result<(), String> {
        let Some(stream) = self.flows[flow].stream else {
            return Ok(());
        };
        self.totals.told_refused += 1;
        self.ledger.told_refused(stream)?;
        self.trace
            .note(self.now_ns, index, What::Refused { stream });
        self.dealt_with(flow);
        let state = &mut self.flows[flow];
        if let Some(edge) = state.edge {
            process.engine.clear_refusal(edge);
        }
        self.flows[flow].at_ns = self.now_ns + RETRY_NS;
        self.wake_app(index, self.now_ns + RETRY_NS);
        Ok(())
    }

    /// After everything was sent and acknowledged, all refusals are known: whatever was not refused must
    /// arrive.
    fn drain(&mut self, index: usize, flow: usize, process: &mut Process) -> Result<(), String> {
        let state = &self.flows[flow];
        let (Some(stream), Some(edge)) = (state.stream, state.edge) else {
            return Ok(());
        };
        if self.stage < Stage::Calm || self.ledger.is_settled(stream) {
            return Ok(());
        }
        let target = Target::new(Address::new(0, state.plan.target), edge);
        let source = state.plan.source;
        self.wake_app(index, self.now_ns + DRAIN_NS);
        self.flows[flow].at_ns = self.now_ns + DRAIN_NS;
        let is_refused = process.engine.is_peer_acknowledged(edge.peer)
            && process.engine.take_refusal(source, &target).is_some();
        if !is_refused {
            return Ok(());
        }
        self.totals.told_refused += 1;
        self.trace
            .note(self.now_ns, index, What::Refused { stream });
        self.ledger.told_refused(stream)
    }
}

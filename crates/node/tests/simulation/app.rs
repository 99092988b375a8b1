//! The applications: flows that send, endpoints that read, each in its way.

use std::path::PathBuf;

use dipole_link::Class;
use dipole_link::shm::{ConnId, ShmError};
use dipole_link::sim::SharedMemory;
use dipole_node::engine::{Blocked, Destination, LongSend, Polled};
use dipole_node::{Address, Bytes, Departure, GoneReason, Message, Operation, RegionMemory};
use dipole_proto::{EdgeId, Instant, PeerId};
use rand::Rng;

use crate::ledger::{Ends, Life};
use crate::memory::Asking;
use crate::payload::{TAG_BYTES, Tag};
use crate::scenario::{EndpointPlan, FlowPlan, MILLISECOND, Presence, Reader, SECOND, address};
use crate::taker::Taker;
use crate::trace::What;
use crate::world::{Process, Stage, World};

/// Messages that one flow sends before others have their turn.
const BURST: u32 = 64;
/// Pause before a flow tries again what was refused or gone.
const RETRY_NS: u64 = 5 * MILLISECOND;
/// Pause between questions whether what is missing was refused.
const PROBE_NS: u64 = 50 * MILLISECOND;
/// Memory of a reader; some messages are longer.
const OFFERED_BYTES: usize = 48 << 10;

/// A message that the engine shares: when it has let go, others no longer find it there.
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

/// A receiving endpoint of the running process.
#[derive(Debug)]
pub struct Inlet {
    pub plan: EndpointPlan,
    pub is_open: bool,
    taken: u32,
    next_ns: u64,
    /// Memory that its reader offers for what comes.
    offered: Option<RegionMemory>,
}

impl Inlet {
    pub fn new(plan: EndpointPlan) -> Inlet {
        Inlet {
            plan,
            is_open: false,
            taken: 0,
            next_ns: 0,
            offered: None,
        }
    }
}

/// A message on its way into the engine.
struct Pending {
    tag: Tag,
    bytes: Vec<u8>,
    more: bool,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {} bytes", self.tag, self.bytes.len())
    }
}

/// What carries a flow.
#[derive(Clone, Copy, Debug)]
enum Carrier {
    Packets { peer: PeerId },
    Memory { conn: ConnId, incarnation: u64 },
}

/// A flow as it runs.
#[derive(Debug)]
pub struct Flow {
    pub plan: FlowPlan,
    pub stream: Option<u32>,
    carrier: Option<Carrier>,
    pub edge: Option<EdgeId>,
    /// Whom its first edge led to: two processes may have two connections, and no order
    /// holds between them.
    peer: Option<PeerId>,
    /// Messages dealt with: accepted, given up, or told.
    done: u32,
    pending: Option<Pending>,
    /// A message that its sender goes on with.
    long: Option<LongSend>,
    /// Not before this moment.
    at_ns: u64,
    /// When the next message is due.
    due_ns: u64,
    /// Why it last could not go on.
    blocked: Option<Blocked>,
    refused: bool,
    /// What it has asked of its target's memory.
    pub asking: Asking,
}

impl Flow {
    pub fn new(plan: FlowPlan) -> Flow {
        Flow {
            plan,
            stream: None,
            carrier: None,
            edge: None,
            peer: None,
            done: 0,
            pending: None,
            long: None,
            at_ns: 0,
            due_ns: 0,
            blocked: None,
            refused: false,
            asking: Asking::default(),
        }
    }

    /// All messages planned have been dealt with.
    pub fn is_done(&self) -> bool {
        self.has_sent_all() && self.asking.is_idle()
    }

    fn has_sent_all(&self) -> bool {
        self.done >= self.plan.messages && self.long.is_none()
    }

    /// What others may still fetch of a message that is given up.
    pub fn offered(&self) -> Option<&[u8]> {
        let pending = self.pending.as_ref()?;
        let in_memory = matches!(self.carrier, Some(Carrier::Memory { .. }));
        (in_memory && self.long.is_some()).then_some(&pending.bytes)
    }

    /// True if it goes to the peer that is gone.
    fn leads_to(&self, gone: &Departure) -> bool {
        match self.carrier {
            None => false,
            Some(Carrier::Packets { peer }) => gone.peer == peer,
            Some(Carrier::Memory { incarnation, .. }) => match self.peer {
                Some(peer) => gone.peer == peer,
                None => gone.incarnation == incarnation,
            },
        }
    }

    /// The session is gone, or its process.
    pub fn forget_session(&mut self, now_ns: u64) {
        self.stream = None;
        self.carrier = None;
        self.edge = None;
        self.peer = None;
        self.pending = None;
        if self.long.take().is_some() {
            self.done += 1;
        }
        self.refused = false;
        self.at_ns = now_ns + RETRY_NS;
    }
}

impl World {
    /// Tells the flows of a node which of their peers are gone.
    pub fn departures(&mut self, index: usize, process: &mut Process) -> Result<(), String> {
        for gone in process.engine.take_departures() {
            let Departure { node, reason, .. } = gone;
            self.totals.add_gone(reason);
            self.trace
                .note(self.now_ns, index, What::Gone { peer: node, reason });
            if reason == GoneReason::Misbehaved {
                return Err(format!("cut off node {node}, yet all peers are honest"));
            }
            if self.scenario.keeps_peers {
                return Err(format!(
                    "gave up node {node} though nothing happened: {reason}"
                ));
            }
            // Sessions hurt by the last faults may end a while after them;
            // idle ones, which nobody misses, when they are asked whether they live.
            let grace_ns = 25 * SECOND;
            let was_idle = self.stage == Stage::Closed && self.has_lost_sessions();
            // One that is stopped is rightly given up.
            let was_stopped = self.scenario.stuck.is_some_and(|stuck| {
                let there = self.scenario.nodes[stuck.node].config.node;
                !stuck.is_stepped && (stuck.node == index || node == there)
            });
            let late = self.now_ns > self.scenario.calm_at_ns + grace_ns;
            if late && !was_idle && !was_stopped {
                return Err(format!(
                    "gave up node {node} long after the last fault: {reason}"
                ));
            }
            for flow in 0..self.flows.len() {
                let state = &self.flows[flow];
                if state.plan.from == index && state.leads_to(&gone) {
                    if let Some(stream) = state.stream {
                        self.ledger.told_gone(stream);
                        self.totals.told_gone += 1;
                    }
                    self.give_up(flow);
                }
            }
        }
        Ok(())
    }

    /// Ends what a flow has in its session, which is gone.
    pub fn give_up(&mut self, flow: usize) {
        let state = &self.flows[flow];
        if let Some(bytes) = state.offered() {
            let index = state.plan.from;
            let socket = self.scenario.nodes[index].socket();
            self.memory(index).overwrite(&socket, bytes);
        }
        self.flows[flow].forget_session(self.now_ns);
        self.regions.forget(flow, &mut self.flows[flow].asking);
    }

    /// Opens, reads and closes endpoints.
    pub fn read(&mut self, index: usize, process: &mut Process) -> Result<(), String> {
        for position in 0..self.nodes[index].inlets.len() {
            self.attend(index, position, process)?;
            self.read_inlet(index, position, process)?;
        }
        Ok(())
    }

    fn wake_app(&mut self, index: usize, at_ns: u64) {
        let node = &mut self.nodes[index];
        node.app_at_ns = node.app_at_ns.min(at_ns);
    }

    /// Opens or closes an endpoint when its time has come.
    fn attend(
        &mut self,
        index: usize,
        position: usize,
        process: &mut Process,
    ) -> Result<(), String> {
        let now_ns = self.now_ns;
        let calm = self.stage > Stage::Storm;
        let inlet = &self.nodes[index].inlets[position];
        let id = inlet.plan.id;
        let wanted = inlet.plan.presence.is_open(now_ns, calm);
        if let Presence::Changing(times) = &inlet.plan.presence
            && let Some(next) = times.iter().find(|at| **at > now_ns)
        {
            let next = *next;
            self.wake_app(index, next);
        }
        if wanted == self.nodes[index].inlets[position].is_open {
            return Ok(());
        }
        self.totals.endpoint_changes += 1;
        self.nodes[index].inlets[position].is_open = wanted;
        if wanted {
            process.engine.open_endpoint(id);
            if self.scenario.has_regions {
                let flows = self.flows.len();
                self.regions.open((index, id), flows, &mut process.engine);
            }
            self.trace
                .note(now_ns, index, What::Opened { endpoint: id });
        } else {
            if self.scenario.nodes[index].closes_unread {
                self.ledger.dropped_unread(index, id);
            } else {
                while self.take(index, id, process)? {}
            }
            process.engine.close_endpoint(id);
            if let Some(memory) = self.nodes[index].inlets[position].offered.take() {
                memory.revoke();
            }
            if let Some(memory) = self.regions.close((index, id)) {
                // Who was about to copy from there must not.
                let (node, socket) = (self.memory(index), self.scenario.nodes[index].socket());
                let overwritten =
                    memory.show(0, memory.bytes(), |bytes| node.overwrite(&socket, bytes));
                overwritten.expect("all of it");
            }
            self.trace
                .note(now_ns, index, What::Closed { endpoint: id });
        }
        Ok(())
    }

    fn read_inlet(
        &mut self,
        index: usize,
        position: usize,
        process: &mut Process,
    ) -> Result<(), String> {
        let inlet = &self.nodes[index].inlets[position];
        if !inlet.is_open {
            return Ok(());
        }
        let (id, next_ns) = (inlet.plan.id, inlet.next_ns);
        let everybody = self.stage >= Stage::AllRead;
        match inlet.plan.reader {
            Reader::Slow { every_ns } if !everybody || every_ns < MILLISECOND => {
                if process.engine.has_message(id) {
                    if self.now_ns >= next_ns && self.take(index, id, process)? {
                        self.nodes[index].inlets[position].next_ns = self.now_ns + every_ns;
                    }
                    let at_ns = self.nodes[index].inlets[position].next_ns;
                    self.wake_app(index, at_ns);
                }
            }
            Reader::Never if !everybody => {}
            Reader::Stops { after } if !everybody => {
                while self.nodes[index].inlets[position].taken < after
                    && self.take(index, id, process)?
                {
                    self.nodes[index].inlets[position].taken += 1;
                }
            }
            Reader::Eager | Reader::Slow { .. } | Reader::Never | Reader::Stops { .. } => {
                while self.take(index, id, process)? {}
            }
        }
        Ok(())
    }

    /// Reads one message, if there is one.
    fn take(&mut self, index: usize, endpoint: u32, process: &mut Process) -> Result<bool, String> {
        if endpoint.is_multiple_of(2)
            && !self.scenario.has_regions
            && let Some(taken) = self.take_into(index, endpoint, process)?
        {
            return Ok(taken);
        }
        let Some(message) = process.engine.take(Instant(self.now_ns), endpoint) else {
            return Ok(false);
        };
        self.note_message(index, endpoint, process, &message)?;
        Ok(true)
    }

    /// Reads one message into memory that is offered for it beforehand; `None` if it does not fit.
    fn take_into(
        &mut self,
        index: usize,
        endpoint: u32,
        process: &mut Process,
    ) -> Result<Option<bool>, String> {
        let mut inlets = self.nodes[index].inlets.iter_mut();
        let Some(inlet) = inlets.find(|inlet| inlet.plan.id == endpoint) else {
            return Ok(None);
        };
        let new = || RegionMemory::new(OFFERED_BYTES).expect("memory");
        let memory = inlet.offered.get_or_insert_with(new).clone();
        // Now and then it stops waiting.
        if self.turns.is_multiple_of(16) {
            process.engine.withdraw(endpoint, &memory);
        }
        let taken = process
            .engine
            .take_into(Instant(self.now_ns), endpoint, &memory);
        let (length, source) = match taken {
            None => return Ok(Some(false)),
            Some(Err(_)) => return Ok(None),
            Some(Ok(taken)) => taken,
        };
        let mut bytes = vec![0; length];
        let read = memory.read(0, &mut bytes);
        read.and_then(|()| memory.write(0, &vec![0xEE; length]))
            .map_err(|error| error.to_string())?;
        self.totals.read_into += 1;
        self.note_read(index, endpoint, process, (source, &bytes))?;
        Ok(Some(true))
    }

    /// A reader that waits at one of the endpoints looks at shared memory: it may have what
    /// comes at once.
    pub fn read_at_once(&mut self, index: usize, process: &mut Process) -> Result<(), String> {
        let inlets = &self.nodes[index].inlets;
        if inlets.is_empty() || self.nodes[index].is_stuck {
            return Ok(());
        }
        let turn = usize::try_from(self.turns).unwrap_or(usize::MAX);
        let inlet = &inlets[turn % inlets.len()];
        if !inlet.is_open || !matches!(inlet.plan.reader, Reader::Eager) {
            return Ok(());
        }
        let endpoint = inlet.plan.id;
        if turn % 3 == 0 {
            return self.read_in_place(index, endpoint, process);
        }
        while let Polled::Got(message) = process.engine.poll_memory(Some(endpoint)) {
            self.totals.read_at_once += 1;
            self.note_message(index, endpoint, process, &message)?;
        }
        Ok(())
    }

    /// The same for a reader that takes all that comes, and some of it where it lies.
    fn read_in_place(
        &mut self,
        index: usize,
        endpoint: u32,
        process: &mut Process,
    ) -> Result<(), String> {
        let mut taker = Taker::default();
        while let Polled::Got(count) = process.engine.poll_memory_to(endpoint, &mut taker) {
            let taken = std::mem::take(&mut taker.taken);
            if taken.len() != count {
                return Err(format!("{} messages came, {count} were told", taken.len()));
            }
            for (source, bytes, is_in_place) in taken {
                self.totals.read_in_place += u64::from(is_in_place);
                self.note_read(index, endpoint, process, (source, &bytes))?;
            }
        }
        Ok(())
    }

    fn note_message(
        &mut self,
        index: usize,
        endpoint: u32,
        process: &Process,
        message: &Message,
    ) -> Result<(), String> {
        if self.regions.noticed((index, endpoint), message)? {
            self.totals.notices += 1;
            return Ok(());
        }
        self.note_read(index, endpoint, process, (message.source(), message))
    }

    fn note_read(
        &mut self,
        index: usize,
        endpoint: u32,
        process: &Process,
        (source, message): (Address, &[u8]),
    ) -> Result<(), String> {
        let from = self
            .scenario
            .sender(source.node.0, source.endpoint.0)
            .ok_or_else(|| format!("a message from {source}, which does not exist"))?;
        let at = Life {
            node: index,
            life: process.life,
        };
        let tag = self
            .ledger
            .received(at, endpoint, from, source.endpoint.0, message)?;
        if tag.unreliable {
            self.totals.unreliable_read += 1;
        } else {
            self.totals.read += 1;
            self.read_at_ns = self.now_ns;
        }
        self.totals.bytes_read += message.len() as u64;
        if message.len() as u64 + 64 > process.engine.machine().config().edge_window_bytes {
            self.totals.oversize += 1;
        }
        self.trace.note(
            self.now_ns,
            index,
            What::Read {
                stream: tag.stream,
                index: tag.index,
                bytes: message.len(),
            },
        );
        Ok(())
    }

    /// Lets the flows of a node send what they can.
    pub fn send(&mut self, index: usize, process: &mut Process) -> Result<(), String> {
        if self.stage >= Stage::Quiet {
            return Ok(());
        }
        if self.scenario.nodes[index].watches {
            process.engine.watch_peers(Instant(self.now_ns), true);
        }
        // Not always the same first.
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

    /// Sends what is left of messages that have begun: no call returns in the middle of one, so
    /// no application gets stuck there.
    pub fn send_rest(&mut self, index: usize, process: &mut Process) -> Result<(), String> {
        for flow in 0..self.flows.len() {
            if self.flows[flow].plan.from == index && self.flows[flow].long.is_some() {
                self.send_one(index, flow, process)?;
            }
        }
        Ok(())
    }

    fn drive(&mut self, index: usize, flow: usize, process: &mut Process) -> Result<(), String> {
        let now = Instant(self.now_ns);
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
                return self.probe(index, flow, process);
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
                process
                    .engine
                    .transmit(now)
                    .map_err(|error| error.to_string())?;
            }
        }
        self.wake_app(index, self.now_ns);
        Ok(())
    }

    /// Takes the answers to what a flow has asked.
    fn take_answers(&mut self, flow: usize, process: &mut Process) -> Result<(), String> {
        let asking = (flow, &mut self.flows[flow].asking);
        let taken = self.regions.answers(asking, &mut process.engine)?;
        if taken > 0 {
            self.totals.operations += taken;
            self.read_at_ns = self.now_ns;
        }
        Ok(())
    }

    /// Asks something of the memory of a flow's target now and then.
    fn ask(&mut self, flow: usize, process: &mut Process) {
        let state = &mut self.flows[flow];
        let at = (state.plan.to, state.plan.target);
        if let Some(edge) = state.edge
            && state.done < state.plan.messages
            && self.dice.random_range(0..3) == 0
        {
            let by = (&mut process.engine, edge, Instant(self.now_ns));
            let asking = (flow, &mut state.asking);
            self.regions.ask(asking, at, by, &mut self.dice);
        }
    }

    /// Makes a session and an edge; false while that takes time.
    fn has_edge(
        &mut self,
        index: usize,
        flow: usize,
        process: &mut Process,
    ) -> Result<bool, String> {
        let now = Instant(self.now_ns);
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
        let early = plan.early;
        let reached = |peer, early| {
            let is_open = process.engine.is_open(peer)?;
            Ok((is_open || early).then_some(peer))
        };
        let known = self.flows[flow].peer;
        let peer = match (carrier, known) {
            (Carrier::Packets { peer }, _) => reached(peer, early),
            // Two that connect to each other at once may use either connection.
            (Carrier::Memory { .. }, Some(peer)) => reached(peer, false),
            (Carrier::Memory { conn, .. }, None) => process.engine.memory_peer(conn),
        };
        let peer = match (peer, carrier) {
            (Ok(Some(peer)), _) => peer,
            (Ok(None), _) => return Ok(false),
            // It has never been open: nobody is told of that.
            (Err(Blocked::Gone(_)), Carrier::Memory { .. })
                if self.flows[flow].stream.is_none() =>
            {
                self.flows[flow].forget_session(now.0);
                self.wake_app(index, now.0 + RETRY_NS);
                return Ok(false);
            }
            (Err(blocked), _) => {
                return Err(format!("flow {flow} lost its peer untold: {blocked:?}"));
            }
        };
        if edge.is_none() {
            let edge = process.engine.edge(peer, plan.source, plan.target);
            let edge = edge.map_err(|error| {
                format!("flow {flow}: no edge though the peer is there: {error}")
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

    /// A flow begins a new edge now and then.
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

    /// Begins a session with the process that a flow leads to.
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
                // Then by packets.
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

    /// Sends a message, or a part; false if it has to wait.
    fn send_one(
        &mut self,
        index: usize,
        flow: usize,
        process: &mut Process,
    ) -> Result<bool, String> {
        let now = Instant(self.now_ns);
        self.prepare(flow);
        let node_memory = self.memory(index).clone();
        let state = &mut self.flows[flow];
        let (Some(carrier), Some(edge), Some(pending)) =
            (state.carrier, state.edge, &state.pending)
        else {
            return Ok(false);
        };
        let (tag, length) = (pending.tag, pending.bytes.len());
        let engine = &mut process.engine;
        if let Some(long) = &mut state.long {
            return match engine.continue_long(long, &pending.bytes) {
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
            };
        }
        if tag.unreliable {
            let sent = engine.send_unreliable(now, edge, &pending.bytes);
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
                // The peer has not forgotten the edge's earlier life.
                Err(Blocked::NoCredit) if state.plan.edge_messages > 0 => {}
                Err(Blocked::Refused(_)) if matches!(carrier, Carrier::Memory { .. }) => {
                    self.refused(index, flow, process)?;
                    return Ok(false);
                }
                Err(Blocked::Opening) => return Ok(false),
                // The peer is gone; that is told next.
                Err(Blocked::Gone(None)) => return Ok(false),
                Err(blocked) => return Err(format!("flow {flow}, unreliably: {blocked:?}")),
            }
            self.dealt_with(flow);
            return Ok(true);
        }
        let sent = if length <= engine.whole_limit(edge.peer) {
            // By the short way or the general one.
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
            // Who cannot wait has the message copied, or shared.
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
        state.blocked = sent.err();
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
            // The peer is gone; that is told next.
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

    /// A long message has been taken: its memory is used for something else.
    fn keep_no_longer(&mut self, index: usize, flow: usize) {
        if let Some(bytes) = self.flows[flow].offered() {
            let socket = self.scenario.nodes[index].socket();
            self.memory(index).overwrite(&socket, bytes);
        }
        self.flows[flow].long = None;
    }

    /// Draws the next message of a flow, unless there is one that waits.
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

    /// The receiver takes nothing: the message that waited is given up.
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
            process.engine.forgive(edge);
        }
        self.flows[flow].at_ns = self.now_ns + RETRY_NS;
        self.wake_app(index, self.now_ns + RETRY_NS);
        Ok(())
    }

    /// A flow that has sent everything asks now and then whether what is missing
    /// was refused, by sending once more.
    fn probe(&mut self, index: usize, flow: usize, process: &mut Process) -> Result<(), String> {
        let state = &self.flows[flow];
        let (Some(stream), Some(edge)) = (state.stream, state.edge) else {
            return Ok(());
        };
        let target = &self.nodes[state.plan.to].inlets;
        let may_refuse = target.iter().any(|inlet| {
            inlet.plan.id == state.plan.target && inlet.plan.presence != Presence::Always
        });
        if !may_refuse || self.stage < Stage::Calm || self.ledger.is_settled(stream) {
            return Ok(());
        }
        // At growing pauses: where the pool is low each waits for the repeat of the one
        // before, and a steady beat would leave one under way for ever.
        let pause_ns = PROBE_NS + (self.now_ns - self.stage_since_ns) / 8;
        self.wake_app(index, self.now_ns + pause_ns);
        self.flows[flow].at_ns = self.now_ns + pause_ns;
        let tag = self.ledger.next_tag(stream, false);
        let bytes = tag.message(TAG_BYTES);
        let (engine, now) = (&mut process.engine, Instant(self.now_ns));
        let sent = engine.send_whole(now, edge, &bytes, false);
        match sent {
            Ok(()) => {
                self.ledger.accepted(tag, bytes.len());
                self.totals.accepted += 1;
                self.trace.note(
                    self.now_ns,
                    index,
                    What::Sent {
                        stream,
                        index: tag.index,
                        bytes: bytes.len(),
                    },
                );
                Ok(())
            }
            Err(Blocked::Refused(_)) => {
                self.totals.told_refused += 1;
                self.trace
                    .note(self.now_ns, index, What::Refused { stream });
                self.ledger.told_refused(stream)
            }
            Err(_) => Ok(()),
        }
    }
}

//! The applications: endpoints with different ways of receiving, and flows whose peer is gone.

mod flow;
mod send;

use dipole_engine::Polled;
use dipole_node::{Address, Departure, GoneReason, Message, RegionMemory};
use dipole_proto::Instant;

pub use flow::Flow;

use crate::ledger::Life;
use crate::scenario::{EndpointPlan, MILLISECOND, Presence, Reader, SECOND};
use crate::taker::Taker;
use crate::trace::What;
use crate::world::{Process, Stage, World};

/// Pause before a flow retries after a refusal or a lost peer.
const RETRY_NS: u64 = 5 * MILLISECOND;
/// Memory that a receiver offers; some messages are longer.
const OFFERED_BYTES: usize = 48 << 10;

/// A receiving endpoint of a running process.
#[derive(Debug)]
pub struct Inlet {
    pub plan: EndpointPlan,
    pub is_open: bool,
    taken: u32,
    next_ns: u64,
    /// Memory that its receiver offers.
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

impl World {
    /// Informs the flows of a node which peers are gone.
    pub fn departures(&mut self, index: usize, process: &mut Process) -> Result<(), String> {
        for gone in process.engine.take_departures() {
            let Departure { node, reason, .. } = gone;
            self.totals.add_gone(reason);
            self.trace
                .note(self.now_ns, index, What::Gone { peer: node, reason });
            if reason == GoneReason::ProtocolViolation {
                return Err(format!("cut off node {node}, yet all peers are honest"));
            }
            if self.scenario.keeps_peers {
                return Err(format!(
                    "gave up node {node} though nothing happened: {reason}"
                ));
            }
            // Sessions damaged by the last faults may end some time later. Idle ones, which carry
            // no traffic, end when they are probed.
            let grace_ns = 25 * SECOND;
            let was_idle = self.stage == Stage::Closed && self.has_lost_sessions();
            // A process that is stopped may be given up.
            let was_stopped = self.scenario.stuck.is_some_and(|stuck| {
                let there = self.scenario.nodes[stuck.node].config.node;
                // One that never replied has not given its number.
                let mut flows = self.flows.iter().filter(|flow| flow.plan.from == index);
                let is_target =
                    flows.any(|flow| flow.plan.to == stuck.node && flow.leads_to(&gone));
                !stuck.is_stepped && (stuck.node == index || node == there || is_target)
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

    /// Ends the session state of a flow whose session is gone.
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

    /// Opens or closes an endpoint at its scheduled time.
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
                // A peer that was about to fetch from there must not.
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

    /// Receives one message if there is one.
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

    /// Receives one message into memory offered beforehand; `None` if it does not fit.
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
        // Now and then the receiver stops waiting.
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

    /// A receiver that waits at one of the endpoints polls shared memory, and may get its message
    /// directly.
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
        while let Polled::Ready(message) = process.engine.poll_memory(Some(endpoint)) {
            self.totals.read_at_once += 1;
            self.note_message(index, endpoint, process, &message)?;
        }
        Ok(())
    }

    /// Checks the messages of a reader that takes all, some of them in place.
    fn read_in_place(
        &mut self,
        index: usize,
        endpoint: u32,
        process: &mut Process,
    ) -> Result<(), String> {
        let mut taker = Taker::default();
        while let Polled::Ready(count) = process.engine.poll_memory_to(endpoint, &mut taker) {
            let taken = std::mem::take(&mut taker.taken);
            if taken.len() != count {
                return Err(format!(
                    "{} messages arrived, {count} were announced",
                    taken.len()
                ));
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
}

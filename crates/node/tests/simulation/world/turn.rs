//! A process and its turns.

use std::io;

use dipole_engine::Engine;
use dipole_proto::{DropReason, Instant};

use super::World;
use crate::app::Inlet;
use crate::scenario::{MICROSECOND, Presence};

/// Time until a process that found something to do polls again.
const POLL_NS: u64 = MICROSECOND;
/// Consecutive turns in which a process takes only the packets that it polled, as a waiting thread
/// does.
const MAX_HITS_IN_ROW: u32 = 16;
/// Turns of a node at a single moment that indicate an endless loop.
const RESTLESS: u32 = 20_000;
/// Turns of all processes that no run should need.
const MAX_TURNS: u64 = 2_000_000;

/// A process that is running in the simulation.
#[derive(Debug)]
pub struct Process {
    pub engine: Engine,
    pub life: u32,
    pub incarnation: u64,
    /// Consecutive turns that took only polled packets.
    pub(super) hits_in_row: u32,
    /// When the engine must be stepped.
    pub(super) deadline_ns: u64,
}

impl Process {
    /// Does what a waiting thread does in a turn: polled packets are taken before anything else.
    fn step(&mut self, now: Instant) -> io::Result<bool> {
        let has_packets = self.engine.spin_poll(now, 1)?;
        if has_packets && self.hits_in_row < MAX_HITS_IN_ROW {
            self.hits_in_row += 1;
            return self.engine.take_polled(now);
        }
        self.hits_in_row = 0;
        self.engine.step(now, true)
    }
}

impl World {
    /// Runs a turn of a process: first the engine, then its application.
    pub(super) fn activate(&mut self, index: usize) -> Result<(), String> {
        let node = &mut self.nodes[index];
        if node.activations.0 != self.now_ns {
            node.activations = (self.now_ns, 0);
        }
        node.activations.1 += 1;
        self.turns += 1;
        if self.turns > MAX_TURNS {
            return Err(format!("node {} keeps busy without progress", index + 1));
        }
        if node.activations.1 > RESTLESS {
            return Err(format!(
                "node {} never becomes idle at this moment",
                index + 1
            ));
        }
        node.free_at_ns = self.now_ns + self.scenario.nodes[index].busy_ns;
        let Some(mut process) = node.process.take() else {
            return Ok(());
        };
        let turn = self.turn(index, &mut process);
        self.nodes[index].process = Some(process);
        turn.map_err(|what| format!("node {}: {what}", index + 1))
    }

    fn turn(&mut self, index: usize, process: &mut Process) -> Result<(), String> {
        let now = Instant(self.now_ns);
        process.engine.disarm();
        self.read_at_once(index, process)?;
        process.step(now).map_err(|error| error.to_string())?;
        self.departures(index, process)?;
        self.nodes[index].app_at_ns = u64::MAX;
        if self.nodes[index].is_stuck {
            self.send_rest(index, process)?;
        } else {
            self.read(index, process)?;
            self.send(index, process)?;
        }
        self.transmit(index, process)?;
        process.deadline_ns = process
            .engine
            .next_deadline(now)
            .map_or(u64::MAX, |deadline| deadline.0);
        // A sleeping process is woken by a peer or at its deadline.
        if !process.engine.arm() {
            process.deadline_ns = process.deadline_ns.min(self.now_ns + POLL_NS);
        }
        self.check(index, process)
    }

    /// Checks invariants that hold at any time.
    fn check(&self, index: usize, process: &Process) -> Result<(), String> {
        let config = &self.scenario.nodes[index].config;
        let machine = process.engine.machine();
        let violations = machine.stats().dropped(DropReason::Violation);
        if violations > 0 {
            return Err("it counts a violation although all peers are honest".into());
        }
        let bound = self.nodes[index].credit_bound;
        // Records in shared memory cannot be retransmitted, so credit is their only bound.
        let by_memory = match self.scenario.nodes[index].shares_memory {
            true => bound,
            false => 0,
        };
        if machine.pool_used() > config.pool_bytes + by_memory {
            return Err(format!(
                "its pool of {} bytes holds {}",
                config.pool_bytes,
                machine.pool_used()
            ));
        }
        // Receivers that are not open accept messages in order to refuse them.
        let reads = |inlet: &Inlet| inlet.plan.presence == Presence::Always;
        if self.nodes[index].inlets.iter().all(reads) && machine.credit_committed() > bound {
            return Err(format!(
                "it has {} bytes of credit out, at most {bound} make sense",
                machine.credit_committed()
            ));
        }
        if process.engine.free_frames() > config.frames as usize {
            return Err(format!(
                "it has {} free frames of {}",
                process.engine.free_frames(),
                config.frames
            ));
        }
        Ok(())
    }
}

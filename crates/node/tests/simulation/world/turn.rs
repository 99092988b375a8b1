//! A process, and what it does in one turn.

use std::io;

use dipole_engine::Engine;
use dipole_proto::{DropReason, Instant};

use super::World;
use crate::app::Inlet;
use crate::scenario::{MICROSECOND, Presence};

/// How soon a process that found something to do looks again.
const POLL_NS: u64 = MICROSECOND;
/// Turns in a row in which a process takes only the packets that a look has found, as a
/// waiting thread does.
const MAX_FOUND: u32 = 16;
/// Activations of one node at one moment that mean it never comes to rest.
const RESTLESS: u32 = 20_000;
/// Turns of all processes that no run needs.
const MOST_TURNS: u64 = 2_000_000;

/// A running process.
#[derive(Debug)]
pub struct Process {
    pub engine: Engine,
    pub life: u32,
    pub incarnation: u64,
    /// Turns in a row that took only what a look had found.
    pub(super) found: u32,
    /// When the engine wants to be stepped.
    pub(super) deadline_ns: u64,
}

impl Process {
    /// What a waiting thread does in one turn: packets that are found are taken before
    /// anything else is looked at.
    fn step(&mut self, now: Instant) -> io::Result<bool> {
        let is_found = self.engine.look(now, 1)?;
        if is_found && self.found < MAX_FOUND {
            self.found += 1;
            return self.engine.take_found(now);
        }
        self.found = 0;
        self.engine.step(now, true)
    }
}

impl World {
    /// One turn of a process: the engine, then its application.
    pub(super) fn activate(&mut self, index: usize) -> Result<(), String> {
        let node = &mut self.nodes[index];
        if node.activations.0 != self.now_ns {
            node.activations = (self.now_ns, 0);
        }
        node.activations.1 += 1;
        self.turns += 1;
        if self.turns > MOST_TURNS {
            return Err(format!("node {} is busy for nothing", index + 1));
        }
        if node.activations.1 > RESTLESS {
            return Err(format!(
                "node {} never comes to rest at this moment",
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
        // Frames come back when the link takes them: somebody may wait for one.
        let free = process.engine.free_frames();
        process
            .engine
            .transmit(now)
            .map_err(|error| error.to_string())?;
        if process.engine.free_frames() > free {
            self.nodes[index].app_at_ns = self.now_ns;
        }
        process.deadline_ns = process
            .engine
            .next_deadline(now)
            .map_or(u64::MAX, |deadline| deadline.0);
        // A process that sleeps is woken by others, or by its deadline.
        if !process.engine.arm() {
            process.deadline_ns = process.deadline_ns.min(self.now_ns + POLL_NS);
        }
        self.check(index, process)
    }

    /// What must hold at every moment.
    fn check(&self, index: usize, process: &Process) -> Result<(), String> {
        let config = &self.scenario.nodes[index].config;
        let machine = process.engine.machine();
        let violations = machine.stats().dropped(DropReason::Violation);
        if violations > 0 {
            return Err("it counts a violation, yet all peers are honest".into());
        }
        let bound = self.nodes[index].credit_bound;
        // What comes through memory cannot be sent again: there credit alone is the bound.
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
        // Whoever has nobody to read is let come, to be refused.
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

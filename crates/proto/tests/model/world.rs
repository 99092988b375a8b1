//! Two hosts and the packets between them: the possible steps and their effects.

use std::rc::Rc;

use dipole_proto::wire::{Header, Kind};

use super::action::Action;
use super::explore::{GONE, System};
use super::host::{Host, home};
use super::key;
use super::scenario::Scenario;
use super::shared::Shared;

#[derive(Clone)]
pub struct Flight {
    pub from: u8,
    pub bytes: Rc<[u8]>,
    /// Position before the present step.
    pub was: u8,
}

impl Flight {
    pub fn to(&self) -> usize {
        usize::from(1 - self.from)
    }
}

#[derive(Clone)]
pub struct World {
    pub scenario: Rc<Scenario>,
    pub hosts: [Shared<Host>; 2],
    /// Packets in canonical order, after [`World::normalize`].
    pub network: Vec<Flight>,
    pub drops: u8,
    pub duplicates: u8,
    pub restarts: u8,
    pub narrowings: u8,
    pub early: u8,
}

impl World {
    /// The first state: hosts with a session, unless the scenario starts with the handshake.
    pub fn new(scenario: Scenario) -> World {
        let host = |index| Host::new(index, 1000 + u64::from(index), &scenario);
        let hosts = [0, 1].map(|index| Shared::new(host(index)));
        let mut world = World {
            hosts,
            network: Vec::new(),
            drops: 0,
            duplicates: 0,
            restarts: 0,
            narrowings: 0,
            early: 0,
            scenario: Rc::new(scenario),
        };
        for index in 0..2 {
            world.hosts[index].connect();
            world.pump(index);
        }
        if !world.scenario.handshake {
            world.open();
        }
        world.drops = world.scenario.drops;
        world.duplicates = world.scenario.duplicates;
        world.restarts = world.scenario.restarts;
        world.narrowings = world.scenario.narrowings;
        world.early = world.scenario.early;
        world
    }

    fn open(&mut self) {
        while !self.network.is_empty() {
            self.apply(Action::Deliver(0))
                .expect("a handshake without losses");
        }
        assert!(self.hosts.iter().all(|host| host.open));
    }

    /// True if no packet in flight can still arrive.
    fn is_still(&self) -> bool {
        self.network
            .iter()
            .all(|flight| !self.hosts[flight.to()].can_receive())
    }
    fn deliver(&mut self, flight: &Flight) -> Result<(), String> {
        let to = flight.to();
        self.hosts[to].take(home(flight.from), &flight.bytes)?;
        self.after(to);
        Ok(())
    }

    /// A host whose session has ended connects again. Then everything is sent that may be.
    fn after(&mut self, index: usize) {
        if self.scenario.handshake && self.hosts[index].peer.is_none() && self.hosts[index].gone < 4
        {
            self.hosts[index].connect();
        }
        self.pump(index);
    }

    fn pump(&mut self, index: usize) {
        let from = index as u8;
        while self
            .network
            .iter()
            .filter(|flight| flight.from == from)
            .count()
            < self.scenario.capacity
        {
            let Some(bytes) = self.hosts[index].poll() else {
                break;
            };
            self.network.push(Flight {
                from,
                bytes,
                was: GONE,
            });
        }
    }

    /// True if both sides have the same session, or neither has one.
    fn agrees(&self) -> bool {
        let [a, b] = &self.hosts;
        match (a.peer, b.peer) {
            (None, None) => true,
            (Some(_), Some(_)) => a.open && b.open,
            _ => false,
        }
    }
}

impl System for World {
    /// Adds all possible steps to `actions`.
    fn actions(&self, actions: &mut Vec<Action>) {
        actions.clear();
        for (index, flight) in self.network.iter().enumerate() {
            let index = index as u8;
            if self.hosts[flight.to()].can_receive() {
                actions.push(Action::Deliver(index));
                if self.duplicates > 0 {
                    actions.push(Action::Duplicate(index));
                }
            }
            if self.drops > 0 {
                actions.push(Action::Drop(index));
            }
        }
        for host in 0..2_u8 {
            let due = self.hosts[usize::from(host)].due();
            if due == Some(true) || due == Some(false) && (self.is_still() || self.early > 0) {
                actions.push(Action::Tick(host));
            }
            for thread in 0..self.hosts[usize::from(host)].progress.len() {
                actions.push(Action::Call(host, thread as u8));
            }
            if self.restarts > 0 {
                actions.push(Action::Restart(host));
            }
            if self.narrowings > 0 {
                actions.push(Action::Narrow(host));
            }
        }
    }

    /// Takes a step. Returns the invariant that it violates, if it violates one.
    fn apply(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Deliver(index) => {
                let flight = self.network.remove(usize::from(index));
                self.deliver(&flight)?;
                self.pump(usize::from(flight.from));
            }
            Action::Duplicate(index) => {
                self.duplicates -= 1;
                let flight = self.network[usize::from(index)].clone();
                self.deliver(&flight)?;
            }
            Action::Drop(index) => {
                self.drops -= 1;
                let flight = self.network.remove(usize::from(index));
                self.pump(usize::from(flight.from));
            }
            Action::Tick(host) => {
                if self.hosts[usize::from(host)].due() == Some(false) && !self.is_still() {
                    self.early -= 1;
                }
                self.hosts[usize::from(host)].tick()?;
                self.after(usize::from(host));
            }
            Action::Call(host, thread) => {
                let scenario = Rc::clone(&self.scenario);
                self.hosts[usize::from(host)].call(usize::from(thread), &scenario);
                self.after(usize::from(host));
            }
            Action::Restart(host) => {
                self.restarts -= 1;
                let index = usize::from(host);
                let incarnation = self.hosts[index].incarnation + 10;
                let now = self.hosts[index].now;
                self.hosts[index] = Shared::new(Host::new(host, incarnation, &self.scenario));
                self.hosts[index].now = now;
                self.hosts[index].connect();
                self.pump(index);
            }
            Action::Narrow(host) => {
                self.narrowings -= 1;
                self.hosts[usize::from(host)].narrow()?;
                self.after(usize::from(host));
            }
            Action::Begin | Action::Fetch(_) | Action::FetchRefused(_) => {}
        }
        for host in &self.hosts {
            host.check(&self.scenario)?;
        }
        Ok(())
    }

    /// Everything is sent, read and acknowledged, nothing is in flight, no timer runs.
    fn is_done(&self) -> bool {
        let quiet = |host: &Shared<Host>| {
            let acknowledged = host
                .peer
                .is_none_or(|peer| host.machine.is_acknowledged(peer));
            host.is_finished(&self.scenario) && acknowledged
        };
        let all = self.hosts.iter().all(quiet);
        let optional = self
            .scenario
            .threads
            .iter()
            .flatten()
            .any(|thread| thread.optional);
        if optional {
            // A credit request is repeated forever although the work is done.
            return self
                .hosts
                .iter()
                .all(|host| host.is_finished(&self.scenario));
        }
        let still = |host: &Shared<Host>| host.due().is_none();
        // If all edges were closed, both sides have forgotten them.
        let threads = || self.scenario.threads.iter().flatten();
        let edges = self.hosts.iter().map(|host| host.machine.edges());
        if threads().any(|it| it.closes) && edges.into_iter().any(|edges| edges != (0, 0)) {
            return false;
        }
        all && self.network.is_empty() && self.hosts.iter().all(still) && self.agrees()
    }

    fn tokens(&self) -> usize {
        self.network.len()
    }

    fn deliverable(&self) -> u8 {
        let mut mask = 0;
        for (index, flight) in self.network.iter().enumerate() {
            mask |= u8::from(self.hosts[flight.to()].can_receive()) << index;
        }
        mask
    }

    fn mark_tokens(&mut self) {
        for (index, flight) in self.network.iter_mut().enumerate() {
            flight.was = index as u8;
        }
    }

    /// The new position of each packet of the previous state, four bits each.
    fn moved(&self) -> u32 {
        let mut moved = u32::MAX;
        for (index, flight) in self.network.iter().enumerate() {
            if flight.was != GONE {
                let shift = 4 * u32::from(flight.was);
                moved = moved & !(15 << shift) | (index as u32) << shift;
            }
        }
        moved
    }

    /// Brings the network into canonical order and returns the state's key.
    fn normalize(&mut self) -> u128 {
        key::normalize(self)
    }

    fn describe(&self, action: Action) -> String {
        let name = |host: u8| char::from(b'A' + host);
        match action {
            Action::Deliver(index) | Action::Drop(index) | Action::Duplicate(index) => {
                let flight = &self.network[usize::from(index)];
                let (from, to) = (name(flight.from), name(1 - flight.from));
                format!("{from}->{to} {action}: {}", describe(&flight.bytes))
            }
            Action::Tick(host) => format!("{}    {action}", name(host)),
            Action::Call(host, thread) => {
                let progress = self.hosts[usize::from(host)].progress[usize::from(thread)];
                format!(
                    "{}    {action} thread {thread} (sent {}, read {} so far)",
                    name(host),
                    progress.sent,
                    progress.read
                )
            }
            Action::Restart(host) | Action::Narrow(host) => {
                format!("{}    {action}", name(host))
            }
            other => other.to_string(),
        }
    }

    /// Describes the state, for the end of a trace.
    fn describe_state(&self) -> String {
        let mut lines = String::new();
        for host in &self.hosts {
            let used = host.frames.used.iter().filter(|used| **used).count();
            let unread: usize = host
                .inbox
                .values()
                .map(std::collections::VecDeque::len)
                .sum();
            let calls: Vec<String> = host
                .progress
                .iter()
                .map(|progress| format!("sent {} read {}", progress.sent, progress.read))
                .collect();
            lines += &format!(
                "       {}: {}; {used} frames in use, {unread} messages unread, {} held back",
                char::from(b'A' + host.index),
                calls.join(", "),
                host.held.len()
            );
            if let Some(buffers) = &host.buffers {
                lines += &format!(", buffers: {} free, {} ready", buffers.free, buffers.ready);
            }
            if !host.open {
                lines += ", no session";
            }
            lines += "\n";
        }
        for flight in &self.network {
            let from = char::from(b'A' + flight.from);
            lines += &format!(
                "       in flight from {from}: {}\n",
                describe(&flight.bytes)
            );
        }
        lines
    }
}

fn describe(bytes: &[u8]) -> String {
    let Ok(header) = Header::parse(bytes) else {
        return "unreadable".into();
    };
    let mut text = header.to_string();
    if matches!(header.kind, Kind::Data | Kind::Ack | Kind::AckRequest)
        && let Ok(packet) = dipole_proto::wire::Packet::parse(bytes, dipole_proto::wire::CRC_BYTES)
    {
        for record in packet.records().flatten() {
            text += &format!(" [{record:?}]");
        }
    }
    text
}

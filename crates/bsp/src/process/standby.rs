//! The launched ranks of a program with several parallel sections, between these.
//!
//! They keep their links. Rank 0 begins each section, and names it for the others, which wait. No
//! message of a section is sent before all ranks have left the one before: each confirms that to rank 0.

use super::start::{Early, StartTerms, collect, send_start, wait_start};
use super::{CLOSE_TIMEOUT, Process};
use crate::carrier::{AnyCarrier, Carrier, Connection, job};
use crate::failure::Failure;
use crate::superstep::message::{Head, Kind};
use crate::superstep::node_map::NodeMap;
use dipole_model::{Machine, Slots};

/// A launched rank outside of parallel sections.
#[derive(Debug)]
pub struct Standby<C: Carrier> {
    /// Used by the process during a section with ranks on several nodes.
    carrier: Option<C>,
    rank: u32,
    size: u32,
    node_map: NodeMap,
    machine: Machine,
    slots: Option<Slots>,
    /// Messages about the next section that arrived during the last one.
    early: Vec<(u32, C::Message)>,
    /// Number of ranks that took part in the last section; 0 before the first.
    last_participants: u32,
}

/// The decision of rank 0 for another rank.
#[derive(Debug)]
pub enum Decision<P> {
    /// It takes part in the section with this name.
    Section(P, Vec<u8>),
    /// The program has ended.
    End,
}

impl Standby<AnyCarrier> {
    /// Opens the links of the job that this process belongs to.
    ///
    /// # Errors
    /// The job or its links are misconfigured.
    pub fn open() -> Result<Standby<AnyCarrier>, Failure> {
        let job = job()?;
        let (rank, size) = job.as_ref().map_or((0, 1), |job| (job.rank, job.size));
        Ok(Standby::new(Connection::of(job)?, rank, size))
    }
}

impl<C: Carrier> Standby<C> {
    /// Creates the state of a rank before the first section.
    #[must_use]
    pub fn new(connection: Connection<C>, rank: u32, size: u32) -> Standby<C> {
        let Connection {
            carrier,
            node_map,
            machine,
            slots,
        } = connection;
        Standby {
            carrier: Some(carrier),
            rank,
            size,
            node_map,
            machine,
            slots,
            early: Vec::new(),
            last_participants: 0,
        }
    }

    /// Begins a section on rank 0, with at most `max_ranks` ranks. The others get its name.
    ///
    /// # Errors
    /// A rank has ended or does not start.
    pub fn begin(
        mut self,
        max_ranks: Option<u32>,
        section: Vec<u8>,
    ) -> Result<Process<C>, Failure> {
        let mut early = std::mem::take(&mut self.early);
        let size = self.size;
        let participants = max_ranks.map_or(size, |max| max.clamp(1, size));
        let is_first = self.last_participants == 0;
        let terms = StartTerms::new(&self.node_map, self.machine.clone());
        let terms = terms.of_section(section, is_first);
        // Those that took no part have confirmed it then.
        let left = 1..self.last_participants.max(1);
        let carrier = self.carrier()?;
        collect(carrier, left, &mut early)?;
        send_start(carrier, size, participants, &terms, &mut early)?;
        self.enter(participants, terms, early)
    }

    /// Waits on another rank until rank 0 begins a section that this one takes part in, or ends.
    ///
    /// # Errors
    /// The links fail, or a rank does not start.
    pub fn wait(mut self) -> Result<Decision<Box<Process<C>>>, Failure> {
        loop {
            let (rank, size) = (self.rank, self.size);
            let mut early = std::mem::take(&mut self.early);
            let has_begun = self.last_participants > 0;
            let carrier = self.carrier()?;
            let decided = match has_begun {
                // It has left a section, or took no part in it.
                true => carrier.send(0, Head::new(Kind::Start, 0).encode().to_vec()),
                false => Ok(()),
            };
            let decided = decided.and_then(|()| wait_start(carrier, &mut early));
            let (participants, mut terms) = match decided {
                // Its process ended without further sections.
                Err(Failure::Gone { rank: 0, .. }) if has_begun => return Ok(Decision::End),
                decided => decided?,
            };
            if participants == 0 {
                carrier.close(CLOSE_TIMEOUT);
                return Ok(Decision::End);
            }
            self.last_participants = participants;
            if rank < participants.min(size) {
                let section = std::mem::take(&mut terms.section);
                let process = self.enter(participants.min(size), terms, early)?;
                return Ok(Decision::Section(Box::new(process), section));
            }
            self.early = early;
        }
    }

    /// Lets the other ranks end, because rank 0 begins no more sections.
    pub fn dismiss(mut self) {
        let end = Head::new(Kind::Start, 0).encode().to_vec();
        let others = 1..self.size;
        let Some(carrier) = &mut self.carrier else {
            return;
        };
        for to in others {
            // A rank that cannot be reached has ended.
            let _sent = carrier.send(to, end.clone());
        }
        carrier.close(CLOSE_TIMEOUT);
    }

    fn enter(
        mut self,
        participants: u32,
        terms: StartTerms,
        mut early: Early<C>,
    ) -> Result<Process<C>, Failure> {
        let (rank, size) = (self.rank, self.size);
        if rank == 0 {
            collect(self.carrier()?, participants..size, &mut early)?;
        }
        self.last_participants = participants;
        let (slots, node_map) = (self.slots, self.node_map.first_ranks(participants));
        let carrier = self.carrier.take().ok_or_else(closed)?;
        let own = (rank, participants);
        let mut process = Process::connect(carrier, own, &node_map, terms, early)?;
        if node_map.nodes() == 1 {
            self.put_back(process.carrier.take());
        }
        process.standby = Some(Box::new(self));
        process.set_slots(slots);
        Ok(process)
    }

    fn carrier(&mut self) -> Result<&mut C, Failure> {
        self.carrier.as_mut().ok_or_else(closed)
    }

    /// Takes the links back after a section, or while it does not need them.
    pub(super) fn put_back(&mut self, carrier: Option<C>) {
        if carrier.is_some() {
            self.carrier = carrier;
        }
    }

    /// Keeps a message about the next section.
    pub(super) fn keep(&mut self, from: u32, message: C::Message) {
        self.early.push((from, message));
    }
}

fn closed() -> Failure {
    Failure::system("messages to other ranks")(std::io::ErrorKind::NotConnected.into())
}

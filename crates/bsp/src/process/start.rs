//! How ranks find each other and start.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::checkpoint::Checkpoints;
use super::collective_state::CollectiveState;
use super::open_memory::OpenMemory;
use super::pacer::Pacer;
use super::pending::PendingCalls;
use super::shared_memory::SharedMemory;
use super::{CLOSE_TIMEOUT, Process};
use crate::call::Call;
use crate::carrier::{AnyCarrier, Carrier, Connection, job};
use crate::failure::Failure;
use crate::local::{LocalRanks, WindowOffer};
use crate::misuse::Misuse;
use crate::slow_wait::SlowWaitLog;
use crate::superstep::collective::Ending;
use crate::superstep::exchange::Exchange;
use crate::superstep::message::{Head, Kind};
use crate::superstep::node_map::NodeMap;
use crate::superstep::queue::Queue;
use crate::superstep::record::Malformed;
use crate::trace::{ProcessInfo, Tracer};
use dipole_model::{Machine, Slots};

/// Empty supersteps that compare the clocks of nodes before a traced program begins.
const CLOCK_ROUNDS: u32 = 8;
/// How often a rank that waits for a message checks on its peers.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// This process's rank and the number of ranks, as set by the launcher; (0, 1) without a launcher.
///
/// # Errors
/// The launcher's environment variables are invalid.
pub fn rank_and_size() -> Result<(u32, u32), Failure> {
    Ok(job()?.map_or((0, 1), |job| (job.rank, job.size)))
}

impl Process<AnyCarrier> {
    /// Begins the program with the other processes of the job. At most `max_ranks` of them take
    /// part; only the value given on rank 0 counts. Returns `None` on a surplus process.
    ///
    /// # Errors
    /// The job or its links are misconfigured, or a rank does not start.
    pub fn begin(max_ranks: Option<u32>) -> Result<Option<Process<AnyCarrier>>, Failure> {
        let job = job()?;
        let own = job.as_ref().map_or((0, 1), |job| (job.rank, job.size));
        let Connection {
            carrier,
            node_map,
            machine,
            slots,
        } = Connection::of(job)?;
        let joined = Process::join_with_machine(carrier, own, max_ranks, &node_map, machine)?;
        Ok(with_slots(joined, slots))
    }

    /// Counters of the links to ranks of other nodes; `None` over TCP, or without such ranks.
    #[must_use]
    pub fn stats(&self) -> Option<dipole_node::Stats> {
        match &self.carrier {
            Some(AnyCarrier::Endpoints(endpoints)) => Some(endpoints.stats()),
            _ => None,
        }
    }
}

/// Decisions of rank 0 for all ranks.
#[derive(Clone, Debug)]
pub(super) struct StartTerms {
    /// Empty supersteps before the program's first one, for tracing.
    rounds: u32,
    /// Random number in the trace files of this run.
    run: u32,
    machine: Machine,
    /// Name of the parallel section, if the program may have several.
    pub(super) section: Vec<u8>,
    /// Traces may be written: this is the first section.
    is_first: bool,
}

impl StartTerms {
    pub(super) fn new(node_map: &NodeMap, machine: Machine) -> StartTerms {
        let is_traced = dipole_node::trace_dir().is_some() && node_map.nodes() > 1;
        StartTerms {
            rounds: u32::from(is_traced) * CLOCK_ROUNDS,
            run: rand::random(),
            machine,
            section: Vec::new(),
            is_first: true,
        }
    }

    /// The terms of one of several sections.
    pub(super) fn of_section(self, section: Vec<u8>, is_first: bool) -> StartTerms {
        StartTerms {
            rounds: self.rounds * u32::from(is_first),
            section,
            is_first,
            ..self
        }
    }
}

fn with_slots(
    mut joined: Option<Process<AnyCarrier>>,
    slots: Option<Slots>,
) -> Option<Process<AnyCarrier>> {
    if let Some(process) = &mut joined {
        process.set_slots(slots);
    }
    joined
}

/// A message and its sender, received before this rank was ready for it.
pub(super) type Early<C> = Vec<(u32, <C as Carrier>::Message)>;

impl<C: Carrier> Process<C> {
    /// Begins as rank `rank` of `size`, connected by a carrier. Rank 0 lets at most `max_ranks`
    /// take part; returns `None` on the others.
    ///
    /// # Errors
    /// A rank does not start.
    pub fn join(
        carrier: C,
        rank: u32,
        size: u32,
        max_ranks: Option<u32>,
        node_map: &NodeMap,
    ) -> Result<Option<Process<C>>, Failure> {
        let machine = Machine::default();
        Process::join_with_machine(carrier, (rank, size), max_ranks, node_map, machine)
    }

    /// Joins with a known cost of supersteps; rank 0's value counts.
    ///
    /// # Errors
    /// A rank does not start.
    pub fn join_with_machine(
        mut carrier: C,
        (rank, size): (u32, u32),
        max_ranks: Option<u32>,
        node_map: &NodeMap,
        machine: Machine,
    ) -> Result<Option<Process<C>>, Failure> {
        let mut early = Vec::new();
        let (participants, terms) = match rank {
            0 => {
                let terms = StartTerms::new(node_map, machine);
                let participants = max_ranks.map_or(size, |max| max.clamp(1, size));
                send_start(&mut carrier, size, participants, &terms, &mut early)?;
                (participants, terms)
            }
            _ => {
                let (wanted, terms) = wait_start(&mut carrier, &mut early)?;
                (wanted.clamp(1, size), terms)
            }
        };
        if rank >= participants {
            // Rank 0 waits for this before it continues.
            let head = Head::new(Kind::Start, 0);
            carrier.send(0, head.encode().to_vec())?;
            carrier.close(CLOSE_TIMEOUT);
            return Ok(None);
        }
        if rank == 0 {
            collect(&mut carrier, participants..size, &mut early)?;
        }
        let node_map = node_map.first_ranks(participants);
        let own = (rank, participants);
        let mut process = Process::connect(carrier, own, &node_map, terms, early)?;
        if node_map.nodes() == 1 {
            process.close(Duration::ZERO);
        }
        Ok(Some(process))
    }

    /// Shares memory with the ranks of this node, and waits for all others. The carrier is no longer
    /// needed if all are on one node.
    pub(super) fn connect(
        carrier: C,
        (rank, size): (u32, u32),
        node_map: &NodeMap,
        terms: StartTerms,
        early: Early<C>,
    ) -> Result<Process<C>, Failure> {
        let ranks: Vec<u32> = node_map.ranks_with(rank).collect();
        let shared = match ranks.len() {
            1 => None,
            _ => Some(SharedMemory::new(LocalRanks::new(rank, size, &ranks)?)),
        };
        let first = 1 + terms.rounds;
        let info = ProcessInfo {
            rank,
            size,
            nodes: u32::try_from(node_map.nodes()).unwrap_or(u32::MAX),
            leader: node_map.leader(rank),
            first,
            run: terms.run,
            link: match node_map.nodes() {
                1 => "shm",
                _ => carrier.name(),
            },
        };
        let directory = dipole_node::trace_dir().filter(|_| terms.is_first);
        let trace = directory.and_then(|directory| Tracer::begin(&directory, &info));
        let mut process = Process {
            rank,
            size,
            begun: Instant::now(),
            call: Call {
                name: "bsp_begin",
                place: None,
            },
            open: OpenMemory::default(),
            carrier: Some(carrier),
            exchange: Exchange::new(rank, node_map.clone()),
            pacer: Pacer::unpaced(),
            shared,
            pending: PendingCalls::new(size),
            held_for: Vec::new(),
            collective: CollectiveState::new(rank, size),
            queue: Queue::default(),
            scratch: Vec::new(),
            first,
            machine: terms.machine,
            trace,
            checkpoints: Checkpoints::from_env()?,
            standby: None,
        };
        let mut started = process.share_windows(early);
        for _ in 0..first {
            started = started.and_then(|()| process.end_superstep(Ending::Sync));
        }
        if let Err(failure) = started {
            process.abort();
            return Err(failure);
        }
        process.begun = Instant::now();
        Ok(process)
    }

    /// Exchanges the windows of this node's ranks.
    fn share_windows(&mut self, early: Early<C>) -> Result<(), Failure> {
        let local = self.shared.as_ref().map(|shared| shared.ranks().others());
        let local = local.into_iter().flatten().map(|(_, rank)| rank);
        self.exchange_hellos(local.collect(), Vec::new(), early)
    }

    /// Exchanges windows with ranks of this node, and the keys of this rank's registered memory
    /// with all `ranks`.
    pub(super) fn exchange_hellos(
        &mut self,
        ranks: Vec<u32>,
        keys: Vec<u64>,
        early: Early<C>,
    ) -> Result<(), Failure> {
        let offer = self.shared.as_ref().map(|it| it.ranks().window_offer());
        let head = Head::new(Kind::Hello, 0).encode().to_vec();
        let hello = (offer.map(|offer| offer.encode()), keys);
        let hello = postcard::to_extend(&hello, head).map_err(|_| Malformed)?;
        for to in &ranks {
            self.carrier()?.send(*to, hello.clone())?;
        }
        let mut missing = ranks;
        for (from, message) in early {
            self.accept_hello(from, message, &mut missing)?;
        }
        let mut slow_wait = SlowWaitLog::new();
        while !missing.is_empty() {
            match self.carrier()?.receive(CHECK_INTERVAL)? {
                Some((from, message)) => self.accept_hello(from, message, &mut missing)?,
                None if dipole_node::is_cancelled() => return Err(Failure::Interrupted),
                None => {
                    self.carrier()?.check(&missing)?;
                    log_slow_start(self.rank, &mut slow_wait, &missing);
                }
            }
        }
        Ok(())
    }

    fn accept_hello(
        &mut self,
        from: u32,
        message: C::Message,
        missing: &mut Vec<u32>,
    ) -> Result<(), Failure> {
        match Head::decode(&message) {
            Some((head, body)) if head.kind == Kind::Hello => {
                let (offer, keys): (Option<Vec<u8>>, Vec<u64>) =
                    postcard::from_bytes(body).map_err(|_| Malformed)?;
                let is_local = self.exchange.node_map().share_node(from, self.rank);
                if let (Some(offer), Some(shared), true) = (offer, &mut self.shared, is_local) {
                    let offer = WindowOffer::decode(&offer).ok_or(Malformed)?;
                    shared.ranks_mut().attach(from, offer)?;
                }
                self.collective.set_keys(from, &keys);
                missing.retain(|rank| *rank != from);
                Ok(())
            }
            _ => self.accept(from, message),
        }
    }
}

/// Sends rank 0's decisions to the other ranks. Keeps what they send meanwhile.
pub(super) fn send_start<C: Carrier>(
    carrier: &mut C,
    size: u32,
    participants: u32,
    terms: &StartTerms,
    early: &mut Early<C>,
) -> Result<(), Failure> {
    let head = Head {
        total: participants,
        index: terms.rounds,
        summary_bytes: terms.run,
        ..Head::new(Kind::Start, 0)
    };
    let mut start = head.encode().to_vec();
    let body = (&terms.machine, &terms.section, terms.is_first);
    // A rank that receives no costs chooses its algorithms as without a profile.
    start.extend(serde_json::to_vec(&body).unwrap_or_default());
    for to in 1..size {
        while !carrier.has_room()? {
            if dipole_node::is_cancelled() {
                return Err(Failure::Interrupted);
            }
            early.extend(carrier.receive(CHECK_INTERVAL)?);
        }
        carrier.send(to, start.clone())?;
    }
    Ok(())
}

/// Waits until these ranks have confirmed that they take no part, or have left a section. Keeps what
/// other ranks send meanwhile. Ranks that wait for rank 0 may have sent probes.
pub(super) fn collect<C: Carrier>(
    carrier: &mut C,
    ranks: Range<u32>,
    early: &mut Early<C>,
) -> Result<(), Failure> {
    let mut missing: Vec<u32> = ranks.clone().collect();
    let mut slow_wait = SlowWaitLog::new();
    let mut arrived = std::mem::take(early);
    loop {
        for (from, message) in arrived.drain(..) {
            if !ranks.contains(&from) {
                early.push((from, message));
            } else if Head::decode(&message).is_some_and(|(head, _)| head.kind == Kind::Start) {
                missing.retain(|rank| *rank != from);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        match carrier.receive(CHECK_INTERVAL)? {
            Some(message) => arrived.push(message),
            None if dipole_node::is_cancelled() => return Err(Failure::Interrupted),
            None => match carrier.check(&missing) {
                Ok(()) => log_slow_start(0, &mut slow_wait, &missing),
                // It may have confirmed and then closed its links meanwhile.
                Err(failure) => arrived.push(carrier.receive(Duration::ZERO)?.ok_or(failure)?),
            },
        }
    }
}

/// Waits for rank 0's decisions. Keeps what other ranks send meanwhile.
pub(super) fn wait_start<C: Carrier>(
    carrier: &mut C,
    early: &mut Early<C>,
) -> Result<(u32, StartTerms), Failure> {
    let mut kept = std::mem::take(early).into_iter();
    loop {
        let next = match kept.next() {
            None => carrier.receive(CHECK_INTERVAL)?,
            next => next,
        };
        let Some((from, message)) = next else {
            if dipole_node::is_cancelled() {
                return Err(Failure::Interrupted);
            }
            // Not logged: rank 0 may be waiting for input.
            carrier.check(&[0])?;
            continue;
        };
        match Head::decode(&message) {
            Some((head, body)) if head.kind == Kind::Start && from == 0 => {
                let (machine, section, is_first) = match body {
                    [] => Default::default(),
                    body => serde_json::from_slice(body).map_err(|_| Malformed)?,
                };
                early.extend(kept);
                let terms = StartTerms {
                    rounds: head.index.min(CLOCK_ROUNDS),
                    run: head.summary_bytes,
                    machine,
                    section,
                    is_first,
                };
                return Ok((head.total, terms));
            }
            Some((head, _)) if head.kind == Kind::Abort => {
                return Err(Failure::Aborted { rank: from });
            }
            Some(_) => early.push((from, message)),
            None => return Err(Malformed.into()),
        }
    }
}

fn log_slow_start(rank: u32, slow_wait: &mut SlowWaitLog, missing: &[u32]) {
    if let Some(waited) = slow_wait.due() {
        let waited = waited.as_secs();
        eprintln!("bsp: rank {rank} has waited {waited} s in bsp_begin for ranks {missing:?}");
    }
}

/// Checks a maximum number of ranks.
///
/// # Errors
/// It is not positive.
pub fn check_max_ranks(max: i64) -> Result<u32, Failure> {
    match u32::try_from(max) {
        Ok(max @ 1..) => Ok(max),
        _ => Err(Misuse::NoRanks { max }.into()),
    }
}

//! How ranks find each other and start.

use std::ops::Range;
use std::time::{Duration, Instant};

use dipole_node::job::Job;
use dipole_node::{Config, Links, variables};

use super::Process;
use super::collective_state::CollectiveState;
use super::open_memory::OpenMemory;
use super::pacer::Pacer;
use super::pending::PendingCalls;
use super::shared_memory::SharedMemory;
use crate::call::Call;
use crate::carrier::{AnyCarrier, Carrier, Endpoints, Tcp, link_name};
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
use dipole_model::{Machine, Profile, Slots};

/// Empty supersteps that compare the clocks of nodes before a traced program begins.
const CLOCK_ROUNDS: u32 = 8;
/// Values of `DIPOLE_LINK` that only this library knows: TCP between all ranks, or between nodes
/// only.
const TCP: &str = "tcp";
const TCP_BETWEEN_NODES: &str = "tcp,shm";
/// Without slots, acknowledgements wait this long for data of the next superstep to carry them.
const ACK_DELAY_NS: u64 = 500_000;
/// How often a rank that waits for a message checks on its peers.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// This process's rank and the number of ranks, as set by the launcher; (0, 1) without a launcher.
///
/// # Errors
/// The launcher's environment variables are invalid.
pub fn rank_and_size() -> Result<(u32, u32), Failure> {
    Ok(job()?.map_or((0, 1), |job| (job.rank, job.size)))
}

/// The job that this process belongs to, if it was launched.
fn job() -> Result<Option<Job>, Failure> {
    use dipole_node::job::JobError;
    match Job::from_env() {
        Ok(job) => Ok(Some(job)),
        Err(JobError::Missing { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Process<AnyCarrier> {
    /// Begins the program with the other processes of the job. At most `max_ranks` of them take
    /// part; only the value given on rank 0 counts. Returns `None` on a surplus process.
    ///
    /// # Errors
    /// The job or its links are misconfigured, or a rank does not start.
    pub fn begin(max_ranks: Option<u32>) -> Result<Option<Process<AnyCarrier>>, Failure> {
        let job = match job()? {
            Some(job) if job.size > 1 => job,
            _ => {
                let alone = NodeMap::new(&[0]);
                let terms = StartTerms::new(&alone, machine("shm", true)?);
                return Process::connect(AnyCarrier::None, (0, 1), &alone, terms, Vec::new())
                    .map(Some);
            }
        };
        let nodes: Vec<_> = job.addresses.iter().map(|address| address.node).collect();
        let link = std::env::var_os(variables::LINK);
        match link.filter(|link| link == TCP || link == TCP_BETWEEN_NODES) {
            Some(link) => {
                Process::begin_over_tcp(&job, &nodes, link == TCP_BETWEEN_NODES, max_ranks)
            }
            None => Process::begin_over_endpoints(job, &nodes, max_ranks),
        }
    }

    fn begin_over_tcp<N: PartialEq>(
        job: &Job,
        nodes: &[N],
        may_share: bool,
        max_ranks: Option<u32>,
    ) -> Result<Option<Process<AnyCarrier>>, Failure> {
        let config = Config::from_env_with(Links::Auto)?;
        let node_map = node_map(nodes, may_share && config.may_share_memory());
        let machine = machine_of(&node_map, "tcp", nodes)?;
        let carrier = AnyCarrier::Tcp(Box::new(Tcp::connect(job, &config)?));
        let own = (job.rank, job.size);
        let joined = Process::join_with_machine(carrier, own, max_ranks, &node_map, machine)?;
        Ok(with_slots(joined, slots("tcp")?))
    }

    fn begin_over_endpoints<N: PartialEq>(
        job: Job,
        nodes: &[N],
        max_ranks: Option<u32>,
    ) -> Result<Option<Process<AnyCarrier>>, Failure> {
        let own = (job.rank, job.size);
        let mut config = Config::from_env()?;
        if config.protocol.max_peers < job.size {
            config.protocol.max_peers = job.size;
        }
        let node_map = node_map(nodes, config.may_share_memory());
        let link = link_name(config.links);
        let slots = match node_map.nodes() {
            1 => None,
            _ => slots(link)?,
        };
        if node_map.nodes() > 1 {
            let protocol = &mut config.protocol;
            let delay_ns = slots.map_or(ACK_DELAY_NS, |slots| {
                slots.acknowledgement_delay_ns(job.size)
            });
            protocol.ack_delay_ns = delay_ns;
            let min_ns = protocol.ack_delay_ns.saturating_mul(2);
            protocol.min_timeout_ns = protocol.min_timeout_ns.max(min_ns);
            protocol.max_timeout_ns = protocol.max_timeout_ns.max(protocol.min_timeout_ns);
        }
        // Only rank 0's profile counts, but every rank reads its own, so that each reports a
        // damaged one.
        let machine = machine_of(&node_map, link, nodes)?;
        let carrier = AnyCarrier::Endpoints(Box::new(Endpoints::open(job, config)?));
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

/// The nodes of the ranks; a node for each rank if they may not share memory.
fn node_map<N: PartialEq>(nodes: &[N], may_share: bool) -> NodeMap {
    match may_share {
        true => NodeMap::new(nodes),
        false => NodeMap::new(&(0..nodes.len()).collect::<Vec<_>>()),
    }
}

/// Decisions of rank 0 for all ranks.
#[derive(Clone, Debug)]
struct StartTerms {
    /// Empty supersteps before the program's first one, for tracing.
    rounds: u32,
    /// Random number in the trace files of this run.
    run: u32,
    machine: Machine,
}

impl StartTerms {
    fn new(node_map: &NodeMap, machine: Machine) -> StartTerms {
        let is_traced = dipole_node::trace_dir().is_some() && node_map.nodes() > 1;
        StartTerms {
            rounds: u32::from(is_traced) * CLOCK_ROUNDS,
            run: rand::random(),
            machine,
        }
    }
}

/// Cost of supersteps over a link, as far as this user has measured it.
fn machine(link: &str, is_one_node: bool) -> Result<Machine, Failure> {
    let profile = Profile::load(link)?;
    let cost = profile.map(|profile| profile.cost).unwrap_or_default();
    Ok(Machine::of(&cost, is_one_node))
}

/// Machine for ranks on these nodes, which use `link` unless all share memory.
fn machine_of<N: PartialEq>(
    node_map: &NodeMap,
    link: &str,
    nodes: &[N],
) -> Result<Machine, Failure> {
    match node_map.nodes() {
        1 => machine("shm", true),
        _ => machine(link, nodes.windows(2).all(|pair| pair[0] == pair[1])),
    }
}

/// The slots of a link, if calibration found that pacing is worthwhile on it.
fn slots(link: &str) -> Result<Option<Slots>, Failure> {
    let profile = Profile::load(link)?;
    let pacing = profile.and_then(|profile| profile.pacing);
    Ok(pacing.and_then(|pacing| pacing.slots))
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
type Early<C> = Vec<(u32, <C as Carrier>::Message)>;

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
            carrier.close(Duration::from_secs(5));
            return Ok(None);
        }
        if rank == 0 {
            release_surplus(&mut carrier, participants..size, &mut early)?;
        }
        let node_map = node_map.first_ranks(participants);
        Process::connect(carrier, (rank, participants), &node_map, terms, early).map(Some)
    }

    /// Shares memory with the ranks of this node, and waits for all others.
    fn connect(
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
        let trace = dipole_node::trace_dir().and_then(|directory| Tracer::begin(&directory, &info));
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
        };
        let mut started = process.share_windows(early);
        for _ in 0..first {
            started = started.and_then(|()| process.end_superstep(Ending::Sync));
        }
        if let Err(failure) = started {
            process.abort();
            return Err(failure);
        }
        if node_map.nodes() == 1 {
            process.close(Duration::ZERO);
        }
        process.begun = Instant::now();
        Ok(process)
    }

    /// Exchanges the windows of this node's ranks.
    fn share_windows(&mut self, early: Early<C>) -> Result<(), Failure> {
        let mut missing: Vec<u32> = Vec::new();
        if let Some(shared) = &self.shared {
            let mut hello = Head::new(Kind::Hello, 0).encode().to_vec();
            hello.extend_from_slice(&shared.ranks().window_offer().encode());
            missing.extend(shared.ranks().others().map(|(_, rank)| rank));
            for to in &missing {
                self.carrier()?.send(*to, hello.clone())?;
            }
        }
        for (from, message) in early {
            self.accept_hello(from, message, &mut missing)?;
        }
        let mut slow_wait = SlowWaitLog::new();
        while !missing.is_empty() {
            match self.carrier()?.receive(CHECK_INTERVAL)? {
                Some((from, message)) => self.accept_hello(from, message, &mut missing)?,
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
        match (Head::decode(&message), &mut self.shared) {
            (Some((head, body)), Some(shared)) if head.kind == Kind::Hello => {
                let offer = WindowOffer::decode(body).ok_or(Malformed)?;
                shared.ranks_mut().attach(from, offer)?;
                missing.retain(|rank| *rank != from);
                Ok(())
            }
            _ => self.accept(from, message),
        }
    }
}

/// Sends rank 0's decisions to the other ranks. Keeps what they send meanwhile.
fn send_start<C: Carrier>(
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
    // A rank that receives no costs chooses its algorithms as without a profile.
    start.extend(serde_json::to_vec(&terms.machine).unwrap_or_default());
    for to in 1..size {
        while !carrier.has_room()? {
            early.extend(carrier.receive(CHECK_INTERVAL)?);
        }
        carrier.send(to, start.clone())?;
    }
    Ok(())
}

/// Waits until the surplus ranks have confirmed that they take no part. Keeps what other ranks
/// send meanwhile. Surplus ranks that wait for rank 0 may have sent probes.
fn release_surplus<C: Carrier>(
    carrier: &mut C,
    surplus: Range<u32>,
    early: &mut Early<C>,
) -> Result<(), Failure> {
    let mut missing: Vec<u32> = surplus.clone().collect();
    let mut slow_wait = SlowWaitLog::new();
    let mut arrived = std::mem::take(early);
    loop {
        for (from, message) in arrived.drain(..) {
            if !surplus.contains(&from) {
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
            None => match carrier.check(&missing) {
                Ok(()) => log_slow_start(0, &mut slow_wait, &missing),
                // It may have confirmed and then closed its links meanwhile.
                Err(failure) => arrived.push(carrier.receive(Duration::ZERO)?.ok_or(failure)?),
            },
        }
    }
}

/// Waits for rank 0's decisions. Keeps what other ranks send meanwhile.
fn wait_start<C: Carrier>(
    carrier: &mut C,
    early: &mut Early<C>,
) -> Result<(u32, StartTerms), Failure> {
    loop {
        let Some((from, message)) = carrier.receive(CHECK_INTERVAL)? else {
            // Not logged: rank 0 may be waiting for input.
            carrier.check(&[0])?;
            continue;
        };
        match Head::decode(&message) {
            Some((head, body)) if head.kind == Kind::Start && from == 0 => {
                let machine = match body {
                    [] => Machine::default(),
                    body => serde_json::from_slice(body).map_err(|_| Malformed)?,
                };
                let terms = StartTerms {
                    rounds: head.index.min(CLOCK_ROUNDS),
                    run: head.summary_bytes,
                    machine,
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

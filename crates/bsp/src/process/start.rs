//! How ranks find each other and begin.

use std::ops::Range;
use std::time::{Duration, Instant};

use dipole_node::job::Job;
use dipole_node::{Config, Links, variables};

use super::Process;
use super::direct::OpenMemory;
use crate::call::Call;
use crate::carrier::{AnyCarrier, Carrier, Endpoints, Tcp, link_name};
use crate::failure::Failure;
use crate::local::{Arena, Invitation, LocalParcel, Mates};
use crate::misuse::Misuse;
use crate::parcel::{CHUNK_BYTES, Parcel};
use crate::patience::Patience;
use crate::superstep::exchange::{Exchange, Places};
use crate::superstep::facts::{Ending, Facts};
use crate::superstep::knowledge::Ranks;
use crate::superstep::message::{Head, Kind};
use crate::superstep::pace::Pace;
use crate::superstep::queue::{Queue, TagSizes};
use crate::superstep::record::Malformed;
use crate::superstep::registrations::Registrations;
use crate::trace::{Tracer, Who};
use dipole_model::Machine;
use dipole_model::Profile;
use dipole_model::Slots;

/// Empty supersteps by which the clocks of nodes are compared where a program is traced.
const CLOCK_ROUNDS: u32 = 8;
/// Links that only programs of this library know: TCP between all ranks, or with shared memory in
/// a node.
const TCP: &str = "tcp";
const TCP_BETWEEN_NODES: &str = "tcp,shm";
/// How long acknowledgements wait, without slots, for what the next superstep sends the other way.
const ACK_DELAY_NS: u64 = 500_000;
/// How long a rank waits for a message before it says so.
const LOOK: Duration = Duration::from_millis(500);

/// This process's rank and the number of ranks, as its launcher says; one alone without.
///
/// # Errors
/// The launcher's variables make no sense.
pub fn launched() -> Result<(u32, u32), Failure> {
    Ok(job()?.map_or((0, 1), |job| (job.rank, job.size)))
}

/// The job there is, if there is one.
fn job() -> Result<Option<Job>, Failure> {
    use dipole_node::job::JobError;
    match Job::from_env() {
        Ok(job) => Ok(Some(job)),
        Err(JobError::Missing { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

impl Process<AnyCarrier> {
    /// Begins the program with the other processes of the job, at most `most` of them (as rank 0
    /// says: what others give does not count). `None` for a process that is too many.
    ///
    /// # Errors
    /// The job or its links are not as they must be; a rank does not come.
    pub fn begin(most: Option<u32>) -> Result<Option<Process<AnyCarrier>>, Failure> {
        let job = match job()? {
            Some(job) if job.size > 1 => job,
            _ => {
                let alone = Places::new(&[0]);
                let agreed = Agreed::new(&alone, machine("shm", true)?);
                return Process::meet(AnyCarrier::None, (0, 1), &alone, agreed, Vec::new())
                    .map(Some);
            }
        };
        let (rank, size) = (job.rank, job.size);
        let apart: Vec<_> = (0..size).collect();
        let nodes: Vec<_> = job.addresses.iter().map(|address| address.node).collect();
        let is_one_node = nodes.windows(2).all(|pair| pair[0] == pair[1]);
        let link = std::env::var_os(variables::LINK);
        if let Some(link) = link.filter(|link| link == TCP || link == TCP_BETWEEN_NODES) {
            let config = Config::from_env_with(Links::Auto)?;
            let places = match link == TCP_BETWEEN_NODES && config.may_share_memory() {
                true => Places::new(&nodes),
                false => Places::new(&apart),
            };
            let machine = match places.nodes() {
                1 => machine("shm", true)?,
                _ => machine("tcp", is_one_node)?,
            };
            let carrier = AnyCarrier::Tcp(Box::new(Tcp::connect(&job, &config)?));
            let joined = Process::join_on(carrier, (rank, size), most, &places, machine)?;
            return Ok(paced(joined, slots("tcp")?));
        }
        let mut config = Config::from_env()?;
        if config.protocol.max_peers < size {
            config.protocol.max_peers = size;
        }
        let places = match config.may_share_memory() {
            true => Places::new(&nodes),
            false => Places::new(&apart),
        };
        let link = link_name(config.links);
        let slots = match places.nodes() {
            1 => None,
            _ => slots(link)?,
        };
        if places.nodes() > 1 {
            let protocol = &mut config.protocol;
            let delay_ns = slots.map_or(ACK_DELAY_NS, |slots| slots.acknowledgement_delay_ns(size));
            protocol.ack_delay_ns = delay_ns;
            let least = protocol.ack_delay_ns.saturating_mul(2);
            protocol.min_timeout_ns = protocol.min_timeout_ns.max(least);
            protocol.max_timeout_ns = protocol.max_timeout_ns.max(protocol.min_timeout_ns);
        }
        // All look, so that all say what is wrong with it; rank 0's counts.
        let machine = match places.nodes() {
            1 => machine("shm", true)?,
            _ => machine(link, is_one_node)?,
        };
        let carrier = AnyCarrier::Endpoints(Box::new(Endpoints::open(job, config)?));
        let joined = Process::join_on(carrier, (rank, size), most, &places, machine)?;
        Ok(paced(joined, slots))
    }

    /// Counters of the links to ranks of other nodes, if they are Dipole's.
    #[must_use]
    pub fn stats(&self) -> Option<dipole_node::Stats> {
        match &self.carrier {
            Some(AnyCarrier::Endpoints(endpoints)) => Some(endpoints.stats()),
            _ => None,
        }
    }
}

/// What rank 0 says to all, so that they decide alike.
#[derive(Clone, Debug)]
struct Agreed {
    /// Empty supersteps before the program's first, for tracing.
    rounds: u32,
    /// A number that only the trace files of this run have.
    run: u32,
    /// What supersteps cost.
    machine: Machine,
}

impl Agreed {
    fn new(places: &Places, machine: Machine) -> Agreed {
        let is_traced = dipole_node::trace_dir().is_some() && places.nodes() > 1;
        Agreed {
            rounds: u32::from(is_traced) * CLOCK_ROUNDS,
            run: rand::random(),
            machine,
        }
    }
}

/// What supersteps by a link cost, as far as this user has measured it.
fn machine(link: &str, is_one_node: bool) -> Result<Machine, Failure> {
    let profile = Profile::load(link)?;
    let cost = profile.map(|profile| profile.cost).unwrap_or_default();
    Ok(Machine::of(&cost, is_one_node))
}

/// The slots that were found to be of use on a link.
fn slots(link: &str) -> Result<Option<Slots>, Failure> {
    let profile = Profile::load(link)?;
    let pacing = profile.and_then(|profile| profile.pacing);
    Ok(pacing.and_then(|pacing| pacing.slots))
}

/// Lets a process send in slots, if it takes part.
fn paced(
    mut joined: Option<Process<AnyCarrier>>,
    slots: Option<Slots>,
) -> Option<Process<AnyCarrier>> {
    if let Some(process) = &mut joined {
        process.set_slots(slots);
    }
    joined
}

impl<C: Carrier> Process<C> {
    /// Begins as rank `rank` of `size` that a carrier connects, of whom rank 0 lets at most `most`
    /// take part; `None` if this one does not.
    ///
    /// # Errors
    /// A rank does not come.
    pub fn join(
        carrier: C,
        rank: u32,
        size: u32,
        most: Option<u32>,
        places: &Places,
    ) -> Result<Option<Process<C>>, Failure> {
        Process::join_on(carrier, (rank, size), most, places, Machine::default())
    }

    /// The same, where supersteps cost what rank 0 gives here.
    ///
    /// # Errors
    /// A rank does not come.
    pub fn join_on(
        mut carrier: C,
        (rank, size): (u32, u32),
        most: Option<u32>,
        places: &Places,
        machine: Machine,
    ) -> Result<Option<Process<C>>, Failure> {
        let mut early = Vec::new();
        let (taking_part, agreed) = match rank {
            0 => {
                let agreed = Agreed::new(places, machine);
                let taking_part = most.map_or(size, |most| most.clamp(1, size));
                let head = Head {
                    total: taking_part,
                    index: agreed.rounds,
                    knowledge: agreed.run,
                    ..Head::new(Kind::Start, 0)
                };
                let mut start = head.encode().to_vec();
                // Numbers have no reason to fail; who reads none chooses as without a profile.
                start.extend(serde_json::to_vec(&agreed.machine).unwrap_or_default());
                for to in 1..size {
                    while !carrier.has_room()? {
                        early.extend(carrier.receive(LOOK)?);
                    }
                    carrier.send(to, start.clone())?;
                }
                (taking_part, agreed)
            }
            _ => {
                let (wanted, agreed) = wait_start(&mut carrier, rank, &mut early)?;
                (wanted.clamp(1, size), agreed)
            }
        };
        if rank >= taking_part {
            // Rank 0 goes on when it knows that nobody waits for it any more.
            let head = Head::new(Kind::Start, 0);
            carrier.send(0, head.encode().to_vec())?;
            carrier.close(Duration::from_secs(5));
            return Ok(None);
        }
        if rank == 0 {
            part_with(&mut carrier, taking_part..size, &mut early)?;
        }
        let places = places.of_first(taking_part);
        Process::meet(carrier, (rank, taking_part), &places, agreed, early).map(Some)
    }

    /// Opens shared memory with the ranks of this node, and waits for all others.
    fn meet(
        carrier: C,
        (rank, size): (u32, u32),
        places: &Places,
        agreed: Agreed,
        early: Vec<(u32, C::Message)>,
    ) -> Result<Process<C>, Failure> {
        let ranks: Vec<u32> = places.mates(rank).collect();
        let mates = match ranks.len() {
            1 => None,
            _ => Some(Mates::new(rank, size, &ranks)?),
        };
        let arenas = mates.as_ref().map_or((0, 0), |mates| {
            let start = mates.board_bytes();
            (start, ((mates.window.length() - start) / 2) & !4095)
        });
        let arena = |which| {
            let start = arenas.0 + which * arenas.1;
            Arena::new(start, start + arenas.1)
        };
        let first = 1 + agreed.rounds;
        let who = Who {
            rank,
            size,
            nodes: u32::try_from(places.nodes()).unwrap_or(u32::MAX),
            leader: places.leader(rank),
            first,
            run: agreed.run,
            link: match places.nodes() {
                1 => "shm",
                _ => carrier.name(),
            },
        };
        let trace = dipole_node::trace_dir().and_then(|directory| Tracer::begin(&directory, &who));
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
            exchange: Exchange::new(rank, places.clone()),
            slots: None,
            chunk_bytes: CHUNK_BYTES,
            pace: Pace::new(None, size, 0),
            next_chunk: None,
            local: vec![LocalParcel::default(); ranks.len()],
            remote: (0..size).map(|_| Parcel::new(CHUNK_BYTES)).collect(),
            direct: vec![Vec::new(); size as usize],
            mates,
            arenas: [arena(0), arena(1)],
            row: Ranks::new(size),
            asked: Ranks::new(size),
            wanted: Vec::new(),
            keeping: Ranks::new(size),
            kept: Vec::new(),
            pulls: Vec::new(),
            is_pulled: false,
            registrations: Registrations::new(rank, size),
            tags: TagSizes::default(),
            tag_calls: 0,
            queue: Queue::default(),
            facts: Facts::default(),
            spread: Vec::new(),
            first,
            machine: agreed.machine,
            trace,
        };
        let mut met = process.invite(early);
        for _ in 0..first {
            met = met.and_then(|()| process.end_superstep(Ending::Sync));
        }
        if let Err(failure) = met {
            process.abort();
            return Err(failure);
        }
        if places.nodes() == 1 {
            process.close(Duration::ZERO);
        }
        process.begun = Instant::now();
        Ok(process)
    }

    /// Tells the ranks of this node how to share memory, and learns it of them.
    fn invite(&mut self, early: Vec<(u32, C::Message)>) -> Result<(), Failure> {
        let mut missing: Vec<u32> = Vec::new();
        if let Some(mates) = &self.mates {
            let mut hello = Head::new(Kind::Hello, 0).encode().to_vec();
            mates.invitation().encode(&mut hello);
            missing.extend(mates.others().map(|(_, rank)| rank));
            for to in &missing {
                self.carrier()?.send(*to, hello.clone())?;
            }
        }
        for (from, message) in early {
            self.welcome(from, message, &mut missing)?;
        }
        let mut patience = Patience::new();
        while !missing.is_empty() {
            match self.carrier()?.receive(LOOK)? {
                Some((from, message)) => self.welcome(from, message, &mut missing)?,
                None => {
                    self.carrier()?.check(&missing)?;
                    say(self.rank, &mut patience, &missing);
                }
            }
        }
        Ok(())
    }

    fn welcome(
        &mut self,
        from: u32,
        message: C::Message,
        missing: &mut Vec<u32>,
    ) -> Result<(), Failure> {
        match (Head::decode(&message), &mut self.mates) {
            (Some((head, body)), Some(mates)) if head.kind == Kind::Hello => {
                let invited = Invitation::decode(body).ok_or(Malformed)?;
                mates.join(from, invited)?;
                missing.retain(|rank| *rank != from);
                Ok(())
            }
            _ => self.take(from, message),
        }
    }
}

/// Waits until those who take no part know it; what comes of others meanwhile is kept.
fn part_with<C: Carrier>(
    carrier: &mut C,
    surplus: Range<u32>,
    early: &mut Vec<(u32, C::Message)>,
) -> Result<(), Failure> {
    let mut missing: Vec<u32> = surplus.collect();
    let is_one = |(from, _): &(u32, C::Message)| missing.contains(from);
    let (parted, others): (Vec<_>, Vec<_>) = early.drain(..).partition(is_one);
    *early = others;
    missing.retain(|rank| parted.iter().all(|(from, _)| from != rank));
    let mut patience = Patience::new();
    while !missing.is_empty() {
        match carrier.receive(LOOK)? {
            Some((from, _)) if missing.contains(&from) => missing.retain(|rank| *rank != from),
            Some(other) => early.push(other),
            None => {
                carrier.check(&missing)?;
                say(0, &mut patience, &missing);
            }
        }
    }
    Ok(())
}

/// Waits for what rank 0 says; what comes of others meanwhile is kept.
fn wait_start<C: Carrier>(
    carrier: &mut C,
    rank: u32,
    early: &mut Vec<(u32, C::Message)>,
) -> Result<(u32, Agreed), Failure> {
    let mut patience = Patience::new();
    loop {
        let Some((from, message)) = carrier.receive(LOOK)? else {
            carrier.check(&[0])?;
            say(rank, &mut patience, &[0]);
            continue;
        };
        match Head::decode(&message) {
            Some((head, body)) if head.kind == Kind::Start && from == 0 => {
                let machine = match body {
                    [] => Machine::default(),
                    body => serde_json::from_slice(body).map_err(|_| Malformed)?,
                };
                let agreed = Agreed {
                    rounds: head.index.min(CLOCK_ROUNDS),
                    run: head.knowledge,
                    machine,
                };
                return Ok((head.total, agreed));
            }
            Some((head, _)) if head.kind == Kind::Abort => {
                return Err(Failure::Aborted { rank: from });
            }
            Some(_) => early.push((from, message)),
            None => return Err(Malformed.into()),
        }
    }
}

fn say(rank: u32, patience: &mut Patience, missing: &[u32]) {
    if let Some(waited) = patience.word() {
        let waited = waited.as_secs();
        eprintln!("bsp: rank {rank} has waited {waited} s in bsp_begin for ranks {missing:?}");
    }
}

/// Refuses a number of ranks that is none.
///
/// # Errors
/// It is not positive.
pub fn check_most(most: i64) -> Result<u32, Failure> {
    match u32::try_from(most) {
        Ok(most @ 1..) => Ok(most),
        _ => Err(Misuse::NoRanks { most }.into()),
    }
}

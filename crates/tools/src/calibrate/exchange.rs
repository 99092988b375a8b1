//! One process of a job that measures supersteps: a barrier, then paced chunks, until all expected
//! data has arrived.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use dipole_bsp::superstep::pace::Pace;
use dipole_bsp::superstep::schedule::{Order, RoundRobin};
use dipole_group::{Combine, Group, Members};
use dipole_model::Slots;
use dipole_node::job::Job;
use dipole_node::{
    Address, Bytes, Config, Edge, Endpoint, EndpointId, Links, Node, Operation, ReceiveError,
    SendError,
};

use crate::output::Failure;

/// Longer than any of these supersteps.
const PATIENCE: Duration = Duration::from_secs(60);
/// Wait after an edge was full.
const RETRY: Duration = Duration::from_millis(1);
/// Default length of a chunk.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

/// Number of bytes from one rank to another.
pub(super) type Relation<'a> = &'a dyn Fn(usize, usize) -> usize;

/// Times of supersteps, the same at all members.
#[derive(Default)]
pub(super) struct Measured {
    /// Time of the slowest process in each superstep.
    pub(super) times_ns: Vec<u64>,
    /// Retransmissions, and packets sent for the first time.
    packets: [u64; 2],
}

impl Measured {
    pub(super) fn add(&mut self, more: Measured) {
        self.times_ns.extend(more.times_ns);
        for (packets, more) in self.packets.iter_mut().zip(more.packets) {
            *packets += more;
        }
    }

    /// Ratio of retransmissions to packets.
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    pub(super) fn repeats(&self) -> f64 {
        self.packets[0] as f64 / self.packets[1].max(1) as f64
    }
}

/// This process as a member of the job.
pub(super) struct Member {
    job: Job,
    node: Node,
    link: &'static str,
    inbox: Endpoint,
    /// Edges to the other ranks, indexed by rank.
    edges: Vec<Option<Edge>>,
    group: Group,
    content: Bytes,
    supersteps: u64,
}

impl Member {
    /// Joins the other processes of the job. Each must be on its own node.
    pub(super) fn join() -> Result<Member, Failure> {
        let job = Job::from_env().map_err(|error| {
            format!(
                "{error}; calibrate pacing with a process on each node: \
                 dipole run -n N --hosts FILE dipole calibrate pacing"
            )
        })?;
        let nodes: BTreeSet<_> = job.addresses.iter().map(|address| address.node).collect();
        if nodes.len() < job.addresses.len() || nodes.len() < 2 {
            return Err(format!(
                "{} processes are on {} nodes, but only traffic between nodes is paced: start one \
                 process on each of two or more nodes",
                job.addresses.len(),
                nodes.len()
            )
            .into());
        }
        let config = Config::from_env()?;
        let links = config.links;
        let node = Node::open(config)?;
        let link = match links {
            Links::Shm => {
                return Err("shared memory is not paced; set DIPOLE_LINK to udp or bpf".into());
            }
            Links::Udp => "udp",
            Links::Bpf => "bpf",
            Links::Auto if node.stats().bpf.is_some() => "bpf",
            Links::Auto => "udp",
        };
        let inbox = node.endpoint(job.own_address().endpoint)?;
        let mut edges = Vec::new();
        for (rank, address) in job.addresses.iter().enumerate() {
            let is_self = rank == job.rank as usize;
            edges.push((!is_self).then(|| inbox.edge(*address)).transpose()?);
        }
        // The endpoints of the job come first.
        let above = job.addresses[0].endpoint.0 + job.size;
        let ports = job.addresses.iter().zip(above..);
        let ports = ports.map(|(address, endpoint)| Address {
            node: address.node,
            endpoint: EndpointId(endpoint),
        });
        let members = Members::first(ports.collect::<Vec<_>>());
        let group = Group::join(&node, members, job.rank as usize, PATIENCE)?;
        Ok(Member {
            job,
            node,
            link,
            inbox,
            edges,
            group,
            content: Bytes::from(vec![0x5a; CHUNK_BYTES]),
            supersteps: 0,
        })
    }

    /// Number of processes of the job.
    pub(super) fn size(&self) -> usize {
        self.edges.len()
    }

    pub(super) fn rank(&self) -> usize {
        self.job.rank as usize
    }

    /// Name of the link, as in its profile.
    pub(super) fn link(&self) -> &'static str {
        self.link
    }

    /// Runs supersteps together with all members.
    pub(super) fn measure(
        &mut self,
        relation: Relation<'_>,
        slots: Option<Slots>,
        supersteps: u32,
    ) -> Result<Measured, Failure> {
        let before = self.node.stats().protocol;
        let mut times_ns = Vec::new();
        for _ in 0..supersteps {
            self.group.barrier(PATIENCE)?;
            times_ns.push(self.exchange(relation, slots)?);
        }
        self.group
            .allreduce_numbers(&mut times_ns, Combine::Max, PATIENCE)?;
        let after = self.node.stats().protocol;
        let mut packets = [
            after.repeats - before.repeats,
            after.units_sent - before.units_sent,
        ];
        self.group
            .allreduce_numbers(&mut packets, Combine::Sum, PATIENCE)?;
        Ok(Measured { times_ns, packets })
    }

    /// Runs one superstep and returns its time in this process.
    fn exchange(&mut self, relation: Relation<'_>, slots: Option<Slots>) -> Result<u64, Failure> {
        let (rank, size) = (self.rank(), self.size());
        let sends = |rank: usize| (0..size).map(|to| relation(rank, to)).sum::<usize>();
        let senders = (0..size).filter(|&rank| sends(rank) > 0).count();
        self.supersteps += 1;
        let seed = self.job.id ^ (self.supersteps << 20) ^ rank as u64;
        let mut pace = Pace::new(slots, u32::try_from(senders)?, seed);
        let mut turns = RoundRobin::new(Order::LatinSquare, rank, size);
        let chunk_bytes = slots.map_or(CHUNK_BYTES, |slots| slots.bytes as usize);
        let mut left: Vec<usize> = (0..size).map(|to| relation(rank, to)).collect();
        let mut missing: usize = (0..size).map(|from| relation(from, rank)).sum();
        let mut next = None;
        let begun = Instant::now();
        let now_ns = || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        loop {
            if next.is_none()
                && let Some(to) = turns.next(|to| left[to] > 0)
            {
                let bytes = left[to].min(chunk_bytes);
                left[to] -= bytes;
                next = Some((to, bytes, pace.next(now_ns(), bytes)));
            }
            let wait = match next {
                None if missing == 0 => return Ok(now_ns()),
                None => PATIENCE,
                Some((to, bytes, at_ns)) => {
                    let early_ns = at_ns.saturating_sub(now_ns());
                    if early_ns > 0 {
                        Duration::from_nanos(early_ns)
                    } else if self.post(to, bytes)? {
                        next = None;
                        continue;
                    } else {
                        RETRY
                    }
                }
            };
            match self.inbox.receive_timeout(wait) {
                Ok(message) => missing = missing.saturating_sub(message.len()),
                Err(ReceiveError::TimedOut { .. }) if next.is_some() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a chunk. False if the edge is full.
    fn post(&self, to: usize, bytes: usize) -> Result<bool, Failure> {
        let Some(edge) = &self.edges[to] else {
            return Ok(true);
        };
        let content = self.content.slice(..bytes);
        match edge.post_bytes(Operation::Message, content, 0) {
            Ok(()) => Ok(true),
            Err(SendError::Full { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Leaves the job together with the others.
    pub(super) fn leave(mut self) -> Result<(), Failure> {
        Ok(self.group.barrier(PATIENCE)?)
    }
}

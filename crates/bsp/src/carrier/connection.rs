//! How the links of a job are opened.

use dipole_model::{Machine, Profile, Slots};
use dipole_node::job::Job;
use dipole_node::{Config, Links, variables};

use super::{AnyCarrier, Endpoints, Tcp, endpoint::link_name};
use crate::failure::Failure;
use crate::superstep::node_map::NodeMap;

/// Values of `DIPOLE_LINK` that only this library knows: TCP between all ranks, or between nodes
/// only.
const TCP: &str = "tcp";
const TCP_BETWEEN_NODES: &str = "tcp,shm";
/// Without slots, acknowledgements wait this long for data of the next superstep to carry them.
const ACK_DELAY_NS: u64 = 500_000;
/// The job that this process belongs to, if it was launched.
///
/// # Errors
/// The launcher's environment variables are invalid.
pub(crate) fn job() -> Result<Option<Job>, Failure> {
    use dipole_node::job::JobError;
    match Job::from_env() {
        Ok(job) => Ok(Some(job)),
        Err(JobError::Missing { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The links to the other ranks of a job.
#[derive(Debug)]
pub struct Connection<C> {
    /// Moves messages to the other ranks.
    pub carrier: C,
    /// The nodes of the ranks.
    pub node_map: NodeMap,
    /// Cost of a superstep over these links.
    pub machine: Machine,
    /// Time slots for sending to other nodes.
    pub slots: Option<Slots>,
}

impl Connection<AnyCarrier> {
    /// Opens the links of a job with several ranks, as the environment selects them.
    ///
    /// # Errors
    /// The job or its links are misconfigured.
    fn open(job: Job) -> Result<Connection<AnyCarrier>, Failure> {
        let nodes: Vec<_> = job.addresses.iter().map(|address| address.node).collect();
        let link = std::env::var_os(variables::LINK);
        match link.filter(|link| link == TCP || link == TCP_BETWEEN_NODES) {
            Some(link) => Connection::over_tcp(&job, &nodes, link == TCP_BETWEEN_NODES),
            None => Connection::over_endpoints(job, &nodes),
        }
    }

    /// Opens the links of a job, if there is one and it has several ranks.
    ///
    /// # Errors
    /// The job or its links are misconfigured.
    pub(crate) fn of(job: Option<Job>) -> Result<Connection<AnyCarrier>, Failure> {
        match job {
            Some(job) if job.size > 1 => Connection::open(job),
            _ => Ok(Connection {
                carrier: AnyCarrier::None,
                node_map: NodeMap::new(&[0]),
                machine: machine("shm", true)?,
                slots: None,
            }),
        }
    }

    fn over_tcp<N: PartialEq>(
        job: &Job,
        nodes: &[N],
        may_share: bool,
    ) -> Result<Connection<AnyCarrier>, Failure> {
        let config = Config::from_env_with(Links::Auto)?;
        let node_map = node_map(nodes, may_share && config.may_share_memory());
        let machine = machine_of(&node_map, "tcp", nodes)?;
        Ok(Connection {
            carrier: AnyCarrier::Tcp(Box::new(Tcp::connect(job, &config)?)),
            node_map,
            machine,
            slots: slots("tcp")?,
        })
    }

    fn over_endpoints<N: PartialEq>(
        job: Job,
        nodes: &[N],
    ) -> Result<Connection<AnyCarrier>, Failure> {
        let mut config = Config::from_env()?;
        // The trace of a rank has its supersteps instead.
        config.recordings.trace_dir = None;
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
        Ok(Connection {
            carrier: AnyCarrier::Endpoints(Box::new(Endpoints::open(job, config)?)),
            node_map,
            machine,
            slots,
        })
    }
}

/// The nodes of the ranks; a node for each rank if they may not share memory.
fn node_map<N: PartialEq>(nodes: &[N], may_share: bool) -> NodeMap {
    match may_share {
        true => NodeMap::new(nodes),
        false => NodeMap::new(&(0..nodes.len()).collect::<Vec<_>>()),
    }
}

/// Cost of supersteps over a link, as far as this user has measured it.
///
/// # Errors
/// The user's measurements cannot be read.
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

//! What a process decides when it opens its node; read from the environment by default.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use dipole_link::fault::Plan;
use dipole_link::udp::PortRange;

use dipole_bpf::grant::DEFAULT_PATH;
use dipole_bpf::{DEFAULT_RING_BYTES, RING_BYTES};

use crate::address::NodeId;
use crate::environment;
use crate::hosts::{Host, Hosts, MAX_INTERFACES};
use crate::job::{self, JobError, RankPlacement};
use crate::key::{ClusterKey, KeyError};
#[cfg(doc)]
use crate::limits::LIMITS_FILE;
use crate::limits::{Bound, UserLimits};
use crate::lines::{FileError, excerpt};
use crate::registry::nodes_file;

/// Names of the environment variables that [`Config::from_env`] reads.
pub mod variables {
    pub use dipole_naming::environment::variables::{HOSTS, KEY, NODE, PROFILE, RUNTIME_DIR};

    /// The IP address to bind.
    pub const BIND: &str = "DIPOLE_BIND";
    /// The ports of this process's packets are taken from these, as `7412-7500`.
    pub const PORTS: &str = "DIPOLE_PORTS";
    /// How long a waiter spins, in microseconds.
    pub const SPIN_MICROSECONDS: &str = "DIPOLE_SPIN_US";
    /// Silence of a peer, for which nobody vouches, after which it is gone, in milliseconds.
    pub const PEER_TIMEOUT_MS: &str = "DIPOLE_PEER_TIMEOUT_MS";
    /// Faults to inject on send, as `drop=0.01,seed=7`.
    pub const FAULT: &str = "DIPOLE_FAULT";
    /// A file to capture all packets to.
    pub const CAPTURE: &str = "DIPOLE_CAPTURE";
    /// What may carry messages: `auto`, `shm`, `udp` or `bpf`.
    pub const LINK: &str = "DIPOLE_LINK";
    /// What is logged: [`log`](crate::log).
    pub const LOG: &str = "DIPOLE_LOG";
    /// Endpoints that this process may have.
    pub const MAX_ENDPOINTS: &str = "DIPOLE_MAX_ENDPOINTS";
    /// Peers that this process may have, by packets and by shared memory each.
    pub const MAX_PEERS: &str = "DIPOLE_MAX_PEERS";
    /// Where the node's agent lends rings and sockets for raw frames.
    pub const BROKER: &str = "DIPOLE_BROKER";
    /// Bytes of the ring of each interface that the kernel fills, a power of two.
    pub const RING_BYTES: &str = "DIPOLE_RING_BYTES";
    /// Whether looks at a socket poll the network card: 0 or 1.
    pub const BUSY_POLL: &str = "DIPOLE_BUSY_POLL";
    /// Bytes of unread messages that this process holds, by packets and by shared memory each.
    pub const POOL_BYTES: &str = "DIPOLE_POOL_BYTES";
    /// Packets that this process may have in flight.
    pub const FRAMES: &str = "DIPOLE_FRAMES";
    /// Processes that this user may have on this node.
    pub const USER_PROCESSES: &str = "DIPOLE_USER_PROCESSES";
    /// Endpoints that this user may have on this node.
    pub const USER_ENDPOINTS: &str = "DIPOLE_USER_ENDPOINTS";
}

/// What may carry messages; chosen at start, never when compiling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Shared memory between processes of a node where it can be had, packets else: by the
    /// bpf link on interfaces where this process may open it, by UDP sockets on the others.
    /// A node with a fault plan or a capture uses packets only, since both are about
    /// packets.
    #[default]
    Auto,
    /// Shared memory only: other nodes are out of reach, and where it cannot be had
    /// that is an error.
    Shm,
    /// Packets only, by UDP sockets.
    Udp,
    /// Packets only, by the bpf link: on an interface where it cannot be opened that is an error.
    Bpf,
}

impl std::str::FromStr for Links {
    type Err = ();

    fn from_str(text: &str) -> Result<Links, ()> {
        match text {
            "auto" => Ok(Links::Auto),
            "shm" => Ok(Links::Shm),
            "udp" => Ok(Links::Udp),
            "bpf" => Ok(Links::Bpf),
            _ => Err(()),
        }
    }
}

// The protocol has lanes for so many.
const _: () = assert!(MAX_INTERFACES <= dipole_proto::wire::MAX_LANES / 2);

/// How to open a [`Node`](crate::Node).
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's id: given, or from its job's launcher.
    pub node: NodeId,
    /// Where the registry of this machine's nodes lives.
    pub runtime_dir: PathBuf,
    /// The other nodes.
    pub hosts: Hosts,
    /// The IP address whose UDP ports carry this process's packets.
    pub bind: IpAddr,
    /// The UDP ports that may be taken, where a firewall lets only these pass; else the kernel
    /// chooses. That of the node's directory is left to it.
    pub ports: Option<PortRange>,
    /// Addresses of further interfaces of this machine, at most [`MAX_INTERFACES`] with the first: traffic goes on
    /// over the others when one fails, and bulk uses all.
    pub interfaces: Vec<IpAddr>,
    /// The cluster key: with one, other nodes' processes must prove that they hold it too.
    pub key: Option<ClusterKey>,
    /// What may carry messages.
    pub links: Links,
    /// Bytes of the ring of each interface that the kernel fills, where there is one: a power of
    /// two.
    pub ring_bytes: u32,
    /// Whether looks at a UDP socket that find nothing poll the card's receive queue, so that a
    /// thread that spins need not wait for an interrupt. `dipole doctor` says where that helps.
    pub busy_poll: bool,
    /// The socket of the agent that lends rings to processes without privileges.
    pub broker: PathBuf,
    /// How long a waiter spins before it sleeps. Spinning suits a process with a
    /// core of its own; the default suits everything else.
    pub spin: Duration,
    /// How long [`target`](crate::Endpoint::target) waits.
    pub connect_timeout: Duration,
    /// How long a dropped node waits for acknowledgements.
    pub linger: Duration,
    /// Faults to inject on send.
    pub fault: Option<Plan>,
    /// A pcap file for everything sent and received.
    pub capture: Option<PathBuf>,
    /// Endpoints that this process may have open at once.
    pub max_endpoints: u32,
    /// What this user may have on this node, beside what [`LIMITS_FILE`] says: the smaller of
    /// both counts.
    pub user_limits: UserLimits,
    /// Where measured properties of links are kept, by which the engine chooses how messages go; none: as
    /// it is built.
    pub profile_dir: Option<PathBuf>,
    /// Capacities and times of the protocol; node id and packet size are set by
    /// the node.
    pub protocol: dipole_proto::Config,
}

/// Why the environment does not make a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A variable's value cannot be used.
    #[error("{name}=\"{}\" cannot be used: expected {expected}", excerpt(.value))]
    Variable {
        /// Which.
        name: &'static str,
        /// Its value.
        value: String,
        /// What was expected.
        expected: String,
    },
    /// The hosts file is wrong or cannot be read.
    #[error("{0}")]
    Hosts(FileError),
    /// `DIPOLE_NID` names a node that the hosts file lacks.
    #[error(
        "{var}={0}, but the hosts file has no node {0}; correct one of them",
        var = variables::NODE
    )]
    UnknownNode(NodeId),
    /// The cluster key cannot be had.
    #[error("{var}: {0}", var = variables::KEY)]
    Key(KeyError),
    /// What the launcher says does not tell where this process and its peers are.
    #[error("{0} (or set {var} to use this process without its job)", var = variables::NODE)]
    Launcher(JobError),
}

/// Far more than a program opens on purpose; they cost some 32 MiB.
const MAX_ENDPOINTS: u32 = 65_536;
/// A pool must hold the longest packet and the initial credits of some edges.
const LEAST_POOL_BYTES: u64 = 1 << 20;
const LEAST_FRAMES: u32 = 16;
const MOST_FRAMES: u32 = 65_536;
/// What connection ids can tell apart.
const MOST_PEERS: u32 = (1 << 14) - 1;

/// A default spin that catches an answer already under way.
const SPIN: Duration = Duration::from_micros(50);

impl Config {
    /// A node on its own: loopback, no other nodes.
    #[must_use]
    pub fn local(node: NodeId, runtime_dir: PathBuf) -> Config {
        Config {
            node,
            runtime_dir,
            hosts: Hosts::local_only(node),
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            ports: None,
            interfaces: Vec::new(),
            key: None,
            links: Links::Auto,
            ring_bytes: DEFAULT_RING_BYTES,
            busy_poll: false,
            broker: DEFAULT_PATH.into(),
            spin: SPIN,
            connect_timeout: Duration::from_secs(30),
            linger: Duration::from_secs(5),
            fault: None,
            capture: None,
            max_endpoints: MAX_ENDPOINTS,
            user_limits: UserLimits::default(),
            profile_dir: None,
            protocol: dipole_proto::Config::default(),
        }
    }

    /// Takes what the hosts file has for this node, but for what the environment says
    /// otherwise: addresses, runtime directory.
    pub fn settle(&mut self) {
        let Some(host) = self.hosts.get(self.node).cloned() else {
            return;
        };
        if text(variables::BIND).is_none() {
            self.bind_as(&host);
        }
        if let (Some(directory), None) = (host.runtime_dir, text(variables::RUNTIME_DIR)) {
            self.runtime_dir = PathBuf::from(&*directory);
        }
    }

    /// Makes this the configuration of another node: with the hosts file there is, else with
    /// the nodes that the agent of that node knows.
    ///
    /// # Errors
    /// [`ConfigError::Hosts`]: the agent's file cannot be read.
    pub fn act_as(&mut self, node: NodeId) -> Result<(), ConfigError> {
        self.node = node;
        if self.hosts.is_local_only() || self.hosts.is_from_agent() {
            let nodes = Hosts::load_agents(&nodes_file(&self.runtime_dir, node));
            let nodes = nodes.map_err(ConfigError::Hosts)?;
            self.hosts = nodes.unwrap_or_else(|| Hosts::local_only(node));
        }
        self.settle();
        Ok(())
    }

    /// Bounds the bytes of unread messages; what depends on it keeps its share.
    pub fn bound_pool(&mut self, bytes: u64) {
        let usual = dipole_proto::Config::default();
        let share = |of: u64| of.min(bytes / (usual.pool_bytes / of).max(1));
        self.protocol.pool_bytes = bytes;
        self.protocol.pool_reserve_bytes = share(usual.pool_reserve_bytes);
        self.protocol.edge_window_bytes = share(usual.edge_window_bytes);
    }

    /// Reads the limits of this process and its user.
    fn bound_from_env(&mut self) -> Result<(), ConfigError> {
        if let Some(count) = within(variables::MAX_ENDPOINTS, 1, u32::MAX)? {
            self.max_endpoints = count;
        }
        if let Some(count) = within(variables::MAX_PEERS, 1, MOST_PEERS)? {
            self.protocol.max_peers = count;
        }
        if let Some(bytes) = within(
            variables::RING_BYTES,
            *RING_BYTES.start(),
            *RING_BYTES.end(),
        )? {
            self.ring_bytes = bytes.next_power_of_two();
        }
        if let Some(bytes) = within(variables::POOL_BYTES, LEAST_POOL_BYTES, u64::MAX / 2)? {
            self.bound_pool(bytes);
        }
        if let Some(count) = within(variables::FRAMES, LEAST_FRAMES, MOST_FRAMES)? {
            self.protocol.frames = count;
        }
        let bound = |name: &'static str| {
            let limit = within(name, 0, u32::MAX)?;
            Ok(limit.map(|limit| Bound {
                limit,
                set_by: name.to_owned(),
            }))
        };
        self.user_limits = UserLimits {
            processes: bound(variables::USER_PROCESSES)?,
            endpoints: bound(variables::USER_ENDPOINTS)?,
        };
        Ok(())
    }

    /// Bounds how long a peer that owes an answer may be silent before it is gone. Its node is
    /// asked whether it lives after a third of that, at most a second.
    fn set_peer_timeout(&mut self, timeout_ms: u64) {
        let timeout_ns = timeout_ms * 1_000_000;
        self.protocol.peer_timeout_ns = timeout_ns;
        self.protocol.quiet_ns = self.protocol.quiet_ns.min(timeout_ns / 3);
    }

    /// Takes the addresses that the hosts file has for this node.
    pub fn bind_as(&mut self, host: &Host) {
        self.bind = host.address;
        self.interfaces.clone_from(&host.interfaces);
    }

    /// True if processes of this node may be reached by shared memory.
    #[must_use]
    pub fn may_share_memory(&self) -> bool {
        match self.links {
            Links::Shm => true,
            Links::Auto => self.fault.is_none() && self.capture.is_none(),
            Links::Udp | Links::Bpf => false,
        }
    }

    /// Reads the variables of [`variables`]; what is missing has its default. Without
    /// `DIPOLE_NID` the node and its peers are those that Slurm, `mpirun` or Kubernetes
    /// gives the process, if one of them started it; their names may have to be waited for.
    /// Without `DIPOLE_HOSTS` they are those that the node's agent knows, if it has one.
    ///
    /// # Errors
    /// [`ConfigError`], naming the variable or the line of the hosts file.
    pub fn from_env() -> Result<Config, ConfigError> {
        let links = parsed(variables::LINK, "auto, shm, udp or bpf")?;
        Config::from_env_with(links.unwrap_or_default())
    }

    /// The same with these links, whatever the environment says of links.
    ///
    /// # Errors
    /// Those of `from_env`.
    pub fn from_env_with(links: Links) -> Result<Config, ConfigError> {
        let place = job::placement_from_env().map_err(ConfigError::Launcher)?;
        Config::from_env_at(links, place)
    }

    /// The same in a place that the caller has found, whoever started the process.
    ///
    /// # Errors
    /// Those of `from_env`.
    pub fn from_env_at(links: Links, place: Option<RankPlacement>) -> Result<Config, ConfigError> {
        let node: u32 = parsed(variables::NODE, "a node id from 1 to 4294967295")?.unwrap_or(1);
        if node == 0 {
            return Err(ConfigError::Variable {
                name: variables::NODE,
                value: "0".into(),
                expected: "a node id from 1 to 4294967295".into(),
            });
        }
        let mut config = Config::local(NodeId(node), environment::default_runtime_dir());
        config.links = links;
        config.profile_dir = environment::profile_dir();
        if let Some(place) = place {
            config.node = place.node;
            config.hosts = place.hosts.unwrap_or_else(|| Hosts::local_only(place.node));
            config.runtime_dir = place.runtime_dir.unwrap_or(config.runtime_dir);
        } else if let Some(file) = text(variables::HOSTS) {
            config.hosts = Hosts::load_followed(file.as_ref()).map_err(ConfigError::Hosts)?;
            // The default is no claim: an option of the program may still name the node.
            if text(variables::NODE).is_some() {
                must_list(&config.hosts, config.node)?;
            }
        } else {
            let nodes = nodes_file(&config.runtime_dir, config.node);
            if let Some(hosts) = Hosts::load_agents(&nodes).map_err(ConfigError::Hosts)? {
                config.hosts = hosts;
            }
        }
        config.settle();
        config.key = ClusterKey::from_env().map_err(ConfigError::Key)?;
        if let Some(bind) = parsed(variables::BIND, "an IP address of this node")? {
            config.bind = bind;
        }
        config.ports = parsed(variables::PORTS, "two ports or more, as 7412-7500")?;
        if let Some(spin) = parsed(variables::SPIN_MICROSECONDS, "microseconds")? {
            config.spin = Duration::from_micros(spin);
        }
        if let Some(ms) = within(variables::PEER_TIMEOUT_MS, 300, 86_400_000)? {
            config.set_peer_timeout(ms);
        }
        if let Some(on) = within(variables::BUSY_POLL, 0, 1)? {
            config.busy_poll = on == 1;
        }
        config.bound_from_env()?;
        config.fault = parsed(variables::FAULT, "a fault plan such as drop=0.01,seed=7")?;
        config.capture = text(variables::CAPTURE).map(PathBuf::from);
        if let Some(broker) = text(variables::BROKER) {
            config.broker = broker.into();
        }
        Ok(config)
    }
}

/// Refuses a node that the others do not know by this file: nobody could find it.
fn must_list(hosts: &Hosts, node: NodeId) -> Result<(), ConfigError> {
    match hosts.get(node) {
        Some(_) => Ok(()),
        None => Err(ConfigError::UnknownNode(node)),
    }
}

fn text(name: &str) -> Option<String> {
    environment::variable(name)
}

fn parsed<T: std::str::FromStr>(
    name: &'static str,
    expected: &str,
) -> Result<Option<T>, ConfigError> {
    let Some(value) = text(name) else {
        return Ok(None);
    };
    value.parse().map(Some).map_err(|_| ConfigError::Variable {
        name,
        value,
        expected: expected.into(),
    })
}

/// A number within bounds.
fn within<T>(name: &'static str, least: T, most: T) -> Result<Option<T>, ConfigError>
where
    T: std::str::FromStr + PartialOrd + fmt::Display,
{
    let expected = format!("a number from {least} to {most}");
    match parsed::<T>(name, &expected)? {
        Some(number) if number < least || number > most => Err(ConfigError::Variable {
            name,
            value: number.to_string(),
            expected,
        }),
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_bounded_as_told_and_its_node_is_asked_before() {
        let mut config = Config::local(NodeId(1), PathBuf::new());
        config.set_peer_timeout(1500);
        assert_eq!(config.protocol.peer_timeout_ns, 1_500_000_000);
        assert_eq!(config.protocol.quiet_ns, 500_000_000);
        config = Config::local(NodeId(1), PathBuf::new());
        config.set_peer_timeout(60_000);
        assert_eq!(config.protocol.quiet_ns, 1_000_000_000);
    }

    #[test]
    fn a_node_that_its_hosts_file_lacks_is_refused() {
        let hosts = Hosts::parse("1 127.0.0.1\n2 127.0.0.2").unwrap();
        assert!(must_list(&hosts, NodeId(2)).is_ok());
        let error = must_list(&hosts, NodeId(5)).unwrap_err().to_string();
        assert!(error.contains("DIPOLE_NID=5"), "{error}");
    }

    #[test]
    fn a_smaller_pool_keeps_its_shares_and_a_larger_one_the_usual_reserve() {
        let usual = dipole_proto::Config::default();
        let bounded = |bytes| {
            let mut config = Config::local(NodeId(1), PathBuf::new());
            config.bound_pool(bytes);
            config.protocol
        };
        assert_eq!(bounded(usual.pool_bytes), usual);
        let small = bounded(LEAST_POOL_BYTES);
        assert_eq!(small.pool_reserve_bytes, LEAST_POOL_BYTES / 8);
        assert_eq!(small.edge_window_bytes, LEAST_POOL_BYTES / 16);
        assert!(small.edge_window_bytes <= small.pool_reserve_bytes);
        assert!(u64::from(small.initial_credit_bytes) <= small.edge_window_bytes);
        let large = bounded(1 << 40);
        assert_eq!(large.pool_reserve_bytes, usual.pool_reserve_bytes);
        assert_eq!(large.edge_window_bytes, usual.edge_window_bytes);
    }
}

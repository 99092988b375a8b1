//! The configuration of a node, by default read from the environment.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use dipole_driver::nanoseconds;
use dipole_link::fault::Plan;
use dipole_link::udp::PortRange;
use dipole_proto::wire::Trailers;
use dipole_proto::{LIMIT_OF_MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES};

use dipole_bpf::grant::DEFAULT_PATH;
use dipole_bpf::{DEFAULT_RING_BYTES, RING_BYTES};
use dipole_naming::bind;

use crate::address::NodeId;
use crate::environment;
use crate::hosts::{Host, Hosts, MAX_INTERFACES};
use crate::job::{self, JobError, RankPlacement};
use crate::key::{ClusterKey, KeyError, Security};
#[cfg(doc)]
use crate::limits::LIMITS_FILE;
use crate::limits::{Bound, UserLimits};
use crate::lines::{FileError, excerpt};
use crate::registry::nodes_file;

/// Names of the environment variables that [`Config::from_env`] reads.
pub mod variables {
    pub use dipole_naming::environment::variables::{
        BIND, HOSTS, KEY, NODE, PROFILE, RECORD_BYTES, RUNTIME_DIR,
    };

    /// The UDP ports that this process may use, for example `7412-7500`.
    pub const PORTS: &str = "DIPOLE_PORTS";
    /// How long a waiting thread spins, in microseconds.
    pub const SPIN_MICROSECONDS: &str = "DIPOLE_SPIN_US";
    /// A peer that is silent for this many milliseconds is gone, unless its node reports that it is alive.
    pub const PEER_TIMEOUT_MS: &str = "DIPOLE_PEER_TIMEOUT_MS";
    /// Faults to inject, for example `drop=0.01,seed=7` or `credit=0.1,frames=0.1`.
    pub const FAULT: &str = "DIPOLE_FAULT";
    /// A file that captures all packets.
    pub const CAPTURE: &str = "DIPOLE_CAPTURE";
    /// The links to use: `auto`, `shm`, `udp` or `bpf`.
    pub const LINK: &str = "DIPOLE_LINK";
    /// The log filter: [`log`](crate::log).
    pub const LOG: &str = "DIPOLE_LOG";
    /// Limit of endpoints in this process.
    pub const MAX_ENDPOINTS: &str = "DIPOLE_MAX_ENDPOINTS";
    /// Limit of peers of this process, separately over the network and in shared memory.
    pub const MAX_PEERS: &str = "DIPOLE_MAX_PEERS";
    /// The socket at which the node's agent lends rings and sockets for raw frames.
    pub const BROKER: &str = "DIPOLE_BROKER";
    /// Bytes of each interface's receive ring, a power of two.
    pub const RING_BYTES: &str = "DIPOLE_RING_BYTES";
    /// The checksum of packets between processes without a key: `crc32c`, or `kernel` for that of UDP.
    pub const CHECKSUM: &str = "DIPOLE_CHECKSUM";
    /// 1 if polling a socket also polls the network card, otherwise 0.
    pub const BUSY_POLL: &str = "DIPOLE_BUSY_POLL";
    /// Limit of unread bytes in this process, separately over the network and in shared memory.
    pub const POOL_BYTES: &str = "DIPOLE_POOL_BYTES";
    /// Longest message, in bytes.
    pub const MAX_MESSAGE_BYTES: &str = "DIPOLE_MAX_MESSAGE_BYTES";
    /// Limit of packets in flight from this process.
    pub const FRAMES: &str = "DIPOLE_FRAMES";
    /// Limit of this user's processes on this node.
    pub const USER_PROCESSES: &str = "DIPOLE_USER_PROCESSES";
    /// Limit of this user's endpoints on this node.
    pub const USER_ENDPOINTS: &str = "DIPOLE_USER_ENDPOINTS";
}

/// Links that a node may use; chosen at run time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Links {
    /// Shared memory between processes of a node if available, otherwise packets: over the bpf
    /// link on interfaces where this process may open it, over UDP sockets on the others. With
    /// faults of packets or a capture file, only packets are used, because both work on packets.
    #[default]
    Auto,
    /// Shared memory only: other nodes cannot be reached, and it is an error if shared memory is
    /// not available.
    Shm,
    /// Packets only, over UDP sockets.
    Udp,
    /// Packets only, over the bpf link; an error on interfaces where it cannot be opened.
    Bpf,
}

/// Files in which a process records what it does.
#[derive(Clone, Debug, Default)]
pub struct Recordings {
    /// A pcap file that captures all packets.
    pub capture: Option<PathBuf>,
    /// The directory of traces of waits (`docs/design/traces.md`).
    pub trace_dir: Option<PathBuf>,
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

// The protocol has two lanes per interface.
const _: () = assert!(MAX_INTERFACES <= dipole_proto::wire::MAX_LANES / 2);

/// How to open a [`Node`](crate::Node).
#[derive(Clone, Debug)]
pub struct Config {
    /// This node's id, given explicitly or by the job's launcher.
    pub node: NodeId,
    /// Directory of the registry of this machine's nodes.
    pub runtime_dir: PathBuf,
    /// Addresses of the cluster's nodes.
    pub hosts: Hosts,
    /// The IP address whose UDP ports carry this process's packets.
    pub bind: IpAddr,
    /// The UDP ports that may be used, for example because a firewall passes only these; otherwise
    /// the kernel chooses. The directory's port is not affected.
    pub ports: Option<PortRange>,
    /// Addresses of further interfaces of this machine, at most [`MAX_INTERFACES`] with the first.
    /// Traffic fails over between them, and bulk traffic uses all of them.
    pub interfaces: Vec<IpAddr>,
    /// The cluster key. With a key, processes of other nodes must prove that they have it too.
    pub key: Option<ClusterKey>,
    /// The links to use.
    pub links: Links,
    /// Bytes of each interface's receive ring, if it has one; a power of two.
    pub ring_bytes: u32,
    /// True if an empty poll of a UDP socket also polls the card's receive queue, so that spinning
    /// threads need not wait for an interrupt. `dipole doctor` reports where this helps.
    pub busy_poll: bool,
    /// The socket of the agent that lends rings to unprivileged processes.
    pub broker: PathBuf,
    /// How long a waiting thread spins before it sleeps. Longer spinning helps processes that have
    /// a core for each thread; the default suits all others.
    pub spin: Duration,
    /// Time limit of [`target`](crate::Endpoint::target).
    pub connect_timeout: Duration,
    /// How long a dropped node waits for acknowledgements.
    pub linger: Duration,
    /// Faults and shortages to inject.
    pub fault: Option<Plan>,
    /// Where this process records what it does.
    pub recordings: Recordings,
    /// Limit of open endpoints in this process.
    pub max_endpoints: u32,
    /// This user's limits on this node, in addition to those in [`LIMITS_FILE`]; the smaller ones
    /// apply.
    pub user_limits: UserLimits,
    /// Directory of measured link profiles, which tune how messages are sent; without it the
    /// defaults apply.
    pub profile_dir: Option<PathBuf>,
    /// Capacities and times of the protocol. The node sets node id and packet size.
    pub protocol: dipole_proto::Config,
}

/// Why the environment is not a valid configuration.
#[derive(thiserror::Error)]
pub enum ConfigError {
    /// The value of a variable is invalid.
    #[error("{name}=\"{}\" is invalid: expected {expected}", excerpt(.value))]
    Variable {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
        /// Description of valid values.
        expected: String,
    },
    /// The hosts file is invalid or cannot be read.
    #[error("{0}")]
    Hosts(FileError),
    /// `DIPOLE_NID` names a node that is not in the hosts file.
    #[error(
        "{var}={0}, but the hosts file has no node {0}; correct one of them",
        var = variables::NODE
    )]
    UnknownNode(NodeId),
    /// The cluster key is not available.
    #[error("{var}: {0}", var = variables::KEY)]
    Key(KeyError),
    /// The launcher's information does not determine this process's node and peers.
    #[error("{0} (or set {var} to run this process outside of its job)", var = variables::NODE)]
    Launcher(JobError),
}

/// Far more than a program opens on purpose; so many take about 32 MiB.
const MAX_ENDPOINTS: u32 = 65_536;
/// A pool must hold the longest packet and the initial credits of some edges.
const MIN_POOL_BYTES: u64 = 1 << 20;
const MIN_FRAMES: u32 = 16;
const MAX_FRAMES: u32 = 65_536;
/// Connection ids cannot distinguish more.
const MAX_PEER_COUNT: u32 = (1 << 14) - 1;

/// Long enough to catch an answer that is already on its way.
const SPIN: Duration = Duration::from_micros(50);

impl Config {
    /// A single node: loopback, no other nodes.
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
            recordings: Recordings::default(),
            max_endpoints: MAX_ENDPOINTS,
            user_limits: UserLimits::default(),
            profile_dir: None,
            protocol: dipole_proto::Config::default(),
        }
    }

    /// Applies this node's entry in the hosts file (addresses, runtime directory), except where
    /// the environment overrides it.
    pub fn apply_hosts_file(&mut self) {
        let Some(host) = self.hosts.get(self.node).cloned() else {
            return;
        };
        if variable(variables::BIND).is_none() {
            self.bind_to(&host);
        }
        if let (Some(directory), None) = (host.runtime_dir, variable(variables::RUNTIME_DIR)) {
            self.runtime_dir = PathBuf::from(&*directory);
        }
    }

    /// Changes the node that this configuration is for. Keeps the hosts file if there is one;
    /// otherwise uses the nodes known to that node's agent.
    ///
    /// # Errors
    /// [`ConfigError::Hosts`]: the agent's file cannot be read.
    pub fn set_node(&mut self, node: NodeId) -> Result<(), ConfigError> {
        self.node = node;
        if self.hosts.is_local_only() || self.hosts.is_from_agent() {
            let nodes = Hosts::load_agents(&nodes_file(&self.runtime_dir, node));
            let nodes = nodes.map_err(ConfigError::Hosts)?;
            self.hosts = nodes.unwrap_or_else(|| Hosts::local_only(node));
        }
        self.apply_hosts_file();
        Ok(())
    }

    /// Limits the unread bytes; the values that depend on this limit are scaled with it.
    pub fn set_pool_bytes(&mut self, bytes: u64) {
        let usual = dipole_proto::Config::default();
        let share = |of: u64| of.min(bytes / (usual.pool_bytes / of).max(1));
        self.protocol.pool_bytes = bytes;
        self.protocol.pool_reserve_bytes = share(usual.pool_reserve_bytes);
        self.protocol.edge_window_bytes = share(usual.edge_window_bytes);
    }

    /// Reads what checks the packets.
    fn checksum_from_env(&mut self) -> Result<(), ConfigError> {
        let unfit = |value: String, expected: &str| ConfigError::Variable {
            name: variables::CHECKSUM,
            value,
            expected: expected.into(),
        };
        let Some(value) = variable(variables::CHECKSUM) else {
            return Ok(());
        };
        let security = self
            .key
            .as_ref()
            .map_or(Security::Off, ClusterKey::security);
        self.protocol.trailers = match (&*value, security) {
            ("crc32c", Security::Off) => Trailers::CRC32C,
            ("kernel", Security::Off) => Trailers::KERNEL,
            ("crc32c" | "kernel", _) => {
                return Err(unfit(
                    value,
                    "no checksum, because the cluster key protects packets",
                ));
            }
            _ => return Err(unfit(value, "crc32c or kernel")),
        };
        Ok(())
    }

    /// Reads the limits of this process and its user from the environment.
    fn limits_from_env(&mut self) -> Result<(), ConfigError> {
        if let Some(count) = number_in(variables::MAX_ENDPOINTS, 1, u32::MAX)? {
            self.max_endpoints = count;
        }
        if let Some(count) = number_in(variables::MAX_PEERS, 1, MAX_PEER_COUNT)? {
            self.protocol.max_peers = count;
        }
        if let Some(bytes) = number_in(
            variables::RING_BYTES,
            *RING_BYTES.start(),
            *RING_BYTES.end(),
        )? {
            self.ring_bytes = bytes.next_power_of_two();
        }
        if let Some(bytes) = number_in(variables::POOL_BYTES, MIN_POOL_BYTES, u64::MAX / 2)? {
            self.set_pool_bytes(bytes);
        }
        if let Some(bytes) = number_in(
            variables::MAX_MESSAGE_BYTES,
            MAX_MESSAGE_BYTES,
            LIMIT_OF_MAX_MESSAGE_BYTES,
        )? {
            self.protocol.max_message_bytes = bytes;
        }
        if let Some(count) = number_in(variables::FRAMES, MIN_FRAMES, MAX_FRAMES)? {
            self.protocol.frames = count;
        }
        let bound = |name: &'static str| {
            let limit = number_in(name, 0, u32::MAX)?;
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

    /// Limits how long a peer that owes an answer may be silent. Its node is queried after a
    /// third of that, but after at most a second.
    pub fn set_peer_timeout(&mut self, timeout: Duration) {
        let timeout_ns = nanoseconds(timeout);
        self.protocol.peer_timeout_ns = timeout_ns;
        self.protocol.suspect_after_ns = self.protocol.suspect_after_ns.min(timeout_ns / 3);
    }

    /// Uses the addresses of this node's entry in the hosts file.
    pub fn bind_to(&mut self, host: &Host) {
        self.bind = host.address;
        self.interfaces.clone_from(&host.interfaces);
    }

    /// True if shared memory may be used with processes of this node.
    #[must_use]
    pub fn may_share_memory(&self) -> bool {
        match self.links {
            Links::Shm => true,
            Links::Auto => !self.injects_into_link() && self.recordings.capture.is_none(),
            Links::Udp | Links::Bpf => false,
        }
    }

    /// True if the fault plan concerns packets or the network link.
    #[must_use]
    pub fn injects_into_link(&self) -> bool {
        let fault = self.fault.as_ref();
        fault.is_some_and(|plan| plan.affects_packets() || plan.shortages.link > 0.0)
    }

    /// Reads the variables in [`variables`]; missing ones get their defaults. Without `DIPOLE_NID`,
    /// a process started by Slurm, `mpirun` or Kubernetes gets its node and peers from there, which
    /// may have to wait for host names. Without `DIPOLE_HOSTS`, the peers are those known to the
    /// node's agent, if there is one.
    ///
    /// # Errors
    /// [`ConfigError`], naming the variable or the line of the hosts file.
    pub fn from_env() -> Result<Config, ConfigError> {
        let links = parsed(variables::LINK, "auto, shm, udp or bpf")?;
        Config::from_env_with(links.unwrap_or_default())
    }

    /// Like [`from_env`](Self::from_env), with the given links instead of `DIPOLE_LINK`.
    ///
    /// # Errors
    /// The errors of `from_env`.
    pub fn from_env_with(links: Links) -> Result<Config, ConfigError> {
        let place = job::placement_from_env().map_err(ConfigError::Launcher)?;
        Config::from_env_at(links, place)
    }

    /// Like [`from_env_with`](Self::from_env_with), at a place that the caller has determined.
    ///
    /// # Errors
    /// The errors of `from_env`.
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
        } else if let Some(file) = variable(variables::HOSTS) {
            config.hosts = Hosts::load_followed(file.as_ref()).map_err(ConfigError::Hosts)?;
            // Only an explicit id must be listed: the program may still choose another node.
            if variable(variables::NODE).is_some() {
                require_listed(&config.hosts, config.node)?;
            }
        } else {
            let nodes = nodes_file(&config.runtime_dir, config.node);
            if let Some(hosts) = Hosts::load_agents(&nodes).map_err(ConfigError::Hosts)? {
                config.hosts = hosts;
            }
        }
        config.apply_hosts_file();
        config.key = ClusterKey::from_env().map_err(ConfigError::Key)?;
        if let Some(value) = variable(variables::BIND) {
            config.bind = bind::bind_address(&value).ok_or_else(|| ConfigError::Variable {
                name: variables::BIND,
                value,
                expected: bind::EXPECTED.into(),
            })?;
        }
        config.ports = parsed(variables::PORTS, "two or more ports, such as 7412-7500")?;
        if let Some(spin) = parsed(variables::SPIN_MICROSECONDS, "microseconds")? {
            config.spin = Duration::from_micros(spin);
        }
        if let Some(ms) = number_in(variables::PEER_TIMEOUT_MS, 300, 86_400_000)? {
            config.set_peer_timeout(Duration::from_millis(ms));
        }
        if let Some(on) = number_in(variables::BUSY_POLL, 0, 1)? {
            config.busy_poll = on == 1;
        }
        config.checksum_from_env()?;
        config.limits_from_env()?;
        // Read when the node is opened; here an invalid value can still be reported.
        number_in(
            variables::RECORD_BYTES,
            dipole_record::LEAST_BYTES,
            u64::MAX / 2,
        )?;
        config.fault = parsed(variables::FAULT, "a fault plan such as drop=0.01,seed=7")?;
        config.recordings = Recordings {
            capture: variable(variables::CAPTURE).map(PathBuf::from),
            trace_dir: environment::trace_dir(),
        };
        if let Some(broker) = variable(variables::BROKER) {
            config.broker = broker.into();
        }
        Ok(config)
    }
}

/// Refuses a node that the hosts file does not list, because no peer could find it.
fn require_listed(hosts: &Hosts, node: NodeId) -> Result<(), ConfigError> {
    match hosts.get(node) {
        Some(_) => Ok(()),
        None => Err(ConfigError::UnknownNode(node)),
    }
}

fn variable(name: &str) -> Option<String> {
    environment::variable(name)
}

fn parsed<T: std::str::FromStr>(
    name: &'static str,
    expected: &str,
) -> Result<Option<T>, ConfigError> {
    let Some(value) = variable(name) else {
        return Ok(None);
    };
    value.parse().map(Some).map_err(|_| ConfigError::Variable {
        name,
        value,
        expected: expected.into(),
    })
}

/// Parses a number within bounds.
fn number_in<T>(name: &'static str, min: T, max: T) -> Result<Option<T>, ConfigError>
where
    T: std::str::FromStr + PartialOrd + fmt::Display,
{
    let expected = format!("a number from {min} to {max}");
    match parsed::<T>(name, &expected)? {
        Some(number) if number < min || number > max => Err(ConfigError::Variable {
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
    fn a_silent_peers_node_is_queried_before_the_peer_timeout() {
        let mut config = Config::local(NodeId(1), PathBuf::new());
        config.set_peer_timeout(Duration::from_millis(1500));
        assert_eq!(config.protocol.peer_timeout_ns, 1_500_000_000);
        assert_eq!(config.protocol.suspect_after_ns, 500_000_000);
        config = Config::local(NodeId(1), PathBuf::new());
        config.set_peer_timeout(Duration::from_secs(60));
        assert_eq!(config.protocol.suspect_after_ns, 1_000_000_000);
    }

    #[test]
    fn a_node_that_is_not_in_its_hosts_file_is_refused() {
        let hosts = Hosts::parse("1 127.0.0.1\n2 127.0.0.2").unwrap();
        assert!(require_listed(&hosts, NodeId(2)).is_ok());
        let error = require_listed(&hosts, NodeId(5)).unwrap_err().to_string();
        assert!(error.contains("DIPOLE_NID=5"), "{error}");
    }

    #[test]
    fn a_smaller_pool_scales_its_shares_and_a_larger_one_keeps_the_default_reserve() {
        let usual = dipole_proto::Config::default();
        let bounded = |bytes| {
            let mut config = Config::local(NodeId(1), PathBuf::new());
            config.set_pool_bytes(bytes);
            config.protocol
        };
        assert_eq!(bounded(usual.pool_bytes), usual);
        let small = bounded(MIN_POOL_BYTES);
        assert_eq!(small.pool_reserve_bytes, MIN_POOL_BYTES / 8);
        assert_eq!(small.edge_window_bytes, MIN_POOL_BYTES / 16);
        assert!(small.edge_window_bytes <= small.pool_reserve_bytes);
        assert!(u64::from(small.initial_credit_bytes) <= small.edge_window_bytes);
        let large = bounded(1 << 40);
        assert_eq!(large.pool_reserve_bytes, usual.pool_reserve_bytes);
        assert_eq!(large.edge_window_bytes, usual.edge_window_bytes);
    }
}

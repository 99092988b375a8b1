//! Everything that a seed decides: network, processes, traffic and faults.
//!
//! A *node* is a machine with its interfaces, on which several processes may run. Processes are
//! numbered across the cluster.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use dipole_link::Class;
use dipole_link::sim::{NetworkConfig, PathConfig, SharedMemoryConfig};
use dipole_node::ClusterKey;
use dipole_proto::Config;

pub const MICROSECOND: u64 = 1_000;
pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// A random scenario, determined by its seed.
#[derive(Debug)]
pub struct Scenario {
    pub seed: u64,
    /// The network while there are faults.
    pub network: NetworkConfig,
    /// Path configuration after that time.
    pub calm_path: PathConfig,
    /// The shared memory of processes of one node.
    pub memory: SharedMemoryConfig,
    pub nodes: Vec<NodePlan>,
    pub flows: Vec<FlowPlan>,
    /// Faults in order of time.
    pub faults: Vec<(u64, Fault)>,
    /// There are no faults after this time.
    pub calm_at_ns: u64,
    /// No fault justifies giving up a peer.
    pub keeps_peers: bool,
    /// A network that fails at this time and never recovers.
    pub lost_network: Option<(u64, u8)>,
    /// The key of each node, if there is one. A stranger with another key then tries to connect.
    pub keys: Vec<ClusterKey>,
    /// Endpoints have regions, on which flows perform operations.
    pub has_regions: bool,
    /// A process that a fault stops until all others have finished.
    pub stuck: Option<Stuck>,
    /// Directory and limit of the recordings of all processes.
    pub recording: Option<(PathBuf, u64)>,
}

/// A process that gets stuck.
#[derive(Clone, Copy, Debug)]
pub struct Stuck {
    pub node: usize,
    /// Only its application makes no calls, and its engine is still stepped.
    pub is_stepped: bool,
}

/// Where a process runs: its node, and its position among the node's processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub node: usize,
    pub rank: usize,
}

impl Place {
    /// The first endpoint number of this process; numbers are unique within its node.
    pub fn endpoints(self) -> u32 {
        u32::try_from(self.rank).expect("few processes") * ENDPOINTS_PER_PROCESS
    }
}

/// Plan of one process.
#[derive(Debug)]
pub struct NodePlan {
    pub place: Place,
    /// It uses shared memory with other processes of its node.
    pub shares_memory: bool,
    pub config: Config,
    /// Time it computes between two steps; 0 if it waits.
    pub busy_ns: u64,
    /// The network of each interface, starting with the first.
    pub interfaces: Vec<u8>,
    pub watches: bool,
    /// It closes endpoints without reading their messages.
    pub closes_unread: bool,
    pub endpoints: Vec<EndpointPlan>,
}

/// Plan of a receiving endpoint.
#[derive(Clone, Debug)]
pub struct EndpointPlan {
    pub id: u32,
    pub reader: Reader,
    pub presence: Presence,
}

/// How an application reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// It reads each message immediately.
    Eager,
    /// It reads one message per interval.
    Slow { every_ns: u64 },
    /// Only after all others have finished.
    Never,
    /// Immediately, but from this message on only after all others have finished.
    Stops { after: u32 },
}

impl Reader {
    /// True if it stops reading before the end.
    pub fn is_idle(self) -> bool {
        matches!(self, Reader::Never | Reader::Stops { .. })
    }
}

/// When an endpoint is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    Always,
    Never,
    /// Opens and closes at these times; closed at first and open at the end.
    Changing(Vec<u64>),
}

impl Presence {
    pub fn is_open(&self, now_ns: u64, calm: bool) -> bool {
        match self {
            Presence::Always => true,
            Presence::Never => false,
            Presence::Changing(times) => {
                calm || times.iter().filter(|at| **at <= now_ns).count() % 2 == 1
            }
        }
    }
}

/// A flow of messages from one endpoint to another.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    pub from: usize,
    pub source: u32,
    pub to: usize,
    pub target: u32,
    pub messages: u32,
    /// Length of the shortest and longest message.
    pub bytes: (usize, usize),
    /// Share of messages sent unreliably, in thousandths.
    pub unreliable_permille: u32,
    /// Share of waits for credit that are given up, in thousandths.
    pub impatient_permille: u32,
    /// Share of messages that may wait for others, in thousandths.
    pub more_permille: u32,
    /// Pause between messages; 0 for none.
    pub gap_ns: u64,
    /// It sends before the session is open.
    pub early: bool,
    /// It only connects to the process that is there at first.
    pub particular: bool,
    /// Messages after which it closes and reopens its edge; 0 for never.
    pub edge_messages: u32,
}

/// Numbers of the receiving endpoints and of the sending ones in each process.
const ENDPOINTS_PER_PROCESS: u32 = 10;
pub const FIRST_SOURCE: u32 = 100;

/// A fault or its repair.
#[derive(Clone, Debug)]
pub enum Fault {
    /// These nodes and the others can no longer reach each other.
    Partition(Vec<usize>),
    /// The first node can no longer reach the second.
    Cut(usize, usize),
    /// Ends partitions and cuts.
    Heal,
    /// An interface of a node, by its index, fails or recovers.
    Interface {
        node: usize,
        interface: usize,
        alive: bool,
    },
    /// A network fails for good.
    LoseNetwork(u8),
    /// Changes the maximum packet length: the interfaces refuse longer packets, or the switch drops
    /// them.
    Narrow { bytes: usize, by: Narrow },
    /// A process is not stepped for this long.
    Pause { node: usize, for_ns: u64 },
    /// A process gets stuck.
    Stick(Stuck),
    /// A process ends, with or without a goodbye.
    End { node: usize, orderly: bool },
    /// A new process starts on the same ports.
    Begin { node: usize },
    /// All clocks jump while no process is stepped.
    Jump { by_ns: u64 },
    /// A process withdraws one of its cluster keys.
    Withdraw { node: usize },
}

/// The part of the network that rejects long packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow {
    Interfaces,
    Switch,
}

impl Fault {
    /// True if the fault does not justify giving up a peer. A process that was not stepped, or whose
    /// clock jumped, knows that it was absent itself.
    pub fn is_harmless(&self, nodes: &[NodePlan]) -> bool {
        let timeouts = nodes.iter().map(|node| node.config.peer_timeout_ns);
        match self {
            Fault::Jump { .. } | Fault::Withdraw { .. } => true,
            Fault::Stick(stuck) => stuck.is_stepped,
            Fault::Pause { for_ns, .. } => *for_ns < timeouts.min().unwrap_or(0) / 8,
            _ => false,
        }
    }
}

/// The network of the bulk port of a node with one interface, if it has its own device.
pub const BULK_NETWORK: u8 = 9;

/// The address of a node's interface on a network.
pub fn interface_address(node: usize, network: u8) -> IpAddr {
    let node = u8::try_from(node + 1).expect("few nodes");
    IpAddr::from([10, network, 0, node])
}

/// The address of a process's port on a network.
pub fn address(place: Place, class: Class, network: u8) -> SocketAddr {
    let first = 7000 + 2 * u16::try_from(place.rank).expect("few processes");
    let port = match class {
        Class::Small => first,
        Class::Bulk => first + 1,
    };
    SocketAddr::new(interface_address(place.node, network), port)
}

impl NodePlan {
    /// Small and bulk address of each interface.
    pub fn addresses(&self) -> Vec<[SocketAddr; 2]> {
        let classes = [Class::Small, Class::Bulk];
        match self.interfaces[..] {
            [small, BULK_NETWORK] => vec![[
                address(self.place, Class::Small, small),
                address(self.place, Class::Bulk, BULK_NETWORK),
            ]],
            _ => {
                let interfaces = self.interfaces.iter();
                interfaces
                    .map(|network| classes.map(|class| address(self.place, class, *network)))
                    .collect()
            }
        }
    }

    /// The shared-memory socket of the process.
    pub fn socket(&self) -> PathBuf {
        PathBuf::from(format!("process-{}", self.place.rank))
    }
}

impl Scenario {
    /// The process of a sending endpoint.
    pub fn sender(&self, node: u32, source: u32) -> Option<usize> {
        let rank = source.checked_sub(FIRST_SOURCE)? / ENDPOINTS_PER_PROCESS;
        let place = Place {
            node: (node as usize).checked_sub(1)?,
            rank: rank as usize,
        };
        self.nodes.iter().position(|process| process.place == place)
    }

    /// True if two different processes use shared memory with each other.
    pub fn share_memory(&self, one: usize, other: usize) -> bool {
        let (one_plan, other_plan) = (&self.nodes[one], &self.nodes[other]);
        one != other
            && one_plan.place.node == other_plan.place.node
            && one_plan.shares_memory
            && other_plan.shares_memory
    }

    /// The network on which a node's directory answers, since all are queried: that of its first
    /// interface on a working network.
    pub fn way_to(&self, node: usize, now_ns: u64) -> u8 {
        let works = |network: &&u8| match self.lost_network {
            None => **network == 0,
            Some((at_ns, lost)) => **network < 2 && (now_ns < at_ns || **network != lost),
        };
        let mut interfaces = self.nodes[node].interfaces.iter();
        *interfaces.find(works).expect("all are on these networks")
    }

    /// Long messages from one node to another, with a loss of one packet in a hundred in this
    /// direction until the end.
    pub fn lossy_stream(seed: u64) -> Scenario {
        let ip = |node| interface_address(node, 0);
        let mut network = NetworkConfig::default();
        let lossy = PathConfig {
            loss: 0.01,
            ..network.path
        };
        network.paths.insert((ip(0), ip(1)), lossy);
        let node = |id: u32| NodePlan {
            place: Place {
                node: id as usize - 1,
                rank: 0,
            },
            shares_memory: false,
            config: Config {
                node: id,
                ..Config::default()
            },
            busy_ns: 0,
            interfaces: vec![0],
            watches: false,
            closes_unread: false,
            endpoints: vec![EndpointPlan {
                id: 1,
                reader: Reader::Eager,
                presence: Presence::Always,
            }],
        };
        Scenario {
            seed,
            calm_path: network.path,
            network,
            memory: SharedMemoryConfig::default(),
            nodes: vec![node(1), node(2)],
            flows: vec![FlowPlan {
                from: 0,
                source: 100,
                to: 1,
                target: 1,
                messages: 400,
                bytes: (64 << 10, 64 << 10),
                unreliable_permille: 0,
                impatient_permille: 0,
                more_permille: 0,
                gap_ns: 0,
                early: false,
                particular: false,
                edge_messages: 0,
            }],
            faults: Vec::new(),
            calm_at_ns: 1,
            keeps_peers: true,
            lost_network: None,
            keys: Vec::new(),
            has_regions: false,
            stuck: None,
            recording: None,
        }
    }
}

//! What a seed means: a network, processes, who sends what to whom, what goes wrong.
//!
//! A *node* is a machine with its interfaces; several processes may run on it. Processes are
//! counted through the cluster.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use dipole_link::Class;
use dipole_link::sim::{NetworkConfig, PathConfig, SharedMemoryConfig};
use dipole_node::ClusterKey;
use dipole_proto::Config;

pub const MICROSECOND: u64 = 1_000;
pub const MILLISECOND: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// Everything that a seed decides.
#[derive(Debug)]
pub struct Scenario {
    pub seed: u64,
    /// The network while faults last.
    pub network: NetworkConfig,
    /// The path afterwards.
    pub calm_path: PathConfig,
    /// The memory that processes of one node share.
    pub memory: SharedMemoryConfig,
    pub nodes: Vec<NodePlan>,
    pub flows: Vec<FlowPlan>,
    /// In order of time.
    pub faults: Vec<(u64, Fault)>,
    /// No faults from here on.
    pub calm_at_ns: u64,
    /// Nothing happens that entitles anybody to give a peer up.
    pub keeps_peers: bool,
    /// A network that nothing crosses from this time on, not even in the end.
    pub lost_network: Option<(u64, u8)>,
    /// What each node holds, if they share one; then a stranger with another one tries to get in.
    pub keys: Vec<ClusterKey>,
    /// Endpoints have regions, and flows work on them.
    pub has_regions: bool,
    /// Gets stuck, by a fault, until all others are done.
    pub stuck: Option<Stuck>,
}

/// A process that is stuck.
#[derive(Clone, Copy, Debug)]
pub struct Stuck {
    pub node: usize,
    /// Its application makes no calls, but its engine is stepped; else nothing is.
    pub is_stepped: bool,
}

/// Where a process runs: its node, and how many others there come before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub node: usize,
    pub rank: usize,
}

impl Place {
    /// The first of the numbers that endpoints of this process have and no others of its node.
    pub fn endpoints(self) -> u32 {
        u32::try_from(self.rank).expect("few processes") * ENDPOINTS_PER_PROCESS
    }
}

/// One process.
#[derive(Debug)]
pub struct NodePlan {
    pub place: Place,
    /// It meets others of its node in shared memory.
    pub shares_memory: bool,
    pub config: Config,
    /// The process computes this long between two steps; 0 for one that waits.
    pub busy_ns: u64,
    /// The network of each of its interfaces, the first one first.
    pub interfaces: Vec<u8>,
    pub watches: bool,
    /// It closes endpoints without reading what they hold.
    pub closes_unread: bool,
    pub endpoints: Vec<EndpointPlan>,
}

/// One receiving endpoint.
#[derive(Clone, Debug)]
pub struct EndpointPlan {
    pub id: u32,
    pub reader: Reader,
    pub presence: Presence,
}

/// How an application reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// At once.
    Eager,
    /// A message now and then.
    Slow { every_ns: u64 },
    /// Not until all others have finished.
    Never,
    /// At once, and from this message on not until all others have finished.
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
    /// Changes sides at these times, closed at first; open in the end.
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

/// Messages from one endpoint to another.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    pub from: usize,
    pub source: u32,
    pub to: usize,
    pub target: u32,
    pub messages: u32,
    /// Shortest and longest message.
    pub bytes: (usize, usize),
    /// One message in a thousand that is sent unreliably, times this.
    pub unreliable_permille: u32,
    /// Of a thousand waits for credit, how many are given up.
    pub impatient_permille: u32,
    /// Of a thousand messages, how many may wait for others.
    pub more_permille: u32,
    /// Pause between messages; 0 for as fast as they go.
    pub gap_ns: u64,
    /// Sends before the session is open.
    pub early: bool,
    /// Means the very process that is there when it connects.
    pub particular: bool,
    /// Messages after which it closes its edge and opens it again; 0 for never.
    pub edge_messages: u32,
}

/// Numbers of the endpoints that read, and of those that only send, in each process.
const ENDPOINTS_PER_PROCESS: u32 = 10;
pub const FIRST_SOURCE: u32 = 100;

/// Something that goes wrong, or is mended.
#[derive(Clone, Debug)]
pub enum Fault {
    /// These nodes and the others no longer hear each other.
    Partition(Vec<usize>),
    /// The first no longer reaches the second.
    Cut(usize, usize),
    /// Ends partitions and cuts.
    Heal,
    /// An interface, by its place among the node's, dies or comes back.
    Interface {
        node: usize,
        interface: usize,
        alive: bool,
    },
    /// Nothing crosses a network any more.
    LoseNetwork(u8),
    /// Packets may only be so long, or as long as at first again: the interfaces refuse longer
    /// ones, or the switch drops them.
    Narrow { bytes: usize, by: Narrow },
    /// A process is not stepped for this long.
    Pause { node: usize, for_ns: u64 },
    /// A process gets stuck.
    Stick(Stuck),
    /// A process ends, with a goodbye or without.
    End { node: usize, orderly: bool },
    /// Another begins on the same ports.
    Begin { node: usize },
    /// All clocks jump while nobody is stepped.
    Jump { by_ns: u64 },
    /// A process takes one of its cluster keys no more.
    Withdraw { node: usize },
}

/// Who does not take long packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrow {
    Interfaces,
    Switch,
}

impl Fault {
    /// True if it entitles nobody to give a peer up: a process that was not stepped, or
    /// whose clock jumped, knows that it was absent itself.
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

/// The network of the bulk port of a node with one interface, if it has a device of its own.
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

    /// The socket at which others of the node meet it.
    pub fn socket(&self) -> PathBuf {
        PathBuf::from(format!("process-{}", self.place.rank))
    }
}

impl Scenario {
    /// The process that an endpoint which sends belongs to.
    pub fn sender(&self, node: u32, source: u32) -> Option<usize> {
        let rank = source.checked_sub(FIRST_SOURCE)? / ENDPOINTS_PER_PROCESS;
        let place = Place {
            node: (node as usize).checked_sub(1)?,
            rank: rank as usize,
        };
        self.nodes.iter().position(|process| process.place == place)
    }

    /// True if two different processes meet in shared memory.
    pub fn share_memory(&self, one: usize, other: usize) -> bool {
        let (one_plan, other_plan) = (&self.nodes[one], &self.nodes[other]);
        one != other
            && one_plan.place.node == other_plan.place.node
            && one_plan.shares_memory
            && other_plan.shares_memory
    }

    /// By which network a node's directory answers, as it is asked on all: its first interface
    /// on one that works.
    pub fn way_to(&self, node: usize, now_ns: u64) -> u8 {
        let works = |network: &&u8| match self.lost_network {
            None => **network == 0,
            Some((at_ns, lost)) => **network < 2 && (now_ns < at_ns || **network != lost),
        };
        let mut interfaces = self.nodes[node].interfaces.iter();
        *interfaces.find(works).expect("all are on these networks")
    }

    /// Long messages from one node to another, of whose packets one in a hundred
    /// is lost on the way there, to the end.
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
        }
    }
}

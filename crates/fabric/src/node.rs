//! The node of this process, and its number where no Dipole launcher assigns one.
//!
//! `DIPOLE_NID` and the hosts file take precedence. Without them a job on a single machine needs no
//! network. Otherwise the node's address is the one with a route to other networks (or
//! `DIPOLE_BIND`, or the only one), and its number is derived from that. Ranks exchange their
//! addresses ([`Name`](crate::name::Name)), so they need no list of nodes.

use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use dipole_node::hosts::Hosts;
use dipole_node::job::{Job, RankPlacement, is_internal_interface, placement_in_mpi};
use dipole_node::{
    ActivePort, Config, Endpoint, EndpointId, GoneReason, Links, Node, NodeId, bind_address,
    interface_addresses, variables,
};
use rustc_hash::FxHashMap;

use crate::atomics::Atomics;
use crate::completion::lock;
use crate::eq::Events;
use crate::unexpected::Unexpected;

/// Documentation addresses, used to look up the default route. Nothing is sent there.
const REMOTE_PROBES: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// How long a rank may be silent where a launcher watches the ranks.
const PATIENCE: Duration = Duration::from_secs(300);

/// The state that all objects of a domain share.
pub(crate) struct Domain {
    /// The endpoint that registered memory belongs to; it receives no messages.
    pub(crate) regions: Endpoint,
    /// Performs atomic operations on that memory; closed before it.
    pub(crate) port: ActivePort,
    pub(crate) atomics: Arc<Atomics>,
    pub(crate) unexpected: Arc<Unexpected>,
    pub(crate) node: Node,
    /// The event queue that reports registered memory.
    pub(crate) events: OnceLock<Arc<Events>>,
    /// Processes that are gone, by incarnation.
    departed: Mutex<FxHashMap<u64, GoneReason>>,
}

impl Domain {
    /// Opens this process's node; the error is a text.
    pub(crate) fn open() -> Result<Domain, String> {
        let node = Node::open(config()?).map_err(|error| error.to_string())?;
        Domain::on(node)
    }

    /// Opens what a domain needs on a node.
    pub(crate) fn on(node: Node) -> Result<Domain, String> {
        let regions = node.endpoint(EndpointId::ANY);
        let regions = regions.map_err(|error| error.to_string())?;
        let atomics = Arc::<Atomics>::default();
        let port = atomics.serve(&node).map_err(|error| error.to_string())?;
        Ok(Domain {
            regions,
            port,
            atomics,
            unexpected: Arc::new(Unexpected::open(&node)?),
            node,
            events: OnceLock::new(),
            departed: Mutex::default(),
        })
    }

    /// Why a known process is gone, if it is.
    pub(crate) fn gone_reason(&self, incarnation: u64) -> Option<GoneReason> {
        let mut departed = lock(&self.departed);
        let departures = self.node.take_departures().into_iter();
        departed.extend(departures.map(|gone| (gone.incarnation, gone.reason)));
        departed.get(&incarnation).copied()
    }
}

/// The configuration of this process's node.
fn config() -> Result<Config, String> {
    warn_about_launcher();
    let links = match variable(variables::LINK) {
        Some(links) => links.parse().map_err(|()| {
            format!(
                "{}={links}: expected auto, shm, udp or bpf",
                variables::LINK
            )
        })?,
        None => Links::Auto,
    };
    let place = match variable(variables::NODE) {
        Some(_) => None,
        None => placement()?,
    };
    let mut config = Config::from_env_at(links, place).map_err(|error| error.to_string())?;
    // MPI polls: its waits are those of its completion queues.
    config.recordings.trace_dir = None;
    if Job::has_launcher() {
        // It ends the job when a rank dies. A silent rank may be stopped, by a batch system or a
        // debugger, or on a machine that is being moved.
        config.connect_timeout = PATIENCE;
        if variable(variables::PEER_TIMEOUT_MS).is_none() {
            config.set_peer_timeout(PATIENCE);
        }
    }
    Ok(config)
}

/// Rank 0 of a job of `dipole run` advises users of Open MPI, which needs PMIx.
fn warn_about_launcher() {
    let is_first = variable("DIPOLE_RANK").as_deref() == Some("0");
    if let Some(size) = Job::size_unknown_to_open_mpi()
        && is_first
        && is_open_mpi()
    {
        eprintln!(
            "dipole: `dipole run` started {size} ranks, but to Open MPI each of them is a job of \
             one rank; start programs of Open MPI with mpirun (see dipole-mpi-env(1))"
        );
    }
}

/// True if Open MPI's libraries are loaded.
fn is_open_mpi() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps");
    maps.is_ok_and(|maps| maps.contains("/libopen-pal."))
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn placement() -> Result<Option<RankPlacement>, String> {
    if let Some(file) = variable(variables::HOSTS) {
        let hosts = Hosts::load_followed(file.as_ref()).map_err(|error| error.to_string())?;
        let own = (hosts.iter().find(|host| is_own(host.address)))
            .map(|host| host.node)
            .ok_or_else(|| {
                format!(
                    "{file} has no address of this machine; set {}",
                    variables::NODE
                )
            })?;
        return Ok(Some(RankPlacement {
            node: own,
            hosts: Some(hosts),
            runtime_dir: None,
        }));
    }
    match placement_in_mpi() {
        // All ranks are on this machine, the launcher named the nodes, or no launcher was used.
        Ok(Some(place)) => return Ok(Some(place)),
        Ok(None) if !has_bind_address() => return Ok(None),
        // There are several nodes, whose addresses Open MPI and MPICH do not pass on.
        Ok(None) | Err(_) => {}
    }
    let address = match variable(variables::BIND) {
        Some(bind) => bind_address(&bind).ok_or_else(|| {
            format!(
                "{}={bind}: this machine has no such address, subnet or interface",
                variables::BIND
            )
        })?,
        None => routed_address().or_else(only_address).ok_or_else(|| {
            format!(
                "this machine has no route to other networks, and none or several addresses; \
                 set {} to the network of the job (10.0.0.0/24) or to its interface (eth1) on all \
                 nodes, or {} to a hosts file",
                variables::BIND,
                variables::HOSTS
            )
        })?,
    };
    let node = NodeId(number(address));
    let hosts = Hosts::parse(&format!("{node} {address}")).map_err(|error| error.to_string())?;
    Ok(Some(RankPlacement {
        node,
        hosts: Some(hosts),
        runtime_dir: None,
    }))
}

/// True if the user has set the address at which peers reach this process.
fn has_bind_address() -> bool {
    variable(variables::BIND).is_some()
}

fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// The local address of the default route.
fn routed_address() -> Option<IpAddr> {
    REMOTE_PROBES.iter().find_map(|there| {
        let any = if there.starts_with('[') {
            "[::]:0"
        } else {
            "0.0.0.0:0"
        };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(there).ok()?;
        let own = socket.local_addr().ok()?.ip();
        (!own.is_loopback()).then_some(own)
    })
}

/// The address of this machine if it has only one, for networks without a gateway. Without IPv4, its
/// only IPv6 address.
fn only_address() -> Option<IpAddr> {
    let own = interface_addresses().ok()?.into_iter();
    let mut usable: Vec<IpAddr> = own
        .filter(|one| one.up && !one.loopback && one.scope_id == 0)
        .filter(|one| !is_internal_interface(&one.name))
        .map(|one| one.ip)
        .collect();
    if usable.iter().any(IpAddr::is_ipv4) {
        usable.retain(IpAddr::is_ipv4);
    }
    match usable[..] {
        [only] => Some(only),
        _ => None,
    }
}

/// The node number for an address: an IPv4 address itself, or a hash of an IPv6 address.
fn number(address: IpAddr) -> u32 {
    let number = match address {
        IpAddr::V4(address) => u32::from(address),
        // FNV-1a gives the same result on every machine.
        IpAddr::V6(address) => (address.octets().iter()).fold(0x811c_9dc5, |hash: u32, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        }),
    };
    number.max(1)
}

//! This process's node, and which one that is where no launcher of Dipole says so.
//!
//! `DIPOLE_NID` and the hosts file are obeyed. Without them a job that runs on this machine alone
//! needs no network; any other uses the address that this machine has on the way to others (or
//! `DIPOLE_BIND`, or its only one), and is the node with that number. Ranks tell each other their
//! addresses ([`Name`](crate::name::Name)), so they need no list of nodes.

use std::net::{IpAddr, UdpSocket};
use std::sync::{Arc, Mutex, OnceLock};

use dipole_node::hosts::Hosts;
use dipole_node::job::{RankPlacement, placement_from_env};
use dipole_node::{
    ActivePort, Config, Endpoint, EndpointId, GoneReason, Links, Node, NodeId, interface_addresses,
    variables,
};
use rustc_hash::FxHashMap;

use crate::atomics::Atomics;
use crate::completion::lock;
use crate::eq::Events;

/// Addresses of documentation: routes to them are the way to everywhere. Nothing is sent there.
const ELSEWHERE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// What the objects of a domain share.
pub(crate) struct Domain {
    /// Registered memory belongs to it; no messages go there.
    pub(crate) regions: Endpoint,
    /// Does what others ask of that memory; closed before it.
    pub(crate) port: ActivePort,
    pub(crate) atomics: Arc<Atomics>,
    pub(crate) node: Node,
    /// Where the program wants to hear that memory is registered.
    pub(crate) events: OnceLock<Arc<Events>>,
    /// Processes that are gone, by their incarnations.
    departed: Mutex<FxHashMap<u64, GoneReason>>,
}

impl Domain {
    /// Opens this process's node; why it cannot be.
    pub(crate) fn open() -> Result<Domain, String> {
        let node = Node::open(config()?).map_err(|error| error.to_string())?;
        let regions = node.endpoint(EndpointId::ANY);
        let regions = regions.map_err(|error| error.to_string())?;
        let atomics = Arc::<Atomics>::default();
        let port = atomics.serve(&node).map_err(|error| error.to_string())?;
        Ok(Domain {
            regions,
            port,
            atomics,
            node,
            events: OnceLock::new(),
            departed: Mutex::default(),
        })
    }

    /// Why a process is gone that this one has met.
    pub(crate) fn gone_reason(&self, incarnation: u64) -> Option<GoneReason> {
        let mut departed = lock(&self.departed);
        let news = self.node.departed().into_iter();
        departed.extend(news.map(|gone| (gone.incarnation, gone.reason)));
        departed.get(&incarnation).copied()
    }
}

/// How to open this process's node.
fn config() -> Result<Config, String> {
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
        None => place()?,
    };
    Config::from_env_at(links, place).map_err(|error| error.to_string())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn place() -> Result<Option<RankPlacement>, String> {
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
    match placement_from_env() {
        // All ranks are here, the launcher named the nodes, or there is none.
        Ok(Some(place)) => return Ok(Some(place)),
        Ok(None) if !is_told_of_others() => return Ok(None),
        // On several nodes, which Open MPI and MPICH do not name.
        Ok(None) | Err(_) => {}
    }
    let address = match variable(variables::BIND) {
        Some(bind) => bind
            .parse()
            .map_err(|_| format!("{}={bind}: expected an IP address", variables::BIND))?,
        None => address_on_the_way().or_else(only_address).ok_or_else(|| {
            let bind = variables::BIND;
            format!(
                "this machine has no route to other networks and not exactly one IPv4 address; set \
                 {bind} to its address on the network of the others, or {} to a hosts file",
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

/// True where the user says on which address others reach this process.
fn is_told_of_others() -> bool {
    variable(variables::BIND).is_some()
}

fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Where packets to other networks leave from; else where those to any neighbour would.
fn address_on_the_way() -> Option<IpAddr> {
    ELSEWHERE.iter().find_map(|there| {
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

/// On a network without a gateway: the address of this machine, if it has but one.
fn only_address() -> Option<IpAddr> {
    let all = interface_addresses().ok()?;
    let mut usable = all
        .iter()
        .filter(|one| one.up && !one.loopback && one.ip.is_ipv4());
    let first = usable.next()?.ip;
    usable.next().is_none().then_some(first)
}

/// The number of the node with an address: itself if it is of IPv4.
fn number(address: IpAddr) -> u32 {
    let number = match address {
        IpAddr::V4(address) => u32::from(address),
        // FNV-1a: the same on every machine.
        IpAddr::V6(address) => (address.octets().iter()).fold(0x811c_9dc5, |hash: u32, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        }),
    };
    number.max(1)
}

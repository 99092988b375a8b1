//! Ranks publish their addresses through their launcher, and read those of the others.
//!
//! Each rank publishes a [`BusinessCard`]: its node, the node's name, a free port for the directory and
//! the addresses of this machine. From the cards all ranks derive the same list of nodes and the same
//! address of each (`network.rs`). If no network has all nodes, each rank finds out which of its
//! addresses leads to the others, and publishes it in a second round.
//!
//! This file does not know how a launcher moves the texts: that is behind [`Exchange`].

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::allocation::{FIRST_PORT, PORTS};
use super::service::{Exchange, Given, Service, ServiceError};
use super::{Job, JobError, Launched, Lookup, Nodes, given_id, id_from_name, mixed, node_at};
use super::{pmi, pmix};
use crate::address::NodeId;
use crate::environment::{user_dir, variables};
use crate::hosts::{Host, Hosts};
use crate::lines::Word;
use crate::registry;

mod business_card;
mod machine;
mod network;
mod saved;

pub use machine::is_internal_interface;

use business_card::{BusinessCard, Route};
use network::Choice;

/// How many of the ports for directories are tried; the first free one is used.
const PORT_ATTEMPTS: u16 = 200;

/// The nodes of a job, as all its ranks have published them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    /// Number of the job, and of its directory.
    id: u64,
    /// How many programs this rank has started before.
    programs_before: u32,
    rank: u32,
    /// Node of every rank.
    placed: Vec<NodeId>,
    /// All nodes; `None` if there is only one.
    hosts: Option<Hosts>,
}

impl Outcome {
    fn launched(self) -> Launched {
        // Processes of an earlier program may still run on other nodes, and must not get messages of
        // this one.
        let id = match self.programs_before {
            0 => self.id,
            before => mixed(self.id.wrapping_add(u64::from(before))),
        };
        let exchanged = |hosts| Nodes::Exchanged {
            hosts,
            directory: self.id,
        };
        Launched {
            job: Job::launched(id, self.rank, self.placed),
            nodes: self.hosts.map_or(Nodes::Here, exchanged),
        }
    }
}

/// The outcome in this process, which can exchange addresses only once.
static OUTCOME: OnceLock<Result<Outcome, JobError>> = OnceLock::new();

/// The job of this rank, whose nodes the ranks exchange through the launcher.
pub(super) fn job(get: Lookup<'_>, service: Service, given: Given) -> Result<Launched, JobError> {
    let outcome = OUTCOME.get_or_init(|| once(get, service, given));
    outcome.clone().map(Outcome::launched)
}

/// Exchanges addresses, or reads the outcome that an earlier program of this rank has saved.
fn once(get: Lookup<'_>, service: Service, given: Given) -> Result<Outcome, JobError> {
    let inherited = match (service, given.rank) {
        (Service::Pmi, Some(_)) => pmi::inherited(get)?,
        _ => None,
    };
    let connection = match service {
        Service::Pmi => inherited.as_ref().and_then(pmi::socket_number),
        Service::Pmix => Some(pmix_connection(get)),
    };
    let own_user_dir = user_dir();
    let saved = saved::Place::of(&own_user_dir, connection);
    if let Some(outcome) = given.rank.and_then(|rank| saved.load(rank, given.size)) {
        return Ok(outcome);
    }
    let (mut client, rank, size) = match service {
        Service::Pmi => pmi::Client::open(get, inherited, given)?,
        Service::Pmix => pmix::Client::open(get, given)?,
    };
    let id = given_id(get)?.unwrap_or_else(|| id_from_name(client.job_name()));
    let job_dir = job_dir(&own_user_dir, id)?;
    // Processes with the same registry and network are on the same node.
    let registry_dir = get(variables::RUNTIME_DIR).map_or_else(|| job_dir.clone(), PathBuf::from);
    let identity = machine::Identity::of(&registry_dir, get)?;
    let mut own = BusinessCard {
        node: identity.node,
        machine: identity.machine,
        port: free_port(id),
        name: identity.name,
        addresses: identity.addresses,
    };
    let (placed, hosts) = exchange(client.as_mut(), rank, size, &mut own)?;
    let outcome = Outcome {
        id,
        programs_before: 0,
        rank,
        placed,
        hosts,
    };
    client.finish()?;
    saved.store(&job_dir, &outcome);
    Ok(outcome)
}

/// Identifies the connection to a PMIx server: a later job may have the same name, but not also the
/// same port of the server and the same directory.
fn pmix_connection(get: Lookup<'_>) -> u64 {
    let [namespace, server, directory] = pmix::connection(get);
    let directory = directory_number(Path::new(&directory)).unwrap_or_default();
    hashed(&[&namespace, &server, &directory])
}

/// The job's directory, which all its programs on this node use.
fn job_dir(user_dir: &Path, id: u64) -> Result<PathBuf, JobError> {
    registry::job_dir(user_dir, id).map_err(|error| JobError::Directory {
        cause: error.to_string(),
    })
}

/// Publishes the own card and reads those of all ranks; returns the node of each rank, and the nodes
/// if there are several.
fn exchange(
    service: &mut dyn Exchange,
    rank: u32,
    size: u32,
    own: &mut BusinessCard,
) -> Result<(Vec<NodeId>, Option<Hosts>), JobError> {
    let text = own.shortened_to(service.max_value_bytes());
    service.put(1, rank, &text)?;
    service.barrier()?;
    let mut cards = Vec::new();
    for other in 0..size {
        let text = service.get(1, other)?;
        cards.push(
            BusinessCard::parse(&text)
                .ok_or_else(|| unexpected_card(other, &text, business_card::FORM))?,
        );
    }
    let (placed, leaders) = nodes(&cards);
    let placed_at = placed.iter().map(|index| node_at(*index)).collect();
    if leaders.len() == 1 {
        return Ok((placed_at, None));
    }
    let cards: Vec<&BusinessCard> = leaders.iter().map(|rank| &cards[*rank]).collect();
    let addresses = match network::choose(&cards) {
        Choice::Common(addresses) => addresses,
        Choice::Undecided(usable) => {
            let own = placed[rank as usize];
            let route = network::own_route(&usable, own);
            by_routes(service, rank, &leaders, (&cards, route))?
        }
    };
    let entries = addresses.into_iter().zip(&cards).enumerate();
    let hosts = entries.map(|(index, (address, card))| Host {
        port: card.port,
        name: Word::new(&card.name),
        ..Host::at(node_at(index), address)
    });
    Ok((placed_at, Some(Hosts::of(hosts.collect()))))
}

/// The second round: each rank publishes the address at which it has a route to all other nodes.
fn by_routes(
    service: &mut dyn Exchange,
    rank: u32,
    leaders: &[usize],
    (cards, route): (&[&BusinessCard], Route),
) -> Result<Vec<IpAddr>, JobError> {
    service.put(2, rank, &route.to_string())?;
    service.barrier()?;
    let mut addresses = Vec::new();
    for (index, leader) in leaders.iter().enumerate() {
        let leader = u32::try_from(*leader).unwrap_or(u32::MAX);
        let text = service.get(2, leader)?;
        let route = Route::parse(&text, cards.len());
        match route.ok_or_else(|| unexpected_card(leader, &text, Route::FORM))? {
            Route::From(address) => addresses.push(address),
            Route::NoneTo(other) => {
                return Err(JobError::NoRoute {
                    from: cards[index].described(),
                    to: cards[other].described(),
                });
            }
        }
    }
    Ok(addresses)
}

fn unexpected_card(rank: u32, found: &str, expected: &'static str) -> JobError {
    JobError::Service(ServiceError::BusinessCard {
        rank,
        found: crate::lines::excerpt(found),
        expected,
    })
}

/// The index of the node of every rank, and the first rank of every node.
fn nodes(cards: &[BusinessCard]) -> (Vec<usize>, Vec<usize>) {
    let mut known: HashMap<u64, usize> = HashMap::new();
    let mut leaders = Vec::new();
    let place = |(rank, card): (usize, &BusinessCard)| {
        *known.entry(card.node).or_insert_with(|| {
            leaders.push(rank);
            leaders.len() - 1
        })
    };
    let placed = cards.iter().enumerate().map(place).collect();
    (placed, leaders)
}

/// A port that no process of this machine uses now.
fn free_port(id: u64) -> u16 {
    let first = u16::try_from(mixed(id) % u64::from(PORTS)).unwrap_or_default();
    let ports = (0..PORT_ATTEMPTS).map(|step| FIRST_PORT + (first + step) % PORTS);
    let is_free = |port: &u16| {
        let binds = |any: &str| UdpSocket::bind((any, *port));
        // A machine may lack one of the families.
        let is_used = |tried: std::io::Result<UdpSocket>| {
            tried.is_err_and(|cause| cause.kind() == std::io::ErrorKind::AddrInUse)
        };
        !is_used(binds("0.0.0.0")) && !is_used(binds("::"))
    };
    ports.clone().find(is_free).unwrap_or(FIRST_PORT + first)
}

/// Hashes values that identify something on this machine.
fn hashed(parts: &[&str]) -> u64 {
    mixed(id_from_name(&parts.join("\0")))
}

/// Number of a directory on its file system, and of that file system.
fn directory_number(path: &Path) -> std::io::Result<String> {
    let found = fs::metadata(path)?;
    Ok(format!("{}:{}", found.dev(), found.ino()))
}

#[cfg(test)]
mod tests;

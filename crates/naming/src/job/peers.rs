//! Resolves the names of a job's nodes to addresses.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use dipole_link::source_address;

use super::{JobError, Lookup, node_at};
use crate::hosts::{Host, Hosts};
use crate::lines::Word;

/// Pauses between two attempts to resolve a name.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After this time the name that is waited for is logged.
const WARN_AFTER: Duration = Duration::from_secs(2);

/// The nodes of a job by name, node 1 first.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NodeNames {
    /// Host names or IP addresses.
    pub(super) names: Vec<String>,
    /// The index of this node, if it is one of them.
    pub(super) own: Option<usize>,
    /// The directory's port of the first node at an address; further nodes at the same address use
    /// the following ports.
    pub(super) port: u16,
    /// How long to wait for a name to become known.
    pub(super) timeout: Duration,
}

/// Resolves a name to addresses.
type Resolve<'a> = &'a dyn Fn(&str) -> io::Result<Vec<IpAddr>>;

/// The hosts file that `DIPOLE_HOSTS` names.
pub(super) fn hosts_file(get: Lookup<'_>) -> Result<Option<Hosts>, JobError> {
    get("DIPOLE_HOSTS")
        .map(|file| Hosts::load(file.as_ref()))
        .transpose()
        .map_err(|error| JobError::Hosts {
            cause: error.to_string(),
        })
}

/// True if this machine has the address.
pub(super) fn is_own(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

impl NodeNames {
    /// Resolves all names; waits for names that are not known yet.
    pub(super) fn resolve(&self) -> Result<Hosts, JobError> {
        self.resolve_with(&|name| {
            let addresses = (name, 0).to_socket_addrs()?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    }

    fn resolve_with(&self, resolve: Resolve<'_>) -> Result<Hosts, JobError> {
        let started = Instant::now();
        let mut found = Vec::with_capacity(self.names.len());
        for name in &self.names {
            found.push(wait_for(name, started, self.timeout, resolve)?);
        }
        let mut addresses = of_one_family(&found);
        if let Some(own) = self.own {
            addresses[own] = own_address(addresses[own], &addresses);
        }
        let mut at_address: HashMap<IpAddr, u16> = HashMap::new();
        let mut entries = Vec::with_capacity(addresses.len());
        for (index, (address, name)) in addresses.into_iter().zip(&self.names).enumerate() {
            // Several names may belong to one machine; each is a node with its own directory.
            let before = at_address.entry(address).or_default();
            let port = self.port.checked_add(*before).ok_or_else(|| {
                let cause = format!("more than {before} nodes have the address {address}");
                JobError::Unresolved {
                    name: name.clone(),
                    waited_s: 0,
                    cause,
                }
            })?;
            *before = before.saturating_add(1);
            entries.push(Host {
                port,
                name: Word::new(name),
                ..Host::at(node_at(index), address)
            });
        }
        Ok(Hosts::of(entries))
    }
}

/// This node's address as other nodes see it. Many systems resolve their own name to the loopback
/// address, at which other nodes cannot reach it.
fn own_address(own: IpAddr, addresses: &[IpAddr]) -> IpAddr {
    let elsewhere = addresses.iter().find(|address| !address.is_loopback());
    match elsewhere {
        Some(peer) if own.is_loopback() => source_address(*peer).unwrap_or(own),
        _ => own,
    }
}

fn wait_for(
    name: &str,
    started: Instant,
    timeout: Duration,
    resolve: Resolve<'_>,
) -> Result<Vec<IpAddr>, JobError> {
    let mut pause = FIRST_PAUSE;
    let mut has_warned = false;
    loop {
        let cause = match resolve(name) {
            Ok(addresses) if !addresses.is_empty() => return Ok(addresses),
            Ok(_) => "the name has no address".to_owned(),
            Err(cause) => cause.to_string(),
        };
        let waited = started.elapsed();
        if waited >= timeout {
            return Err(JobError::Unresolved {
                name: name.to_owned(),
                waited_s: waited.as_secs(),
                cause,
            });
        }
        if waited >= WARN_AFTER && !has_warned {
            tracing::warn!(name, %cause, "waiting for a node's name to be known");
            has_warned = true;
        }
        std::thread::sleep(pause.min(timeout.saturating_sub(waited)));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Selects one address of each node: IPv4 if every node has one, else IPv6 where there is one.
fn of_one_family(found: &[Vec<IpAddr>]) -> Vec<IpAddr> {
    let all_v4 = found.iter().all(|of| of.iter().any(IpAddr::is_ipv4));
    found
        .iter()
        .map(|of| {
            let wanted = of.iter().find(|address| address.is_ipv4() == all_v4);
            *wanted.unwrap_or(&of[0])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::NodeId;
    use std::cell::Cell;

    fn names(names: &[&str], own: usize) -> NodeNames {
        NodeNames {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            own: Some(own),
            port: 7000,
            timeout: Duration::from_secs(30),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn names_of_one_address_become_nodes_with_directories_of_their_own() {
        let hosts = names(&["a", "b", "c", "d"], 0)
            .resolve_with(&|name| {
                Ok(vec![match name {
                    "c" => ip("10.0.0.3"),
                    _ => ip("10.0.0.1"),
                }])
            })
            .unwrap();
        let directories: Vec<String> = hosts
            .iter()
            .map(|host| format!("{} {}", host.node, host.directory()))
            .collect();
        assert_eq!(
            directories,
            [
                "1 10.0.0.1:7000",
                "2 10.0.0.1:7001",
                "3 10.0.0.3:7000",
                "4 10.0.0.1:7002"
            ]
        );
        assert!(!hosts.is_local_only());
        assert_eq!(hosts.get(NodeId(2)).unwrap().name.as_deref(), Some("b"));
    }

    #[test]
    fn all_nodes_are_reached_by_one_family() {
        let both = vec![ip("fd00::1"), ip("10.0.0.1")];
        let six = vec![ip("fd00::2")];
        assert_eq!(
            of_one_family(&[both.clone(), both.clone()]),
            [ip("10.0.0.1"), ip("10.0.0.1")]
        );
        assert_eq!(of_one_family(&[both, six]), [ip("fd00::1"), ip("fd00::2")]);
    }

    #[test]
    fn a_name_that_becomes_known_is_waited_for_and_one_that_does_not_is_reported() {
        let attempts = Cell::new(0);
        let late = |_: &str| {
            attempts.set(attempts.get() + 1);
            match attempts.get() {
                1 => Err(io::Error::other("not known")),
                2 => Ok(Vec::new()),
                _ => Ok(vec![ip("10.0.0.1")]),
            }
        };
        assert!(names(&["late"], 0).resolve_with(&late).is_ok());
        let mut never = names(&["10.0.0.1", "never"], 0);
        never.timeout = Duration::ZERO;
        let error = never
            .resolve_with(&|name| match name {
                "never" => Err(io::Error::other("not known")),
                _ => Ok(vec![ip("10.0.0.1")]),
            })
            .unwrap_err()
            .to_string();
        assert!(error.contains("`never` within 0 s: not known"), "{error}");
    }

    #[test]
    fn an_own_name_that_means_loopback_gives_way_to_the_address_the_others_see() {
        // 127.0.0.1 exists on every machine.
        assert_eq!(
            own_address(ip("127.0.1.1"), &[ip("127.0.1.1"), ip("127.0.0.1")]),
            ip("127.0.1.1")
        );
        assert_eq!(
            own_address(ip("10.0.0.1"), &[ip("10.0.0.1"), ip("10.0.0.2")]),
            ip("10.0.0.1")
        );
        assert_eq!(source_address(ip("127.0.0.1")).unwrap(), ip("127.0.0.1"));
        assert!(is_own(ip("127.0.0.1")) && !is_own(ip("192.0.2.77")));
    }
}

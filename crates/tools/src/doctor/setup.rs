//! The configuration: environment, hosts file, and whether this node matches them.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use dipole_link::sys::InterfaceAddress;
use dipole_naming::environment;
use dipole_node::hosts::{Host, Hosts};
use dipole_node::{Config, ConfigError, Links, NodeId, variables};

use super::finding::Finding;

/// The configuration that programs would get, as far as it is valid, and the problems found.
pub(super) fn configure(file: Option<PathBuf>, node: Option<NodeId>) -> (Config, Vec<Finding>) {
    let mut findings = Vec::new();
    let mut config = Config::from_env().unwrap_or_else(|error| {
        findings.push(Finding::broken(
            match error {
                ConfigError::Key(_) => CLUSTER_KEY,
                _ => "configuration",
            },
            error.to_string(),
            "no program of Dipole starts so; correct it",
        ));
        Config::local(NodeId(1), environment::default_runtime_dir())
    });
    if let Some(node) = node
        && let Err(error) = config.set_node(node)
    {
        findings.push(Finding::broken(
            "hosts file",
            error.to_string(),
            "the agent of that node keeps it; end the agent, remove the file, start it again",
        ));
    }
    if let Some(file) = file {
        match Hosts::load(&file) {
            Ok(hosts) => config.hosts = hosts,
            Err(error) => findings.push(Finding::broken(
                "hosts file",
                error.to_string(),
                "no program of Dipole starts with it; correct it, on all nodes alike",
            )),
        }
    }
    if findings.is_empty() {
        findings.push(hosts(&config));
    }
    if !config.hosts.is_local_only() {
        config.apply_hosts_file();
    }
    (config, findings)
}

pub(super) const CLUSTER_KEY: &str = "cluster key";

/// The document that lists all variables.
const VARIABLES: &str = include_str!("../../../../docs/reference/environment.md");

/// Variables that no program of Dipole reads, such as a misspelt one.
pub(super) fn unknown_variables() -> Option<Finding> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown: Vec<String> = names
        .filter(|name| name.starts_with("DIPOLE_") && !VARIABLES.contains(&format!("`{name}`")))
        .collect();
    unknown.sort_unstable();
    (!unknown.is_empty()).then(|| {
        Finding::slow(
            "variables",
            format!("no program of Dipole reads {}", unknown.join(", ")),
            "correct the name, or unset it; docs/reference/environment.md lists all variables",
        )
    })
}

/// Checks whether a cluster key separates members from strangers; nothing for a single node.
pub(super) fn cluster_key(config: &Config) -> Option<Finding> {
    let file = environment::variable(variables::KEY);
    if let Some(key) = &config.key {
        let mode = file.as_ref().and_then(|name| std::fs::metadata(name).ok());
        let mode = mode.map(|found| format!(", mode {:04o}", found.permissions().mode() & 0o7777));
        let other = key.other().map(|(role, other)| {
            format!(
                "; takes the {} one {other} as well, until `dipole key rotate` has ended",
                role.name()
            )
        });
        return Some(Finding::good(
            CLUSTER_KEY,
            format!(
                "fingerprint {} from {}{}; other nodes must have the same{}",
                key.fingerprint(),
                file.unwrap_or_default(),
                mode.unwrap_or_default(),
                other.unwrap_or_default()
            ),
        ));
    }
    let alone = config.hosts.is_local_only() || config.hosts.count() < 2;
    (!alone).then(|| {
        Finding::unknown(
            CLUSTER_KEY,
            "none: any host that can send UDP here can exchange messages with the processes",
            "on a network with strangers: `dipole key new FILE`, copy the file to all nodes, set \
             DIPOLE_KEY=FILE",
        )
    })
}

fn hosts(config: &Config) -> Finding {
    const NAME: &str = "hosts file";
    let (node, count) = (config.node, config.hosts.count());
    if config.hosts.is_local_only() {
        return Finding::good(
            NAME,
            format!("none: node {node} alone, on the loopback address"),
        )
        .advise("for other nodes name a file: DIPOLE_HOSTS or --hosts");
    }
    if config.hosts.get(node).is_none() {
        return Finding::broken(
            NAME,
            format!("this is node {node}, which is not among its {count} nodes"),
            format!("add a line `{node} ADDRESS`, or say which node this is: DIPOLE_NID or --nid"),
        );
    }
    if config.links == Links::Shm && count > 1 {
        return Finding::broken(
            NAME,
            format!("{count} nodes, but DIPOLE_LINK=shm puts the others out of reach"),
            "unset DIPOLE_LINK",
        );
    }
    let nodes = if count == 1 { "node" } else { "nodes" };
    Finding::good(NAME, format!("{count} {nodes}; this is node {node}"))
}

/// Checks whether this machine has this node's address, and others can use it.
pub(super) fn own_address(
    host: &Host,
    hosts: &Hosts,
    bind: IpAddr,
    devices: &[InterfaceAddress],
) -> Finding {
    const NAME: &str = "own address";
    let subject = host.to_string();
    let has = |address: IpAddr| {
        // The loopback device has all of 127.0.0.0/8.
        let mut all = devices.iter();
        all.any(|one| one.ip == address || (one.loopback && address.is_loopback()))
    };
    let address = host.address;
    if !has(address) {
        let own: Vec<String> = devices
            .iter()
            .filter(|one| !one.loopback)
            .map(|one| format!("{} on {}", one.ip, one.name))
            .collect();
        let own = if own.is_empty() {
            "only the loopback".to_owned()
        } else {
            own.join(", ")
        };
        let other = hosts
            .iter()
            .find(|other| other.node != host.node && has(other.address));
        let advice = match other {
            Some(other) => format!(
                "this machine has the address of node {0}: set DIPOLE_NID={0}",
                other.node
            ),
            None => format!(
                "correct the line of node {} in the hosts file, or `ip addr add` it",
                host.node
            ),
        };
        return Finding::broken(
            NAME,
            format!("{address} is on no device of this machine, which has {own}"),
            advice,
        )
        .about(subject);
    }
    let remote = |other: &&Host| other.node != host.node && !other.address.is_loopback();
    if let (true, Some(other)) = (address.is_loopback(), hosts.iter().find(remote)) {
        return Finding::broken(
            NAME,
            format!("{address} is this machine's own affair: {other} cannot answer to it"),
            "write an address into the hosts file that the other nodes reach",
        )
        .about(subject);
    }
    if bind != address {
        let fact = format!(
            "programs bind {bind} ({}), not {address} of the hosts file",
            variables::BIND
        );
        let advice = format!("unset {}", variables::BIND);
        return match has(bind) {
            true => Finding::slow(NAME, fact, advice),
            false => Finding::broken(NAME, format!("{fact}, and it is on no device"), advice),
        }
        .about(subject);
    }
    Finding::good(NAME, format!("{address} is on a device of this machine")).about(subject)
}

/// A further interface that this machine does not have.
pub(super) fn no_interface(address: IpAddr) -> Finding {
    Finding::slow(
        "own address",
        format!(
            "{address} of `interfaces=` is on no device of this machine; programs use it once it is"
        ),
        "`ip addr add` it, or correct the line of this node in the hosts file",
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Broken, Good, Slow};
    use super::*;

    fn device(name: &str, address: &str) -> InterfaceAddress {
        InterfaceAddress {
            name: name.to_owned(),
            ip: address.parse().expect("an address"),
            prefix_bits: 24,
            scope_id: 0,
            up: true,
            running: true,
            loopback: name == "lo",
        }
    }

    fn judged(text: &str, node: u32, bind: Option<&str>) -> Finding {
        let hosts = Hosts::parse(text).expect("a hosts file");
        let devices = [device("lo", "127.0.0.1"), device("eth0", "10.0.0.1")];
        let host = hosts.get(NodeId(node)).expect("its line");
        let bind = bind.map_or(host.address, |text| text.parse().expect("an address"));
        own_address(host, &hosts, bind, &devices)
    }

    #[test]
    fn an_address_must_be_on_a_device_and_of_use_to_the_others() {
        const TWO: &str = "1 10.0.0.1\n2 10.0.0.2";
        assert_eq!(judged(TWO, 1, None).verdict, Good);
        let wrong = judged(TWO, 2, None);
        assert_eq!(wrong.verdict, Broken);
        assert!(wrong.fact.contains("10.0.0.1 on eth0"), "{}", wrong.fact);
        assert!(wrong.advice.contains("DIPOLE_NID=1"), "{}", wrong.advice);
        let nowhere = judged("1 10.0.0.9\n2 10.0.0.2", 1, None);
        assert!(
            nowhere.advice.contains("line of node 1"),
            "{}",
            nowhere.advice
        );
        assert_eq!(judged("1 127.0.0.1\n2 10.0.0.2", 1, None).verdict, Broken);
        assert_eq!(judged("1 127.0.0.1\n2 127.0.0.2", 2, None).verdict, Good);
        assert_eq!(judged(TWO, 1, Some("127.0.0.1")).verdict, Slow);
        assert_eq!(judged(TWO, 1, Some("10.0.0.7")).verdict, Broken);
    }

    #[test]
    fn a_node_must_be_in_its_hosts_file() {
        let mut config = Config::local(NodeId(3), PathBuf::new());
        assert_eq!(hosts(&config).verdict, Good);
        config.hosts = Hosts::parse("1 10.0.0.1\n2 10.0.0.2").expect("a hosts file");
        let found = hosts(&config);
        assert_eq!(found.verdict, Broken);
        assert!(found.advice.contains("`3 ADDRESS`"), "{}", found.advice);
        config.node = NodeId(2);
        assert_eq!(hosts(&config).verdict, Good);
        config.links = Links::Shm;
        assert_eq!(hosts(&config).verdict, Broken);
    }
}

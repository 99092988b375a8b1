//! The configuration of a node from options, environment and hosts file.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use clap::Args;
use dipole_naming::environment::variable;
use dipole_naming::lines::Word;
use dipole_node::hosts::{DEFAULT_DIRECTORY_PORT, Host, MAX_SLOTS};
use dipole_node::registry::is_name;
use dipole_node::{Config, MAX_INTERFACES};

use super::AgentError;
use super::load::{MAX_SPEED, Timing};
use super::segment::own_interfaces;

/// Variables for `--discover`, `--seed` and `--cluster`.
const DISCOVER: &str = "DIPOLE_DISCOVER";
const SEEDS: &str = "DIPOLE_SEEDS";
const CLUSTER: &str = "DIPOLE_CLUSTER";
const DEFAULT_CLUSTER: &str = "dipole";

/// Options of discovery, and of the node's announcement.
#[derive(Args, Debug, Default)]
pub(super) struct NodeOptions {
    /// Discover other nodes by broadcasts on this node's networks [or: DIPOLE_DISCOVER=1]
    #[arg(long)]
    discover: bool,
    /// Nodes that know others, where broadcasts do not get through [or: DIPOLE_SEEDS]
    #[arg(long = "seed", value_name = "ADDRESS[:PORT]", value_delimiter = ',', value_parser = seed)]
    seeds: Vec<SocketAddr>,
    /// Name of the cluster: nodes of other clusters are ignored [default: $DIPOLE_CLUSTER, else
    /// dipole]
    #[arg(long, value_name = "NAME", value_parser = name)]
    cluster: Option<String>,
    /// Addresses of this node's interfaces, best first [default: the hosts file's, else all
    /// interfaces]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', num_args = 1..=MAX_INTERFACES)]
    bind: Vec<IpAddr>,
    /// Address on a separate network for look-ups and membership, not one of --bind
    #[arg(long, value_name = "ADDRESS")]
    control: Option<IpAddr>,
    /// Port of this agent, for UDP and TCP [default: the hosts file's, else 7411]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Ranks placed here before the next node is used [default: the hosts file's, else one per
    /// core]
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SLOTS)))]
    slots: Option<u32>,
    /// Name of the node, for display
    #[arg(long, value_name = "TEXT", value_parser = name)]
    name: Option<String>,
}

/// Options of the table of loads, which agents exchange.
#[derive(Args, Debug)]
pub(super) struct LoadOptions {
    /// Seconds between two exchanges of the table of loads, drawn from this range each time
    #[arg(long, value_name = "MIN-MAX", default_value = "180-300", value_parser = seconds)]
    load_every: (Duration, Duration),
    /// Number of random nodes with which the table of loads is exchanged each time
    #[arg(long, value_name = "K", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=MAX_LOAD_PEERS))]
    load_peers: u32,
    /// Speed of a core in Mflop/s, by which nodes are compared [default: measured at the start]
    #[arg(long, value_name = "MFLOPS",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SPEED)))]
    pub(super) speed: Option<u32>,
}

/// Maximum value of `--load-peers`.
const MAX_LOAD_PEERS: i64 = 64;

impl LoadOptions {
    pub(super) fn timing(&self) -> Timing {
        let (min, max) = self.load_every;
        Timing {
            min,
            max,
            peers: self.load_peers,
        }
    }
}

/// Parses a range of seconds.
fn seconds(text: &str) -> Result<(Duration, Duration), String> {
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    let bound = |text: &str| {
        let seconds: f64 = text.parse().ok()?;
        // A day at most; more than ten exchanges per second would be of no use.
        (0.1..=86_400.0)
            .contains(&seconds)
            .then(|| Duration::from_secs_f64(seconds))
    };
    bound(min)
        .zip(bound(max))
        .filter(|(min, max)| min <= max)
        .ok_or_else(|| "expected seconds from 0.1 to 86400, such as 180-300 or 5".to_owned())
}

/// How other nodes are discovered.
#[derive(Clone, Debug)]
pub(super) struct DiscoveryOptions {
    pub(super) on_segments: bool,
    pub(super) seeds: Vec<SocketAddr>,
    pub(super) cluster: String,
}

fn name(text: &str) -> Result<String, String> {
    match is_name(text) && !text.is_empty() {
        true => Ok(text.to_owned()),
        false => Err("expected 1 to 63 letters, digits and signs, without spaces or #".to_owned()),
    }
}

fn seed(text: &str) -> Result<SocketAddr, String> {
    let whole: Result<SocketAddr, _> = text.parse();
    whole
        .or_else(|_| {
            text.parse()
                .map(|ip: IpAddr| (ip, DEFAULT_DIRECTORY_PORT).into())
        })
        .map_err(|_| "expected an address such as 10.0.0.1, 10.0.0.1:7411 or [fd00::1]:7411".into())
}

fn wrong(variable: &'static str) -> impl Fn(String) -> AgentError {
    move |expected| AgentError::Variable { variable, expected }
}

impl NodeOptions {
    /// How other nodes are discovered; `None` if only the hosts file lists them.
    pub(super) fn discovery(&self) -> Result<Option<DiscoveryOptions>, AgentError> {
        let on_segments = match variable(DISCOVER).as_deref() {
            None | Some("0") => self.discover,
            Some("1") => true,
            Some(_) => return Err(wrong(DISCOVER)("expected 1 or 0".to_owned())),
        };
        let mut seeds = self.seeds.clone();
        if let Some(text) = variable(SEEDS).filter(|_| seeds.is_empty()) {
            let all: Result<_, _> = text.split(',').map(seed).collect();
            seeds = all.map_err(wrong(SEEDS))?;
        }
        let cluster = match (&self.cluster, variable(CLUSTER)) {
            (Some(cluster), _) => cluster.clone(),
            (None, Some(text)) => name(&text).map_err(wrong(CLUSTER))?,
            (None, None) => DEFAULT_CLUSTER.to_owned(),
        };
        let discovers = on_segments || !seeds.is_empty();
        Ok(discovers.then_some(DiscoveryOptions {
            on_segments,
            seeds,
            cluster,
        }))
    }

    /// This node, as a hosts file would describe it. `config` has the hosts file.
    pub(super) fn host(&self, config: &Config, discovers: bool) -> Result<Host, AgentError> {
        if let Some(host) = config.hosts.iter().find(|host| !host.scopes.is_empty()) {
            let node = host.to_string();
            return Err(AgentError::LinkLocal { node });
        }
        let written = config.hosts.get(config.node);
        let written = written.filter(|_| !config.hosts.is_local_only());
        let mut host = match written {
            Some(host) => host.clone(),
            None if !discovers => {
                return Err(AgentError::NotInHosts {
                    node: config.node.0,
                });
            }
            None => Host {
                slots: cores(),
                ..Host::at(config.node, config.bind)
            },
        };
        let mut interfaces = self.bind.clone();
        if interfaces.is_empty()
            && written.is_none()
            && variable(dipole_node::variables::BIND).is_none()
        {
            let system = |cause| AgentError::System {
                doing: "listing the interfaces",
                cause,
            };
            interfaces = own_interfaces().map_err(system)?;
            interfaces.retain(|ip| Some(*ip) != self.control);
            if interfaces.is_empty() {
                return Err(AgentError::NoInterface);
            }
        }
        if let Some((first, others)) = interfaces.split_first() {
            (host.address, host.interfaces) = (*first, others.to_vec());
        }
        host.control = self.control.or(host.control);
        if let Some(control) = host.control
            && (control == host.address || host.interfaces.contains(&control))
        {
            return Err(AgentError::ControlIsInterface { control });
        }
        host.port = self.port.unwrap_or(host.port);
        host.slots = self.slots.unwrap_or(host.slots);
        host.name = self.name.as_deref().and_then(Word::new).or(host.name);
        Ok(host)
    }
}

fn cores() -> u32 {
    let cores = std::thread::available_parallelism();
    cores.map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_have_a_port_or_the_usual_one_and_names_fit_into_a_hosts_file() {
        assert_eq!(seed("10.0.0.1"), Ok("10.0.0.1:7411".parse().unwrap()));
        assert_eq!(seed("[fd00::1]:9"), Ok("[fd00::1]:9".parse().unwrap()));
        assert_eq!(seed("fd00::1"), Ok("[fd00::1]:7411".parse().unwrap()));
        assert!(seed("node1").is_err());
        let range = |min, max| Ok((Duration::from_millis(min), Duration::from_millis(max)));
        assert_eq!(seconds("180-300"), range(180_000, 300_000));
        assert_eq!(seconds("0.5"), range(500, 500));
        for wrong in ["", "0", "5-", "5-4", "1-99999", "nan", "-3"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert!(name("a b").is_err() && name("").is_err() && name("lab-2").is_ok());
    }
}

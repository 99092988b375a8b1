//! The load of nodes as the agent of this node knows it, and the order in which `dipole run` uses
//! them.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use dipole_naming::environment::default_runtime_dir;
use dipole_node::NodeId;
use dipole_node::hosts::Host;
use serde::{Deserialize, Serialize};

/// How long the agent may take to send its status.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Name of the socket in the directory of a node where its agent serves its status.
pub const AGENT_SOCKET: &str = "agent.sock";

/// Load and size of a node: a row of the table that agents exchange.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeLoad {
    /// The node.
    pub node: NodeId,
    /// Load average of five minutes.
    pub load: f64,
    /// Number of cores.
    pub cores: u32,
    /// Speed of a core in Mflop/s.
    pub speed: u32,
    /// Total memory in MiB.
    pub memory_mib: u32,
    /// Memory available without swapping, in MiB.
    pub available_mib: u32,
    /// Users who are logged in.
    pub users: u32,
    /// Running jobs that the node's agents have started.
    pub jobs: u32,
    /// Seconds since the measurement.
    pub age_s: f64,
}

impl NodeLoad {
    /// Number of cores without work; negative if more processes want to run than there are cores.
    fn idle_cores(&self) -> f64 {
        f64::from(self.cores) - self.load
    }

    /// Speed of the idle cores in Mflop/s: (n - L) * s for n cores of speed s and load L.
    #[must_use]
    pub fn idle_speed(&self) -> f64 {
        self.idle_cores().max(0.0) * f64::from(self.speed)
    }

    /// Priority of the node for further work, by which nodes are sorted: its idle speed. If it has
    /// more work than cores, minus the time that it takes for the excess.
    #[must_use]
    pub fn priority(&self) -> f64 {
        match self.idle_cores() {
            idle if idle < 0.0 => idle / f64::from(self.speed.max(1)),
            _ => self.idle_speed(),
        }
    }
}

/// The part of the agent's status that is read here.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    load: Vec<NodeLoad>,
}

/// Requests the table from the agent of a node of this machine.
///
/// # Errors
/// The agent does not run, or does not reply within two seconds.
pub fn request(node: NodeId) -> io::Result<Vec<NodeLoad>> {
    request_in(&default_runtime_dir(), node)
}

/// As [`request`], with the runtime directory of the node.
pub(crate) fn request_in(runtime_dir: &Path, node: NodeId) -> io::Result<Vec<NodeLoad>> {
    let folder = runtime_dir.join(format!("node-{node}"));
    let mut stream = UnixStream::connect(folder.join(AGENT_SOCKET))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let status: Status = serde_json::from_str(&text)?;
    Ok(status.load)
}

/// Sorts hosts that the agent knows by their idle speed, best first. Hosts of unknown load come
/// last; without an agent the order stays.
pub(crate) fn best_first(mut hosts: Vec<Host>, own: Option<NodeId>) -> Vec<Host> {
    match request(own.unwrap_or(NodeId(1))) {
        Ok(loads) => sort(&mut hosts, &loads),
        Err(cause) => tracing::info!(%cause, "the agent did not report the load of nodes"),
    }
    hosts
}

fn sort(hosts: &mut [Host], loads: &[NodeLoad]) {
    let priority = |host: &Host| {
        let load = loads.iter().find(|load| load.node == host.node);
        load.map_or(f64::NEG_INFINITY, NodeLoad::priority)
    };
    hosts.sort_by(|one, other| priority(other).total_cmp(&priority(one)));
}

/// The fresh row of a node with these cores, load average and speed of a core.
#[cfg(test)]
pub(crate) fn row(node: u32, cores: u32, load: f64, speed: u32) -> NodeLoad {
    NodeLoad {
        node: NodeId(node),
        load,
        cores,
        speed,
        memory_mib: 1,
        available_mib: 1,
        users: 0,
        jobs: 0,
        age_s: 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::hosts::Hosts;

    #[test]
    fn hosts_with_more_idle_speed_come_first_and_those_of_unknown_load_last() {
        let text: String = (1..=6)
            .map(|node| format!("{node} 10.0.0.{node}\n"))
            .collect();
        let hosts = Hosts::parse(&text).unwrap();
        let mut hosts: Vec<Host> = hosts.iter().cloned().collect();
        let loads = [
            row(1, 4, 3.0, 1000),
            row(3, 2, 0.0, 1000),
            row(4, 2, 5.0, 1000),
            row(6, 2, 5.0, 9000),
            row(5, 2, 0.0, 1000),
        ];
        sort(&mut hosts, &loads);
        let order: Vec<u32> = hosts.iter().map(|host| host.node.0).collect();
        assert_eq!(order, [3, 5, 1, 6, 4, 2]);
    }
}

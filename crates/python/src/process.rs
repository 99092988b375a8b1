//! The node of this process: opened from the environment by the first endpoint, closed by
//! `finalize`, which Python calls at exit.

use std::net::IpAddr;
use std::time::Duration;

use dipole_node::hosts::Host;
use dipole_node::{Config, Node, NodeId};
use pyo3::prelude::*;

use crate::error::raise;
use crate::per_process::PerProcess;
use crate::waiting::Patience;

struct OpenNode {
    node: Node,
    linger: Duration,
    /// A forked child opens its own.
    pid: u32,
}

static NODE: PerProcess<Option<OpenNode>> = PerProcess::new();

/// The node, opened if it is not open yet.
pub(crate) fn node(py: Python<'_>) -> PyResult<Node> {
    let pid = std::process::id();
    let open = || -> Result<Node, PyErr> {
        let mut known = NODE.lock();
        if let Some(open) = known.as_ref().filter(|open| open.pid == pid) {
            return Ok(open.node.clone());
        }
        // In a child that was forked without Python's knowledge, the parent's node must not be
        // closed.
        std::mem::forget(known.take());
        dipole_node::log::init_library("dipole");
        let config = Config::from_env().map_err(|fault| Python::attach(|py| raise(py, &fault)))?;
        let linger = config.linger;
        let opened = Node::open(config).and_then(|node| {
            // Programs compute for a long time between calls.
            node.start_progress()?;
            Ok(node)
        });
        let node = opened.map_err(|fault| Python::attach(|py| raise(py, &fault)))?;
        *known = Some(OpenNode {
            node: node.clone(),
            linger,
            pid,
        });
        Ok(node)
    };
    // Other threads may hold the lock and wait for the interpreter.
    py.detach(open)
}

/// Forgets the parent's node in a forked child.
pub(crate) fn forget() {
    NODE.forget();
}

/// The number of this process's node (NID). Opens the node.
#[pyfunction]
pub(crate) fn node_id(py: Python<'_>) -> PyResult<u32> {
    Ok(node(py)?.id().0)
}

/// Waits until everything sent is acknowledged, for at most `timeout` seconds (5 by default), and
/// closes the node. The next endpoint opens a new one.
#[pyfunction]
#[pyo3(signature = (timeout=None))]
pub(crate) fn finalize(py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
    let patience = Patience::new(timeout)?;
    let closed = py.detach(|| {
        let open = NODE.lock().take();
        match open {
            Some(open) if open.pid == std::process::id() => {
                open.node.close(patience.or(open.linger))
            }
            parents => {
                std::mem::forget(parents);
                Ok(())
            }
        }
    });
    closed.map_err(|fault| raise(py, &fault))
}

/// The IP address of a node, by the hosts file; None if the node is not known.
#[pyfunction]
pub(crate) fn node_address(py: Python<'_>, nid: u32) -> PyResult<Option<String>> {
    let config = py.detach(Config::from_env);
    let config = config.map_err(|fault| raise(py, &fault))?;
    let node = NodeId(nid);
    let address = match config.node == node {
        true => Some(config.bind),
        false => config.hosts.get(node).map(|host| host.address),
    };
    Ok(address.map(|address| address.to_string()))
}

/// The number of the node that has an IP address, by the hosts file; otherwise None. The
/// loopback address belongs to this node.
#[pyfunction]
pub(crate) fn node_at(py: Python<'_>, address: &str) -> PyResult<Option<u32>> {
    let Ok(address) = address.parse::<IpAddr>() else {
        return Ok(None);
    };
    let config = py.detach(Config::from_env);
    let config = config.map_err(|fault| raise(py, &fault))?;
    if address == config.bind || address.is_loopback() || config.interfaces.contains(&address) {
        return Ok(Some(config.node.0));
    }
    let has = |host: &&Host| host.address == address || host.interfaces.contains(&address);
    Ok(config.hosts.iter().find(has).map(|host| host.node.0))
}

//! The node of this process: opened from the environment by the first endpoint, closed by
//! `finalize`, which Python calls at exit.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dipole_node::{Config, Node};
use pyo3::prelude::*;

use crate::error::raise;
use crate::waiting::Patience;

struct OpenNode {
    node: Node,
    linger: Duration,
    /// A forked child opens its own.
    pid: u32,
}

static NODE: Mutex<Option<OpenNode>> = Mutex::new(None);

/// The node, opened if it is not open yet.
pub(crate) fn node(py: Python<'_>) -> PyResult<Node> {
    let pid = std::process::id();
    let open = || -> Result<Node, PyErr> {
        let mut known = NODE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = known.as_ref().filter(|open| open.pid == pid) {
            return Ok(open.node.clone());
        }
        // In a forked child the parent's node must not be closed here.
        std::mem::forget(known.take());
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
        let open = NODE.lock().unwrap_or_else(PoisonError::into_inner).take();
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

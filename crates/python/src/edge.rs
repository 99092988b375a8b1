//! Edges: connections from one endpoint to another, and access to the peer's regions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dipole_node::{Edge as NodeEdge, RegionKey, SendError};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::error::{raise, raise_as};
use crate::names;
use crate::waiting::{Patience, wait, wait_once};

/// How long operations on a peer's memory wait for its answer if no time is given.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// An edge from an endpoint to another one; made by `Endpoint.edge()`.
#[pyclass(module = "dipole", frozen)]
pub(crate) struct Edge(Mutex<Option<Arc<NodeEdge>>>);

impl Edge {
    pub(crate) fn new(edge: NodeEdge) -> Edge {
        Edge(Mutex::new(Some(Arc::new(edge))))
    }

    fn get(&self, py: Python<'_>) -> PyResult<Arc<NodeEdge>> {
        let edge = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || raise_as(py, "Closed", "the edge is closed".to_owned());
        edge.clone().ok_or_else(closed)
    }
}

#[pymethods]
impl Edge {
    /// The address of the other end.
    #[getter]
    fn target<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        names::address(py, self.get(py)?.target())
    }

    /// Sends the bytes of a buffer. Waits while there is no room; with `timeout=0` it raises
    /// WouldBlock instead.
    #[pyo3(name = "Send", signature = (buffer, timeout=None))]
    fn send_buffer(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (edge, patience) = (self.get(py)?, Patience::new(timeout)?);
        let buffer = Buffer::readable(buffer)?;
        let bytes = buffer.bytes();
        if patience.is_zero() {
            return py
                .detach(|| edge.try_send(bytes))
                .map_err(|fault| raise(py, &fault));
        }
        wait(py, patience, |left| edge.send_timeout(bytes, left))
    }

    /// Writes bytes to offset `offset` of a region of the peer. They are in place once `flush()`
    /// has returned. `notify`, a number, additionally sends the peer's endpoint an empty message
    /// with that `notice` when the bytes are there.
    #[pyo3(name = "Put", signature = (key, offset, buffer, timeout=None, *, notify=None))]
    fn put(
        &self,
        py: Python<'_>,
        key: u64,
        offset: u64,
        buffer: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        notify: Option<u64>,
    ) -> PyResult<()> {
        let (edge, patience) = (self.get(py)?, Patience::new(timeout)?);
        let buffer = Buffer::readable(buffer)?;
        let bytes = buffer.bytes();
        wait(py, patience, |left| {
            edge.put_timeout(RegionKey(key), offset, bytes, notify, left)
        })
    }

    /// Fills a writable buffer from offset `offset` of a region of the peer.
    #[pyo3(name = "Get", signature = (key, offset, buffer, timeout=None))]
    fn get_buffer(
        &self,
        py: Python<'_>,
        key: u64,
        offset: u64,
        buffer: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (edge, patience) = (self.get(py)?, Patience::new(timeout)?);
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        let timeout = patience.or(ANSWER_TIMEOUT);
        let got = wait_once(py, || edge.get(RegionKey(key), offset, bytes, timeout))?;
        got.map_err(|fault| raise(py, &fault))
    }

    /// Atomically adds to a 64-bit word of a region of the peer, wrapping around; returns the
    /// previous value.
    #[pyo3(signature = (key, offset, value, timeout=None))]
    fn fetch_add(
        &self,
        py: Python<'_>,
        key: u64,
        offset: u64,
        value: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let (edge, patience) = (self.get(py)?, Patience::new(timeout)?);
        let timeout = patience.or(ANSWER_TIMEOUT);
        let word = wait_once(py, || {
            edge.fetch_add(RegionKey(key), offset, value, timeout)
        })?;
        word.map_err(|fault| raise(py, &fault))
    }

    /// Atomically replaces a 64-bit word of a region of the peer by `new` if it equals `expected`;
    /// returns the previous value.
    #[pyo3(signature = (key, offset, expected, new, timeout=None))]
    fn compare_swap(
        &self,
        py: Python<'_>,
        key: u64,
        offset: u64,
        expected: u64,
        new: u64,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let (edge, patience) = (self.get(py)?, Patience::new(timeout)?);
        let timeout = patience.or(ANSWER_TIMEOUT);
        let word = wait_once(py, || {
            edge.compare_swap(RegionKey(key), offset, expected, new, timeout)
        })?;
        word.map_err(|fault| raise(py, &fault))
    }

    /// Waits until everything sent on this edge is at the peer, and puts are in place.
    #[pyo3(signature = (timeout=None))]
    fn flush(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let (edge, patience) = (self.get(py)?, Patience::new(timeout)?);
        wait(py, patience, |left| edge.flush(left))
    }

    /// Raises PeerGone if the peer's process is gone. Never waits; probes the peer, so that its end is
    /// noticed also by a program that only waits for its messages. Call it again now and then.
    fn watch(&self, py: Python<'_>) -> PyResult<()> {
        let edge = self.get(py)?;
        match py.detach(|| edge.watch()) {
            // It still connects.
            Ok(()) | Err(SendError::Full { .. }) => Ok(()),
            Err(fault) => Err(raise(py, &fault)),
        }
    }

    /// Closes the edge; what was sent still arrives.
    fn close(&self, py: Python<'_>) {
        let edge = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(edge));
    }
}

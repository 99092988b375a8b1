//! Endpoints.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dipole_node::{Address, Endpoint as NodeEndpoint, EndpointId, OverflowPolicy, ReceiveError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::edge::Edge;
use crate::error::{raise, raise_as};
use crate::message::Message;
use crate::names::{self, AddressPair};
use crate::process;
use crate::region::Region;
use crate::waiting::{Patience, wait};

/// The native part of `dipole.Endpoint`.
#[pyclass(module = "dipole", subclass, frozen)]
pub(crate) struct Endpoint {
    endpoint: Option<NodeEndpoint>,
    exported: Mutex<Option<OwnedFd>>,
}

impl Endpoint {
    fn get(&self) -> &NodeEndpoint {
        // Present until `drop`.
        self.endpoint.as_ref().expect("not dropped")
    }

    /// Receives without waiting, or within the given time.
    fn receive<T: Send>(
        &self,
        py: Python<'_>,
        patience: Patience,
        mut receive: impl FnMut(&NodeEndpoint, Duration) -> Result<T, ReceiveError> + Send,
    ) -> PyResult<T> {
        let endpoint = self.get();
        if !patience.is_zero() {
            return wait(py, patience, |left| receive(endpoint, left));
        }
        match py.detach(|| receive(endpoint, Duration::ZERO)) {
            Ok(received) => Ok(received),
            Err(ReceiveError::TimedOut { endpoint, .. }) => {
                let text = format!("no message is waiting at endpoint {endpoint}");
                Err(raise_as(py, "WouldBlock", text))
            }
            Err(fault) => Err(raise(py, &fault)),
        }
    }
}

#[pymethods]
impl Endpoint {
    #[new]
    #[pyo3(signature = (dpid=None))]
    fn new(py: Python<'_>, dpid: Option<u32>) -> PyResult<Endpoint> {
        let node = process::node(py)?;
        let id = dpid.map_or(EndpointId::ANY, EndpointId);
        let opened = py.detach(|| node.endpoint(id));
        Ok(Endpoint {
            endpoint: Some(opened.map_err(|fault| raise(py, &fault))?),
            exported: Mutex::new(None),
        })
    }

    /// Its address, by which others send to it.
    #[getter]
    fn address<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        names::address(py, self.get().address())
    }

    /// True after `close()`.
    #[getter]
    fn closed(&self) -> bool {
        self.get().is_ended()
    }

    /// Adds a target: every message goes to each target. Waits until the target exists.
    fn target(&self, py: Python<'_>, to: AddressPair) -> PyResult<()> {
        let endpoint = self.get();
        // Its own time-out is that of DIPOLE_CONNECT_TIMEOUT_MS.
        wait(py, Patience::new(None)?, |_| endpoint.target(to.into()))
    }

    /// Removes a target; the others stay.
    fn untarget(&self, py: Python<'_>, to: AddressPair) {
        py.detach(|| self.get().untarget(to.into()));
    }

    /// Sets what happens while a target has no room for a message: "wait" (the default),
    /// "drop-newest" or "drop-oldest" (with a queue of `messages`), or "keep-latest".
    #[pyo3(signature = (to, policy, messages=1024))]
    fn target_policy(
        &self,
        py: Python<'_>,
        to: AddressPair,
        policy: &str,
        messages: u16,
    ) -> PyResult<()> {
        let messages = usize::from(messages);
        let policy = match policy {
            "wait" => OverflowPolicy::Wait,
            "drop-newest" => OverflowPolicy::DropNewest { messages },
            "drop-oldest" => OverflowPolicy::DropOldest { messages },
            "keep-latest" => OverflowPolicy::KeepLatest,
            other => {
                return Err(PyValueError::new_err(format!(
                    "`{other}` is not a policy: use wait, drop-newest, drop-oldest or keep-latest"
                )));
            }
        };
        let set = py.detach(|| self.get().set_overflow_policy(to.into(), policy));
        set.map_err(|fault| raise(py, &fault))
    }

    /// Number of messages that a target did not get because of its policy.
    fn target_dropped(&self, py: Python<'_>, to: AddressPair) -> PyResult<u64> {
        let to = Address::from(to);
        self.get().dropped_messages(to).ok_or_else(|| {
            let text = format!("endpoint {} has no target {to}", self.get().address());
            raise_as(py, "NoTarget", text)
        })
    }

    /// Sends the bytes of a buffer to all targets, or to the address `to`. The bytes are copied or
    /// sent when this returns. Waits while there is no room; with `timeout=0` it raises WouldBlock
    /// instead. With `more=True` the message may wait for the next one, to share its packet.
    #[pyo3(name = "Send", signature = (buffer, to=None, timeout=None, *, more=false))]
    fn send_buffer(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        to: Option<AddressPair>,
        timeout: Option<f64>,
        more: bool,
    ) -> PyResult<()> {
        let (endpoint, patience) = (self.get(), Patience::new(timeout)?);
        let buffer = Buffer::readable(buffer)?;
        let bytes = buffer.bytes();
        if patience.is_zero() {
            let at_once = || match (to, more) {
                (None, false) => endpoint.try_send(bytes),
                (None, true) => endpoint.send_more_timeout(bytes, Duration::ZERO),
                (Some(to), _) => endpoint.try_send_to(to.into(), bytes),
            };
            return py.detach(at_once).map_err(|fault| raise(py, &fault));
        }
        wait(py, patience, |left| match (to, more) {
            (None, false) => endpoint.send_timeout(bytes, left),
            (None, true) => endpoint.send_more_timeout(bytes, left),
            (Some(to), _) => endpoint.send_to_timeout(to.into(), bytes, left),
        })
    }

    /// Sends a datagram to all targets: it arrives once or not at all, and never waits.
    #[pyo3(name = "SendUnreliable")]
    fn send_unreliable(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let buffer = Buffer::readable(buffer)?;
        let bytes = buffer.bytes();
        let sent = py.detach(|| self.get().send_unreliable(bytes));
        sent.map_err(|fault| raise(py, &fault))
    }

    /// Answers a message: sends to the endpoint it came from. Never waits.
    #[pyo3(name = "Reply")]
    fn reply(
        &self,
        py: Python<'_>,
        message: PyRef<'_, Message>,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (buffer, message) = (Buffer::readable(buffer)?, message.received()?);
        let bytes = buffer.bytes();
        let sent = py.detach(|| self.get().reply(message, bytes));
        sent.map_err(|fault| raise(py, &fault))
    }

    /// Waits for the next message, at most `timeout` seconds; with `timeout=0` it raises WouldBlock
    /// instead of waiting.
    #[pyo3(name = "Recv", signature = (timeout=None))]
    fn receive_message(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        let patience = Patience::new(timeout)?;
        let received = self.receive(py, patience, NodeEndpoint::receive_timeout)?;
        Ok(Message::new(received))
    }

    /// Waits for a message and receives all that are waiting, at most `count`, oldest first.
    #[pyo3(name = "RecvMany", signature = (count=1024, timeout=None))]
    fn receive_many(
        &self,
        py: Python<'_>,
        count: usize,
        timeout: Option<f64>,
    ) -> PyResult<Vec<Message>> {
        let patience = Patience::new(timeout)?;
        let received = self.receive(py, patience, |endpoint, left| {
            let mut messages = Vec::new();
            endpoint.receive_many_timeout(&mut messages, count, left)?;
            Ok(messages)
        })?;
        Ok(received.into_iter().map(Message::new).collect())
    }

    /// Receives the next message into a writable buffer; returns its length and its sender. If the
    /// buffer is too short it raises TooLong, and the next call can receive the message.
    #[pyo3(name = "RecvInto", signature = (buffer, timeout=None))]
    fn receive_into<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<(usize, Bound<'py, PyAny>)> {
        let patience = Patience::new(timeout)?;
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        let (length, source) = self.receive(py, patience, |endpoint, left| {
            endpoint.receive_into_timeout(bytes, left)
        })?;
        Ok((length, names::address(py, source)?))
    }

    /// Opens an edge to an endpoint. It connects in the background.
    fn edge(&self, py: Python<'_>, to: AddressPair) -> PyResult<Edge> {
        let opened = py.detach(|| self.get().edge(to.into()));
        Ok(Edge::new(opened.map_err(|fault| raise(py, &fault))?))
    }

    /// Lets peers access a buffer, for instance a NumPy array or a bytearray, through edges to this
    /// endpoint. `rights` holds any of "get", "put" and "update".
    #[pyo3(signature = (memory, rights=vec!["get".to_owned(), "put".to_owned(), "update".to_owned()]))]
    fn region(
        &self,
        py: Python<'_>,
        memory: Bound<'_, PyAny>,
        rights: Vec<String>,
    ) -> PyResult<Region> {
        Region::open(py, self.get(), &memory, &rights)
    }

    /// Waits until everything sent to the targets has been acknowledged by their processes.
    #[pyo3(signature = (timeout=None))]
    fn drain(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let (endpoint, patience) = (self.get(), Patience::new(timeout)?);
        wait(py, patience, |left| endpoint.drain(left))
    }

    /// A descriptor that is readable while a message is waiting, for select, poll and event loops.
    /// It belongs to the endpoint.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let mut exported = self.exported.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(descriptor) = &*exported {
            return Ok(descriptor.as_raw_fd());
        }
        let descriptor = self.get().export().map_err(|fault| raise(py, &fault))?;
        Ok(exported.insert(descriptor).as_raw_fd())
    }

    /// Closes the endpoint: what was sent still arrives, unread messages are dropped.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.get().end());
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let (endpoint, exported) = (self.endpoint.take(), &mut self.exported);
        // It may wait for messages to leave.
        Python::attach(|py| {
            py.detach(|| {
                drop(endpoint);
                drop(exported.get_mut().map(Option::take));
            });
        });
    }
}

//! Active ports: endpoints whose messages are passed to a Python function.

use std::sync::{Mutex, PoisonError};

use dipole_node::{ActivePort, EndpointId, Message as Received, PortContext, SendError};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::error::raise;
use crate::message::Message;
use crate::process;
use crate::{error, names};

/// The native part of `dipole.Port`.
#[pyclass(module = "dipole", subclass, frozen)]
pub(crate) struct Port(Mutex<Option<ActivePort>>);

/// Passes a message to the function and sends its result, if there is one, to the sender.
fn handle(handler: &Py<PyAny>, context: &PortContext, received: Received) {
    // The reply needs the sender, but the message itself belongs to Python from now on.
    let handled = Python::attach(|py| -> PyResult<()> {
        let message = Bound::new(py, Message::new(received))?;
        let answer = handler.bind(py).call1((&message,))?;
        if answer.is_none() {
            return Ok(());
        }
        let (buffer, message) = (Buffer::readable(&answer)?, message.borrow());
        let (bytes, received) = (buffer.bytes(), message.received()?);
        match py.detach(|| context.reply(received, bytes)) {
            // The caller no longer waits for it.
            Err(SendError::PeerGone { .. } | SendError::Refused { .. }) => Ok(()),
            replied => replied.map_err(|fault| raise(py, &fault)),
        }
    });
    if let Err(raised) = handled {
        Python::attach(|py| raised.write_unraisable(py, Some(handler.bind(py))));
    }
}

#[pymethods]
impl Port {
    #[new]
    #[pyo3(signature = (dpid, handler))]
    fn new(py: Python<'_>, dpid: Option<u32>, handler: Py<PyAny>) -> PyResult<Port> {
        let node = process::node(py)?;
        let id = dpid.map_or(EndpointId::ANY, EndpointId);
        let handler = move |context: &PortContext, message| handle(&handler, context, message);
        let opened = py.detach(|| node.open_port(id, handler));
        let port = opened.map_err(|fault| raise(py, &fault))?;
        Ok(Port(Mutex::new(Some(port))))
    }

    /// Its address, by which others send to it.
    #[getter]
    fn address<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let port = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*port {
            Some(port) => names::address(py, port.address()),
            None => Err(error::raise_as(
                py,
                "Closed",
                "the port is closed".to_owned(),
            )),
        }
    }

    /// Number of messages that have been handled.
    #[getter]
    fn handled(&self) -> u64 {
        let port = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        port.as_ref().map_or(0, ActivePort::handled)
    }

    /// Closes the port, after its function has returned. The answer of that call may be lost.
    fn close(&self, py: Python<'_>) {
        let port = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(port));
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let port = self.0.get_mut().ok().and_then(Option::take);
        // Its function may be running and need the interpreter.
        Python::attach(|py| py.detach(|| drop(port)));
    }
}

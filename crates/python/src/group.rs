//! Groups: collective calls that survive lost members.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipole_group::{Combine, Group as Members, GroupError, Number, Order};
use dipole_node::Address;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::error::raise;
use crate::names::AddressPair;
use crate::process;
use crate::waiting::{Patience, wait_once};

/// How long a call waits for the other members if no time is given.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(3600);

/// The native part of `dipole.Group`. All members make the same calls in the same order.
#[pyclass(module = "dipole", subclass, frozen)]
pub(crate) struct Group {
    members: Mutex<Option<Members>>,
    #[pyo3(get)]
    rank: usize,
    #[pyo3(get)]
    size: usize,
}

/// Element-wise combination of an array's elements.
type Merge = Box<dyn Fn(&mut [u8], &[u8]) + Send>;

/// The order and the combination for `op` and the elements' kind: "f", "i" or "u", all of 8 bytes.
fn merge(op: &str, kind: &str) -> PyResult<(Order, Merge)> {
    fn of<T: Number + 'static>(how: Combine) -> (Order, Merge) {
        (how.order::<T>(), Box::new(how.bytes::<T>()))
    }
    let how = match op {
        "sum" => Combine::Sum,
        "min" => Combine::Min,
        "max" => Combine::Max,
        other => {
            return Err(PyValueError::new_err(format!(
                "`{other}` is not an operation: use sum, min or max"
            )));
        }
    };
    match kind {
        "f" => Ok(of::<f64>(how)),
        "i" => Ok(of::<i64>(how)),
        "u" => Ok(of::<u64>(how)),
        other => Err(PyTypeError::new_err(format!(
            "cannot reduce elements of kind `{other}`: use 64-bit integers or floats"
        ))),
    }
}

impl Group {
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        call: impl FnOnce(&mut Members, Duration) -> Result<T, GroupError> + Send,
    ) -> PyResult<T> {
        let timeout = Patience::new(timeout)?.or(DEFAULT_TIMEOUT);
        let done = wait_once(py, || {
            let mut members = lock(&self.members);
            members.as_mut().map(|members| call(members, timeout))
        })?;
        match done {
            Some(Ok(value)) => Ok(value),
            Some(Err(fault)) => Err(raise(py, &fault)),
            None => Err(crate::error::raise_as(
                py,
                "Closed",
                "the group is closed".to_owned(),
            )),
        }
    }
}

fn lock(members: &Mutex<Option<Members>>) -> MutexGuard<'_, Option<Members>> {
    members.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl Group {
    #[new]
    #[pyo3(signature = (addresses, rank, timeout=None))]
    fn new(
        py: Python<'_>,
        addresses: Vec<AddressPair>,
        rank: usize,
        timeout: Option<f64>,
    ) -> PyResult<Group> {
        let node = process::node(py)?;
        let timeout = Patience::new(timeout)?.or(DEFAULT_TIMEOUT);
        let addresses: Vec<Address> = addresses.into_iter().map(Address::from).collect();
        let members = dipole_group::Members::first(addresses);
        let joined = wait_once(py, || Members::join(&node, members, rank, timeout))?;
        let members = joined.map_err(|fault| raise(py, &fault))?;
        Ok(Group {
            rank: members.rank(),
            size: members.size(),
            members: Mutex::new(Some(members)),
        })
    }

    /// Returns when all members have called it.
    #[pyo3(signature = (timeout=None))]
    fn barrier(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.call(py, timeout, Members::barrier)
    }

    /// Copies the buffer of member `root` into the buffers of all members, which have its length.
    #[pyo3(name = "Bcast", signature = (buffer, root=0, timeout=None))]
    fn broadcast(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        root: usize,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        self.call(py, timeout, |group, timeout| {
            group.broadcast_slice(root, bytes, timeout)
        })
    }

    /// Distributes the bytes of `root`, of any length.
    #[pyo3(signature = (data, root, timeout=None))]
    fn broadcast_bytes(
        &self,
        py: Python<'_>,
        mut data: Vec<u8>,
        root: usize,
        timeout: Option<f64>,
    ) -> PyResult<Vec<u8>> {
        self.call(py, timeout, |group, timeout| {
            group.broadcast(root, &mut data, timeout)?;
            Ok(data)
        })
    }

    /// Combines the arrays of all members element by element, in place. With a `root`, only that
    /// member's array changes.
    #[pyo3(signature = (buffer, op, kind, root=None, timeout=None))]
    fn reduce_numbers(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        op: &str,
        kind: &str,
        root: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (order, merge) = merge(op, kind)?;
        let mut buffer = Buffer::writable(buffer)?;
        let bytes = buffer.bytes_mut();
        if !bytes.len().is_multiple_of(8) {
            return Err(PyTypeError::new_err("elements must have 8 bytes"));
        }
        self.call(py, timeout, move |group, timeout| match root {
            Some(root) => group.reduce_in(order, root, bytes, merge, timeout),
            None => group.allreduce(bytes, merge, timeout),
        })
    }

    /// Leaves the group.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(lock(&self.members).take()));
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let members = self.members.get_mut().ok().and_then(Option::take);
        Python::attach(|py| py.detach(|| drop(members)));
    }
}

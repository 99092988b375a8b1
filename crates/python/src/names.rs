//! Addresses as Python sees them: `dipole.Address`, a named tuple of two numbers.

use dipole_node::Address;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// An address given as a pair of numbers.
#[derive(Clone, Copy, Debug, FromPyObject)]
pub(crate) struct AddressPair(u32, u32);

impl From<AddressPair> for Address {
    fn from(AddressPair(node, endpoint): AddressPair) -> Address {
        Address::new(node, endpoint)
    }
}

/// A `dipole.Address`.
pub(crate) fn address<'py>(py: Python<'py>, address: Address) -> PyResult<Bound<'py, PyAny>> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.import(py, "dipole._address", "Address")?;
    class.call1((address.node.0, address.endpoint.0))
}

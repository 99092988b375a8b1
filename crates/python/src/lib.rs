//! The module `dipole._dipole`: Dipole's endpoints, edges, regions, ports and groups for Python.
//!
//! The package `dipole` (folder `dipole/`) adds what is easier to say in Python: pickled messages,
//! asyncio, addresses and exceptions. Buffers are never copied on the way to or from the library.

mod bsp;
mod buffer;
mod channels;
mod distributed;
mod edge;
mod endpoint;
mod error;
mod fork;
mod group;
mod job;
mod message;
mod names;
mod per_process;
mod port;
mod process;
mod region;
mod waiting;

use pyo3::prelude::*;

/// The native part of the package.
#[pymodule]
mod _dipole {
    #[pymodule_export]
    use crate::bsp::Bsp;
    #[pymodule_export]
    use crate::channels::Channels;
    #[pymodule_export]
    use crate::distributed::Layout;
    #[pymodule_export]
    use crate::edge::Edge;
    #[pymodule_export]
    use crate::endpoint::Endpoint;
    #[pymodule_export]
    use crate::fork::forked;
    #[pymodule_export]
    use crate::group::Group;
    #[pymodule_export]
    use crate::job::job;
    #[pymodule_export]
    use crate::message::Message;
    #[pymodule_export]
    use crate::port::Port;
    #[pymodule_export]
    use crate::process::{finalize, node_address, node_at, node_id};
    #[pymodule_export]
    use crate::region::Region;
}

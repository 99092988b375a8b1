//! Regions: memory of this process that peers may read and write.

use std::sync::{Mutex, PoisonError};

use dipole_node::{Endpoint, Region as NodeRegion, RegionMemory, Rights};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::error::raise;

/// Memory that is open to peers; made by `Endpoint.region()`.
#[pyclass(module = "dipole", frozen)]
pub(crate) struct Region {
    open: Mutex<Option<OpenRegion>>,
    key: u64,
    length: usize,
    /// The object whose memory it is.
    #[pyo3(get)]
    memory: Py<PyAny>,
}

struct OpenRegion {
    region: NodeRegion,
    memory: RegionMemory,
    /// Keeps the memory in place until it is revoked.
    _buffer: Buffer,
}

impl Region {
    pub(crate) fn open(
        py: Python<'_>,
        endpoint: &Endpoint,
        memory: &Bound<'_, PyAny>,
        rights: &[String],
    ) -> PyResult<Region> {
        let mut given = Rights::NONE;
        for right in rights {
            match right.as_str() {
                "get" => given.get = true,
                "put" => given.put = true,
                "update" => given.update = true,
                other => {
                    return Err(PyValueError::new_err(format!(
                        "`{other}` is not a right: use get, put or update"
                    )));
                }
            }
        }
        let mut buffer = Buffer::writable(memory)?;
        let length = buffer.bytes_mut().len();
        if length == 0 {
            return Err(PyValueError::new_err("a region needs at least one byte"));
        }
        // SAFETY: the buffer keeps the memory valid until `close` has revoked the region. The
        // program agrees with its peers, as the documentation demands, who accesses which bytes
        // when.
        let memory_of = unsafe { RegionMemory::from_raw(buffer.start(), length) };
        let opened = py.detach(|| endpoint.open_region(memory_of.clone(), given));
        let region = opened.map_err(|fault| raise(py, &fault))?;
        Ok(Region {
            key: region.key().0,
            length,
            memory: memory.clone().unbind(),
            open: Mutex::new(Some(OpenRegion {
                region,
                memory: memory_of,
                _buffer: buffer,
            })),
        })
    }
}

impl OpenRegion {
    fn close(self) {
        drop(self.region);
        self.memory.revoke();
    }
}

#[pymethods]
impl Region {
    /// The number by which peers name the region. A peer that knows it and has an edge to the
    /// endpoint may do what the rights allow.
    #[getter]
    fn key(&self) -> u64 {
        self.key
    }

    fn __len__(&self) -> usize {
        self.length
    }

    /// Ends all access by peers.
    fn close(&self, py: Python<'_>) {
        let open = self
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        py.detach(|| {
            if let Some(open) = open {
                open.close();
            }
        });
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, pyo3::types::PyTuple>) {
        self.close(py);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(open) = self.open.get_mut().ok().and_then(Option::take) {
            open.close();
        }
    }
}

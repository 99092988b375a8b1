//! A received message, in place in the library's memory.

use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

use dipole_node::Message as Received;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::{buffer, names};

/// A received message. `memoryview(message)`, `bytes(message)` and NumPy's `frombuffer` read it in
/// place, without a copy.
///
/// It takes room of its endpoint until it is released: by `release()`, at the end of a `with` block,
/// or when Python frees it. It stays valid after the endpoint is closed.
#[pyclass(module = "dipole")]
pub(crate) struct Message {
    message: Option<Received>,
    /// Views of it that exist.
    views: AtomicUsize,
}

impl Message {
    pub(crate) fn new(message: Received) -> Message {
        Message {
            message: Some(message),
            views: AtomicUsize::new(0),
        }
    }

    /// # Errors
    /// `ValueError` if it was released.
    pub(crate) fn received(&self) -> PyResult<&Received> {
        let released = || pyo3::exceptions::PyValueError::new_err("the message was released");
        self.message.as_ref().ok_or_else(released)
    }
}

#[pymethods]
impl Message {
    /// The address of its sender.
    #[getter]
    fn source<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        names::address(py, self.received()?.source())
    }

    /// The number that `Edge.Put(..., notify=...)` sent; None for other messages.
    #[getter]
    fn notice(&self) -> PyResult<Option<u64>> {
        Ok(self.received()?.notice().map(|notice| notice.value))
    }

    /// Gives its memory back. Raises BufferError while a memoryview or array of it exists.
    fn release(&mut self) -> PyResult<()> {
        match self.views.load(Ordering::Relaxed) {
            0 => {
                self.message = None;
                Ok(())
            }
            views => Err(PyBufferError::new_err(format!(
                "cannot release a message while {views} views of it exist"
            ))),
        }
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.received()?.len())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&mut self, _raised: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.release()
    }

    fn __repr__(&self) -> String {
        match &self.message {
            Some(message) => format!(
                "<dipole.Message of {} bytes from {}>",
                message.len(),
                message.source()
            ),
            None => "<dipole.Message, released>".to_owned(),
        }
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.borrow();
        // SAFETY: the interpreter passes a valid view. The bytes of a message stay in place while it
        // exists, and `release` refuses while views exist.
        unsafe { buffer::export(slf.as_any(), this.received()?, view, flags) }?;
        this.views.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.views.fetch_sub(1, Ordering::Relaxed);
    }
}

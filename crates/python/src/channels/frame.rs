//! Long buffers that have arrived: writable, in place.

use std::ffi::c_int;
use std::ptr::NonNull;

use dipole_node::Message;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::buffer;

/// A received buffer. `memoryview(frame)` and NumPy read and write it in place.
#[pyclass(module = "dipole", frozen)]
pub(crate) struct Frame {
    start: NonNull<u8>,
    length: usize,
    /// Keeps the bytes in place.
    _message: Message,
}

// SAFETY: the bytes belong to the message, and Rust does not access them; Python's threads agree
// who does, as with a bytearray.
unsafe impl Send for Frame {}
// SAFETY: as above.
unsafe impl Sync for Frame {}

impl Frame {
    /// A memoryview of the message; a bytearray with a copy if it has no memory of its own.
    pub(super) fn view<'py>(py: Python<'py>, mut message: Message) -> PyResult<Bound<'py, PyAny>> {
        let Some(bytes) = message.bytes_mut() else {
            return Ok(PyByteArray::new(py, &message).into_any());
        };
        let (length, start) = (bytes.len(), NonNull::from(bytes).cast());
        let frame = Frame {
            start,
            length,
            _message: message,
        };
        let frame = Bound::new(py, frame)?;
        // SAFETY: the frame is alive, and the interpreter attached.
        unsafe {
            let view = ffi::PyMemoryView_FromObject(frame.as_ptr());
            Bound::from_owned_ptr_or_err(py, view)
        }
    }
}

#[pymethods]
impl Frame {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let frame = slf.get();
        // SAFETY: the interpreter passes a valid view. The bytes stay in place while the frame
        // exists, and views keep it.
        unsafe { buffer::export_writable(&slf, (frame.start, frame.length), view, flags) }
    }
}

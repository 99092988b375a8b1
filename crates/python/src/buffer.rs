//! The bytes of Python objects that support the buffer protocol: `bytes`, `bytearray`,
//! `memoryview`, `array`, contiguous NumPy arrays.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::{Bound, PyAny, PyErr, PyResult, Python, ffi};

/// The bytes of an object, which stay where they are until this is dropped.
pub(crate) struct Buffer(Box<ffi::Py_buffer>);

// SAFETY: the object must keep its bytes in place until the buffer is released, whichever thread
// holds it; `drop` attaches to the interpreter.
unsafe impl Send for Buffer {}
// SAFETY: as above; a shared reference only reads address and length.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Borrows an object's bytes for reading.
    pub(crate) fn readable(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        Buffer::new(object, ffi::PyBUF_SIMPLE)
    }

    /// Borrows an object's bytes for writing.
    pub(crate) fn writable(object: &Bound<'_, PyAny>) -> PyResult<Buffer> {
        Buffer::new(object, ffi::PyBUF_WRITABLE)
    }

    fn new(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Buffer> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the object is alive, the interpreter attached, and `view` writable; it has its
        // own allocation, because an exporter may store addresses of its fields in it.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } {
            0 => Ok(Buffer(view)),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    pub(crate) fn length(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }

    /// The address; dangling if there are no bytes.
    pub(crate) fn start(&self) -> std::ptr::NonNull<u8> {
        std::ptr::NonNull::new(self.0.buf.cast()).unwrap_or(std::ptr::NonNull::dangling())
    }

    /// The bytes. Another thread of the program may write to them meanwhile, as in a `write` of
    /// Python's own; then any mixture of old and new bytes is sent.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the exporter promises `len` readable bytes at `buf` until the release.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.length()) }
    }

    /// The bytes for writing.
    ///
    /// # Panics
    /// If the buffer was not borrowed as writable.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert_eq!(self.0.readonly, 0, "a writable buffer");
        // SAFETY: as above, and writable.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.length()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        Python::attach(|_| {
            // SAFETY: filled by `PyObject_GetBuffer` and released once.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
        });
    }
}

/// Fills the view of an object that exports `bytes` for reading.
///
/// # Safety
/// `view` must be as `PyObject_GetBuffer` requires, and `bytes` must stay in place until `owner`'s
/// `__releasebuffer__` is called.
pub(crate) unsafe fn export(
    owner: &Bound<'_, PyAny>,
    bytes: &[u8],
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    let place = (std::ptr::NonNull::from(bytes).cast(), bytes.len());
    // SAFETY: the caller's promise; the view is marked as read-only.
    unsafe { fill(owner, place, true, (view, flags)) }
}

/// Fills the view of an object that exports bytes for reading and writing: their address and their
/// number.
///
/// # Safety
/// As for [`export`]; and the bytes may be written.
pub(crate) unsafe fn export_writable(
    owner: &Bound<'_, PyAny>,
    place: (std::ptr::NonNull<u8>, usize),
    view: *mut ffi::Py_buffer,
    flags: c_int,
) -> PyResult<()> {
    // SAFETY: the caller's promise.
    unsafe { fill(owner, place, false, (view, flags)) }
}

/// # Safety
/// As for [`export`]; and the bytes may be written unless the view is read-only.
unsafe fn fill(
    owner: &Bound<'_, PyAny>,
    (start, length): (std::ptr::NonNull<u8>, usize),
    is_readonly: bool,
    (view, flags): (*mut ffi::Py_buffer, c_int),
) -> PyResult<()> {
    let length = length
        .try_into()
        .map_err(|_| PyBufferError::new_err("the message is too long for a buffer"))?;
    let (start, readonly) = (start.as_ptr().cast(), c_int::from(is_readonly));
    // SAFETY: the caller's promise.
    match unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, length, readonly, flags) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}

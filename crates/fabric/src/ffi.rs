//! The boundary to libfabric: the objects that C has pointers to, and the return values of calls.
//!
//! Every object is an [`Object`]: the part that libfabric's interface defines, followed by our own.
//! C gets a pointer to it and passes it to every call. A panic becomes -`FI_EIO`.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Once;

use crate::abi::errno::{FI_EAGAIN, FI_EINVAL, FI_EIO, FI_ENOSYS};
use crate::abi::fabric::{Fid, Ops};

/// An error number, which calls return negated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) i32);

pub(crate) const AGAIN: Failure = Failure(FI_EAGAIN);

/// The return type of a call.
pub(crate) trait Answer {
    fn from_number(number: i32) -> Self;
}

impl Answer for c_int {
    fn from_number(number: i32) -> c_int {
        number
    }
}

impl Answer for isize {
    fn from_number(number: i32) -> isize {
        number as isize
    }
}

/// Runs the body of a call.
#[inline]
pub(crate) fn call<A: Answer>(body: impl FnOnce() -> Result<A, Failure>) -> A {
    // Bodies share data only behind locks that recover from a panic.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(Failure(number))) => A::from_number(-number),
        Err(_) => A::from_number(-FI_EIO),
    }
}

/// A call that is not offered. The first use of each is logged (`DIPOLE_LOG`).
macro_rules! missing {
    ($name:literal) => {{
        unsafe extern "C" fn refuse() -> isize {
            static LOGGED: std::sync::Once = std::sync::Once::new();
            $crate::ffi::refuse($name, &LOGGED)
        }
        refuse
    }};
}
pub(crate) use missing;

/// Logs the first use of a call that is not offered.
#[cold]
pub(crate) fn refuse(name: &str, logged: &Once) -> isize {
    call(|| {
        logged.call_once(|| {
            tracing::info!("a program called {name}, which this provider does not offer")
        });
        Err(Failure(FI_ENOSYS))
    })
}

/// An object that C has a pointer to.
#[repr(C)]
pub(crate) struct Object<F, T> {
    /// The first member, so that a pointer to it is a pointer to the object.
    fid: F,
    inner: T,
}

/// Passes an object to C, which owns it until it closes it.
///
/// # Safety
/// `out` is null or valid for writes.
pub(crate) unsafe fn export<F, T>(out: *mut *mut F, fid: F, inner: T) -> Result<c_int, Failure> {
    if out.is_null() {
        return Err(Failure(FI_EINVAL));
    }
    let object = Box::into_raw(Box::new(Object { fid, inner }));
    // SAFETY: not null; valid for writes by contract.
    unsafe { out.write(object.cast()) };
    Ok(0)
}

/// The object behind a pointer from C.
///
/// # Safety
/// `fid` is null or came from [`export`] with the same types, and has not been reclaimed.
#[inline]
pub(crate) unsafe fn object<'a, F, T>(fid: *const F) -> Result<&'a T, Failure> {
    if fid.is_null() {
        return Err(Failure(FI_EINVAL));
    }
    // SAFETY: points to an object by contract; there are no mutable references to its inner part.
    Ok(unsafe { &(*fid.cast::<Object<F, T>>()).inner })
}

/// Takes back an object that C closes.
///
/// # Safety
/// The requirements of [`object`]; the pointer is not used afterwards.
pub(crate) unsafe fn reclaim<F, T>(fid: *mut Fid) -> Result<T, Failure> {
    if fid.is_null() {
        return Err(Failure(FI_EINVAL));
    }
    // SAFETY: `export` created it from a box of this type, and C does not use it again.
    let object = unsafe { Box::from_raw(fid.cast::<Object<F, T>>()) };
    Ok(object.inner)
}

/// The class of an object.
///
/// # Safety
/// `fid` is null or points to an object of this provider.
pub(crate) unsafe fn class(fid: *const Fid) -> Result<usize, Failure> {
    // SAFETY: every object begins with its `Fid`.
    let fid = unsafe { fid.as_ref() }.ok_or(Failure(FI_EINVAL))?;
    Ok(fid.class)
}

/// The first member of an object.
pub(crate) fn fid(class: usize, context: *mut c_void, ops: &'static Ops) -> Fid {
    Fid {
        class,
        context,
        ops,
    }
}

/// The generic operations of an object that can only be closed.
pub(crate) const fn ops(close: unsafe extern "C" fn(*mut Fid) -> c_int) -> Ops {
    Ops {
        size: size_of::<Ops>(),
        close,
        bind: no_bind,
        control: no_control,
        ops_open: missing!("ops_open"),
        tostr: missing!("tostr"),
        ops_set: missing!("ops_set"),
    }
}

unsafe extern "C" fn no_bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    -FI_ENOSYS
}

unsafe extern "C" fn no_control(_: *mut Fid, _: c_int, _: *mut c_void) -> c_int {
    -FI_ENOSYS
}

/// A value that C passed by pointer; `None` if the pointer is null.
///
/// # Safety
/// `buffer` is null or points to a valid value that is not written to as long as the result is used.
pub(crate) unsafe fn borrow<'a, T>(buffer: *const T) -> Option<&'a T> {
    // SAFETY: the caller's contract is the same.
    unsafe { buffer.as_ref() }
}

/// Copies bytes to C as far as they fit and stores their number; true if all fit.
///
/// # Safety
/// `length` is null or valid; `buffer` is null or valid for writes of as many bytes as `length` states.
pub(crate) unsafe fn copy_out(
    bytes: &[u8],
    buffer: *mut c_void,
    length: *mut usize,
) -> Result<bool, Failure> {
    if length.is_null() {
        return Err(Failure(FI_EINVAL));
    }
    // SAFETY: not null, valid by contract.
    let room = unsafe { length.replace(bytes.len()) };
    if !buffer.is_null() {
        let count = bytes.len().min(room);
        // SAFETY: valid for writes of `room` bytes by contract.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast::<u8>(), count) };
    }
    Ok(!buffer.is_null() && room >= bytes.len())
}

/// Bytes at `index` of an array of records.
///
/// # Safety
/// `array` points to more than `index` records of `N` bytes.
pub(crate) unsafe fn record<const N: usize>(array: *const c_void, index: usize) -> [u8; N] {
    // SAFETY: within the array by contract; bytes need no alignment.
    unsafe { array.cast::<[u8; N]>().add(index).read() }
}

/// Writes an element of an array of C, unless the array is null.
///
/// # Safety
/// `array` is null or valid for writes of more than `index` elements.
pub(crate) unsafe fn write_at<T>(array: *mut T, index: usize, value: T) {
    if !array.is_null() {
        // SAFETY: within the array by contract. C need not align its entries.
        unsafe { array.add(index).write_unaligned(value) };
    }
}

/// Reads an element of an array of C.
///
/// # Safety
/// `array` is valid for reads of more than `index` elements.
pub(crate) unsafe fn read_at<T: Copy>(array: *const T, index: usize) -> T {
    // SAFETY: within the array by contract.
    unsafe { array.add(index).read_unaligned() }
}

/// The text for an error number.
pub(crate) fn strerror(number: c_int) -> *const c_char {
    // SAFETY: any number is allowed; the text is the C library's.
    unsafe { libc::strerror(number) }
}

//! The boundary to C, which every call passes through.
//!
//! [`call`] turns a failure into -1, `errno` and a text, and a panic into a failure. The other
//! functions check arguments before anything is done with them. What cannot be checked (that memory
//! is mapped and as long as stated) is the caller's responsibility.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::slice;

use dipole_node::{Bytes, RegionMemory};

use crate::failure::Failure;

/// The return type of a call.
pub(crate) trait ReturnValue {
    const FAILED: Self;
}

impl ReturnValue for c_int {
    const FAILED: c_int = -1;
}

impl ReturnValue for isize {
    const FAILED: isize = -1;
}

/// The last failure of a thread. The text is formatted on demand.
struct Last {
    call: &'static str,
    failure: Option<Failure>,
    text: Option<CString>,
}

thread_local! {
    static LAST: RefCell<Last> = const {
        RefCell::new(Last { call: "", failure: None, text: None })
    };
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}
/// The value in `pthread.h` of every C library on Linux.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// Disables cancellation of the thread, which would unwind through a lock.
struct CancelDisabled(c_int);

impl CancelDisabled {
    #[inline]
    fn begin() -> CancelDisabled {
        let mut before = 0;
        // SAFETY: changes only this thread's state, and writes the previous one to `before`.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut before) };
        CancelDisabled(before)
    }
}

impl Drop for CancelDisabled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as above; the previous state is not requested.
        unsafe { pthread_setcancelstate(self.0, ptr::null_mut()) };
    }
}

/// Runs the body of the function `name`.
#[inline]
pub(crate) fn call<A: ReturnValue>(
    name: &'static str,
    body: impl FnOnce() -> Result<A, Failure>,
) -> A {
    let _cancel_disabled = CancelDisabled::begin();
    // State that the body shares is behind locks that recover from a panic, so no half-finished
    // change is visible afterwards.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(answer)) => answer,
        Ok(Err(failure)) => fail(name, failure),
        Err(payload) => {
            let text = payload
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| payload.downcast_ref::<String>().cloned());
            fail(name, Failure::Panic(text.unwrap_or_default()))
        }
    }
}

/// Records a failure of the function `name` for `dp_error`; returns its error number.
#[cold]
pub(crate) fn record_failure(name: &'static str, failure: Failure) -> c_int {
    let errno = failure.errno();
    // The text is lost if the thread is terminating.
    let _gone = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        last.call = name;
        last.failure = Some(failure);
    });
    errno
}

#[cold]
fn fail<A: ReturnValue>(name: &'static str, failure: Failure) -> A {
    let errno = record_failure(name, failure);
    // SAFETY: the C library's pointer to this thread's errno is valid and aligned.
    unsafe { *libc::__errno_location() = errno };
    A::FAILED
}

/// The text of this thread's last failure, valid until its next one; empty if no call has failed.
pub(crate) fn last_text() -> *const c_char {
    let text = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        if let Some(failure) = last.failure.take() {
            let text = format!("{}: {failure}", last.call).replace('\0', "?");
            last.text = CString::new(text).ok();
        }
        last.text.as_deref().unwrap_or(c"").as_ptr()
    });
    text.unwrap_or(c"".as_ptr())
}

/// A descriptor in the form that system calls take.
pub(crate) fn borrow(fd: c_int) -> Result<BorrowedFd<'static>, Failure> {
    if fd < 0 {
        return Err(Failure::NotAnEndpoint { fd });
    }
    // SAFETY: the number is not -1. It is used for one call that only reads attributes; if the
    // number is not open, that call fails with EBADF.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Closes a descriptor that the program owns.
///
/// # Safety
/// The program has given up the descriptor and does not close it itself.
pub(crate) unsafe fn close(fd: c_int) {
    // SAFETY: `find` has just seen an open descriptor there, and by contract we may close it.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// A message to send.
///
/// # Safety
/// `bytes` is null or points to `length` bytes that are not written to during the call.
#[inline]
pub(crate) unsafe fn message<'a>(bytes: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    // SAFETY: the caller's contract is the same.
    unsafe { self::bytes("msg", bytes, length) }
}

/// The bytes of the argument `what`.
///
/// # Safety
/// The requirements of [`message`].
#[inline]
pub(crate) unsafe fn bytes<'a>(
    what: &'static str,
    bytes: *const c_void,
    length: usize,
) -> Result<&'a [u8], Failure> {
    if length == 0 {
        return Ok(&[]);
    }
    if bytes.is_null() {
        return Err(Failure::Null { what });
    }
    if isize::try_from(length).is_err() {
        return Err(Failure::BadNumber {
            what: "len",
            found: i64::MAX,
            expected: "a length that memory can have",
        });
    }
    // SAFETY: not null, at most isize::MAX bytes, readable and unchanged by contract;
    // bytes need no alignment.
    Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), length) })
}

/// The writable memory of the argument `what`.
///
/// # Safety
/// `place` is null or points to `length` bytes that no other thread accesses during the call.
pub(crate) unsafe fn bytes_mut<'a>(
    what: &'static str,
    place: *mut c_void,
    length: usize,
) -> Result<&'a mut [u8], Failure> {
    // SAFETY: writable memory is also readable.
    let bytes = unsafe { self::bytes(what, place, length) }?;
    // SAFETY: checked by `bytes`; writable and not accessed by other threads by contract.
    Ok(unsafe { std::slice::from_raw_parts_mut(bytes.as_ptr().cast_mut(), length) })
}

/// The array of the argument `what`.
///
/// # Safety
/// `place` is null or points to `count` valid elements, which are not written to during the call.
pub(crate) unsafe fn array<'a, T>(
    what: &'static str,
    place: *const T,
    count: usize,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if place.is_null() {
        return Err(Failure::Null { what });
    }
    if !place.is_aligned() {
        return Err(Failure::Misaligned { what });
    }
    // SAFETY: not null, aligned, with that many elements, readable and unchanged by contract. An
    // array in memory cannot exceed `isize::MAX` bytes.
    Ok(unsafe { std::slice::from_raw_parts(place, count) })
}

/// A pointer through which a call returns a value to the C program.
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

/// The length of an array argument.
pub(crate) fn count(count: c_int) -> Result<usize, Failure> {
    let places = usize::try_from(count).ok().filter(|places| *places > 0);
    places.ok_or(Failure::BadNumber {
        what: "count",
        found: count.into(),
        expected: "a number above 0",
    })
}

impl<T> Out<T> {
    /// Checks the pointer before the call does anything that it could not undo.
    ///
    /// # Safety
    /// `place` is null, or valid for writes of a `T` as long as the value is used.
    pub(crate) unsafe fn new(what: &'static str, place: *mut T) -> Result<Out<T>, Failure> {
        if place.is_null() {
            return Err(Failure::Null { what });
        }
        // SAFETY: the caller's contract is the same.
        unsafe { Out::maybe(what, place) }
    }

    /// An output argument that may be null.
    ///
    /// # Safety
    /// The requirements of [`new`](Self::new).
    #[inline]
    pub(crate) unsafe fn maybe(what: &'static str, place: *mut T) -> Result<Out<T>, Failure> {
        if !place.is_aligned() {
            return Err(Failure::Misaligned { what });
        }
        Ok(Out(place))
    }

    /// An element of an output array.
    ///
    /// # Safety
    /// This is the first element of an array with more than `index` elements, all of which meet the
    /// contract of [`new`](Self::new).
    pub(crate) unsafe fn element(self, index: usize) -> Out<T> {
        // SAFETY: within the array by contract, and as aligned as its first element.
        Out(unsafe { self.0.add(index) })
    }

    #[inline]
    pub(crate) fn write(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, aligned (checked above), valid for writes by the
            // contract of `new`.
            unsafe { self.0.write(value) };
        }
    }
}

/// Memory of the program that is read until an operation completes.
struct Shared {
    place: *const u8,
    length: usize,
}

// SAFETY: the creator promises that the memory stays valid, for any thread.
unsafe impl Send for Shared {}

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: by the contract of `shared`; not empty.
        unsafe { slice::from_raw_parts(self.place, self.length) }
    }
}

/// Memory as shared bytes. The caller has checked that the pointer is not null.
///
/// # Safety
/// As long as any of the bytes are in use, `place` is valid for reads of `length` bytes, which are not
/// written to.
pub(crate) unsafe fn shared(place: *const c_void, length: usize) -> Bytes {
    match length {
        0 => Bytes::new(),
        _ => Bytes::from_owner(Shared {
            place: place.cast(),
            length,
        }),
    }
}

/// A buffer that a message is copied to.
#[derive(Clone, Copy)]
pub(crate) struct Buffer {
    place: *mut u8,
    pub(crate) length: usize,
}

impl Buffer {
    /// # Safety
    /// `place` is null, or valid for writes of `length` bytes as long as the value is used, and does
    /// not overlap a message of this library.
    pub(crate) unsafe fn new(place: *mut c_void, length: usize) -> Result<Buffer, Failure> {
        if place.is_null() && length > 0 {
            return Err(Failure::Null { what: "buf" });
        }
        let place = place.cast();
        Ok(Buffer { place, length })
    }

    /// Passes a buffer that is not empty to `use_it` as memory, which is revoked afterwards.
    pub(crate) fn with_region<R>(self, use_it: impl FnOnce(&RegionMemory) -> R) -> R {
        struct BorrowedMemory(RegionMemory);
        impl Drop for BorrowedMemory {
            fn drop(&mut self) {
                self.0.revoke();
            }
        }
        let start = NonNull::new(self.place).unwrap_or(NonNull::dangling());
        // SAFETY: valid for writes of that many bytes by contract, until this returns; bytes are
        // only read after they have been written.
        let lent = BorrowedMemory(unsafe { RegionMemory::from_raw(start, self.length) });
        use_it(&lent.0)
    }

    /// Copies a message; the caller has checked that it fits.
    pub(crate) fn fill(self, message: &[u8]) {
        assert!(message.len() <= self.length, "the caller compares lengths");
        if !message.is_empty() {
            // SAFETY: the message is not longer than the buffer (asserted), so the buffer is not
            // null; it is writable and does not overlap the message by contract.
            unsafe { ptr::copy_nonoverlapping(message.as_ptr(), self.place, message.len()) };
        }
    }
}

/// A string argument; `None` if the pointer is null.
///
/// # Safety
/// `text` is null or points to a C string that does not change as long as the result is used.
pub(crate) unsafe fn text<'a>(
    what: &'static str,
    text: *const c_char,
) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null; terminated and unchanged by contract.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Failure::BadText {
            what,
            found: text.to_string_lossy().into_owned(),
            expected: "UTF-8",
        }),
    }
}

/// A struct that begins with its size in bytes, which identifies its version.
///
/// # Safety
/// Any bytes are a valid value; there is no padding; the first member is a `usize`.
pub(crate) unsafe trait Versioned: Copy {
    const NAME: &'static str;
    /// The struct with its size and zeros.
    const EMPTY: Self = {
        let mut zeros = MaybeUninit::<Self>::zeroed();
        // SAFETY: by the contract of this trait the first member is a usize, and zeros are
        // values of the others.
        unsafe {
            zeros.as_mut_ptr().cast::<usize>().write(size_of::<Self>());
            zeros.assume_init()
        }
    };
}

/// A larger size is certainly a mistake.
const MAX_STRUCT_BYTES: usize = 4096;

/// The size that the program wrote into its struct.
unsafe fn stated_size<T: Versioned>(theirs: *const T) -> Result<usize, Failure> {
    if theirs.is_null() {
        return Err(Failure::Null { what: T::NAME });
    }
    if !theirs.is_aligned() {
        return Err(Failure::Misaligned { what: T::NAME });
    }
    // SAFETY: not null, aligned for a struct that begins with a usize, which is
    // readable by the contract of the callers.
    let size = unsafe { theirs.cast::<usize>().read() };
    if !(size_of::<usize>()..=MAX_STRUCT_BYTES).contains(&size) {
        return Err(Failure::StructTooShort {
            what: T::NAME,
            size,
        });
    }
    Ok(size)
}

/// Reads a struct of any version: members that an older one lacks are zero; additional members of a
/// newer one must be zero.
///
/// # Safety
/// `theirs` is null or points to a struct of as many bytes as its first member states.
pub(crate) unsafe fn read_struct<T: Versioned>(theirs: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's contract is the same.
    let size = unsafe { stated_size(theirs) }?;
    let known = size_of::<T>();
    let mut ours = T::EMPTY;
    for offset in known..size {
        // SAFETY: the byte is within the struct by contract.
        if unsafe { theirs.cast::<u8>().add(offset).read() } != 0 {
            return Err(Failure::StructTooNew {
                what: T::NAME,
                size,
                known,
            });
        }
    }
    // SAFETY: the length does not exceed either struct; `ours` is a local, so they do not overlap; a
    // `T` may consist of any bytes (contract of `Versioned`).
    unsafe {
        ptr::copy_nonoverlapping(theirs.cast::<u8>(), (&raw mut ours).cast(), size.min(known))
    };
    Ok(ours)
}

/// Writes as much of a struct as the program's version has, and stores that length in its first
/// member. Additional members of a newer version become zero.
///
/// # Safety
/// The requirements of [`read_struct`], and the struct is valid for writes.
pub(crate) unsafe fn write_struct<T: Versioned>(theirs: *mut T, ours: &T) -> Result<(), Failure> {
    // SAFETY: the caller's contract is the same.
    let size = unsafe { stated_size(theirs) }?;
    let filled = size.min(size_of::<T>());
    // SAFETY: both structs have `filled` bytes, and the program's has `size`; `ours` is borrowed from
    // Rust and so does not overlap the struct of C; the first member is a usize, aligned (checked
    // above).
    unsafe {
        theirs.cast::<u8>().write_bytes(0, size);
        ptr::copy_nonoverlapping(ptr::from_ref(ours).cast(), theirs.cast::<u8>(), filled);
        theirs.cast::<usize>().write(filled);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    #[repr(C)]
    struct Sample {
        size: usize,
        first: u64,
        second: u64,
    }

    // SAFETY: integers only, no padding, a usize first.
    unsafe impl Versioned for Sample {
        const NAME: &'static str = "sample";
    }

    fn read(words: &[u64]) -> Result<Sample, Failure> {
        // SAFETY: in all cases below there are as many words as the first one states.
        unsafe { read_struct(words.as_ptr().cast::<Sample>()) }
    }

    #[test]
    fn structs_of_older_and_newer_versions_are_read() {
        let whole = read(&[24, 1, 2]).unwrap();
        assert_eq!((whole.first, whole.second), (1, 2));
        let older = read(&[16, 1]).unwrap();
        assert_eq!((older.first, older.second), (1, 0));
        let newer = read(&[40, 1, 2, 0, 0]).unwrap();
        assert_eq!((newer.first, newer.second), (1, 2));
        assert_eq!(read(&[40, 1, 2, 0, 7]).unwrap_err().errno(), libc::E2BIG);
        assert_eq!(read(&[0, 1]).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(read(&[7, 1]).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(read(&[4097]).unwrap_err().errno(), libc::EINVAL);
        // SAFETY: null is allowed.
        let null = unsafe { read_struct(ptr::null::<Sample>()) };
        assert_eq!(null.unwrap_err().errno(), libc::EFAULT);
    }

    #[test]
    fn structs_of_older_and_newer_versions_are_written() {
        let ours = Sample {
            size: 24,
            first: 1,
            second: 2,
        };
        for (size, expected) in [
            (24, [24, 1, 2, 9]),
            (16, [16, 1, 9, 9]),
            (32, [24, 1, 2, 0]),
        ] {
            let mut theirs: [u64; 4] = [size, 9, 9, 9];
            // SAFETY: the array has as many bytes as its first word states.
            unsafe { write_struct(theirs.as_mut_ptr().cast(), &ours) }.unwrap();
            assert_eq!(theirs, expected);
        }
    }

    #[test]
    fn a_panic_becomes_an_error_with_its_text() {
        let answer: c_int = call("dp_test", || panic!("the {} is wrong", 7));
        assert_eq!(answer, -1);
        assert_eq!(
            std::io::Error::last_os_error().raw_os_error(),
            Some(libc::EIO)
        );
        // SAFETY: the pointer is to this thread's text, which only the next failure changes.
        let text = unsafe { CStr::from_ptr(last_text()) }.to_str().unwrap();
        assert!(text.starts_with("dp_test: internal error"), "{text}");
        assert!(text.ends_with("the 7 is wrong"), "{text}");
    }
}

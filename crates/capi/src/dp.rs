//! The seven calls of DP §2, table 1, with the conventions of Unix.

use std::ffi::{c_char, c_int, c_void};

use crate::address::Address;
use dipole_node::Timeout;

use crate::failure::Failure;
use crate::ffi::{self, Out, Versioned, call};
use crate::handle;
use crate::message;
use crate::options::{self, OpenOptions, Pool};
use crate::per_process::lock;
use crate::target;

/// Opens an endpoint; returns its descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn dp_open(dpid: c_int) -> c_int {
    call("dp_open", || {
        let dpid = u32::try_from(dpid).map_err(|_| Failure::BadNumber {
            what: "dpid",
            found: dpid.into(),
            expected: "a number that is not negative; dp_open_with(DP_ANY, NULL) opens any free one",
        })?;
        options::open(dpid, OpenOptions::EMPTY)
    })
}

/// Adds a target to an endpoint.
#[unsafe(no_mangle)]
pub extern "C" fn dp_target(fd: c_int, nid: c_int, dpid: c_int) -> c_int {
    call("dp_target", || {
        target::add_target(fd, Address::from_signed(nid, dpid)?)
    })
}

/// Sends a message; returns its length.
///
/// # Safety
/// `msg` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_write(fd: c_int, msg: *const c_void, len: c_int) -> c_int {
    call("dp_write", || {
        let length = usize::try_from(len).map_err(|_| Failure::BadNumber {
            what: "len",
            found: len.into(),
            expected: "a length that is not negative",
        })?;
        // SAFETY: the caller guarantees this by contract.
        let message = unsafe { ffi::message(msg, length) }?;
        handle::with(fd, |handle| {
            message::send(handle, fd, message, 0, Timeout::Infinite)
        })?;
        Ok(len)
    })
}

/// Waits for the next message; returns its length and stores its address.
///
/// # Safety
/// `address` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_read(fd: c_int, address: *mut *mut c_char) -> c_int {
    call("dp_read", || {
        // SAFETY: the caller guarantees this by contract.
        let address = unsafe { Out::new("address", address) }?;
        handle::with(fd, |handle| {
            let message = message::receive(handle, fd, Timeout::Infinite)?;
            // Messages have at most 2^30 bytes.
            let length = c_int::try_from(message.len()).unwrap_or(c_int::MAX);
            address.write(message.as_ptr().cast_mut().cast());
            lock(&handle.unreleased).push_back(message);
            Ok(length)
        })
    })
}

/// Releases the `n` oldest messages that were read.
#[unsafe(no_mangle)]
pub extern "C" fn dp_fsync(fd: c_int, n: c_int) -> c_int {
    call("dp_fsync", || {
        let count = usize::try_from(n).map_err(|_| Failure::BadNumber {
            what: "n",
            found: n.into(),
            expected: "a number that is not negative",
        })?;
        handle::with(fd, |handle| {
            let mut read = lock(&handle.unreleased);
            if count > read.len() {
                return Err(Failure::TooManyReleased {
                    requested: n,
                    unreleased: read.len(),
                });
            }
            drop(read.drain(..count));
            Ok(0)
        })
    })
}

/// Gives an endpoint a token buffer pool of a size; stores its address.
///
/// # Safety
/// `tbp` is null or points to a struct of the size that it states.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_mmap(fd: c_int, tbp: *mut Pool) -> c_int {
    call("dp_mmap", || {
        // SAFETY: the caller guarantees this by contract.
        let requested = unsafe { ffi::read_struct(tbp) }?;
        let handle = handle::find(fd)?;
        let pool = options::set_pool(&handle.endpoint, requested.bytes)?;
        // SAFETY: the caller guarantees this by contract.
        unsafe { ffi::write_struct(tbp, &pool) }?;
        Ok(0)
    })
}

/// Closes an endpoint and its descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn dp_close(fd: c_int) -> c_int {
    call("dp_close", || {
        handle::end(fd)?;
        // SAFETY: `end` has verified that the number is an endpoint's descriptor, and the caller
        // does not use it after this call.
        unsafe { ffi::close(fd) };
        Ok(0)
    })
}

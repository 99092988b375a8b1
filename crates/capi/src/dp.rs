//! The seven calls of DP §2, table 1, with the habits of Unix.

use std::ffi::{c_char, c_int, c_void};

use crate::failure::Failure;
use crate::guard::{self, Out, Versioned, call};
use crate::handle;
use crate::message;
use crate::options::{self, Address, OpenOptions, Pool};
use crate::process::lock;
use dipole_node::Timeout;

/// A number of table 1, which has them signed.
pub(crate) fn number(what: &'static str, number: c_int) -> Result<u32, Failure> {
    u32::try_from(number).map_err(|_| Failure::BadNumber {
        what,
        found: number.into(),
        expected: "a number that is not negative",
    })
}

pub(crate) fn address(nid: c_int, dpid: c_int) -> Result<dipole_node::Address, Failure> {
    let (nid, dpid) = (number("nid", nid)?, number("dpid", dpid)?);
    Address { nid, dpid }.checked()
}

/// Opens an endpoint; its descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn dp_open(dpid: c_int) -> c_int {
    call("dp_open", || {
        options::open(number("dpid", dpid)?, OpenOptions::EMPTY)
    })
}

/// Points an endpoint at another.
#[unsafe(no_mangle)]
pub extern "C" fn dp_target(fd: c_int, nid: c_int, dpid: c_int) -> c_int {
    call("dp_target", || message::add_target(fd, address(nid, dpid)?))
}

/// Sends a message; its length.
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
        // SAFETY: by contract.
        let message = unsafe { guard::message(msg, length) }?;
        handle::with(fd, |handle| {
            message::send(handle, fd, message, 0, Timeout::Infinite)
        })?;
        Ok(len)
    })
}

/// Waits for the next message; its length, and where it lies.
///
/// # Safety
/// `address` points to a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_read(fd: c_int, address: *mut *mut c_char) -> c_int {
    call("dp_read", || {
        // SAFETY: by contract.
        let address = unsafe { Out::new("address", address) }?;
        handle::with(fd, |handle| {
            let message = message::receive(handle, fd, Timeout::Infinite)?;
            // Messages have at most 2^30 bytes.
            let length = c_int::try_from(message.len()).unwrap_or(c_int::MAX);
            address.write(message.as_ptr().cast_mut().cast());
            lock(&handle.read).push_back(message);
            Ok(length)
        })
    })
}

/// Gives the `n` oldest read messages back.
#[unsafe(no_mangle)]
pub extern "C" fn dp_fsync(fd: c_int, n: c_int) -> c_int {
    call("dp_fsync", || {
        let count = usize::try_from(n).map_err(|_| Failure::BadNumber {
            what: "n",
            found: n.into(),
            expected: "a number that is not negative",
        })?;
        handle::with(fd, |handle| {
            let mut read = lock(&handle.read);
            if count > read.len() {
                return Err(Failure::TooManyGivenBack {
                    asked: n,
                    held: read.len(),
                });
            }
            drop(read.drain(..count));
            Ok(0)
        })
    })
}

/// Gives an endpoint a token buffer pool of a size, and tells where it lies.
///
/// # Safety
/// `tbp` points to a struct as long as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_mmap(fd: c_int, tbp: *mut Pool) -> c_int {
    call("dp_mmap", || {
        // SAFETY: by contract.
        let wanted = unsafe { guard::read_struct(tbp) }?;
        let handle = handle::find(fd)?;
        let pool = options::set_pool(&handle.endpoint, wanted.bytes)?;
        // SAFETY: by contract.
        unsafe { guard::write_struct(tbp, &pool) }?;
        Ok(0)
    })
}

/// Ends an endpoint and closes its descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn dp_close(fd: c_int) -> c_int {
    call("dp_close", || {
        handle::end(fd)?;
        // SAFETY: `end` has found the number to be an endpoint's descriptor, which its
        // user gives up by this call.
        unsafe { guard::close(fd) };
        Ok(0)
    })
}

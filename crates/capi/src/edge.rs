//! C calls for edges.

use std::ffi::{c_int, c_void};
use std::io::IoSlice;

use dipole_node::{Edge, Operation, Timeout};

use crate::address::Address;
use crate::failure::Failure;
use crate::ffi::{self, call};
use crate::message;
use crate::numbers::Numbered;
use crate::process::CloseOrder;
use crate::{DP_DONTWAIT, handle};

/// Flag of `dp_post`: the call does not copy the message, only the link does.
pub const DP_ZEROCOPY: c_int = 8;

/// The limit of Linux for one `writev`.
const MAX_PIECES: usize = 1024;

/// The edges that C programs hold.
pub(crate) static EDGES: Numbered<Edge> =
    Numbered::new(CloseOrder::Edges, |number| Failure::NotAnEdge { number });

/// Opens an edge from an endpoint to another; returns its number.
#[unsafe(no_mangle)]
pub extern "C" fn dp_edge_open(fd: c_int, to: Address) -> c_int {
    call("dp_edge_open", || {
        let to = to.checked()?;
        EDGES.insert(handle::with(fd, |handle| Ok(handle.endpoint.edge(to)?))?)
    })
}

/// Sends a message along an edge; returns its length.
///
/// # Safety
/// `msg` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_edge_send(
    edge: c_int,
    msg: *const c_void,
    len: usize,
    flags: c_int,
    timeout_ns: i64,
) -> isize {
    call("dp_edge_send", || {
        message::check_flags(flags, DP_DONTWAIT)?;
        // SAFETY: the caller guarantees this by contract.
        let message = unsafe { ffi::message(msg, len) }?;
        EDGES.with(edge, |edge| {
            match message::timeout(flags, timeout_ns) {
                Timeout::Zero => edge.try_send(message)?,
                Timeout::After(timeout) => edge.send_timeout(message, timeout)?,
                Timeout::Infinite => edge.send(message)?,
            }
            Ok(())
        })?;
        Ok(len.cast_signed())
    })
}

/// Posts a message that consists of several pieces.
///
/// # Safety
/// `iov` is null or points to `iovcnt` pieces, each of which is readable for its length; with
/// [`DP_ZEROCOPY`] they stay unchanged until the completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_post(
    edge: c_int,
    flags: c_int,
    iov: *const libc::iovec,
    iovcnt: c_int,
    context: u64,
) -> c_int {
    call("dp_post", || {
        message::check_flags(flags, DP_ZEROCOPY)?;
        let shared = flags & DP_ZEROCOPY != 0;
        let count = usize::try_from(iovcnt).ok();
        let count = match shared {
            true => count.filter(|count| *count == 1),
            false => count.filter(|count| *count <= MAX_PIECES),
        };
        let count = count.ok_or(Failure::BadNumber {
            what: "iovcnt",
            found: iovcnt.into(),
            expected: match shared {
                true => "1, with DP_ZEROCOPY",
                false => "a number from 0 to 1024",
            },
        })?;
        // SAFETY: the caller guarantees this by contract.
        let pieces = unsafe { ffi::array("iov", iov, count) }?;
        let gathered = pieces.iter().map(|piece| {
            // SAFETY: the caller guarantees this by contract.
            let bytes = unsafe { ffi::bytes("iov_base", piece.iov_base, piece.iov_len) }?;
            Ok(IoSlice::new(bytes))
        });
        let gathered: Vec<IoSlice<'_>> = gathered.collect::<Result<_, Failure>>()?;
        EDGES.with(edge, |open| match pieces {
            [piece] if shared => {
                check_attached(edge, open)?;
                // SAFETY: the caller guarantees this by contract.
                let bytes = unsafe { ffi::shared(piece.iov_base, piece.iov_len) };
                Ok(open.post_bytes(Operation::Message, bytes, context)?)
            }
            _ => Ok(open.post(Operation::Message, &gathered, context)?),
        })?;
        Ok(0)
    })
}

/// Refuses to borrow memory on an edge without a queue or counter: the program could not know when
/// the memory is free again.
pub(crate) fn check_attached(number: c_int, edge: &Edge) -> Result<(), Failure> {
    match edge.is_attached() {
        true => Ok(()),
        false => Err(Failure::Unattached { number }),
    }
}

/// Cancels a posted operation; returns 1 if it had not begun, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn dp_cancel(edge: c_int, context: u64) -> c_int {
    call("dp_cancel", || {
        EDGES.with(edge, |edge| Ok(edge.cancel(context).into()))
    })
}

/// Waits until everything sent to the target's process is acknowledged.
#[unsafe(no_mangle)]
pub extern "C" fn dp_edge_drain(edge: c_int, timeout_ns: i64) -> c_int {
    call("dp_edge_drain", || {
        let timeout = message::duration(timeout_ns);
        EDGES.with(edge, |edge| Ok(edge.flush(timeout)?))?;
        Ok(0)
    })
}

/// Closes an edge; its descriptor becomes invalid.
#[unsafe(no_mangle)]
pub extern "C" fn dp_edge_close(edge: c_int) -> c_int {
    call("dp_edge_close", || {
        EDGES.close(edge)?;
        Ok(0)
    })
}

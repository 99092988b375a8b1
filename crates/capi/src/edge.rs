//! Edges: the numbers that C programs hold for them, and their calls.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::io::IoSlice;
use std::mem;
use std::sync::Arc;

use dipole_node::{Edge, Operation, SendError};

use crate::failure::Failure;
use crate::guard::{self, call};
use crate::message::{self, Patience};
use crate::options::Address;
use crate::process::{self, Process, lock};
use crate::table::Table;
use crate::{DP_DONTWAIT, handle};

/// For `dp_post`: a message to the edge's target.
pub const DP_MESSAGE: c_int = 0;

/// As many pieces as Linux takes in one `writev`.
const MAX_PIECES: usize = 1024;

/// An edge that a C program holds.
#[derive(Debug)]
struct OpenEdge {
    generation: u32,
    edge: Edge,
}

static TABLE: Table<OpenEdge> = Table::new();

/// Which numbers of edges are in use.
#[derive(Debug, Default)]
pub(crate) struct EdgeNumbers {
    /// One more than the highest that was ever in use.
    next: c_int,
    free: VecDeque<c_int>,
}

/// Runs a call on an edge.
#[inline]
pub(crate) fn with<A>(
    number: c_int,
    body: impl FnOnce(&Edge) -> Result<A, Failure>,
) -> Result<A, Failure> {
    let slot = TABLE.slot(number).ok_or(Failure::NotAnEdge { number })?;
    match &*slot.load() {
        Some(open) if open.generation == process::generation() => body(&open.edge),
        Some(_) => Err(Failure::Send(SendError::Forked)),
        None => Err(Failure::NotAnEdge { number }),
    }
}

/// Gives an edge a number.
fn enter(edge: Edge) -> Result<c_int, Failure> {
    let process = process::current();
    let number = {
        let mut numbers = lock(&process.edges);
        numbers.free.pop_front().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        })
    };
    let slot = TABLE.make_slot(number);
    let slot = slot.ok_or(Failure::NotAnEdge { number })?;
    let generation = process::generation();
    keep_inherited(slot.swap(Some(Arc::new(OpenEdge { generation, edge }))));
    Ok(number)
}

/// Takes an edge out of the table; false if its number stands for none of this process.
fn remove(number: c_int) -> Result<bool, Failure> {
    let removed = TABLE.slot(number).and_then(|slot| slot.swap(None));
    let removed = removed.ok_or(Failure::NotAnEdge { number })?;
    Ok(!keep_inherited(Some(removed)))
}

/// Never drops what belongs to the parent process, since that could wait for a lock that one
/// of its threads held when this process was forked. True if it was so.
fn keep_inherited(edge: Option<Arc<OpenEdge>>) -> bool {
    let generation = process::generation();
    let inherited = edge.filter(|edge| edge.generation != generation);
    inherited.map(mem::forget).is_some()
}

/// Closes all edges of a process.
pub(crate) fn close_all(process: &Process) {
    let numbers = mem::take(&mut *lock(&process.edges));
    for number in 0..numbers.next {
        // Some are closed already.
        let _closed = remove(number);
    }
}

/// An edge from an endpoint to another; its number.
#[unsafe(no_mangle)]
pub extern "C" fn dp_edge(fd: c_int, to: Address) -> c_int {
    call("dp_edge", || {
        let to = to.checked()?;
        enter(handle::with(fd, |handle| Ok(handle.endpoint.edge(to)?))?)
    })
}

/// Sends a message along an edge; its length.
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
        // SAFETY: by contract.
        let message = unsafe { guard::message(msg, len) }?;
        with(edge, |edge| {
            match Patience::new(flags, timeout_ns) {
                Patience::None => edge.try_send(message)?,
                Patience::For(timeout) => edge.send_timeout(message, timeout)?,
                Patience::Forever => edge.send(message)?,
            }
            Ok(())
        })?;
        Ok(len.cast_signed())
    })
}

/// Posts an operation on gathered bytes.
///
/// # Safety
/// `iov` points to `iovcnt` pieces, each of which points to as many bytes as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_post(
    edge: c_int,
    operation: c_int,
    iov: *const libc::iovec,
    iovcnt: c_int,
    context: u64,
) -> c_int {
    call("dp_post", || {
        let operation = match operation {
            DP_MESSAGE => Operation::Message,
            _ => {
                return Err(Failure::BadNumber {
                    what: "operation",
                    found: operation.into(),
                    expected: "DP_MESSAGE",
                });
            }
        };
        let count = usize::try_from(iovcnt).ok();
        let count = count.filter(|count| *count <= MAX_PIECES);
        let count = count.ok_or(Failure::BadNumber {
            what: "iovcnt",
            found: iovcnt.into(),
            expected: "a number from 0 to 1024",
        })?;
        // SAFETY: by contract.
        let pieces = unsafe { guard::array("iov", iov, count) }?;
        let gathered = pieces.iter().map(|piece| {
            // SAFETY: by contract.
            let bytes = unsafe { guard::bytes("iov_base", piece.iov_base, piece.iov_len) }?;
            Ok(IoSlice::new(bytes))
        });
        let gathered: Vec<IoSlice<'_>> = gathered.collect::<Result<_, Failure>>()?;
        with(edge, |edge| Ok(edge.post(operation, &gathered, context)?))?;
        Ok(0)
    })
}

/// Withdraws a posted operation; 1 if it had not begun, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn dp_cancel(edge: c_int, context: u64) -> c_int {
    call("dp_cancel", || {
        with(edge, |edge| Ok(edge.cancel(context).into()))
    })
}

/// Waits until all that was sent to the target's process is acknowledged.
#[unsafe(no_mangle)]
pub extern "C" fn dp_edge_drain(edge: c_int, timeout_ns: i64) -> c_int {
    call("dp_edge_drain", || {
        let timeout = message::duration(timeout_ns);
        with(edge, |edge| Ok(edge.flush(timeout)?))?;
        Ok(0)
    })
}

/// Closes an edge.
#[unsafe(no_mangle)]
pub extern "C" fn dp_edge_close(edge: c_int) -> c_int {
    call("dp_edge_close", || {
        if remove(edge)? {
            lock(&process::current().edges).free.push_back(edge);
        }
        Ok(0)
    })
}

//! Calls for completion counters.

use std::ffi::c_int;

use dipole_node::{CompletionCounter, Timeout, interruptible};

use crate::edge::EDGES;
use crate::failure::Failure;
use crate::ffi::{Out, call};
use crate::numbers::Numbered;
use crate::process::{self, CloseOrder};

/// The counters that C programs hold.
pub(crate) static COUNTERS: Numbered<CompletionCounter> =
    Numbered::new(CloseOrder::Counters, |number| Failure::NotACounter {
        number,
    });

/// `struct dp_counts`: the values of a counter.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that have been sent; they may not have arrived yet.
    pub sent: u64,
    /// Number of operations that failed.
    pub failed: u64,
}

impl From<dipole_node::CompletionCounts> for Counts {
    fn from(counts: dipole_node::CompletionCounts) -> Counts {
        Counts {
            sent: counts.sent,
            failed: counts.failed,
        }
    }
}

/// Opens a completion counter; returns its number.
#[unsafe(no_mangle)]
pub extern "C" fn dp_counter_open() -> c_int {
    call("dp_counter_open", || {
        let node = process::current().node()?;
        COUNTERS.insert(node.completion_counter())
    })
}

/// Counts completions of an edge's operations from now on.
#[unsafe(no_mangle)]
pub extern "C" fn dp_counter_attach_edge(counter: c_int, edge: c_int) -> c_int {
    call("dp_counter_attach_edge", || {
        COUNTERS.with(counter, |counter| {
            EDGES.with(edge, |edge| {
                edge.attach_counter(counter);
                Ok(0)
            })
        })
    })
}

/// Reads the counts.
///
/// # Safety
/// `counts` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_counter_read(counter: c_int, counts: *mut Counts) -> c_int {
    call("dp_counter_read", || {
        // SAFETY: the caller guarantees this by contract.
        let place = unsafe { Out::new("counts", counts) }?;
        COUNTERS.with(counter, |counter| {
            place.write(counter.counts()?.into());
            Ok(0)
        })
    })
}

/// Waits until `count` operations have completed, successfully or not.
///
/// # Safety
/// `counts` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_counter_wait(
    counter: c_int,
    count: u64,
    counts: *mut Counts,
    timeout_ns: i64,
) -> c_int {
    call("dp_counter_wait", || {
        // SAFETY: the caller guarantees this by contract.
        let place = unsafe { Out::maybe("counts", counts) }?;
        let timeout = Timeout::from_nanos(timeout_ns);
        let waited = matches!(timeout, Timeout::After(_)).then_some(timeout.duration());
        COUNTERS.with(counter, |open| {
            match interruptible(|| open.wait(count, timeout.duration()))? {
                Some(counts) => {
                    place.write(counts.into());
                    Ok(0)
                }
                None => Err(Failure::NotDone {
                    number: counter,
                    count,
                    waited,
                }),
            }
        })
    })
}

/// Closes a completion counter.
#[unsafe(no_mangle)]
pub extern "C" fn dp_counter_close(counter: c_int) -> c_int {
    call("dp_counter_close", || {
        COUNTERS.close(counter)?;
        Ok(0)
    })
}

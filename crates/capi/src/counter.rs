//! Completion counters: their calls.

use std::ffi::c_int;

use dipole_node::{CompletionCounter, Timeout};

use crate::edge::EDGES;
use crate::failure::Failure;
use crate::guard::{Out, call};
use crate::numbers::Numbered;
use crate::process;

/// The counters that C programs hold.
pub(crate) static COUNTERS: Numbered<CompletionCounter> = Numbered::new(
    |process| &process.counters,
    |number| Failure::NotACounter { number },
);

/// `struct dp_counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that are on their way.
    pub sent: u64,
    /// Operations that were not done.
    pub failed: u64,
}

impl From<dipole_node::Counts> for Counts {
    fn from(counts: dipole_node::Counts) -> Counts {
        Counts {
            sent: counts.sent,
            failed: counts.failed,
        }
    }
}

/// Opens a completion counter; its number.
#[unsafe(no_mangle)]
pub extern "C" fn dp_counter_open() -> c_int {
    call("dp_counter_open", || {
        let node = process::current().node()?;
        COUNTERS.enter(node.completion_counter())
    })
}

/// Completions of an edge's operations are counted from now on.
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

/// What has been counted so far.
///
/// # Safety
/// `counts` points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_counter_read(counter: c_int, counts: *mut Counts) -> c_int {
    call("dp_counter_read", || {
        // SAFETY: by contract.
        let place = unsafe { Out::new("counts", counts) }?;
        COUNTERS.with(counter, |counter| {
            place.write(counter.counts()?.into());
            Ok(0)
        })
    })
}

/// Waits until so many operations are done, whether they failed or not.
///
/// # Safety
/// `counts` points to a place for what has been counted or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_counter_wait(
    counter: c_int,
    count: u64,
    counts: *mut Counts,
    timeout_ns: i64,
) -> c_int {
    call("dp_counter_wait", || {
        // SAFETY: by contract.
        let place = unsafe { Out::maybe("counts", counts) }?;
        let patience = Timeout::from_nanos(timeout_ns);
        let waited = matches!(patience, Timeout::After(_)).then_some(patience.duration());
        COUNTERS.with(counter, |open| {
            match open.wait(count, patience.duration())? {
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

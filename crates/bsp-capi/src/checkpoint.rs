//! Requests for checkpoints, ours and MulticoreBSP's. A checkpoint is taken at the end of the
//! superstep in which any process requests it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::section::call;

/// Supersteps between two checkpoints; 0 for never.
static FREQUENCY: AtomicUsize = AtomicUsize::new(0);
/// Supersteps between checkpoints at times when failures are likely, if set.
static SAFE_FREQUENCY: AtomicUsize = AtomicUsize::new(UNSET);
const UNSET: usize = usize::MAX;
static IS_ENABLED: AtomicBool = AtomicBool::new(true);
static SINCE_LAST: AtomicUsize = AtomicUsize::new(0);

/// True if the program wants a checkpoint at the end of this superstep.
#[inline]
pub(crate) fn is_due() -> bool {
    let frequency = FREQUENCY.load(Ordering::Relaxed);
    if frequency > 0 && IS_ENABLED.load(Ordering::Relaxed) {
        let since_last = SINCE_LAST.fetch_add(1, Ordering::Relaxed) + 1;
        if since_last >= frequency {
            SINCE_LAST.store(0, Ordering::Relaxed);
            return true;
        }
    }
    false
}

fn request(name: &'static str) {
    call(name, |part| part.process.request_checkpoint());
}

/// Requests a checkpoint at the end of this superstep.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_checkpoint() {
    request("bsp_checkpoint");
}

/// Requests a checkpoint at the end of this superstep.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_checkpoint() {
    request("mcbsp_checkpoint");
}

/// Counts supersteps again.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_enable_checkpoints() {
    IS_ENABLED.store(true, Ordering::Relaxed);
}

/// Stops counting supersteps.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_disable_checkpoints() {
    IS_ENABLED.store(false, Ordering::Relaxed);
}

/// Sets the number of supersteps between two checkpoints; 0 for never.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_set_checkpoint_frequency(frequency: usize) {
    FREQUENCY.store(frequency, Ordering::Relaxed);
    SINCE_LAST.store(0, Ordering::Relaxed);
}

/// The number of supersteps between two checkpoints.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_get_checkpoint_frequency() -> usize {
    FREQUENCY.load(Ordering::Relaxed)
}

/// Sets the number of supersteps for times at which failures are likely.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_set_safe_checkpoint_frequency(frequency: usize) {
    SAFE_FREQUENCY.store(frequency, Ordering::Relaxed);
}

/// The number of supersteps for times at which failures are likely; by default the usual one.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_get_safe_checkpoint_frequency() -> usize {
    match SAFE_FREQUENCY.load(Ordering::Relaxed) {
        UNSET => mcbsp_get_checkpoint_frequency(),
        frequency => frequency,
    }
}

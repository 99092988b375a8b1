//! MulticoreBSP's checkpoint calls, as in a build of its library without checkpoints: frequencies are
//! stored, and the program ends where a checkpoint would be made.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::section::{Site, refuse};

/// Supersteps between two checkpoints; 0 for never.
static FREQUENCY: AtomicUsize = AtomicUsize::new(0);
/// Supersteps between checkpoints at times when failures are likely, if set.
static SAFE_FREQUENCY: AtomicUsize = AtomicUsize::new(UNSET);
const UNSET: usize = usize::MAX;
static IS_ENABLED: AtomicBool = AtomicBool::new(true);
static SINCE_LAST: AtomicUsize = AtomicUsize::new(0);

const UNSUPPORTED: &str =
    "libbsp makes no checkpoints: let the program save its own state between two calls of bsp_sync";

/// Ends the program if a checkpoint would be made at the end of this superstep.
#[inline]
pub(crate) fn count_superstep() {
    let frequency = FREQUENCY.load(Ordering::Relaxed);
    if frequency > 0 && IS_ENABLED.load(Ordering::Relaxed) {
        let since_last = SINCE_LAST.fetch_add(1, Ordering::Relaxed) + 1;
        if since_last >= frequency {
            refuse(Site::of("bsp_sync"), UNSUPPORTED);
        }
    }
}

/// Ends the program, because checkpoints are not supported.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_checkpoint() {
    refuse(Site::of("mcbsp_checkpoint"), UNSUPPORTED);
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

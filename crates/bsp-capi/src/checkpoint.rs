//! MulticoreBSP's calls for checkpoints, as they are where its library was built without: how often is kept, and the
//! program ends where one would have to be made.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::section::{Site, refuse};

/// Supersteps between two; 0 for never.
static FREQUENCY: AtomicUsize = AtomicUsize::new(0);
/// The same where failures are to be expected, if another number has been set.
static SAFE_FREQUENCY: AtomicUsize = AtomicUsize::new(UNSET);
const UNSET: usize = usize::MAX;
static IS_ENABLED: AtomicBool = AtomicBool::new(true);
static SINCE_LAST: AtomicUsize = AtomicUsize::new(0);

const NONE: &str = "libbsp makes no checkpoints: save what the program needs to go on by itself, between two calls of \
                    bsp_sync";

/// Ends the program if a checkpoint would be made at the end of this superstep.
#[inline]
pub(crate) fn count_superstep() {
    let frequency = FREQUENCY.load(Ordering::Relaxed);
    if frequency > 0 && IS_ENABLED.load(Ordering::Relaxed) {
        let since_last = SINCE_LAST.fetch_add(1, Ordering::Relaxed) + 1;
        if since_last >= frequency {
            refuse(Site::of("bsp_sync"), NONE);
        }
    }
}

/// Ends the program: there are no checkpoints.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_checkpoint() {
    refuse(Site::of("mcbsp_checkpoint"), NONE);
}

/// Lets supersteps count again.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_enable_checkpoints() {
    IS_ENABLED.store(true, Ordering::Relaxed);
}

/// Lets no more supersteps count.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_disable_checkpoints() {
    IS_ENABLED.store(false, Ordering::Relaxed);
}

/// Sets after how many supersteps a checkpoint would be made; 0 for never.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_set_checkpoint_frequency(frequency: usize) {
    FREQUENCY.store(frequency, Ordering::Relaxed);
    SINCE_LAST.store(0, Ordering::Relaxed);
}

/// What has been set.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_get_checkpoint_frequency() -> usize {
    FREQUENCY.load(Ordering::Relaxed)
}

/// Sets the number for when failures are to be expected.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_set_safe_checkpoint_frequency(frequency: usize) {
    SAFE_FREQUENCY.store(frequency, Ordering::Relaxed);
}

/// What has been set, or the other number.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_get_safe_checkpoint_frequency() -> usize {
    match SAFE_FREQUENCY.load(Ordering::Relaxed) {
        UNSET => mcbsp_get_checkpoint_frequency(),
        frequency => frequency,
    }
}

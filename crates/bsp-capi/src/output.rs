//! Buffering of the program's standard output.

use std::sync::Once;

/// If 1, output is written at once, so that the last output of a process that crashes is seen.
const VARIABLE: &str = "DIPOLE_BSP_UNBUFFERED";

unsafe extern "C" {
    /// The standard output of the C library.
    static stdout: *mut libc::FILE;
}

/// Turns buffering off if the user wants that.
pub(crate) fn unbuffer_if_wanted() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os(VARIABLE).is_some_and(|value| value == "1") {
            // SAFETY: the C library initialises `stdout` before it starts the program, and locks it in
            // each call.
            let _is_buffered_if_it_fails = unsafe {
                libc::fflush(stdout);
                libc::setvbuf(stdout, std::ptr::null_mut(), libc::_IONBF, 0)
            };
        }
    });
}

//! The kernel's monotonic clock, read once or twice per message.

/// Nanoseconds since an arbitrary point before this process started.
///
/// `Instant` subtracts seconds and nanoseconds separately, which takes longer than reading the
/// clock.
#[inline]
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec`, which `now` is. Every kernel has this clock, so
    // the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

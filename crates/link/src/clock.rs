//! The kernel's monotonic clock, read once or twice for every message.

/// Nanoseconds since some moment before this process began.
///
/// The standard library's clock subtracts seconds and nanoseconds apart, which takes
/// longer than the reading itself.
#[inline]
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one `timespec`, which `now` is. It knows this clock, so the
    // call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

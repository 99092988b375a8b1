//! Calls that wait: if recent waits were short, they poll the kernel for a while before the
//! program sleeps (`spin.rs`). The kernel alone decides what is ready.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use libc::{c_int, epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

use super::{errno, real, set_errno};
use crate::kernel;
use crate::spin::{AdaptiveSpin, Contention, max_spin};
use crate::table;

static NOW: timespec = timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// A read that requests and gets at least this much is part of a long transfer: more data will
/// have arrived by the time the thread wakes, which is then cheaper per byte.
const LONG_REQUEST: usize = 128 << 10;
const LONG_RESULT: usize = 32 << 10;

thread_local! {
    /// Spin statistics of this thread's waits for descriptors.
    static SPIN: AdaptiveSpin = const { AdaptiveSpin::new() };
    static CONTENTION: Contention = const { Contention::new() };
    /// The thread's last read was part of a long transfer.
    static IS_LONG: Cell<bool> = const { Cell::new(false) };
}

/// Records the size of a read from a socket that is left to the kernel.
pub(crate) fn record_read(asked: usize, got: isize) {
    if asked >= LONG_REQUEST && usize::try_from(got).is_ok_and(|got| got >= LONG_RESULT) {
        IS_LONG.set(true);
    }
}

/// Blocks this thread's signals while it spins: a handler that runs between two polls would not
/// interrupt the sleep that follows.
struct Quiet {
    before: sigset_t,
}

impl Quiet {
    fn new() -> Quiet {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: the C library fills both sets, and leaves out its own signals.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Quiet {
                before: before.assume_init(),
            }
        }
    }

    /// True if a signal is pending whose handler interrupts a restartable wait.
    fn is_interrupted(&self) -> bool {
        let mut come = MaybeUninit::uninit();
        // SAFETY: the C library fills the set; actions are only queried.
        unsafe {
            if libc::sigpending(come.as_mut_ptr()) != 0 {
                return false;
            }
            let come = come.assume_init();
            (1..=64).any(|signal| {
                let mut action = MaybeUninit::<libc::sigaction>::zeroed();
                libc::sigismember(&raw const come, signal) == 1
                    && libc::sigismember(&raw const self.before, signal) == 0
                    && libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
                    && {
                        let action = action.assume_init();
                        action.sa_sigaction != libc::SIG_IGN
                            && action.sa_sigaction != libc::SIG_DFL
                            && action.sa_flags & libc::SA_RESTART == 0
                    }
            })
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let error = errno();
        // SAFETY: restores the previous set.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
        set_errno(error);
    }
}

/// Starts a wait: true if the thread may spin. Only then it is worth looking at the clock.
fn may_spin(spin: &AdaptiveSpin) -> bool {
    !IS_LONG.take()
        && spin.begin()
        && !max_spin().is_zero()
        && !CONTENTION.with(|it| it.is_recent(kernel::now_ns(), kernel::waited_for_cores_ns))
}

/// Polls until there is a result other than "nothing", or the time is over.
fn spin_until<T: Copy>(
    spin: &AdaptiveSpin,
    nothing: impl Fn(T) -> bool,
    question: impl Fn() -> T,
) -> Option<T> {
    let end = Instant::now() + max_spin();
    let answer = loop {
        let answer = question();
        if !nothing(answer) {
            break Some(answer);
        }
        if Instant::now() >= end {
            break None;
        }
        std::hint::spin_loop();
    };
    spin.end(answer.is_some());
    answer
}

/// Waits for descriptors: `look` polls without waiting, `sleep` waits with a signal mask or,
/// without one, as the program does.
fn wait(
    is_masked: bool,
    look: impl Fn() -> c_int,
    sleep: impl FnOnce(Option<*const sigset_t>) -> c_int,
) -> c_int {
    if !table::any_known() || !SPIN.with(may_spin) {
        return sleep(None);
    }
    let first = look();
    if first != 0 {
        return first;
    }
    // A program that passes a mask has the signals blocked that may interrupt its wait.
    let quiet = (!is_masked).then(Quiet::new);
    match SPIN.with(|spin| spin_until(spin, |answer| answer == 0, look)) {
        Some(answer) => answer,
        None => sleep(quiet.as_ref().map(|quiet| &raw const quiet.before)),
    }
}

type Mask = *const sigset_t;
type Events = *mut epoll_event;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_wait(
    fd: c_int,
    events: Events,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let real = real!(epoll_wait: fn(c_int, Events, c_int, c_int) -> c_int);
    let masked = real!(epoll_pwait: fn(c_int, Events, c_int, c_int, Mask) -> c_int);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe {
        if timeout == 0 {
            return real(fd, events, most, 0);
        }
        wait(
            false,
            || real(fd, events, most, 0),
            |mask| match mask {
                None => real(fd, events, most, timeout),
                Some(mask) => masked(fd, events, most, timeout, mask),
            },
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn epoll_pwait(
    fd: c_int,
    events: Events,
    most: c_int,
    timeout: c_int,
    mask: Mask,
) -> c_int {
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe {
        if mask.is_null() {
            return epoll_wait(fd, events, most, timeout);
        }
        let real = real!(epoll_pwait: fn(c_int, Events, c_int, c_int, Mask) -> c_int);
        if timeout == 0 {
            return real(fd, events, most, 0, mask);
        }
        wait(
            true,
            || real(fd, events, most, 0, mask),
            |_| real(fd, events, most, timeout, mask),
        )
    }
}

type Polled = *mut pollfd;

fn in_ms(timeout: c_int) -> Option<timespec> {
    let timeout = i64::from(timeout);
    (timeout >= 0).then_some(timespec {
        tv_sec: timeout / 1000,
        tv_nsec: timeout % 1000 * 1_000_000,
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn poll(fds: Polled, count: nfds_t, timeout: c_int) -> c_int {
    let real = real!(poll: fn(Polled, nfds_t, c_int) -> c_int);
    let masked = real!(ppoll: fn(Polled, nfds_t, *const timespec, Mask) -> c_int);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe {
        if timeout == 0 {
            return real(fds, count, 0);
        }
        wait(
            false,
            || real(fds, count, 0),
            |mask| match mask {
                None => real(fds, count, timeout),
                Some(mask) => {
                    let most = in_ms(timeout);
                    let most = most
                        .as_ref()
                        .map_or(std::ptr::null(), |most| &raw const *most);
                    masked(fds, count, most, mask)
                }
            },
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __poll_chk(
    fds: Polled,
    count: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    if usize::try_from(count).is_ok_and(|count| count > room / size_of::<pollfd>()) {
        std::process::abort();
    }
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe { poll(fds, count, timeout) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ppoll(
    fds: Polled,
    count: nfds_t,
    timeout: *const timespec,
    mask: Mask,
) -> c_int {
    let real = real!(ppoll: fn(Polled, nfds_t, *const timespec, Mask) -> c_int);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe {
        wait(
            !mask.is_null(),
            || real(fds, count, &raw const NOW, mask),
            |own| real(fds, count, timeout, own.unwrap_or(mask)),
        )
    }
}

/// The three sets of `select`, which each call overwrites.
#[derive(Clone, Copy)]
struct Sets {
    places: [*mut fd_set; 3],
    bytes: usize,
    asked: [[u8; size_of::<fd_set>()]; 3],
}

impl Sets {
    /// `None` if there are more descriptors than a set can hold.
    ///
    /// # Safety
    /// The sets are null, or as long as the number of descriptors requires.
    unsafe fn new(count: c_int, places: [*mut fd_set; 3]) -> Option<Sets> {
        let words = usize::try_from(count).ok()?.div_ceil(64);
        let bytes = words * 8;
        let mut asked = [[0; size_of::<fd_set>()]; 3];
        if bytes > size_of::<fd_set>() {
            return None;
        }
        for (asked, place) in asked.iter_mut().zip(places) {
            if !place.is_null() {
                // SAFETY: the caller's guarantee, and the length was checked.
                unsafe { std::ptr::copy_nonoverlapping(place.cast(), asked.as_mut_ptr(), bytes) };
            }
        }
        Some(Sets {
            places,
            bytes,
            asked,
        })
    }

    /// Restores the requested sets.
    ///
    /// # Safety
    /// The requirements of `new`.
    unsafe fn again(&self) {
        for (asked, place) in self.asked.iter().zip(self.places) {
            if !place.is_null() {
                // SAFETY: as in `new`.
                unsafe {
                    std::ptr::copy_nonoverlapping(asked.as_ptr(), place.cast(), self.bytes);
                }
            }
        }
    }
}

type Set = *mut fd_set;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn select(
    count: c_int,
    read: Set,
    write: Set,
    except: Set,
    timeout: *mut timeval,
) -> c_int {
    let real = real!(select: fn(c_int, Set, Set, Set, *mut timeval) -> c_int);
    let masked = real!(pselect: fn(c_int, Set, Set, Set, *const timespec, Mask) -> c_int);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe {
        let Some(sets) = Sets::new(count, [read, write, except]) else {
            return real(count, read, write, except, timeout);
        };
        let most = timeout.as_ref().map(|most| timespec {
            tv_sec: most.tv_sec + most.tv_usec / 1_000_000,
            tv_nsec: most.tv_usec % 1_000_000 * 1000,
        });
        if most.is_some_and(|most| (most.tv_sec, most.tv_nsec) == (0, 0)) {
            return real(count, read, write, except, timeout);
        }
        wait(
            false,
            || {
                sets.again();
                let mut now = timeval {
                    tv_sec: 0,
                    tv_usec: 0,
                };
                real(count, read, write, except, &raw mut now)
            },
            |mask| {
                let Some(mask) = mask else {
                    return real(count, read, write, except, timeout);
                };
                sets.again();
                let began = Instant::now();
                let most_at = most
                    .as_ref()
                    .map_or(std::ptr::null(), |most| &raw const *most);
                let found = masked(count, read, write, except, most_at, mask);
                if let Some(timeout) = timeout.as_mut() {
                    // Store the remaining time, as the kernel does.
                    let of_seconds =
                        Duration::from_secs(u64::try_from(timeout.tv_sec).unwrap_or(0));
                    let of_micros = u64::try_from(timeout.tv_usec).unwrap_or(0);
                    let given = of_seconds + Duration::from_micros(of_micros);
                    let left = given.saturating_sub(began.elapsed());
                    timeout.tv_sec = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
                    timeout.tv_usec = i64::from(left.subsec_micros());
                }
                found
            },
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: Set,
    write: Set,
    except: Set,
    timeout: *const timespec,
    mask: Mask,
) -> c_int {
    let real = real!(pselect: fn(c_int, Set, Set, Set, *const timespec, Mask) -> c_int);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe {
        let Some(sets) = Sets::new(count, [read, write, except]) else {
            return real(count, read, write, except, timeout, mask);
        };
        wait(
            !mask.is_null(),
            || {
                sets.again();
                real(count, read, write, except, &raw const NOW, mask)
            },
            |own| {
                sets.again();
                real(count, read, write, except, timeout, own.unwrap_or(mask))
            },
        )
    }
}

/// Reads from a connection by spinning; `look` is the read without blocking. `None` means that
/// the caller should block instead, or does not wait at all.
pub(crate) fn read(
    spin: &AdaptiveSpin,
    is_polled: impl Fn() -> bool,
    look: impl Fn() -> isize,
) -> Option<isize> {
    if !may_spin(spin) {
        return None;
    }
    let nothing = |got: isize| got < 0 && errno() == libc::EAGAIN;
    let first = look();
    if !nothing(first) || is_polled() {
        return Some(first);
    }
    let quiet = Quiet::new();
    let found = spin_until(spin, nothing, look);
    if found.is_none() && quiet.is_interrupted() {
        drop(quiet);
        set_errno(libc::EINTR);
        return Some(-1);
    }
    found
}

//! Start and end of a program, its supersteps and clocks.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use dipole_bsp::{Process, check_max_ranks};

use crate::checkpoint;
use crate::output;
use crate::section::{self, Site, Stage, call, call_and_wait, rank_and_size, refuse};
use crate::sections;

/// Names the function that contains the parallel part, if that is not `main`.
///
/// On all processes but the first it runs that function, and does not return.
///
/// # Safety
/// `spmd` must be null or a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_init(
    spmd: Option<unsafe extern "C" fn()>,
    _argc: c_int,
    _argv: *mut *mut c_char,
) {
    let site = Site::of("bsp_init");
    match section::stage() {
        Stage::Before => {}
        Stage::After if sections::can_continue() => {}
        Stage::Initialised => refuse(site, "called twice"),
        Stage::Inside => refuse(
            site,
            "called after bsp_begin: it must be the first statement of main",
        ),
        Stage::After if sections::are_named() => refuse(
            site,
            "a program whose ranks were restarted or moved has no further parallel sections",
        ),
        Stage::After => refuse(
            site,
            "called after bsp_end: it must be the first statement of main",
        ),
    }
    let Some(spmd) = spmd else {
        refuse(site, "the function must not be NULL");
    };
    sections::name(spmd);
    section::set_initialised();
    output::unbuffer_if_wanted();
    watch_the_end();
    if rank_and_size().0 > 0 {
        // SAFETY: the caller guarantees that `spmd` is a function.
        unsafe { spmd() };
        // The function must call bsp_end, which does not return on this process.
        refuse(site, "the function returned without bsp_begin and bsp_end");
    }
}

/// Begins the parallel part with at most `max` processes. Only the first process's value counts.
fn begin(max: i64) {
    let site = Site::of("bsp_begin");
    match section::stage() {
        Stage::Before | Stage::Initialised => {}
        Stage::Inside => refuse(site, "called twice"),
        Stage::After if sections::can_continue() => {}
        Stage::After => refuse(
            site,
            "called after bsp_end: only functions that bsp_init names may follow each other",
        ),
    }
    dipole_bsp::log::init_library("libbsp");
    output::unbuffer_if_wanted();
    // On other processes the argument may be uninitialised.
    let max = (rank_and_size().0 == 0)
        .then(|| check_max_ranks(max))
        .transpose();
    let max = max.unwrap_or_else(|failure| refuse(site, &failure.to_string()));
    let begun = match (sections::are_named(), rank_and_size().0) {
        (false, _) => Process::begin(max),
        (true, 0) => sections::begin(max).map(Some),
        (true, _) => sections::join().map(Some),
    };
    match begun {
        Ok(Some(process)) => section::begin(process),
        // More processes were launched than take part.
        Ok(None) => section::leave(),
        Err(failure) => section::fail_to_begin(site, &failure),
    }
    watch_the_end();
}

/// Begins the parallel part.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_begin(maxprocs: c_int) {
    begin(maxprocs.into());
}

/// Variant of `bsp_begin` with an unsigned argument, as in MulticoreBSP.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_begin(maxprocs: c_uint) {
    begin(maxprocs.into());
}

/// Ends the parallel part, and all processes but the first.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_end() {
    match section::end("bsp_end") {
        (0, None) => {}
        (0, Some(standby)) => sections::keep(standby),
        (_, None) => section::leave(),
        (_, Some(standby)) => sections::wait(standby),
    }
}

/// The process that registered `at_exit`.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Reports a program that ends in the middle, while other ranks wait for it.
fn watch_the_end() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: `at_exit` stays valid, because the library is never unloaded (-z nodelete). If the
        // registration fails, only the error message is lost.
        let _status = unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    // A forked child may exit at any time.
    if PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    match section::stage() {
        Stage::Inside => refuse(Site::of("exit"), "the program ends without bsp_end"),
        Stage::After => sections::dismiss(),
        Stage::Initialised if rank_and_size().1 > 1 => {
            refuse(
                Site::of("exit"),
                "the program ends without bsp_begin, in which the other ranks wait",
            );
        }
        _ => {}
    }
}

/// The number of processes; before `bsp_begin`, the number launched.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_nprocs() -> c_int {
    let size = section::size_and_rank().map_or_else(|| rank_and_size().1, |(size, _)| size);
    c_int::try_from(size).unwrap_or(c_int::MAX)
}

fn pid(file: *const c_char, line: c_int) -> c_int {
    match section::size_and_rank() {
        Some((_, rank)) => c_int::try_from(rank).unwrap_or(c_int::MAX),
        None => {
            // SAFETY: `file` and `line` come from `bsp_pid_at`, which has the same contract.
            unsafe { section::bsp_call_site(file, line) };
            call("bsp_pid", |part| Ok(part.process.rank().cast_signed()))
        }
    }
}

/// The rank of this process.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_pid() -> c_int {
    pid(std::ptr::null(), 0)
}

/// Like `bsp_pid`, with the source position of the call.
///
/// # Safety
/// `file` must be null or a string that stays valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_pid_at(file: *const c_char, line: c_int) -> c_int {
    pid(file, line)
}

/// Seconds since the parallel part began.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_time() -> f64 {
    call("bsp_time", |part| Ok(part.process.elapsed().as_secs_f64()))
}

/// Like `bsp_time`, with the source position of the call.
///
/// # Safety
/// `file` must be null or a string that stays valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_time_at(file: *const c_char, line: c_int) -> f64 {
    // SAFETY: the caller guarantees the same.
    unsafe { section::bsp_call_site(file, line) };
    bsp_time()
}

/// Seconds since the last call, or since the parallel part began.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_dtime() -> f64 {
    call("bsp_dtime", |part| {
        let now = part.process.elapsed().as_secs_f64();
        Ok(now - std::mem::replace(&mut part.lap, now))
    })
}

/// Seconds of processor time that this process has used.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_cputime() -> f64 {
    let mut used = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `used` is a local variable.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut used) };
    #[allow(
        clippy::cast_precision_loss,
        reason = "seconds below 2^53, nanoseconds below 2^30"
    )]
    let seconds = used.tv_sec as f64 + used.tv_nsec as f64 * 1e-9;
    seconds
}

/// Ends the superstep.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_sync() {
    call_and_wait("bsp_sync", |part| {
        if checkpoint::is_due() {
            part.process.request_checkpoint()?;
        }
        part.process.sync()
    });
}

/// Does nothing: no launcher adds arguments that would have to be removed.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_fix_argv(_argc: *mut c_int, _argv: *mut *mut *mut c_char) {}

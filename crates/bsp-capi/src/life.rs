//! How a program begins and ends, its supersteps and its clocks.

use std::ffi::{c_char, c_int, c_uint};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use dipole_bsp::{Process, check_most};

use crate::checkpoint;
use crate::section::{self, Site, Stage, call, call_and_wait, launched, refuse};

/// Names the function that is the parallel part, if that is not `main`.
///
/// On all processes but the first one it runs that function, and does not return.
///
/// # Safety
/// `spmd` is null or a function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_init(
    spmd: Option<unsafe extern "C" fn()>,
    _argc: c_int,
    _argv: *mut *mut c_char,
) {
    let site = Site::of("bsp_init");
    match section::stage() {
        Stage::Before => {}
        Stage::Announced => refuse(site, "called twice"),
        Stage::Inside => refuse(
            site,
            "called after bsp_begin: it must be the first statement of main",
        ),
        Stage::After => refuse(
            site,
            "called after bsp_end: it must be the first statement of main",
        ),
    }
    let Some(spmd) = spmd else {
        refuse(site, "the function must not be NULL");
    };
    section::announce();
    watch_the_end();
    if launched().0 > 0 {
        // SAFETY: a function by contract.
        unsafe { spmd() };
        // It must have called bsp_end, which does not return here.
        refuse(site, "the function returned without bsp_begin and bsp_end");
    }
}

/// Begins the parallel part with at most so many processes; only the first one's number counts.
fn begin(most: i64) {
    let site = Site::of("bsp_begin");
    match section::stage() {
        Stage::Before | Stage::Announced => {}
        Stage::Inside => refuse(site, "called twice"),
        Stage::After => refuse(site, "called after bsp_end: there is one parallel part"),
    }
    dipole_bsp::log::init_library("libbsp");
    // The arguments of others may be anything.
    let most = (launched().0 == 0).then(|| check_most(most)).transpose();
    let most = most.unwrap_or_else(|failure| refuse(site, &failure.to_string()));
    match Process::begin(most) {
        Ok(Some(process)) => section::begin(process),
        // More were launched than are wanted.
        Ok(None) => {
            section::leave_out();
            exit()
        }
        Err(failure) => section::fail_to_begin(site, &failure),
    }
    watch_the_end();
}

/// Begins the parallel part.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_begin(maxprocs: c_int) {
    begin(maxprocs.into());
}

/// The same with the other dialect's type.
#[unsafe(no_mangle)]
pub extern "C" fn mcbsp_begin(maxprocs: c_uint) {
    begin(maxprocs.into());
}

/// Ends the parallel part, and all processes but the first one.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_end() {
    let rank = section::end("bsp_end");
    if rank > 0 {
        exit();
    }
}

fn exit() -> ! {
    // SAFETY: called by the thread that runs the program, as the program itself might.
    unsafe { libc::exit(0) }
}

/// The process whose end is watched.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Sees to it that a program does not end in the middle, while others wait for it.
fn watch_the_end() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        PROCESS.store(std::process::id(), Ordering::Relaxed);
        // SAFETY: the function stays, since the library is not unloaded (-z nodelete). That it cannot be
        // registered takes away a message, no more.
        let _status = unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    // A child of it may end whenever it wants.
    if PROCESS.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    match section::stage() {
        Stage::Inside => refuse(Site::of("exit"), "the program ends without bsp_end"),
        Stage::Announced if launched().1 > 1 => {
            refuse(
                Site::of("exit"),
                "the program ends without bsp_begin, in which the other ranks wait",
            );
        }
        _ => {}
    }
}

/// How many processes there are; before `bsp_begin`, how many there can be.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_nprocs() -> c_int {
    let size = section::place().map_or_else(|| launched().1, |(size, _)| size);
    c_int::try_from(size).unwrap_or(c_int::MAX)
}

fn pid(file: *const c_char, line: c_int) -> c_int {
    match section::place() {
        Some((_, rank)) => c_int::try_from(rank).unwrap_or(c_int::MAX),
        None => {
            // SAFETY: handed on as it was told by `bsp_pid_at`.
            unsafe { section::bsp_call_site(file, line) };
            call("bsp_pid", |inside| Ok(inside.process.rank().cast_signed()))
        }
    }
}

/// Which of them this one is.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_pid() -> c_int {
    pid(std::ptr::null(), 0)
}

/// The same, called from there.
///
/// # Safety
/// `file` is null or a string that stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_pid_at(file: *const c_char, line: c_int) -> c_int {
    pid(file, line)
}

/// Seconds since the parallel part began.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_time() -> f64 {
    call("bsp_time", |inside| {
        Ok(inside.process.elapsed().as_secs_f64())
    })
}

/// The same, called from there.
///
/// # Safety
/// `file` is null or a string that stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_time_at(file: *const c_char, line: c_int) -> f64 {
    // SAFETY: the contract is the same.
    unsafe { section::bsp_call_site(file, line) };
    bsp_time()
}

/// Seconds since this was called last, or since the parallel part began.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_dtime() -> f64 {
    call("bsp_dtime", |inside| {
        let now = inside.process.elapsed().as_secs_f64();
        Ok(now - std::mem::replace(&mut inside.lap, now))
    })
}

/// Seconds of processor time that this process has used.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_cputime() -> f64 {
    let mut used = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the struct, which is a local.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut used) };
    #[allow(
        clippy::cast_precision_loss,
        reason = "seconds below 2^53, nanoseconds below 2^30"
    )]
    let seconds = used.tv_sec as f64 + used.tv_nsec as f64 * 1e-9;
    seconds
}

/// Seconds that a superstep of so many processes takes (0: of those there are), in which the busiest one computes for
/// `work` seconds and sends or receives `h` bytes at most; below 0 if it cannot be known.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_predict(nprocs: c_int, work: f64, h: f64) -> f64 {
    call("bsp_predict", |inside| {
        let process = &inside.process;
        let size = match nprocs {
            0 => process.size(),
            _ => check_most(nprocs.into())?,
        };
        let seconds = process.machine().superstep_seconds(size, work, h);
        Ok(seconds.unwrap_or(-1.0))
    })
}

/// Ends the superstep.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_sync() {
    checkpoint::count_superstep();
    call_and_wait("bsp_sync", |inside| inside.process.sync());
}

/// Nothing: no launcher adds arguments that would have to be taken away.
#[unsafe(no_mangle)]
pub extern "C" fn bsp_fix_argv(_argc: *mut c_int, _argv: *mut *mut *mut c_char) {}

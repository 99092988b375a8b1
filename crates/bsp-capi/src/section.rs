//! The process of this program between `bsp_begin` and `bsp_end`, and the entry into every call.
//!
//! [`call`] finds the process, sets its position in the source, and ends the job if the call fails or
//! panics: nothing unwinds into C, and no failure is returned to it.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dipole_bsp::{Call, Failure};
use dipole_reshuffle::Registered;

use crate::scratch::{Process, Scratch, Standby};

/// State of the program's parallel part.
pub(crate) struct ParallelPart {
    pub(crate) process: Process,
    pub(crate) scratch: Scratch,
    /// Reshuffle plans, and those destroyed in this superstep, whose memory other processes may still
    /// access.
    #[allow(clippy::vec_box, reason = "programs hold their addresses")]
    pub(crate) plans: Vec<Box<Registered>>,
    pub(crate) destroyed: Vec<(u32, Box<Registered>)>,
    /// Time of the last call of `bsp_dtime`, in seconds since the start.
    pub(crate) lap: f64,
    /// Position of the last call that may have waited, as it was given and as strings.
    last: ((*const c_char, c_int), Option<(&'static str, u32)>),
}

/// The stage of the program's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Stage {
    Before = 0,
    /// `bsp_init` has been called.
    Initialised = 1,
    Inside = 2,
    After = 3,
}

static STAGE: AtomicU32 = AtomicU32::new(Stage::Before as u32);
/// The thread that runs the parallel part; 0 outside of it.
static OWNER: AtomicU64 = AtomicU64::new(0);
/// Number of processes, and the rank of this one, during the parallel part.
static SIZE_AND_RANK: (AtomicU32, AtomicU32) = (AtomicU32::new(0), AtomicU32::new(0));
static FILE: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
static LINE: AtomicI32 = AtomicI32::new(0);

struct Section {
    part: UnsafeCell<Option<ParallelPart>>,
    busy: UnsafeCell<bool>,
}

// SAFETY: only the thread in `OWNER` accesses the cells (`enter`, `begin`), and there is one at a time.
unsafe impl Sync for Section {}

static SECTION: Section = Section {
    part: UnsafeCell::new(None),
    busy: UnsafeCell::new(false),
};

/// An identifier of this thread that no other living thread has. Never 0.
#[inline]
fn thread() -> u64 {
    // SAFETY: the call has no preconditions.
    let own = unsafe { libc::pthread_self() };
    own as u64
}

pub(crate) fn stage() -> Stage {
    match STAGE.load(Ordering::Relaxed) {
        0 => Stage::Before,
        1 => Stage::Initialised,
        2 => Stage::Inside,
        _ => Stage::After,
    }
}

pub(crate) fn set_initialised() {
    STAGE.store(Stage::Initialised as u32, Ordering::Relaxed);
}

/// Ends this process, which takes no part, or no further one.
pub(crate) fn leave() -> ! {
    STAGE.store(Stage::After as u32, Ordering::Relaxed);
    // SAFETY: the thread that runs the program calls this, as the program itself could.
    unsafe { libc::exit(0) }
}

/// Sets the position of the next call. The macros of `bsp.h` call this.
///
/// # Safety
/// `file` must be null or a string that stays valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_call_site(file: *const c_char, line: c_int) {
    FILE.store(file.cast_mut(), Ordering::Relaxed);
    LINE.store(line, Ordering::Relaxed);
}

/// The current call, with its position if the program gives it.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    name: &'static str,
    file: *const c_char,
    line: c_int,
}

impl Site {
    /// Takes the position set for this call.
    #[inline]
    pub(crate) fn of(name: &'static str) -> Site {
        let file = FILE.load(Ordering::Relaxed);
        FILE.store(ptr::null_mut(), Ordering::Relaxed);
        let line = LINE.load(Ordering::Relaxed);
        Site { name, file, line }
    }

    /// The call with its position as strings. The file name is checked only here.
    pub(crate) fn call(self) -> Call {
        let file = match self.file.is_null() {
            true => None,
            // SAFETY: the caller of `bsp_call_site` guarantees that it is a string that stays valid.
            false => unsafe { CStr::from_ptr(self.file) }.to_str().ok(),
        };
        let place = file.map(|file| (file, self.line.unsigned_abs()));
        Call {
            name: self.name,
            place,
        }
    }
}

/// The rank of this process, and the number of processes launched.
pub(crate) fn rank_and_size() -> (u32, u32) {
    static RANK_AND_SIZE: OnceLock<(u32, u32)> = OnceLock::new();
    *RANK_AND_SIZE.get_or_init(|| match dipole_bsp::rank_and_size() {
        Ok(found) => found,
        Err(failure) => {
            eprintln!("bsp: {failure}");
            terminate()
        }
    })
}

/// Begins the parallel part.
pub(crate) fn begin(process: Process) {
    SIZE_AND_RANK.0.store(process.size(), Ordering::Relaxed);
    SIZE_AND_RANK.1.store(process.rank(), Ordering::Relaxed);
    OWNER.store(thread(), Ordering::Relaxed);
    // SAFETY: this thread is the owner since the line before. There was no owner until then, because the
    // stage is not yet `ParallelPart`.
    unsafe {
        *SECTION.part.get() = Some(ParallelPart {
            process,
            scratch: Scratch::default(),
            plans: Vec::new(),
            destroyed: Vec::new(),
            lap: 0.0,
            last: ((ptr::null(), 0), None),
        });
    }
    STAGE.store(Stage::Inside as u32, Ordering::Relaxed);
}

/// The number of processes and the rank of this one, during the parallel part. Operators of collectives
/// may call it, too.
#[inline]
pub(crate) fn size_and_rank() -> Option<(u32, u32)> {
    let (size, rank) = &SIZE_AND_RANK;
    (stage() == Stage::Inside).then(|| (size.load(Ordering::Relaxed), rank.load(Ordering::Relaxed)))
}

/// Begins a call, which must be the only one in progress.
#[inline]
fn enter(site: Site) -> (&'static mut Option<ParallelPart>, &'static mut bool) {
    if OWNER.load(Ordering::Relaxed) != thread() {
        refuse(site, stage_error());
    }
    // SAFETY: this thread is the owner. `busy` shows whether one of its calls is already in progress, as
    // when the operator of a collective makes a call; that is refused. So the reference to `part` is the
    // only one that is used.
    let (part, busy) = unsafe { (&mut *SECTION.part.get(), &mut *SECTION.busy.get()) };
    if *busy {
        refuse(site, "an operator of a collective may not communicate");
    }
    *busy = true;
    (part, busy)
}

/// Runs the body of the function `name` in the parallel part.
#[inline]
pub(crate) fn call<A>(
    name: &'static str,
    body: impl FnOnce(&mut ParallelPart) -> Result<A, Failure>,
) -> A {
    run(Site::of(name), body)
}

#[inline]
fn run<A>(site: Site, body: impl FnOnce(&mut ParallelPart) -> Result<A, Failure>) -> A {
    let (part, busy) = enter(site);
    let Some(part) = part else {
        refuse(site, stage_error());
    };
    match catch_unwind(AssertUnwindSafe(|| body(part))) {
        Ok(Ok(result)) => {
            *busy = false;
            result
        }
        Ok(Err(failure)) => fail(site, &mut part.process, &failure),
        Err(panic) => end_for(site, &mut part.process, &internal(&*panic)),
    }
}

/// Like [`call`], for calls that may take long: they log what they wait for.
pub(crate) fn call_and_wait<A>(
    name: &'static str,
    body: impl FnOnce(&mut ParallelPart) -> Result<A, Failure>,
) -> A {
    let site = Site::of(name);
    run(site, |part| {
        if part.last.0 != (site.file, site.line) {
            part.last = ((site.file, site.line), site.call().place);
        }
        let place = part.last.1;
        part.process.set_call(Call { name, place });
        body(part)
    })
}

/// Ends the parallel part. Returns the rank of this process, and what remains for further parts.
pub(crate) fn end(name: &'static str) -> (u32, Option<Standby>) {
    let ended = call_and_wait(name, |part| {
        let standby = part.process.end_section()?;
        Ok((part.process.rank(), standby))
    });
    // SAFETY: this thread is the owner, and the call is over.
    unsafe { *SECTION.part.get() = None };
    STAGE.store(Stage::After as u32, Ordering::Relaxed);
    OWNER.store(0, Ordering::Relaxed);
    ended
}

fn report(position: &str, what: &str) {
    eprintln!("bsp: {position}: {what}");
}

/// Time that processes leave to the one that reports why the job ends. The launcher kills all of them
/// as soon as one has ended.
const REPORT_TIME: Duration = Duration::from_millis(200);

/// Ends this process, which could not begin.
#[cold]
pub(crate) fn fail_to_begin(site: Site, failure: &Failure) -> ! {
    match failure {
        Failure::Aborted { .. } => std::thread::sleep(REPORT_TIME),
        _ => {
            let rank = rank_and_size().0;
            report(
                &format!("rank {rank}: {}", site.call()),
                &failure.to_string(),
            );
        }
    }
    terminate()
}

#[cold]
fn fail(site: Site, process: &mut Process, failure: &Failure) -> ! {
    let reports = process.fail(failure);
    end_with(site, process, reports, &failure.to_string())
}

/// Ends the job for a reason.
#[cold]
fn end_for(site: Site, process: &mut Process, why: &str) -> ! {
    let reports = process.abort();
    end_with(site, process, reports, why)
}

#[cold]
fn end_with(site: Site, process: &mut Process, reports: bool, why: &str) -> ! {
    if reports {
        process.set_call(site.call());
        report(&process.position(), why);
    } else {
        std::thread::sleep(REPORT_TIME);
    }
    terminate()
}

#[cold]
fn internal(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned());
    format!(
        "internal error in libbsp, please report it: {}",
        text.unwrap_or_default()
    )
}

fn stage_error() -> &'static str {
    match stage() {
        Stage::Before | Stage::Initialised => "called before bsp_begin",
        Stage::Inside => "called by another thread than the one that called bsp_begin",
        Stage::After => "called after bsp_end",
    }
}

/// Ends the job for a reason, at any stage.
#[cold]
pub(crate) fn refuse(site: Site, why: &str) -> ! {
    if OWNER.load(Ordering::Relaxed) == thread() {
        // SAFETY: this thread is the owner. If one of its calls is in progress, because an operator has
        // made another one, it never continues.
        if let Some(part) = unsafe { &mut *SECTION.part.get() } {
            end_for(site, &mut part.process, why);
        }
    }
    report(&format!("rank {}: {}", rank_and_size().0, site.call()), why);
    terminate()
}

/// Ends this process with an error status, after writing buffered output.
fn terminate() -> ! {
    // SAFETY: both may be called at any time. Handlers of `atexit` are skipped, because one of them may be
    // running.
    unsafe {
        libc::fflush(ptr::null_mut());
        libc::_exit(1)
    }
}

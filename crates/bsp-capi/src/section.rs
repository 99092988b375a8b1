//! The process of this program between `bsp_begin` and `bsp_end`, and the way into every call.
//!
//! [`call`] finds the process, tells it where the program is, and ends the job if the call fails or panics: nothing
//! unwinds into C, and no failure is returned to it.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use dipole_bsp::{Call, Failure};

use crate::plan::Reshuffle;
use crate::scratch::{Process, Scratch};

/// What belongs to the program's parallel part.
pub(crate) struct Inside {
    pub(crate) process: Process,
    pub(crate) scratch: Scratch,
    /// Plans to reshuffle, and those that were destroyed in a superstep, whose memory others may still reach.
    #[allow(clippy::vec_box, reason = "programs hold their addresses")]
    pub(crate) plans: Vec<Box<Reshuffle>>,
    pub(crate) leaving: Vec<(u32, Box<Reshuffle>)>,
    /// When `bsp_dtime` was called last, in seconds since the beginning.
    pub(crate) lap: f64,
    /// The place of the last call that may have waited, as it was told and in words.
    last: ((*const c_char, c_int), Option<(&'static str, u32)>),
}

/// Where the program is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Stage {
    Before = 0,
    /// `bsp_init` has been called.
    Announced = 1,
    Inside = 2,
    After = 3,
}

static STAGE: AtomicU32 = AtomicU32::new(Stage::Before as u32);
/// The thread that is inside; 0 for none.
static OWNER: AtomicU64 = AtomicU64::new(0);
/// How many processes there are, and which this is, while the program is inside.
static PLACE: (AtomicU32, AtomicU32) = (AtomicU32::new(0), AtomicU32::new(0));
static FILE: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
static LINE: AtomicI32 = AtomicI32::new(0);

struct Section {
    inside: UnsafeCell<Option<Inside>>,
    busy: UnsafeCell<bool>,
}

// SAFETY: both cells are reached by the thread in `OWNER` only (`enter`, `begin`), and there is one at a time.
unsafe impl Sync for Section {}

static SECTION: Section = Section {
    inside: UnsafeCell::new(None),
    busy: UnsafeCell::new(false),
};

/// This thread, as a number that no other living thread has; never 0.
#[inline]
fn thread() -> u64 {
    // SAFETY: has no preconditions.
    let own = unsafe { libc::pthread_self() };
    own as u64
}

pub(crate) fn stage() -> Stage {
    match STAGE.load(Ordering::Relaxed) {
        0 => Stage::Before,
        1 => Stage::Announced,
        2 => Stage::Inside,
        _ => Stage::After,
    }
}

pub(crate) fn announce() {
    STAGE.store(Stage::Announced as u32, Ordering::Relaxed);
}

/// This process takes no part.
pub(crate) fn leave_out() {
    STAGE.store(Stage::After as u32, Ordering::Relaxed);
}

/// Tells the library where the call is that follows; what the macros of `bsp.h` do.
///
/// # Safety
/// `file` is null or a string that stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_call_site(file: *const c_char, line: c_int) {
    FILE.store(file.cast_mut(), Ordering::Relaxed);
    LINE.store(line, Ordering::Relaxed);
}

/// The call being made, and where it is if the program has said so.
#[derive(Clone, Copy)]
pub(crate) struct Site {
    name: &'static str,
    file: *const c_char,
    line: c_int,
}

impl Site {
    /// What has been said counts for one call.
    #[inline]
    pub(crate) fn of(name: &'static str) -> Site {
        let file = FILE.load(Ordering::Relaxed);
        FILE.store(ptr::null_mut(), Ordering::Relaxed);
        let line = LINE.load(Ordering::Relaxed);
        Site { name, file, line }
    }

    /// In words; that a file's name is looked at waits until here.
    pub(crate) fn call(self) -> Call {
        let file = match self.file.is_null() {
            true => None,
            // SAFETY: a string that stays, by the contract of `bsp_call_site`.
            false => unsafe { CStr::from_ptr(self.file) }.to_str().ok(),
        };
        let place = file.map(|file| (file, self.line.unsigned_abs()));
        Call {
            name: self.name,
            place,
        }
    }
}

/// This process's rank and how many were launched.
pub(crate) fn launched() -> (u32, u32) {
    static LAUNCHED: OnceLock<(u32, u32)> = OnceLock::new();
    *LAUNCHED.get_or_init(|| match dipole_bsp::rank_and_size() {
        Ok(launched) => launched,
        Err(failure) => {
            eprintln!("bsp: {failure}");
            leave()
        }
    })
}

/// The program is inside from now on.
pub(crate) fn begin(process: Process) {
    PLACE.0.store(process.size(), Ordering::Relaxed);
    PLACE.1.store(process.rank(), Ordering::Relaxed);
    OWNER.store(thread(), Ordering::Relaxed);
    // SAFETY: this thread is the owner as of the line before, and there was none until then, since the stage is not
    // yet `Inside`.
    unsafe {
        *SECTION.inside.get() = Some(Inside {
            process,
            scratch: Scratch::default(),
            plans: Vec::new(),
            leaving: Vec::new(),
            lap: 0.0,
            last: ((ptr::null(), 0), None),
        });
    }
    STAGE.store(Stage::Inside as u32, Ordering::Relaxed);
}

/// How many processes there are and which this is, from inside; also for operators of collectives.
#[inline]
pub(crate) fn place() -> Option<(u32, u32)> {
    let (size, rank) = &PLACE;
    (stage() == Stage::Inside).then(|| (size.load(Ordering::Relaxed), rank.load(Ordering::Relaxed)))
}

/// What a call finds, and that it is the only one under way.
#[inline]
fn enter(site: Site) -> (&'static mut Option<Inside>, &'static mut bool) {
    if OWNER.load(Ordering::Relaxed) != thread() {
        refuse(site, why_not());
    }
    // SAFETY: this thread is the owner, and `busy` tells whether a call of it is under way already (it would be an
    // operator's, called by a collective), so the reference to `inside` is the only one.
    let (inside, busy) = unsafe { (&mut *SECTION.inside.get(), &mut *SECTION.busy.get()) };
    if *busy {
        refuse(site, "an operator of a collective may not communicate");
    }
    *busy = true;
    (inside, busy)
}

/// Runs the body of the function `name` from inside the parallel part.
#[inline]
pub(crate) fn call<A>(
    name: &'static str,
    body: impl FnOnce(&mut Inside) -> Result<A, Failure>,
) -> A {
    run(Site::of(name), body)
}

#[inline]
fn run<A>(site: Site, body: impl FnOnce(&mut Inside) -> Result<A, Failure>) -> A {
    let (inside, busy) = enter(site);
    let Some(inside) = inside else {
        refuse(site, why_not());
    };
    match catch_unwind(AssertUnwindSafe(|| body(inside))) {
        Ok(Ok(answer)) => {
            *busy = false;
            answer
        }
        Ok(Err(failure)) => fail(site, &mut inside.process, &failure),
        Err(panic) => end_for(site, &mut inside.process, &internal(&*panic)),
    }
}

/// The same for what may take long, where the process is to say for whom it waits.
pub(crate) fn call_and_wait<A>(
    name: &'static str,
    body: impl FnOnce(&mut Inside) -> Result<A, Failure>,
) -> A {
    let site = Site::of(name);
    run(site, |inside| {
        if inside.last.0 != (site.file, site.line) {
            inside.last = ((site.file, site.line), site.call().place);
        }
        let place = inside.last.1;
        inside.process.set_call(Call { name, place });
        body(inside)
    })
}

/// Ends the parallel part for good; which rank this was.
pub(crate) fn end(name: &'static str) -> u32 {
    let rank = call_and_wait(name, |inside| {
        inside.process.end()?;
        Ok(inside.process.rank())
    });
    // SAFETY: this thread is the owner, and the call is over.
    unsafe { *SECTION.inside.get() = None };
    STAGE.store(Stage::After as u32, Ordering::Relaxed);
    OWNER.store(0, Ordering::Relaxed);
    rank
}

fn say(position: &str, what: &str) {
    eprintln!("bsp: {position}: {what}");
}

/// How long processes that say nothing leave to the one that says why the job ends: their launcher ends all as soon
/// as one has ended.
const TIME_TO_TELL: Duration = Duration::from_millis(200);

/// Ends this process, which could not begin.
#[cold]
pub(crate) fn fail_to_begin(site: Site, failure: &Failure) -> ! {
    match failure {
        Failure::Aborted { .. } => std::thread::sleep(TIME_TO_TELL),
        _ => {
            let rank = launched().0;
            say(
                &format!("rank {rank}: {}", site.call()),
                &failure.to_string(),
            );
        }
    }
    leave()
}

#[cold]
fn fail(site: Site, process: &mut Process, failure: &Failure) -> ! {
    let speaks = process.fail(failure);
    end_with(site, process, speaks, &failure.to_string())
}

/// Ends the job for a reason.
#[cold]
fn end_for(site: Site, process: &mut Process, why: &str) -> ! {
    let speaks = process.abort();
    end_with(site, process, speaks, why)
}

#[cold]
fn end_with(site: Site, process: &mut Process, speaks: bool, why: &str) -> ! {
    if speaks {
        process.set_call(site.call());
        say(&process.position(), why);
    } else {
        std::thread::sleep(TIME_TO_TELL);
    }
    leave()
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

fn why_not() -> &'static str {
    match stage() {
        Stage::Before | Stage::Announced => "called before bsp_begin",
        Stage::Inside => "called by another thread than the one that called bsp_begin",
        Stage::After => "called after bsp_end",
    }
}

/// Ends the job with a reason, from wherever the program is.
#[cold]
pub(crate) fn refuse(site: Site, why: &str) -> ! {
    if OWNER.load(Ordering::Relaxed) == thread() {
        // SAFETY: this thread is the owner. If a call of it is under way (an operator's collective), that one never
        // goes on.
        if let Some(inside) = unsafe { &mut *SECTION.inside.get() } {
            end_for(site, &mut inside.process, why);
        }
    }
    say(&format!("rank {}: {}", launched().0, site.call()), why);
    leave()
}

/// Ends this process with a status that says so; what it has printed is written out.
fn leave() -> ! {
    // SAFETY: both may be called at any time; handlers of `atexit` are left out, since one may be running.
    unsafe {
        libc::fflush(ptr::null_mut());
        libc::_exit(1)
    }
}

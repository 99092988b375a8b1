//! Takes images of this process while it goes on.
//!
//! The pause is the time of one fork. The first child ends at once, so that the program never has
//! another child to wait for; it leaves its memory to the writer of the image, which runs on a stack
//! of its own. The writer forks a third process, which stands still and so is a consistent copy, and
//! reads the memory of that one; its own memory changes as it works.
//!
//! An image holds the pages that were written since the image on which it builds. They are found in
//! three places. [`Tracker::advance`] returns those up to a moment before the fork, and protects them.
//! After the fork, the process looks for those that it has written since. And the C library writes
//! to the memory of the child when it completes the fork: such pages belong to the child alone. They
//! are in the next image, too, because there the pages of the program itself are right.

use std::ffi::{c_int, c_void};
use std::fs;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::context::call_with_context;
use crate::descriptors::open_files;
use crate::error::{CaptureError, Outcome, Until};
use crate::handover::Handover;
use crate::history::{Choice, History};
use crate::image::{Base, Header, Identity, Layout, Thread};
use crate::machine::Machine;
use crate::memory::{self, Frozen};
use crate::ranges::Ranges;
use crate::scratch::Scratch;
use crate::store::{PartFile, Store};
use crate::thread::{
    SIGNALS, block_signals, set_thread_id, signal_action, thread, unblock_signals,
};
use crate::tracker::{Pages, Tracker};
use crate::transfer::Transfer;

/// Complete sets that are kept. The older one serves if the newer one turns out to be damaged.
const KEPT: usize = 2;
/// Threads of this library begin their names with this.
const OWN_THREADS: &str = "dipole-";

fn system(doing: &'static str) -> impl Fn(io::Error) -> CaptureError {
    move |cause| CaptureError::System { doing, cause }
}

/// Takes the images of this process, and remembers what has changed since the last ones.
#[derive(Debug, Default)]
pub struct Recorder {
    tracking: Tracking,
    history: History,
    /// The last image, which may still be being written.
    last: Option<PathBuf>,
}

#[derive(Debug, Default)]
enum Tracking {
    /// No image was taken yet. Until then nothing is registered, and nothing costs time.
    #[default]
    Unused,
    Active(Tracker),
    /// The kernel does not support it: all images are full ones.
    Unavailable,
}

impl Recorder {
    /// A recorder that takes full images only, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn of_full_images() -> Recorder {
        Recorder {
            tracking: Tracking::Unavailable,
            ..Recorder::default()
        }
    }

    /// True while the last image is being written.
    #[must_use]
    pub fn is_writing(&self) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|image| image.with_extension("part").exists())
    }

    /// Takes an image of this process. Returns once more in each process that is restored from it.
    ///
    /// The image is complete when [`Store`] lists it. If it cannot be written, the child prints why,
    /// after `reporter`, and the program goes on without it. Files below the folders `ignored` are not
    /// saved: they belong to this library.
    ///
    /// # Errors
    /// The program cannot be saved, or no child can be started, or the image that is waited for was
    /// not written.
    pub fn take(
        &mut self,
        store: &Store,
        identity: Identity,
        ignored: &[PathBuf],
        reporter: &str,
        until: Until,
    ) -> Result<Outcome, CaptureError> {
        check_threads()?;
        let header = header(identity, ignored)?;
        let ended = match until {
            Until::Begun => None,
            Until::Written => Some(io::pipe().map_err(system("waiting for the image"))?),
        };
        let (progress, choice) = self.plan(store, &header);
        let part = store.begin(identity, choice.as_ref().map(|choice| choice.base.set))?;
        let image = part.image().to_owned();
        self.last = Some(image.clone());
        let starting = system("starting a child that writes the image");
        let mut capture = Capture {
            header,
            part,
            store,
            reporter,
            forked: 0,
            ended,
            transfer: choice
                .is_some()
                .then(Transfer::new)
                .transpose()
                .map_err(&starting)?,
            scratch: Scratch::map().map_err(&starting)?,
            choice,
            progress,
        };
        let former = block_signals();
        // SAFETY: the callback returns, because it never panics: it forks, and all else happens in
        // children, which end. `capture` outlives the call.
        let handover = unsafe { call_with_context(fork_writer, (&raw mut capture).cast()) };
        if handover != 0 {
            set_thread_id();
            // SAFETY: after a restoration, the returned address is that of a handover, which nothing
            // else refers to.
            let environment = unsafe { Handover::take(handover) };
            // Everything else describes the former process. Its descriptors are gone, and perhaps in
            // use for something else.
            std::mem::forget(capture);
            std::mem::forget(std::mem::take(self));
            dipole_link::fork::begin_incarnation();
            unblock_signals(&former);
            return Ok(Outcome::Restored(environment));
        }
        capture.send_unwritten();
        unblock_signals(&former);
        match capture.forked {
            0 => {
                if let Some(ended) = capture.ended.take() {
                    wait_until_written(ended, &image)?;
                }
                Ok(Outcome::Continued)
            }
            error => Err(starting(io::Error::from_raw_os_error(error))),
        }
    }

    /// Selects the image that the next one builds on, and protects the memory.
    fn plan(&mut self, store: &Store, header: &Header) -> (Option<Progress>, Option<Choice>) {
        let Some((progress, unwritten)) = self.advance() else {
            self.history.clear();
            return (None, None);
        };
        let bytes = |path: &Path| Some(fs::metadata(path).ok()?.len());
        let choice = self.history.choose(&unwritten, bytes);
        let identity = header.identity;
        let own = Base {
            set: identity.set,
            id: header.id,
        };
        let path = store.path(identity, choice.as_ref().map(|choice| choice.base.set));
        // Noted even if the image is never written: its pages are protected.
        self.history.push((own, path), choice.as_ref(), unwritten);
        (Some(progress), choice)
    }

    /// Protects the pages that were written. Returns the others.
    fn advance(&mut self) -> Option<(Progress, Ranges)> {
        if let Tracking::Unused = self.tracking {
            self.tracking = match Tracker::new() {
                Ok(tracker) => Tracking::Active(tracker),
                Err(_) => Tracking::Unavailable,
            };
        }
        let Tracking::Active(tracker) = &self.tracking else {
            return None;
        };
        let advance = || -> io::Result<(Progress, Ranges)> {
            let pages = Pages::open()?;
            let (tracked, unwritten) = tracker.advance(&pages)?;
            Ok((Progress { pages, tracked }, unwritten))
        };
        let advanced = advance().ok();
        if advanced.is_none() {
            self.tracking = Tracking::Unavailable;
        }
        advanced
    }
}

/// The pages of this process, and its memory of which the kernel reports what is written.
#[derive(Debug)]
struct Progress {
    pages: Pages,
    tracked: Ranges,
}

fn header(identity: Identity, ignored: &[PathBuf]) -> Result<Header, CaptureError> {
    let read = system("reading /proc");
    let name = fs::read_to_string("/proc/self/comm").map_err(&read)?;
    let mut id = [0; 8];
    rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
        .map_err(|cause| system("drawing a random number")(cause.into()))?;
    Ok(Header {
        identity,
        id: u64::from_ne_bytes(id),
        base: None,
        name: name.trim_end().to_owned(),
        directory: std::env::current_dir().map_err(&read)?,
        machine: Machine::current().map_err(&read)?,
        thread: Thread::default(),
        layout: layout().map_err(&read)?,
        signals: (1..=SIGNALS).map(signal_action).collect(),
        files: open_files(ignored).map_err(CaptureError::Unsupported)?,
        mappings: Vec::new(),
        hashes: Vec::new(),
        own: Vec::new(),
    })
}

struct Capture<'a> {
    header: Header,
    part: PartFile,
    store: &'a Store,
    reporter: &'a str,
    /// Error number of the first fork.
    forked: i32,
    /// The writer of the image closes its end of this pipe when it ends, if it is waited for.
    ended: Option<(PipeReader, PipeWriter)>,
    choice: Option<Choice>,
    progress: Option<Progress>,
    /// Carries the pages that were not written to the writer of the image.
    transfer: Option<Transfer>,
    scratch: Scratch,
}

impl Capture<'_> {
    /// Sends the pages with the same content as in the base to the writer of the image. If that fails,
    /// the writer gets nothing and reports it.
    fn send_unwritten(&mut self) {
        let transfer = self.transfer.take();
        if let (Some(transfer), Some(progress), Some(choice)) =
            (transfer, &self.progress, &self.choice)
            && let Ok(unwritten) = progress.pages.unwritten()
        {
            let _sent = transfer.send(&choice.unwritten.intersect(&unwritten));
        }
    }
}

/// Waits until the writer of an image has ended.
fn wait_until_written(
    (mut ended, own): (PipeReader, PipeWriter),
    image: &Path,
) -> Result<(), CaptureError> {
    drop(own);
    let waited = ended.read_to_end(&mut Vec::new());
    waited.map_err(system("waiting for the image"))?;
    match image.exists() {
        true => Ok(()),
        false => Err(CaptureError::NotWritten),
    }
}

/// Fails if the program has threads of its own.
fn check_threads() -> Result<(), CaptureError> {
    let read = system("listing the threads");
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    for entry in fs::read_dir("/proc/self/task").map_err(&read)? {
        let entry = entry.map_err(&read)?;
        if entry.file_name().to_string_lossy() == own {
            continue;
        }
        // A thread that has ended meanwhile has no name.
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if !name.is_empty() && !name.starts_with(OWN_THREADS) {
            return Err(CaptureError::Unsupported(format!(
                "it has a thread of its own (`{}`), and images hold one thread",
                name.trim_end()
            )));
        }
    }
    let status = fs::read_to_string("/proc/self/status").map_err(&read)?;
    let features = status
        .lines()
        .find(|line| line.starts_with("x86_Thread_features:"));
    if features.is_some_and(|line| line.contains("shstk")) {
        let reason = "it has a shadow stack; run it with GLIBC_TUNABLES=glibc.cpu.hwcaps=-SHSTK";
        return Err(CaptureError::Unsupported(reason.to_owned()));
    }
    let timers = fs::read_to_string("/proc/self/timers").unwrap_or_default();
    if !timers.is_empty() {
        let reason = "it has timers of timer_create, which end with the process";
        return Err(CaptureError::Unsupported(reason.to_owned()));
    }
    Ok(())
}

/// The addresses that the kernel shows in /proc/self/stat.
fn layout() -> io::Result<Layout> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let fields: Vec<u64> = fields
        .split_whitespace()
        .map(|field| field.parse().unwrap_or(0))
        .collect();
    // The numbers of proc(5), which counts from 1 and has two fields more in front.
    let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
    Ok(Layout {
        code: (field(26), field(27)),
        data: (field(45), field(46)),
        heap: (field(47), heap_end()),
        stack: field(28),
        arguments: (field(48), field(49)),
        environment: (field(50), field(51)),
    })
}

/// Where the kernel ends the heap.
fn heap_end() -> u64 {
    // SAFETY: an increment of 0 changes nothing.
    let end = unsafe { libc::sbrk(0) };
    end.addr() as u64
}

/// Forks a child that starts the writer and ends. Runs with all signals blocked.
extern "C" fn fork_writer(stack: u64, resume: u64, argument: *mut c_void) {
    // SAFETY: `take` passes a pointer to its `Capture`, which nothing else uses during the call.
    let capture = unsafe { &mut *argument.cast::<Capture<'_>>() };
    capture.header.thread = thread(stack, resume);
    // SAFETY: the C library makes its own state consistent in the child, which never returns.
    match unsafe { libc::fork() } {
        0 => start_writer(capture.scratch.stack(), argument),
        child if child > 0 => {
            let mut status = 0;
            // SAFETY: waits for the child, and writes its status.
            while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0
                && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
            {}
            if status != 0 {
                capture.forked = libc::EAGAIN;
            }
        }
        _ => {
            capture.forked = io::Error::last_os_error()
                .raw_os_error()
                .unwrap_or(libc::EAGAIN)
        }
    }
}

/// Starts the writer with the memory of this child, and ends this child. It writes to no memory but
/// its stack.
fn start_writer(stack: *mut c_void, argument: *mut c_void) -> ! {
    // SAFETY: at the end of this child the kernel must not write to the memory that the writer then
    // has alone. The writer gets a stack that nothing else uses; this child ends, and until then uses
    // only its own stack.
    let writer = unsafe {
        libc::syscall(libc::SYS_set_tid_address, 0);
        libc::syscall(libc::SYS_set_robust_list, 0, 3 * size_of::<u64>());
        let flags = libc::CLONE_VM | libc::SIGCHLD;
        libc::clone(write_image, stack, flags, argument)
    };
    exit(i32::from(writer < 0))
}

fn exit(status: i32) -> ! {
    // SAFETY: ends the child without running handlers of the program.
    unsafe { libc::_exit(status) }
}

/// Writes the image, and ends this process.
extern "C" fn write_image(argument: *mut c_void) -> c_int {
    // SAFETY: a pointer to the `Capture` of `take`, which is in memory that this process now has alone.
    let capture = unsafe { &mut *argument.cast::<Capture<'_>>() };
    if capture.ended.is_none() {
        // This process computes while the program leaves a core idle.
        // SAFETY: the call changes only the priority of this process.
        unsafe { libc::nice(10) };
    }
    // Until the copy is made, only the scratch memory may be written.
    if let Some(progress) = &capture.progress {
        capture.scratch.find_own_pages(&progress.tracked);
    }
    // SAFETY: the copy makes system calls only.
    let frozen = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if frozen == 0 {
        stand_still();
    }
    // The program has allocated and freed since `layout`. If the heap ended elsewhere in the image, the
    // kernel would take its growth for a reduction, and the C library would use memory that is not there.
    capture.header.layout.heap.1 = heap_end();
    let frozen = i32::try_from(frozen).unwrap_or(-1);
    let written = match frozen {
        1.. => write(capture, frozen),
        _ => Err(io::Error::last_os_error()),
    };
    let written = written.and_then(|()| capture.part.commit());
    if written.is_ok() {
        // Other ranks remove the same sets at the same time, so errors are expected.
        let _removed = capture.store.prune(KEPT);
    }
    if frozen > 0 {
        // SAFETY: ends and reaps the copy that was made above.
        unsafe {
            libc::kill(frozen, libc::SIGKILL);
            libc::waitpid(frozen, std::ptr::null_mut(), 0);
        }
    }
    if let Err(cause) = &written {
        capture.part.remove();
        let Identity { rank, set, .. } = capture.header.identity;
        let reporter = capture.reporter;
        eprintln!(
            "{reporter}: rank {rank}: checkpoint {set} was not written, and the program goes on: \
             {cause}"
        );
    }
    exit(i32::from(written.is_err()))
}

/// Keeps the memory of this process until the writer of the image ends.
fn stand_still() -> ! {
    // SAFETY: the copy must not outlive the writer, and must not keep files open.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
        loop {
            libc::kill(libc::getpid(), libc::SIGSTOP);
        }
    }
}

fn write(capture: &mut Capture<'_>, frozen: i32) -> io::Result<()> {
    let mut kept: Vec<i32> = Vec::new();
    kept.extend(capture.ended.as_ref().map(|(_, own)| own.as_raw_fd()));
    kept.extend(capture.transfer.iter().flat_map(Transfer::receiving));
    capture.part.close_others(&kept);
    let base = match (capture.transfer.take(), &capture.choice) {
        (Some(transfer), Some(choice)) => {
            Some((choice.base, choice.path.clone(), transfer.receive()?))
        }
        _ => None,
    };
    capture.header.own = capture.scratch.own_pages();
    let frozen = Frozen::open(frozen, &capture.scratch)?;
    memory::write(&frozen, &mut capture.header, base, capture.part.file()?)
}

//! Takes an image of this process while it goes on.
//!
//! Three forks keep the pause short. The first child ends at once, so that the program never has
//! another child to wait for. The second one writes the image. It reads the memory of the third,
//! which stands still and so is a consistent copy; its own memory changes as it works.

use std::ffi::c_void;
use std::fs::{self, File};
use std::io::{self, BufWriter, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::context::call_with_context;
use crate::descriptors::open_files;
use crate::error::{CaptureError, Outcome, Until};
use crate::handover::Handover;
use crate::image::{CHUNK_BYTES, Header, Identity, Layout, PAGE_BYTES, Thread, Writer};
use crate::machine::Machine;
use crate::maps::{self, Mapping};
use crate::store::{PartFile, Store};
use crate::thread::{
    SIGNALS, block_signals, set_thread_id, signal_action, thread, unblock_signals,
};

/// Bytes of compressed data between two writes.
const WRITE_BYTES: usize = 1 << 20;
/// Complete sets that are kept. The older one serves if the newer one turns out to be damaged.
const KEPT: usize = 2;
/// Threads of this library begin their names with this.
const OWN_THREADS: &str = "dipole-";

fn system(doing: &'static str) -> impl Fn(io::Error) -> CaptureError {
    move |cause| CaptureError::System { doing, cause }
}

/// Takes an image of this process. Returns once more in each process that is restored from it.
///
/// The image is complete when [`Store`] lists it. If it cannot be written, the child prints why,
/// after `reporter`, and the program goes on without it. Files below the folders `ignored` are not
/// saved: they belong to this library.
///
/// # Errors
/// The program cannot be saved, or no child can be started, or the image that is waited for was not
/// written.
pub fn take(
    store: &Store,
    identity: Identity,
    ignored: &[PathBuf],
    reporter: &str,
    until: Until,
) -> Result<Outcome, CaptureError> {
    check_threads()?;
    let read = system("reading /proc");
    let machine = Machine::current().map_err(&read)?;
    let layout = layout().map_err(&read)?;
    let name = fs::read_to_string("/proc/self/comm").map_err(&read)?;
    let files = open_files(ignored).map_err(CaptureError::Unsupported)?;
    let part = store.begin(identity)?;
    let ended = match until {
        Until::Begun => None,
        Until::Written => Some(io::pipe().map_err(system("waiting for the image"))?),
    };
    let former = block_signals();
    let mut capture = Capture {
        header: Header {
            identity,
            name: name.trim_end().to_owned(),
            directory: std::env::current_dir().map_err(&read)?,
            machine,
            thread: Thread::default(),
            layout,
            signals: (1..=SIGNALS).map(signal_action).collect(),
            files,
            mappings: Vec::new(),
        },
        part,
        store,
        reporter,
        forked: 0,
        ended,
    };
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
        dipole_link::fork::begin_incarnation();
        unblock_signals(&former);
        return Ok(Outcome::Restored(environment));
    }
    unblock_signals(&former);
    match capture.forked {
        0 => {
            if let Some(ended) = capture.ended.take() {
                wait_until_written(ended, &store.image(identity))?;
            }
            Ok(Outcome::Continued)
        }
        error => Err(system("starting a child that writes the image")(
            io::Error::from_raw_os_error(error),
        )),
    }
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

/// Forks a child that forks the writer and ends. Runs with all signals blocked.
extern "C" fn fork_writer(stack: u64, resume: u64, argument: *mut c_void) {
    // SAFETY: `take` passes a pointer to its `Capture`, which nothing else uses during the call.
    let capture = unsafe { &mut *argument.cast::<Capture<'_>>() };
    capture.header.thread = thread(stack, resume);
    // SAFETY: the C library makes its own state consistent in the child, which never returns.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: as above.
            match unsafe { libc::fork() } {
                0 => write_and_exit(capture),
                child => exit(i32::from(child < 0)),
            }
        }
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

fn exit(status: i32) -> ! {
    // SAFETY: ends the child without running handlers of the program.
    unsafe { libc::_exit(status) }
}

/// Writes the image, and ends this child.
fn write_and_exit(capture: &mut Capture<'_>) -> ! {
    if capture.ended.is_none() {
        // The child computes while the program leaves a core idle.
        // SAFETY: the call changes only the priority of this child.
        unsafe { libc::nice(10) };
    }
    // The program has allocated and freed since `layout`. If the heap ended elsewhere in the image, the
    // kernel would take its growth for a reduction, and the C library would use memory that is not there.
    capture.header.layout.heap.1 = heap_end();
    // SAFETY: as for `fork_writer`; the copy makes system calls only.
    let frozen = unsafe { libc::fork() };
    if frozen == 0 {
        // SAFETY: the copy must not outlive the writer, and must not keep files open.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0);
            loop {
                libc::kill(libc::getpid(), libc::SIGSTOP);
            }
        }
    }
    let written = match frozen {
        1.. => {
            let ended = capture.ended.as_ref().map(|(_, own)| own.as_raw_fd());
            capture.part.close_others(ended);
            wait_until_stopped(frozen).and_then(|()| write_memory(capture, frozen))
        }
        _ => Err(io::Error::last_os_error()),
    };
    let written = written.and_then(|()| capture.part.commit());
    if written.is_ok() {
        // Other ranks remove the same sets at the same time, so errors are expected.
        let _removed = capture.store.prune(KEPT);
    }
    if frozen > 0 {
        // SAFETY: ends and reaps the copy that was forked above.
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

/// Waits until the copy stands still. Until then the C library still completes its fork: it unlocks
/// what it had locked for it.
fn wait_until_stopped(frozen: i32) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: waits for the child, and writes its status.
    while unsafe { libc::waitpid(frozen, &raw mut status, libc::WUNTRACED) } < 0 {
        let cause = io::Error::last_os_error();
        if cause.kind() != io::ErrorKind::Interrupted {
            return Err(cause);
        }
    }
    match libc::WIFSTOPPED(status) {
        true => Ok(()),
        false => Err(io::Error::other("the copy of the process has ended")),
    }
}

fn write_memory(capture: &mut Capture<'_>, frozen: i32) -> io::Result<()> {
    let folder = PathBuf::from(format!("/proc/{frozen}"));
    let text = fs::read_to_string(folder.join("maps"))?;
    let mappings = maps::parse(&text).ok_or_else(|| io::Error::other("unknown form of maps"))?;
    if let Some(shared) = mappings
        .iter()
        .find(|it| it.is_shared && !it.is_of_kernel() && !it.is_read_only_file())
    {
        return Err(io::Error::other(format!(
            "the program has mapped shared memory ({} at {:x}), which images do not hold",
            shared.name, shared.start
        )));
    }
    let private = |mapping: &Mapping| !mapping.is_of_kernel();
    capture.header.mappings = mappings.into_iter().filter(private).collect();
    let memory = File::open(folder.join("mem"))?;
    let pages = File::open(folder.join("pagemap"))?;
    let to = BufWriter::with_capacity(WRITE_BYTES, capture.part.file()?);
    let mut writer = Writer::begin(to, &capture.header)?;
    let mut bytes = vec![0; CHUNK_BYTES];
    for mapping in &capture.header.mappings {
        let mut runs = Runs::new(mapping, &pages);
        while let Some((start, length)) = runs.next()? {
            match memory.read_exact_at(&mut bytes[..length], start) {
                Ok(()) => write_run(&mut writer, start, &bytes[..length])?,
                // Pages behind the end of a mapped file have no content.
                Err(_) if mapping.is_file => {
                    for at in (0..length).step_by(PAGE_BYTES) {
                        let page = &mut bytes[..PAGE_BYTES];
                        let address = start + at as u64;
                        if memory.read_exact_at(page, address).is_ok() {
                            write_run(&mut writer, address, page)?;
                        }
                    }
                }
                Err(cause) => return Err(cause),
            }
        }
    }
    writer.end()?;
    Ok(())
}

/// Writes a run of pages, without those that are zero.
fn write_run(writer: &mut Writer<impl io::Write>, start: u64, bytes: &[u8]) -> io::Result<()> {
    let is_zero = |page: &[u8]| page.iter().all(|byte| *byte == 0);
    let pages: Vec<&[u8]> = bytes.chunks(PAGE_BYTES).collect();
    let mut at = 0;
    for run in pages.chunk_by(|one, next| is_zero(one) == is_zero(next)) {
        let length = run.len() * PAGE_BYTES;
        if !is_zero(run[0]) {
            writer.chunk(start + at as u64, &bytes[at..at + length])?;
        }
        at += length;
    }
    Ok(())
}

/// Runs of pages of a mapping that have content, of at most [`CHUNK_BYTES`].
struct Runs<'a> {
    next: u64,
    end: u64,
    /// Anonymous memory without pages is zero; a file has content everywhere.
    pages: Option<&'a File>,
    entries: Vec<u8>,
    at: usize,
}

/// The kernel's flags of a page that is in memory, or in swap space.
const PRESENT: u64 = 1 << 63 | 1 << 62;
/// Entries that are read at once.
const ENTRIES: usize = 8192;

impl Runs<'_> {
    fn new<'a>(mapping: &Mapping, pages: &'a File) -> Runs<'a> {
        Runs {
            next: mapping.start,
            end: mapping.end,
            pages: (!mapping.is_file).then_some(pages),
            entries: Vec::new(),
            at: 0,
        }
    }

    fn next(&mut self) -> io::Result<Option<(u64, usize)>> {
        let mut start = None;
        while self.next < self.end {
            let has_content = self.has_content()?;
            let length = start.map_or(0, |start| self.next - start);
            match (has_content, start) {
                (true, None) => start = Some(self.next),
                (false, Some(_)) => break,
                _ if length == CHUNK_BYTES as u64 => break,
                _ => {}
            }
            self.next += PAGE_BYTES as u64;
            self.at += size_of::<u64>();
        }
        Ok(start.map(|start| (start, usize::try_from(self.next - start).unwrap_or(0))))
    }

    fn has_content(&mut self) -> io::Result<bool> {
        let Some(pages) = self.pages else {
            return Ok(true);
        };
        if self.at >= self.entries.len() {
            let left = (self.end - self.next) / PAGE_BYTES as u64;
            let count = usize::try_from(left).unwrap_or(ENTRIES).min(ENTRIES);
            self.entries.resize(count * size_of::<u64>(), 0);
            let position = self.next / PAGE_BYTES as u64 * size_of::<u64>() as u64;
            pages.read_exact_at(&mut self.entries, position)?;
            self.at = 0;
        }
        let mut entry = [0; size_of::<u64>()];
        (&self.entries[self.at..]).read_exact(&mut entry)?;
        Ok(u64::from_ne_bytes(entry) & PRESENT != 0)
    }
}

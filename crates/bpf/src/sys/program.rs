//! Loads, attaches, queries and test-runs programs.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{call, length, name_of, object_info, own, pointer, raw};

const PROG_LOAD: libc::c_int = 5;
#[cfg(test)]
const PROG_TEST_RUN: libc::c_int = 10;
const PROG_GET_BY_ID: libc::c_int = 13;
const PROG_QUERY: libc::c_int = 16;
const LINK_CREATE: libc::c_int = 28;
const LINK_DETACH: libc::c_int = 34;

/// Buffer for the verifier's log.
const LOG_BYTES: usize = 1 << 20;
/// Lines of the log in an error.
const LOG_LINES: usize = 8;

/// Our programs call no helper that requires the GPL.
const LICENSE: &std::ffi::CStr = c"Apache-2.0 OR MIT";

/// `BPF_PROG_TYPE_SCHED_CLS`.
const SCHED_CLS: u32 = 3;

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachKind {
    TcxIngress = 46,
    TcxEgress = 47,
}

/// Why a program was not loaded.
#[derive(Debug)]
pub(crate) struct Rejected {
    pub(crate) cause: io::Error,
    /// The last lines of the verifier's log; empty if there is none.
    pub(crate) log: String,
}

/// Loads a program, for attaching at `attach`.
pub(crate) fn load(
    attach: AttachKind,
    name: &str,
    instructions: &[[u8; 8]],
) -> Result<OwnedFd, Rejected> {
    let attempt = |log: &mut [u8]| {
        #[repr(C)]
        #[derive(Default)]
        struct Attributes {
            kind: u32,
            instruction_count: u32,
            instructions: u64,
            license: u64,
            log_level: u32,
            log_bytes: u32,
            log: u64,
            kernel_version: u32,
            flags: u32,
            name: [u8; 16],
            interface: u32,
            attach: u32,
        }
        let logged = !log.is_empty();
        let mut attributes = Attributes {
            kind: SCHED_CLS,
            instruction_count: length(instructions),
            instructions: pointer(instructions.as_ptr()),
            license: pointer(LICENSE.as_ptr()),
            log_level: u32::from(logged),
            log_bytes: length(log),
            log: match logged {
                true => pointer(log.as_mut_ptr().cast_const()),
                false => 0,
            },
            name: name_of(name),
            attach: attach as u32,
            ..Attributes::default()
        };
        // SAFETY: instructions and log are passed with their lengths, the license is
        // NUL-terminated; the kernel writes only the log.
        unsafe { call(PROG_LOAD, &mut attributes) }.map(own)
    };
    attempt(&mut []).map_err(|cause| {
        // Repeat with a log to get the reason; without a log loading is much faster.
        let mut log = vec![0; LOG_BYTES];
        let again = attempt(&mut log);
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(LOG_BYTES);
        let text = String::from_utf8_lossy(&log[..end]);
        let lines: Vec<&str> = text.lines().collect();
        Rejected {
            cause: again.err().unwrap_or(cause),
            log: lines[lines.len().saturating_sub(LOG_LINES)..].join("; "),
        }
    })
}

/// Attaches a program to an interface for as long as the returned descriptor, or a copy, is open.
pub(crate) fn attach(
    program: BorrowedFd<'_>,
    interface: u32,
    kind: AttachKind,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        program: u32,
        interface: u32,
        kind: u32,
        flags: u32,
        relative: u32,
        padding: u32,
        revision: u64,
    }
    let mut attributes = Attributes {
        program: raw(program),
        interface,
        kind: kind as u32,
        ..Attributes::default()
    };
    // SAFETY: the structure holds no pointers.
    unsafe { call(LINK_CREATE, &mut attributes) }.map(own)
}

/// Detaches a program at once; closing the last descriptor of the link does so a moment later.
pub(crate) fn detach(link: BorrowedFd<'_>) -> io::Result<()> {
    // The structure's only field.
    let mut attributes = raw(link);
    // SAFETY: the structure holds no pointers.
    unsafe { call(LINK_DETACH, &mut attributes) }.map(drop)
}

/// Ids of the programs attached to an interface, in the order in which they run.
pub(crate) fn attached(interface: u32, kind: AttachKind) -> io::Result<Vec<u32>> {
    /// Maximum programs per hook.
    const MOST: usize = 64;
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        interface: u32,
        kind: u32,
        query_flags: u32,
        attach_flags: u32,
        programs: u64,
        count: u32,
        padding: u32,
        program_flags: u64,
        links: u64,
        link_flags: u64,
        revision: u64,
    }
    let mut programs = [0_u32; MOST];
    let mut attributes = Attributes {
        interface,
        kind: kind as u32,
        programs: pointer(programs.as_mut_ptr().cast_const()),
        count: length(&programs),
        ..Attributes::default()
    };
    // SAFETY: the kernel writes at most `count` numbers to `programs`.
    unsafe { call(PROG_QUERY, &mut attributes) }?;
    let count = usize::try_from(attributes.count).expect("at most 64");
    Ok(programs[..count.min(MOST)].to_vec())
}

/// The name of a loaded program.
pub(crate) fn program_name(id: u32) -> io::Result<String> {
    // The id is the first field; the rest is zero.
    let mut attributes = id;
    // SAFETY: the structure holds no pointers.
    let program = unsafe { call(PROG_GET_BY_ID, &mut attributes) }.map(own)?;
    /// The start of the kernel's structure, up to the name at byte 64.
    #[repr(C)]
    #[derive(Default)]
    struct Facts {
        before: [u64; 8],
        name: [u8; 16],
    }
    let mut facts = Facts::default();
    // SAFETY: integers, laid out so that the name is at byte 64 as in `struct bpf_prog_info`.
    // Lengths in it that the kernel reads are zero.
    unsafe { object_info(program.as_fd(), &mut facts) }?;
    Ok(text_of(facts.name))
}

/// Result of a test run.
#[cfg(test)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TestRun {
    pub(crate) returned: u32,
    /// Mean duration of a run in nanoseconds.
    pub(crate) duration_ns: u32,
}

/// Runs a program on a frame `repeat` times, with a context (all zero if empty). The kernel may stop
/// with `Interrupted` after some of the runs.
#[cfg(test)]
pub(crate) fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    context: &[u8],
    repeat: u32,
) -> io::Result<TestRun> {
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        program: u32,
        returned: u32,
        frame_bytes: u32,
        out_bytes: u32,
        frame: u64,
        out: u64,
        repeat: u32,
        duration: u32,
        context_bytes: u32,
        context_out_bytes: u32,
        context: u64,
        context_out: u64,
        flags: u32,
        cpu: u32,
        batch: u32,
        padding: u32,
    }
    let mut attributes = Attributes {
        program: raw(program),
        frame_bytes: length(frame),
        frame: pointer(frame),
        repeat,
        context_bytes: length(context),
        context: match context.is_empty() {
            true => 0,
            false => pointer(context),
        },
        ..Attributes::default()
    };
    // SAFETY: frame and context are passed with their lengths and only read; results are returned
    // only in the structure.
    unsafe { call(PROG_TEST_RUN, &mut attributes) }?;
    Ok(TestRun {
        returned: attributes.returned,
        duration_ns: attributes.duration,
    })
}

fn text_of(name: [u8; 16]) -> String {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(16);
    String::from_utf8_lossy(&name[..end]).into_owned()
}

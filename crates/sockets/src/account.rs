//! How many bytes went through shared memory and over TCP, and why, for the line that a program prints
//! when it exits with `DIPOLE_LOG=info`.
//!
//! The kernel and the ring count anyway; a connection's numbers are added up when its last descriptor
//! is closed. A forked child counts from the fork on. Without the log nothing here runs.

use std::fmt::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{Mode, OFlags, open};

use crate::kernel;

const VARIABLE: &str = "DIPOLE_LOG";
/// The part of Dipole that this library is, in a filter such as `warn,dipole_sockets=info`.
const PART: &str = "dipole_sockets";

/// Why bytes went over TCP; the names of functions are calls after which a connection is plain TCP.
const NAMES: [&str; 27] = [
    "unknown",
    "other-node",
    "standard-descriptor",
    "few-bytes",
    "no-peer",
    "no-memory",
    "small-or-early",
    "no-room",
    "other-writer",
    "other-reader",
    "processor",
    "fork",
    "exec",
    "fdopen",
    "dup",
    "dup2",
    "dup3",
    "fcntl",
    "fcntl64",
    "posix_spawn_file_actions_adddup2",
    "sendmsg",
    "sendmmsg",
    "send-flags",
    "recv-flags",
    "setsockopt",
    "getsockopt",
    "splice",
];

/// A reason for TCP: an index of [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reason(u8);

impl Reason {
    pub(crate) const UNKNOWN: Reason = Reason(0);
    /// The peer is on another node, or has another address of this one.
    pub(crate) const OTHER_NODE: Reason = Reason(1);
    /// Descriptors 0 to 2.
    pub(crate) const STANDARD: Reason = Reason(2);
    /// Too few bytes for the ends to look for each other.
    pub(crate) const FEW_BYTES: Reason = Reason(3);
    /// The peer does not use the library, or is another user's.
    pub(crate) const NO_PEER: Reason = Reason(4);
    /// There is not enough memory for a ring.
    pub(crate) const NO_MEMORY: Reason = Reason(5);
    /// Writes below the minimum, or before the ends had found each other.
    pub(crate) const SMALL_OR_EARLY: Reason = Reason(6);
    /// Large writes while the ring was full or the reader took bytes from TCP.
    pub(crate) const NO_ROOM: Reason = Reason(7);
    /// Something wrote to the connection without this library.
    pub(crate) const OTHER_WRITER: Reason = Reason(8);
    /// Something read from the connection without this library.
    pub(crate) const OTHER_READER: Reason = Reason(9);
    /// The library uses shared memory on x86-64 only.
    pub(crate) const PROCESSOR: Reason = Reason(10);

    /// The reason of a call after which a connection is plain TCP.
    pub(crate) fn of_call(call: &str) -> Reason {
        let found = NAMES.iter().position(|name| *name == call);
        let found = found.and_then(|at| u8::try_from(at).ok());
        found.map_or(Reason::UNKNOWN, Reason)
    }

    pub(crate) fn code(self) -> u8 {
        self.0
    }

    pub(crate) fn from_code(code: u8) -> Reason {
        match usize::from(code) < NAMES.len() {
            true => Reason(code),
            false => Reason::UNKNOWN,
        }
    }
}

/// Bytes of a connection so far, with markers among those over TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) sent_by_ring: u64,
    pub(crate) received_by_ring: u64,
    pub(crate) markers_sent: u64,
    pub(crate) markers_received: u64,
    /// Bytes of large writes that went over TCP although the ends share memory.
    pub(crate) without_room: u64,
}

#[derive(Debug)]
struct Totals {
    connections: AtomicU64,
    sent_by_ring: AtomicU64,
    received_by_ring: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    /// Bytes over TCP in both directions for each reason.
    reasons: [AtomicU64; NAMES.len()],
}

static TOTALS: Totals = Totals {
    connections: AtomicU64::new(0),
    sent_by_ring: AtomicU64::new(0),
    received_by_ring: AtomicU64::new(0),
    sent: AtomicU64::new(0),
    received: AtomicU64::new(0),
    reasons: [const { AtomicU64::new(0) }; NAMES.len()],
};

/// Bytes of a connection that are counted elsewhere, because they were moved before a fork.
#[derive(Debug)]
pub(crate) struct Baseline([AtomicU64; 4]);

impl Baseline {
    pub(crate) const fn none() -> Baseline {
        Baseline([const { AtomicU64::new(0) }; 4])
    }

    pub(crate) fn clear(&self) {
        self.set([0; 4]);
    }

    pub(crate) fn copy(&self, other: &Baseline) {
        self.set(std::array::from_fn(|at| other.0[at].load(Relaxed)));
    }

    fn set(&self, values: [u64; 4]) {
        for (place, value) in self.0.iter().zip(values) {
            place.store(value, Relaxed);
        }
    }
}

/// True if this process prints a line when it exits.
pub(crate) fn is_enabled() -> bool {
    static ENABLED: OnceLock<bool> = OnceLock::new();
    *ENABLED.get_or_init(|| std::env::var(VARIABLE).is_ok_and(|filter| admits_info(&filter)))
}

/// True if a log filter lets lines of this library with the level `info` through.
fn admits_info(filter: &str) -> bool {
    let is_enough = |level: &str| {
        let levels = ["info", "debug", "trace"];
        levels
            .iter()
            .any(|one| level.trim().eq_ignore_ascii_case(one))
    };
    let mut all = false;
    for directive in filter.split(',') {
        match directive.split_once('=') {
            Some((part, level)) if part.trim() == PART => return is_enough(level),
            Some(_) => {}
            None if directive.trim() == PART => return true,
            None => all |= is_enough(directive),
        }
    }
    all
}

/// Bytes so far: through the ring, and the program's own over TCP.
fn values(fd: BorrowedFd<'_>, usage: &Usage) -> Option<[u64; 4]> {
    const MARKER: u64 = crate::mux::MARKER as u64;
    let (sent, received) = kernel::counted(fd)?;
    Some([
        usage.sent_by_ring,
        usage.received_by_ring,
        sent.saturating_sub(MARKER * usage.markers_sent),
        received.saturating_sub(MARKER * usage.markers_received),
    ])
}

/// Adds the bytes of a connection whose last descriptor is about to be closed, without those of its
/// baseline.
pub(crate) fn add(fd: BorrowedFd<'_>, usage: &Usage, reason: Reason, baseline: &Baseline) {
    let Some(values) = values(fd, usage) else {
        return;
    };
    let before: [u64; 4] = std::array::from_fn(|at| baseline.0[at].load(Relaxed));
    let part = |at: usize| values[at].saturating_sub(before[at]);
    TOTALS.connections.fetch_add(1, Relaxed);
    let totals = [
        &TOTALS.sent_by_ring,
        &TOTALS.received_by_ring,
        &TOTALS.sent,
        &TOTALS.received,
    ];
    for (at, total) in totals.into_iter().enumerate() {
        total.fetch_add(part(at), Relaxed);
    }
    let by_tcp = part(2) + part(3);
    let without_room = usage.without_room.min(by_tcp);
    let of = |reason: Reason| &TOTALS.reasons[usize::from(reason.code())];
    of(Reason::NO_ROOM).fetch_add(without_room, Relaxed);
    of(reason).fetch_add(by_tcp - without_room, Relaxed);
}

/// Leaves the bytes of a connection so far to the process that this one was forked from.
pub(crate) fn start_from_here(fd: BorrowedFd<'_>, usage: &Usage, baseline: &Baseline) {
    if let Some(values) = values(fd, usage) {
        baseline.set(values);
    }
}

/// Forgets what was added up before a fork.
pub(crate) fn start_again() {
    let totals = [
        &TOTALS.connections,
        &TOTALS.sent_by_ring,
        &TOTALS.received_by_ring,
        &TOTALS.sent,
        &TOTALS.received,
    ];
    for total in totals.into_iter().chain(&TOTALS.reasons) {
        total.store(0, Relaxed);
    }
}

/// Prints the line, if there was a connection.
pub(crate) fn print() {
    if TOTALS.connections.load(Relaxed) == 0 {
        return;
    }
    // SAFETY: the program's standard error; if it is closed, nothing is printed.
    let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
    let _ = rustix::io::write(stderr, line(&TOTALS, &name()).as_bytes());
}

fn line(totals: &Totals, name: &str) -> String {
    let of = |total: &AtomicU64| total.load(Relaxed);
    let mut line = format!(
        "dipole-sockets: {name}: {} TCP connections; sent {} bytes through shared memory, {} over TCP; \
         received {} bytes through shared memory, {} over TCP",
        of(&totals.connections),
        of(&totals.sent_by_ring),
        of(&totals.sent),
        of(&totals.received_by_ring),
        of(&totals.received),
    );
    let mut separator = "; bytes over TCP by reason: ";
    for (name, bytes) in NAMES.iter().zip(&totals.reasons) {
        let bytes = of(bytes);
        if bytes > 0 {
            let _never_fails = write!(line, "{separator}{name} {bytes}");
            separator = ", ";
        }
    }
    line.push('\n');
    line
}

/// The program and the process: `redis-server[123]`.
fn name() -> String {
    let mut text = [0; 64];
    let file = open(
        "/proc/self/comm",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let length = file.and_then(|file| rustix::io::read(file.as_fd(), &mut text));
    let text = String::from_utf8_lossy(&text[..length.unwrap_or(0)]);
    format!(
        "{}[{}]",
        text.trim(),
        rustix::process::getpid().as_raw_pid()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_admits_the_line_at_info_and_below() {
        for filter in [
            "info",
            "TRACE",
            "warn,dipole_sockets=info",
            "dipole_sockets",
            "off, debug",
        ] {
            assert!(admits_info(filter), "{filter}");
        }
        for filter in [
            "",
            "warn",
            "dipole_node=info",
            "info,dipole_sockets=warn",
            "foo,,=",
        ] {
            assert!(!admits_info(filter), "{filter}");
        }
    }

    #[test]
    fn the_line_has_only_the_reasons_that_there_were() {
        let totals = Totals {
            connections: 2.into(),
            sent_by_ring: 10.into(),
            received_by_ring: 0.into(),
            sent: 3.into(),
            received: 4.into(),
            reasons: [const { AtomicU64::new(0) }; NAMES.len()],
        };
        totals.reasons[usize::from(Reason::of_call("fork").code())].store(5, Relaxed);
        totals.reasons[usize::from(Reason::NO_ROOM.code())].store(2, Relaxed);
        let expected = "dipole-sockets: x[1]: 2 TCP connections; sent 10 bytes through shared memory, 3 \
                        over TCP; received 0 bytes through shared memory, 4 over TCP; bytes over TCP by \
                        reason: no-room 2, fork 5\n";
        assert_eq!(line(&totals, "x[1]"), expected);
        assert_eq!(Reason::of_call("nothing"), Reason::UNKNOWN);
        assert_eq!(Reason::from_code(255), Reason::UNKNOWN);
    }
}

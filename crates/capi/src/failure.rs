//! Failures of calls: an error number for the program and a text for people.
//!
//! The numbers are part of the interface: a kind of failure keeps its number. They are listed in
//! [`MEANINGS`], in `dipole.h` and in `dp_error(3)`.

use std::ffi::{CStr, c_int};
use std::io;
use std::time::Duration;

use dipole_group::GroupError;
use dipole_node::FileError;
use dipole_node::job::JobError;
use dipole_node::{
    CloseError, ConfigError, LimitReached, OpenError, Outcome, PortError, ReceiveError, SendError,
    TargetError,
};
use dipole_streams::StreamError;

/// A failure of a call.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error(transparent)]
    Send(#[from] SendError),
    #[error(transparent)]
    Receive(#[from] ReceiveError),
    #[error(transparent)]
    Close(#[from] CloseError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Hosts(#[from] FileError),
    #[error(transparent)]
    Job(#[from] JobError),
    #[error(
        "descriptor {fd} is not an open endpoint of this process; use a descriptor that dp_open \
         returned and that is not closed"
    )]
    NotAnEndpoint { fd: c_int },
    #[error(
        "{number} is not an open edge of this process; use a number that dp_edge_open returned \
         and that is not closed"
    )]
    NotAnEdge { number: c_int },
    #[error(
        "descriptor {fd} is not an open completion queue of this process; use a descriptor that \
         dp_queue_open returned and that is not closed"
    )]
    NotAQueue { fd: c_int },
    #[error(
        "{number} is not an open completion counter of this process; use a number that \
         dp_counter_open returned and that is not closed"
    )]
    NotACounter { number: c_int },
    /// Memory would be borrowed without a completion that reports when it is free again.
    #[error(
        "edge {number} is not attached to a completion queue or counter, so nothing would report \
         when the memory is free again; call dp_queue_attach_edge or dp_counter_attach_edge first"
    )]
    Unattached { number: c_int },
    #[error(
        "{number} is not an open region of this process; use a number that dp_region_open returned \
         and that is not closed"
    )]
    NotARegion { number: c_int },
    #[error(
        "{number} is not an open port of this process; use a number that dp_port_open returned and \
         that is not closed"
    )]
    NotAPort { number: c_int },
    #[error(
        "{number} is not an open group of this process; use a number that dp_group_open returned and \
         that is not closed"
    )]
    NotAGroup { number: c_int },
    #[error(
        "{number} is not an open stream of this process; use a number that dp_stream_open returned and \
         that is not closed"
    )]
    NotAStream { number: c_int },
    #[error(
        "{number} is not an open interface of this process; use a number that dp_interface_open returned \
         and that is not closed"
    )]
    NotAnInterface { number: c_int },
    /// `dp_port_reply` was called outside a handler.
    #[error(
        "the handler of port {number} is not running on this thread; call dp_port_reply only from \
         the handler, to reply to the message that it is running for"
    )]
    NoHandler { number: c_int },
    #[error(
        "slot {slot} of port {number} is not taken; release a slot once, after the handler returned \
         DP_KEEP or while it runs"
    )]
    FreeSlot { number: c_int, slot: c_int },
    #[error("fewer than {handled} messages of port {number} {}", not_handled(.waited.as_ref()))]
    NotHandled {
        number: c_int,
        handled: u64,
        waited: Option<Duration>,
    },
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("completion queue {fd} {}", empty_for(.waited.as_ref()))]
    NoCompletion { fd: c_int, waited: Option<Duration> },
    #[error("fewer than {count} operations of completion counter {number} {}", not_done(.waited.as_ref()))]
    NotDone {
        number: c_int,
        count: u64,
        waited: Option<Duration>,
    },
    /// The descriptor was inherited by `fork`.
    #[error(
        "descriptor {fd} was inherited by fork, and its endpoint belongs to the parent process; close \
         it and open another endpoint"
    )]
    Inherited { fd: c_int },
    #[error("message was not returned by dp_read or dp_recv, or has already been released")]
    NotHeld,
    #[error("no message is waiting at descriptor {fd}; wait until it is readable")]
    NoMessage { fd: c_int },
    #[error("{what} is a null pointer")]
    Null { what: &'static str },
    #[error("{what} is not properly aligned")]
    Misaligned { what: &'static str },
    #[error("{what} is {found}, expected {expected}")]
    BadNumber {
        what: &'static str,
        found: i64,
        expected: &'static str,
    },
    #[error("{what} is {found:?}, expected {expected}")]
    BadText {
        what: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error("flags are {flags:#x}, but this call supports only {known:#x}")]
    UnknownFlags { flags: c_int, known: c_int },
    #[error(
        "cannot release {requested} messages, because only {unreleased} have been read and not \
         released; none was released"
    )]
    TooManyReleased { requested: c_int, unreleased: usize },
    #[error(
        "the size member of {what} is {size}; set it to the sizeof of the struct before the call"
    )]
    StructTooShort { what: &'static str, size: usize },
    /// A member is set that this library does not support.
    #[error(
        "{what} has {size} bytes, of which this version of the library supports {known}, and the rest \
         is not zero; update the library or leave those options at zero"
    )]
    StructTooNew {
        what: &'static str,
        size: usize,
        known: usize,
    },
    #[error(
        "the node is already open; call dp_init before the first dp_open, or dp_finalize before dp_init"
    )]
    AlreadyOpen,
    #[error("the node is not open; call dp_init or dp_open first")]
    NotOpen,
    /// A system call failed.
    #[error("{doing} failed: {cause}")]
    Descriptor {
        doing: &'static str,
        cause: io::Error,
    },
    /// An interface cannot listen at an address.
    #[error("cannot listen at {at}: {cause}")]
    Listen {
        at: std::net::SocketAddr,
        cause: io::Error,
    },
    /// A bug of this library.
    #[error("internal error of libdipole, please report it: {0}")]
    Panic(String),
}

fn empty_for(waited: Option<&Duration>) -> String {
    match waited {
        None => "is empty; wait until it is readable".to_owned(),
        Some(waited) => format!("was empty for {waited:?}"),
    }
}

fn not_done(waited: Option<&Duration>) -> String {
    match waited {
        None => "have completed; wait for the others".to_owned(),
        Some(waited) => format!("completed within {waited:?}"),
    }
}

fn not_handled(waited: Option<&Duration>) -> String {
    match waited {
        None => "have been handled; wait for the others".to_owned(),
        Some(waited) => format!("were handled within {waited:?}"),
    }
}

/// The error numbers that this library sets, and their meanings.
pub(crate) const MEANINGS: [(c_int, &CStr); 32] = [
    (
        libc::E2BIG,
        c"an option is set that this version of the library does not support",
    ),
    (
        libc::EACCES,
        c"the runtime directory or the capture file is not accessible, or the peer belongs to another user",
    ),
    (libc::EADDRINUSE, c"another process has the endpoint or TCP port"),
    (
        libc::EADDRNOTAVAIL,
        c"the node's network address cannot be bound",
    ),
    (libc::EAGAIN, c"the call would have to wait"),
    (
        libc::EBADF,
        c"the number is not an open object of this kind, or its endpoint was closed",
    ),
    (libc::EBUSY, c"the node is already open"),
    (
        libc::ECANCELED,
        c"the operation was cancelled before it began",
    ),
    (
        libc::ECONNREFUSED,
        c"the receiving process has not opened this endpoint, or accepts only shorter messages",
    ),
    (libc::ECONNRESET, c"the peer process is gone"),
    (libc::EDEADLK, c"a handler waits for its own port"),
    (libc::EDESTADDRREQ, c"the endpoint has no target"),
    (libc::EFAULT, c"a pointer is null or misaligned"),
    (libc::EHOSTUNREACH, c"the endpoint was not found"),
    (
        libc::EINVAL,
        c"an argument, an option or an environment variable is invalid",
    ),
    (libc::EINTR, c"a signal handler interrupted the wait"),
    (libc::EIO, c"the link is broken, or the library has a bug"),
    (
        libc::EKEYREJECTED,
        c"the two processes have different cluster keys, or one has none",
    ),
    (
        libc::EMFILE,
        c"the limit of file descriptors, threads or endpoints of the process is reached",
    ),
    (
        libc::EMSGSIZE,
        c"the message is too long, or the buffer is too short",
    ),
    (
        libc::ENFILE,
        c"the limit of processes or endpoints of the user on this node is reached",
    ),
    (
        libc::ENOENT,
        c"the process is not part of a job, or the endpoint has no open region with this key",
    ),
    (libc::ENOMEM, c"the pool cannot be allocated"),
    (libc::ENXIO, c"the node is not open"),
    (
        libc::EOPNOTSUPP,
        c"shared memory is required and not available",
    ),
    (libc::EPERM, c"the region does not allow the operation"),
    (libc::EPIPE, c"the stream has ended"),
    (
        libc::EPROTO,
        c"members of a group made different calls, or have different lists of members",
    ),
    (libc::ERANGE, c"the operation would exceed the region"),
    (
        libc::ESTALE,
        c"the descriptor belongs to the parent process",
    ),
    (libc::ETIMEDOUT, c"the timeout expired"),
    (
        libc::EUSERS,
        c"the limit of peers of this process or of the peer's process is reached",
    ),
];

/// The meaning of an error number that a `dp_` call sets.
pub(crate) fn meaning(errno: c_int) -> Option<&'static CStr> {
    MEANINGS
        .iter()
        .find(|(number, _)| *number == errno)
        .map(|(_, text)| *text)
}

impl Failure {
    /// True if the endpoint was closed.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(
            self,
            Failure::Send(SendError::Ended)
                | Failure::Receive(ReceiveError::Ended)
                | Failure::Target(TargetError::Ended)
                | Failure::Open(OpenError::Ended)
        )
    }

    /// The error number of this failure.
    pub(crate) fn errno(&self) -> c_int {
        match self {
            Failure::Open(error) => open_errno(error),
            Failure::Target(error) => target_errno(error),
            Failure::Send(error) => send_errno(error),
            Failure::Receive(error) => receive_errno(error),
            Failure::Close(error) => match error {
                CloseError::Unacknowledged { .. } => libc::ETIMEDOUT,
                CloseError::Broken(_) => libc::EIO,
                CloseError::Forked => libc::ESTALE,
            },
            Failure::Job(JobError::Missing { .. }) => libc::ENOENT,
            Failure::Job(JobError::Unresolved { .. } | JobError::NoRoute { .. }) => {
                libc::EHOSTUNREACH
            }
            Failure::Job(JobError::Directory { .. } | JobError::Service(_)) => libc::EIO,
            Failure::NotAnEndpoint { .. }
            | Failure::NotAnEdge { .. }
            | Failure::NotAQueue { .. }
            | Failure::NotACounter { .. }
            | Failure::NotARegion { .. }
            | Failure::NotAPort { .. }
            | Failure::NotAGroup { .. }
            | Failure::NotAStream { .. }
            | Failure::NotAnInterface { .. } => libc::EBADF,
            Failure::NoCompletion { waited: None, .. }
            | Failure::NotDone { waited: None, .. }
            | Failure::NotHandled { waited: None, .. } => libc::EAGAIN,
            Failure::NoCompletion { .. } | Failure::NotDone { .. } | Failure::NotHandled { .. } => {
                libc::ETIMEDOUT
            }
            Failure::Port(error) => port_errno(error),
            Failure::Group(error) => group_errno(error),
            Failure::Stream(error) => match error {
                StreamError::Ended { .. } => libc::EPIPE,
                StreamError::Silent { .. } => libc::ETIMEDOUT,
                StreamError::Misuse(_) => libc::EINVAL,
                StreamError::Send(cause) => send_errno(cause),
                StreamError::Receive(cause) => receive_errno(cause),
                StreamError::Open(cause) => open_errno(cause),
            },
            Failure::Inherited { .. } => libc::ESTALE,
            Failure::NoMessage { .. } => libc::EAGAIN,
            Failure::NotHeld
            | Failure::NoHandler { .. }
            | Failure::FreeSlot { .. }
            | Failure::Unattached { .. } => libc::EINVAL,
            Failure::Null { .. } | Failure::Misaligned { .. } => libc::EFAULT,
            Failure::Config(_)
            | Failure::Hosts(_)
            | Failure::Job(
                JobError::Bad { .. }
                | JobError::Lacking { .. }
                | JobError::Disagreement { .. }
                | JobError::Hosts { .. },
            )
            | Failure::BadNumber { .. }
            | Failure::BadText { .. }
            | Failure::UnknownFlags { .. }
            | Failure::TooManyReleased { .. }
            | Failure::StructTooShort { .. } => libc::EINVAL,
            Failure::StructTooNew { .. } => libc::E2BIG,
            Failure::AlreadyOpen => libc::EBUSY,
            Failure::NotOpen => libc::ENXIO,
            Failure::Listen { cause, .. } => match cause.kind() {
                io::ErrorKind::AddrInUse => libc::EADDRINUSE,
                io::ErrorKind::PermissionDenied => libc::EACCES,
                _ => libc::EIO,
            },
            Failure::Descriptor { .. } | Failure::Panic(_) => libc::EIO,
        }
    }
}

fn open_errno(error: &OpenError) -> c_int {
    match error {
        OpenError::Taken { .. } => libc::EADDRINUSE,
        OpenError::Registry { .. } | OpenError::Capture { .. } => libc::EACCES,
        OpenError::Limit(LimitReached::Endpoints { .. }) => libc::EMFILE,
        OpenError::Limit(_) => libc::ENFILE,
        OpenError::UserLimits(_) => libc::EINVAL,
        OpenError::Link { .. } | OpenError::NoPort { .. } => libc::EADDRNOTAVAIL,
        OpenError::Sleep(_) => libc::EMFILE,
        OpenError::Pool { .. } => libc::ENOMEM,
        OpenError::SharedMemory { .. } => libc::EOPNOTSUPP,
        OpenError::Forked => libc::ESTALE,
        OpenError::Ended => libc::EBADF,
    }
}

fn receive_errno(error: &ReceiveError) -> c_int {
    match error {
        ReceiveError::TimedOut { .. } => libc::ETIMEDOUT,
        ReceiveError::TooShort { .. } => libc::EMSGSIZE,
        ReceiveError::Broken(_) => libc::EIO,
        ReceiveError::Ended => libc::EBADF,
        ReceiveError::Forked => libc::ESTALE,
        ReceiveError::Cancelled => libc::ECANCELED,
        ReceiveError::Interrupted => libc::EINTR,
        ReceiveError::TooManyPosted { .. } => libc::EAGAIN,
    }
}

fn send_errno(error: &SendError) -> c_int {
    match error {
        SendError::NoTarget { .. } => libc::EDESTADDRREQ,
        SendError::Full { .. } => libc::EAGAIN,
        SendError::TimedOut { .. } => libc::ETIMEDOUT,
        SendError::TooLong { .. } => libc::EMSGSIZE,
        SendError::Refused { .. } => libc::ECONNREFUSED,
        SendError::PeerGone { .. } => libc::ECONNRESET,
        SendError::OperationFailed { outcome, .. } => outcome_errno(*outcome),
        SendError::Broken(_) => libc::EIO,
        SendError::Unreachable(cause) => target_errno(cause),
        SendError::Cancelled { .. } => libc::ECANCELED,
        SendError::Interrupted { .. } => libc::EINTR,
        SendError::Ended => libc::EBADF,
        SendError::Forked => libc::ESTALE,
    }
}

fn port_errno(error: &PortError) -> c_int {
    match error {
        PortError::Closed { .. } => libc::EBADF,
        PortError::WithinHandler { .. } => libc::EDEADLK,
        PortError::Panicked { .. } | PortError::Broken(_) => libc::EIO,
        PortError::Forked => libc::ESTALE,
    }
}

fn group_errno(error: &GroupError) -> c_int {
    match error {
        GroupError::Members { .. } => libc::EINVAL,
        GroupError::Open(cause) => open_errno(cause),
        GroupError::Gone { .. } => libc::ECONNRESET,
        GroupError::Left { .. } => libc::ECONNREFUSED,
        GroupError::TimedOut { .. } => libc::ETIMEDOUT,
        GroupError::Interrupted => libc::EINTR,
        GroupError::Mismatch { .. }
        | GroupError::Disagreement { .. }
        | GroupError::Excluded { .. } => libc::EPROTO,
        GroupError::Send(cause) => send_errno(cause),
        GroupError::Port(cause) => port_errno(cause),
    }
}

/// The error number of a target that cannot be reached.
fn target_errno(error: &TargetError) -> c_int {
    match error {
        TargetError::Unresolved { .. } => libc::EHOSTUNREACH,
        TargetError::Shortage { cause, .. } => cause.raw_os_error().unwrap_or(libc::EAGAIN),
        TargetError::TimedOut { .. } => libc::ETIMEDOUT,
        TargetError::PeerGone { .. } => libc::ECONNRESET,
        TargetError::OtherUser { .. } => libc::EACCES,
        TargetError::TooManyPeers { .. }
        | TargetError::TooManyEdges { .. }
        | TargetError::PeerFull { .. } => libc::EUSERS,
        TargetError::OtherCluster { .. } | TargetError::OtherSecurity { .. } => libc::EKEYREJECTED,
        TargetError::NoSharedMemory { .. } => libc::EOPNOTSUPP,
        TargetError::Broken(_) => libc::EIO,
        TargetError::Interrupted { .. } => libc::EINTR,
        TargetError::Ended => libc::EBADF,
        TargetError::Forked => libc::ESTALE,
    }
}

/// The error number of an operation on memory that failed.
fn outcome_errno(outcome: Outcome) -> c_int {
    match outcome {
        Outcome::NoRegion => libc::ENOENT,
        Outcome::OutOfBounds => libc::ERANGE,
        Outcome::NotAllowed => libc::EPERM,
        Outcome::Misaligned => libc::EINVAL,
        Outcome::Done => libc::EIO,
    }
}

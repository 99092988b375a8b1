//! Error types, one for each family of operations.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dipole_engine::{Blocked, Data, GoneReason, OperationResult};
use dipole_link::udp::PortRange;
use dipole_proto::MAX_MESSAGE_BYTES;
use dipole_proto::wire::{Outcome, RefusedReason};

use crate::address::Address;
use crate::config::ConfigError;
use crate::key::KeyMismatch;
use crate::limits::LimitReached;
use crate::lines::FileError;

/// Why a node or an endpoint could not be opened.
#[derive(thiserror::Error)]
pub enum OpenError {
    /// The endpoint belongs to another process of this node.
    #[error(
        "cannot open endpoint {address}: process {pid} ({command}) already has it; end that process or choose another DPID"
    )]
    Taken {
        /// Address of the endpoint.
        address: Address,
        /// The holder's process id.
        pid: u32,
        /// The holder's command name.
        command: String,
    },
    /// The registry directory cannot be used.
    #[error(
        "cannot use the registry in {}: {cause}",
        .directory.display()
    )]
    Registry {
        /// Path of the directory.
        directory: PathBuf,
        /// Error that the registry reported.
        cause: String,
    },
    /// This process, or its user on this node, has reached a limit.
    #[error(transparent)]
    Limit(LimitReached),
    /// The user's limits cannot be read.
    #[error(transparent)]
    UserLimits(FileError),
    /// The sockets cannot be opened.
    #[error(
        "cannot open UDP sockets on {bind}: {cause}; check that the address is this node's \
         (DIPOLE_BIND, hosts file)"
    )]
    Link {
        /// The address to bind.
        bind: std::net::IpAddr,
        /// Error that the kernel reported.
        cause: String,
    },
    /// None of the allowed ports is free.
    #[error(
        "none of the ports {ports} of DIPOLE_PORTS is free on {bind}, and each process needs \
         two: end some processes or set a wider range"
    )]
    NoPort {
        /// The address to bind.
        bind: std::net::IpAddr,
        /// The allowed ports.
        ports: PortRange,
    },
    /// Shared memory with processes of this node is not available.
    #[error(
        "cannot offer shared memory at {}: {cause}; set DIPOLE_LINK=udp to run without it",
        .socket.display()
    )]
    SharedMemory {
        /// The socket file for connecting.
        socket: PathBuf,
        /// Error that the link reported.
        cause: String,
    },
    /// A token buffer pool of that size is not available.
    #[error(
        "cannot create a token buffer pool of {bytes} bytes for endpoint {endpoint}: there is not \
         enough memory, or the endpoint is closed"
    )]
    Pool {
        /// Address of the endpoint.
        endpoint: Address,
        /// Requested size of the pool.
        bytes: usize,
    },
    /// The capture file cannot be written.
    #[error("cannot write the capture file {}: {cause}", .file.display())]
    Capture {
        /// Path of the file.
        file: PathBuf,
        /// Error that the kernel reported.
        cause: String,
    },
    /// No descriptor could be created, for example because the process has too many open files.
    #[error("{}", exhausted(.0))]
    Sleep(#[source] io::Error),
    /// The handle was inherited by a forked child.
    #[error("{}", FORKED)]
    Forked,
    /// The endpoint is closed.
    #[error("{}", ENDED)]
    Ended,
}

/// The error for a lack of descriptors, if that is the cause.
pub(crate) fn out_of_descriptors(cause: &(dyn std::error::Error + 'static)) -> Option<OpenError> {
    use rustix::io::Errno;
    let causes = std::iter::successors(Some(cause), |cause| cause.source());
    let numbers = causes.filter_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error());
    let mut lacking = numbers.filter(|number| {
        [Errno::MFILE, Errno::NFILE]
            .map(Errno::raw_os_error)
            .contains(number)
    });
    lacking
        .next()
        .map(|number| OpenError::Sleep(io::Error::from_raw_os_error(number)))
}

const FORKED: &str = "this handle belongs to the parent process; open another node after fork";
const ENDED: &str =
    "this endpoint is closed (explicitly, or with the last copy of its descriptor); reopen it";

/// The text after "is gone", if the reason is known.
fn because(reason: &Option<GoneReason>) -> String {
    reason.map_or(String::new(), |reason| format!(": {reason}"))
}

fn full(target: &Address, by_receiver: bool) -> String {
    match by_receiver {
        true => {
            format!(
                "endpoint {target} has not read enough to accept this message; send again later"
            )
        }
        false => format!(
            "no frame is free for {target} because all are in flight; send again later, or raise \
             DIPOLE_FRAMES"
        ),
    }
}

/// Advice if the limit is the one of all messages.
fn raise(limit: u64) -> &'static str {
    match limit >= MAX_MESSAGE_BYTES {
        true => ", or set DIPOLE_MAX_MESSAGE_BYTES for both processes",
        false => "",
    }
}

fn refusal(reason: RefusedReason) -> &'static str {
    match reason {
        RefusedReason::NoEndpoint => "its process has no such endpoint open",
        RefusedReason::Closed => "it was closed",
        RefusedReason::TooLong => "the message is longer than it accepts",
        RefusedReason::TooManyEdges => "its process has reached its limit of edges; close some",
        RefusedReason::OverCredit => "more was sent than its credit allowed",
    }
}

/// Why a target could not be added or an edge could not connect.
#[derive(thiserror::Error)]
pub enum TargetError {
    /// The location of the endpoint could not be found.
    #[error("cannot find endpoint {target}: {cause}")]
    Unresolved {
        /// Address of the target.
        target: Address,
        /// The attempts, and advice to the user.
        cause: String,
    },
    /// Descriptors, threads or memory were short until the time for connecting was over.
    #[error(
        "cannot look up endpoint {target}, tried for {waited:.1?}: {cause}; raise that limit or \
         release some"
    )]
    Shortage {
        /// Address of the target.
        target: Address,
        /// How long it was tried.
        waited: Duration,
        /// The operating system's error.
        cause: std::io::Error,
    },
    /// Its process did not complete the handshake.
    #[error(
        "the process of endpoint {target} did not answer within {waited:.1?}; check that it waits \
         or receives, and that no firewall drops UDP"
    )]
    TimedOut {
        /// Address of the target.
        target: Address,
        /// How long it waited.
        waited: Duration,
    },
    /// The session ended during the handshake.
    #[error("the process of endpoint {target} is gone{}", because(.reason))]
    PeerGone {
        /// Address of the target.
        target: Address,
        /// Reason for the end of the session, if known.
        reason: Option<GoneReason>,
    },
    /// The target's process belongs to another cluster.
    #[error(
        "endpoint {target} rejects this process; node {}: {}",
        .target.node, .mismatch.explain(.fingerprint.as_deref())
    )]
    OtherCluster {
        /// Address of the target.
        target: Address,
        /// How the keys differ.
        mismatch: KeyMismatch,
        /// Our key's fingerprint, if there is one.
        fingerprint: Option<String>,
    },
    /// The target's process uses another security setting for its packets.
    #[error(
        "endpoint {target} rejects this process: the cluster key of node {} has \
         another security setting (off, auth or encrypt) than ours; copy the key file of one \
         node to the other",
        .target.node
    )]
    OtherSecurity {
        /// Address of the target.
        target: Address,
    },
    /// Only shared memory is allowed (`DIPOLE_LINK=shm`), but it is not available.
    #[error(
        "endpoint {target} cannot be reached through shared memory: {cause}; DIPOLE_LINK=auto \
         would use UDP"
    )]
    NoSharedMemory {
        /// Address of the target.
        target: Address,
        /// Description of the cause.
        cause: String,
    },
    /// The socket of the target's process belongs to another user.
    #[error("cannot connect to endpoint {target}: {cause}")]
    OtherUser {
        /// Address of the target.
        target: Address,
        /// The socket and its owner.
        cause: String,
    },
    /// The target's process has reached its limit of peers.
    #[error(
        "the process of endpoint {target} has reached its limit of peers; raise DIPOLE_MAX_PEERS \
         there, or end some of its peers"
    )]
    PeerFull {
        /// Address of the target.
        target: Address,
    },
    /// The target's process has reached its limit of edges from this one.
    #[error(
        "cannot open an edge to endpoint {target}: {limit} edges lead to its process already, \
         which is the limit; close some"
    )]
    TooManyEdges {
        /// Address of the target.
        target: Address,
        /// The limit that was reached.
        limit: u32,
    },
    /// This process has reached its limit of peers.
    #[error("this process already has {limit} peers, its limit; raise DIPOLE_MAX_PEERS")]
    TooManyPeers {
        /// The limit that was reached.
        limit: u32,
    },
    /// A signal handler has run. Only within [`interruptible`](crate::interruptible).
    #[error("a signal interrupted the wait for endpoint {target}")]
    Interrupted {
        /// Address of the target.
        target: Address,
    },
    /// The link is broken.
    #[error("the link is broken: {0}")]
    Broken(#[source] io::Error),
    /// The handle was inherited by a forked child.
    #[error("{}", FORKED)]
    Forked,
    /// The endpoint is closed.
    #[error("{}", ENDED)]
    Ended,
}

/// Names the resource that the kernel refused, and the limit to raise. Without a thread the cause is
/// `EAGAIN`.
fn exhausted(cause: &io::Error) -> String {
    match cause.kind() {
        io::ErrorKind::WouldBlock => format!(
            "cannot start a thread: {cause}; raise the limit of processes and threads (ulimit -u, \
             or pids.max of the control group)"
        ),
        _ => format!(
            "cannot create a descriptor: {cause}; raise the limit of open files (ulimit -n)"
        ),
    }
}

/// Why a message was not sent.
#[derive(thiserror::Error)]
pub enum SendError {
    /// The endpoint has no target: call [`target`](crate::Endpoint::target) first.
    #[error("endpoint {from} has no target; add one first")]
    NoTarget {
        /// Address of the sending endpoint.
        from: Address,
    },
    /// Nothing was queued: there are no free frames, or no credit from the receiver.
    #[error("{}", full(.target, *.by_receiver))]
    Full {
        /// Address of the target.
        target: Address,
        /// True if the receiver has not read enough; false if our frames are all in flight.
        by_receiver: bool,
    },
    /// In the given time, nothing was queued or not everything was acknowledged.
    #[error("endpoint {target} accepted nothing for {waited:.1?}")]
    TimedOut {
        /// The target (the first of several).
        target: Address,
        /// How long it waited.
        waited: Duration,
    },
    /// A signal handler has run; nothing was queued. Only within
    /// [`interruptible`](crate::interruptible).
    #[error("a signal interrupted the wait for endpoint {target}")]
    Interrupted {
        /// The target (the first of several).
        target: Address,
    },
    /// The message is longer than this way of sending allows; nothing was queued.
    #[error("a message of {length} bytes is too long, the limit is {limit}; split it{}", raise(*.limit))]
    TooLong {
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: u64,
    },
    /// The receiving process has no such endpoint, or no longer.
    #[error("endpoint {target} refused messages: {}", refusal(*.reason))]
    Refused {
        /// Address of the target.
        target: Address,
        /// Reason that the receiver reported.
        reason: RefusedReason,
    },
    /// A memory operation failed, or a put before a flush.
    #[error("endpoint {target} rejected the operation: {outcome}")]
    OperationFailed {
        /// The owner of the memory.
        target: Address,
        /// Outcome that the owner reported.
        outcome: Outcome,
    },
    /// The peer is gone; add the target again if it comes back.
    #[error("the process of endpoint {target} is gone{}", because(.reason))]
    PeerGone {
        /// Address of the target.
        target: Address,
        /// Reason for the end of the session, if known.
        reason: Option<GoneReason>,
    },
    /// The link is broken.
    #[error("the link is broken: {0}")]
    Broken(#[source] io::Error),
    /// The target cannot be reached.
    #[error(transparent)]
    Unreachable(Arc<TargetError>),
    /// The operation was cancelled before it started.
    #[error("a message to {target} was cancelled before it started")]
    Cancelled {
        /// Address of the target.
        target: Address,
    },
    /// The handle was inherited by a forked child.
    #[error("{}", FORKED)]
    Forked,
    /// The endpoint is closed.
    #[error("{}", ENDED)]
    Ended,
}

/// Why no message was received.
#[derive(thiserror::Error)]
pub enum ReceiveError {
    /// No message arrived in time.
    #[error("no message arrived at endpoint {endpoint} within {waited:.1?}")]
    TimedOut {
        /// Address of the receiving endpoint.
        endpoint: Address,
        /// How long it waited.
        waited: Duration,
    },
    /// The buffer is shorter than the message, which stays in the queue.
    #[error(
        "the message has {needed} bytes, the buffer only {given}; the message was left in \
         place, receive it with a longer buffer"
    )]
    TooShort {
        /// Length of the message.
        needed: usize,
        /// Length of the buffer.
        given: usize,
    },
    /// The link is broken.
    #[error("the link is broken: {0}")]
    Broken(#[source] io::Error),
    /// The handle was inherited by a forked child.
    #[error("{}", FORKED)]
    Forked,
    /// The endpoint is closed.
    #[error("{}", ENDED)]
    Ended,
    /// A signal handler has run. Only within [`interruptible`](crate::interruptible).
    #[error("a signal interrupted the wait")]
    Interrupted,
    /// A posted receive was cancelled.
    #[error("the posted receive was cancelled")]
    Cancelled,
    /// The endpoint has too many posted receives.
    #[error(
        "the endpoint has {limit} posted receives, its limit; take completions before posting more"
    )]
    TooManyPosted {
        /// The limit that was reached.
        limit: usize,
    },
}

/// Why an active port handles no more messages or cannot be waited for.
#[derive(thiserror::Error)]
pub enum PortError {
    /// Its handler panicked. The port is closed, and its senders are refused.
    #[error("the handler of port {port} panicked: {message}; the port is closed, reopen it")]
    Panicked {
        /// Address of the port.
        port: Address,
        /// Message of the panic.
        message: String,
    },
    /// It was closed by its handler or its owner.
    #[error("port {port} is closed")]
    Closed {
        /// Address of the port.
        port: Address,
    },
    /// The handler waits for its own port, which would deadlock.
    #[error("the handler of port {port} waits for its own port; it handles one message at a time")]
    WithinHandler {
        /// Address of the port.
        port: Address,
    },
    /// The link is broken.
    #[error("the link is broken: {0}")]
    Broken(#[source] io::Error),
    /// The handle was inherited by a forked child.
    #[error("{}", FORKED)]
    Forked,
}

/// Why closing a node failed.
#[derive(thiserror::Error)]
pub enum CloseError {
    /// Some peer did not acknowledge everything in time.
    #[error("some messages were still unacknowledged after {waited:.1?}; they may be lost")]
    Unacknowledged {
        /// How long it waited.
        waited: Duration,
    },
    /// The link is broken.
    #[error("the link is broken: {0}")]
    Broken(#[source] io::Error),
    /// The handle was inherited by a forked child.
    #[error("{}", FORKED)]
    Forked,
}

impl SendError {
    /// Converts the reason why a message of `length` bytes was not queued.
    pub(crate) fn from_blocked(blocked: Blocked, target: Address, length: usize) -> SendError {
        match blocked {
            Blocked::NoFrame | Blocked::Opening => SendError::Full {
                target,
                by_receiver: false,
            },
            Blocked::NoCredit => SendError::Full {
                target,
                by_receiver: true,
            },
            Blocked::TooLong { limit } => SendError::TooLong { length, limit },
            Blocked::Refused(reason) => SendError::Refused { target, reason },
            Blocked::Gone(reason) => SendError::PeerGone { target, reason },
        }
    }
}

/// Returns the word and the data read, or converts the error.
pub(crate) fn operation_result(
    result: OperationResult,
    target: Address,
) -> Result<(u64, Data), SendError> {
    match result {
        OperationResult::Done(word, data) => Ok((word, data)),
        OperationResult::Refused(outcome) => Err(SendError::OperationFailed { target, outcome }),
        OperationResult::NotDelivered(reason) => Err(SendError::Refused { target, reason }),
        OperationResult::Gone(reason) => Err(SendError::PeerGone { target, reason }),
    }
}

/// `{:?}` shows the text for the user, because a `main` that returns an error prints it so.
macro_rules! debug_as_text {
    ($($error:ty)*) => {$(
        impl fmt::Debug for $error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}
debug_as_text! { OpenError TargetError SendError ReceiveError PortError CloseError ConfigError }

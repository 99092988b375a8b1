//! What can go wrong, per family of operations; each variant carries its numbers.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dipole_engine::{Blocked, Data, GoneReason, OperationResult};
use dipole_link::udp::PortRange;
use dipole_proto::wire::{Outcome, RefusedReason};

use crate::address::Address;
use crate::key::KeyMismatch;
use crate::limits::LimitReached;
use crate::lines::FileError;

/// Why a node or an endpoint could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The endpoint belongs to another process of this node.
    Taken {
        /// Which endpoint.
        address: Address,
        /// The holder's process id.
        pid: u32,
        /// The holder's command.
        command: String,
    },
    /// The registry directory cannot be used.
    Registry {
        /// The directory.
        directory: PathBuf,
        /// What the registry says.
        cause: String,
    },
    /// This process, or this user on this node, has as much as it may.
    Limit(LimitReached),
    /// What this user may have cannot be known.
    UserLimits(FileError),
    /// The sockets cannot be opened.
    Link {
        /// The address to bind.
        bind: std::net::IpAddr,
        /// What the kernel said.
        cause: String,
    },
    /// None of the ports that this process may have is free.
    NoPort {
        /// The address to bind.
        bind: std::net::IpAddr,
        /// Those that it may have.
        ports: PortRange,
    },
    /// Processes of this node cannot meet in shared memory.
    SharedMemory {
        /// The socket file at which they would.
        socket: PathBuf,
        /// What the link says.
        cause: String,
    },
    /// No token buffer pool of that size can be had.
    Pool {
        /// For which endpoint.
        endpoint: Address,
        /// How long it was to be.
        bytes: usize,
    },
    /// The capture file cannot be written.
    Capture {
        /// The file.
        file: PathBuf,
        /// What the kernel said.
        cause: String,
    },
    /// No descriptor can be had: of an epoll or eventfd, or of anything for want of descriptors.
    Sleep(io::Error),
    /// The handle was inherited by a forked child.
    Forked,
    /// The endpoint has been ended.
    Ended,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Taken {
                address,
                pid,
                command,
            } => write!(
                f,
                "cannot open endpoint {address}: process {pid} ({command}) has it; \
                 end that process or choose another DPID"
            ),
            OpenError::Registry { directory, cause } => write!(
                f,
                "cannot use the registry in {}: {cause}; \
                 set DIPOLE_RUNTIME_DIR to a directory of your own",
                directory.display()
            ),
            OpenError::Limit(reached) => reached.fmt(f),
            OpenError::UserLimits(error) => error.fmt(f),
            OpenError::Link { bind, cause } => write!(
                f,
                "cannot open UDP sockets on {bind}: {cause}; \
                 check that the address is this node's (DIPOLE_BIND, hosts file)"
            ),
            OpenError::NoPort { bind, ports } => write!(
                f,
                "none of the ports {ports} of DIPOLE_PORTS is free on {bind}, and each process \
                 needs two: end processes, or give a wider range"
            ),
            OpenError::SharedMemory { socket, cause } => write!(
                f,
                "cannot offer shared memory at {}: {cause}; set DIPOLE_LINK=udp to go without",
                socket.display()
            ),
            OpenError::Pool { endpoint, bytes } => write!(
                f,
                "no token buffer pool of {bytes} bytes for endpoint {endpoint}: there is not so \
                 much memory, or the endpoint has ended"
            ),
            OpenError::Capture { file, cause } => {
                write!(f, "cannot write the capture {}: {cause}", file.display())
            }
            OpenError::Sleep(cause) => write!(
                f,
                "no descriptor can be had: {cause}; raise the limit of open files (ulimit -n)"
            ),
            OpenError::Forked => f.write_str(FORKED),
            OpenError::Ended => f.write_str(ENDED),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Sleep(cause) => Some(cause),
            OpenError::UserLimits(cause) => Some(cause),
            _ => None,
        }
    }
}

/// What it comes to if descriptors are all that lacks.
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

const FORKED: &str =
    "this handle belongs to the parent process; open a node of your own after fork";
const ENDED: &str =
    "this endpoint has ended (its descriptor was closed, or it was ended); open it anew";

/// Why an endpoint could not be pointed at another.
#[derive(Debug)]
pub enum TargetError {
    /// Nobody could say where the endpoint is.
    Unresolved {
        /// Which endpoint.
        target: Address,
        /// What was tried, and what to do.
        cause: String,
    },
    /// Its process did not complete the handshake.
    TimedOut {
        /// Which endpoint.
        target: Address,
        /// How long was waited.
        waited: Duration,
    },
    /// The session ended during the handshake.
    PeerGone {
        /// Which endpoint.
        target: Address,
        /// Why.
        reason: Option<GoneReason>,
    },
    /// Its process is not of our cluster.
    OtherCluster {
        /// Which endpoint.
        target: Address,
        /// How the keys differ.
        mismatch: KeyMismatch,
        /// Our key's fingerprint, if we have one.
        fingerprint: Option<String>,
    },
    /// Its process protects packets in another way: its cluster key has another security
    /// setting.
    OtherSecurity {
        /// Which endpoint.
        target: Address,
    },
    /// Only shared memory may be used (`DIPOLE_LINK=shm`), and it cannot.
    NoSharedMemory {
        /// Which endpoint.
        target: Address,
        /// Why.
        cause: String,
    },
    /// Another user's process is at the socket of its process.
    OtherUser {
        /// Which endpoint.
        target: Address,
        /// What was found at which socket.
        cause: String,
    },
    /// Its process has as many peers as it may.
    PeerFull {
        /// Which endpoint.
        target: Address,
    },
    /// As many edges lead to its process as may.
    TooManyEdges {
        /// Which endpoint.
        target: Address,
        /// How many that is.
        limit: u32,
    },
    /// This process has as many peers as it may.
    TooManyPeers {
        /// The limit.
        limit: u32,
    },
    /// The link is broken.
    Broken(io::Error),
    /// The handle was inherited by a forked child.
    Forked,
    /// The endpoint has been ended.
    Ended,
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetError::Unresolved { target, cause } => {
                write!(f, "cannot find endpoint {target}: {cause}")
            }
            TargetError::TimedOut { target, waited } => write!(
                f,
                "the process of endpoint {target} did not answer within {waited:.1?}; \
                 is it waiting or receiving? Does a firewall drop UDP?"
            ),
            TargetError::PeerGone {
                target,
                reason: Some(reason),
            } => write!(f, "the process of endpoint {target} is gone: {reason}"),
            TargetError::PeerGone {
                target,
                reason: None,
            } => write!(f, "the process of endpoint {target} is gone"),
            TargetError::OtherCluster {
                target,
                mismatch,
                fingerprint,
            } => write!(
                f,
                "endpoint {target} takes nothing from this process; of node {}: {}",
                target.node,
                mismatch.explain(fingerprint.as_deref())
            ),
            TargetError::OtherSecurity { target } => write!(
                f,
                "endpoint {target} takes nothing from this process: the cluster key of node {} \
                 has another security setting (off, auth or encrypt) than ours; copy the key \
                 file of one node to the other",
                target.node
            ),
            TargetError::NoSharedMemory { target, cause } => write!(
                f,
                "endpoint {target} cannot be reached by shared memory: {cause}; \
                 DIPOLE_LINK=auto uses UDP then"
            ),
            TargetError::OtherUser { target, cause } => {
                write!(f, "endpoint {target} is not talked to: {cause}")
            }
            TargetError::PeerFull { target } => write!(
                f,
                "the process of endpoint {target} has as many peers as it may; raise \
                 DIPOLE_MAX_PEERS there, or end some of them"
            ),
            TargetError::TooManyEdges { target, limit } => write!(
                f,
                "cannot point at endpoint {target}: {limit} edges lead to its process already, \
                 as many as may; close some"
            ),
            TargetError::TooManyPeers { limit } => write!(
                f,
                "this process already has {limit} peers, its limit; raise DIPOLE_MAX_PEERS"
            ),
            TargetError::Broken(cause) => write!(f, "the link is broken: {cause}"),
            TargetError::Forked => f.write_str(FORKED),
            TargetError::Ended => f.write_str(ENDED),
        }
    }
}

impl std::error::Error for TargetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TargetError::Broken(cause) => Some(cause),
            _ => None,
        }
    }
}

/// Why a message was not sent.
#[derive(Debug)]
pub enum SendError {
    /// The endpoint points nowhere: use [`target`](crate::Endpoint::target) first.
    NoTarget {
        /// This endpoint.
        from: Address,
    },
    /// Nothing was queued: frames or the receiver's credit are used up.
    Full {
        /// To whom.
        target: Address,
        /// True if the receiver has not read enough; false if our frames are in flight.
        by_receiver: bool,
    },
    /// Nothing was queued, or not everything acknowledged, within the time given.
    TimedOut {
        /// To whom (the first of several).
        target: Address,
        /// How long was waited.
        waited: Duration,
    },
    /// Longer than a message may be in this way of sending; nothing was queued.
    TooLong {
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: u64,
    },
    /// The receiving process has no such endpoint (any more).
    Refused {
        /// To whom.
        target: Address,
        /// Why.
        reason: RefusedReason,
    },
    /// An operation on memory was not done, or not all puts before a flush.
    NotDone {
        /// Of whose memory.
        target: Address,
        /// Why.
        outcome: Outcome,
    },
    /// The peer is gone; point the endpoint anew if it comes back.
    PeerGone {
        /// To whom.
        target: Address,
        /// Why.
        reason: Option<GoneReason>,
    },
    /// The link is broken.
    Broken(io::Error),
    /// The target cannot be reached.
    Unreachable(Arc<TargetError>),
    /// It was withdrawn before it began.
    Cancelled {
        /// The target.
        target: Address,
    },
    /// The handle was inherited by a forked child.
    Forked,
    /// The endpoint has been ended.
    Ended,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendError::NoTarget { from } => {
                write!(f, "endpoint {from} has no target; point it somewhere first")
            }
            SendError::Full {
                target,
                by_receiver: true,
            } => write!(
                f,
                "endpoint {target} has not read enough to take this message; send again later"
            ),
            SendError::Full {
                target,
                by_receiver: false,
            } => write!(
                f,
                "all frames are in flight, none is free for {target}; send again later, or raise \
                 DIPOLE_FRAMES"
            ),
            SendError::TimedOut { target, waited } => {
                write!(f, "endpoint {target} took nothing for {waited:.1?}")
            }
            SendError::TooLong { length, limit } => write!(
                f,
                "a message of {length} bytes is too long, the limit is {limit}; split it"
            ),
            SendError::Refused { target, reason } => {
                let why = match reason {
                    RefusedReason::NoEndpoint => "its process has no such endpoint open",
                    RefusedReason::Closed => "it was closed",
                    RefusedReason::TooLong => "the message is longer than it takes",
                    RefusedReason::TooManyEdges => {
                        "its process keeps as many edges as it can; close some"
                    }
                    RefusedReason::OverCredit => "more was sent than it had granted",
                };
                write!(f, "endpoint {target} refused messages: {why}")
            }
            SendError::NotDone { target, outcome } => {
                write!(f, "endpoint {target} did not do the operation: {outcome}")
            }
            SendError::PeerGone {
                target,
                reason: Some(reason),
            } => write!(f, "the process of endpoint {target} is gone: {reason}"),
            SendError::PeerGone {
                target,
                reason: None,
            } => write!(f, "the process of endpoint {target} is gone"),
            SendError::Broken(cause) => write!(f, "the link is broken: {cause}"),
            SendError::Unreachable(cause) => cause.fmt(f),
            SendError::Cancelled { target } => {
                write!(f, "a message to {target} was withdrawn before it began")
            }
            SendError::Forked => f.write_str(FORKED),
            SendError::Ended => f.write_str(ENDED),
        }
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SendError::Broken(cause) => Some(cause),
            SendError::Unreachable(cause) => cause.source(),
            _ => None,
        }
    }
}

/// Why no message was received.
#[derive(Debug)]
pub enum ReceiveError {
    /// None came in time.
    TimedOut {
        /// At which endpoint.
        endpoint: Address,
        /// How long was waited.
        waited: Duration,
    },
    /// The buffer is shorter than the message, which stays where it is.
    TooShort {
        /// Bytes of the message.
        needed: usize,
        /// Bytes of the buffer.
        given: usize,
    },
    /// The link is broken.
    Broken(io::Error),
    /// The handle was inherited by a forked child.
    Forked,
    /// The endpoint has been ended.
    Ended,
    /// A posted receive was withdrawn.
    Cancelled,
    /// So many posted receives wait at the endpoint.
    TooManyPosted {
        /// How many may.
        limit: usize,
    },
}

impl fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReceiveError::TimedOut { endpoint, waited } => {
                write!(
                    f,
                    "no message came to endpoint {endpoint} within {waited:.1?}"
                )
            }
            ReceiveError::TooShort { needed, given } => write!(
                f,
                "the message has {needed} bytes, the buffer {given}; \
                 it was left in place, receive it with a longer buffer"
            ),
            ReceiveError::Broken(cause) => write!(f, "the link is broken: {cause}"),
            ReceiveError::Forked => f.write_str(FORKED),
            ReceiveError::Ended => f.write_str(ENDED),
            ReceiveError::Cancelled => f.write_str("the posted receive was withdrawn"),
            ReceiveError::TooManyPosted { limit } => write!(
                f,
                "{limit} posted receives wait at the endpoint; take completions before you post more"
            ),
        }
    }
}

impl std::error::Error for ReceiveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReceiveError::Broken(cause) => Some(cause),
            _ => None,
        }
    }
}

/// Why an active port handles no more messages, or why it cannot be waited for.
#[derive(Debug)]
pub enum PortError {
    /// Its handler panicked: the port is closed, and its senders are refused.
    Panicked {
        /// Which port.
        port: Address,
        /// What the panic said.
        message: String,
    },
    /// It was closed, by its handler or its owner.
    Closed {
        /// Which port.
        port: Address,
    },
    /// Its own handler waits for it, which would never end.
    WithinHandler {
        /// Which port.
        port: Address,
    },
    /// The link is broken.
    Broken(io::Error),
    /// The handle was inherited by a forked child.
    Forked,
}

impl fmt::Display for PortError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortError::Panicked { port, message } => write!(
                f,
                "the handler of port {port} panicked: {message}; the port is closed, open it anew"
            ),
            PortError::Closed { port } => write!(f, "port {port} is closed"),
            PortError::WithinHandler { port } => write!(
                f,
                "the handler of port {port} waits for its own port; it handles one message at a time"
            ),
            PortError::Broken(cause) => write!(f, "the link is broken: {cause}"),
            PortError::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for PortError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            PortError::Broken(cause) => Some(cause),
            _ => None,
        }
    }
}

/// Why closing did not end cleanly.
#[derive(Debug)]
pub enum CloseError {
    /// Some peer had not acknowledged everything in time.
    Unacknowledged {
        /// How long was waited.
        waited: Duration,
    },
    /// The link is broken.
    Broken(io::Error),
    /// The handle was inherited by a forked child.
    Forked,
}

impl fmt::Display for CloseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CloseError::Unacknowledged { waited } => write!(
                f,
                "after {waited:.1?} some messages were still unacknowledged; their receivers may not have them"
            ),
            CloseError::Broken(cause) => write!(f, "the link is broken: {cause}"),
            CloseError::Forked => f.write_str(FORKED),
        }
    }
}

impl std::error::Error for CloseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CloseError::Broken(cause) => Some(cause),
            _ => None,
        }
    }
}

impl SendError {
    /// Why a message of `length` bytes was not queued.
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

/// A word, and what was got; or why a target's memory was not operated on.
pub(crate) fn operation_result(
    result: OperationResult,
    target: Address,
) -> Result<(u64, Data), SendError> {
    match result {
        OperationResult::Done(word, data) => Ok((word, data)),
        OperationResult::Refused(outcome) => Err(SendError::NotDone { target, outcome }),
        OperationResult::NotTaken(reason) => Err(SendError::Refused { target, reason }),
        OperationResult::Gone(reason) => Err(SendError::PeerGone { target, reason }),
    }
}

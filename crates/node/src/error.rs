//! What can go wrong, per family of operations; each variant carries its numbers.

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
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The endpoint belongs to another process of this node.
    #[error(
        "cannot open endpoint {address}: process {pid} ({command}) has it; end that process \
         or choose another DPID"
    )]
    Taken {
        /// Which endpoint.
        address: Address,
        /// The holder's process id.
        pid: u32,
        /// The holder's command.
        command: String,
    },
    /// The registry directory cannot be used.
    #[error(
        "cannot use the registry in {}: {cause}; set DIPOLE_RUNTIME_DIR to a directory of \
         your own",
        .directory.display()
    )]
    Registry {
        /// The directory.
        directory: PathBuf,
        /// What the registry says.
        cause: String,
    },
    /// This process, or this user on this node, has as much as it may.
    #[error(transparent)]
    Limit(LimitReached),
    /// What this user may have cannot be known.
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
        /// What the kernel said.
        cause: String,
    },
    /// None of the ports that this process may have is free.
    #[error(
        "none of the ports {ports} of DIPOLE_PORTS is free on {bind}, and each process needs \
         two: end processes, or give a wider range"
    )]
    NoPort {
        /// The address to bind.
        bind: std::net::IpAddr,
        /// Those that it may have.
        ports: PortRange,
    },
    /// Processes of this node cannot meet in shared memory.
    #[error(
        "cannot offer shared memory at {}: {cause}; set DIPOLE_LINK=udp to go without",
        .socket.display()
    )]
    SharedMemory {
        /// The socket file at which they would.
        socket: PathBuf,
        /// What the link says.
        cause: String,
    },
    /// No token buffer pool of that size can be had.
    #[error(
        "no token buffer pool of {bytes} bytes for endpoint {endpoint}: there is not so much \
         memory, or the endpoint has ended"
    )]
    Pool {
        /// For which endpoint.
        endpoint: Address,
        /// How long it was to be.
        bytes: usize,
    },
    /// The capture file cannot be written.
    #[error("cannot write the capture {}: {cause}", .file.display())]
    Capture {
        /// The file.
        file: PathBuf,
        /// What the kernel said.
        cause: String,
    },
    /// No descriptor can be had: of an epoll or eventfd, or of anything for want of descriptors.
    #[error("no descriptor can be had: {0}; raise the limit of open files (ulimit -n)")]
    Sleep(#[source] io::Error),
    /// The handle was inherited by a forked child.
    #[error("{}", FORKED)]
    Forked,
    /// The endpoint has been ended.
    #[error("{}", ENDED)]
    Ended,
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

/// What follows "is gone" where the reason is known.
fn because(reason: &Option<GoneReason>) -> String {
    reason.map_or(String::new(), |reason| format!(": {reason}"))
}

fn full(target: &Address, by_receiver: bool) -> String {
    match by_receiver {
        true => {
            format!("endpoint {target} has not read enough to take this message; send again later")
        }
        false => format!(
            "all frames are in flight, none is free for {target}; send again later, or raise \
             DIPOLE_FRAMES"
        ),
    }
}

fn refusal(reason: RefusedReason) -> &'static str {
    match reason {
        RefusedReason::NoEndpoint => "its process has no such endpoint open",
        RefusedReason::Closed => "it was closed",
        RefusedReason::TooLong => "the message is longer than it takes",
        RefusedReason::TooManyEdges => "its process keeps as many edges as it can; close some",
        RefusedReason::OverCredit => "more was sent than it had granted",
    }
}

/// Why an endpoint could not be pointed at another.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// Nobody could say where the endpoint is.
    #[error("cannot find endpoint {target}: {cause}")]
    Unresolved {
        /// Which endpoint.
        target: Address,
        /// What was tried, and what to do.
        cause: String,
    },
    /// Its process did not complete the handshake.
    #[error(
        "the process of endpoint {target} did not answer within {waited:.1?}; is it waiting \
         or receiving? Does a firewall drop UDP?"
    )]
    TimedOut {
        /// Which endpoint.
        target: Address,
        /// How long was waited.
        waited: Duration,
    },
    /// The session ended during the handshake.
    #[error("the process of endpoint {target} is gone{}", because(.reason))]
    PeerGone {
        /// Which endpoint.
        target: Address,
        /// Why.
        reason: Option<GoneReason>,
    },
    /// Its process is not of our cluster.
    #[error(
        "endpoint {target} takes nothing from this process; of node {}: {}",
        .target.node, .mismatch.explain(.fingerprint.as_deref())
    )]
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
    #[error(
        "endpoint {target} takes nothing from this process: the cluster key of node {} has \
         another security setting (off, auth or encrypt) than ours; copy the key file of one \
         node to the other",
        .target.node
    )]
    OtherSecurity {
        /// Which endpoint.
        target: Address,
    },
    /// Only shared memory may be used (`DIPOLE_LINK=shm`), and it cannot.
    #[error(
        "endpoint {target} cannot be reached by shared memory: {cause}; DIPOLE_LINK=auto uses \
         UDP then"
    )]
    NoSharedMemory {
        /// Which endpoint.
        target: Address,
        /// Why.
        cause: String,
    },
    /// Another user's process is at the socket of its process.
    #[error("endpoint {target} is not talked to: {cause}")]
    OtherUser {
        /// Which endpoint.
        target: Address,
        /// What was found at which socket.
        cause: String,
    },
    /// Its process has as many peers as it may.
    #[error(
        "the process of endpoint {target} has as many peers as it may; raise DIPOLE_MAX_PEERS \
         there, or end some of them"
    )]
    PeerFull {
        /// Which endpoint.
        target: Address,
    },
    /// As many edges lead to its process as may.
    #[error(
        "cannot point at endpoint {target}: {limit} edges lead to its process already, as \
         many as may; close some"
    )]
    TooManyEdges {
        /// Which endpoint.
        target: Address,
        /// How many that is.
        limit: u32,
    },
    /// This process has as many peers as it may.
    #[error("this process already has {limit} peers, its limit; raise DIPOLE_MAX_PEERS")]
    TooManyPeers {
        /// The limit.
        limit: u32,
    },
    /// The link is broken.
    #[error("the link is broken: {0}")]
    Broken(#[source] io::Error),
    /// The handle was inherited by a forked child.
    #[error("{}", FORKED)]
    Forked,
    /// The endpoint has been ended.
    #[error("{}", ENDED)]
    Ended,
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The endpoint points nowhere: use [`target`](crate::Endpoint::target) first.
    #[error("endpoint {from} has no target; point it somewhere first")]
    NoTarget {
        /// This endpoint.
        from: Address,
    },
    /// Nothing was queued: frames or the receiver's credit are used up.
    #[error("{}", full(.target, *.by_receiver))]
    Full {
        /// To whom.
        target: Address,
        /// True if the receiver has not read enough; false if our frames are in flight.
        by_receiver: bool,
    },
    /// Nothing was queued, or not everything acknowledged, within the time given.
    #[error("endpoint {target} took nothing for {waited:.1?}")]
    TimedOut {
        /// To whom (the first of several).
        target: Address,
        /// How long was waited.
        waited: Duration,
    },
    /// Longer than a message may be in this way of sending; nothing was queued.
    #[error("a message of {length} bytes is too long, the limit is {limit}; split it")]
    TooLong {
        /// Its length in bytes.
        length: usize,
        /// The limit in bytes.
        limit: u64,
    },
    /// The receiving process has no such endpoint (any more).
    #[error("endpoint {target} refused messages: {}", refusal(*.reason))]
    Refused {
        /// To whom.
        target: Address,
        /// Why.
        reason: RefusedReason,
    },
    /// An operation on memory was not done, or not all puts before a flush.
    #[error("endpoint {target} did not do the operation: {outcome}")]
    NotDone {
        /// Of whose memory.
        target: Address,
        /// Why.
        outcome: Outcome,
    },
    /// The peer is gone; point the endpoint anew if it comes back.
    #[error("the process of endpoint {target} is gone{}", because(.reason))]
    PeerGone {
        /// To whom.
        target: Address,
        /// Why.
        reason: Option<GoneReason>,
    },
    /// The link is broken.
    #[error("the link is broken: {0}")]
    Broken(#[source] io::Error),
    /// The target cannot be reached.
    #[error(transparent)]
    Unreachable(Arc<TargetError>),
    /// It was withdrawn before it began.
    #[error("a message to {target} was withdrawn before it began")]
    Cancelled {
        /// The target.
        target: Address,
    },
    /// The handle was inherited by a forked child.
    #[error("{}", FORKED)]
    Forked,
    /// The endpoint has been ended.
    #[error("{}", ENDED)]
    Ended,
}

/// Why no message was received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// None came in time.
    #[error("no message came to endpoint {endpoint} within {waited:.1?}")]
    TimedOut {
        /// At which endpoint.
        endpoint: Address,
        /// How long was waited.
        waited: Duration,
    },
    /// The buffer is shorter than the message, which stays where it is.
    #[error(
        "the message has {needed} bytes, the buffer {given}; it was left in place, receive it \
         with a longer buffer"
    )]
    TooShort {
        /// Bytes of the message.
        needed: usize,
        /// Bytes of the buffer.
        given: usize,
    },
    /// The link is broken.
    #[error("the link is broken: {0}")]
    Broken(#[source] io::Error),
    /// The handle was inherited by a forked child.
    #[error("{}", FORKED)]
    Forked,
    /// The endpoint has been ended.
    #[error("{}", ENDED)]
    Ended,
    /// A posted receive was withdrawn.
    #[error("the posted receive was withdrawn")]
    Cancelled,
    /// So many posted receives wait at the endpoint.
    #[error("{limit} posted receives wait at the endpoint; take completions before you post more")]
    TooManyPosted {
        /// How many may.
        limit: usize,
    },
}

/// Why an active port handles no more messages, or why it cannot be waited for.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Its handler panicked: the port is closed, and its senders are refused.
    #[error("the handler of port {port} panicked: {message}; the port is closed, open it anew")]
    Panicked {
        /// Which port.
        port: Address,
        /// What the panic said.
        message: String,
    },
    /// It was closed, by its handler or its owner.
    #[error("port {port} is closed")]
    Closed {
        /// Which port.
        port: Address,
    },
    /// Its own handler waits for it, which would never end.
    #[error("the handler of port {port} waits for its own port; it handles one message at a time")]
    WithinHandler {
        /// Which port.
        port: Address,
    },
    /// The link is broken.
    #[error("the link is broken: {0}")]
    Broken(#[source] io::Error),
    /// The handle was inherited by a forked child.
    #[error("{}", FORKED)]
    Forked,
}

/// Why closing did not end cleanly.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// Some peer had not acknowledged everything in time.
    #[error(
        "after {waited:.1?} some messages were still unacknowledged; their receivers may not \
         have them"
    )]
    Unacknowledged {
        /// How long was waited.
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

//! Descriptors that carry an endpoint's messages through `read` and `write` (`DP_IO`).
//!
//! The descriptor is one end of a `SOCK_SEQPACKET` pair, so each `write` is one message, and copies
//! of it work in other processes. Two threads move messages between our end and the endpoint. Only
//! endpoints opened with `DP_IO` have them; for the others nothing changes.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dipole_node::{Address, Endpoint, ReceiveError, SendError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType,
    sockopt,
};

use crate::per_process::lock;

/// Requested send buffer; the kernel doubles it, and limits it to `net.core.wmem_max`.
const BUFFER_BYTES: usize = 256 << 10;
/// Longest `write`, with the largest buffer.
const MAX_WRITE_BYTES: usize = 2 * BUFFER_BYTES;
/// A longer message is read in pieces of this length, which is what `cat` reads at once. It fits the
/// buffer with the kernel's default limit, 208 KiB.
const PIECE_BYTES: usize = 128 << 10;
/// How often a send that waits for room checks whether the endpoint is being closed.
const CHECK: Duration = Duration::from_millis(200);

/// The owner of an endpoint whose messages are carried.
pub(crate) trait Owner: Send + Sync + 'static {
    fn endpoint(&self) -> &Endpoint;

    /// How long closing waits until everything written has left.
    fn linger(&self) -> Duration;
}

/// The threads of a descriptor.
#[derive(Debug)]
pub(crate) struct Carrier {
    own: Arc<OwnedFd>,
    closing: Arc<AtomicBool>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Our end and the program's end.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (domain, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (own, user) = rustix::net::socketpair(domain, kind, SocketFlags::CLOEXEC, None)?;
    for end in [&own, &user] {
        sockopt::set_socket_send_buffer_size(end, BUFFER_BYTES)?;
    }
    // Packets have their writer's credentials; the end of the packets has none, unlike an empty packet.
    sockopt::set_socket_passcred(&own, true)?;
    Ok((own, user))
}

impl Carrier {
    /// Starts to move messages between `own` and the endpoint.
    pub(crate) fn start<O: Owner>(owner: &Arc<O>, own: OwnedFd) -> io::Result<Carrier> {
        let own = Arc::new(own);
        let closing = Arc::new(AtomicBool::new(false));
        let carrier = Carrier {
            own: Arc::clone(&own),
            closing: Arc::clone(&closing),
            threads: Mutex::default(),
        };
        let (owner_in, own_in) = (Arc::clone(owner), Arc::clone(&own));
        carrier.spawn(move || deliver(owner_in.endpoint(), &own_in))?;
        let owner = Arc::clone(owner);
        carrier.spawn(move || collect(&*owner, &own, &closing))?;
        Ok(carrier)
    }

    fn spawn(&self, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("dipole-io".into());
        lock(&self.threads).push(thread.spawn(run)?);
        Ok(())
    }

    /// Sends what was written, then ends the endpoint by `end` and waits for the threads.
    pub(crate) fn close(&self, end: impl FnOnce()) {
        self.closing.store(true, Ordering::Relaxed);
        // Packets in the socket can still be received.
        ignore(rustix::net::shutdown(&self.own, Shutdown::Read));
        let mut threads = std::mem::take(&mut *lock(&self.threads));
        join(threads.pop());
        end();
        ignore(rustix::net::shutdown(&self.own, Shutdown::Both));
        join(threads.pop());
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread
        && thread.thread().id() != std::thread::current().id()
        && thread.join().is_err()
    {
        tracing::error!("a thread of a DP_IO descriptor panicked");
    }
}

/// The other end may have been closed.
fn ignore(done: rustix::io::Result<()>) {
    if let Err(cause) = done {
        tracing::debug!("shutting down a DP_IO descriptor: {cause}");
    }
}

/// Sends what the program writes, until it has closed all copies of the descriptor.
fn collect(owner: &impl Owner, own: &OwnedFd, closing: &AtomicBool) {
    let mut buffer = vec![0; MAX_WRITE_BYTES];
    loop {
        let length = match receive(own, &mut buffer) {
            Ok(Some(length)) => length,
            Err(Errno::INTR) => continue,
            Ok(None) | Err(_) => break,
        };
        if let Err(error) = send(owner, &buffer[..length], closing) {
            tracing::warn!(
                "write to the descriptor of {}: {error}",
                owner.endpoint().address()
            );
            // Further writes fail with EPIPE, as on a pipe whose reader is gone.
            ignore(rustix::net::shutdown(own, Shutdown::Read));
            break;
        }
    }
    await_hang_up(own, closing);
    if !closing.load(Ordering::Relaxed) {
        owner.endpoint().end();
    }
}

/// Waits for the next packet; returns its length, or `None` if no others will follow.
fn receive(own: &OwnedFd, buffer: &mut [u8]) -> rustix::io::Result<Option<usize>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut writer = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let received = rustix::net::recvmsg(own, &mut parts, &mut writer, RecvFlags::empty())?;
    Ok(writer.drain().next().map(|_| received.bytes))
}

/// Waits until the program has closed its end: it may have shut down only one direction.
fn await_hang_up(own: &OwnedFd, closing: &AtomicBool) {
    let slice = Timespec::try_from(CHECK).unwrap_or_default();
    while !closing.load(Ordering::Relaxed) {
        let mut polled = [PollFd::new(own, PollFlags::empty())];
        match poll(&mut polled, Some(&slice)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// Sends a message to all targets that are left.
fn send(owner: &impl Owner, message: &[u8], closing: &AtomicBool) -> Result<(), SendError> {
    let mut lost: Vec<Address> = Vec::new();
    let mut give_up_at = None;
    loop {
        match owner.endpoint().send_timeout(message, CHECK) {
            Err(SendError::TimedOut { target, waited }) => {
                if !closing.load(Ordering::Relaxed) {
                    continue;
                }
                let until = *give_up_at.get_or_insert_with(|| Instant::now() + owner.linger());
                if Instant::now() >= until {
                    return Err(SendError::TimedOut { target, waited });
                }
            }
            // With several targets each loss is reported once, and nothing was sent.
            Err(SendError::PeerGone { target, .. } | SendError::Refused { target, .. })
                if !lost.contains(&target) =>
            {
                lost.push(target)
            }
            sent => return sent,
        }
    }
}

/// Makes the endpoint's messages readable at the descriptor.
fn deliver(endpoint: &Endpoint, own: &OwnedFd) {
    loop {
        let message = match endpoint.receive() {
            Ok(message) => message,
            Err(ReceiveError::Ended) => break,
            Err(error) => {
                tracing::warn!(
                    "read from the descriptor of {}: {error}",
                    endpoint.address()
                );
                break;
            }
        };
        let pieces = message.chunks(PIECE_BYTES);
        let empty = message.is_empty().then_some(&[][..]);
        // After shutdown(SHUT_RD) messages are discarded, so that their senders do not wait.
        let _is_read = pieces
            .chain(empty)
            .try_for_each(|piece| push(own.as_fd(), piece));
    }
    ignore(rustix::net::shutdown(own, Shutdown::Write));
}

/// Waits until the program's end has room for a packet.
fn push(own: std::os::fd::BorrowedFd<'_>, piece: &[u8]) -> rustix::io::Result<()> {
    loop {
        match rustix::net::send(own, piece, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(cause) => return Err(cause),
        }
    }
}

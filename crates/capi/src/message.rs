//! Calls that send and receive with sizes, sources, flags and timeouts.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use dipole_node::{Endpoint, LongWait, Message, ReceiveError, SendError, Timeout, interruptible};

use crate::address::Address;
use crate::failure::Failure;
use crate::ffi::{self, Buffer, Out, call};
use crate::handle::{self, Handle};
use crate::per_process::lock;

/// Shorter messages are copied to the caller's buffer; longer buffers are passed to the node, which
/// may receive into them directly.
const SHORT_BYTES: usize = 4 << 10;

/// Fail with `EAGAIN` instead of waiting.
pub const DP_DONTWAIT: c_int = 1;
/// More messages follow: this one may wait for them and share their packet.
pub const DP_MORE: c_int = 2;
/// The longest message in bytes, unless `DIPOLE_MAX_MESSAGE_BYTES` is set.
pub const DP_MAX_MESSAGE_BYTES: i64 = dipole_node::MAX_MESSAGE_BYTES.cast_signed();
/// Send without retransmission: the message arrives at most once.
pub const DP_UNRELIABLE: c_int = 4;

/// How long a call waits before it reads the flags of its descriptor. That is a system call, which may
/// cost more than a message, so only calls that wait longer make it. `O_NONBLOCK` that was set only
/// just before takes effect after this time.
pub(crate) const PROBE: Duration = Duration::from_micros(20);

/// How long a call with these flags may wait.
#[inline]
pub(crate) fn timeout(flags: c_int, timeout_ns: i64) -> Timeout {
    match flags & DP_DONTWAIT {
        0 => Timeout::from_nanos(timeout_ns),
        _ => Timeout::Zero,
    }
}

/// Runs `attempt` with the timeout of a call on a descriptor, and again if the descriptor turns out
/// to block. `is_timeout` recognizes time-outs, which must not have changed anything.
#[inline]
fn with_timeout<A>(
    handle: &Handle,
    fd: c_int,
    timeout: Timeout,
    is_timeout: impl Fn(&Failure) -> bool,
    attempt: impl Fn(Timeout) -> Result<A, Failure>,
) -> Result<A, Failure> {
    if timeout == Timeout::Zero {
        return attempt(timeout);
    }
    // The flags rarely change between two calls.
    let first = match (handle.is_nonblocking(), timeout) {
        (true, _) => Timeout::Zero,
        (false, Timeout::After(limit)) if limit <= handle.probe => return attempt(timeout),
        (false, _) => Timeout::After(handle.probe),
    };
    let mut whole = LongWait::new();
    let tried = match handle.is_traced {
        true => whole.part(|| attempt(first)),
        false => attempt(first),
    };
    match tried {
        Err(failure) if is_timeout(&failure) => match handle.look_nonblocking(fd)? {
            true if first == Timeout::Zero => Err(failure),
            true => attempt(Timeout::Zero),
            false => {
                let left = timeout.after(handle.probe);
                interruptible(|| whole.last_part(|| attempt(left)))
            }
        },
        answer => answer,
    }
}

/// A time in ns; a negative one never ends.
pub(crate) fn duration(timeout_ns: i64) -> Duration {
    match u64::try_from(timeout_ns) {
        Ok(timeout_ns) => Duration::from_nanos(timeout_ns),
        Err(_) => Duration::from_nanos(i64::MAX.unsigned_abs()),
    }
}

pub(crate) fn check_flags(flags: c_int, known: c_int) -> Result<(), Failure> {
    if flags & !known != 0 {
        return Err(Failure::UnknownFlags { flags, known });
    }
    Ok(())
}

#[inline]
pub(crate) fn send(
    handle: &Handle,
    fd: c_int,
    message: &[u8],
    flags: c_int,
    timeout: Timeout,
) -> Result<(), Failure> {
    let endpoint = &handle.endpoint;
    if flags & DP_UNRELIABLE != 0 {
        return Ok(endpoint.send_unreliable(message)?);
    }
    let more = flags & DP_MORE != 0;
    let attempt = |timeout| {
        match timeout {
            Timeout::Zero => endpoint.try_send(message)?,
            Timeout::After(timeout) => endpoint.send_timeout(message, timeout)?,
            Timeout::Infinite if more => endpoint.send_more(message)?,
            Timeout::Infinite => endpoint.send(message)?,
        }
        Ok(())
    };
    // A message that others may share a packet with cannot be withdrawn. And a long message to
    // several targets is sent from the caller's memory only if the call may wait.
    let in_place = handle.targets.are_several() && message.len() > SHORT_BYTES;
    if timeout == Timeout::Infinite && (more || in_place) {
        return match handle.look_nonblocking(fd)? {
            true => attempt(Timeout::Zero),
            false => attempt(timeout),
        };
    }
    with_timeout(handle, fd, timeout, is_out_of_time, attempt)
}

/// True if the send might succeed with more time.
fn is_out_of_time(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Send(SendError::TimedOut { .. } | SendError::Full { .. })
    )
}

#[inline]
pub(crate) fn receive(handle: &Handle, fd: c_int, timeout: Timeout) -> Result<Message, Failure> {
    let attempt = |endpoint: &Endpoint, timeout| endpoint.receive_max(usize::MAX, timeout);
    receive_with(handle, fd, timeout, attempt)
}

/// Receives with `attempt`, which gets the time to wait.
#[inline]
fn receive_with<R>(
    handle: &Handle,
    fd: c_int,
    timeout: Timeout,
    attempt: impl Fn(&Endpoint, Duration) -> Result<R, ReceiveError>,
) -> Result<R, Failure> {
    let is_timeout = |failure: &Failure| {
        matches!(
            failure,
            Failure::Receive(ReceiveError::TimedOut { .. }) | Failure::NoMessage { .. }
        )
    };
    let attempt = |timeout: Timeout| match attempt(&handle.endpoint, timeout.duration()) {
        Err(ReceiveError::TimedOut { .. }) if timeout == Timeout::Zero => {
            Err(Failure::NoMessage { fd })
        }
        received => Ok(received?),
    };
    with_timeout(handle, fd, timeout, is_timeout, attempt)
}

/// Sends a message; returns its length.
///
/// # Safety
/// `msg` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_send(
    fd: c_int,
    msg: *const c_void,
    len: usize,
    flags: c_int,
    timeout_ns: i64,
) -> isize {
    call("dp_send", || {
        check_flags(flags, DP_DONTWAIT | DP_MORE | DP_UNRELIABLE)?;
        // SAFETY: the caller guarantees this by contract.
        let message = unsafe { ffi::message(msg, len) }?;
        let timeout = timeout(flags, timeout_ns);
        handle::with(fd, |handle| send(handle, fd, message, flags, timeout))?;
        Ok(len.cast_signed())
    })
}

/// Sends a message to one endpoint; returns its length.
///
/// # Safety
/// `msg` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_send_to(
    fd: c_int,
    to: Address,
    msg: *const c_void,
    len: usize,
    flags: c_int,
    timeout_ns: i64,
) -> isize {
    call("dp_send_to", || {
        check_flags(flags, DP_DONTWAIT)?;
        // SAFETY: the caller guarantees this by contract.
        let message = unsafe { ffi::message(msg, len) }?;
        let to = to.checked()?;
        let timeout = timeout(flags, timeout_ns);
        handle::with(fd, |handle| {
            let endpoint = &handle.endpoint;
            let attempt = |timeout| {
                match timeout {
                    Timeout::Zero => endpoint.try_send_to(to, message)?,
                    Timeout::After(timeout) => endpoint.send_to_timeout(to, message, timeout)?,
                    Timeout::Infinite => endpoint.send_to(to, message)?,
                }
                Ok(())
            };
            with_timeout(handle, fd, timeout, is_out_of_time, attempt)
        })?;
        Ok(len.cast_signed())
    })
}

/// Replies to a message that was read and not released; returns the length of the reply.
///
/// # Safety
/// `msg` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_reply(
    fd: c_int,
    message: *const c_void,
    msg: *const c_void,
    len: usize,
) -> isize {
    call("dp_reply", || {
        // SAFETY: the caller guarantees this by contract.
        let answer = unsafe { ffi::message(msg, len) }?;
        handle::with(fd, |handle| {
            let read = lock(&handle.unreleased);
            let matches = |read: &&Message| read.as_ptr().cast() == message;
            let answered = read.iter().rev().find(matches).ok_or(Failure::NotHeld)?;
            Ok(handle.endpoint.reply(answered, answer)?)
        })?;
        Ok(len.cast_signed())
    })
}

/// Receives the next message in place; returns its length.
///
/// # Safety
/// `address` and `source` are null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_recv(
    fd: c_int,
    address: *mut *const c_void,
    source: *mut Address,
    flags: c_int,
    timeout_ns: i64,
) -> isize {
    call("dp_recv", || {
        check_flags(flags, DP_DONTWAIT)?;
        // SAFETY: the caller guarantees both by contract.
        let (address, source) =
            unsafe { (Out::new("address", address)?, Out::maybe("source", source)?) };
        let timeout = timeout(flags, timeout_ns);
        handle::with(fd, |handle| {
            let message = receive(handle, fd, timeout)?;
            let length = message.len().cast_signed();
            address.write(message.as_ptr().cast());
            source.write(message.source().into());
            lock(&handle.unreleased).push_back(message);
            Ok(length)
        })
    })
}

/// `struct dp_message`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReceivedMessage {
    /// Address of the payload.
    pub address: *const c_void,
    /// Length of the payload in bytes.
    pub length: usize,
    /// Address of the sending endpoint.
    pub source: Address,
}

/// Receives all waiting messages in place, at most `count`; returns their number.
///
/// # Safety
/// `messages` is null or points to an array of `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_recv_many(
    fd: c_int,
    messages: *mut ReceivedMessage,
    count: c_int,
    flags: c_int,
    timeout_ns: i64,
) -> c_int {
    call("dp_recv_many", || {
        check_flags(flags, DP_DONTWAIT)?;
        // SAFETY: the caller guarantees this by contract.
        let places = unsafe { Out::new("messages", messages) }?;
        let limit = ffi::count(count)?;
        let timeout = timeout(flags, timeout_ns);
        handle::with(fd, |handle| {
            let attempt = |endpoint: &Endpoint, timeout| {
                let mut received = Vec::new();
                endpoint.receive_many_timeout(&mut received, limit, timeout)?;
                Ok(received)
            };
            let received: Vec<Message> = receive_with(handle, fd, timeout, attempt)?;
            for (index, message) in received.iter().enumerate() {
                // SAFETY: at most `limit` messages were received, and by contract the array has as
                // many elements.
                unsafe { places.element(index) }.write(ReceivedMessage {
                    address: message.as_ptr().cast(),
                    length: message.len(),
                    source: message.source().into(),
                });
            }
            let taken = received.len();
            lock(&handle.unreleased).extend(received);
            // It is at most `count`.
            Ok(c_int::try_from(taken).unwrap_or(count))
        })
    })
}

/// Copies the next message to a buffer; returns its length.
///
/// # Safety
/// `buf` points to `len` bytes; `source` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_recv_copy(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    source: *mut Address,
    flags: c_int,
    timeout_ns: i64,
) -> isize {
    call("dp_recv_copy", || {
        check_flags(flags, DP_DONTWAIT)?;
        // SAFETY: the caller guarantees both by contract.
        let (buffer, source) = unsafe { (Buffer::new(buf, len)?, Out::maybe("source", source)?) };
        let timeout = timeout(flags, timeout_ns);
        handle::with(fd, |handle| {
            let attempt = |endpoint: &Endpoint, timeout| {
                if buffer.length > SHORT_BYTES {
                    return buffer
                        .with_region(|memory| endpoint.receive_to_region(memory, timeout));
                }
                let message = endpoint.receive_max(buffer.length, timeout)?;
                buffer.fill(&message);
                Ok((message.len(), message.source()))
            };
            let (length, from) = receive_with(handle, fd, timeout, attempt)?;
            source.write(from.into());
            Ok(length.cast_signed())
        })
    })
}

/// Sends messages that wait because of `DP_MORE`.
#[unsafe(no_mangle)]
pub extern "C" fn dp_flush(fd: c_int) -> c_int {
    call("dp_flush", || {
        handle::with(fd, |handle| Ok(handle.endpoint.flush()?))?;
        Ok(0)
    })
}

/// Waits until everything sent is acknowledged.
#[unsafe(no_mangle)]
pub extern "C" fn dp_drain(fd: c_int, timeout_ns: i64) -> c_int {
    call("dp_drain", || {
        let timeout = duration(timeout_ns);
        handle::with(fd, |handle| {
            Ok(interruptible(|| handle.endpoint.drain(timeout))?)
        })?;
        Ok(0)
    })
}

//! Calls that send and receive with sizes, sources, flags and timeouts.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use dipole_node::{Endpoint, Message, ReceiveError, SendError};
use dipole_trace::waits::{Cause, Over};

use crate::address::Address;
use crate::failure::Failure;
use crate::ffi::{self, Buffer, Out, call};
use crate::handle::{self, Handle};
use crate::per_process::lock;
use crate::process::place;

/// Shorter messages are copied to the caller's buffer; longer buffers are passed to the node, which
/// may receive into them directly.
const SHORT_BYTES: usize = 4 << 10;

/// Fail with `EAGAIN` instead of waiting.
pub const DP_DONTWAIT: c_int = 1;
/// More messages follow: this one may wait for them and share their packet.
pub const DP_MORE: c_int = 2;
/// Send without retransmission: the message arrives at most once.
pub const DP_UNRELIABLE: c_int = 4;

/// How long a call waits before it reads the flags of its descriptor. That is a system call, which may
/// cost more than a message, so only calls that wait longer make it. `O_NONBLOCK` that was set only
/// just before takes effect after this time.
pub(crate) const PROBE: Duration = Duration::from_micros(20);

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    None,
    For(Duration),
    Forever,
}

impl Patience {
    pub(crate) fn new(flags: c_int, timeout_ns: i64) -> Patience {
        match timeout_ns {
            _ if flags & DP_DONTWAIT != 0 => Patience::None,
            0 => Patience::None,
            1.. => Patience::For(duration(timeout_ns)),
            _ => Patience::Forever,
        }
    }

    /// The time, endless as the longest there is.
    pub(crate) fn timeout(self) -> Duration {
        match self {
            Patience::None => Duration::ZERO,
            Patience::For(timeout) => timeout,
            Patience::Forever => Duration::MAX,
        }
    }

    /// The remainder after some time has passed.
    fn after(self, spent: Duration) -> Patience {
        match self {
            Patience::For(timeout) => Patience::For(timeout.saturating_sub(spent)),
            other => other,
        }
    }
}

/// Runs `attempt` with the timeout of a call on a descriptor, and again if the descriptor turns out
/// to block. `gave_up` recognizes failures for lack of time, which must not have changed anything;
/// `over` describes the wait.
#[inline]
fn patiently<A>(
    handle: &Handle,
    fd: c_int,
    patience: Patience,
    gave_up: impl Fn(&Failure) -> bool,
    attempt: impl Fn(Patience) -> Result<A, Failure>,
    over: impl Fn(Option<&A>) -> Over,
) -> Result<A, Failure> {
    if patience == Patience::None {
        return attempt(patience);
    }
    // The flags rarely change between two calls.
    let first = match (handle.is_nonblocking(), patience) {
        (true, _) => Patience::None,
        (false, Patience::For(timeout)) if timeout <= handle.probe => return attempt(patience),
        (false, _) => Patience::For(handle.probe),
    };
    match attempt(first) {
        Err(failure) if gave_up(&failure) => match handle.look_nonblocking(fd)? {
            true if first == Patience::None => Err(failure),
            true => attempt(Patience::None),
            false => kept(handle, || attempt(patience.after(handle.probe)), over),
        },
        answer => answer,
    }
}

/// Runs `attempt` once more after a first failure, and records the wait if that is requested.
fn kept<A>(
    handle: &Handle,
    attempt: impl Fn() -> Result<A, Failure>,
    over: impl Fn(Option<&A>) -> Over,
) -> Result<A, Failure> {
    let Some(keeper) = &handle.wait_trace else {
        return attempt();
    };
    let probe_ns = u64::try_from(handle.probe.as_nanos()).unwrap_or(0);
    let began_ns = keeper.now_ns().saturating_sub(probe_ns);
    let answer = attempt();
    keeper.keep(began_ns, over(answer.as_ref().ok()));
    answer
}

/// A wait for a message: the sender and length of the one that arrived, if one did.
fn waited(handle: &Handle, came: Option<(dipole_node::Address, usize)>) -> Over {
    Over {
        cause: came.map_or(Cause::Nothing, |_| Cause::Message),
        own: Some(place(handle.endpoint.address())),
        peer: came.map(|(from, _)| place(from)),
        bytes: came.map_or(0, |(_, bytes)| bytes as u64),
    }
}

/// A wait for room at a receiver, which is known if there is only one target.
fn had_no_room(handle: &Handle, to: Option<dipole_node::Address>, bytes: usize) -> Over {
    Over {
        cause: Cause::Room,
        own: Some(place(handle.endpoint.address())),
        peer: to.map(place),
        bytes: bytes as u64,
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
    patience: Patience,
) -> Result<(), Failure> {
    let endpoint = &handle.endpoint;
    if flags & DP_UNRELIABLE != 0 {
        return Ok(endpoint.send_unreliable(message)?);
    }
    let more = flags & DP_MORE != 0;
    let attempt = |patience| {
        match patience {
            Patience::None => endpoint.try_send(message)?,
            Patience::For(timeout) => endpoint.send_timeout(message, timeout)?,
            Patience::Forever if more => endpoint.send_more(message)?,
            Patience::Forever => endpoint.send(message)?,
        }
        Ok(())
    };
    // With several targets, some may have taken the message when the call gives up on another. And a
    // message that others may share a packet with cannot be withdrawn.
    if (more && patience == Patience::Forever) || handle.targets.are_several() {
        return match patience != Patience::None && handle.look_nonblocking(fd)? {
            true => attempt(Patience::None),
            false => attempt(patience),
        };
    }
    let over = |_: Option<&()>| had_no_room(handle, handle.targets.only(), message.len());
    patiently(handle, fd, patience, gave_up_sending, attempt, over)
}

/// True if the send might succeed with more time.
fn gave_up_sending(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Send(SendError::TimedOut { .. } | SendError::Full { .. })
    )
}

#[inline]
pub(crate) fn receive(handle: &Handle, fd: c_int, patience: Patience) -> Result<Message, Failure> {
    let attempt = |endpoint: &Endpoint, timeout| endpoint.receive_fitting(usize::MAX, timeout);
    receive_by(handle, fd, patience, attempt, |message| {
        Some((message.source(), message.len()))
    })
}

/// Receives with `attempt`, which gets the time to wait; `came` returns source and length.
#[inline]
fn receive_by<R>(
    handle: &Handle,
    fd: c_int,
    patience: Patience,
    attempt: impl Fn(&Endpoint, Duration) -> Result<R, ReceiveError>,
    came: impl Fn(&R) -> Option<(dipole_node::Address, usize)>,
) -> Result<R, Failure> {
    let gave_up = |failure: &Failure| {
        matches!(
            failure,
            Failure::Receive(ReceiveError::TimedOut { .. }) | Failure::NoMessage { .. }
        )
    };
    let attempt = |patience: Patience| match attempt(&handle.endpoint, patience.timeout()) {
        Err(ReceiveError::TimedOut { .. }) if patience == Patience::None => {
            Err(Failure::NoMessage { fd })
        }
        received => Ok(received?),
    };
    let over = |received: Option<&R>| waited(handle, received.and_then(&came));
    patiently(handle, fd, patience, gave_up, attempt, over)
}

pub(crate) fn add_target(fd: c_int, to: dipole_node::Address) -> Result<c_int, Failure> {
    let handle = handle::find(fd)?;
    handle.endpoint.target(to)?;
    handle.targets.add(to);
    Ok(0)
}

fn remove_target(fd: c_int, to: dipole_node::Address) -> Result<c_int, Failure> {
    let handle = handle::find(fd)?;
    if !handle.targets.remove(to) {
        return Err(Failure::Send(SendError::NoTarget {
            from: handle.endpoint.address(),
        }));
    }
    handle.endpoint.untarget(to);
    Ok(0)
}

/// Adds a target, which may have any number.
#[unsafe(no_mangle)]
pub extern "C" fn dp_add_target(fd: c_int, to: Address) -> c_int {
    call("dp_add_target", || add_target(fd, to.checked()?))
}

/// Removes a target.
#[unsafe(no_mangle)]
pub extern "C" fn dp_untarget(fd: c_int, nid: c_int, dpid: c_int) -> c_int {
    call("dp_untarget", || {
        remove_target(fd, Address::from_signed(nid, dpid)?)
    })
}

/// Removes a target, which may have any number.
#[unsafe(no_mangle)]
pub extern "C" fn dp_remove_target(fd: c_int, to: Address) -> c_int {
    call("dp_remove_target", || remove_target(fd, to.checked()?))
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
        // SAFETY: by contract.
        let message = unsafe { ffi::message(msg, len) }?;
        let patience = Patience::new(flags, timeout_ns);
        handle::with(fd, |handle| send(handle, fd, message, flags, patience))?;
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
        // SAFETY: by contract.
        let message = unsafe { ffi::message(msg, len) }?;
        let to = to.checked()?;
        let patience = Patience::new(flags, timeout_ns);
        handle::with(fd, |handle| {
            let endpoint = &handle.endpoint;
            let attempt = |patience| {
                match patience {
                    Patience::None => endpoint.try_send_to(to, message)?,
                    Patience::For(timeout) => endpoint.send_to_timeout(to, message, timeout)?,
                    Patience::Forever => endpoint.send_to(to, message)?,
                }
                Ok(())
            };
            let over = |_: Option<&()>| had_no_room(handle, Some(to), message.len());
            patiently(handle, fd, patience, gave_up_sending, attempt, over)
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
        // SAFETY: by contract.
        let answer = unsafe { ffi::message(msg, len) }?;
        handle::with(fd, |handle| {
            let read = lock(&handle.unreleased);
            let is_it = |held: &&Message| held.as_ptr().cast() == message;
            let answered = read.iter().rev().find(is_it).ok_or(Failure::NotHeld)?;
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
        // SAFETY: by contract, both.
        let (address, source) =
            unsafe { (Out::new("address", address)?, Out::maybe("source", source)?) };
        let patience = Patience::new(flags, timeout_ns);
        handle::with(fd, |handle| {
            let message = receive(handle, fd, patience)?;
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
    /// Where it lies.
    pub address: *const c_void,
    /// Its length.
    pub length: usize,
    /// The sender.
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
        // SAFETY: by contract.
        let places = unsafe { Out::new("messages", messages) }?;
        let limit = ffi::count(count)?;
        let patience = Patience::new(flags, timeout_ns);
        handle::with(fd, |handle| {
            let attempt = |endpoint: &Endpoint, timeout| {
                let mut received = Vec::new();
                endpoint.receive_many_timeout(&mut received, limit, timeout)?;
                Ok(received)
            };
            let received = receive_by(handle, fd, patience, attempt, |messages| {
                let first = messages.first()?;
                Some((first.source(), messages.iter().map(|one| one.len()).sum()))
            })?;
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
        // SAFETY: by contract, both.
        let (buffer, source) = unsafe { (Buffer::new(buf, len)?, Out::maybe("source", source)?) };
        let patience = Patience::new(flags, timeout_ns);
        handle::with(fd, |handle| {
            let attempt = |endpoint: &Endpoint, timeout| {
                if buffer.length > SHORT_BYTES {
                    return buffer
                        .with_region(|memory| endpoint.receive_to_region(memory, timeout));
                }
                let message = endpoint.receive_fitting(buffer.length, timeout)?;
                buffer.fill(&message);
                Ok((message.len(), message.source()))
            };
            let came = |&(length, from): &(usize, dipole_node::Address)| Some((from, length));
            let (length, from) = receive_by(handle, fd, patience, attempt, came)?;
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
        handle::with(fd, |handle| Ok(handle.endpoint.drain(timeout)?))?;
        Ok(0)
    })
}

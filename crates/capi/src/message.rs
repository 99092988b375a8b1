//! Sending and receiving with sizes, sources, flags and times.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use dipole_node::{Endpoint, Message, ReceiveError, SendError, Timeout};
use dipole_trace::waits::{Cause, WaitEnd};

use crate::dp;
use crate::failure::Failure;
use crate::guard::{self, Buffer, Out, call};
use crate::handle::{self, Handle};
use crate::options::Address;
use crate::process::{lock, place};

/// Buffers up to this length are copied to; longer ones are offered for what arrives.
const SHORT_BYTES: usize = 4 << 10;

/// Do not wait: fail with `EAGAIN` instead.
pub const DP_DONTWAIT: c_int = 1;
/// More messages follow: this one may wait for them and share their packet.
pub const DP_MORE: c_int = 2;
/// Without repeats: the message arrives at most once, maybe never.
pub const DP_UNRELIABLE: c_int = 4;

/// How long a call waits before it asks whether its descriptor is set not to wait.
/// Asking is a system call, which may cost more than a message; so only calls that wait
/// for long do, and one on a descriptor that has just been set so is late by this.
pub(crate) const PROBE: Duration = Duration::from_micros(20);

/// How long a call with these flags may wait.
#[inline]
pub(crate) fn timeout(flags: c_int, timeout_ns: i64) -> Timeout {
    match flags & DP_DONTWAIT {
        0 => Timeout::from_nanos(timeout_ns),
        _ => Timeout::Zero,
    }
}

/// Runs `attempt` with the patience that a call has on a descriptor; `gave_up` tells
/// the failures that mean it was not enough, which must have changed nothing; `over` says what
/// was waited for.
#[inline]
fn patiently<A>(
    handle: &Handle,
    fd: c_int,
    patience: Timeout,
    gave_up: impl Fn(&Failure) -> bool,
    attempt: impl Fn(Timeout) -> Result<A, Failure>,
    over: impl Fn(Option<&A>) -> WaitEnd,
) -> Result<A, Failure> {
    if patience == Timeout::Zero {
        return attempt(patience);
    }
    // What was seen the last time is mostly still so.
    let first = match (handle.is_nonblocking(), patience) {
        (true, _) => Timeout::Zero,
        (false, Timeout::After(timeout)) if timeout <= handle.probe => return attempt(patience),
        (false, _) => Timeout::After(handle.probe),
    };
    match attempt(first) {
        Err(failure) if gave_up(&failure) => match handle.look_nonblocking(fd)? {
            true if first == Timeout::Zero => Err(failure),
            true => attempt(Timeout::Zero),
            false => kept(handle, || attempt(patience.after(handle.probe)), over),
        },
        answer => answer,
    }
}

/// Waits by `attempt`, the first of which has failed, and has it kept, if that is asked for.
fn kept<A>(
    handle: &Handle,
    attempt: impl Fn() -> Result<A, Failure>,
    over: impl Fn(Option<&A>) -> WaitEnd,
) -> Result<A, Failure> {
    let Some(recorder) = &handle.recorder else {
        return attempt();
    };
    let probe_ns = u64::try_from(handle.probe.as_nanos()).unwrap_or(0);
    let began_ns = recorder.now_ns().saturating_sub(probe_ns);
    let answer = attempt();
    recorder.record(began_ns, over(answer.as_ref().ok()));
    answer
}

/// A message was waited for, which came from there with so many bytes, if one came.
fn waited(handle: &Handle, came: Option<(dipole_node::Address, usize)>) -> WaitEnd {
    WaitEnd {
        cause: came.map_or(Cause::Nothing, |_| Cause::Message),
        own: Some(place(handle.endpoint.address())),
        peer: came.map(|(from, _)| place(from)),
        bytes: came.map_or(0, |(_, bytes)| bytes as u64),
    }
}

/// Room for so many bytes was waited for, at an only receiver if that is known.
fn had_no_room(handle: &Handle, to: Option<dipole_node::Address>, bytes: usize) -> WaitEnd {
    WaitEnd {
        cause: Cause::Room,
        own: Some(place(handle.endpoint.address())),
        peer: to.map(place),
        bytes: bytes as u64,
    }
}

/// A time in ns; a negative one is as good as endless.
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
    patience: Timeout,
) -> Result<(), Failure> {
    let endpoint = &handle.endpoint;
    if flags & DP_UNRELIABLE != 0 {
        return Ok(endpoint.send_unreliable(message)?);
    }
    let more = flags & DP_MORE != 0;
    let attempt = |patience| {
        match patience {
            Timeout::Zero => endpoint.try_send(message)?,
            Timeout::After(timeout) => endpoint.send_timeout(message, timeout)?,
            Timeout::Infinite if more => endpoint.send_more(message)?,
            Timeout::Infinite => endpoint.send(message)?,
        }
        Ok(())
    };
    // With several targets some have taken the message when the call gives up on
    // another, and what more follows may wait with cannot be given up.
    if (more && patience == Timeout::Infinite) || handle.targets.are_several() {
        return match patience != Timeout::Zero && handle.look_nonblocking(fd)? {
            true => attempt(Timeout::Zero),
            false => attempt(patience),
        };
    }
    let over = |_: Option<&()>| had_no_room(handle, handle.targets.only(), message.len());
    patiently(handle, fd, patience, gave_up_sending, attempt, over)
}

/// True if more patience might have helped.
fn gave_up_sending(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Send(SendError::TimedOut { .. } | SendError::Full { .. })
    )
}

#[inline]
pub(crate) fn receive(handle: &Handle, fd: c_int, patience: Timeout) -> Result<Message, Failure> {
    let attempt = |endpoint: &Endpoint, timeout| endpoint.receive_fitting(usize::MAX, timeout);
    receive_by(handle, fd, patience, attempt, |message| {
        Some((message.source(), message.len()))
    })
}

/// Receives by `attempt`, which waits as long as it is told; `came` says from where and how much.
#[inline]
fn receive_by<R>(
    handle: &Handle,
    fd: c_int,
    patience: Timeout,
    attempt: impl Fn(&Endpoint, Duration) -> Result<R, ReceiveError>,
    came: impl Fn(&R) -> Option<(dipole_node::Address, usize)>,
) -> Result<R, Failure> {
    let gave_up = |failure: &Failure| {
        matches!(
            failure,
            Failure::Receive(ReceiveError::TimedOut { .. }) | Failure::NoMessage { .. }
        )
    };
    let attempt = |patience: Timeout| match attempt(&handle.endpoint, patience.duration()) {
        Err(ReceiveError::TimedOut { .. }) if patience == Timeout::Zero => {
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

/// Points an endpoint at another, any numbers.
#[unsafe(no_mangle)]
pub extern "C" fn dp_add_target(fd: c_int, to: Address) -> c_int {
    call("dp_add_target", || add_target(fd, to.checked()?))
}

/// Takes a target back.
#[unsafe(no_mangle)]
pub extern "C" fn dp_untarget(fd: c_int, nid: c_int, dpid: c_int) -> c_int {
    call("dp_untarget", || remove_target(fd, dp::address(nid, dpid)?))
}

/// Takes a target back, any numbers.
#[unsafe(no_mangle)]
pub extern "C" fn dp_remove_target(fd: c_int, to: Address) -> c_int {
    call("dp_remove_target", || remove_target(fd, to.checked()?))
}

/// Sends a message; its length.
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
        let message = unsafe { guard::message(msg, len) }?;
        let patience = timeout(flags, timeout_ns);
        handle::with(fd, |handle| send(handle, fd, message, flags, patience))?;
        Ok(len.cast_signed())
    })
}

/// Sends a message to one endpoint; its length.
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
        let message = unsafe { guard::message(msg, len) }?;
        let to = to.checked()?;
        let patience = timeout(flags, timeout_ns);
        handle::with(fd, |handle| {
            let endpoint = &handle.endpoint;
            let attempt = |patience| {
                match patience {
                    Timeout::Zero => endpoint.try_send_to(to, message)?,
                    Timeout::After(timeout) => endpoint.send_to_timeout(to, message, timeout)?,
                    Timeout::Infinite => endpoint.send_to(to, message)?,
                }
                Ok(())
            };
            let over = |_: Option<&()>| had_no_room(handle, Some(to), message.len());
            patiently(handle, fd, patience, gave_up_sending, attempt, over)
        })?;
        Ok(len.cast_signed())
    })
}

/// Answers a message that was read and is not given back; the answer's length.
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
        let answer = unsafe { guard::message(msg, len) }?;
        handle::with(fd, |handle| {
            let read = lock(&handle.read);
            let is_it = |held: &&Message| held.as_ptr().cast() == message;
            let answered = read.iter().rev().find(is_it).ok_or(Failure::NotHeld)?;
            Ok(handle.endpoint.reply(answered, answer)?)
        })?;
        Ok(len.cast_signed())
    })
}

/// The next message where it lies; its length.
///
/// # Safety
/// `address` points to a place for a pointer, `source` too or is null.
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
        let patience = timeout(flags, timeout_ns);
        handle::with(fd, |handle| {
            let message = receive(handle, fd, patience)?;
            let length = message.len().cast_signed();
            address.write(message.as_ptr().cast());
            source.write(message.source().into());
            lock(&handle.read).push_back(message);
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
    /// Who sent it.
    pub source: Address,
}

/// Takes all messages that wait where they lie, at most `count`; how many.
///
/// # Safety
/// `messages` points to `count` places.
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
        let limit = guard::count(count)?;
        let patience = timeout(flags, timeout_ns);
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
                // SAFETY: no more than `limit` were taken, and as many places there are by
                // contract.
                unsafe { places.element(index) }.write(ReceivedMessage {
                    address: message.as_ptr().cast(),
                    length: message.len(),
                    source: message.source().into(),
                });
            }
            let taken = received.len();
            lock(&handle.read).extend(received);
            // It is at most `count`.
            Ok(c_int::try_from(taken).unwrap_or(count))
        })
    })
}

/// Has the next message in a buffer; its length.
///
/// # Safety
/// `buf` points to `len` bytes, `source` to a place for an address or is null.
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
        let patience = timeout(flags, timeout_ns);
        handle::with(fd, |handle| {
            let attempt = |endpoint: &Endpoint, timeout| {
                if buffer.length > SHORT_BYTES {
                    return buffer.lend(|memory| endpoint.receive_to_region(memory, timeout));
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

/// Sends what waits because of `DP_MORE`.
#[unsafe(no_mangle)]
pub extern "C" fn dp_flush(fd: c_int) -> c_int {
    call("dp_flush", || {
        handle::with(fd, |handle| Ok(handle.endpoint.flush()?))?;
        Ok(0)
    })
}

/// Waits until all that was sent is acknowledged.
#[unsafe(no_mangle)]
pub extern "C" fn dp_drain(fd: c_int, timeout_ns: i64) -> c_int {
    call("dp_drain", || {
        let timeout = duration(timeout_ns);
        handle::with(fd, |handle| Ok(handle.endpoint.drain(timeout)?))?;
        Ok(0)
    })
}

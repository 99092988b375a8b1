//! Sending and receiving with sizes, sources, flags and times.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use dipole_node::{Message, ReceiveError, SendError};

use crate::failure::Failure;
use crate::guard::{self, Buffer, Out, call};
use crate::handle::{self, Handle};
use crate::options::Address;
use crate::papers;
use crate::process::lock;

/// Do not wait: fail with `EAGAIN` instead.
pub const DP_DONTWAIT: c_int = 1;
/// More messages follow: this one may wait for them and share their packet.
pub const DP_MORE: c_int = 2;
/// Without repeats: the message arrives at most once, maybe never.
pub const DP_UNRELIABLE: c_int = 4;

/// Messages up to this length are tried without asking whether the call may wait: that
/// costs a system call, and they mostly go at once.
const SHORT_BYTES: usize = 1400;

/// How long a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    None,
    For(Duration),
    Forever,
}

impl Patience {
    fn new(flags: c_int, timeout_ns: i64) -> Patience {
        match timeout_ns {
            _ if flags & DP_DONTWAIT != 0 => Patience::None,
            0 => Patience::None,
            1.. => Patience::For(duration(timeout_ns)),
            _ => Patience::Forever,
        }
    }

    /// The same on a descriptor that may be set not to wait.
    fn on(self, fd: c_int) -> Result<Patience, Failure> {
        match self {
            Patience::None => Ok(self),
            _ if handle::is_nonblocking(fd)? => Ok(Patience::None),
            _ => Ok(self),
        }
    }
}

/// A time in ns; a negative one is as good as endless.
pub(crate) fn duration(timeout_ns: i64) -> Duration {
    match u64::try_from(timeout_ns) {
        Ok(timeout_ns) => Duration::from_nanos(timeout_ns),
        Err(_) => Duration::from_nanos(i64::MAX.unsigned_abs()),
    }
}

fn check_flags(flags: c_int, known: c_int) -> Result<(), Failure> {
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
    // Several targets are not tried first: some could have taken the message already
    // when the call comes to wait for another.
    if !more && message.len() <= SHORT_BYTES && !handle.targets.are_several() {
        match endpoint.try_send(message) {
            Err(SendError::Full { .. }) if patience != Patience::None => {}
            sent => return Ok(sent?),
        }
    }
    match patience.on(fd)? {
        Patience::None => endpoint.try_send(message)?,
        Patience::For(timeout) => endpoint.send_timeout(message, timeout)?,
        Patience::Forever if more => endpoint.send_more(message)?,
        Patience::Forever => endpoint.send(message)?,
    }
    Ok(())
}

#[inline]
pub(crate) fn receive(handle: &Handle, fd: c_int, patience: Patience) -> Result<Message, Failure> {
    if let Some(message) = handle.returned.take() {
        return Ok(message);
    }
    let endpoint = &handle.endpoint;
    match patience.on(fd)? {
        Patience::None => endpoint.try_receive()?.ok_or(Failure::NoMessage { fd }),
        Patience::For(timeout) => Ok(endpoint.receive_timeout(timeout)?),
        Patience::Forever => Ok(endpoint.receive()?),
    }
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
    call("dp_untarget", || {
        remove_target(fd, papers::address(nid, dpid)?)
    })
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
        let patience = Patience::new(flags, timeout_ns);
        handle::with(fd, |handle| send(handle, fd, message, flags, patience))?;
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
        let patience = Patience::new(flags, timeout_ns);
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

/// Copies the next message; its length.
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
        let patience = Patience::new(flags, timeout_ns);
        handle::with(fd, |handle| {
            let message = receive(handle, fd, patience)?;
            if message.len() > buffer.length {
                let needed = message.len();
                handle.returned.put(message);
                return Err(Failure::Receive(ReceiveError::TooShort {
                    needed,
                    given: buffer.length,
                }));
            }
            buffer.fill(&message);
            source.write(message.source().into());
            Ok(message.len().cast_signed())
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

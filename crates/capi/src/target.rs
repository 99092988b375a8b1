//! The targets of an endpoint, and what happens while one has no room.

use std::ffi::c_int;

use dipole_node::{OverflowPolicy, SendError, interruptible};

use crate::address::Address;
use crate::failure::Failure;
use crate::ffi::{Out, call};
use crate::handle::{self, Handle};

/// Sending waits while the target has no room.
pub const DP_WAIT: c_int = 0;
/// The target does not get messages that find its queue full.
pub const DP_DROP_NEWEST: c_int = 1;
/// A message that finds the target's queue full replaces the oldest one.
pub const DP_DROP_OLDEST: c_int = 2;
/// Only the latest message waits for the target.
pub const DP_KEEP_LATEST: c_int = 3;

pub(crate) fn add_target(fd: c_int, to: dipole_node::Address) -> Result<c_int, Failure> {
    let handle = handle::find(fd)?;
    interruptible(|| handle.endpoint.target(to))?;
    handle.targets.add(to);
    Ok(0)
}

fn remove_target(fd: c_int, to: dipole_node::Address) -> Result<c_int, Failure> {
    let handle = handle::find(fd)?;
    if !handle.targets.remove(to) {
        return Err(no_target(&handle));
    }
    handle.endpoint.untarget(to);
    Ok(0)
}

/// Adds a target, which may have any number.
#[unsafe(no_mangle)]
pub extern "C" fn dp_add_target(fd: c_int, to: Address) -> c_int {
    call("dp_add_target", || add_target(fd, to.checked()?))
}

/// Removes an endpoint from the targets of a descriptor.
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

fn no_target(handle: &Handle) -> Failure {
    Failure::Send(SendError::NoTarget {
        from: handle.endpoint.address(),
    })
}

/// Sets what happens to messages while a target has no room.
#[unsafe(no_mangle)]
pub extern "C" fn dp_target_policy(
    fd: c_int,
    to: Address,
    policy: c_int,
    messages: c_int,
) -> c_int {
    call("dp_target_policy", || {
        let counted = match (policy, usize::try_from(messages)) {
            (DP_DROP_NEWEST | DP_DROP_OLDEST, Ok(counted @ 1..=1024)) => counted,
            (DP_WAIT | DP_KEEP_LATEST, Ok(0)) => 0,
            (DP_WAIT..=DP_KEEP_LATEST, _) => {
                return Err(Failure::BadNumber {
                    what: "messages",
                    found: messages.into(),
                    expected: "1 to 1024 with DP_DROP_NEWEST or DP_DROP_OLDEST, and 0 otherwise",
                });
            }
            _ => {
                return Err(Failure::BadNumber {
                    what: "policy",
                    found: policy.into(),
                    expected: "DP_WAIT, DP_DROP_NEWEST, DP_DROP_OLDEST or DP_KEEP_LATEST",
                });
            }
        };
        let policy = match policy {
            DP_DROP_NEWEST => OverflowPolicy::DropNewest { messages: counted },
            DP_DROP_OLDEST => OverflowPolicy::DropOldest { messages: counted },
            DP_KEEP_LATEST => OverflowPolicy::KeepLatest,
            _ => OverflowPolicy::Wait,
        };
        let handle = handle::find(fd)?;
        handle.endpoint.set_overflow_policy(to.checked()?, policy)?;
        Ok(0)
    })
}

/// Counts the messages that a target did not get because of its policy.
///
/// # Safety
/// `messages` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_target_dropped(fd: c_int, to: Address, messages: *mut u64) -> c_int {
    call("dp_target_dropped", || {
        // SAFETY: the caller guarantees this by contract.
        let messages = unsafe { Out::new("messages", messages) }?;
        let handle = handle::find(fd)?;
        let dropped = handle.endpoint.dropped_messages(to.checked()?);
        messages.write(dropped.ok_or_else(|| no_target(&handle))?);
        Ok(0)
    })
}

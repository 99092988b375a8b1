//! Calls for groups: barriers, broadcasts and reductions.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use dipole_group::{Combine, Group, Members, Number, Order};
use dipole_node::Timeout;

use crate::address::Address;
use crate::failure::Failure;
use crate::ffi::{self, Out, call};
use crate::numbers::Numbered;
use crate::per_process::lock;
use crate::process::{self, CloseOrder};

/// The sum of `uint64_t`, wrapping around.
pub const DP_SUM_U64: c_int = 1;
/// The smallest `uint64_t`.
pub const DP_MIN_U64: c_int = 2;
/// The largest `uint64_t`.
pub const DP_MAX_U64: c_int = 3;
/// The sum of `int64_t`, wrapping around.
pub const DP_SUM_I64: c_int = 4;
/// The smallest `int64_t`.
pub const DP_MIN_I64: c_int = 5;
/// The largest `int64_t`.
pub const DP_MAX_I64: c_int = 6;
/// The sum of `double`.
pub const DP_SUM_F64: c_int = 7;
/// The smallest `double`.
pub const DP_MIN_F64: c_int = 8;
/// The largest `double`.
pub const DP_MAX_F64: c_int = 9;

/// `dp_combine`.
pub type CombineFunction = Option<
    unsafe extern "C" fn(left: *mut c_void, right: *const c_void, len: usize, context: *mut c_void),
>;

/// The groups that C programs hold.
pub(crate) static GROUPS: Numbered<Mutex<Group>> =
    Numbered::new(CloseOrder::Groups, |number| Failure::NotAGroup { number });

fn with<A>(
    group: c_int,
    body: impl FnOnce(&mut Group) -> Result<A, Failure>,
) -> Result<A, Failure> {
    GROUPS.with(group, |group| body(&mut lock(group)))
}

/// A rank that the program passed.
fn rank(what: &'static str, rank: c_int) -> Result<usize, Failure> {
    usize::try_from(rank).map_err(|_| Failure::BadNumber {
        what,
        found: rank.into(),
        expected: "a rank, from 0 on",
    })
}

/// A rank or a size, which fits because a group has fewer members than there are endpoints.
fn number(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// Combines two partial results and stores the result in the first.
type Combining = Box<dyn FnMut(&mut [u8], &[u8])>;

/// The order and function of a predefined operation on `len` bytes.
fn ready(operation: c_int, len: usize) -> Result<(Order, Combining), Failure> {
    fn of<T: Number + 'static>(how: Combine) -> (Order, Combining) {
        (how.order::<T>(), Box::new(how.bytes::<T>()))
    }
    if !len.is_multiple_of(8) {
        return Err(Failure::BadNumber {
            what: "len",
            found: i64::try_from(len).unwrap_or(i64::MAX),
            expected: "a multiple of 8",
        });
    }
    Ok(match operation {
        DP_SUM_U64 => of::<u64>(Combine::Sum),
        DP_MIN_U64 => of::<u64>(Combine::Min),
        DP_MAX_U64 => of::<u64>(Combine::Max),
        DP_SUM_I64 => of::<i64>(Combine::Sum),
        DP_MIN_I64 => of::<i64>(Combine::Min),
        DP_MAX_I64 => of::<i64>(Combine::Max),
        DP_SUM_F64 => of::<f64>(Combine::Sum),
        DP_MIN_F64 => of::<f64>(Combine::Min),
        DP_MAX_F64 => of::<f64>(Combine::Max),
        _ => {
            return Err(Failure::BadNumber {
                what: "operation",
                found: operation.into(),
                expected: "one of DP_SUM_U64 to DP_MAX_F64",
            });
        }
    })
}

/// The function that the program passed.
///
/// # Safety
/// `combine` may be called with this context, on this thread, as long as the result is used.
unsafe fn own(combine: CombineFunction, context: *mut c_void) -> Result<Combining, Failure> {
    let combine = combine.ok_or(Failure::Null { what: "combine" })?;
    Ok(Box::new(move |left, right| {
        let (place, length) = (left.as_mut_ptr().cast(), left.len());
        // SAFETY: both have `length` bytes and do not overlap; the function is called as declared.
        unsafe { combine(place, right.as_ptr().cast(), length, context) };
    }))
}

/// Joins a group as one of its members; returns the group's number.
///
/// # Safety
/// `members` points to `count` addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_group_open(
    members: *const Address,
    count: c_int,
    own: c_int,
    generation: u64,
    timeout_ns: i64,
) -> c_int {
    call("dp_group_open", || {
        let count = ffi::count(count)?;
        // SAFETY: the caller guarantees this by contract.
        let members = unsafe { ffi::array("members", members, count) }?;
        let addresses: Result<Vec<_>, _> = members.iter().map(|it| it.checked()).collect();
        let addresses = addresses?;
        let members = Members {
            generation,
            addresses,
        };
        let node = process::current().node()?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        GROUPS.insert(Mutex::new(Group::join(
            &node,
            members,
            rank("own", own)?,
            timeout,
        )?))
    })
}

/// This process's rank in a group.
#[unsafe(no_mangle)]
pub extern "C" fn dp_group_rank(group: c_int) -> c_int {
    call("dp_group_rank", || {
        with(group, |group| Ok(number(group.rank())))
    })
}

/// The number of members of a group.
#[unsafe(no_mangle)]
pub extern "C" fn dp_group_size(group: c_int) -> c_int {
    call("dp_group_size", || {
        with(group, |group| Ok(number(group.size())))
    })
}

/// Returns when all members have called it.
#[unsafe(no_mangle)]
pub extern "C" fn dp_barrier(group: c_int, timeout_ns: i64) -> c_int {
    call("dp_barrier", || {
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        with(group, |group| Ok(group.barrier(timeout)?))?;
        Ok(0)
    })
}

/// Copies the root's bytes to all members.
///
/// # Safety
/// `data` points to `len` bytes that no other thread accesses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_broadcast(
    group: c_int,
    root: c_int,
    data: *mut c_void,
    len: usize,
    timeout_ns: i64,
) -> c_int {
    call("dp_broadcast", || {
        // SAFETY: the caller guarantees this by contract.
        let data = unsafe { ffi::bytes_mut("data", data, len) }?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        let root = rank("root", root)?;
        with(group, |group| {
            Ok(group.broadcast_slice(root, data, timeout)?)
        })?;
        Ok(0)
    })
}

/// Combines the numbers of all members at the root.
///
/// # Safety
/// `data` points to `len` bytes that no other thread accesses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_reduce(
    group: c_int,
    root: c_int,
    data: *mut c_void,
    len: usize,
    operation: c_int,
    timeout_ns: i64,
) -> c_int {
    call("dp_reduce", || {
        // SAFETY: the caller guarantees this by contract.
        let data = unsafe { ffi::bytes_mut("data", data, len) }?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        let (root, (order, combine)) = (rank("root", root)?, ready(operation, len)?);
        with(group, |group| {
            Ok(group.reduce_in(order, root, data, combine, timeout)?)
        })?;
        Ok(0)
    })
}

/// Combines the numbers of all members at every member.
///
/// # Safety
/// The requirements of `dp_reduce`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_allreduce(
    group: c_int,
    data: *mut c_void,
    len: usize,
    operation: c_int,
    timeout_ns: i64,
) -> c_int {
    call("dp_allreduce", || {
        // SAFETY: the caller guarantees this by contract.
        let data = unsafe { ffi::bytes_mut("data", data, len) }?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        let (_, combine) = ready(operation, len)?;
        with(group, |group| Ok(group.allreduce(data, combine, timeout)?))?;
        Ok(0)
    })
}

/// Reduces with a function of the program.
///
/// # Safety
/// The requirements of `dp_reduce`; `combine` may be called with `context` until this returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_reduce_with(
    group: c_int,
    root: c_int,
    data: *mut c_void,
    len: usize,
    combine: CombineFunction,
    context: *mut c_void,
    timeout_ns: i64,
) -> c_int {
    call("dp_reduce_with", || {
        // SAFETY: the caller guarantees this by contract.
        let data = unsafe { ffi::bytes_mut("data", data, len) }?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        // SAFETY: the caller guarantees this by contract.
        let (root, combine) = (rank("root", root)?, unsafe { self::own(combine, context) }?);
        with(group, |group| {
            Ok(group.reduce(root, data, combine, timeout)?)
        })?;
        Ok(0)
    })
}

/// Reduces to all members with a function of the program.
///
/// # Safety
/// The requirements of `dp_reduce_with`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_allreduce_with(
    group: c_int,
    data: *mut c_void,
    len: usize,
    combine: CombineFunction,
    context: *mut c_void,
    timeout_ns: i64,
) -> c_int {
    call("dp_allreduce_with", || {
        // SAFETY: the caller guarantees this by contract.
        let data = unsafe { ffi::bytes_mut("data", data, len) }?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        // SAFETY: the caller guarantees this by contract.
        let combine = unsafe { self::own(combine, context) }?;
        with(group, |group| Ok(group.allreduce(data, combine, timeout)?))?;
        Ok(0)
    })
}

/// Stores the ranks of members that are known to be gone; returns their number.
///
/// # Safety
/// `ranks` is null or points to an array of `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_group_failed(group: c_int, ranks: *mut c_int, count: c_int) -> c_int {
    call("dp_group_failed", || {
        let count = ffi::count(count)?;
        // SAFETY: the caller guarantees this by contract.
        let places = unsafe { Out::new("ranks", ranks) }?;
        let gone = with(group, |group| Ok(group.gone()))?;
        for (at, member) in gone.iter().take(count).enumerate() {
            // SAFETY: the array has `count` elements by contract.
            unsafe { places.element(at) }.write(number(member.rank));
        }
        Ok(number(gone.len()))
    })
}

/// Continues as the next generation, without the members that are gone.
///
/// # Safety
/// `ranks` points to `count` ranks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_group_shrink(
    group: c_int,
    ranks: *const c_int,
    count: c_int,
    timeout_ns: i64,
) -> c_int {
    call("dp_group_shrink", || {
        let count = rank("count", count)?;
        // SAFETY: the caller guarantees this by contract.
        let ranks = unsafe { ffi::array("ranks", ranks, count) }?;
        let ranks: Result<Vec<_>, _> = ranks.iter().map(|it| rank("ranks", *it)).collect();
        let (ranks, timeout) = (ranks?, Timeout::from_nanos(timeout_ns).duration());
        with(group, |group| Ok(group.reform_without(&ranks, timeout)?))?;
        Ok(0)
    })
}

/// Leaves a group and closes its descriptor.
#[unsafe(no_mangle)]
pub extern "C" fn dp_group_close(group: c_int) -> c_int {
    call("dp_group_close", || {
        GROUPS.close(group)?;
        Ok(0)
    })
}

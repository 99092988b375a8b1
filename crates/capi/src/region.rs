//! Calls for memory regions, and for operations on regions of peers.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use dipole_node::{
    Bytes, Edge, Message, Operation, Region, RegionKey, RegionMemory, Rights, SendError, Timeout,
};

use crate::edge::{EDGES, check_attached};
use crate::failure::Failure;
use crate::ffi::{self, Out, call};
use crate::message;
use crate::numbers::Numbered;
use crate::per_process::lock;
use crate::process::CloseOrder;
use crate::{DP_DONTWAIT, handle};

/// Writes bytes into a region.
pub const DP_PUT: c_int = 1;
/// Reads bytes from a region.
pub const DP_GET: c_int = 2;
/// Adds to a word.
pub const DP_FETCH_ADD: c_int = 3;
/// Replaces a word that has an expected value.
pub const DP_COMPARE_SWAP: c_int = 4;
/// Flag of a put: notify the owner.
pub const DP_NOTIFY: c_int = 1;
/// Peers may write into the region.
pub const DP_ALLOW_PUT: c_int = 1;
/// Peers may read from the region.
pub const DP_ALLOW_GET: c_int = 2;
/// Peers may add to words of the region, and replace them.
pub const DP_ALLOW_ATOMIC: c_int = 4;

/// The regions that C programs hold.
pub(crate) static REGIONS: Numbered<OpenRegion> =
    Numbered::new(CloseOrder::Regions, |number| Failure::NotARegion { number });

/// A region over memory of a C program.
#[derive(Debug)]
pub(crate) struct OpenRegion {
    region: Option<Region>,
    memory: RegionMemory,
}

impl Drop for OpenRegion {
    fn drop(&mut self) {
        // First close the region, so that its key is invalid; then revoke the memory.
        self.region = None;
        self.memory.revoke();
    }
}

/// `struct dp_notification`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notification {
    /// Key of the region.
    pub key: u64,
    /// Address of the data.
    pub offset: u64,
    /// The length of the data.
    pub length: u64,
    /// The value that the initiator passed.
    pub value: u64,
}

/// Opens memory to peers that have the key and an edge to the endpoint; returns the region's number.
///
/// # Safety
/// `memory` points to `length` bytes that stay valid until `dp_region_close` has returned, and that
/// this process does not access while an operation may; `key` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_region_open(
    fd: c_int,
    memory: *mut c_void,
    length: usize,
    rights: c_int,
    key: *mut u64,
) -> c_int {
    call("dp_region_open", || {
        let all = DP_ALLOW_PUT | DP_ALLOW_GET | DP_ALLOW_ATOMIC;
        message::check_flags(rights, all)?;
        // SAFETY: the caller guarantees this by contract.
        let place = unsafe { Out::new("key", key) }?;
        let start = NonNull::new(memory.cast::<u8>()).ok_or(Failure::Null { what: "memory" })?;
        let rights = Rights {
            put: rights & DP_ALLOW_PUT != 0,
            get: rights & DP_ALLOW_GET != 0,
            update: rights & DP_ALLOW_ATOMIC != 0,
        };
        // SAFETY: by contract; `OpenRegion` revokes the memory.
        let memory = unsafe { RegionMemory::from_raw(start, length) };
        let region = handle::with(fd, |handle| {
            Ok(handle.endpoint.open_region(memory.clone(), rights)?)
        })?;
        place.write(region.key().0);
        REGIONS.insert(OpenRegion {
            region: Some(region),
            memory,
        })
    })
}

/// Closes a region. Its memory is not accessed after this returns.
#[unsafe(no_mangle)]
pub extern "C" fn dp_region_close(region: c_int) -> c_int {
    call("dp_region_close", || {
        REGIONS.close(region)?;
        Ok(0)
    })
}

/// Returns 1 and the notification of a put if the message is one.
///
/// # Safety
/// `notification` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_is_notification(
    fd: c_int,
    message: *const c_void,
    notification: *mut Notification,
) -> c_int {
    call("dp_is_notification", || {
        // SAFETY: the caller guarantees this by contract.
        let place = unsafe { Out::new("notification", notification) }?;
        handle::with(fd, |handle| {
            let read = lock(&handle.unreleased);
            let matches = |read: &&Message| read.as_ptr().cast() == message;
            let mut candidates = read.iter().rev().filter(matches).peekable();
            candidates.peek().ok_or(Failure::NotHeld)?;
            let Some(found) = candidates.find_map(Message::notice) else {
                return Ok(0);
            };
            place.write(Notification {
                key: found.key.0,
                offset: found.offset,
                length: found.length,
                value: found.value,
            });
            Ok(1)
        })
    })
}

/// Data for a region of a peer.
struct Put<'a> {
    key: RegionKey,
    offset: u64,
    data: &'a [u8],
    /// The value of the notification, if the owner gets one.
    value: Option<u64>,
}

impl Put<'_> {
    fn send(&self, edge: &Edge, timeout: Timeout) -> Result<(), SendError> {
        let (key, offset, data) = (self.key, self.offset, self.data);
        match (timeout, self.value) {
            (Timeout::Zero, value) => edge.try_put(key, offset, data, value),
            (Timeout::After(timeout), value) => edge.put_timeout(key, offset, data, value, timeout),
            (Timeout::Infinite, None) => edge.put(key, offset, data),
            (Timeout::Infinite, Some(value)) => edge.put_notify(key, offset, data, value),
        }
    }
}

/// Puts bytes into a region of an edge's target.
///
/// # Safety
/// `data` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_put(
    edge: c_int,
    key: u64,
    offset: u64,
    data: *const c_void,
    len: usize,
    flags: c_int,
    timeout_ns: i64,
) -> c_int {
    call("dp_put", || {
        message::check_flags(flags, DP_DONTWAIT)?;
        // SAFETY: the caller guarantees this by contract.
        let data = unsafe { ffi::message(data, len) }?;
        let timeout = message::timeout(flags, timeout_ns);
        let put = Put {
            key: RegionKey(key),
            offset,
            data,
            value: None,
        };
        EDGES.with(edge, |edge| Ok(put.send(edge, timeout)?))?;
        Ok(0)
    })
}

/// Puts bytes like [`dp_put`] and notifies the owner when all of them are there.
///
/// # Safety
/// `data` points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_put_notify(
    edge: c_int,
    key: u64,
    offset: u64,
    data: *const c_void,
    len: usize,
    value: u64,
    flags: c_int,
    timeout_ns: i64,
) -> c_int {
    call("dp_put_notify", || {
        message::check_flags(flags, DP_DONTWAIT)?;
        // SAFETY: the caller guarantees this by contract.
        let data = unsafe { ffi::message(data, len) }?;
        let timeout = message::timeout(flags, timeout_ns);
        let put = Put {
            key: RegionKey(key),
            offset,
            data,
            value: Some(value),
        };
        EDGES.with(edge, |edge| Ok(put.send(edge, timeout)?))?;
        Ok(0)
    })
}

/// `struct dp_operation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PostedOperation {
    /// [`DP_PUT`], [`DP_GET`], [`DP_FETCH_ADD`] or [`DP_COMPARE_SWAP`].
    pub kind: c_int,
    /// [`DP_NOTIFY`] for a put with notice, otherwise 0.
    pub flags: c_int,
    /// Key of the region.
    pub key: u64,
    /// The offset in the region.
    pub offset: u64,
    /// The source of a put, or the destination of a get.
    pub memory: *mut c_void,
    /// The length of `memory`.
    pub length: usize,
    /// The value of the notification, the summand, or the new value of the word.
    pub value: u64,
    /// The value that the word must have.
    pub expected: u64,
}

/// Posts an operation on a region of an edge's target.
///
/// # Safety
/// `operation` is null or points to an operation, whose memory stays valid for its length until the
/// completion. Until then the program does not change the source of a put, and does not access the
/// destination of a get.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_post_operation(
    edge: c_int,
    operation: *const PostedOperation,
    context: u64,
) -> c_int {
    call("dp_post_operation", || {
        // SAFETY: the caller guarantees this by contract.
        let [posted] = unsafe { ffi::array("operation", operation, 1) }? else {
            return Err(Failure::Null { what: "operation" });
        };
        let (memory, length) = (posted.memory, posted.length);
        let (key, offset, value) = (RegionKey(posted.key), posted.offset, posted.value);
        let allowed = if posted.kind == DP_PUT { DP_NOTIFY } else { 0 };
        message::check_flags(posted.flags, allowed)?;
        if memory.is_null() && length > 0 {
            return Err(Failure::Null { what: "memory" });
        }
        let operation = match posted.kind {
            DP_GET => {
                let start = NonNull::new(memory.cast()).unwrap_or(NonNull::dangling());
                // SAFETY: by contract; the memory is not accessed after the completion.
                let into = unsafe { RegionMemory::from_raw(start, length) };
                EDGES.with(edge, |open| {
                    check_attached(edge, open)?;
                    Ok(open.post_get(key, offset, into, context)?)
                })?;
                return Ok(0);
            }
            DP_PUT => Operation::Put {
                key,
                offset,
                notice: (posted.flags == DP_NOTIFY).then_some(value),
            },
            DP_FETCH_ADD => Operation::FetchAdd { key, offset, value },
            DP_COMPARE_SWAP => Operation::CompareSwap {
                key,
                offset,
                expected: posted.expected,
                new: value,
            },
            kind => {
                return Err(Failure::BadNumber {
                    what: "kind",
                    found: kind.into(),
                    expected: "DP_PUT, DP_GET, DP_FETCH_ADD or DP_COMPARE_SWAP",
                });
            }
        };
        let bytes = match posted.kind {
            // SAFETY: the caller guarantees this by contract.
            DP_PUT => unsafe { ffi::shared(memory, length) },
            _ => Bytes::new(),
        };
        EDGES.with(edge, |open| {
            if posted.kind == DP_PUT {
                check_attached(edge, open)?;
            }
            Ok(open.post_bytes(operation, bytes, context)?)
        })?;
        Ok(0)
    })
}

/// Gets bytes from a region of an edge's target.
///
/// # Safety
/// `into` points to `len` bytes that no other thread accesses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_get(
    edge: c_int,
    key: u64,
    offset: u64,
    into: *mut c_void,
    len: usize,
    timeout_ns: i64,
) -> c_int {
    call("dp_get", || {
        // SAFETY: the caller guarantees this by contract.
        let into = unsafe { ffi::bytes_mut("into", into, len) }?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        EDGES.with(edge, |edge| {
            Ok(edge.get(RegionKey(key), offset, into, timeout)?)
        })?;
        Ok(0)
    })
}

/// Adds to a word in a region of an edge's target.
///
/// # Safety
/// `before` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_fetch_add(
    edge: c_int,
    key: u64,
    offset: u64,
    value: u64,
    before: *mut u64,
    timeout_ns: i64,
) -> c_int {
    call("dp_fetch_add", || {
        // SAFETY: the caller guarantees this by contract.
        let place = unsafe { Out::maybe("before", before) }?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        EDGES.with(edge, |edge| {
            place.write(edge.fetch_add(RegionKey(key), offset, value, timeout)?);
            Ok(0)
        })
    })
}

/// Replaces a word in a region of an edge's target if it has the expected value.
///
/// # Safety
/// `before` is null or valid for writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_compare_swap(
    edge: c_int,
    key: u64,
    offset: u64,
    expected: u64,
    new: u64,
    before: *mut u64,
    timeout_ns: i64,
) -> c_int {
    call("dp_compare_swap", || {
        // SAFETY: the caller guarantees this by contract.
        let place = unsafe { Out::maybe("before", before) }?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        EDGES.with(edge, |edge| {
            let found = edge.compare_swap(RegionKey(key), offset, expected, new, timeout)?;
            place.write(found);
            Ok(0)
        })
    })
}

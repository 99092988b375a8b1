//! Regions of memory, and operations on those of others.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use dipole_node::{
    Bytes, Edge, Message, Operation, Region, RegionKey, RegionMemory, Rights, SendError, Timeout,
};

use crate::edge::{EDGES, check_attached};
use crate::failure::Failure;
use crate::guard::{self, Out, call};
use crate::message;
use crate::numbers::Numbered;
use crate::process::lock;
use crate::{DP_DONTWAIT, handle};

/// An operation: bytes into a region.
pub const DP_PUT: c_int = 1;
/// An operation: bytes out of a region.
pub const DP_GET: c_int = 2;
/// An operation: adds to a word.
pub const DP_FETCH_ADD: c_int = 3;
/// An operation: sets a word that is as expected.
pub const DP_COMPARE_SWAP: c_int = 4;
/// Of a put: the owner is told.
pub const DP_NOTIFY: c_int = 1;
/// Others may write into the region.
pub const DP_ALLOW_PUT: c_int = 1;
/// Others may read from it.
pub const DP_ALLOW_GET: c_int = 2;
/// Others may add to, and swap, its words.
pub const DP_ALLOW_UPDATE: c_int = 4;

/// The regions that C programs hold.
pub(crate) static REGIONS: Numbered<OpenRegion> = Numbered::new(
    |process| &process.regions,
    |number| Failure::NotARegion { number },
);

/// A region over memory of a C program.
#[derive(Debug)]
pub(crate) struct OpenRegion {
    region: Option<Region>,
    memory: RegionMemory,
}

impl Drop for OpenRegion {
    fn drop(&mut self) {
        // First nobody reaches it by its key, then nobody reaches it at all.
        self.region = None;
        self.memory.revoke();
    }
}

/// `struct dp_notice`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notice {
    /// Key of the region.
    pub key: u64,
    /// Where the data lie.
    pub offset: u64,
    /// How many bytes they are.
    pub length: u64,
    /// The initiator's.
    pub value: u64,
}

/// Opens memory to those who have an edge to the endpoint and the key; the region's number.
///
/// # Safety
/// `memory` points to `length` bytes that stay until `dp_region_close` has returned, and that
/// others of this process do not access while an operation may; `key` to a place for the key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_region_open(
    fd: c_int,
    memory: *mut c_void,
    length: usize,
    rights: c_int,
    key: *mut u64,
) -> c_int {
    call("dp_region_open", || {
        let all = DP_ALLOW_PUT | DP_ALLOW_GET | DP_ALLOW_UPDATE;
        message::check_flags(rights, all)?;
        // SAFETY: by contract.
        let place = unsafe { Out::new("key", key) }?;
        let start = NonNull::new(memory.cast::<u8>()).ok_or(Failure::Null { what: "memory" })?;
        let rights = Rights {
            put: rights & DP_ALLOW_PUT != 0,
            get: rights & DP_ALLOW_GET != 0,
            update: rights & DP_ALLOW_UPDATE != 0,
        };
        // SAFETY: by contract; `OpenRegion` revokes it.
        let memory = unsafe { RegionMemory::from_raw(start, length) };
        let region = handle::with(fd, |handle| {
            Ok(handle.endpoint.open_region(memory.clone(), rights)?)
        })?;
        place.write(region.key().0);
        REGIONS.enter(OpenRegion {
            region: Some(region),
            memory,
        })
    })
}

/// Closes a region: nobody accesses its memory any more when this returns.
#[unsafe(no_mangle)]
pub extern "C" fn dp_region_close(region: c_int) -> c_int {
    call("dp_region_close", || {
        REGIONS.close(region)?;
        Ok(0)
    })
}

/// What a put says to the owner of a region, in the place of a message.
///
/// # Safety
/// `notice` points to a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_notice(
    fd: c_int,
    message: *const c_void,
    notice: *mut Notice,
) -> c_int {
    call("dp_notice", || {
        // SAFETY: by contract.
        let place = unsafe { Out::new("notice", notice) }?;
        handle::with(fd, |handle| {
            let read = lock(&handle.read);
            let is_it = |held: &&Message| held.as_ptr().cast() == message;
            let mut held = read.iter().rev().filter(is_it).peekable();
            held.peek().ok_or(Failure::NotHeld)?;
            let Some(found) = held.find_map(Message::notice) else {
                return Ok(0);
            };
            place.write(Notice {
                key: found.key.0,
                offset: found.offset,
                length: found.length,
                value: found.value,
            });
            Ok(1)
        })
    })
}

fn put(
    edge: &Edge,
    (key, offset): (u64, u64),
    (data, notice): (&[u8], Option<u64>),
    patience: Timeout,
) -> Result<(), SendError> {
    let key = RegionKey(key);
    match (patience, notice) {
        (Timeout::Zero, _) => edge.try_put(key, offset, data, notice),
        (Timeout::After(timeout), _) => edge.put_timeout(key, offset, data, notice, timeout),
        (Timeout::Infinite, None) => edge.put(key, offset, data),
        (Timeout::Infinite, Some(value)) => edge.put_notify(key, offset, data, value),
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
        // SAFETY: by contract.
        let data = unsafe { guard::message(data, len) }?;
        let patience = message::timeout(flags, timeout_ns);
        EDGES.with(edge, |edge| {
            Ok(put(edge, (key, offset), (data, None), patience)?)
        })?;
        Ok(0)
    })
}

/// The same, and tells the owner when all of them are there.
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
        // SAFETY: by contract.
        let data = unsafe { guard::message(data, len) }?;
        let patience = message::timeout(flags, timeout_ns);
        let what = (data, Some(value));
        EDGES.with(edge, |edge| Ok(put(edge, (key, offset), what, patience)?))?;
        Ok(0)
    })
}

/// `struct dp_operation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PostedOperation {
    /// [`DP_PUT`], [`DP_GET`], [`DP_FETCH_ADD`] or [`DP_COMPARE_SWAP`].
    pub kind: c_int,
    /// Of a put: [`DP_NOTIFY`] or 0.
    pub flags: c_int,
    /// Key of the region.
    pub key: u64,
    /// Where in it.
    pub offset: u64,
    /// What is put, or where goes what is got.
    pub memory: *mut c_void,
    /// How many bytes.
    pub length: usize,
    /// Of the notice; what is added; what the word becomes.
    pub value: u64,
    /// What the word must be.
    pub expected: u64,
}

/// Posts an operation on a region of an edge's target.
///
/// # Safety
/// `operation` points to one; its memory to as many bytes as it says, which stay until the
/// completion, of a put as they are, of a get without anybody else who accesses them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_post_operation(
    edge: c_int,
    operation: *const PostedOperation,
    context: u64,
) -> c_int {
    call("dp_post_operation", || {
        // SAFETY: by contract.
        let [posted] = unsafe { guard::array("operation", operation, 1) }? else {
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
                // SAFETY: by contract; after the completion nothing reaches it any more.
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
            // SAFETY: by contract.
            DP_PUT => unsafe { guard::shared(memory, length) },
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

/// Gets bytes of a region of an edge's target.
///
/// # Safety
/// `into` points to `len` bytes that nobody else accesses meanwhile.
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
        // SAFETY: by contract.
        let into = unsafe { guard::bytes_mut("into", into, len) }?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        EDGES.with(edge, |edge| {
            Ok(edge.get(RegionKey(key), offset, into, timeout)?)
        })?;
        Ok(0)
    })
}

/// Adds to a word of a region of an edge's target.
///
/// # Safety
/// `before` points to a place for what it was or is null.
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
        // SAFETY: by contract.
        let place = unsafe { Out::maybe("before", before) }?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        EDGES.with(edge, |edge| {
            place.write(edge.fetch_add(RegionKey(key), offset, value, timeout)?);
            Ok(0)
        })
    })
}

/// Sets a word of a region of an edge's target if it is as expected.
///
/// # Safety
/// `before` points to a place for what it was or is null.
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
        // SAFETY: by contract.
        let place = unsafe { Out::maybe("before", before) }?;
        let timeout = Timeout::from_nanos(timeout_ns).duration();
        EDGES.with(edge, |edge| {
            let found = edge.compare_swap(RegionKey(key), offset, expected, new, timeout)?;
            place.write(found);
            Ok(0)
        })
    })
}

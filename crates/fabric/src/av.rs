//! Address vectors: endpoint names by small numbers.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustc_hash::FxHashMap;

use crate::abi::domain::{AvAttr, AvOps, FidAv};
use crate::abi::eq::FidEq;
use crate::abi::errno::{FI_EINVAL, FI_ENOEQ};
use crate::abi::fabric::{FI_ADDR_NOTAVAIL, FI_CLASS_AV, FI_CLASS_EQ, FI_EVENT, Fid, Ops};
use crate::completion::lock;
use crate::eq::{EventQueue, Events};
use crate::ffi::{
    Failure, call, class, copy_out, export, fid, missing, object, ops, read_at, reclaim, record,
    write_at,
};
use crate::name::{NAME_BYTES, Name, number};

/// An address vector. Look-ups take no lock: every name has a slot that is never moved.
#[derive(Default)]
pub(crate) struct Av {
    /// Each chunk has twice as many slots as the one before.
    chunks: [OnceLock<Box<[Slot]>>; CHUNKS],
    known: Mutex<Known>,
    /// Insertions are reported as events instead of by the return value.
    reports_events: bool,
    events: OnceLock<Arc<Events>>,
}

/// Slots of the first chunk.
const FIRST_SLOTS: usize = 64;
const CHUNKS: usize = 32;

#[derive(Default)]
struct Slot {
    name: OnceLock<Name>,
    is_removed: AtomicBool,
}

#[derive(Default)]
struct Known {
    count: u64,
    by_number: FxHashMap<u64, u64>,
}

static OPS: Ops = Ops { bind, ..ops(close) };
static AV_OPS: AvOps = AvOps {
    size: size_of::<AvOps>(),
    insert,
    insertsvc: missing!("insertsvc"),
    insertsym: missing!("insertsym"),
    remove,
    lookup,
    straddr,
    av_set: missing!("av_set"),
};

impl Av {
    /// # Safety
    /// `out` is null or valid for writes.
    pub(crate) unsafe fn open(
        attr: Option<&AvAttr>,
        out: *mut *mut FidAv,
        context: *mut c_void,
    ) -> Result<c_int, Failure> {
        let av = Av {
            reports_events: attr.is_some_and(|attr| attr.flags & FI_EVENT != 0),
            ..Av::default()
        };
        let fid = FidAv {
            fid: fid(FI_CLASS_AV, context, &OPS),
            ops: &AV_OPS,
        };
        // SAFETY: the arguments are valid by contract.
        unsafe { export(out, fid, Arc::new(av)) }
    }

    /// Chunk and index within it.
    #[inline]
    fn chunk_and_index(index: u64) -> Option<(usize, usize)> {
        let index = usize::try_from(index).ok()?;
        let chunk = (index / FIRST_SLOTS + 1).ilog2();
        let before = FIRST_SLOTS * ((1 << chunk) - 1);
        Some((chunk as usize, index - before))
    }

    #[inline]
    fn slot(&self, index: u64) -> Option<&Slot> {
        let (chunk, at) = Av::chunk_and_index(index)?;
        self.chunks.get(chunk)?.get()?.get(at)
    }

    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<&Name> {
        let slot = self.slot(index)?;
        let is_removed = slot.is_removed.load(Ordering::Acquire);
        slot.name.get().filter(|_| !is_removed)
    }

    /// The index of an endpoint's address.
    pub(crate) fn find(&self, address: u64) -> Option<u64> {
        lock(&self.known).by_number.get(&address).copied()
    }

    /// Adds a name; returns its index, or `None` if there are no free ones.
    pub(crate) fn insert(&self, name: Name) -> Option<u64> {
        let mut known = lock(&self.known);
        let index = known.count;
        let (chunk, at) = Av::chunk_and_index(index)?;
        let slots = self.chunks.get(chunk)?.get_or_init(|| {
            let slots = FIRST_SLOTS << chunk;
            std::iter::repeat_with(Slot::default).take(slots).collect()
        });
        slots[at].name.set(name).ok()?;
        known.count += 1;
        known.by_number.insert(number(name.messages), index);
        Some(index)
    }

    fn remove(&self, index: u64) -> Option<()> {
        let mut known = lock(&self.known);
        let number = number(self.get(index)?.messages);
        self.slot(index)?.is_removed.store(true, Ordering::Release);
        if known.by_number.get(&number) == Some(&index) {
            known.by_number.remove(&number);
        }
        Some(())
    }
}

/// The address vector behind a pointer from C.
///
/// # Safety
/// `av` is null or was created by this provider.
unsafe fn av<'a>(av: *const FidAv) -> Result<&'a Arc<Av>, Failure> {
    // SAFETY: the caller's contract is the same.
    unsafe { object(av) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: created by `Av::open`; C does not use it again.
    call(|| unsafe { reclaim::<FidAv, Arc<Av>>(fid) }.map(|_| 0))
}

unsafe extern "C" fn bind(fid: *mut Fid, other: *mut Fid, _: u64) -> c_int {
    call(|| {
        // SAFETY: an address vector, and an object of this provider.
        let (av, class) = unsafe { (av(fid.cast())?, class(other)?) };
        if class != FI_CLASS_EQ {
            return Err(Failure(FI_EINVAL));
        }
        // SAFETY: its class determines its type.
        let queue: &EventQueue = unsafe { object(other.cast::<FidEq>()) }?;
        let bound = av.events.set(Arc::clone(&queue.events));
        bound.map_err(|_| Failure(FI_EINVAL)).map(|()| 0)
    })
}

unsafe extern "C" fn insert(
    fid: *mut FidAv,
    names: *const c_void,
    count: usize,
    out: *mut u64,
    _: u64,
    context: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: libfabric passes an address vector of this provider.
        let av = unsafe { av(fid) }?;
        let events = match (av.reports_events, av.events.get()) {
            (false, _) => None,
            (true, None) => return Err(Failure(FI_ENOEQ)),
            (true, events) => events,
        };
        let mut inserted = 0;
        for index in 0..count {
            // SAFETY: the array has `count` names.
            let name = Name::decode(&unsafe { record::<NAME_BYTES>(names, index) });
            let number = name.and_then(|name| av.insert(name));
            inserted += c_int::from(number.is_some());
            let number = number.unwrap_or(FI_ADDR_NOTAVAIL);
            // SAFETY: null, or an array of `count` elements.
            unsafe { write_at(out, index, number) };
        }
        let Some(events) = events else {
            return Ok(inserted);
        };
        events.report_insertion(fid.cast(), context, u64::from(inserted.unsigned_abs()));
        Ok(0)
    })
}

unsafe extern "C" fn remove(fid: *mut FidAv, numbers: *mut u64, count: usize, _: u64) -> c_int {
    call(|| {
        // SAFETY: libfabric passes an address vector of this provider.
        let av = unsafe { av(fid) }?;
        for index in 0..count {
            // SAFETY: the array has `count` elements.
            let number = unsafe { read_at(numbers, index) };
            av.remove(number).ok_or(Failure(FI_EINVAL))?;
        }
        Ok(0)
    })
}

unsafe extern "C" fn lookup(
    fid: *mut FidAv,
    number: u64,
    buffer: *mut c_void,
    length: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: libfabric passes an address vector of this provider.
        let name = unsafe { av(fid) }?.get(number).ok_or(Failure(FI_EINVAL))?;
        // SAFETY: a buffer of that length.
        unsafe { copy_out(&name.encode(), buffer, length) }?;
        Ok(0)
    })
}

unsafe extern "C" fn straddr(
    _: *mut FidAv,
    name: *const c_void,
    buffer: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: the bytes of a name.
    let name = Name::decode(&unsafe { record::<NAME_BYTES>(name, 0) });
    let text = name.map_or("not the name of a dipole endpoint".to_owned(), |name| {
        name.to_string()
    });
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: a buffer of that length.
    let _fits = unsafe { copy_out(text.as_bytes_with_nul(), buffer.cast(), length) };
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::Address;
    use dipole_node::registry::Ports;

    fn name(endpoint: u32) -> Name {
        let address = Address::new(1, endpoint);
        let small = ([127, 0, 0, 1], 9).into();
        Name {
            messages: address,
            regions: address,
            atomics: address,
            ports: Ports {
                small,
                bulk: small,
                incarnation: 7,
            },
        }
    }

    #[test]
    fn a_name_is_found_by_its_index_until_it_is_removed() {
        let av = Av::default();
        for endpoint in 1..1000 {
            assert_eq!(av.insert(name(endpoint)), Some(u64::from(endpoint) - 1));
        }
        for endpoint in 1..1000 {
            let index = u64::from(endpoint) - 1;
            assert_eq!(av.get(index), Some(&name(endpoint)));
            assert_eq!(av.find(number(name(endpoint).messages)), Some(index));
        }
        assert_eq!(av.remove(500), Some(()));
        assert_eq!((av.get(500), av.remove(500)), (None, None));
        assert_eq!(av.find(number(name(501).messages)), None);
        assert_eq!(av.get(501), Some(&name(502)));
        for unknown in [999, 1 << 40, u64::MAX] {
            assert_eq!(av.get(unknown), None);
        }
        // A name that is inserted again gets another index.
        assert_eq!(av.insert(name(501)), Some(999));
        assert_eq!(av.find(number(name(501).messages)), Some(999));
    }
}

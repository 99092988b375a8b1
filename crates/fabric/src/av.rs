//! Address vectors: names of endpoints by small numbers.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex};

use rustc_hash::FxHashMap;

use crate::abi::domain::{AvOps, FidAv};
use crate::abi::errno::FI_EINVAL;
use crate::abi::fabric::{FI_ADDR_NOTAVAIL, FI_CLASS_AV, Fid, Ops};
use crate::abi::missing;
use crate::completion::lock;
use crate::guard::{
    Failure, call, copy_out, fid, give, object, ops, read_at, record, take, write_at,
};
use crate::name::{NAME_BYTES, Name, number};

/// See the module.
#[derive(Default)]
pub(crate) struct Av(Mutex<Names>);

#[derive(Default)]
struct Names {
    names: Vec<Option<Name>>,
    by_number: FxHashMap<u64, u64>,
}

static OPS: Ops = Ops { bind, ..ops(close) };
static AV_OPS: AvOps = AvOps {
    size: size_of::<AvOps>(),
    insert,
    insertsvc: missing,
    insertsym: missing,
    remove,
    lookup,
    straddr,
    av_set: missing,
};

impl Av {
    /// # Safety
    /// `out` is null or valid for writes.
    pub(crate) unsafe fn open(
        out: *mut *mut FidAv,
        context: *mut c_void,
    ) -> Result<c_int, Failure> {
        let fid = FidAv {
            fid: fid(FI_CLASS_AV, context, &OPS),
            ops: &AV_OPS,
        };
        // SAFETY: valid by contract.
        unsafe { give(out, fid, Arc::new(Av::default())) }
    }

    /// The name that a number stands for.
    #[inline]
    pub(crate) fn get(&self, index: u64) -> Option<Name> {
        let names = lock(&self.0);
        *names.names.get(usize::try_from(index).ok()?)?
    }

    /// The number of whoever has this address.
    pub(crate) fn find(&self, address: u64) -> Option<u64> {
        lock(&self.0).by_number.get(&address).copied()
    }

    fn insert(&self, name: Name) -> u64 {
        let mut names = lock(&self.0);
        let index = names.names.len() as u64;
        names.names.push(Some(name));
        names.by_number.insert(number(name.messages), index);
        index
    }

    fn remove(&self, index: u64) -> Option<Name> {
        let mut names = lock(&self.0);
        let name = names.names.get_mut(usize::try_from(index).ok()?)?.take()?;
        let number = number(name.messages);
        if names.by_number.get(&number) == Some(&index) {
            names.by_number.remove(&number);
        }
        Some(name)
    }
}

/// The address vector that C means.
///
/// # Safety
/// `av` is null or one of this provider's.
unsafe fn av<'a>(av: *const FidAv) -> Result<&'a Arc<Av>, Failure> {
    // SAFETY: the contract is the same.
    unsafe { object(av) }
}

unsafe extern "C" fn close(fid: *mut Fid) -> c_int {
    // SAFETY: made by `Av::open`, given up by C.
    call(|| unsafe { take::<FidAv, Arc<Av>>(fid) }.map(|_| 0))
}

/// Queues of events may be bound: inserting is done at once.
unsafe extern "C" fn bind(_: *mut Fid, _: *mut Fid, _: u64) -> c_int {
    0
}

unsafe extern "C" fn insert(
    fid: *mut FidAv,
    names: *const c_void,
    count: usize,
    out: *mut u64,
    _: u64,
    _: *mut c_void,
) -> c_int {
    call(|| {
        // SAFETY: an address vector of this provider.
        let av = unsafe { av(fid) }?;
        let mut inserted = 0;
        for index in 0..count {
            // SAFETY: as many names as `count` says.
            let name = Name::decode(&unsafe { record::<NAME_BYTES>(names, index) });
            let number = name.map_or(FI_ADDR_NOTAVAIL, |name| {
                inserted += 1;
                av.insert(name)
            });
            // SAFETY: null, or as many places as `count` says.
            unsafe { write_at(out, index, number) };
        }
        Ok(inserted)
    })
}

unsafe extern "C" fn remove(fid: *mut FidAv, numbers: *mut u64, count: usize, _: u64) -> c_int {
    call(|| {
        // SAFETY: an address vector of this provider.
        let av = unsafe { av(fid) }?;
        for index in 0..count {
            // SAFETY: as many numbers as `count` says.
            let number = unsafe { read_at(numbers, index) };
            av.remove(number).ok_or(Failure(FI_EINVAL))?;
        }
        Ok(0)
    })
}

unsafe extern "C" fn lookup(
    fid: *mut FidAv,
    number: u64,
    place: *mut c_void,
    length: *mut usize,
) -> c_int {
    call(|| {
        // SAFETY: an address vector of this provider.
        let name = unsafe { av(fid) }?.get(number).ok_or(Failure(FI_EINVAL))?;
        // SAFETY: a place of that length.
        unsafe { copy_out(&name.encode(), place, length) }?;
        Ok(0)
    })
}

unsafe extern "C" fn straddr(
    _: *mut FidAv,
    name: *const c_void,
    place: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: a name.
    let name = Name::decode(&unsafe { record::<NAME_BYTES>(name, 0) });
    let text = name.map_or("no name of a dipole endpoint".to_owned(), |name| {
        name.to_string()
    });
    let text = CString::new(text).unwrap_or_default();
    // SAFETY: a place of that length.
    let _fits = unsafe { copy_out(text.as_bytes_with_nul(), place.cast(), length) };
    place
}

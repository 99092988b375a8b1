//! `rdma/fi_atomic.h`: atomic operations on the memory of peers.

use std::ffi::{c_int, c_void};

use super::endpoint::FidEp;
use super::fabric::numbers;

numbers! { c_int:
    FI_INT8 = 0;
    FI_UINT8 = 1;
    FI_INT16 = 2;
    FI_UINT16 = 3;
    FI_INT32 = 4;
    FI_UINT32 = 5;
    FI_INT64 = 6;
    FI_UINT64 = 7;
    FI_FLOAT = 8;
    FI_DOUBLE = 9;
    FI_FLOAT_COMPLEX = 10;
    FI_DOUBLE_COMPLEX = 11;
    FI_LONG_DOUBLE = 12;
    FI_INT128 = 14;
    FI_UINT128 = 15;
    FI_MIN = 0;
    FI_MAX = 1;
    FI_SUM = 2;
    FI_PROD = 3;
    FI_LOR = 4;
    FI_LAND = 5;
    FI_BOR = 6;
    FI_BAND = 7;
    FI_LXOR = 8;
    FI_BXOR = 9;
    FI_ATOMIC_READ = 10;
    FI_ATOMIC_WRITE = 11;
    FI_CSWAP = 12;
    FI_CSWAP_NE = 13;
    FI_CSWAP_LE = 14;
    FI_CSWAP_LT = 15;
    FI_CSWAP_GE = 16;
    FI_CSWAP_GT = 17;
    FI_MSWAP = 18;
}

numbers! { u64:
    FI_FETCH_ATOMIC = 0x0400_0000_0000_0000;
    FI_COMPARE_ATOMIC = 0x0800_0000_0000_0000;
}

/// `struct fi_ioc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the manual page fi_atomic(3) has them")]
pub struct Ioc {
    pub addr: *mut c_void,
    pub count: usize,
}

/// `struct fi_rma_ioc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the manual page fi_atomic(3) has them")]
pub struct RmaIoc {
    pub addr: u64,
    pub count: usize,
    pub key: u64,
}

/// `struct fi_atomic_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the manual page fi_atomic(3) has them")]
pub struct AtomicAttr {
    pub count: usize,
    pub size: usize,
}

/// `struct fi_msg_atomic`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_atomic(3) has them")]
pub struct MsgAtomic {
    pub msg_iov: *const Ioc,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const RmaIoc,
    pub rma_iov_count: usize,
    pub datatype: c_int,
    pub op: c_int,
    pub context: *mut c_void,
    pub data: u64,
}

/// Returns whether an operation is offered, and the maximum number of elements.
pub type Valid = unsafe extern "C" fn(*mut FidEp, c_int, c_int, *mut usize) -> c_int;

/// `struct fi_ops_atomic`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_atomic(3) has them")]
pub struct AtomicOps {
    pub size: usize,
    pub write: unsafe extern "C" fn(
        *mut FidEp,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub writev: unsafe extern "C" fn(
        *mut FidEp,
        *const Ioc,
        *mut *mut c_void,
        usize,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub writemsg: unsafe extern "C" fn(*mut FidEp, *const MsgAtomic, u64) -> isize,
    pub inject: unsafe extern "C" fn(
        *mut FidEp,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        c_int,
        c_int,
    ) -> isize,
    pub readwrite: unsafe extern "C" fn(
        *mut FidEp,
        *const c_void,
        usize,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub readwritev: unsafe extern "C" fn(
        *mut FidEp,
        *const Ioc,
        *mut *mut c_void,
        usize,
        *const Ioc,
        *mut *mut c_void,
        usize,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub readwritemsg: unsafe extern "C" fn(
        *mut FidEp,
        *const MsgAtomic,
        *const Ioc,
        *mut *mut c_void,
        usize,
        u64,
    ) -> isize,
    pub compwrite: unsafe extern "C" fn(
        *mut FidEp,
        *const c_void,
        usize,
        *mut c_void,
        *const c_void,
        *mut c_void,
        *mut c_void,
        *mut c_void,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub compwritev: unsafe extern "C" fn(
        *mut FidEp,
        *const Ioc,
        *mut *mut c_void,
        usize,
        *const Ioc,
        *mut *mut c_void,
        usize,
        *const Ioc,
        *mut *mut c_void,
        usize,
        u64,
        u64,
        u64,
        c_int,
        c_int,
        *mut c_void,
    ) -> isize,
    pub compwritemsg: unsafe extern "C" fn(
        *mut FidEp,
        *const MsgAtomic,
        *const Ioc,
        *mut *mut c_void,
        usize,
        *const Ioc,
        *mut *mut c_void,
        usize,
        u64,
    ) -> isize,
    pub writevalid: Valid,
    pub readwritevalid: Valid,
    pub compwritevalid: Valid,
}

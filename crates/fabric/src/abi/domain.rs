//! `rdma/fi_domain.h`: domains, address vectors, memory regions.

use std::ffi::{c_char, c_int, c_void};

use super::Missing;
use super::atomic::AtomicAttr;
use super::endpoint::FidEp;
use super::eq::{CntrAttr, CqAttr, FidCntr, FidCq};
use super::fabric::{Fid, Info};

/// `struct fi_av_attr`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_av(3) has them")]
pub struct AvAttr {
    pub kind: c_int,
    pub rx_ctx_bits: c_int,
    pub count: usize,
    pub ep_per_node: usize,
    pub name: *const c_char,
    pub map_addr: *mut c_void,
    pub flags: u64,
}

/// `struct fi_ops_av`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_av(3) has them")]
pub struct AvOps {
    pub size: usize,
    pub insert:
        unsafe extern "C" fn(*mut FidAv, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
    pub insertsvc: Missing,
    pub insertsym: Missing,
    pub remove: unsafe extern "C" fn(*mut FidAv, *mut u64, usize, u64) -> c_int,
    pub lookup: unsafe extern "C" fn(*mut FidAv, u64, *mut c_void, *mut usize) -> c_int,
    pub straddr:
        unsafe extern "C" fn(*mut FidAv, *const c_void, *mut c_char, *mut usize) -> *const c_char,
    pub av_set: Missing,
}

/// `struct fid_av`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_av(3) has them")]
pub struct FidAv {
    pub fid: Fid,
    pub ops: *const AvOps,
}

/// `struct fid_mr`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_mr(3) has them")]
pub struct FidMr {
    pub fid: Fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// `struct fi_mr_attr`, as far as it is read.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_mr(3) has them")]
pub struct MrAttr {
    pub mr_iov: *const libc::iovec,
    pub iov_count: usize,
    pub access: u64,
    pub offset: u64,
    pub requested_key: u64,
    pub context: *mut c_void,
}

/// `struct fi_ops_mr`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_mr(3) has them")]
pub struct MrOps {
    pub size: usize,
    pub reg: unsafe extern "C" fn(
        *mut Fid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut FidMr,
        *mut c_void,
    ) -> c_int,
    pub regv: unsafe extern "C" fn(
        *mut Fid,
        *const libc::iovec,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut FidMr,
        *mut c_void,
    ) -> c_int,
    pub regattr: unsafe extern "C" fn(*mut Fid, *const MrAttr, u64, *mut *mut FidMr) -> c_int,
}

/// `struct fi_ops_domain`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_domain(3) has them")]
pub struct DomainOps {
    pub size: usize,
    pub av_open:
        unsafe extern "C" fn(*mut FidDomain, *mut AvAttr, *mut *mut FidAv, *mut c_void) -> c_int,
    pub cq_open:
        unsafe extern "C" fn(*mut FidDomain, *mut CqAttr, *mut *mut FidCq, *mut c_void) -> c_int,
    pub endpoint:
        unsafe extern "C" fn(*mut FidDomain, *mut Info, *mut *mut FidEp, *mut c_void) -> c_int,
    pub scalable_ep: Missing,
    pub cntr_open: unsafe extern "C" fn(
        *mut FidDomain,
        *mut CntrAttr,
        *mut *mut FidCntr,
        *mut c_void,
    ) -> c_int,
    pub poll_open: Missing,
    pub stx_ctx: Missing,
    pub srx_ctx: Missing,
    pub query_atomic:
        unsafe extern "C" fn(*mut FidDomain, c_int, c_int, *mut AtomicAttr, u64) -> c_int,
    pub query_collective: Missing,
    pub endpoint2: Missing,
}

/// `struct fid_domain`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_domain(3) has them")]
pub struct FidDomain {
    pub fid: Fid,
    pub ops: *const DomainOps,
    pub mr: *const MrOps,
}

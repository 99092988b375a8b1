//! `rdma/fi_endpoint.h`: endpoints and their messages.

use std::ffi::{c_int, c_void};

use super::Missing;
use super::fabric::Fid;

/// `FI_OPT_ENDPOINT`
pub const FI_OPT_ENDPOINT: c_int = 0;
/// `FI_OPT_MIN_MULTI_RECV`
pub const FI_OPT_MIN_MULTI_RECV: c_int = 0;

/// `struct fi_msg`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_msg(3) has them")]
pub struct Msg {
    pub msg_iov: *const libc::iovec,
    pub desc: *mut *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}

/// `struct fi_ops_ep`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_endpoint(3) has them")]
pub struct EpOps {
    pub size: usize,
    pub cancel: unsafe extern "C" fn(*mut Fid, *mut c_void) -> isize,
    pub getopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, *mut c_void, *mut usize) -> c_int,
    pub setopt: unsafe extern "C" fn(*mut Fid, c_int, c_int, *const c_void, usize) -> c_int,
    pub tx_ctx: Missing,
    pub rx_ctx: Missing,
    pub rx_size_left: Missing,
    pub tx_size_left: Missing,
}

/// `struct fi_ops_msg`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_msg(3) has them")]
pub struct MsgOps {
    pub size: usize,
    pub recv: unsafe extern "C" fn(
        *mut FidEp,
        *mut c_void,
        usize,
        *mut c_void,
        u64,
        *mut c_void,
    ) -> isize,
    pub recvv: unsafe extern "C" fn(
        *mut FidEp,
        *const libc::iovec,
        *mut *mut c_void,
        usize,
        u64,
        *mut c_void,
    ) -> isize,
    pub recvmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
    pub send: unsafe extern "C" fn(
        *mut FidEp,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        *mut c_void,
    ) -> isize,
    pub sendv: unsafe extern "C" fn(
        *mut FidEp,
        *const libc::iovec,
        *mut *mut c_void,
        usize,
        u64,
        *mut c_void,
    ) -> isize,
    pub sendmsg: unsafe extern "C" fn(*mut FidEp, *const Msg, u64) -> isize,
    pub inject: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64) -> isize,
    pub senddata: unsafe extern "C" fn(
        *mut FidEp,
        *const c_void,
        usize,
        *mut c_void,
        u64,
        u64,
        *mut c_void,
    ) -> isize,
    pub injectdata: unsafe extern "C" fn(*mut FidEp, *const c_void, usize, u64, u64) -> isize,
}

/// `struct fid_ep`. The tables that other headers have are not named here.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_endpoint(3) has them")]
pub struct FidEp {
    pub fid: Fid,
    pub ops: *const EpOps,
    pub cm: *const c_void,
    pub msg: *const MsgOps,
    pub rma: *const c_void,
    pub tagged: *const c_void,
    pub atomic: *const c_void,
    pub collective: *const c_void,
}

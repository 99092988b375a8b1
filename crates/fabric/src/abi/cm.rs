//! `rdma/fi_cm.h`: endpoint names. Connections are not offered.

use std::ffi::{c_int, c_void};

use super::Missing;
use super::fabric::Fid;

/// `struct fi_ops_cm`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_cm(3) has them")]
pub struct CmOps {
    pub size: usize,
    pub setname: Missing,
    pub getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
    pub getpeer: Missing,
    pub connect: Missing,
    pub listen: Missing,
    pub accept: Missing,
    pub reject: Missing,
    pub shutdown: Missing,
    pub join: Missing,
}

//! `rdma/providers/fi_prov.h`: what a provider is to libfabric.

use std::ffi::{c_char, c_int, c_void};

use super::fabric::{FabricAttr, FidFabric, Info};

/// `struct fi_provider`.
#[repr(C)]
#[derive(Debug)]
pub struct Provider {
    /// The provider's version.
    pub version: u32,
    /// The version of the interface it speaks.
    pub fi_version: u32,
    /// libfabric's own.
    pub context: [*mut c_void; 4],
    /// Its name.
    pub name: *const c_char,
    /// What it offers.
    pub getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const Info,
        *mut *mut Info,
    ) -> c_int,
    /// Opens it.
    pub fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
    /// Called last.
    pub cleanup: unsafe extern "C" fn(),
}

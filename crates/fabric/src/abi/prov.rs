//! `rdma/providers/fi_prov.h`: the description of a provider.

use std::ffi::{c_char, c_int, c_void};

use super::fabric::{FabricAttr, FidFabric, Info};

/// `struct fi_provider`.
#[repr(C)]
#[derive(Debug)]
pub struct Provider {
    /// The provider's version.
    pub version: u32,
    /// The version of the interface that it implements.
    pub fi_version: u32,
    /// Reserved for libfabric.
    pub context: [*mut c_void; 4],
    /// The provider's name.
    pub name: *const c_char,
    /// Returns what it offers.
    pub getinfo: unsafe extern "C" fn(
        u32,
        *const c_char,
        *const c_char,
        u64,
        *const Info,
        *mut *mut Info,
    ) -> c_int,
    /// Opens a fabric.
    pub fabric: unsafe extern "C" fn(*mut FabricAttr, *mut *mut FidFabric, *mut c_void) -> c_int,
    /// Called once, before libfabric unloads the provider.
    pub cleanup: unsafe extern "C" fn(),
}

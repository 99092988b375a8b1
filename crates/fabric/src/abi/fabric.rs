//! Types of libfabric's header `rdma/fabric.h`.

use std::ffi::{c_char, c_int, c_void};

use super::Missing;

macro_rules! flags {
    ($($name:ident = $bit:literal;)*) => {
        $(#[doc = concat!("`", stringify!($name), "`")] pub const $name: u64 = 1 << $bit;)*
    };
}

macro_rules! numbers {
    ($kind:ty: $($name:ident = $number:literal;)*) => {
        $(#[doc = concat!("`", stringify!($name), "`")] pub const $name: $kind = $number;)*
    };
}
pub(crate) use numbers;

flags! {
    FI_MSG = 1;
    FI_RMA = 2;
    FI_TAGGED = 3;
    FI_ATOMIC = 4;
    FI_READ = 8;
    FI_WRITE = 9;
    FI_RECV = 10;
    FI_SEND = 11;
    FI_REMOTE_READ = 12;
    FI_REMOTE_WRITE = 13;
    FI_MULTI_RECV = 16;
    FI_REMOTE_CQ_DATA = 17;
    FI_MORE = 18;
    FI_PEEK = 19;
    FI_FENCE = 21;
    FI_COMPLETION = 24;
    FI_EVENT = 24;
    FI_INJECT = 25;
    FI_INJECT_COMPLETE = 26;
    FI_TRANSMIT_COMPLETE = 27;
    FI_DELIVERY_COMPLETE = 28;
    FI_LOCAL_COMM = 51;
    FI_REMOTE_COMM = 52;
    FI_SOURCE = 57;
    FI_DISCARD = 58;
    FI_SELECTIVE_COMPLETION = 59;
    FI_DIRECTED_RECV = 59;
    FI_CLAIM = 59;
    FI_REG_MR = 59;
    FI_ORDER_SAS = 8;
    FI_PROV_ATTR_ONLY = 54;
}

numbers! { u64:
    FI_ADDR_UNSPEC = 0xffff_ffff_ffff_ffff;
    FI_ADDR_NOTAVAIL = 0xffff_ffff_ffff_ffff;
}

numbers! { c_int:
    FI_MR_BASIC = 1;
    FI_MR_SCALABLE = 2;
    FI_MR_PROV_KEY = 0x40;
    FI_AV_UNSPEC = 0;
    FI_AV_MAP = 1;
    FI_AV_TABLE = 2;
    FI_PROGRESS_UNSPEC = 0;
    FI_PROGRESS_AUTO = 1;
    FI_PROGRESS_MANUAL = 2;
    FI_THREAD_UNSPEC = 0;
    FI_THREAD_SAFE = 1;
    FI_RM_ENABLED = 2;
    FI_EP_UNSPEC = 0;
    FI_EP_RDM = 3;
    FI_GETOPSFLAG = 2;
    FI_SETOPSFLAG = 3;
    FI_ALIAS = 4;
    FI_GETWAIT = 5;
    FI_ENABLE = 6;
    FI_GETWAITOBJ = 16;
}

numbers! { usize:
    FI_CLASS_FABRIC = 1;
    FI_CLASS_DOMAIN = 2;
    FI_CLASS_EP = 3;
    FI_CLASS_AV = 11;
    FI_CLASS_MR = 12;
    FI_CLASS_EQ = 13;
    FI_CLASS_CQ = 14;
    FI_CLASS_CNTR = 15;
}

numbers! { u32:
    FI_FORMAT_UNSPEC = 0;
    FI_PROTO_UNSPEC = 0;
    FI_TC_UNSPEC = 0;
}

/// A version of the interface as one number.
#[must_use]
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// `struct fid`: what every object begins with.
#[repr(C)]
#[derive(Debug)]
pub struct Fid {
    /// The class of the object.
    pub class: usize,
    /// The program's context.
    pub context: *mut c_void,
    /// Operations that every object has.
    pub ops: *const Ops,
}

/// `struct fi_ops`.
#[repr(C)]
#[derive(Debug)]
pub struct Ops {
    /// The size of this struct.
    pub size: usize,
    /// Closes the object.
    pub close: unsafe extern "C" fn(*mut Fid) -> c_int,
    /// Binds another object to it.
    pub bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    /// Executes a command.
    pub control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
    /// Not implemented.
    pub ops_open: Missing,
    /// Not implemented.
    pub tostr: Missing,
    /// Not implemented.
    pub ops_set: Missing,
}

/// `struct fi_tx_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the manual page fi_endpoint(3) has them")]
pub struct TxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub inject_size: usize,
    pub size: usize,
    pub iov_limit: usize,
    pub rma_iov_limit: usize,
    pub tclass: u32,
}

/// `struct fi_rx_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the manual page fi_endpoint(3) has them")]
pub struct RxAttr {
    pub caps: u64,
    pub mode: u64,
    pub op_flags: u64,
    pub msg_order: u64,
    pub comp_order: u64,
    pub total_buffered_recv: usize,
    pub size: usize,
    pub iov_limit: usize,
}

/// `struct fi_ep_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the manual page fi_endpoint(3) has them")]
pub struct EpAttr {
    pub kind: c_int,
    pub protocol: u32,
    pub protocol_version: u32,
    pub max_msg_size: usize,
    pub msg_prefix_size: usize,
    pub max_order_raw_size: usize,
    pub max_order_war_size: usize,
    pub max_order_waw_size: usize,
    pub mem_tag_format: u64,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub auth_key_size: usize,
    pub auth_key: *mut u8,
}

/// `struct fi_domain_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the manual page fi_domain(3) has them")]
pub struct DomainAttr {
    pub domain: *mut c_void,
    pub name: *mut c_char,
    pub threading: c_int,
    pub control_progress: c_int,
    pub data_progress: c_int,
    pub resource_mgmt: c_int,
    pub av_type: c_int,
    pub mr_mode: c_int,
    pub mr_key_size: usize,
    pub cq_data_size: usize,
    pub cq_cnt: usize,
    pub ep_cnt: usize,
    pub tx_ctx_cnt: usize,
    pub rx_ctx_cnt: usize,
    pub max_ep_tx_ctx: usize,
    pub max_ep_rx_ctx: usize,
    pub max_ep_stx_ctx: usize,
    pub max_ep_srx_ctx: usize,
    pub cntr_cnt: usize,
    pub mr_iov_limit: usize,
    pub caps: u64,
    pub mode: u64,
    pub auth_key: *mut u8,
    pub auth_key_size: usize,
    pub max_err_data: usize,
    pub mr_cnt: usize,
    pub tclass: u32,
    /// Added in libfabric 1.20.
    pub max_ep_auth_key: usize,
    /// Added in libfabric 2.0.
    pub max_group_id: u32,
}

/// `struct fi_fabric_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the manual page fi_fabric(3) has them")]
pub struct FabricAttr {
    pub fabric: *mut FidFabric,
    pub name: *mut c_char,
    pub prov_name: *mut c_char,
    pub prov_version: u32,
    pub api_version: u32,
}

/// `struct fi_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "as the manual page fi_getinfo(3) has them")]
pub struct Info {
    pub next: *mut Info,
    pub caps: u64,
    pub mode: u64,
    pub addr_format: u32,
    pub src_addrlen: usize,
    pub dest_addrlen: usize,
    pub src_addr: *mut c_void,
    pub dest_addr: *mut c_void,
    pub handle: *mut Fid,
    pub tx_attr: *mut TxAttr,
    pub rx_attr: *mut RxAttr,
    pub ep_attr: *mut EpAttr,
    pub domain_attr: *mut DomainAttr,
    pub fabric_attr: *mut FabricAttr,
    pub nic: *mut c_void,
}

/// `struct fi_ops_fabric`. What other headers have is not named here.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_fabric(3) has them")]
pub struct FabricOps {
    pub size: usize,
    pub domain:
        unsafe extern "C" fn(*mut FidFabric, *mut Info, *mut *mut c_void, *mut c_void) -> c_int,
    pub passive_ep: Missing,
    pub eq_open:
        unsafe extern "C" fn(*mut FidFabric, *mut c_void, *mut *mut c_void, *mut c_void) -> c_int,
    pub wait_open: Missing,
    pub trywait: unsafe extern "C" fn(*mut FidFabric, *mut *mut Fid, c_int) -> c_int,
    pub domain2: Missing,
}

/// `struct fid_fabric`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_fabric(3) has them")]
pub struct FidFabric {
    pub fid: Fid,
    pub ops: *const FabricOps,
    pub api_version: u32,
}

//! The capabilities of this provider, and whether they meet the hints of a program.

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use crate::abi::errno::{FI_ENODATA, FI_ENOMEM};
use crate::abi::fabric::{
    DomainAttr, EpAttr, FI_ATOMIC, FI_AV_TABLE, FI_AV_UNSPEC, FI_DIRECTED_RECV, FI_EP_RDM,
    FI_EP_UNSPEC, FI_FORMAT_UNSPEC, FI_LOCAL_COMM, FI_MR_PROV_KEY, FI_MSG, FI_MULTI_RECV,
    FI_ORDER_SAS, FI_PROGRESS_AUTO, FI_PROGRESS_MANUAL, FI_PROGRESS_UNSPEC, FI_PROTO_UNSPEC,
    FI_READ, FI_RECV, FI_REMOTE_COMM, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RM_ENABLED, FI_RMA,
    FI_SEND, FI_SOURCE, FI_TAGGED, FI_THREAD_SAFE, FI_THREAD_UNSPEC, FI_WRITE, FabricAttr, Info,
    RxAttr, TxAttr,
};
use crate::exchange::INJECT_BYTES;
use crate::ffi::{Failure, borrow};
use crate::memory::MAX_PIECES;
use crate::name::NAME_BYTES;

/// The name of the provider, its fabric and its domain.
pub(crate) const NAME: &CStr = c"dipole";

/// Primary capabilities, which a program must request.
const PRIMARY: u64 = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC;
/// Directions; a program that requests none gets all.
const DIRECTIONS: u64 = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
/// Secondary capabilities, which are always on because they cost nothing.
const SECONDARY: u64 = FI_MULTI_RECV | FI_SOURCE | FI_LOCAL_COMM | FI_REMOTE_COMM;
const REMOTE: u64 = FI_RMA | FI_ATOMIC | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

/// Largest number of outstanding operations.
const QUEUE: usize = 1024;
const MAX_MESSAGE_BYTES: usize = 1 << 40;
/// Tags may use all bits (`FI_TAG_GENERIC`).
const TAG_FORMAT: u64 = 0xaaaa_aaaa_aaaa_aaaa;
const MANY: usize = 1 << 16;

/// Properties that the provider offers.
struct Offer {
    caps: u64,
    tx: TxAttr,
    rx: RxAttr,
    ep: EpAttr,
    domain: DomainAttr,
}

impl Offer {
    fn all() -> Offer {
        let caps = PRIMARY | DIRECTIONS | SECONDARY | FI_DIRECTED_RECV;
        Offer {
            caps,
            tx: TxAttr {
                caps,
                mode: 0,
                op_flags: 0,
                msg_order: FI_ORDER_SAS,
                comp_order: 0,
                inject_size: INJECT_BYTES,
                size: QUEUE,
                iov_limit: MAX_PIECES,
                rma_iov_limit: 1,
                tclass: 0,
            },
            rx: RxAttr {
                caps,
                mode: 0,
                op_flags: 0,
                msg_order: FI_ORDER_SAS,
                comp_order: 0,
                total_buffered_recv: 0,
                size: QUEUE,
                iov_limit: MAX_PIECES,
            },
            ep: EpAttr {
                kind: FI_EP_RDM,
                protocol: FI_PROTO_UNSPEC,
                protocol_version: 1,
                max_msg_size: MAX_MESSAGE_BYTES,
                msg_prefix_size: 0,
                max_order_raw_size: 0,
                max_order_war_size: 0,
                max_order_waw_size: 0,
                mem_tag_format: TAG_FORMAT,
                tx_ctx_cnt: 1,
                rx_ctx_cnt: 1,
                auth_key_size: 0,
                auth_key: ptr::null_mut(),
            },
            domain: DomainAttr {
                domain: ptr::null_mut(),
                name: ptr::null_mut(),
                threading: FI_THREAD_SAFE,
                control_progress: FI_PROGRESS_AUTO,
                data_progress: FI_PROGRESS_MANUAL,
                resource_mgmt: FI_RM_ENABLED,
                av_type: FI_AV_TABLE,
                mr_mode: FI_MR_PROV_KEY,
                mr_key_size: 8,
                cq_data_size: 8,
                cq_cnt: MANY,
                ep_cnt: MANY,
                tx_ctx_cnt: MANY,
                rx_ctx_cnt: MANY,
                max_ep_tx_ctx: 1,
                max_ep_rx_ctx: 1,
                max_ep_stx_ctx: 0,
                max_ep_srx_ctx: 0,
                cntr_cnt: MANY,
                mr_iov_limit: 1,
                caps: FI_LOCAL_COMM | FI_REMOTE_COMM,
                mode: 0,
                auth_key: ptr::null_mut(),
                auth_key_size: 0,
                max_err_data: 0,
                mr_cnt: MANY,
                tclass: 0,
                max_ep_auth_key: 0,
                max_group_id: 0,
            },
        }
    }

    /// Restricts the offer to what the program requests; the error contains the reason if that is impossible.
    ///
    /// # Safety
    /// The pointers of `hints` are null or valid, as libfabric passes them.
    unsafe fn fit(&mut self, hints: &Info) -> Result<(), &'static str> {
        if hints.addr_format != FI_FORMAT_UNSPEC {
            return Err("another address format");
        }
        // SAFETY: the arguments are valid by contract.
        if let Some(domain) = unsafe { borrow(hints.domain_attr) } {
            // SAFETY: as above.
            unsafe { self.fit_domain(domain) }?;
        } else {
            self.domain.mr_mode = 0;
        }
        if self.domain.mr_mode & FI_MR_PROV_KEY == 0 {
            self.caps &= !REMOTE;
        }
        if hints.caps & !self.caps != 0 {
            return Err("other capabilities");
        }
        if hints.caps & PRIMARY != 0 {
            let requested = hints.caps & DIRECTIONS;
            let directions = if requested == 0 {
                DIRECTIONS
            } else {
                requested
            };
            // Without directed receives the source of a receive is ignored.
            let chosen = hints.caps & (PRIMARY | FI_DIRECTED_RECV);
            let mut caps = chosen | directions | SECONDARY;
            if hints.caps & (FI_RMA | FI_ATOMIC) == 0 {
                caps &= !REMOTE;
            }
            self.caps &= caps;
        }
        (self.tx.caps, self.rx.caps) = (self.caps, self.caps);
        // SAFETY: the arguments are valid by contract.
        if let Some(tx) = unsafe { borrow(hints.tx_attr) } {
            self.fit_tx(tx)?;
        }
        // SAFETY: as above.
        if let Some(rx) = unsafe { borrow(hints.rx_attr) } {
            self.fit_rx(rx)?;
        }
        // SAFETY: as above.
        if let Some(ep) = unsafe { borrow(hints.ep_attr) } {
            self.fit_ep(ep)?;
        }
        Ok(())
    }

    unsafe fn fit_domain(&mut self, requested: &DomainAttr) -> Result<(), &'static str> {
        // SAFETY: null or a C string, by the contract of `fit`.
        if unsafe { is_other(requested.name) } {
            return Err("another domain");
        }
        let ours = &mut self.domain;
        if requested.threading != FI_THREAD_UNSPEC {
            ours.threading = requested.threading;
        }
        if requested.data_progress == FI_PROGRESS_AUTO {
            return Err("automatic progress");
        }
        if requested.control_progress != FI_PROGRESS_UNSPEC {
            ours.control_progress = requested.control_progress;
        }
        if requested.av_type != FI_AV_UNSPEC {
            ours.av_type = requested.av_type;
        }
        if requested.mr_mode & FI_MR_PROV_KEY == 0 {
            ours.mr_mode = 0;
        }
        if requested.cq_data_size > ours.cq_data_size || requested.mr_key_size > ours.mr_key_size {
            return Err("larger data or keys");
        }
        Ok(())
    }

    fn fit_tx(&mut self, requested: &TxAttr) -> Result<(), &'static str> {
        let ours = &mut self.tx;
        if requested.caps & !ours.caps != 0 || requested.msg_order & !ours.msg_order != 0 {
            return Err("other send capabilities or orders");
        }
        if requested.comp_order & !ours.comp_order != 0 {
            return Err("ordered completions");
        }
        if requested.inject_size > ours.inject_size
            || requested.size > ours.size
            || requested.iov_limit > ours.iov_limit
            || requested.rma_iov_limit > ours.rma_iov_limit
        {
            return Err("larger sizes or limits of sends");
        }
        ours.op_flags = requested.op_flags;
        Ok(())
    }

    fn fit_rx(&mut self, requested: &RxAttr) -> Result<(), &'static str> {
        let ours = &mut self.rx;
        if requested.caps & !ours.caps != 0 || requested.msg_order & !ours.msg_order != 0 {
            return Err("other receive capabilities or orders");
        }
        if requested.comp_order & !ours.comp_order != 0 {
            return Err("ordered completions");
        }
        if requested.size > ours.size || requested.iov_limit > ours.iov_limit {
            return Err("larger sizes or limits of receives");
        }
        ours.op_flags = requested.op_flags;
        Ok(())
    }

    fn fit_ep(&mut self, requested: &EpAttr) -> Result<(), &'static str> {
        let ours = &self.ep;
        if requested.kind != FI_EP_UNSPEC && requested.kind != FI_EP_RDM {
            return Err("another endpoint type");
        }
        if requested.protocol != FI_PROTO_UNSPEC || requested.max_msg_size > ours.max_msg_size {
            return Err("another protocol, or longer messages");
        }
        if requested.tx_ctx_cnt > 1 || requested.rx_ctx_cnt > 1 || requested.auth_key_size > 0 {
            return Err("several contexts, or authorization keys");
        }
        if requested.max_order_raw_size > 0
            || requested.max_order_war_size > 0
            || requested.max_order_waw_size > 0
        {
            return Err("ordered memory operations");
        }
        Ok(())
    }

    /// Allocates every part separately, because libfabric frees them one by one.
    fn allocate(self) -> Result<*mut Info, Failure> {
        let fabric = FabricAttr {
            fabric: ptr::null_mut(),
            name: name()?,
            // libfabric sets this.
            prov_name: ptr::null_mut(),
            prov_version: 0,
            api_version: 0,
        };
        let domain = DomainAttr {
            name: name()?,
            ..self.domain
        };
        allocated(Info {
            next: ptr::null_mut(),
            caps: self.caps,
            mode: 0,
            addr_format: FI_FORMAT_UNSPEC,
            src_addrlen: NAME_BYTES,
            dest_addrlen: NAME_BYTES,
            src_addr: ptr::null_mut(),
            dest_addr: ptr::null_mut(),
            handle: ptr::null_mut(),
            tx_attr: allocated(self.tx)?,
            rx_attr: allocated(self.rx)?,
            ep_attr: allocated(self.ep)?,
            domain_attr: allocated(domain)?,
            fabric_attr: allocated(fabric)?,
            nic: ptr::null_mut(),
        })
    }
}

/// Allocates the information about what is offered to a program with these hints.
///
/// # Safety
/// `hints` is null or from libfabric; `out` is null or valid for writes.
pub(crate) unsafe fn getinfo(hints: *const Info, out: *mut *mut Info) -> Result<c_int, Failure> {
    let mut offer = Offer::all();
    // SAFETY: the arguments are valid by contract.
    if let Some(hints) = unsafe { borrow(hints) } {
        // SAFETY: as above.
        let fabric = unsafe { borrow(hints.fabric_attr) };
        // SAFETY: as above: null or a C string.
        let is_other = fabric.is_some_and(|fabric| unsafe { is_other(fabric.name) });
        // SAFETY: as above.
        let suits = unsafe { offer.fit(hints) };
        let why_not = if is_other {
            Some("another fabric")
        } else {
            suits.err()
        };
        if let Some(why_not) = why_not {
            tracing::info!("not offered because a program requested {why_not}");
            return Err(Failure(FI_ENODATA));
        }
    }
    let info = offer.allocate()?;
    // SAFETY: valid for writes by contract.
    unsafe { crate::ffi::write_at(out, 0, info) };
    Ok(0)
}

/// # Safety
/// `name` is null or a C string.
unsafe fn is_other(name: *const c_char) -> bool {
    // SAFETY: not null where it is read; a C string by contract.
    !name.is_null() && unsafe { CStr::from_ptr(name) } != NAME
}

/// Copies a value to memory that libfabric can free.
fn allocated<T>(value: T) -> Result<*mut T, Failure> {
    // SAFETY: any size is allowed; the result is checked.
    let buffer = unsafe { libc::malloc(size_of::<T>()) }.cast::<T>();
    if buffer.is_null() {
        return Err(Failure(FI_ENOMEM));
    }
    // SAFETY: not null, large enough for a `T`, and aligned for any type.
    unsafe { buffer.write(value) };
    Ok(buffer)
}

fn name() -> Result<*mut c_char, Failure> {
    // SAFETY: a C string.
    let copy = unsafe { libc::strdup(NAME.as_ptr()) };
    if copy.is_null() {
        return Err(Failure(FI_ENOMEM));
    }
    Ok(copy)
}

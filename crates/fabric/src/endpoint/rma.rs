//! The calls of `fi_rma(3)`: reads and writes in the memory of peers.

use std::ffi::c_void;
use std::ptr;

use super::{CompletionMode, Ep, ep};
use crate::abi::endpoint::FidEp;
use crate::abi::errno::FI_EINVAL;
use crate::abi::fabric::{FI_INJECT, FI_REMOTE_CQ_DATA};
use crate::abi::rma::{MsgRma, RmaOps};
use crate::exchange::RmaRequest;
use crate::ffi::{Failure, borrow, call};
use crate::memory::Pieces;

pub(super) static OPS: RmaOps = RmaOps {
    size: size_of::<RmaOps>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

/// A place in the memory of a peer.
#[derive(Clone, Copy)]
struct RemoteTarget {
    peer: u64,
    offset: u64,
    key: u64,
}

impl RemoteTarget {
    fn request(
        self,
        local: Pieces,
        context: *mut c_void,
        completion: CompletionMode,
    ) -> RmaRequest {
        RmaRequest {
            local,
            offset: self.offset,
            key: self.key,
            context: context.expose_provenance(),
            notify: completion.notify,
            is_injected: completion.flags & FI_INJECT != 0,
            data: None,
        }
    }
}

impl Ep {
    fn read(
        &self,
        local: Pieces,
        target: RemoteTarget,
        context: *mut c_void,
        completion: CompletionMode,
    ) -> Result<isize, Failure> {
        let request = target.request(local, context, completion);
        let name = self.name(target.peer)?;
        self.begin(|exchange| exchange.read(name, &request))?;
        Ok(0)
    }

    fn write(
        &self,
        local: Pieces,
        target: RemoteTarget,
        data: Option<u64>,
        context: *mut c_void,
        completion: CompletionMode,
    ) -> Result<isize, Failure> {
        let request = RmaRequest {
            data,
            ..target.request(local, context, completion)
        };
        let name = self.name(target.peer)?;
        self.begin(|exchange| exchange.write(name, &request))?;
        Ok(0)
    }
}

unsafe extern "C" fn read(
    fid: *mut FidEp,
    buffer: *mut c_void,
    length: usize,
    _: *mut c_void,
    peer: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and a buffer that belongs to the operation until it completes.
        let (ep, local) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?.non_null()?) };
        let target = RemoteTarget { peer, offset, key };
        ep.read(local, target, context, ep.transmit.default_mode())
    })
}

unsafe extern "C" fn readv(
    fid: *mut FidEp,
    vector: *const libc::iovec,
    _: *mut *mut c_void,
    count: usize,
    peer: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: as in `read`.
        let (ep, local) = unsafe { (ep(fid)?, Pieces::many(vector, count)?.non_null()?) };
        let target = RemoteTarget { peer, offset, key };
        ep.read(local, target, context, ep.transmit.default_mode())
    })
}

/// Buffer and target of a `struct fi_msg_rma`.
///
/// # Safety
/// `message` is null or valid.
unsafe fn unpack<'a>(
    message: *const MsgRma,
) -> Result<(Pieces, RemoteTarget, &'a MsgRma), Failure> {
    // SAFETY: libfabric guarantees that the struct is valid during the call.
    let message = unsafe { borrow(message) }.ok_or(Failure(FI_EINVAL))?;
    // SAFETY: null or an array of the length that the struct gives.
    let (local, target) = unsafe {
        (
            Pieces::many(message.msg_iov, message.iov_count)?.non_null()?,
            borrow(message.rma_iov),
        )
    };
    let target = target.filter(|target| message.rma_iov_count == 1 && target.len == local.length());
    let target = target.ok_or(Failure(FI_EINVAL))?;
    let target = RemoteTarget {
        peer: message.addr,
        offset: target.addr,
        key: target.key,
    };
    Ok((local, target, message))
}

unsafe extern "C" fn readmsg(fid: *mut FidEp, message: *const MsgRma, flags: u64) -> isize {
    call(|| {
        // SAFETY: as in `read`.
        let (ep, (local, target, message)) = unsafe { (ep(fid)?, unpack(message)?) };
        ep.read(local, target, message.context, ep.transmit.mode(flags))
    })
}

unsafe extern "C" fn write(
    fid: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    peer: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and a buffer that stays valid until the operation completes.
        let (ep, local) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?.non_null()?) };
        let target = RemoteTarget { peer, offset, key };
        ep.write(local, target, None, context, ep.transmit.default_mode())
    })
}

unsafe extern "C" fn writev(
    fid: *mut FidEp,
    vector: *const libc::iovec,
    _: *mut *mut c_void,
    count: usize,
    peer: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: as in `write`.
        let (ep, local) = unsafe { (ep(fid)?, Pieces::many(vector, count)?.non_null()?) };
        let target = RemoteTarget { peer, offset, key };
        ep.write(local, target, None, context, ep.transmit.default_mode())
    })
}

unsafe extern "C" fn writemsg(fid: *mut FidEp, message: *const MsgRma, flags: u64) -> isize {
    call(|| {
        // SAFETY: as in `write`.
        let (ep, (local, target, message)) = unsafe { (ep(fid)?, unpack(message)?) };
        let completion = ep.transmit.mode(flags);
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        ep.write(local, target, data, message.context, completion)
    })
}

unsafe extern "C" fn inject(
    fid: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    peer: u64,
    offset: u64,
    key: u64,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and a buffer that is readable during the call.
        let (ep, local) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?.non_null()?) };
        let target = RemoteTarget { peer, offset, key };
        ep.write(
            local,
            target,
            None,
            ptr::null_mut(),
            CompletionMode::INJECTED,
        )
    })
}

unsafe extern "C" fn writedata(
    fid: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    peer: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: as in `write`.
        let (ep, local) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?.non_null()?) };
        let target = RemoteTarget { peer, offset, key };
        ep.write(
            local,
            target,
            Some(data),
            context,
            ep.transmit.default_mode(),
        )
    })
}

unsafe extern "C" fn injectdata(
    fid: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    data: u64,
    peer: u64,
    offset: u64,
    key: u64,
) -> isize {
    call(|| {
        // SAFETY: as in `inject`.
        let (ep, local) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?.non_null()?) };
        let target = RemoteTarget { peer, offset, key };
        ep.write(
            local,
            target,
            Some(data),
            ptr::null_mut(),
            CompletionMode::INJECTED,
        )
    })
}

//! The calls of `fi_msg(3)`: messages without tags.

use std::ffi::c_void;

use super::{CompletionMode, Ep, ep};
use crate::abi::endpoint::{FidEp, Msg, MsgOps};
use crate::abi::errno::{FI_EINVAL, FI_EMSGSIZE};
use crate::abi::fabric::{FI_DELIVERY_COMPLETE, FI_INJECT, FI_MULTI_RECV, FI_REMOTE_CQ_DATA};
use crate::exchange::{INJECT_BYTES, ReceiveRequest, SendRequest};
use crate::ffi::{Failure, borrow, call};
use crate::matching::Criteria;
use crate::memory::Pieces;

pub(super) static OPS: MsgOps = MsgOps {
    size: size_of::<MsgOps>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

/// Message metadata: tag, immediate data and destination.
#[derive(Clone, Copy)]
pub(super) struct Label {
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
    pub(super) to: u64,
}

impl Ep {
    #[inline]
    pub(super) fn send(
        &self,
        from: Pieces,
        label: Label,
        context: *mut c_void,
        completion: CompletionMode,
    ) -> Result<isize, Failure> {
        let CompletionMode { flags, notify } = completion;
        let is_injected = flags & FI_INJECT != 0;
        if is_injected && from.length() > INJECT_BYTES {
            return Err(Failure(FI_EMSGSIZE));
        }
        let name = self.name(label.to)?;
        let request = SendRequest {
            is_tagged: label.tag.is_some(),
            tag: label.tag.unwrap_or(0),
            data: label.data,
            from,
            context: context.expose_provenance(),
            notify,
            wants_delivery: flags & FI_DELIVERY_COMPLETE != 0 && !is_injected,
            is_injected,
        };
        self.begin(|exchange| exchange.send(name, request))?;
        Ok(0)
    }

    /// Sends a message whose buffer is free when the call returns, without a completion.
    #[inline]
    pub(super) fn inject(&self, from: Pieces, label: Label) -> Result<isize, Failure> {
        self.send(from, label, std::ptr::null_mut(), CompletionMode::INJECTED)
    }

    #[inline]
    fn receive(
        &self,
        to: Pieces,
        from: u64,
        context: *mut c_void,
        flags: u64,
    ) -> Result<isize, Failure> {
        let criteria = Criteria {
            source: self.source(from)?,
            tag: 0,
            ignore: u64::MAX,
        };
        let min_room = &self.min_room;
        let request = ReceiveRequest {
            is_tagged: false,
            criteria,
            to,
            context: context.expose_provenance(),
            notify: self.receive.reports(flags),
            min_room: (flags & FI_MULTI_RECV != 0)
                .then(|| min_room.load(std::sync::atomic::Ordering::Relaxed)),
        };
        self.begin(|exchange| exchange.post(&request))?;
        Ok(0)
    }
}

/// A message without a tag.
fn untagged(to: u64, data: Option<u64>) -> Label {
    Label {
        tag: None,
        data,
        to,
    }
}

unsafe extern "C" fn recv(
    fid: *mut FidEp,
    buffer: *mut c_void,
    length: usize,
    _: *mut c_void,
    from: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and a buffer that belongs to the operation until it completes.
        let (ep, to) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?) };
        ep.receive(to, from, context, ep.receive.flags())
    })
}

unsafe extern "C" fn recvv(
    fid: *mut FidEp,
    vector: *const libc::iovec,
    _: *mut *mut c_void,
    count: usize,
    from: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: as in `recv`.
        let (ep, to) = unsafe { (ep(fid)?, Pieces::many(vector, count)?) };
        ep.receive(to, from, context, ep.receive.flags())
    })
}

unsafe extern "C" fn recvmsg(fid: *mut FidEp, message: *const Msg, flags: u64) -> isize {
    call(|| {
        // SAFETY: libfabric guarantees that the struct is valid during the call.
        let message = unsafe { borrow(message) }.ok_or(Failure(FI_EINVAL))?;
        // SAFETY: as in `recv`.
        let (ep, to) = unsafe { (ep(fid)?, Pieces::many(message.msg_iov, message.iov_count)?) };
        ep.receive(to, message.addr, message.context, flags)
    })
}

unsafe extern "C" fn send(
    fid: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and a buffer that stays valid until the operation completes.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?) };
        ep.send(
            from,
            untagged(to, None),
            context,
            ep.transmit.default_mode(),
        )
    })
}

unsafe extern "C" fn sendv(
    fid: *mut FidEp,
    vector: *const libc::iovec,
    _: *mut *mut c_void,
    count: usize,
    to: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: as in `send`.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::many(vector, count)?) };
        ep.send(
            from,
            untagged(to, None),
            context,
            ep.transmit.default_mode(),
        )
    })
}

unsafe extern "C" fn sendmsg(fid: *mut FidEp, message: *const Msg, flags: u64) -> isize {
    call(|| {
        // SAFETY: libfabric guarantees that the struct is valid during the call.
        let message = unsafe { borrow(message) }.ok_or(Failure(FI_EINVAL))?;
        // SAFETY: as in `send`.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::many(message.msg_iov, message.iov_count)?) };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        ep.send(
            from,
            untagged(message.addr, data),
            message.context,
            ep.transmit.mode(flags),
        )
    })
}

unsafe extern "C" fn inject(
    fid: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    to: u64,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and a buffer that is readable during the call.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?) };
        ep.inject(from, untagged(to, None))
    })
}

unsafe extern "C" fn senddata(
    fid: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    to: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: as in `send`.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?) };
        ep.send(
            from,
            untagged(to, Some(data)),
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
    to: u64,
) -> isize {
    call(|| {
        // SAFETY: as in `inject`.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?) };
        ep.inject(from, untagged(to, Some(data)))
    })
}

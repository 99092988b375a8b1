//! The calls of `fi_tagged(3)`: messages with tags.

use std::ffi::c_void;

use super::messages::Label;
use super::{Ep, ep};
use crate::abi::endpoint::FidEp;
use crate::abi::errno::FI_EINVAL;
use crate::abi::fabric::{FI_CLAIM, FI_DISCARD, FI_PEEK, FI_REMOTE_CQ_DATA};
use crate::abi::tagged::{MsgTagged, TaggedOps};
use crate::completion::lock;
use crate::exchange::{PeekMode, ReceiveRequest};
use crate::ffi::{Failure, borrow, call};
use crate::matching::Criteria;
use crate::memory::Pieces;

pub(super) static OPS: TaggedOps = TaggedOps {
    size: size_of::<TaggedOps>(),
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

impl Ep {
    #[inline]
    pub(super) fn receive_tagged(
        &self,
        to: Pieces,
        criteria: Criteria,
        context: *mut c_void,
        flags: u64,
    ) -> Result<isize, Failure> {
        let request = ReceiveRequest {
            is_tagged: true,
            criteria,
            to,
            context: context.expose_provenance(),
            notify: self.receive.reports(flags),
            min_room: None,
        };
        if flags & (FI_PEEK | FI_CLAIM | FI_DISCARD) == 0 {
            self.begin(|exchange| exchange.post(&request))?;
            return Ok(0);
        }
        // A program may look for a message again and again while it waits, so these are no operations.
        let mut exchange = lock(&self.exchange);
        if flags & FI_PEEK != 0 {
            let mode = match (flags & FI_CLAIM != 0, flags & FI_DISCARD != 0) {
                (true, _) => PeekMode::Claim,
                (false, true) => PeekMode::Discard,
                (false, false) => PeekMode::Peek,
            };
            exchange.peek(&request, mode);
        } else if flags & FI_DISCARD != 0 {
            exchange.discard_claimed(&request)?;
        } else {
            exchange.post_claimed(&request)?;
        }
        Ok(0)
    }

    /// Filter of the messages that a receive takes.
    #[inline]
    fn criteria(&self, from: u64, tag: u64, ignore: u64) -> Result<Criteria, Failure> {
        Ok(Criteria {
            source: self.source(from)?,
            tag,
            ignore,
        })
    }
}

/// A message with a tag.
fn tagged(to: u64, tag: u64, data: Option<u64>) -> Label {
    Label {
        tag: Some(tag),
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
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and a buffer that belongs to the operation until it completes.
        let (ep, to) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?) };
        let criteria = ep.criteria(from, tag, ignore)?;
        ep.receive_tagged(to, criteria, context, ep.receive.flags())
    })
}

unsafe extern "C" fn recvv(
    fid: *mut FidEp,
    vector: *const libc::iovec,
    _: *mut *mut c_void,
    count: usize,
    from: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: as in `recv`.
        let (ep, to) = unsafe { (ep(fid)?, Pieces::many(vector, count)?) };
        let criteria = ep.criteria(from, tag, ignore)?;
        ep.receive_tagged(to, criteria, context, ep.receive.flags())
    })
}

unsafe extern "C" fn recvmsg(fid: *mut FidEp, message: *const MsgTagged, flags: u64) -> isize {
    call(|| {
        // SAFETY: libfabric guarantees that the struct is valid during the call.
        let message = unsafe { borrow(message) }.ok_or(Failure(FI_EINVAL))?;
        // SAFETY: as in `recv`.
        let (ep, to) = unsafe { (ep(fid)?, Pieces::many(message.msg_iov, message.iov_count)?) };
        let criteria = ep.criteria(message.addr, message.tag, message.ignore)?;
        ep.receive_tagged(to, criteria, message.context, flags)
    })
}

unsafe extern "C" fn send(
    fid: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and a buffer that stays valid until the operation completes.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?) };
        ep.send(
            from,
            tagged(to, tag, None),
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
    tag: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: as in `send`.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::many(vector, count)?) };
        ep.send(
            from,
            tagged(to, tag, None),
            context,
            ep.transmit.default_mode(),
        )
    })
}

unsafe extern "C" fn sendmsg(fid: *mut FidEp, message: *const MsgTagged, flags: u64) -> isize {
    call(|| {
        // SAFETY: libfabric guarantees that the struct is valid during the call.
        let message = unsafe { borrow(message) }.ok_or(Failure(FI_EINVAL))?;
        // SAFETY: as in `send`.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::many(message.msg_iov, message.iov_count)?) };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        let label = tagged(message.addr, message.tag, data);
        ep.send(from, label, message.context, ep.transmit.mode(flags))
    })
}

unsafe extern "C" fn inject(
    fid: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    to: u64,
    tag: u64,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and a buffer that is readable during the call.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?) };
        ep.inject(from, tagged(to, tag, None))
    })
}

unsafe extern "C" fn senddata(
    fid: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    to: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: as in `send`.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?) };
        let label = tagged(to, tag, Some(data));
        ep.send(from, label, context, ep.transmit.default_mode())
    })
}

unsafe extern "C" fn injectdata(
    fid: *mut FidEp,
    buffer: *const c_void,
    length: usize,
    data: u64,
    to: u64,
    tag: u64,
) -> isize {
    call(|| {
        // SAFETY: as in `inject`.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(buffer, length)?) };
        ep.inject(from, tagged(to, tag, Some(data)))
    })
}

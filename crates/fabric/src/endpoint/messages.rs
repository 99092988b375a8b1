//! Calls for messages without tags.

use std::ffi::c_void;

use super::{Ep, ep};
use crate::abi::endpoint::{FidEp, Msg, MsgOps};
use crate::abi::errno::{FI_EINVAL, FI_EMSGSIZE};
use crate::abi::fabric::{FI_DELIVERY_COMPLETE, FI_INJECT, FI_MULTI_RECV, FI_REMOTE_CQ_DATA};
use crate::completion::lock;
use crate::exchange::{EAGER_BYTES, Posting, Sending};
use crate::guard::{Failure, call, given};
use crate::matching::Wanted;
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

/// What a message is but for its bytes.
#[derive(Clone, Copy)]
pub(super) struct Label {
    pub(super) tag: Option<u64>,
    pub(super) data: Option<u64>,
    pub(super) to: u64,
}

impl Ep {
    /// Sends a message that completes as `flags` say.
    #[inline]
    pub(super) fn send(
        &self,
        from: Pieces,
        label: Label,
        context: *mut c_void,
        flags: u64,
    ) -> Result<isize, Failure> {
        let wanted = self.transmit.wants(flags);
        self.send_seen(from, label, context, (flags, wanted))
    }

    /// Sends a message whose memory is the program's again at once, which nobody sees complete.
    #[inline]
    pub(super) fn inject(&self, from: Pieces, label: Label) -> Result<isize, Failure> {
        let seen = (FI_INJECT, false);
        self.send_seen(from, label, std::ptr::null_mut(), seen)
    }

    #[inline]
    fn send_seen(
        &self,
        from: Pieces,
        label: Label,
        context: *mut c_void,
        (flags, wanted): (u64, bool),
    ) -> Result<isize, Failure> {
        let is_injected = flags & FI_INJECT != 0;
        if is_injected && from.length() > EAGER_BYTES {
            return Err(Failure(FI_EMSGSIZE));
        }
        let name = self.name(label.to)?;
        let sending = Sending {
            is_tagged: label.tag.is_some(),
            tag: label.tag.unwrap_or(0),
            data: label.data,
            from,
            context: context.expose_provenance(),
            wanted,
            is_confirmed: flags & FI_DELIVERY_COMPLETE != 0 && !is_injected,
        };
        lock(&self.exchange).send(name, sending)?;
        Ok(0)
    }

    #[inline]
    fn receive(
        &self,
        to: Pieces,
        from: u64,
        context: *mut c_void,
        flags: u64,
    ) -> Result<isize, Failure> {
        let wanted = Wanted {
            source: self.source(from)?,
            tag: 0,
            ignore: u64::MAX,
        };
        let room = &self.least_room;
        let posting = Posting {
            is_tagged: false,
            wanted,
            to,
            context: context.expose_provenance(),
            notify: self.receive.wants(flags),
            least_room: (flags & FI_MULTI_RECV != 0)
                .then(|| room.load(std::sync::atomic::Ordering::Relaxed)),
        };
        lock(&self.exchange).post(&posting)?;
        Ok(0)
    }
}

/// A message without a tag.
fn plain(to: u64, data: Option<u64>) -> Label {
    Label {
        tag: None,
        data,
        to,
    }
}

unsafe extern "C" fn recv(
    fid: *mut FidEp,
    place: *mut c_void,
    length: usize,
    _: *mut c_void,
    from: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and memory that is its until the operation completes.
        let (ep, to) = unsafe { (ep(fid)?, Pieces::one(place, length)?) };
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
        // SAFETY: valid during the call.
        let message = unsafe { given(message) }.ok_or(Failure(FI_EINVAL))?;
        // SAFETY: as in `recv`.
        let (ep, to) = unsafe { (ep(fid)?, Pieces::many(message.msg_iov, message.iov_count)?) };
        ep.receive(to, message.addr, message.context, flags)
    })
}

unsafe extern "C" fn send(
    fid: *mut FidEp,
    place: *const c_void,
    length: usize,
    _: *mut c_void,
    to: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and memory that stays until the operation completes.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(place, length)?) };
        ep.send(from, plain(to, None), context, ep.transmit.flags())
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
        ep.send(from, plain(to, None), context, ep.transmit.flags())
    })
}

unsafe extern "C" fn sendmsg(fid: *mut FidEp, message: *const Msg, flags: u64) -> isize {
    call(|| {
        // SAFETY: valid during the call.
        let message = unsafe { given(message) }.ok_or(Failure(FI_EINVAL))?;
        // SAFETY: as in `send`.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::many(message.msg_iov, message.iov_count)?) };
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        ep.send(from, plain(message.addr, data), message.context, flags)
    })
}

unsafe extern "C" fn inject(
    fid: *mut FidEp,
    place: *const c_void,
    length: usize,
    to: u64,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and memory that is read during the call.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(place, length)?) };
        ep.inject(from, plain(to, None))
    })
}

unsafe extern "C" fn senddata(
    fid: *mut FidEp,
    place: *const c_void,
    length: usize,
    _: *mut c_void,
    data: u64,
    to: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: as in `send`.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(place, length)?) };
        ep.send(from, plain(to, Some(data)), context, ep.transmit.flags())
    })
}

unsafe extern "C" fn injectdata(
    fid: *mut FidEp,
    place: *const c_void,
    length: usize,
    data: u64,
    to: u64,
) -> isize {
    call(|| {
        // SAFETY: as in `inject`.
        let (ep, from) = unsafe { (ep(fid)?, Pieces::one(place, length)?) };
        ep.inject(from, plain(to, Some(data)))
    })
}

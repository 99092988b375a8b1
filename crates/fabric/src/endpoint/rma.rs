//! Calls that read and write others' memory.

use std::ffi::c_void;
use std::ptr;

use super::{Ep, ep};
use crate::abi::endpoint::FidEp;
use crate::abi::errno::FI_EINVAL;
use crate::abi::fabric::{FI_INJECT, FI_REMOTE_CQ_DATA};
use crate::abi::rma::{MsgRma, RmaOps};
use crate::completion::lock;
use crate::exchange::Asked;
use crate::guard::{Failure, call, given};
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

/// Where in whose memory.
#[derive(Clone, Copy)]
struct There {
    peer: u64,
    offset: u64,
    key: u64,
}

impl Ep {
    fn ask(
        &self,
        local: Pieces,
        there: There,
        context: *mut c_void,
        (flags, wanted): (u64, bool),
    ) -> Asked {
        let _ = self;
        Asked {
            local,
            offset: there.offset,
            key: there.key,
            context: context.expose_provenance(),
            wanted,
            is_copied: flags & FI_INJECT != 0,
            data: None,
        }
    }

    fn read(
        &self,
        local: Pieces,
        there: There,
        context: *mut c_void,
        flags: u64,
    ) -> Result<isize, Failure> {
        let asked = self.ask(local, there, context, (flags, self.transmit.wants(flags)));
        let name = self.name(there.peer)?;
        lock(&self.exchange).read(name, &asked)?;
        Ok(0)
    }

    fn write(
        &self,
        local: Pieces,
        there: There,
        data: Option<u64>,
        context: *mut c_void,
        (flags, wanted): (u64, bool),
    ) -> Result<isize, Failure> {
        let asked = Asked {
            data,
            ..self.ask(local, there, context, (flags, wanted))
        };
        let name = self.name(there.peer)?;
        lock(&self.exchange).write(name, &asked)?;
        Ok(0)
    }

    /// How a write completes that gives no flags.
    fn as_usual(&self) -> (u64, bool) {
        let flags = self.transmit.flags();
        (flags, self.transmit.wants(flags))
    }
}

unsafe extern "C" fn read(
    fid: *mut FidEp,
    place: *mut c_void,
    length: usize,
    _: *mut c_void,
    peer: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and memory that is its until the operation completes.
        let (ep, local) = unsafe { (ep(fid)?, Pieces::one(place, length)?.somewhere()?) };
        let there = There { peer, offset, key };
        ep.read(local, there, context, ep.transmit.flags())
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
        let (ep, local) = unsafe { (ep(fid)?, Pieces::many(vector, count)?.somewhere()?) };
        let there = There { peer, offset, key };
        ep.read(local, there, context, ep.transmit.flags())
    })
}

/// What a struct of C's asks for.
///
/// # Safety
/// `message` is null or valid.
unsafe fn asked<'a>(message: *const MsgRma) -> Result<(Pieces, There, &'a MsgRma), Failure> {
    // SAFETY: valid during the call.
    let message = unsafe { given(message) }.ok_or(Failure(FI_EINVAL))?;
    // SAFETY: as many as the struct says.
    let (local, there) = unsafe {
        (
            Pieces::many(message.msg_iov, message.iov_count)?.somewhere()?,
            given(message.rma_iov),
        )
    };
    let there = there.filter(|there| message.rma_iov_count == 1 && there.len == local.length());
    let there = there.ok_or(Failure(FI_EINVAL))?;
    let there = There {
        peer: message.addr,
        offset: there.addr,
        key: there.key,
    };
    Ok((local, there, message))
}

unsafe extern "C" fn readmsg(fid: *mut FidEp, message: *const MsgRma, flags: u64) -> isize {
    call(|| {
        // SAFETY: as in `read`.
        let (ep, (local, there, message)) = unsafe { (ep(fid)?, asked(message)?) };
        ep.read(local, there, message.context, flags)
    })
}

unsafe extern "C" fn write(
    fid: *mut FidEp,
    place: *const c_void,
    length: usize,
    _: *mut c_void,
    peer: u64,
    offset: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and memory that stays until the operation completes.
        let (ep, local) = unsafe { (ep(fid)?, Pieces::one(place, length)?.somewhere()?) };
        let there = There { peer, offset, key };
        ep.write(local, there, None, context, ep.as_usual())
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
        let (ep, local) = unsafe { (ep(fid)?, Pieces::many(vector, count)?.somewhere()?) };
        let there = There { peer, offset, key };
        ep.write(local, there, None, context, ep.as_usual())
    })
}

unsafe extern "C" fn writemsg(fid: *mut FidEp, message: *const MsgRma, flags: u64) -> isize {
    call(|| {
        // SAFETY: as in `write`.
        let (ep, (local, there, message)) = unsafe { (ep(fid)?, asked(message)?) };
        let seen = (flags, ep.transmit.wants(flags));
        let data = (flags & FI_REMOTE_CQ_DATA != 0).then_some(message.data);
        ep.write(local, there, data, message.context, seen)
    })
}

unsafe extern "C" fn inject(
    fid: *mut FidEp,
    place: *const c_void,
    length: usize,
    peer: u64,
    offset: u64,
    key: u64,
) -> isize {
    call(|| {
        // SAFETY: an endpoint, and memory that is read during the call.
        let (ep, local) = unsafe { (ep(fid)?, Pieces::one(place, length)?.somewhere()?) };
        let there = There { peer, offset, key };
        ep.write(local, there, None, ptr::null_mut(), (FI_INJECT, false))
    })
}

unsafe extern "C" fn writedata(
    fid: *mut FidEp,
    place: *const c_void,
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
        let (ep, local) = unsafe { (ep(fid)?, Pieces::one(place, length)?.somewhere()?) };
        let there = There { peer, offset, key };
        ep.write(local, there, Some(data), context, ep.as_usual())
    })
}

unsafe extern "C" fn injectdata(
    fid: *mut FidEp,
    place: *const c_void,
    length: usize,
    data: u64,
    peer: u64,
    offset: u64,
    key: u64,
) -> isize {
    call(|| {
        // SAFETY: as in `inject`.
        let (ep, local) = unsafe { (ep(fid)?, Pieces::one(place, length)?.somewhere()?) };
        let there = There { peer, offset, key };
        ep.write(
            local,
            there,
            Some(data),
            ptr::null_mut(),
            (FI_INJECT, false),
        )
    })
}

//! `rdma/fi_errno.h`: numbers of failures. Calls return them negated.

/// No such message, or none of that kind.
pub const FI_ENOMSG: i32 = libc::ENOMSG;
/// Nothing there yet, or no room: try again.
pub const FI_EAGAIN: i32 = libc::EAGAIN;
/// An argument is wrong.
pub const FI_EINVAL: i32 = libc::EINVAL;
/// Not offered.
pub const FI_ENOSYS: i32 = libc::ENOSYS;
/// Nothing suits what was asked for.
pub const FI_ENODATA: i32 = libc::ENODATA;
/// Memory is used up.
pub const FI_ENOMEM: i32 = libc::ENOMEM;
/// There is no such operation.
pub const FI_EOPNOTSUPP: i32 = libc::EOPNOTSUPP;
/// Something else failed.
pub const FI_EIO: i32 = libc::EIO;
/// Still in use.
pub const FI_EBUSY: i32 = libc::EBUSY;
/// A message is longer than this can be.
pub const FI_EMSGSIZE: i32 = libc::EMSGSIZE;
/// The peer is gone.
pub const FI_ECONNABORTED: i32 = libc::ECONNABORTED;
/// The peer refused.
pub const FI_EACCES: i32 = libc::EACCES;
/// Withdrawn by its owner.
pub const FI_ECANCELED: i32 = libc::ECANCELED;
/// No descriptors are left.
pub const FI_EMFILE: i32 = libc::EMFILE;
/// The time is over.
pub const FI_ETIMEDOUT: i32 = libc::ETIMEDOUT;
/// A buffer is too short for what goes there.
pub const FI_ETOOSMALL: i32 = 257;
/// Called in the wrong state.
pub const FI_EOPBADSTATE: i32 = 258;
/// An error waits to be read.
pub const FI_EAVAIL: i32 = 259;
/// Flags that are not offered.
pub const FI_EBADFLAGS: i32 = 260;
/// Needed objects are not bound.
pub const FI_ENOCQ: i32 = 263;
/// No queue of events is bound.
pub const FI_ENOEQ: i32 = 261;
/// No address vector is bound.
pub const FI_ENOAV: i32 = 267;
/// A message was longer than the buffer it came to.
pub const FI_ETRUNC: i32 = 265;
/// A region has no such key.
pub const FI_ENOKEY: i32 = 266;

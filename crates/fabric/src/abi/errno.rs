//! `rdma/fi_errno.h`: error numbers. Calls return them negated.

/// No matching message.
pub const FI_ENOMSG: i32 = libc::ENOMSG;
/// Nothing available yet, or no room: try again.
pub const FI_EAGAIN: i32 = libc::EAGAIN;
/// Invalid argument.
pub const FI_EINVAL: i32 = libc::EINVAL;
/// Function not provided.
pub const FI_ENOSYS: i32 = libc::ENOSYS;
/// Nothing meets the hints.
pub const FI_ENODATA: i32 = libc::ENODATA;
/// Out of memory.
pub const FI_ENOMEM: i32 = libc::ENOMEM;
/// No such operation.
pub const FI_EOPNOTSUPP: i32 = libc::EOPNOTSUPP;
/// Any other error.
pub const FI_EIO: i32 = libc::EIO;
/// Still in use.
pub const FI_EBUSY: i32 = libc::EBUSY;
/// Message too long.
pub const FI_EMSGSIZE: i32 = libc::EMSGSIZE;
/// The peer is gone.
pub const FI_ECONNABORTED: i32 = libc::ECONNABORTED;
/// The peer refused.
pub const FI_EACCES: i32 = libc::EACCES;
/// Cancelled by the program.
pub const FI_ECANCELED: i32 = libc::ECANCELED;
/// No free file descriptors.
pub const FI_EMFILE: i32 = libc::EMFILE;
/// Timed out.
pub const FI_ETIMEDOUT: i32 = libc::ETIMEDOUT;
/// Buffer too short.
pub const FI_ETOOSMALL: i32 = 257;
/// Called in the wrong state.
pub const FI_EOPBADSTATE: i32 = 258;
/// An error entry waits to be read.
pub const FI_EAVAIL: i32 = 259;
/// Unsupported flags.
pub const FI_EBADFLAGS: i32 = 260;
/// Required objects are not bound.
pub const FI_ENOCQ: i32 = 263;
/// No event queue is bound.
pub const FI_ENOEQ: i32 = 261;
/// No address vector is bound.
pub const FI_ENOAV: i32 = 267;
/// The message was longer than the buffer.
pub const FI_ETRUNC: i32 = 265;
/// No region has this key.
pub const FI_ENOKEY: i32 = 266;

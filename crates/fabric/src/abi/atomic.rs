//! `rdma/fi_atomic.h`: not offered.

use super::Missing;

/// `struct fi_ops_atomic`.
#[repr(C)]
#[derive(Debug)]
#[allow(missing_docs, reason = "as the manual page fi_atomic(3) has them")]
pub struct AtomicOps {
    pub size: usize,
    pub write: Missing,
    pub writev: Missing,
    pub writemsg: Missing,
    pub inject: Missing,
    pub readwrite: Missing,
    pub readwritev: Missing,
    pub readwritemsg: Missing,
    pub compwrite: Missing,
    pub compwritev: Missing,
    pub compwritemsg: Missing,
    pub writevalid: Missing,
    pub readwritevalid: Missing,
    pub compwritevalid: Missing,
}

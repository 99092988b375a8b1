//! A limit on the bytes in flight between two threads or processes.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Limits the bytes in flight: taking more blocks until some are returned.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    shared: Arc<(Mutex<usize>, Condvar)>,
    limit_bytes: usize,
}

impl Budget {
    pub(super) fn new(limit_bytes: usize) -> Budget {
        Budget {
            shared: Arc::default(),
            limit_bytes,
        }
    }

    /// Blocks while the limit is reached, then takes `bytes`, which may exceed it.
    pub(super) fn take(&self, bytes: usize) {
        let (used, freed) = &*self.shared;
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        while *used >= self.limit_bytes {
            used = freed.wait(used).unwrap_or_else(PoisonError::into_inner);
        }
        *used += bytes;
    }

    /// Returns bytes that were taken.
    pub(super) fn give(&self, bytes: usize) {
        let (used, freed) = &*self.shared;
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        *used = used.saturating_sub(bytes);
        freed.notify_all();
    }
}

//! A bound on bytes under way between two threads or processes.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// How many bytes may be under way; whoever takes more waits until some are given back.
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

    /// Waits until something is free, then takes `bytes` even if they go beyond it.
    pub(super) fn take(&self, bytes: usize) {
        let (used, freed) = &*self.shared;
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        while *used >= self.limit_bytes {
            used = freed.wait(used).unwrap_or_else(PoisonError::into_inner);
        }
        *used += bytes;
    }

    /// Gives back what was taken.
    pub(super) fn give(&self, bytes: usize) {
        let (used, freed) = &*self.shared;
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        *used = used.saturating_sub(bytes);
        freed.notify_all();
    }
}

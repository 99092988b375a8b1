//! Ownership of an endpoint: its number in the registry and in the engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::address::EndpointId;
use crate::process::ProcessState;
use crate::registry::Claim;
use dipole_driver::Driver;

/// Shared by the endpoint's handle and the control thread, which closes the endpoint when the
/// last copy of its descriptor is closed.
#[derive(Debug)]
pub(crate) struct EndpointOwner {
    pub(crate) id: EndpointId,
    claim: Mutex<Option<Claim>>,
    ended: AtomicBool,
    driver: Arc<Driver<ProcessState>>,
}

impl EndpointOwner {
    pub(crate) fn new(claim: Claim, driver: &Arc<Driver<ProcessState>>) -> EndpointOwner {
        EndpointOwner {
            id: claim.endpoint(),
            claim: Mutex::new(Some(claim)),
            ended: AtomicBool::new(false),
            driver: Arc::clone(driver),
        }
    }

    #[inline]
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Closes the endpoint once: queued messages are sent, unread ones are dropped, and the number
    /// becomes free. Concurrent callers return when that is done.
    pub(crate) fn end(&self) {
        let mut claim = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let id = self.id.0;
        self.driver.with(|state, now| {
            let (engine, edges, queues) = state.parts();
            edges.close_endpoint(engine, queues, id);
            queues.detach_endpoint(engine, id);
            state.close_receives(id);
            let (engine, _, _) = state.parts();
            engine.close_endpoint(id);
            if let Err(cause) = engine.transmit(now) {
                tracing::warn!("closing endpoint {id}: {cause}");
            }
        });
        *claim = None;
    }
}

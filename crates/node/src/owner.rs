//! Ownership of an endpoint: its number in the registry and in the engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::address::EndpointId;
use crate::process::ProcessState;
use crate::registry::Claim;
use dipole_driver::{Driver, Timeout};

/// Shared by the endpoint's handle and the control thread, which closes the endpoint when the
/// last copy of its descriptor is closed.
#[derive(Debug)]
pub(crate) struct EndpointOwner {
    pub(crate) id: EndpointId,
    claim: Mutex<Option<Claim>>,
    ended: AtomicBool,
    driver: Arc<Driver<ProcessState>>,
    /// How long closing waits for targets without room.
    linger: Duration,
}

impl EndpointOwner {
    pub(crate) fn new(
        claim: Claim,
        driver: &Arc<Driver<ProcessState>>,
        linger: Duration,
    ) -> EndpointOwner {
        EndpointOwner {
            id: claim.endpoint(),
            claim: Mutex::new(Some(claim)),
            ended: AtomicBool::new(false),
            driver: Arc::clone(driver),
            linger,
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
        self.send_queued();
        self.driver.with(|state, now| {
            state.targets.close_endpoint(id);
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

    /// Waits until no message waits for room at a target.
    fn send_queued(&self) {
        let id = self.id.0;
        let queued = self.driver.with_last(|state, _| state.queued_edges(id));
        if queued.is_empty() {
            return;
        }
        let keys: Vec<_> = queued.iter().map(|(edge, _)| edge.key()).collect();
        let what = |_: &ProcessState| format!("the targets of endpoint {id} to take messages");
        let until = Timeout::After(self.linger);
        let sent = self.driver.wait(until, &keys, &what, |state, _| {
            state.queued_edges(id).is_empty().then_some(())
        });
        if sent.is_err() {
            let queued = self.driver.with_last(|state, _| state.queued_edges(id));
            for (_, target) in queued {
                tracing::warn!("endpoint {id} closes with messages that {target} did not take");
            }
        }
    }
}

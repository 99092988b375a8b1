//! The thread that steps the engine for those who wait in `poll` or compute.
//!
//! It starts with the first exported descriptor: until then somebody who waits for a
//! message waits in this crate and steps the engine himself.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use rustc_hash::FxHashMap;

use crate::address::EndpointId;
use crate::drive::Driver;
use crate::registry::Claim;

/// What makes an endpoint ours, shared by its handle and the progress thread.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) id: EndpointId,
    claim: Mutex<Option<Claim>>,
    ended: AtomicBool,
    driver: Arc<Driver>,
}

impl Seat {
    pub(crate) fn new(claim: Claim, driver: &Arc<Driver>) -> Seat {
        Seat {
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

    /// Ends the endpoint, once: what was queued leaves, what waits is dropped, the
    /// number is free again.
    pub(crate) fn end(&self) {
        if self.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        let id = self.id.0;
        self.driver.with(|engine, now| {
            let targets = engine.targets(id).cloned();
            for target in targets.iter().flat_map(|targets| targets.iter()) {
                engine.flush_way(target.way);
            }
            engine.close_endpoint(id);
            engine.ring_due();
            if let Err(cause) = engine.transmit(now) {
                tracing::warn!("closing endpoint {id}: {cause}");
            }
        });
        let claim = self
            .claim
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(claim);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    thread: Mutex<Option<JoinHandle<()>>>,
    seats: Arc<Mutex<FxHashMap<u32, Weak<Seat>>>>,
}

impl Progress {
    /// Ends `seat` when the last copy of its descriptor is closed.
    pub(crate) fn tend(&self, seat: &Arc<Seat>) -> std::io::Result<()> {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        seats.insert(seat.id.0, Arc::downgrade(seat));
        drop(seats);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_some() {
            return Ok(());
        }
        let driver = Arc::clone(&seat.driver);
        let seats = Arc::clone(&self.seats);
        let served = std::thread::Builder::new()
            .name("dipole-progress".into())
            .spawn(move || {
                let ended = driver.serve(|closed| {
                    for endpoint in closed {
                        let mut seats = seats.lock().unwrap_or_else(PoisonError::into_inner);
                        let seat = seats.remove(endpoint).and_then(|seat| seat.upgrade());
                        drop(seats);
                        if let Some(seat) = seat {
                            seat.end();
                        }
                    }
                });
                if let Err(error) = ended {
                    tracing::error!("descriptors are not served any more: {error:?}");
                }
            })?;
        *thread = Some(served);
        Ok(())
    }

    /// Ends the thread and waits for its end.
    pub(crate) fn stop(&self, driver: &Driver) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            driver.stop();
            if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
                tracing::error!("the progress thread panicked");
            }
        }
    }
}

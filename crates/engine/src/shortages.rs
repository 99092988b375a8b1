//! Shortages that a fault plan injects.
//!
//! Credit is short for one attempt to send (`RecordedMachine`), room in a ring for one record
//! (`FaultyHub`), and frames until the next step. No peer will report that credit or frames are
//! available again, so the next step notifies the threads that wait for them, and it is due at once.

use dipole_driver::WaitKey;
use dipole_link::AnyHub;
use dipole_link::fault::{FaultyHub, Plan, Shortage};
use dipole_link::shm::Hub;
use dipole_proto::Instant;

use super::Engine;

/// The resources of an engine that are short at times.
#[derive(Debug)]
pub(super) struct InjectedShortages {
    frames: Option<Shortage>,
    /// Passed on when shared memory is opened.
    rings: Option<Shortage>,
}

impl Engine {
    /// Makes credit, frames and rings short at times, as the plan says. Must be called before
    /// shared memory is opened.
    pub fn inject(&mut self, plan: &Plan) {
        let short = &plan.shortages;
        // Each resource has a sequence of its own.
        if let Some(credit) = Shortage::new(short.credit, plan.seed ^ 1) {
            self.core.machine.inject_credit_shortage(credit);
        }
        self.shortages = Some(Box::new(InjectedShortages {
            frames: Shortage::new(short.frames, plan.seed ^ 2),
            rings: Shortage::new(short.rings, plan.seed ^ 3),
        }));
    }

    /// True if a fault plan was given.
    pub fn is_injecting(&self) -> bool {
        self.shortages.is_some()
    }

    /// The number of shortages so far.
    pub fn injected_shortages(&self) -> u64 {
        let injected = self.shortages.as_ref();
        let frames = injected.and_then(|injected| injected.frames.as_ref());
        let rings = self.memory.as_ref().map_or(0, |memory| memory.refused());
        self.core.machine.refused() + frames.map_or(0, Shortage::count) + rings
    }

    /// The shortage of room in the rings of shared memory, which is opened next.
    pub(super) fn take_ring_shortage(&mut self) -> Option<Shortage> {
        self.shortages.as_mut()?.rings.take()
    }

    /// Ends the shortages of credit and frames, and may begin one of frames.
    #[cold]
    pub(super) fn renew_shortages(&mut self) {
        for edge in self.core.machine.take_refused() {
            self.core.ready.notify(WaitKey::Edge(edge));
        }
        let frames = &mut self.core.packer.frames;
        if frames.restore() {
            self.core.ready.notify(WaitKey::Frame);
        }
        let injected = self.shortages.as_mut();
        if let Some(shortage) = injected.and_then(|injected| injected.frames.as_mut())
            && shortage.strikes()
        {
            frames.withhold();
        }
    }

    /// When an injected shortage has to end.
    pub(super) fn shortage_deadline(&self, now: Instant) -> Option<Instant> {
        let is_short = self.core.machine.has_refused() || self.core.packer.frames.is_withholding();
        is_short.then_some(now)
    }
}

/// A hub whose rings may seem full.
pub(super) fn hub_with(shortage: Option<Shortage>, hub: Hub) -> AnyHub {
    match shortage {
        Some(shortage) => FaultyHub::new(hub, shortage).into(),
        None => hub.into(),
    }
}

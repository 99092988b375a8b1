//! Exported descriptors of endpoints: readable while a message is waiting, writable while sending
//! may succeed.
//!
//! Readiness is updated at the end of a step, so that a message taken at once by a waiting thread
//! costs no system call. When the last copy of a descriptor is closed, its endpoint closes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dipole_driver::{Keys, Ready, WaitKey};
use dipole_link::signal::Signal;
use dipole_link::watch::Watch;
use rustc_hash::FxHashMap;

use super::Engine;
use super::endpoints::Notifies;
use crate::address::EndpointId;
use crate::command::Command;

/// Descriptors exported to the program, by endpoint.
#[derive(Debug)]
pub(super) struct Exports {
    /// Reports descriptors that the program has closed.
    watch: Watch,
    signals: FxHashMap<u32, Signal>,
    /// Endpoints whose last send was blocked, and the keys that let them try again.
    blocked: Vec<(u32, Keys)>,
}

impl Exports {
    fn is_blocked(&self, endpoint: u32) -> bool {
        self.blocked.iter().any(|(blocked, _)| *blocked == endpoint)
    }

    /// Makes the descriptor of one blocked endpoint writable, or of all whose keys are ready.
    fn release(&mut self, ready: &mut Ready, only: Option<u32>) {
        let released = self.blocked.extract_if(.., |(endpoint, keys)| match only {
            Some(only) => *endpoint == only,
            None => keys.are_in(ready),
        });
        for (endpoint, _) in released {
            if let Some(signal) = self.signals.get_mut(&endpoint)
                && let Err(cause) = signal.set_writable(true)
            {
                tracing::warn!("cannot make endpoint {endpoint}'s descriptor writable: {cause}");
            }
        }
        if self.blocked.is_empty() {
            ready.set_exporting(false);
        }
    }
}

impl Engine {
    /// Allows endpoints to be exported as file descriptors.
    pub fn allow_exports(&mut self) -> io::Result<()> {
        self.exports = Some(Exports {
            watch: Watch::new()?,
            signals: FxHashMap::default(),
            blocked: Vec::new(),
        });
        Ok(())
    }

    /// True if an endpoint has a descriptor.
    #[must_use]
    pub fn has_exports(&self) -> bool {
        let exports = self.exports.as_ref();
        exports.is_some_and(|exports| !exports.signals.is_empty())
    }

    pub(super) fn exports_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.exports.as_ref().map(|exports| exports.watch.as_fd())
    }

    /// Exports the descriptor of an endpoint; its user closes it.
    pub fn export(&mut self, endpoint: u32) -> io::Result<OwnedFd> {
        let waits = self.has_message(endpoint);
        let Some(exports) = &mut self.exports else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let (mut signal, user) = Signal::pair()?;
        exports.watch.add(signal.as_fd(), endpoint.into())?;
        if waits {
            signal.set_readable()?;
        }
        exports.signals.insert(endpoint, signal);
        if let Some(state) = self.core.dispatch.endpoints.get_mut(endpoint) {
            state.notifies = Notifies::Descriptor;
        }
        Ok(user)
    }

    /// Removes the descriptor of an endpoint that was closed.
    pub(super) fn forget_export(&mut self, endpoint: u32) {
        self.allow_send(endpoint);
        if let Some(exports) = &mut self.exports
            && let Some(signal) = exports.signals.remove(&endpoint)
            && let Err(cause) = exports.watch.remove(signal.as_fd())
        {
            tracing::warn!("cannot stop watching the descriptor of endpoint {endpoint}: {cause}");
        }
    }

    /// Clears a descriptor's readiness after the last message was taken.
    #[inline]
    pub(crate) fn unsignal(&mut self, endpoint: u32) {
        let empty = self
            .core
            .dispatch
            .endpoints
            .get(endpoint)
            .is_some_and(|state| state.notifies == Notifies::Descriptor && state.inbox.is_empty());
        if empty
            && let Some(exports) = &mut self.exports
            && let Some(signal) = exports.signals.get_mut(&endpoint)
            && let Err(cause) = signal.clear_readable(None)
        {
            tracing::warn!("cannot clear the descriptor of endpoint {endpoint}: {cause}");
        }
    }

    /// Called when a send found no room: from now on, each of `keys` makes the endpoint writable.
    pub fn record_refused_send(&mut self, endpoint: u32, keys: &[WaitKey]) {
        let Some(exports) = &mut self.exports else {
            return;
        };
        if !exports.signals.contains_key(&endpoint) {
            return;
        }
        let keys = Keys::of(keys);
        let known = (exports.blocked.iter_mut()).find(|(blocked, _)| *blocked == endpoint);
        match known {
            Some((_, known)) if *known == keys => {}
            // It sends to several targets.
            Some((_, known)) => *known = Keys::Any,
            None => exports.blocked.push((endpoint, keys)),
        }
        self.core.ready.set_exporting(true);
    }

    /// Makes the descriptor writable, because other targets may have room.
    pub(super) fn allow_send(&mut self, endpoint: u32) {
        if let Some(exports) = &mut self.exports {
            exports.release(&mut self.core.ready, Some(endpoint));
        }
    }

    /// Makes the descriptor unwritable until sending may succeed. If room may have become free since
    /// [`record_refused_send`](Self::record_refused_send), it stays writable, with an edge for callers
    /// that wait for one after the call that failed.
    pub fn set_send_blocked(&mut self, endpoint: u32) {
        let exports = self.exports.as_ref();
        let is_blocked = exports.is_some_and(|exports| exports.is_blocked(endpoint));
        if let Some(exports) = &mut self.exports
            && let Some(signal) = exports.signals.get_mut(&endpoint)
            && let Err(cause) = match is_blocked {
                true => signal.set_writable(false),
                false => signal.announce_writable(),
            }
        {
            tracing::warn!("cannot update the descriptor of endpoint {endpoint}: {cause}");
        }
    }

    /// Updates descriptors at the end of a step.
    #[inline]
    pub(crate) fn signal(&mut self) {
        let blocked = self
            .exports
            .as_ref()
            .is_some_and(|exports| !exports.blocked.is_empty());
        if blocked || !self.core.dispatch.newly_ready.is_empty() {
            self.signal_now();
        }
    }

    fn signal_now(&mut self) {
        let Some(exports) = &mut self.exports else {
            return;
        };
        let dispatch = &mut self.core.dispatch;
        for endpoint in dispatch.newly_ready.drain(..) {
            let waits = dispatch.endpoints.get_mut(endpoint).is_some_and(|state| {
                state.listed = false;
                !state.inbox.is_empty()
            });
            if waits
                && let Some(signal) = exports.signals.get_mut(&endpoint)
                && let Err(cause) = signal.set_readable()
            {
                tracing::warn!("cannot make endpoint {endpoint}'s descriptor readable: {cause}");
            }
        }
        exports.release(&mut self.core.ready, None);
    }

    /// Finds descriptors that were closed.
    pub(super) fn poll_exports(&mut self) -> io::Result<()> {
        let Some(exports) = &mut self.exports else {
            return Ok(());
        };
        if exports.signals.is_empty() {
            return Ok(());
        }
        let (watch, signals) = (&exports.watch, &exports.signals);
        let mut closed = Vec::new();
        watch.poll(|token| {
            if let Ok(endpoint) = u32::try_from(token)
                && signals.get(&endpoint).is_some_and(Signal::is_closed)
            {
                closed.push(endpoint);
            }
        })?;
        for endpoint in closed {
            self.forget_export(endpoint);
            self.command(Command::EndEndpoint(EndpointId(endpoint)));
        }
        Ok(())
    }
}

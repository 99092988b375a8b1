//! Descriptors of endpoints: ready while a message waits, or a message can be sent.
//!
//! Only endpoints whose descriptor was asked for are here. Readiness is set at the
//! end of a turn, so that a message that a waiting thread takes at once costs no
//! system call. The last `close` of a descriptor ends its endpoint.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use dipole_link::signal::Signal;
use dipole_link::watch::Watch;
use rustc_hash::FxHashMap;

use super::Engine;
use super::endpoints::Tells;
use crate::address::EndpointId;
use crate::command::Command;

/// See the module.
#[derive(Debug)]
pub(super) struct Exports {
    /// Tells which descriptors were closed.
    watch: Watch,
    signals: FxHashMap<u32, Signal>,
    /// Endpoints that could not send.
    blocked: Vec<u32>,
}

impl Engine {
    /// Makes endpoints' descriptors possible.
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

    /// The descriptor of an endpoint, which its user closes.
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
            state.tells = Tells::Descriptor;
        }
        Ok(user)
    }

    /// The endpoint has ended.
    pub(super) fn forget_export(&mut self, endpoint: u32) {
        if let Some(exports) = &mut self.exports
            && let Some(signal) = exports.signals.remove(&endpoint)
            && let Err(cause) = exports.watch.remove(signal.as_fd())
        {
            tracing::warn!("endpoint {endpoint}: its descriptor is still watched: {cause}");
        }
    }

    /// A message of the endpoint was taken; its descriptor tells when none is left.
    #[inline]
    pub(crate) fn unsignal(&mut self, endpoint: u32) {
        let empty = self
            .core
            .dispatch
            .endpoints
            .get(endpoint)
            .is_some_and(|state| state.tells == Tells::Descriptor && state.inbox.is_empty());
        if empty
            && let Some(exports) = &mut self.exports
            && let Some(signal) = exports.signals.get_mut(&endpoint)
            && let Err(cause) = signal.clear_readable(None)
        {
            tracing::warn!("endpoint {endpoint}: its descriptor stays readable: {cause}");
        }
    }

    /// An attempt to send found no room: from now on news are for this endpoint too.
    pub fn refused(&mut self, endpoint: u32) {
        if let Some(exports) = &mut self.exports
            && exports.signals.contains_key(&endpoint)
            && !exports.blocked.contains(&endpoint)
        {
            exports.blocked.push(endpoint);
        }
    }

    /// Sending would have waited: the descriptor tells when it is worth a new try, which
    /// it is already if news have come since the endpoint was [`refused`](Self::refused).
    pub fn note_blocked(&mut self, endpoint: u32) {
        if let Some(exports) = &mut self.exports
            && exports.blocked.contains(&endpoint)
            && let Some(signal) = exports.signals.get_mut(&endpoint)
            && let Err(cause) = signal.set_writable(false)
        {
            tracing::warn!("endpoint {endpoint}: its descriptor stays writable: {cause}");
        }
    }

    /// Brings descriptors up to date at the end of a turn in which something happened.
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
                tracing::warn!("endpoint {endpoint}: its descriptor is not readable: {cause}");
            }
        }
        for endpoint in exports.blocked.drain(..) {
            if let Some(signal) = exports.signals.get_mut(&endpoint)
                && let Err(cause) = signal.set_writable(true)
            {
                tracing::warn!("endpoint {endpoint}: its descriptor is not writable: {cause}");
            }
        }
    }

    /// Looks which descriptors were closed.
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

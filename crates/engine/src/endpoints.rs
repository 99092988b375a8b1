//! State of each endpoint of this process, by number.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::target::Target;
use crate::inbox::{Buffers, Inbox};

/// Index of a port in the process's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRef(pub u32);

/// Receiver of a notification for each message, in addition to waiting threads and tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notifies {
    /// No additional receiver.
    Waiters,
    /// The endpoint's exported descriptor.
    Descriptor,
    /// The handler of this port.
    Port(PortRef),
}

/// State of an open endpoint.
#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) endpoint: u32,
    pub(super) inbox: Inbox,
    /// The only target of the endpoint, if messages to it need not wait for earlier ones.
    pub(super) target: Option<Target>,
    /// Additional receiver of a notification for each message.
    pub(super) notifies: Notifies,
    /// It is in a list of endpoints with notifications to send.
    pub(super) listed: bool,
}

/// All endpoints. The last one used is found without a lookup, because programs tend to use the
/// same endpoint many times in a row.
#[derive(Debug, Default)]
pub(super) struct EndpointTable {
    states: Vec<EndpointState>,
    by_endpoint: FxHashMap<u32, u32>,
    last: usize,
}

impl EndpointTable {
    pub(super) fn open(&mut self, endpoint: u32, buffers: Arc<Buffers>) {
        self.close(endpoint);
        let index = u32::try_from(self.states.len()).expect("endpoints have 32-bit numbers");
        self.by_endpoint.insert(endpoint, index);
        self.states.push(EndpointState {
            endpoint,
            inbox: Inbox::new(buffers),
            target: None,
            notifies: Notifies::Waiters,
            listed: false,
        });
    }

    pub(super) fn close(&mut self, endpoint: u32) -> Option<EndpointState> {
        let index = self.by_endpoint.remove(&endpoint)? as usize;
        let state = self.states.swap_remove(index);
        if let Some(moved) = self.states.get(index) {
            let place = self.by_endpoint.get_mut(&moved.endpoint);
            *place.expect("every endpoint is in the table") =
                u32::try_from(index).expect("fewer endpoints than numbers");
        }
        if self.states.capacity() > 64 && self.states.len() < self.states.capacity() / 4 {
            // Free memory after a peak.
            self.states.shrink_to(self.states.len() * 2);
            self.by_endpoint.shrink_to(self.states.len() * 2);
        }
        Some(state)
    }

    #[inline]
    pub(super) fn get(&self, endpoint: u32) -> Option<&EndpointState> {
        match self.states.get(self.last) {
            Some(state) if state.endpoint == endpoint => Some(state),
            _ => self.states.get(*self.by_endpoint.get(&endpoint)? as usize),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, endpoint: u32) -> Option<&mut EndpointState> {
        let is_last = self
            .states
            .get(self.last)
            .is_some_and(|state| state.endpoint == endpoint);
        if !is_last {
            self.last = *self.by_endpoint.get(&endpoint)? as usize;
        }
        self.states.get_mut(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_found_until_it_is_closed_whatever_happens_to_others() {
        let mut endpoints = EndpointTable::default();
        for endpoint in 0..100 {
            endpoints.open(endpoint * 7, Arc::default());
        }
        for endpoint in (0..100).step_by(3) {
            assert!(endpoints.close(endpoint * 7).is_some());
        }
        for endpoint in 0..100 {
            let open = endpoint % 3 != 0;
            assert_eq!(endpoints.get(endpoint * 7).is_some(), open);
            let found = endpoints.get_mut(endpoint * 7).map(|state| state.endpoint);
            assert_eq!(found, open.then_some(endpoint * 7));
        }
        assert!(endpoints.close(0).is_none());
    }
}

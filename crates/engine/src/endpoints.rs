//! What the engine keeps of each endpoint of this process, found by its number.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::target::Target;
use crate::inbox::{Buffers, Inbox};

/// A port of the process, by its number in the process's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRef(pub u32);

/// Who is told, beside threads and tasks that wait, when a message comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tells {
    /// Nobody.
    Waiters,
    /// Who polls the endpoint's descriptor.
    Descriptor,
    /// This port's handler.
    Port(PortRef),
}

/// An open endpoint.
#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) endpoint: u32,
    pub(super) inbox: Inbox,
    /// Where it points.
    pub(super) targets: Option<Arc<[Target]>>,
    /// Who is told when a message comes.
    pub(super) tells: Tells,
    /// In the list of those whose messages are still to be told.
    pub(super) listed: bool,
}

impl EndpointState {
    /// Where it points.
    #[inline]
    pub(super) fn targets(&self) -> Option<&[Target]> {
        self.targets.as_deref()
    }
}

/// All endpoints. The one used last is found without a search, since most programs use one
/// many times before they use another.
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
            targets: None,
            tells: Tells::Waiters,
            listed: false,
        });
    }

    pub(super) fn close(&mut self, endpoint: u32) -> Option<EndpointState> {
        let index = self.by_endpoint.remove(&endpoint)? as usize;
        let state = self.states.swap_remove(index);
        if let Some(moved) = self.states.get(index) {
            let place = self.by_endpoint.get_mut(&moved.endpoint);
            *place.expect("every endpoint is in the table") =
                u32::try_from(index).expect("as many as numbers");
        }
        if self.states.capacity() > 64 && self.states.len() < self.states.capacity() / 4 {
            // The memory of a busier time is given back.
            self.states.shrink_to(self.states.len() * 2);
            self.by_endpoint.shrink_to(self.states.len() * 2);
        }
        Some(state)
    }

    /// Endpoints that point somewhere, and where.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &[Target])> {
        self.states
            .iter()
            .filter_map(|state| Some((state.endpoint, state.targets.as_deref()?)))
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
    fn an_endpoint_is_found_until_it_is_closed_whatever_others_do() {
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

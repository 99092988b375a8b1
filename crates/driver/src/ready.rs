//! Keys that threads and tasks wait for, and the list of keys that became ready.
//!
//! The engine calls [`Ready::notify`] for each key. At the end of each call the driver takes
//! the list and wakes only the waiters for those keys. Nothing is listed while there are no
//! waiters, so an event costs a lone spinning thread a single store.

use arrayvec::ArrayVec;
use dipole_proto::{EdgeId, PeerId};

/// Keys listed between two wake-ups. If there are more, all waiters are woken.
const MAX_LISTED: usize = 64;
/// Keys that are kept for one waiter, so that a wait does not allocate.
const MAX_KEYS: usize = 4;

/// The keys of one waiter; any of them wakes it.
#[derive(Debug, PartialEq, Eq)]
pub enum Keys {
    /// Only these keys.
    Few(ArrayVec<WaitKey, MAX_KEYS>),
    /// More than are kept, as for a message to many targets: every key.
    Any,
}

impl Keys {
    /// These keys, or any if they are many.
    #[must_use]
    pub fn of(keys: &[WaitKey]) -> Keys {
        ArrayVec::try_from(keys).map_or(Keys::Any, Keys::Few)
    }

    /// True if one of the keys became ready.
    #[must_use]
    pub fn are_in(&self, ready: &Ready) -> bool {
        match self {
            Keys::Few(keys) => ready.concerns(keys),
            Keys::Any => ready.overflowed || ready.has_keys(),
        }
    }
}

/// An event that a thread or a task can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitKey {
    /// An endpoint of this process received a message or was closed.
    Endpoint(u32),
    /// An edge got credit, or its receiver refused or closed it.
    Edge(EdgeId),
    /// A session opened, made progress with a long message, or ended.
    Peer(PeerId),
    /// Any session opened, finished a long message, or ended.
    AnyPeer,
    /// A packet was acknowledged or a frame became free.
    Frame,
    /// There may be room in a ring of shared memory.
    RingSpace,
    /// An edge of the public API opened, failed, or has no more posted operations.
    Connecting(u64),
    /// A memory operation was answered.
    Operation(u32),
    /// A completion queue has an entry.
    Queue(u32),
    /// A port handler returned.
    Port(u32),
}

/// Keys that became ready since the last wake-up.
#[derive(Debug, Default)]
pub struct Ready {
    changed: bool,
    /// Keys are being listed: there are waiters, or the engine reads the list itself.
    listing: bool,
    registered: bool,
    watched: bool,
    exporting: bool,
    overflowed: bool,
    keys: ArrayVec<WaitKey, MAX_LISTED>,
}

impl Ready {
    /// Marks a key as ready.
    #[inline]
    pub fn notify(&mut self, key: WaitKey) {
        self.changed = true;
        if self.listing {
            self.record(key);
        }
    }

    #[cold]
    fn record(&mut self, key: WaitKey) {
        if !self.keys.contains(&key) && self.keys.try_push(key).is_err() {
            self.overflowed = true;
        }
    }

    /// Lists keys while there are waiters.
    #[inline]
    pub fn set_recording(&mut self, recording: bool) {
        self.registered = recording;
        self.update();
    }

    /// Lists keys even without waiters, because the engine reads the list itself.
    #[inline]
    pub fn set_watched(&mut self, watched: bool) {
        self.watched = watched;
        self.update();
    }

    /// Lists keys while exported descriptors wait for some.
    #[inline]
    pub fn set_exporting(&mut self, exporting: bool) {
        self.exporting = exporting;
        self.update();
    }

    #[inline]
    fn update(&mut self) {
        self.listing = self.registered || self.watched || self.exporting;
        if !self.listing {
            self.clear();
        }
    }

    /// True once after a notification.
    #[inline]
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// True if any key is listed.
    #[inline]
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// True if any of `keys` became ready since the list was cleared.
    #[inline]
    pub fn concerns(&self, keys: &[WaitKey]) -> bool {
        self.overflowed || self.keys.iter().any(|key| keys.contains(key))
    }

    /// Keys that became ready since the list was cleared; `None` if the list overflowed.
    #[inline]
    pub fn keys(&self) -> Option<&[WaitKey]> {
        (!self.overflowed).then_some(&self.keys)
    }

    /// Clears the list after the waiters have been woken.
    #[inline]
    pub fn clear(&mut self) {
        self.keys.clear();
        self.overflowed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_listed_without_waiters() {
        let mut ready = Ready::default();
        ready.notify(WaitKey::Endpoint(1));
        assert!(ready.take_changed());
        assert!(!ready.take_changed());
        assert!(!ready.has_keys());
    }

    #[test]
    fn a_key_is_listed_once() {
        let mut ready = Ready::default();
        ready.set_recording(true);
        for _ in 0..1000 {
            ready.notify(WaitKey::Endpoint(1));
            ready.notify(WaitKey::Frame);
        }
        let keys = [WaitKey::Endpoint(1), WaitKey::Frame];
        assert_eq!(ready.keys(), Some(&keys[..]));
        assert!(ready.concerns(&[WaitKey::RingSpace, WaitKey::Frame]));
        assert!(!ready.concerns(&[WaitKey::RingSpace]));
        ready.clear();
        assert!(!ready.has_keys());
    }

    #[test]
    fn more_keys_than_are_kept_match_every_key() {
        let mut ready = Ready::default();
        ready.set_recording(true);
        let edges: Vec<WaitKey> = (0..9).map(WaitKey::Connecting).collect();
        let (few, many) = (Keys::of(&edges[..MAX_KEYS]), Keys::of(&edges));
        assert!(!few.are_in(&ready) && !many.are_in(&ready));
        ready.notify(WaitKey::Connecting(8));
        assert!(!few.are_in(&ready) && many.are_in(&ready));
        ready.notify(WaitKey::Connecting(0));
        assert!(few.are_in(&ready) && many.are_in(&ready));
    }

    #[test]
    fn an_overflowed_list_matches_every_key() {
        let mut ready = Ready::default();
        ready.set_recording(true);
        for endpoint in 0..=MAX_LISTED {
            ready.notify(WaitKey::Endpoint(u32::try_from(endpoint).unwrap()));
        }
        assert_eq!(ready.keys(), None);
        assert!(ready.concerns(&[WaitKey::RingSpace]));
        ready.clear();
        assert!(!ready.concerns(&[WaitKey::RingSpace]));
    }
}

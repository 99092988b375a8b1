//! What can be waited for, and the list of what has become ready.
//!
//! The stepped thing calls [`Ready::notify`] for each key; the driver takes the list at
//! the end of each call and wakes only the waiters of those keys. Nothing is listed
//! while nobody is registered, so a thread that spins alone pays one store per event.

use arrayvec::ArrayVec;
use dipole_proto::{EdgeId, PeerId};

/// Keys listed between two wake-ups; beyond that everybody is woken.
const MAX_LISTED: usize = 64;
/// Keys that one waiter can wait for.
const MAX_KEYS: usize = 4;

/// The keys of one waiter: it is woken when any of them becomes ready.
pub(crate) type Keys = ArrayVec<WaitKey, MAX_KEYS>;

/// Something that a thread or a task can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitKey {
    /// An endpoint of this process has a message, or was closed.
    Endpoint(u32),
    /// An edge got credit, or was refused or ended by its receiver.
    Edge(EdgeId),
    /// A session was opened, goes on with a long message, or is gone.
    Peer(PeerId),
    /// Any of them was opened, finished a long message, or is gone.
    AnyPeer,
    /// A packet was acknowledged, or its frame is free again.
    Frame,
    /// There may be room in a ring of shared memory.
    RingSpace,
    /// An edge of the public API was opened, has failed, or has nothing waiting.
    Connecting(u64),
    /// An operation on another's memory has its answer.
    Operation(u32),
    /// A completion queue has an entry.
    Queue(u32),
    /// The handler of a port has returned.
    Port(u32),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ready {
    changed: bool,
    /// Keys are listed: somebody is registered, or the stepped thing wants them.
    listing: bool,
    registered: bool,
    watched: bool,
    overflowed: bool,
    keys: ArrayVec<WaitKey, MAX_LISTED>,
}

impl Ready {
    /// Waiters of this key are to look again.
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

    /// Keys are listed only while somebody is registered.
    #[inline]
    pub fn set_recording(&mut self, recording: bool) {
        self.registered = recording;
        self.update();
    }

    /// Keys are listed also while nobody is registered: the stepped thing reads them itself.
    #[inline]
    pub fn set_watched(&mut self, watched: bool) {
        self.watched = watched;
        self.update();
    }

    #[inline]
    fn update(&mut self) {
        self.listing = self.registered || self.watched;
        if !self.listing {
            self.clear();
        }
    }

    /// True once after a notification.
    #[inline]
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// True if keys are listed.
    #[inline]
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// True if one of these became ready since the list was last cleared.
    #[inline]
    pub fn concerns(&self, keys: &[WaitKey]) -> bool {
        self.overflowed || self.keys.iter().any(|key| keys.contains(key))
    }

    /// What became ready since the list was last cleared; `None` if more than is listed.
    #[inline]
    pub fn keys(&self) -> Option<&[WaitKey]> {
        (!self.overflowed).then_some(&self.keys)
    }

    /// Everybody concerned has been woken.
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
    fn nothing_is_listed_while_nobody_waits() {
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
    fn more_keys_than_are_listed_stand_for_all() {
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

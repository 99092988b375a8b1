//! Memory for received messages, one pool for all peers. Spec §5.4.

use serde::{Deserialize, Serialize};

/// Answer to an arrival's request for room in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The pool has enough room.
    Granted,
    /// There is room only for the next unit in sequence, and this is another one.
    LowOnRoom,
    /// The pool is full until the application consumes messages.
    Exhausted,
}

/// Bytes of messages held for the application.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Pool {
    capacity: u64,
    reserve: u64,
    used: u64,
}

impl Pool {
    pub(crate) fn new(capacity: u64, reserve: u64) -> Pool {
        Pool {
            capacity,
            reserve,
            used: 0,
        }
    }

    /// Checks whether an arrival may take `bytes`. The reserve is for the next unit in sequence (thesis
    /// §5.3, second rule), because what that completes can be consumed.
    pub(crate) fn admit(&self, bytes: u64, next_in_sequence: bool) -> Admission {
        let free = self.capacity.saturating_sub(self.used);
        if bytes == 0 || bytes.saturating_add(self.reserve) <= free {
            Admission::Granted
        } else if !next_in_sequence {
            Admission::LowOnRoom
        } else if bytes <= free {
            Admission::Granted
        } else {
            Admission::Exhausted
        }
    }

    pub(crate) fn take(&mut self, bytes: u64) {
        self.used += bytes;
    }

    pub(crate) fn give_back(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Returns the number of bytes in use.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    /// Bytes outside the reserve.
    pub(crate) fn budget(&self) -> u64 {
        self.capacity - self.reserve.min(self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_kept_for_the_next_unit_in_sequence() {
        let mut pool = Pool::new(100, 30);
        assert_eq!(pool.admit(70, false), Admission::Granted);
        pool.take(70);
        assert_eq!(pool.admit(1, false), Admission::LowOnRoom);
        assert_eq!(pool.admit(30, true), Admission::Granted);
        pool.take(30);
        assert_eq!(pool.admit(1, true), Admission::Exhausted);
        pool.give_back(100);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn without_a_reserve_any_order_is_accepted() {
        let pool = Pool::new(10, 0);
        assert_eq!(pool.admit(10, false), Admission::Granted);
    }
}

//! The deadlines of all sessions.
//!
//! A binary heap with lazy deletion: moving a deadline to a later time costs nothing until its old
//! entry is due, and an earlier one is entered again. Thousands of idle sessions therefore cost nothing
//! per packet.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;
use serde::{Deserialize, Serialize};

use crate::time::Instant;

/// Deadlines by index of the session.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Timers {
    #[serde(serialize_with = "in_order")]
    entries: BinaryHeap<Reverse<(Instant, u32)>>,
    /// The valid entry of each session; `NEVER` if it has none.
    armed: alloc::vec::Vec<Instant>,
}

impl Timers {
    /// Sets the deadline of a session.
    #[inline]
    pub(crate) fn arm(&mut self, index: u32, deadline: Instant) {
        let at = index as usize;
        if self.armed.len() <= at {
            self.armed.resize(at + 1, Instant::NEVER);
        }
        if deadline < self.armed[at] {
            self.armed[at] = deadline;
            self.entries.push(Reverse((deadline, index)));
        }
    }

    /// Removes the deadline of a session.
    pub(crate) fn disarm(&mut self, index: u32) {
        if let Some(armed) = self.armed.get_mut(index as usize) {
            *armed = Instant::NEVER;
        }
    }

    /// Takes the first entry at or before `until`. The session must be armed again with its actual
    /// deadline, which may be later.
    pub(crate) fn pop(&mut self, until: Instant) -> Option<u32> {
        while let Some(Reverse((at, index))) = self.entries.peek().copied() {
            let valid = self.armed[index as usize] == at;
            if valid && at > until {
                return None;
            }
            self.entries.pop();
            if valid {
                self.armed[index as usize] = Instant::NEVER;
                return Some(index);
            }
        }
        None
    }

    /// No deadline is earlier than this.
    pub(crate) fn earliest(&self) -> Instant {
        self.entries
            .peek()
            .map_or(Instant::NEVER, |Reverse((at, _))| *at)
    }
}

/// Serializes the entries in order, because their order in memory depends on the past.
fn in_order<S: serde::Serializer>(
    entries: &BinaryHeap<Reverse<(Instant, u32)>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    entries.clone().into_sorted_vec().serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_fire_in_order_and_moved_ones_once() {
        let mut timers = Timers::default();
        timers.arm(1, Instant(10));
        timers.arm(2, Instant(5));
        timers.arm(1, Instant(3));
        timers.arm(1, Instant(20));
        assert_eq!(timers.earliest(), Instant(3));
        assert_eq!(timers.pop(Instant(4)), Some(1));
        assert_eq!(timers.pop(Instant(4)), None);
        assert_eq!(timers.pop(Instant(100)), Some(2));
        assert_eq!(timers.pop(Instant(100)), None);
    }

    #[test]
    fn a_disarmed_session_is_never_due() {
        let mut timers = Timers::default();
        timers.arm(0, Instant(1));
        timers.disarm(0);
        assert_eq!(timers.pop(Instant(9)), None);
    }
}

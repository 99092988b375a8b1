//! Units whose messages the peer has acknowledged and not refused. Spec §5.5.

use super::{SendWindow, State};

impl SendWindow {
    /// The peer has acknowledged all units below; `is_refusing` if refusals are on their way. Returns
    /// true after the last of them.
    pub(crate) fn settle(&mut self, below: u64, is_refusing: bool) -> bool {
        if !is_refusing {
            self.settled = self.settled.max(below);
        }
        core::mem::replace(&mut self.is_disputed, is_refusing) && !is_refusing
    }

    /// All units below have been acknowledged, and their refusals have arrived.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// True if the peer has refusals on their way.
    pub(crate) fn is_disputed(&self) -> bool {
        self.is_disputed
    }

    /// True unless the peer may have refused messages that it has acknowledged.
    pub(crate) fn is_settled(&self) -> bool {
        let mut units = self.units.iter();
        self.settled >= self.base && units.all(|unit| unit.progress.state != State::Arrived)
    }
}

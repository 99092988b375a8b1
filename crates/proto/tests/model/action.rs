//! The steps that a world can take, and which of them must happen eventually.

use std::fmt;

/// A step of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Action {
    /// A packet in flight arrives.
    Deliver(u8),
    /// The network drops it.
    Drop(u8),
    /// It arrives, and a copy stays in flight.
    Duplicate(u8),
    /// A host waits for its next timer.
    Tick(u8),
    /// A thread of a host's application tries its next call.
    Call(u8, u8),
    /// A host copies a long message from the other's memory.
    Fetch(u8),
    /// Copying a long message fails.
    FetchRefused(u8),
    /// A host's process dies and another one starts in its place.
    Restart(u8),
    /// The link of a host refuses long packets from now on.
    Narrow(u8),
    /// The state before the first step.
    #[default]
    Begin,
}

impl Action {
    /// True for steps that count only if they change something.
    pub fn is_attempt(self) -> bool {
        matches!(self, Action::Call(..))
    }

    /// True for steps that must happen eventually, if nothing else changes.
    pub fn is_due(self) -> bool {
        self.fair_class().is_some() || matches!(self, Action::Deliver(_))
    }

    /// The fairness class: a member that is always possible happens eventually. Deliveries are fair
    /// for each single packet. Losses, duplicates and restarts need not happen.
    pub fn fair_class(self) -> Option<usize> {
        match self {
            Action::Tick(host) | Action::Fetch(host) => Some(usize::from(host)),
            Action::Call(host, thread) => Some(2 + 4 * usize::from(host) + usize::from(thread)),
            _ => None,
        }
    }
}

/// The first classes are the hosts' timers.
pub const TIMER_CLASSES: usize = 2;
/// Number of fairness classes.
pub const FAIR_CLASSES: usize = 10;

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Deliver(_) => f.write_str("arrives"),
            Action::Drop(_) => f.write_str("is lost"),
            Action::Duplicate(_) => f.write_str("arrives and stays in flight"),
            Action::Tick(_) => f.write_str("timers"),
            Action::Call(..) => f.write_str("application"),
            Action::Fetch(_) => f.write_str("copies a long message"),
            Action::FetchRefused(_) => f.write_str("may not copy a long message"),
            Action::Restart(_) => f.write_str("restarts"),
            Action::Narrow(_) => f.write_str("accepts short packets only"),
            Action::Begin => f.write_str("begins"),
        }
    }
}

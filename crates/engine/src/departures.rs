//! Peers that are gone, for programs that ask for them.

use std::collections::VecDeque;

use dipole_proto::PeerId;

use crate::gone::GoneReason;

/// Limit of remembered departures, because a program may never ask for them.
pub const MAX_DEPARTURES: usize = 4096;

/// A peer that is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Id of the peer.
    pub peer: PeerId,
    /// The node that the peer reported.
    pub node: u32,
    /// Incarnation of the peer.
    pub incarnation: u64,
    /// Reason for its departure.
    pub reason: GoneReason,
}

/// The latest departures, oldest first.
#[derive(Debug, Default)]
pub(super) struct Departures {
    latest: VecDeque<Departure>,
}

impl Departures {
    pub(super) fn push(&mut self, departure: Departure) {
        if self.latest.len() == MAX_DEPARTURES {
            self.latest.pop_front();
        }
        self.latest.push_back(departure);
    }

    pub(super) fn take(&mut self) -> Vec<Departure> {
        std::mem::take(&mut self.latest).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_proto::Machine;

    #[test]
    fn the_latest_departures_are_kept_in_order_and_returned_once() {
        let mut machine = Machine::new(dipole_proto::Config::default(), 1, [2, 3], &[]);
        let peer = machine.open_pipe(machine.greeting()).expect("room");
        let departure = |incarnation| Departure {
            peer,
            node: 1,
            incarnation,
            reason: GoneReason::Died,
        };
        let count = MAX_DEPARTURES as u64;
        let mut departures = Departures::default();
        for incarnation in 0..count + 10 {
            departures.push(departure(incarnation));
        }
        let expected: Vec<Departure> = (10..count + 10).map(departure).collect();
        assert_eq!(departures.take(), expected);
        assert!(departures.take().is_empty());
    }
}

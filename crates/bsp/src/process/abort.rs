//! Ending the program after an error. One rank reports the error.

use std::thread;
use std::time::Duration;

use super::Process;
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::local::AbortCause;
use crate::misuse::Misuse;
use crate::superstep::message::{Head, Kind};
use crate::trace::State;

/// Several ranks may fail before they know of each other. Each polls this often, for this long,
/// for a failure of a lower rank.
const POLLS: u32 = 10;
const POLL: Duration = Duration::from_millis(4);
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

impl<C: Carrier> Process<C> {
    /// Ends the program because of an error of this rank; the other ranks end at their next
    /// `sync`. Returns true if this rank should report its error: no other rank had ended the
    /// program before, and no lower rank failed at the same time.
    pub fn abort(&mut self) -> bool {
        self.trace_abort();
        let has_ended =
            (self.shared.as_ref()).is_some_and(|shared| shared.ranks().check_abort().is_err());
        if has_ended || self.receive_abort(Duration::ZERO).is_some() {
            self.announce_abort(AbortCause::OtherRank);
            return false;
        }
        self.announce_abort(AbortCause::OwnError);
        let mut is_lowest = true;
        let mut polls = 0;
        while polls < POLLS && is_lowest {
            match self.receive_abort(POLL) {
                Some((from, cause)) => {
                    is_lowest = from > self.rank || cause == AbortCause::OtherRank;
                }
                None => polls += 1,
            }
            let lower_failed =
                (self.shared.as_ref()).is_some_and(|shared| shared.ranks().lower_rank_failed());
            is_lowest &= !lower_failed;
        }
        self.close(CLOSE_TIMEOUT);
        is_lowest
    }

    fn trace_abort(&self) {
        if let Some(trace) = &self.trace {
            trace.close(State::Aborted);
        }
    }

    /// Ends the program after a call has failed. Returns true if this rank should report the failure.
    pub fn fail(&mut self, failure: &Failure) -> bool {
        self.trace_abort();
        let reports = match failure {
            Failure::Aborted { .. } => {
                self.announce_abort(AbortCause::OtherRank);
                false
            }
            // All ranks detect the same disagreement.
            Failure::Misuse(Misuse::Disagree { reporter, .. }) => *reporter == self.rank,
            _ => return self.abort(),
        };
        self.close(CLOSE_TIMEOUT);
        reports
    }

    /// Waits for a rank of another node to end the program.
    fn receive_abort(&mut self, timeout: Duration) -> Option<(u32, AbortCause)> {
        let Some(carrier) = &mut self.carrier else {
            thread::sleep(timeout);
            return None;
        };
        // Other messages, and failures to receive, no longer matter.
        while let Ok(Some((from, message))) = carrier.receive(timeout) {
            if let Some((head, _)) = Head::decode(&message)
                && head.kind == Kind::Abort
            {
                let cause = match head.index {
                    0 => AbortCause::OwnError,
                    _ => AbortCause::OtherRank,
                };
                return Some((from, cause));
            }
        }
        None
    }

    fn announce_abort(&mut self, cause: AbortCause) {
        if let Some(shared) = &self.shared {
            shared.ranks().abort(cause);
        }
        let head = Head {
            index: u32::from(cause == AbortCause::OtherRank),
            ..Head::new(Kind::Abort, self.exchange.superstep())
        };
        for to in 0..self.size {
            if let Some(carrier) = &mut self.carrier
                && !self.exchange.node_map().share_node(to, self.rank)
            {
                // A rank that cannot be reached has ended, or will time out.
                let _sent = carrier.send(to, head.encode().to_vec());
            }
        }
    }
}

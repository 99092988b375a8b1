//! The end of the program by an error, of which one rank says why.

use std::thread;
use std::time::Duration;

use super::Process;
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::local::By;
use crate::misuse::Misuse;
use crate::superstep::message::{Head, Kind};
use crate::trace::State;

/// Ranks that find an error while they have not yet heard of each other's wait as often and as long
/// for the others.
const LOOKS: u32 = 10;
const LOOK: Duration = Duration::from_millis(4);

impl<C: Carrier> Process<C> {
    /// Tells all ranks that the program ends by an error of this one; they end, too, at their
    /// next `sync`. True if this rank is to say why: no other was known to have ended the program,
    /// nor has a lower one at the same time.
    pub fn abort(&mut self) -> bool {
        self.trace_abort();
        let is_told = self
            .mates
            .as_ref()
            .is_some_and(|mates| mates.check().is_err());
        if is_told || self.hears_abort(Duration::ZERO).is_some() {
            self.tell_abort(By::Another);
            return false;
        }
        self.tell_abort(By::Itself);
        let mut is_lowest = true;
        let mut looks = 0;
        while looks < LOOKS && is_lowest {
            match self.hears_abort(LOOK) {
                Some((from, by)) => is_lowest = from > self.rank || by == By::Another,
                None => looks += 1,
            }
            is_lowest &= !(self.mates.as_ref()).is_some_and(|mates| mates.lower_was_wrong());
        }
        self.close(Duration::from_millis(500));
        is_lowest
    }

    fn trace_abort(&self) {
        if let Some(trace) = &self.trace {
            trace.close(State::Aborted);
        }
    }

    /// Ends the program for a failure of one of the calls. True if this rank is to say why.
    pub fn fail(&mut self, failure: &Failure) -> bool {
        self.trace_abort();
        let speaks = match failure {
            Failure::Aborted { .. } => {
                self.tell_abort(By::Another);
                false
            }
            // All find the same out.
            Failure::Misuse(Misuse::Disagree { speaker, .. }) => *speaker == self.rank,
            _ => return self.abort(),
        };
        self.close(Duration::from_millis(500));
        speaks
    }

    /// Waits for a rank of another node to say that the program ends, and by whose error.
    fn hears_abort(&mut self, patience: Duration) -> Option<(u32, By)> {
        let Some(carrier) = &mut self.carrier else {
            thread::sleep(patience);
            return None;
        };
        // Nothing else that comes is of use any more, nor why nothing comes.
        while let Ok(Some((from, message))) = carrier.receive(patience) {
            if let Some((head, _)) = Head::decode(&message)
                && head.kind == Kind::Abort
            {
                let by = if head.index == 0 {
                    By::Itself
                } else {
                    By::Another
                };
                return Some((from, by));
            }
        }
        None
    }

    fn tell_abort(&mut self, by: By) {
        if let Some(mates) = &self.mates {
            mates.abort(by);
        }
        let head = Head {
            index: u32::from(by == By::Another),
            ..Head::new(Kind::Abort, self.exchange.superstep())
        };
        for to in 0..self.size {
            if let Some(carrier) = &mut self.carrier
                && !self.exchange.places().are_together(to, self.rank)
            {
                // Whoever cannot be told is gone, or will find out.
                let _told = carrier.send(to, head.encode().to_vec());
            }
        }
    }
}

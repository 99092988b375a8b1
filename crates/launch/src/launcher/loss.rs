//! Policy for ranks that failed or were lost with their host.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use dipole_node::NodeId;

/// Time between a loss and the first restart; doubled with each attempt.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

/// Action when a rank fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLoss {
    /// Terminate the other ranks
    End,
    /// Let the others continue
    Continue,
    /// Let the others continue, and start the rank again on its host as soon as the host replies. With
    /// checkpoints: restart the whole job from the last one, on the hosts that are left
    Restart,
}

/// Ranks that wait for a restart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// The node on which they ran.
    pub(super) node: NodeId,
    pub(super) ranks: Vec<u32>,
    /// How often they have been restarted.
    pub(super) restarts: u32,
    /// Exit status of the job if they do not return.
    pub(super) status: u8,
    pub(super) since: Instant,
    at: Instant,
    pause: Duration,
}

/// Counts losses and schedules restarts.
#[derive(Debug)]
pub(super) struct Losses {
    policy: OnLoss,
    max_restarts: u32,
    restarts: BTreeMap<u32, u32>,
    due: Vec<Due>,
}

impl Losses {
    pub(super) fn new(policy: OnLoss, max_restarts: u32) -> Losses {
        Losses {
            policy,
            max_restarts,
            restarts: BTreeMap::new(),
            due: Vec::new(),
        }
    }

    /// Decides about ranks that were lost together; `End` ends the job.
    pub(super) fn lost(&mut self, now: Instant, node: NodeId, ranks: &[u32], status: u8) -> OnLoss {
        if self.policy != OnLoss::Restart {
            return self.policy;
        }
        let mut restarts = 0;
        for rank in ranks {
            let count = self.restarts.entry(*rank).or_default();
            *count += 1;
            restarts = restarts.max(*count);
        }
        if restarts > self.max_restarts {
            return OnLoss::End;
        }
        self.due.push(Due {
            node,
            ranks: ranks.to_vec(),
            restarts,
            status,
            since: now,
            at: now + PAUSE,
            pause: PAUSE,
        });
        OnLoss::Restart
    }

    /// True if what is lost is started again.
    pub(super) fn restarts(&self) -> bool {
        self.policy == OnLoss::Restart
    }

    /// Takes ranks whose restart is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Due> {
        let index = self.due.iter().position(|due| due.at <= now)?;
        Some(self.due.swap_remove(index))
    }

    /// Schedules another attempt, because their host did not answer.
    pub(super) fn try_later(&mut self, now: Instant, due: Due) {
        let pause = (due.pause * 2).min(LONGEST_PAUSE);
        let at = now + pause;
        self.due.push(Due { at, pause, ..due });
    }

    /// When the next restart is due.
    pub(super) fn next_at(&self) -> Option<Instant> {
        self.due.iter().map(|due| due.at).min()
    }

    /// Cancels restarts; from now on a failure ends the job.
    pub(super) fn stop(&mut self) -> Vec<Due> {
        self.policy = OnLoss::End;
        std::mem::take(&mut self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_ranks_come_back_after_a_pause_and_not_for_ever() {
        let start = Instant::now();
        let mut losses = Losses::new(OnLoss::Restart, 2);
        assert_eq!(losses.lost(start, NodeId(3), &[6, 7], 137), OnLoss::Restart);
        assert_eq!(losses.take_due(start), None);
        let later = start + PAUSE;
        assert_eq!(losses.next_at(), Some(later));
        let due = losses.take_due(later).unwrap();
        assert_eq!((due.node, due.restarts, due.status), (NodeId(3), 1, 137));
        assert_eq!(due.ranks, [6, 7]);
        losses.try_later(later, due);
        assert_eq!(losses.take_due(later + PAUSE), None);
        assert_eq!(losses.take_due(later + PAUSE * 2).unwrap().restarts, 1);
        assert_eq!(losses.lost(later, NodeId(3), &[7], 1), OnLoss::Restart);
        assert_eq!(losses.take_due(later + PAUSE).unwrap().restarts, 2);
        assert_eq!(losses.lost(later, NodeId(3), &[7], 1), OnLoss::End);
        assert_eq!(losses.next_at(), None);
    }

    #[test]
    fn nothing_is_started_once_the_job_is_to_end() {
        let now = Instant::now();
        let mut losses = Losses::new(OnLoss::Restart, 9);
        losses.lost(now, NodeId(1), &[1], 1);
        assert_eq!(losses.stop().len(), 1);
        assert_eq!(losses.lost(now, NodeId(1), &[2], 1), OnLoss::End);
        assert_eq!(losses.next_at(), None);
        let mut tolerant = Losses::new(OnLoss::Continue, 9);
        assert_eq!(tolerant.lost(now, NodeId(1), &[2], 1), OnLoss::Continue);
    }
}

//! Automatic migration: the ranks of a job follow the load of its hosts.
//!
//! Every now and then each host with ranks reads the table of its agent. The launcher merges the tables,
//! so the rows of hosts with ranks are fresh, and those of the others are the freshest that any of the
//! hosts has. `balance` then decides which ranks move, and `migration` moves them. Before a superstep is
//! interrupted, the new hosts read their tables too, and must still be among the best.
//!
//! # Source
//! `bsp-protocols-thesis`, §8.2. There each rank asks its daemon, and all ranks are restarted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dipole_naming::key::random_bytes;
use dipole_node::NodeId;
use dipole_node::hosts::Host;
use serde_json::json;

use super::balance::{Candidate, Proposal, proposals};
use super::schedule::Schedule;
use super::{JobSetup, Launch};
use crate::host::State;
use crate::load::NodeLoad;
use crate::message::{LoadTable, ToShim};

/// How long hosts may take to send their tables.
pub(super) const TABLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Older rows do not count. Agents exchange their tables every three to five minutes.
const MAX_AGE: Duration = Duration::from_secs(15 * 60);
/// How long a migration may wait for the end of a superstep, at least, and in periods.
const MIN_TIMEOUT: Duration = Duration::from_secs(600);
const TIMEOUT_PERIODS: u32 = 5;

/// Why ranks do not follow the load.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Obstacle {
    /// Any other reason.
    #[default]
    Other,
    /// A host refuses ranks, or is lost.
    Refusal(NodeId),
    /// The loads have changed.
    Loads,
}

/// Decides when ranks move because of the load.
pub(super) struct Follow {
    /// x of the predicate: the load that a rank adds to a host.
    x: f64,
    schedule: Schedule,
    rows: Rows,
    /// The contacts whose tables are awaited, and until when.
    awaited: Option<(BTreeSet<usize>, Instant)>,
    /// Why a host had no table.
    missing: Option<String>,
    has_warned: bool,
}

impl Follow {
    pub(super) fn new(every: Duration, x: f64) -> Follow {
        Follow {
            x,
            schedule: Schedule::new(every, Instant::now(), random()),
            rows: Rows::default(),
            awaited: None,
            missing: None,
            has_warned: false,
        }
    }

    /// How long a migration may take.
    fn timeout(&self) -> Duration {
        MIN_TIMEOUT.max(TIMEOUT_PERIODS * self.schedule.every())
    }
}

/// The freshest row of each node, and when it was measured.
#[derive(Debug, Default)]
struct Rows(BTreeMap<NodeId, (Instant, NodeLoad)>);

impl Rows {
    fn merge(&mut self, now: Instant, rows: &[NodeLoad]) {
        for row in rows {
            let age = Duration::try_from_secs_f64(row.age_s).ok();
            let Some(measured) = age.and_then(|age| now.checked_sub(age)) else {
                continue;
            };
            let known = self.0.get(&row.node);
            if known.is_none_or(|(before, _)| *before < measured) {
                self.0.insert(row.node, (measured, *row));
            }
        }
    }

    /// The row of a node, unless it is too old.
    fn get(&self, now: Instant, node: NodeId) -> Option<NodeLoad> {
        let (measured, row) = self.0.get(&node)?;
        (now.saturating_duration_since(*measured) <= MAX_AGE).then_some(*row)
    }
}

impl Launch {
    /// When [`follow_load`](Self::follow_load) must be called again.
    pub(super) fn next_follow(&self) -> Option<Instant> {
        let follow = self.attempt.follow.as_ref()?;
        if self.attempt.migration.is_some() || !self.may_migrate() {
            return None;
        }
        let until = follow.awaited.as_ref().map(|(_, until)| *until);
        Some(until.unwrap_or_else(|| follow.schedule.next()))
    }

    /// Collects the tables of the hosts, if a check is due, and then moves ranks.
    pub(super) fn follow_load(&mut self, setup: &JobSetup<'_>) {
        let now = Instant::now();
        if self.next_follow().is_none() {
            return;
        }
        let Some(mut follow) = self.attempt.follow.take() else {
            return;
        };
        match &follow.awaited {
            None if now >= follow.schedule.next() => {
                let hosts: BTreeSet<usize> = self.running.values().copied().collect();
                for index in &hosts {
                    self.request_table(*index);
                }
                follow.awaited = Some((hosts, now + TABLE_TIMEOUT));
                follow.missing = None;
            }
            Some((awaited, until)) if awaited.is_empty() || now >= *until => {
                follow.awaited = None;
                self.check_load(&mut follow, setup, now);
            }
            _ => {}
        }
        self.attempt.follow = Some(follow);
    }

    /// Requests the table of the agent on a host.
    pub(super) fn request_table(&self, index: usize) {
        if let Some(contact) = self.contacts.get(&index) {
            let runtime_dir = contact.host.runtime_dir.as_ref();
            contact.send(ToShim::Load {
                node: contact.host.node.0,
                runtime_dir: runtime_dir.map(|folder| folder.to_string().into()),
            });
        }
    }

    /// Handles the table of a host.
    pub(super) fn on_table(&mut self, index: usize, table: LoadTable) {
        if let Some(migration) = &mut self.attempt.migration {
            migration.on_table(index);
        }
        let Some(follow) = &mut self.attempt.follow else {
            return;
        };
        if let Some((awaited, _)) = &mut follow.awaited {
            awaited.remove(&index);
        }
        match table {
            Ok(rows) => follow.rows.merge(Instant::now(), &rows),
            Err(cause) => {
                let host = self.contacts.get(&index).map(|it| it.host.to_string());
                follow.missing = Some(format!("{}: {cause}", host.unwrap_or_default()));
            }
        }
    }

    /// Moves the ranks that are not on the best hosts.
    fn check_load(&mut self, follow: &mut Follow, setup: &JobSetup<'_>, now: Instant) {
        let Ok(places) = self.places() else {
            return follow.schedule.on_stay(now, random());
        };
        let is_known = |node: &NodeId| follow.rows.get(now, *node).is_some();
        if !places.iter().any(is_known) {
            self.warn_of_missing(follow);
        }
        let candidates = self.candidates(follow, setup, &places, now);
        let found = proposals(&candidates, &places, follow.x);
        if found.is_empty() {
            return follow.schedule.on_stay(now, random());
        }
        let find = |node| setup.list.iter().find(|host| host.node == node);
        let selected: Vec<(u32, &Host)> = found
            .iter()
            .filter_map(|one| Some((one.rank, find(one.to)?)))
            .collect();
        for one in &found {
            self.announce(follow, setup, one, now);
        }
        if let Err(reason) = self.begin_automatic(&selected, follow.timeout(), setup) {
            self.print_message(format!("no rank is moved: {reason}"));
            follow.schedule.on_failed(now, random());
        }
    }

    fn warn_of_missing(&self, follow: &mut Follow) {
        if !std::mem::replace(&mut follow.has_warned, true) {
            let cause = follow.missing.take();
            let cause = cause.unwrap_or_else(|| "the hosts of its ranks did not reply".to_owned());
            self.print_message(format!(
                "the ranks stay where they are while no agent reports the load of their hosts ({cause}); \
                 start one on each host with `dipole agent`"
            ));
        }
    }

    /// The hosts of the job, as the tables describe them.
    fn candidates(
        &self,
        follow: &Follow,
        setup: &JobSetup<'_>,
        places: &[NodeId],
        now: Instant,
    ) -> Vec<Candidate> {
        let max_of = |host: &Host| {
            let contacts = self.contacts.values();
            let there = contacts.filter(|it| it.host.node == host.node && it.state != State::Gone);
            there.filter_map(|contact| contact.max_ranks).min()
        };
        let candidate = |host: &Host| Candidate {
            node: host.node,
            slots: max_of(host).map_or(host.slots, |max| max.min(host.slots)),
            ranks: count(places.iter().filter(|node| **node == host.node)),
            load: follow.rows.get(now, host.node),
            is_refused: follow.schedule.avoids(now, host.node),
        };
        setup.list.iter().map(candidate).collect()
    }

    fn announce(&self, follow: &Follow, setup: &JobSetup<'_>, one: &Proposal, now: Instant) {
        let load = |node| follow.rows.get(now, node);
        let describe = |node: NodeId| {
            let host = setup.list.iter().find(|host| host.node == node);
            let name = host.map_or_else(|| format!("node {node}"), ToString::to_string);
            match load(node) {
                Some(it) => format!(
                    "{name}, with a load of {:.2} on {} cores of {} Mflop/s",
                    it.load, it.cores, it.speed
                ),
                None => name,
            }
        };
        let (rank, from, to) = (one.rank, describe(one.from), describe(one.to));
        self.print_message(format!("rank {rank} is to move from {from}, to {to}"));
        let average = |node| load(node).map(|it| it.load);
        self.event(
            json!({"event": "follows-load", "rank": rank, "from": one.from.0,
            "to": one.to.0, "from_load": average(one.from), "to_load": average(one.to)}),
        );
    }

    /// Requires that these moves are still those of the predicate.
    pub(super) fn confirm_moves(
        &self,
        setup: &JobSetup<'_>,
        moves: &[(u32, NodeId)],
    ) -> Result<(), String> {
        let Some(follow) = &self.attempt.follow else {
            return Ok(());
        };
        let (places, now) = (self.places()?, Instant::now());
        let candidates = self.candidates(follow, setup, &places, now);
        let found = proposals(&candidates, &places, follow.x);
        let is_found = |(rank, node): &&(u32, NodeId)| {
            let same = |one: &Proposal| one.rank == *rank && one.to == *node;
            found.iter().any(same)
        };
        match moves.iter().find(|one| !is_found(one)) {
            None => Ok(()),
            Some((_, node)) => {
                let load = follow.rows.get(now, *node);
                let load = load.map_or("unknown".to_owned(), |it| format!("{:.2}", it.load));
                Err(format!(
                    "node {node} is not among the best hosts any more: its load is {load}"
                ))
            }
        }
    }

    /// Records that ranks have moved because of the load.
    pub(super) fn on_followed(&mut self, moves: &[(NodeId, NodeId)]) {
        if let Some(follow) = &mut self.attempt.follow {
            follow.schedule.on_moved(Instant::now(), moves, random());
        }
    }

    /// Records that the user has moved ranks.
    pub(super) fn on_user_moved(&mut self, moves: &[(NodeId, NodeId)], used: &[NodeId]) {
        if let Some(follow) = &mut self.attempt.follow {
            let former = moves.iter().map(|(from, _)| *from);
            let emptied: Vec<NodeId> = former.filter(|node| !used.contains(node)).collect();
            follow.schedule.on_moved_by_user(&emptied, used);
        }
    }

    /// Records that ranks could not be moved because of the load.
    pub(super) fn on_not_followed(&mut self, obstacle: Obstacle) {
        let now = Instant::now();
        if let Some(follow) = &mut self.attempt.follow {
            match obstacle {
                Obstacle::Refusal(node) => follow.schedule.on_refused(now, node),
                Obstacle::Loads => follow.schedule.on_stay(now, random()),
                Obstacle::Other => follow.schedule.on_failed(now, random()),
            }
        }
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

/// A random number from 0 to 1; 0.5 if the system has none.
fn random() -> f64 {
    let drawn = random_bytes::<4>().map(u32::from_le_bytes);
    drawn.map_or(0.5, |drawn| f64::from(drawn) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(node: u32, load: f64, age_s: f64) -> NodeLoad {
        NodeLoad {
            age_s,
            ..crate::load::row(node, 2, load, 1000)
        }
    }

    #[test]
    fn of_several_tables_the_freshest_row_of_each_node_counts_until_it_is_too_old() {
        // Times before the start of the clock do not exist.
        let start = Instant::now() + Duration::from_secs(3600);
        let mut rows = Rows::default();
        rows.merge(start, &[row(1, 1.0, 60.0), row(2, 2.0, 10.0)]);
        rows.merge(start, &[row(1, 3.0, 30.0), row(2, 4.0, 20.0)]);
        let load = |rows: &Rows, after, node| {
            let now = start + Duration::from_secs(after);
            rows.get(now, NodeId(node)).map(|row| row.load)
        };
        assert_eq!(load(&rows, 0, 1), Some(3.0));
        assert_eq!(load(&rows, 0, 2), Some(2.0));
        assert_eq!(load(&rows, 0, 3), None);
        // A table that comes later may have older rows.
        let later = start + Duration::from_secs(40);
        rows.merge(later, &[row(1, 5.0, 60.0), row(2, 6.0, 55.0)]);
        assert_eq!(load(&rows, 40, 1), Some(5.0));
        assert_eq!(load(&rows, 40, 2), Some(2.0));
        let oldest = MAX_AGE.as_secs() - 10;
        assert_eq!(load(&rows, oldest, 2), Some(2.0));
        assert_eq!(load(&rows, oldest + 1, 2), None);
        for wrong in [f64::NAN, -1.0, f64::INFINITY, 1e30] {
            rows.merge(start, &[row(9, 1.0, wrong)]);
            assert_eq!(load(&rows, 0, 9), None, "{wrong}");
        }
    }
}

//! The predicate of automatic migration: ranks that are not on the best hosts, and where they belong.
//!
//! Hosts are sorted by the speed that a rank gets there, and their slots are filled in this order. A
//! rank that has no slot in this placement is not on one of the best hosts. The idle speed (n - L) s
//! alone would not do: with x = 1 it is 0 for each idle host of one core, however fast that is. Loads are
//! compared as if each host ran as many ranks of the job as it could: x is added for each rank that a
//! host does not run yet. The load of a host that does run them contains them already, so a job that
//! moves does not change the order of the hosts.
//!
//! # Source
//! `bsp-protocols-thesis`, §8.2, where each host has one slot. It adds x to hosts without a rank.

use dipole_node::NodeId;

use crate::load::NodeLoad;

/// A rank moves only if it gets this many times the speed. Equal machines measure speeds that differ by
/// some percent, and a core that is free gives nothing if the present one is free, too.
const WORTH: f64 = 1.1;

/// A host of the job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) node: NodeId,
    /// Ranks of the job that it may run.
    pub(super) slots: u32,
    /// Ranks of the job that it runs.
    pub(super) ranks: u32,
    /// `None` if it is not known, or too old. Then the host keeps its ranks, and gets no others.
    pub(super) load: Option<NodeLoad>,
    /// The host gets no further ranks.
    pub(super) is_refused: bool,
}

/// A rank that is not on one of the best hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) rank: u32,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
}

/// A candidate of known load, which includes what the job would add to it.
#[derive(Clone, Copy)]
struct Rated<'a> {
    candidate: &'a Candidate,
    load: NodeLoad,
    /// Ranks that it may run, and those that it should run.
    slots: u32,
    wanted: u32,
}

impl Rated<'_> {
    /// Speed at which a rank runs there in Mflop/s, if all processes get the same share.
    fn speed_of_rank(&self) -> f64 {
        let cores = f64::from(self.load.cores);
        f64::from(self.load.speed) * (cores / self.load.load.max(cores)).min(1.0)
    }

    fn surplus(&self) -> u32 {
        self.candidate.ranks.saturating_sub(self.wanted)
    }

    fn deficit(&self) -> u32 {
        self.wanted.saturating_sub(self.candidate.ranks)
    }
}

/// The ranks that should move. `places` has the node of each rank, and `x` is the load that a rank
/// adds to a host.
pub(super) fn proposals(candidates: &[Candidate], places: &[NodeId], x: f64) -> Vec<Proposal> {
    let rated = rate(candidates, x);
    let mut arrivals = rated
        .iter()
        .flat_map(|to| std::iter::repeat_n(to, to.deficit() as usize));
    let mut found = Vec::new();
    // Ranks on the worst hosts go to the best ones; the highest first, because the input of rank 0 would
    // have to move with it.
    for from in rated.iter().rev() {
        let node = from.candidate.node;
        let ranks = ranks_on(places, node);
        for rank in ranks.iter().rev().take(from.surplus() as usize) {
            let Some(to) = arrivals.next() else {
                return found;
            };
            if to.speed_of_rank() >= WORTH * from.speed_of_rank() {
                let to = to.candidate.node;
                found.push(Proposal {
                    rank: *rank,
                    from: node,
                    to,
                });
            }
        }
    }
    found.sort_by_key(|one| one.rank);
    found
}

fn ranks_on(places: &[NodeId], node: NodeId) -> Vec<u32> {
    let ranks = (0..).zip(places);
    let there = ranks.filter(|(_, at)| **at == node);
    there.map(|(rank, _)| rank).collect()
}

/// The candidates of known load, best first, and how many ranks each should run.
fn rate(candidates: &[Candidate], x: f64) -> Vec<Rated<'_>> {
    let known = || candidates.iter().filter(|one| one.load.is_some());
    let ranks: u32 = known().map(|one| one.ranks).sum();
    let mut rated: Vec<Rated<'_>> = known()
        .filter_map(|candidate| {
            let mut load = candidate.load?;
            let slots = match candidate.is_refused {
                true => candidate.ranks,
                false => candidate.slots.max(candidate.ranks),
            };
            let further = slots.min(ranks).saturating_sub(candidate.ranks);
            load.load += x * f64::from(further);
            Some(Rated {
                candidate,
                load,
                slots,
                wanted: 0,
            })
        })
        .collect();
    // Of equal hosts those come first that have ranks of the job, then those with more idle speed.
    rated.sort_by(|one, other| {
        let by_speed = other.speed_of_rank().total_cmp(&one.speed_of_rank());
        let by_ranks = other.candidate.ranks.cmp(&one.candidate.ranks);
        let by_idle = other.load.priority().total_cmp(&one.load.priority());
        by_speed.then(by_ranks).then(by_idle)
    });
    let mut left = ranks;
    for one in &mut rated {
        one.wanted = one.slots.min(left);
        left -= one.wanted;
    }
    rated
}

#[cfg(test)]
mod tests;

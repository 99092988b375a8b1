//! Plays one member of a group: broadcasts with numbered messages and reductions with known results.
//!
//! The first member sets the pace: it announces how many rounds follow, and 0 at the end. If a member
//! dies, the others form the group without it and go on from the first round that one of them has not
//! completed.

use std::time::{Duration, Instant};

use dipole_group::{Combine, GroupError, Members};
use dipole_node::{Address, Node};

use super::collective::{Collective, Group, Kind};
use super::report::{EdgeResult, PATIENCE, Pace, Report};

/// Upper limit for the rounds between two announcements, and for the time that they take.
const BATCH_ROUNDS: u64 = 64;
const BATCH_TIME: Duration = Duration::from_millis(100);

/// Takes part in all calls of a group until its first member ends them.
pub(super) fn take_part(
    node: &Node,
    group: &Group,
    own: Address,
    pace: Pace,
) -> Result<Vec<Report>, String> {
    let rank = group.members.iter().position(|it| *it == own);
    let rank = rank.ok_or("not a member")?;
    let members = Members::first(group.members.clone());
    let joined = dipole_group::Group::join(node, members, rank, PATIENCE);
    let mut member = Member {
        own,
        pace,
        group: joined.map_err(|error| error.to_string())?,
        next: 0,
        tallies: group.calls.iter().map(Tally::new).collect(),
        lost: Vec::new(),
    };
    let begun = Instant::now();
    loop {
        match member.batch() {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => member.go_on_without(error)?,
        }
    }
    Ok(member.reports(begun.elapsed()))
}

/// The results of a broadcast or reduction at one member.
struct Tally<'a> {
    call: &'a Collective,
    /// Rounds from which each other member had, or gave, the right bytes: those of this member for
    /// a broadcast, those of each source for a reduction.
    complete: Vec<u64>,
    is_right: bool,
}

impl Tally<'_> {
    fn new(call: &Collective) -> Tally<'_> {
        Tally {
            call,
            complete: vec![0; call.others.len()],
            is_right: true,
        }
    }

    /// Counts a round for those of the other endpoints that took part; a round that is repeated
    /// after a loss counts once.
    fn count(&mut self, round: u64, took_part: impl Fn(Address) -> bool) {
        for (complete, other) in self.complete.iter_mut().zip(&self.call.others) {
            if *complete == round && took_part(*other) {
                *complete += 1;
            }
        }
    }
}

struct Member<'a> {
    own: Address,
    pace: Pace,
    group: dipole_group::Group,
    /// The next round.
    next: u64,
    tallies: Vec<Tally<'a>>,
    lost: Vec<Address>,
}

/// The number that a member contributes to a reduction.
fn contribution(member: Address, round: u64) -> u64 {
    let name = u64::from(member.node.0) << 32 | u64::from(member.endpoint.0);
    (name ^ round.rotate_left(17)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

impl Member<'_> {
    /// Makes the rounds that the first member announces; false at the end.
    fn batch(&mut self) -> Result<bool, GroupError> {
        let mut rounds = self.rounds_to_announce().to_le_bytes();
        self.group.broadcast_slice(0, &mut rounds, PATIENCE)?;
        let rounds = u64::from_le_bytes(rounds);
        let mut at = Instant::now();
        for _ in 0..rounds {
            self.round()?;
            at += self.pace.between;
            if self.group.rank() == 0
                && let Some(pause) = at.checked_duration_since(Instant::now())
            {
                std::thread::sleep(pause);
            }
        }
        Ok(rounds > 0)
    }

    fn rounds_to_announce(&self) -> u64 {
        let now = Instant::now();
        if now >= self.pace.until && self.next > 0 {
            return 0;
        }
        let fitting = BATCH_TIME.as_nanos() / self.pace.between.as_nanos().max(1);
        u64::try_from(fitting).map_or(BATCH_ROUNDS, |fitting| fitting.clamp(1, BATCH_ROUNDS))
    }

    /// One call of each kind.
    fn round(&mut self) -> Result<(), GroupError> {
        let round = self.next;
        for at in 0..self.tallies.len() {
            let call = self.tallies[at].call;
            let members = &self.group.members().addresses;
            // The calls of a root that was lost end with it.
            let Some(root) = members.iter().position(|it| *it == call.root) else {
                continue;
            };
            match call.kind {
                Kind::Broadcast => {
                    let is_root = root == self.group.rank();
                    let mut number = if is_root { round } else { u64::MAX }.to_le_bytes();
                    self.group.broadcast_slice(root, &mut number, PATIENCE)?;
                    let own = self.own;
                    let tally = &mut self.tallies[at];
                    tally.is_right &= number == round.to_le_bytes();
                    tally.count(round, |other| other == own);
                }
                Kind::Reduce(function) => {
                    let of_member = |member: Address| match member == call.root {
                        true => function.neutral(),
                        false => contribution(member, round),
                    };
                    let members = self.group.members().addresses.clone();
                    let mut number = [of_member(self.own)];
                    (self.group).reduce_numbers(root, &mut number, function.combine(), PATIENCE)?;
                    if root == self.group.rank() {
                        let expected = function.of(members.iter().copied().map(of_member));
                        let tally = &mut self.tallies[at];
                        tally.is_right &= number == [expected];
                        tally.count(round, |other| members.contains(&other));
                    }
                }
            }
        }
        self.next += 1;
        Ok(())
    }

    /// Forms the group without lost members, and agrees with the others on the next round.
    fn go_on_without(&mut self, mut error: GroupError) -> Result<(), String> {
        loop {
            let GroupError::Gone { members } = &error else {
                return Err(error.to_string());
            };
            self.lost
                .extend(members.iter().map(|member| member.address));
            let formed = self.group.reform_without(&[], PATIENCE);
            let mut next = [self.next];
            let agreed = formed
                .and_then(|()| (self.group).allreduce_numbers(&mut next, Combine::Min, PATIENCE));
            match agreed {
                Ok(()) => {
                    self.next = next[0];
                    return Ok(());
                }
                Err(another) => error = another,
            }
        }
    }

    fn reports(&self, elapsed: Duration) -> Vec<Report> {
        let mut reports: Vec<Report> = Vec::new();
        for tally in &self.tallies {
            let pairs = tally.call.pairs().zip(&tally.complete);
            // The receiver of each pair reports it.
            let received = pairs.filter(|(pair, _)| pair.to == self.own);
            reports.extend(received.map(|(pair, complete)| {
                Report::Edge(EdgeResult {
                    operation: tally.call.operation().to_owned(),
                    from: pair.from.to_string(),
                    to: pair.to.to_string(),
                    sent: self.next,
                    received: *complete,
                    in_order: tally.is_right,
                    seconds: elapsed.as_secs_f64(),
                })
            }));
        }
        let lost = self.lost.iter().map(ToString::to_string);
        reports.extend(lost.map(|endpoint| Report::Lost { endpoint }));
        reports
    }
}

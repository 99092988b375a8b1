use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::super::balance::{Candidate, Proposal, proposals};
use super::*;
use crate::load::row;

const EVERY: Duration = Duration::from_secs(120);

#[test]
fn checks_come_after_a_random_part_of_the_period_more() {
    let now = Instant::now();
    for random in [0.0, 0.5, 1.0] {
        let mut schedule = Schedule::new(EVERY, now, random);
        let pause = EVERY.mul_f64(1.0 + random / 2.0);
        assert_eq!(schedule.next(), now + pause);
        schedule.on_stay(now + pause, random);
        assert_eq!(schedule.next(), now + 2 * pause);
    }
}

#[test]
fn the_rest_after_a_move_doubles_with_each_return_and_shrinks_while_the_job_stays() {
    let mut now = Instant::now();
    let mut schedule = Schedule::new(EVERY, now, 0.0);
    let (one, two) = (NodeId(1), NodeId(2));
    for (from, to, periods) in [(one, two, 3), (two, one, 6), (one, two, 12)] {
        schedule.on_moved(now, &[(from, to)], 0.0);
        assert_eq!(schedule.next(), now + periods * EVERY);
        now = schedule.next();
    }
    schedule.on_moved(now, &[(two, NodeId(3))], 1.0);
    assert_eq!(schedule.next(), now + 24 * EVERY, "no return, but random");
    // After twice the rest, each return is forgotten in turn.
    let begun = now;
    now = schedule.next();
    while schedule.returns > 0 {
        schedule.on_stay(now, 0.0);
        now = schedule.next();
    }
    assert!(now >= begun + 36 * EVERY, "{:?}", now - begun);
    for _ in 0..20 {
        schedule.on_moved(now, &[(one, two), (two, one)], 0.0);
    }
    let most = 3 * EVERY * (1 << MAX_DOUBLINGS);
    assert_eq!(schedule.next(), now + most);
}

#[test]
fn a_host_that_refuses_is_avoided_for_a_while_and_the_next_is_tried_at_once() {
    let now = Instant::now();
    let mut schedule = Schedule::new(EVERY, now, 0.5);
    schedule.on_refused(now, NodeId(4));
    assert_eq!(schedule.next(), now);
    assert!(schedule.avoids(now, NodeId(4)) && !schedule.avoids(now, NodeId(5)));
    assert!(!schedule.avoids(now + REFUSAL_PERIODS * EVERY, NodeId(4)));
}

#[test]
fn hosts_that_the_user_has_emptied_are_avoided_until_the_user_names_them() {
    let now = Instant::now();
    let mut schedule = Schedule::new(EVERY, now, 0.5);
    schedule.on_moved_by_user(&[NodeId(1), NodeId(2)], &[NodeId(3)]);
    assert!(schedule.avoids(now, NodeId(1)) && !schedule.avoids(now, NodeId(3)));
    schedule.on_moved_by_user(&[NodeId(3)], &[NodeId(1)]);
    assert!(!schedule.avoids(now, NodeId(1)) && schedule.avoids(now, NodeId(2)));
}

#[test]
fn failures_that_last_are_tried_ever_less_often() {
    let now = Instant::now();
    let mut schedule = Schedule::new(EVERY, now, 0.0);
    for periods in [2, 4, 8, 16, 32, 64, 128, 128] {
        schedule.on_failed(now, 0.0);
        assert_eq!(schedule.next(), now + periods * EVERY);
    }
    schedule.on_stay(now, 0.0);
    schedule.on_failed(now, 0.0);
    assert_eq!(schedule.next(), now + 2 * EVERY);
}

/// Time constant of the load average.
const AVERAGE_S: f64 = 300.0;
/// Age of what a job knows about hosts that run none of its ranks.
const AGE_S: usize = 240;
/// Step of the simulation.
const STEP_S: usize = 20;

/// Machines with one core each, load averages that follow what runs there, and jobs of one rank or more
/// that decide by themselves.
struct World {
    random: StdRng,
    start: Instant,
    /// Load averages of each machine, at each step.
    averages: Vec<Vec<f64>>,
    /// Processes of others on each machine.
    foreign: Vec<f64>,
    jobs: Vec<(Schedule, Vec<NodeId>)>,
    /// Time of each move in seconds.
    moves: Vec<usize>,
}

impl World {
    fn new(seed: u64, foreign: &[f64], jobs: &[&[u32]]) -> World {
        let mut random = StdRng::seed_from_u64(seed);
        let start = Instant::now();
        let jobs = jobs.iter().map(|places| {
            let schedule = Schedule::new(EVERY, start, random.random());
            (schedule, places.iter().copied().map(NodeId).collect())
        });
        let jobs: Vec<_> = jobs.collect();
        World {
            random,
            start,
            averages: vec![foreign.to_vec()],
            foreign: foreign.to_vec(),
            jobs,
            moves: Vec::new(),
        }
    }

    /// Ranks of all jobs on a machine.
    fn ranks(&self, node: NodeId) -> u32 {
        let places = self.jobs.iter().flat_map(|(_, places)| places);
        u32::try_from(places.filter(|at| **at == node).count()).expect("few")
    }

    fn run(&mut self, seconds: usize) {
        for _ in 0..seconds / STEP_S {
            let decay = (-(STEP_S as f64) / AVERAGE_S).exp();
            let last = self.averages.last().expect("the first");
            let next = (1..).zip(last).zip(&self.foreign);
            let next = next.map(|((node, average), foreign)| {
                let runs = foreign + f64::from(self.ranks(NodeId(node)));
                average * decay + runs * (1.0 - decay)
            });
            let next = next.collect();
            self.averages.push(next);
            let now = self.start + Duration::from_secs((self.averages.len() * STEP_S) as u64);
            for job in 0..self.jobs.len() {
                if self.jobs[job].0.next() <= now {
                    self.decide(job, now);
                }
            }
        }
    }

    fn decide(&mut self, job: usize, now: Instant) {
        let places = self.jobs[job].1.clone();
        let candidates: Vec<Candidate> = (1..=self.foreign.len())
            .map(|index| self.candidate(index, &places))
            .collect();
        let found = proposals(&candidates, &places, 1.0);
        let random = self.random.random();
        let (schedule, places) = &mut self.jobs[job];
        if found.is_empty() {
            return schedule.on_stay(now, random);
        }
        for Proposal { rank, to, .. } in &found {
            places[*rank as usize] = *to;
        }
        let moved: Vec<_> = found.iter().map(|one| (one.from, one.to)).collect();
        schedule.on_moved(now, &moved, random);
        let seconds = self.averages.len() * STEP_S;
        self.moves.push(seconds);
    }

    /// Machine `index`, from 1, as a job knows it: its own machines well, the others as they were.
    fn candidate(&self, index: usize, places: &[NodeId]) -> Candidate {
        let node = NodeId(u32::try_from(index).expect("few"));
        let ranks = places.iter().filter(|at| **at == node).count();
        let age = match ranks {
            0 => AGE_S / STEP_S,
            _ => 0,
        };
        let known = self.averages.len().saturating_sub(1 + age);
        Candidate {
            node,
            slots: 1,
            ranks: u32::try_from(ranks).expect("few"),
            load: Some(row(node.0, 1, self.averages[known][index - 1], 1000)),
            is_refused: false,
        }
    }
}

const DAY_S: usize = 86_400;

#[test]
fn two_jobs_do_not_chase_each_other_for_ever() {
    for seed in 0..100 {
        // Both begin on a busy machine, and two are free.
        let mut world = World::new(seed, &[4.0, 0.0, 0.0], &[&[1], &[1]]);
        world.run(3 * DAY_S);
        assert_eq!(world.ranks(NodeId(1)), 0, "seed {seed}: {:?}", world.moves);
        let last = world.moves.last().copied().unwrap_or_default();
        assert!(last < DAY_S, "seed {seed}: {:?}", world.moves);
        assert!(world.moves.len() < 20, "seed {seed}: {:?}", world.moves);
    }
}

#[test]
fn more_ranks_than_free_machines_come_to_rest() {
    for seed in 0..100 {
        let foreign = [1.0, 0.5, 0.0, 2.0];
        let jobs: [&[u32]; 3] = [&[1, 2], &[3, 4], &[1, 4]];
        let mut world = World::new(seed, &foreign, &jobs);
        world.run(10 * DAY_S);
        let late = world.moves.iter().filter(|at| **at > 7 * DAY_S).count();
        assert!(late <= 12, "seed {seed}: {:?}", world.moves);
    }
}

#[test]
fn a_job_follows_machines_that_are_busy_by_day() {
    let mut world = World::new(7, &[0.0, 2.0], &[&[1]]);
    for day in 0..6 {
        // Machine 1 is busy by day and machine 2 by night.
        world.foreign = vec![3.0, 0.0];
        world.run(DAY_S / 2);
        assert_eq!(world.ranks(NodeId(2)), 1, "day {day}: {:?}", world.moves);
        world.foreign = vec![0.0, 3.0];
        world.run(DAY_S / 2);
        assert_eq!(world.ranks(NodeId(1)), 1, "night {day}: {:?}", world.moves);
    }
    assert_eq!(world.moves.len(), 12, "{:?}", world.moves);
}

//! Random programs, and the results that they must have.

#![allow(dead_code, unreachable_pub, reason = "not every test uses everything")]

use std::ffi::c_void;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use dipole_bsp::carrier::Carrier;
use dipole_bsp::{Failure, Process};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Size of each rank's part of the area that is always registered.
pub const AREA_BYTES: usize = 400_000;
const LONGEST_BYTES: usize = 150_000;
/// Fills memory that was used without a copy, as soon as the superstep has ended.
const SCRIBBLE: u8 = 0x5C;

/// A call of one rank in a superstep.
#[derive(Clone, Debug)]
enum Action {
    Put {
        by: usize,
        to: usize,
        area: usize,
        at: usize,
        bytes: Vec<u8>,
        is_unbuffered: bool,
    },
    Get {
        by: usize,
        of: usize,
        area: usize,
        at: usize,
        length: usize,
        /// The offset of the destination in the caller's part of the same area.
        into: usize,
        is_unbuffered: bool,
    },
    Send {
        by: usize,
        to: usize,
        tag: Vec<u8>,
        payload: Vec<u8>,
    },
}

impl Action {
    /// The rank that makes the call.
    fn by(&self) -> usize {
        let (Action::Put { by, .. } | Action::Get { by, .. } | Action::Send { by, .. }) = self;
        *by
    }

    /// Memory that an unbuffered call may write at any time: rank, area and range.
    fn unbuffered(&self) -> Option<(usize, usize, Range<usize>)> {
        match self {
            Action::Put {
                to,
                area,
                at,
                bytes,
                is_unbuffered: true,
                ..
            } => Some((*to, *area, *at..at + bytes.len())),
            Action::Get {
                by,
                area,
                into,
                length,
                is_unbuffered: true,
                ..
            } => Some((*by, *area, *into..into + length)),
            _ => None,
        }
    }

    /// Memory that a rank may change as soon as it has left the superstep: rank, area and range.
    fn freed(&self) -> Option<(usize, usize, Range<usize>)> {
        match self {
            Action::Get {
                of,
                area,
                at,
                length,
                is_unbuffered: true,
                ..
            } => Some((*of, *area, *at..at + length)),
            _ => None,
        }
    }
}

/// A superstep of all ranks.
#[derive(Clone, Debug, Default)]
struct Superstep {
    actions: Vec<Action>,
    /// A new area: the size of each rank's part.
    push: Option<Vec<usize>>,
    /// The area popped at the end.
    pop: Option<usize>,
    tag_bytes: Option<usize>,
}

/// A program: the calls of all ranks, and their memory and queues after each superstep.
#[derive(Debug)]
pub struct Program {
    size: usize,
    supersteps: Vec<Superstep>,
    after: Vec<State>,
}

type Mail = Vec<(Vec<u8>, Vec<u8>)>;

/// The state of all ranks after a superstep.
#[derive(Clone, Debug)]
struct State {
    /// Memory by area and rank. A popped area keeps its memory.
    memory: Vec<Vec<Vec<u8>>>,
    queues: Vec<Mail>,
}

fn random_bytes(rng: &mut ChaCha8Rng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    rng.fill(&mut bytes[..]);
    bytes
}

fn some_length(rng: &mut ChaCha8Rng, most: usize) -> usize {
    let bound = match rng.random_range(0..10) {
        0..6 => 40,
        6..9 => 3_000,
        _ => LONGEST_BYTES,
    };
    rng.random_range(0..=bound.min(most))
}

/// Runs a function on a rank and ends the program. On an error, ends it on all ranks.
pub fn run_rank<C: Carrier>(
    mut process: Process<C>,
    body: impl FnOnce(&mut Process<C>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let run = AssertUnwindSafe(|| {
        body(&mut process)?;
        process.end()
    });
    let ended = catch_unwind(run);
    if !matches!(ended, Ok(Ok(()))) {
        process.abort();
    }
    ended.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Hands out ranges of a rank's memory, each only once in a superstep.
struct Ranges(Vec<Vec<usize>>);

impl Ranges {
    fn take(&mut self, area: usize, rank: usize, length: usize, bytes: usize) -> Option<usize> {
        let next = &mut self.0[area][rank];
        let at = *next;
        (at + length <= bytes).then(|| {
            *next += length;
            at
        })
    }
}

/// The ranks of a call, an area, and the sizes of their parts.
struct Ends {
    by: usize,
    other: usize,
    area: usize,
    own_bytes: usize,
    other_bytes: usize,
}

impl Ends {
    /// A random call of rank `by`; `None` if the area has no unused range left.
    fn random_action(
        &self,
        rng: &mut ChaCha8Rng,
        written: &mut Ranges,
        has_gets: bool,
        tag_bytes: usize,
    ) -> Option<Action> {
        let &Ends {
            by,
            other,
            area,
            own_bytes,
            other_bytes,
        } = self;
        let is_unbuffered = rng.random_bool(0.4);
        Some(match rng.random_range(0..3) {
            0 => {
                let length = some_length(rng, other_bytes);
                Action::Put {
                    by,
                    to: other,
                    area,
                    at: written.take(area, other, length, other_bytes)?,
                    bytes: random_bytes(rng, length),
                    is_unbuffered,
                }
            }
            1 if has_gets => {
                let length = some_length(rng, other_bytes.min(own_bytes));
                let into = written.take(area, by, length, own_bytes)?;
                // The source of an unbuffered get must not change in the superstep.
                let at = match is_unbuffered {
                    true => written.take(area, other, length, other_bytes)?,
                    false => rng.random_range(0..=other_bytes - length),
                };
                Action::Get {
                    by,
                    of: other,
                    area,
                    at,
                    length,
                    into,
                    is_unbuffered,
                }
            }
            _ => {
                let length = some_length(rng, LONGEST_BYTES);
                Action::Send {
                    by,
                    to: other,
                    tag: random_bytes(rng, tag_bytes),
                    payload: random_bytes(rng, length),
                }
            }
        })
    }
}

impl Program {
    /// A random program for `size` ranks, derived from a seed.
    pub fn random(seed: u64, size: usize, supersteps: usize) -> Program {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut state = State {
            memory: vec![vec![vec![0; AREA_BYTES]; size]],
            queues: vec![Vec::new(); size],
        };
        let mut program = Program {
            size,
            supersteps: Vec::new(),
            after: Vec::new(),
        };
        let mut alive = vec![0];
        let (mut sent_tag, mut set_tag) = (0, 0);
        for _ in 0..supersteps {
            let mut step = Superstep::default();
            program.fill(&mut rng, &state, &alive, sent_tag, &mut step);
            program.finish(&mut state, &step);
            if rng.random_bool(0.15) {
                let parts: Vec<_> = (0..size).map(|_| rng.random_range(1..5_000)).collect();
                let memory = parts.iter().map(|bytes| vec![0; *bytes]);
                state.memory.push(memory.collect());
                alive.push(state.memory.len() - 1);
                step.push = Some(parts);
            }
            if alive.len() > 2 && rng.random_bool(0.2) {
                // Skip the area just pushed, which is not registered yet.
                let which = rng.random_range(1..alive.len() - 1);
                step.pop = Some(alive.remove(which));
            }
            sent_tag = set_tag;
            if rng.random_bool(0.1) {
                set_tag = rng.random_range(0..20);
                step.tag_bytes = Some(set_tag);
                sent_tag = set_tag;
            }
            program.supersteps.push(step);
            program.after.push(state.clone());
        }
        program
    }

    fn fill(
        &self,
        rng: &mut ChaCha8Rng,
        state: &State,
        alive: &[usize],
        tag_bytes: usize,
        step: &mut Superstep,
    ) {
        let ranges = vec![vec![0; self.size]; state.memory.len()];
        // Ranges that are destinations, or whose bytes may be read at any time.
        let mut written = Ranges(ranges);
        let count = match rng.random_range(0..4) {
            0 => 0,
            1 => 1,
            _ => rng.random_range(0..8 * self.size),
        };
        let has_gets = rng.random_bool(0.5);
        for _ in 0..count {
            let (by, other) = (
                rng.random_range(0..self.size),
                rng.random_range(0..self.size),
            );
            let area = alive[rng.random_range(0..alive.len())];
            let bytes = |rank: usize| state.memory[area][rank].len();
            let ends = Ends {
                by,
                other,
                area,
                own_bytes: bytes(by),
                other_bytes: bytes(other),
            };
            let action = ends.random_action(rng, &mut written, has_gets, tag_bytes);
            let Some(action) = action else {
                continue;
            };
            // Sometimes also puts to the destination of the get: the put must win.
            if let Action::Get {
                by,
                area,
                into,
                length,
                is_unbuffered: false,
                ..
            } = action
                && rng.random_bool(0.3)
            {
                step.actions.push(Action::Put {
                    by: other,
                    to: by,
                    area,
                    at: into,
                    bytes: random_bytes(rng, length),
                    is_unbuffered: false,
                });
            }
            step.actions.push(action);
        }
        // Nothing else may read these bytes in the superstep.
        let unbuffered: Vec<_> = step.actions.iter().filter_map(Action::unbuffered).collect();
        step.actions.retain(|action| {
            !matches!(action, Action::Get { of, area, at, length, .. }
            if unbuffered.iter().any(|(to, there, range)| {
                (to, there) == (of, area) && range.start < at + length && *at < range.end
            }))
        });
        if rng.random_bool(0.5) {
            let area = alive[rng.random_range(0..alive.len())];
            let to = rng.random_range(0..self.size);
            let bytes = state.memory[area][to].len();
            self.contest(rng, &mut written, step, (area, to, bytes));
        }
    }

    /// Lets several ranks put to the same bytes of an area's part, to all of them or to some.
    fn contest(
        &self,
        rng: &mut ChaCha8Rng,
        written: &mut Ranges,
        step: &mut Superstep,
        (area, to, bytes): (usize, usize, usize),
    ) {
        let length = match rng.random_bool(0.5) {
            true => LONGEST_BYTES.min(bytes),
            false => some_length(rng, bytes),
        };
        let Some(start) = written.take(area, to, length, bytes) else {
            return;
        };
        for _ in 0..rng.random_range(2..=self.size + 1) {
            let part = match rng.random_bool(0.5) {
                true => 0..length,
                false => rng.random_range(0..=length / 2)..rng.random_range(length / 2..=length),
            };
            step.actions.push(Action::Put {
                by: rng.random_range(0..self.size),
                to,
                area,
                at: start + part.start,
                bytes: random_bytes(rng, part.len()),
                is_unbuffered: false,
            });
        }
    }

    /// Applies a superstep to the state.
    fn finish(&self, state: &mut State, step: &Superstep) {
        let before = state.memory.clone();
        for queue in &mut state.queues {
            queue.clear();
        }
        for action in &step.actions {
            if let Action::Get {
                by,
                of,
                area,
                at,
                length,
                into,
                ..
            } = action
            {
                let got = &before[*area][*of][*at..at + length];
                state.memory[*area][*by][*into..into + length].copy_from_slice(got);
            }
        }
        // The sort is stable: each rank's own calls keep their order.
        let mut by_rank: Vec<&Action> = step.actions.iter().collect();
        by_rank.sort_by_key(|action| action.by());
        for action in by_rank {
            match action {
                Action::Put {
                    to,
                    area,
                    at,
                    bytes,
                    ..
                } => {
                    state.memory[*area][*to][*at..at + bytes.len()].copy_from_slice(bytes);
                }
                Action::Send {
                    to, tag, payload, ..
                } => state.queues[*to].push((tag.clone(), payload.clone())),
                Action::Get { .. } => {}
            }
        }
        for range in step.actions.iter().filter_map(Action::freed) {
            state.memory[range.1][range.0][range.2].fill(SCRIBBLE);
        }
    }

    /// Runs this rank's part, and compares its state after each superstep. Calls `compute` in each.
    pub fn run<C: Carrier>(
        &self,
        process: &mut Process<C>,
        mut compute: impl FnMut(usize),
    ) -> Result<(), Failure> {
        let rank = process.rank() as usize;
        let mut memory: Vec<Vec<u8>> = vec![vec![0; AREA_BYTES]];
        register(process, &mut memory[0])?;
        process.sync()?;
        for (number, (step, after)) in self.supersteps.iter().zip(&self.after).enumerate() {
            compute(number);
            let mut sources = Vec::new();
            for action in &step.actions {
                act(process, rank, &mut memory, action, &mut sources)?;
            }
            if let Some(parts) = &step.push {
                memory.push(vec![0; parts[rank]]);
                let last = memory.len() - 1;
                register(process, &mut memory[last])?;
            }
            if let Some(area) = step.pop {
                process.pop_registration(handle(&memory[area]))?;
            }
            if let Some(bytes) = step.tag_bytes {
                process.set_tag_size(bytes as u64);
            }
            process.sync()?;
            // The sources of unbuffered puts belong to this rank again.
            for bytes in &mut sources {
                bytes.fill(SCRIBBLE);
            }
            let freed = step.actions.iter().filter_map(Action::freed);
            for (_, area, range) in freed.filter(|(of, ..)| *of == rank) {
                memory[area][range].fill(SCRIBBLE);
            }
            for (area, found) in memory.iter().enumerate() {
                let expected = &after.memory[area][rank];
                let differs = (found.iter().zip(expected)).position(|(one, other)| one != other);
                assert_eq!(
                    differs, None,
                    "rank {rank}, superstep {number}, area {area}: {step:?}"
                );
            }
            let mut mail = Mail::new();
            let expected = &after.queues[rank];
            let bytes: usize = expected.iter().map(|(_, payload)| payload.len()).sum();
            assert_eq!(process.queue_size(), (expected.len() as u64, bytes as u64));
            // Messages that are not received must be dropped by the next superstep.
            if number % 3 == 2 {
                continue;
            }
            while let Some(message) = process.take_message() {
                mail.push((message.tag.to_vec(), message.payload.to_vec()));
            }
            assert!(
                mail == after.queues[rank],
                "rank {rank}, superstep {number}: wrong messages"
            );
        }
        Ok(())
    }
}

fn handle(memory: &[u8]) -> *const c_void {
    memory.as_ptr().cast()
}

fn register<C: Carrier>(process: &mut Process<C>, memory: &mut [u8]) -> Result<(), Failure> {
    let bytes = memory.len() as u64;
    // SAFETY: the memory lives until the program has ended, and is compared only between supersteps.
    unsafe { process.push_registration(memory.as_mut_ptr().cast(), bytes) }
}

fn act<C: Carrier>(
    process: &mut Process<C>,
    rank: usize,
    memory: &mut [Vec<u8>],
    action: &Action,
    sources: &mut Vec<Vec<u8>>,
) -> Result<(), Failure> {
    let number = |rank: usize| u32::try_from(rank).expect("a rank");
    match action {
        Action::Put {
            by,
            to,
            area,
            at,
            bytes,
            is_unbuffered,
        } if *by == rank => {
            let area = handle(&memory[*area]);
            let (to, at, length) = (number(*to), *at as u64, bytes.len() as u64);
            let mut source = bytes.clone();
            if *is_unbuffered {
                sources.push(source);
                let source = sources[sources.len() - 1].as_ptr();
                // SAFETY: `sources` keeps it unchanged until the superstep has ended.
                unsafe { process.put_unbuffered(to, source, area, at, length) }
            } else {
                // SAFETY: `source` lives as long as the call.
                let put = unsafe { process.put(to, source.as_ptr(), area, at, length) };
                source.fill(SCRIBBLE);
                put
            }
        }
        Action::Get {
            by,
            of,
            area,
            at,
            length,
            into,
            is_unbuffered,
        } if *by == rank => {
            let memory = &mut memory[*area];
            let place = memory[*into..into + length].as_mut_ptr();
            let area = handle(memory);
            let (of, at, length) = (number(*of), *at as u64, *length as u64);
            // SAFETY: the range is inside memory that lives until the program has ended.
            unsafe {
                match is_unbuffered {
                    true => process.get_unbuffered(of, area, at, place, length),
                    false => process.get(of, area, at, place, length),
                }
            }
        }
        Action::Send {
            by,
            to,
            tag,
            payload,
        } if *by == rank => {
            let length = payload.len() as u64;
            // SAFETY: the tag has the current tag size, and `length` is that of the payload.
            unsafe { process.send(number(*to), tag.as_ptr(), payload.as_ptr(), length) }
        }
        _ => Ok(()),
    }
}

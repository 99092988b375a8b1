//! The plan of faults: a pure function of the seed, the options and the shape of the cluster.

use std::fmt;
use std::time::Duration;

use dipole_testbed::Faults;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use crate::amount::{Probability, Repeated};
use crate::arguments::{FaultArgs, Shape};
use crate::error::ChaosError;

/// A fault that begins at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// All packets of the node on this network are lost.
    Cut { node: u32, network: u32 },
    /// The interface of the node goes down.
    Unplug { node: u32, network: u32 },
    /// The processes of the rank are stopped.
    Pause { rank: u32 },
    /// The processes of the rank are killed.
    Kill { rank: u32 },
}

/// One event of the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Since the start of the program.
    pub(crate) at: Duration,
    pub(crate) action: Action,
    /// Zero for an event that is not undone.
    pub(crate) lasts: Duration,
}

/// Everything that the seed decides.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    /// Faults of single packets until [`duration`](Self::duration).
    pub(crate) packets: Faults,
    pub(crate) duration: Duration,
    /// In order of time.
    pub(crate) events: Vec<Event>,
    /// By how much the clock of each node is ahead of the machine's: whole seconds, which is what
    /// `unshare` takes.
    pub(crate) clocks: Vec<Duration>,
}

/// Streams of the generator: each kind of event has its own, so that adding one kind leaves the
/// others where they are.
#[derive(Clone, Copy)]
enum Stream {
    Cut = 1,
    Unplug,
    Pause,
    Kill,
    Clock,
}

/// Draws numbers for one kind of event.
struct Dice(ChaCha8Rng);

impl Dice {
    fn new(seed: u64, stream: Stream) -> Dice {
        let mut generator = ChaCha8Rng::seed_from_u64(seed);
        // The streams of the switch are its networks, which are fewer.
        generator.set_stream(1000 + stream as u64);
        Dice(generator)
    }

    /// A number below a limit that is not zero.
    fn below(&mut self, limit: u32) -> u32 {
        self.0.next_u32() % limit
    }

    /// A time below a limit, in whole milliseconds.
    fn time(&mut self, limit: Duration) -> Duration {
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.0.next_u64() % limit_ms.max(1))
    }
}

impl Plan {
    /// Draws the plan.
    ///
    /// # Errors
    /// An event does not fit into the duration, or more ranks are to be killed than exist.
    pub(crate) fn draw(seed: u64, args: &FaultArgs, shape: &Shape) -> Result<Plan, ChaosError> {
        let chance = |given: Option<Probability>| given.unwrap_or_default().0;
        let delay = args.delay;
        let packets = Faults {
            drop: chance(args.loss),
            repeat: chance(args.duplicate),
            reorder: chance(args.reorder),
            corrupt: chance(args.corrupt),
            delay: chance(delay.map(|delay| delay.probability)),
            delay_time: delay.map_or(Duration::ZERO, |delay| delay.time),
            seed,
        };
        let mut events = Vec::new();
        for (stream, name, wanted) in [
            (Stream::Cut, "--cut", args.cut),
            (Stream::Unplug, "--unplug", args.unplug),
            (Stream::Pause, "--pause", args.pause),
        ] {
            let Some(Repeated { count, each }) = wanted else {
                continue;
            };
            if each > args.duration {
                return Err(ChaosError::Usage(format!(
                    "{name} lasts longer than all faults (--for {}); raise --for",
                    Shown(args.duration)
                )));
            }
            let mut dice = Dice::new(seed, stream);
            for _ in 0..count {
                let (at, of) = (dice.time(args.duration - each), dice.below(u32::MAX));
                let (node, network) = (1 + of % shape.nodes, dice.below(shape.networks));
                let action = match stream {
                    Stream::Cut => Action::Cut { node, network },
                    Stream::Unplug => Action::Unplug { node, network },
                    _ => Action::Pause {
                        rank: of % shape.ranks,
                    },
                };
                events.push(Event {
                    at,
                    action,
                    lasts: each,
                });
            }
        }
        events.extend(kills(seed, args, shape)?);
        events.sort_by_key(|event| event.at);
        Ok(Plan {
            seed,
            packets,
            duration: args.duration,
            events,
            clocks: clocks(seed, args, shape),
        })
    }

    /// True if the switch damages, loses, repeats, delays or reorders packets.
    pub(crate) fn has_packet_faults(&self) -> bool {
        let Faults {
            drop,
            repeat,
            reorder,
            delay,
            corrupt,
            ..
        } = self.packets;
        [drop, repeat, reorder, delay, corrupt]
            .iter()
            .any(|probability| *probability > 0.0)
    }
}

/// Kills different ranks.
fn kills(seed: u64, args: &FaultArgs, shape: &Shape) -> Result<Vec<Event>, ChaosError> {
    if args.kill > shape.ranks {
        return Err(ChaosError::Usage(format!(
            "--kill {} is more than the {} ranks of the program; give fewer, or more ranks (-n)",
            args.kill, shape.ranks
        )));
    }
    let mut dice = Dice::new(seed, Stream::Kill);
    let mut living: Vec<u32> = (0..shape.ranks).collect();
    let events = (0..args.kill).map(|_| {
        let left = u32::try_from(living.len()).unwrap_or(u32::MAX);
        let chosen = dice.below(left) as usize;
        Event {
            at: dice.time(args.duration),
            action: Action::Kill {
                rank: living.swap_remove(chosen),
            },
            lasts: Duration::ZERO,
        }
    });
    Ok(events.collect())
}

/// The first node keeps the machine's clock, because the launcher runs there.
fn clocks(seed: u64, args: &FaultArgs, shape: &Shape) -> Vec<Duration> {
    let mut dice = Dice::new(seed, Stream::Clock);
    let drawn = (1..=shape.nodes).map(|node| match args.clock {
        Some(most) if node > 1 => Duration::from_secs(dice.time(most).as_secs().max(1)),
        _ => Duration::ZERO,
    });
    drawn.collect()
}

impl Action {
    /// The name of the action in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Action::Cut { .. } => "cut",
            Action::Unplug { .. } => "unplug",
            Action::Pause { .. } => "pause",
            Action::Kill { .. } => "kill",
        }
    }

    /// A readable name of the node or rank that the action affects.
    pub(crate) fn target(self) -> String {
        match self {
            Action::Cut { node, network } | Action::Unplug { node, network } => {
                format!("node {node} net{network}")
            }
            Action::Pause { rank } | Action::Kill { rank } => format!("rank {rank}"),
        }
    }
}

/// A duration in a readable unit.
pub(crate) struct Shown(pub(crate) Duration);

impl fmt::Display for Shown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            time if time >= Duration::from_secs(1) => write!(out, "{} s", time.as_secs_f64()),
            time => write!(out, "{} ms", time.as_secs_f64() * 1e3),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        nodes: 3,
        networks: 2,
        ranks: 6,
    };

    fn args() -> FaultArgs {
        let repeated = |text: &str| Some(text.parse().expect("valid"));
        FaultArgs {
            cut: repeated("20x100ms"),
            unplug: repeated("5x300ms"),
            pause: repeated("20x1s"),
            kill: 6,
            clock: Some(Duration::from_secs(60)),
            duration: Duration::from_secs(10),
            ..FaultArgs::default()
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_seed_another() {
        let draw = |seed| Plan::draw(seed, &args(), &SHAPE).expect("valid");
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7).events, draw(8).events);
        assert_ne!(draw(7).clocks, draw(8).clocks);
    }

    #[test]
    fn events_are_in_order_within_the_time_and_have_valid_targets() {
        for seed in 0..50 {
            let plan = Plan::draw(seed, &args(), &SHAPE).expect("valid");
            assert_eq!(plan.events.len(), 20 + 5 + 20 + 6);
            assert!(plan.events.is_sorted_by_key(|event| event.at));
            let mut killed = Vec::new();
            for event in &plan.events {
                assert!(event.at + event.lasts <= plan.duration);
                match event.action {
                    Action::Cut { node, network } | Action::Unplug { node, network } => {
                        assert!((1..=3).contains(&node) && network < 2);
                    }
                    Action::Pause { rank } => assert!(rank < 6),
                    Action::Kill { rank } => killed.push(rank),
                }
            }
            killed.sort_unstable();
            assert_eq!(killed, [0, 1, 2, 3, 4, 5]);
            assert_eq!(plan.clocks[0], Duration::ZERO);
        }
    }

    #[test]
    fn one_kind_of_event_does_not_move_the_others() {
        let without = FaultArgs {
            pause: None,
            kill: 0,
            ..args()
        };
        let cuts = |args: &FaultArgs| {
            let plan = Plan::draw(3, args, &SHAPE).expect("valid");
            let cuts = plan.events.into_iter();
            let cuts = cuts.filter(|event| matches!(event.action, Action::Cut { .. }));
            cuts.collect::<Vec<_>>()
        };
        assert_eq!(cuts(&args()), cuts(&without));
    }

    #[test]
    fn plans_that_cannot_be_carried_out_are_refused() {
        let long = FaultArgs {
            cut: Some("11s".parse().expect("valid")),
            ..args()
        };
        let error = Plan::draw(1, &long, &SHAPE).unwrap_err().to_string();
        assert!(error.contains("--cut lasts longer"), "{error}");
        let many = FaultArgs { kill: 7, ..args() };
        let error = Plan::draw(1, &many, &SHAPE).unwrap_err().to_string();
        assert!(error.contains("more than the 6 ranks"), "{error}");
    }
}

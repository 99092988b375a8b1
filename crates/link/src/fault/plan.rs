//! The faults to inject, parsed from text.

use std::str::FromStr;
use std::time::Duration;

use super::shortage::Shortages;

/// Faults to inject, each with a probability per frame, and shortages of resources.
///
/// As text: `drop=0.01,delay=0.1:50us,repeat=0.001,reorder=0.01,corrupt=0.001,seed=7`, with any
/// subset in any order, and `credit=0.1,frames=0.1,rings=0.1,posts=0.1,link=0.1` for
/// [`Shortages`]. The empty text injects nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Probability that a frame is dropped.
    pub drop: f64,
    /// Probability that a frame is delayed by [`delay_time`](Self::delay_time).
    pub delay: f64,
    /// Length of a delay.
    pub delay_time: Duration,
    /// Probability that a frame is sent twice.
    pub repeat: f64,
    /// Probability that one to three later frames overtake a frame.
    pub reorder: f64,
    /// Probability that bits are flipped or the end is cut off.
    pub corrupt: f64,
    /// Resources that seem exhausted.
    pub shortages: Shortages,
    /// Frames with the same order get the same faults from the same seed.
    pub seed: u64,
}

impl Plan {
    /// True if it drops, delays, repeats, reorders or damages packets.
    #[must_use]
    pub fn affects_packets(&self) -> bool {
        let all = [
            self.drop,
            self.delay,
            self.repeat,
            self.reorder,
            self.corrupt,
        ];
        all.iter().any(|&probability| probability > 0.0)
    }
}

/// Why a text is not a valid [`Plan`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A part without `=`.
    #[error("fault plan: `{part}` has no value; write it as name=value, as in drop=0.01")]
    NoValue {
        /// The part of the text.
        part: String,
    },
    /// A name that is not a known fault.
    #[error(
        "fault plan: unknown fault `{name}`; known names are drop, delay, repeat, reorder, \
         corrupt, credit, frames, rings, posts, link and seed"
    )]
    UnknownName {
        /// Name in the text.
        name: String,
    },
    /// A name that occurs twice.
    #[error("fault plan: `{name}` is given twice; keep one")]
    Twice {
        /// Name in the text.
        name: String,
    },
    /// A probability that is not a number from 0 to 1.
    #[error(
        "fault plan: `{value}` is not a probability for {name}; give a number from 0 to 1, as in \
         {name}=0.01"
    )]
    Probability {
        /// Name of the fault.
        name: String,
        /// Value in the text.
        value: String,
    },
    /// A resource that would never be available.
    #[error(
        "fault plan: {name}={value} would stop all traffic; give a probability below 1, as in \
         {name}=0.1"
    )]
    AlwaysShort {
        /// Name of the resource.
        name: String,
        /// Value in the text.
        value: String,
    },
    /// A delay with a missing or invalid time.
    #[error(
        "fault plan: the delay `{value}` has no valid time; \
         give a probability and a time in ns, us, ms or s, as in delay=0.1:50us"
    )]
    Time {
        /// Value in the text.
        value: String,
    },
    /// A seed that is not a whole number.
    #[error("fault plan: the seed `{value}` is not a whole number below 2^64; as in seed=7")]
    Seed {
        /// Value in the text.
        value: String,
    },
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Plan, PlanError> {
        let mut plan = Plan::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let Some((name, value)) = part.split_once('=') else {
                return Err(PlanError::NoValue { part: part.into() });
            };
            let (name, value) = (name.trim(), value.trim());
            if seen.contains(&name) {
                return Err(PlanError::Twice { name: name.into() });
            }
            seen.push(name);
            match name {
                "drop" => plan.drop = probability(name, value)?,
                "repeat" => plan.repeat = probability(name, value)?,
                "reorder" => plan.reorder = probability(name, value)?,
                "corrupt" => plan.corrupt = probability(name, value)?,
                "delay" => {
                    let failed = || PlanError::Time {
                        value: value.into(),
                    };
                    let (chance, time) = value.split_once(':').ok_or_else(failed)?;
                    plan.delay = probability(name, chance)?;
                    plan.delay_time = duration(time).ok_or_else(failed)?;
                }
                "seed" => {
                    plan.seed = value.parse().map_err(|_| PlanError::Seed {
                        value: value.into(),
                    })?;
                }
                _ => match plan.shortages.named(name) {
                    Some(shortage) => *shortage = shortage_of(name, value)?,
                    None => return Err(PlanError::UnknownName { name: name.into() }),
                },
            }
        }
        Ok(plan)
    }
}

fn shortage_of(name: &str, value: &str) -> Result<f64, PlanError> {
    match probability(name, value)? {
        possible if possible < 1.0 => Ok(possible),
        _ => Err(PlanError::AlwaysShort {
            name: name.into(),
            value: value.into(),
        }),
    }
}

fn probability(name: &str, value: &str) -> Result<f64, PlanError> {
    let parsed = value
        .parse()
        .ok()
        .filter(|number| (0.0..=1.0).contains(number));
    parsed.ok_or_else(|| PlanError::Probability {
        name: name.into(),
        value: value.into(),
    })
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit_ns = match &text[digits.len()..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(unit_ns).map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_parsed() {
        let text = "drop=0.01,delay=0.1:50us,repeat=0.001,reorder=0.02,corrupt=0.003,seed=7";
        let plan: Plan = text.parse().unwrap();
        let expected = Plan {
            drop: 0.01,
            delay: 0.1,
            delay_time: Duration::from_micros(50),
            repeat: 0.001,
            reorder: 0.02,
            corrupt: 0.003,
            shortages: Shortages::default(),
            seed: 7,
        };
        assert_eq!(plan, expected);
        assert!(plan.affects_packets());
        assert!(!"".parse::<Plan>().unwrap().affects_packets());
        assert!(
            !" seed=3 , drop=0 "
                .parse::<Plan>()
                .unwrap()
                .affects_packets()
        );
        let short: Plan = "credit=0.1,frames=0.2,rings=0.3,posts=0.4,link=0.5"
            .parse()
            .unwrap();
        let expected = Shortages {
            credit: 0.1,
            frames: 0.2,
            rings: 0.3,
            posts: 0.4,
            link: 0.5,
        };
        assert_eq!(short.shortages, expected);
        assert!(!short.affects_packets());
    }

    #[test]
    fn an_invalid_plan_is_explained_with_a_valid_example() {
        for (text, wrong, right) in [
            ("drop", "`drop` has no value", "drop=0.01"),
            ("dorp=1", "unknown fault `dorp`", "reorder"),
            ("drop=0.1,drop=0.2", "`drop` is given twice", "keep one"),
            (
                "drop=1.5",
                "`1.5` is not a probability for drop",
                "drop=0.01",
            ),
            ("repeat=NaN", "`NaN` is not a probability", "0 to 1"),
            ("delay=0.1", "`0.1` has no valid time", "delay=0.1:50us"),
            (
                "delay=0.1:50",
                "`0.1:50` has no valid time",
                "delay=0.1:50us",
            ),
            (
                "delay=0.1:99999999999999s",
                "no valid time",
                "delay=0.1:50us",
            ),
            ("credit=1", "credit=1 would stop all traffic", "credit=0.1"),
            ("seed=-1", "`-1` is not a whole number", "seed=7"),
        ] {
            let message = text.parse::<Plan>().unwrap_err().to_string();
            assert!(
                message.contains(wrong) && message.contains(right),
                "{text}: {message}"
            );
        }
    }
}

//! Amounts on the command line: probabilities (`1%`), times (`200ms`), repeated times (`3x200ms`).

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Longest time that is accepted: a day.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Events of one kind in a plan.
const MOST_REPEATS: u32 = 1000;

/// A probability from 0 to 1, written as `0.01` or `1%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Probability(pub(crate) f64);

impl FromStr for Probability {
    type Err = String;

    fn from_str(text: &str) -> Result<Probability, String> {
        let (digits, unit) = match text.strip_suffix('%') {
            Some(digits) => (digits, 100.0),
            None => (text, 1.0),
        };
        let number: Option<f64> = digits.parse().ok();
        let share = number.map(|number| number / unit);
        let share = share.filter(|share| (0.0..=1.0).contains(share));
        let wrong = || "give a probability from 0 to 1 or in percent, as in 0.01 or 1%".to_owned();
        share.map(Probability).ok_or_else(wrong)
    }
}

/// Parses a time with its unit, such as `200ms` or `1.5s`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit_s = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err("give a time with its unit (us, ms, s, m, h), as in 200ms".to_owned()),
    };
    let number: Option<f64> = digits.parse().ok();
    let time = number.and_then(|number| Duration::try_from_secs_f64(number * unit_s).ok());
    let time = time.filter(|time| *time > Duration::ZERO && *time <= LONGEST);
    time.ok_or_else(|| "give a time above 0 and up to 24h, as in 200ms or 1.5s".to_owned())
}

/// Times of one kind of event: `200ms` for one, `3x200ms` for three of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Repeated {
    pub(crate) count: u32,
    pub(crate) each: Duration,
}

impl FromStr for Repeated {
    type Err = String;

    fn from_str(text: &str) -> Result<Repeated, String> {
        let Some((count, each)) = text.split_once('x') else {
            let each = time(text)?;
            return Ok(Repeated { count: 1, each });
        };
        let parsed = count.parse().ok();
        let parsed = parsed.filter(|count| (1..=MOST_REPEATS).contains(count));
        let count = parsed.ok_or_else(|| {
            format!("give a count from 1 to {MOST_REPEATS} before the x, as in 3x200ms")
        })?;
        let each = time(each)?;
        Ok(Repeated { count, each })
    }
}

/// A share of packets that is delayed, and by how much: `10%:5ms`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Delay {
    pub(crate) probability: Probability,
    pub(crate) time: Duration,
}

impl FromStr for Delay {
    type Err = String;

    fn from_str(text: &str) -> Result<Delay, String> {
        let parts = text.split_once(':');
        let (probability, delay) =
            parts.ok_or("give a probability and a time, as in 10%:5ms".to_owned())?;
        Ok(Delay {
            probability: probability.parse()?,
            time: time(delay)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn amounts_are_parsed_with_their_units() {
        assert_eq!("1%".parse(), Ok(Probability(0.01)));
        assert_eq!("0.25".parse(), Ok(Probability(0.25)));
        assert_eq!(time("200ms"), Ok(200 * MS));
        assert_eq!(time("1.5s"), Ok(1500 * MS));
        assert_eq!(time("2m"), Ok(120_000 * MS));
        let three = Repeated {
            count: 3,
            each: 20 * MS,
        };
        assert_eq!("3x20ms".parse(), Ok(three));
        assert_eq!("20ms".parse(), Ok(Repeated { count: 1, ..three }));
        let delay = Delay {
            probability: Probability(0.1),
            time: 5 * MS,
        };
        assert_eq!("10%:5ms".parse(), Ok(delay));
    }

    #[test]
    fn invalid_amounts_are_rejected_with_an_example() {
        for text in ["", "%", "101%", "-1", "nan", "1 %", "many"] {
            assert!(text.parse::<Probability>().is_err(), "{text}");
        }
        for text in [
            "", "5", "ms", "0s", "-1s", "nans", "infs", "25h", "1e300s", "5 ms",
        ] {
            assert!(time(text).is_err(), "{text}");
        }
        for text in ["0x5ms", "x5ms", "3x", "3x5", "1001x1ms", "99999999999x1ms"] {
            assert!(text.parse::<Repeated>().is_err(), "{text}");
        }
        for text in ["5ms", "10%", "10%:", ":5ms", "200%:5ms"] {
            assert!(text.parse::<Delay>().is_err(), "{text}");
        }
    }
}

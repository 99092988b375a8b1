//! How often a job is saved.

use std::str::FromStr;
use std::time::Duration;

/// Supersteps or time between two checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// Number of supersteps, at least 1.
    Supersteps(u64),
    /// Time, longer than 0.
    Time(Duration),
}

impl FromStr for Interval {
    type Err = &'static str;

    /// A number of supersteps, or of seconds with an `s`.
    fn from_str(text: &str) -> Result<Interval, Self::Err> {
        let interval = match text.strip_suffix('s') {
            Some(seconds) => {
                let seconds = seconds.parse().ok();
                let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
                time.filter(|time| !time.is_zero()).map(Interval::Time)
            }
            None => {
                let supersteps = text.parse().ok().filter(|supersteps| *supersteps > 0);
                supersteps.map(Interval::Supersteps)
            }
        };
        interval.ok_or("a number of supersteps, such as 1000, or of seconds, such as 60s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_a_time_or_a_number_of_supersteps() {
        let time = |seconds| Ok(Interval::Time(Duration::from_secs_f64(seconds)));
        assert_eq!("60s".parse(), time(60.0));
        assert_eq!("0.5s".parse(), time(0.5));
        assert_eq!("100".parse(), Ok(Interval::Supersteps(100)));
        for wrong in ["", "0", "0s", "-1s", "s", "1m", "infs", "x"] {
            assert!(wrong.parse::<Interval>().is_err(), "{wrong}");
        }
    }
}

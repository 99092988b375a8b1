//! Times on the command line and in the output.

use std::str::FromStr;

/// A time since the first recording began, or before the last one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    ns: u64,
    is_before_end: bool,
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Moment, String> {
        let wrong = || format!("{text} is not a time such as 1.5s, 200ms or -2s");
        let (is_before_end, size) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let units = [("ms", 1e6), ("us", 1e3), ("s", 1e9), ("", 1e9)];
        let (number, unit_ns) = units
            .iter()
            .find_map(|(unit, ns)| Some((size.strip_suffix(unit)?, ns)))
            .ok_or_else(wrong)?;
        let is_number = number.chars().all(|c| c.is_ascii_digit() || c == '.');
        let value: f64 = match is_number {
            true => number.parse().map_err(|_| wrong())?,
            false => return Err(wrong()),
        };
        // Longer than any recording.
        let ns = (value * unit_ns).min(1e18);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and 1e18"
        )]
        Ok(Moment {
            ns: ns as u64,
            is_before_end,
        })
    }
}

impl Moment {
    pub(super) fn is_before_end(self) -> bool {
        self.is_before_end
    }

    /// In nanoseconds since 1970.
    pub(super) fn absolute(self, begin_ns: u64, end_ns: u64) -> u64 {
        match self.is_before_end {
            true => end_ns.saturating_sub(self.ns),
            false => begin_ns.saturating_add(self.ns),
        }
    }
}

/// The part of the recordings to print, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// When the first recording began.
    pub(super) begin_ns: u64,
    pub(super) from_ns: u64,
    pub(super) to_ns: u64,
}

impl Window {
    /// Everything.
    pub(crate) const ALL: Window = Window {
        begin_ns: 0,
        from_ns: 0,
        to_ns: u64::MAX,
    };
}

/// Nanoseconds as seconds with so many digits after the point.
pub(super) fn seconds(ns: u64, digits: usize) -> String {
    let (whole, rest) = (ns / 1_000_000_000, ns % 1_000_000_000);
    let rest = format!("{rest:09}");
    format!("{whole}.{}", &rest[..digits.min(9)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_from_the_start_or_back_from_the_end() {
        let at = |text: &str| {
            text.parse::<Moment>()
                .map(|it| it.absolute(10, 5_000_000_000))
        };
        assert_eq!(at("1.5s"), Ok(1_500_000_010));
        assert_eq!(at("2"), Ok(2_000_000_010));
        assert_eq!(at("200ms"), Ok(200_000_010));
        assert_eq!(at("-2s"), Ok(3_000_000_000));
        assert_eq!(at("-9s"), Ok(0));
        for wrong in ["", "-", "s", "1h", "1e9", "--2", "inf"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_are_cut_not_rounded() {
        assert_eq!(seconds(1_999_999_999, 3), "1.999");
        assert_eq!(seconds(5, 9), "0.000000005");
    }
}

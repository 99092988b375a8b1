//! Port ranges that an administrator has set aside.

use std::fmt;
use std::str::FromStr;

/// A range of two or more ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    first: u16,
    last: u16,
    /// A port in the range that is reserved for another use.
    except: Option<u16>,
}

/// The text is not a valid port range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected two ports or more, as 7412-7500")]
pub struct PortRangeError;

impl PortRange {
    /// The ports `first..=last`; `None` if there are fewer than two, or if 0 is included.
    #[must_use]
    pub fn new(first: u16, last: u16) -> Option<PortRange> {
        (first > 0 && first < last).then_some(PortRange {
            first,
            last,
            except: None,
        })
    }

    /// The same range without one port.
    #[must_use]
    pub fn without(self, port: u16) -> PortRange {
        PortRange {
            except: Some(port),
            ..self
        }
    }

    /// All ports once, starting at one chosen by `random`.
    pub fn from(self, random: u16) -> impl Iterator<Item = u16> {
        // `first` is at least 1, so the length fits.
        let middle = self.first + random % (self.last - self.first + 1);
        let all = (middle..=self.last).chain(self.first..middle);
        all.filter(move |port| Some(*port) != self.except)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for PortRange {
    type Err = PortRangeError;

    fn from_str(text: &str) -> Result<PortRange, PortRangeError> {
        let (first, last) = text.split_once('-').ok_or(PortRangeError)?;
        let port = |text: &str| {
            let digits = text.trim_matches(' ');
            let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
            let number = is_number.then(|| digits.parse().ok()).flatten();
            number.ok_or(PortRangeError)
        };
        PortRange::new(port(first)?, port(last)?).ok_or(PortRangeError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_at_least_two_ports_and_yields_each_once() {
        let range: PortRange = "7412-7500".parse().unwrap();
        assert_eq!(range.to_string(), "7412-7500");
        for random in [0, 1, 88, 89, u16::MAX] {
            let mut ports: Vec<u16> = range.from(random).collect();
            ports.sort_unstable();
            assert_eq!(ports, (7412..=7500).collect::<Vec<u16>>());
        }
        let rest: Vec<u16> = PortRange::new(7, 9).unwrap().without(8).from(1).collect();
        assert_eq!(rest, [9, 7]);
        let all = PortRange::new(1, u16::MAX).unwrap();
        assert_eq!(all.from(7).next(), Some(8));
        assert_eq!(all.from(65_535).count(), 65_535);
        for wrong in [
            "",
            "7412",
            "7412-",
            "-1",
            "7412-7412",
            "8-7",
            "0-9",
            "1-65536",
            "a-b",
            "+8-+9",
            "7-8-9",
            "7412-7500\n",
            "7412-7500\u{1b}[2J",
            "\u{661}-\u{662}",
            &"9".repeat(1 << 20),
            &"-".repeat(1 << 20),
        ] {
            assert_eq!(wrong.parse::<PortRange>(), Err(PortRangeError), "{wrong}");
        }
    }
}

//! Times of the week: `Mon-Fri 19:00-07:00`, `Sat-Sun`, `20:00-06:00`.
//!
//! A range that ends at or before its start ends on the next day. The days are those on which it
//! starts.

use std::fmt;

const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const DAY_MINUTES: u32 = 24 * 60;
const WEEK_MINUTES: u32 = 7 * DAY_MINUTES;

/// A minute of a week that starts on Monday at 0:00.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moment(u32);

impl Moment {
    /// `day` is 0 for Monday.
    pub(crate) fn new(day: u32, hour: u32, minute: u32) -> Moment {
        Moment((day * DAY_MINUTES + hour * 60 + minute) % WEEK_MINUTES)
    }

    /// The current local time.
    pub(crate) fn now() -> Moment {
        let now = jiff::Zoned::now();
        let part = |number: i8| u32::try_from(number).unwrap_or(0);
        let day = part(now.weekday().to_monday_zero_offset());
        Moment::new(day, part(now.hour()), part(now.minute()))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let day = DAYS[(self.0 / DAY_MINUTES) as usize];
        let minute = self.0 % DAY_MINUTES;
        write!(f, "{day} {:02}:{:02}", minute / 60, minute % 60)
    }
}

/// One entry of `hours`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hours {
    /// Text of the rule in the file.
    text: String,
    /// Permitted days of the week; index 0 is Monday.
    days: [bool; 7],
    begin: u32,
    length: u32,
}

impl Hours {
    pub(crate) fn parse(text: &str) -> Result<Hours, String> {
        let wrong = || {
            format!(
                "`{text}` is not a time of the week, such as \"Mon-Fri 19:00-07:00\", \"Sat-Sun\" or \
                 \"20:00-06:00\""
            )
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let (days, times) = match words[..] {
            [part] if part.contains(':') => (None, Some(part)),
            [part] => (Some(part), None),
            [days, times] => (Some(days), Some(times)),
            _ => return Err(wrong()),
        };
        let days = days.map_or(Some([true; 7]), parse_days).ok_or_else(wrong)?;
        let (begin, length) = times
            .map_or(Some((0, DAY_MINUTES)), parse_times)
            .ok_or_else(wrong)?;
        Ok(Hours {
            text: text.to_owned(),
            days,
            begin,
            length,
        })
    }

    pub(crate) fn contains(&self, moment: Moment) -> bool {
        let begins = (0_u32..).zip(self.days).filter(|(_, on)| *on);
        begins
            .map(|(day, _)| day * DAY_MINUTES + self.begin)
            .any(|begin| (moment.0 + WEEK_MINUTES - begin) % WEEK_MINUTES < self.length)
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// `Mon`, `Mon-Fri`, `Fri-Mon`, `Mon,Wed`.
fn parse_days(text: &str) -> Option<[bool; 7]> {
    let number = |name: &str| DAYS.iter().position(|day| day.eq_ignore_ascii_case(name));
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (number(first)?, number(last)?);
        days[day] = true;
        while day != last {
            day = (day + 1) % 7;
            days[day] = true;
        }
    }
    Some(days)
}

/// Start and duration in minutes.
fn parse_times(text: &str) -> Option<(u32, u32)> {
    let (begin, end) = text.split_once('-')?;
    let (begin, end) = (parse_time(begin)?, parse_time(end)?);
    if begin == DAY_MINUTES {
        return None;
    }
    let length = match end > begin {
        true => end - begin,
        false => end + DAY_MINUTES - begin,
    };
    Some((begin, length))
}

/// `7:00`, `19:30`, up to `24:00`.
fn parse_time(text: &str) -> Option<u32> {
    let (hour, minute) = text.split_once(':')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(hour) || !digits(minute) || minute.len() != 2 {
        return None;
    }
    let (hour, minute): (u32, u32) = (hour.parse().ok()?, minute.parse().ok()?);
    let time = hour.checked_mul(60)?.checked_add(minute)?;
    (minute < 60 && time <= DAY_MINUTES).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(text: &str) -> Moment {
        let (day, time) = text.split_once(' ').unwrap();
        let day = DAYS.iter().position(|name| *name == day).unwrap();
        let time = parse_time(time).unwrap();
        Moment::new(u32::try_from(day).unwrap(), time / 60, time % 60)
    }

    #[test]
    fn nights_end_on_the_next_morning_and_whole_days_at_midnight() {
        for (hours, inside, outside) in [
            (
                "Mon-Fri 19:00-07:00",
                "Mon 19:00,Tue 6:59,Sat 6:59,Fri 23:59",
                "Mon 6:59,Mon 18:59,Tue 7:00,Sat 7:00,Sat 20:00,Sun 3:00",
            ),
            ("Sat-Sun", "Sat 0:00,Sun 23:59", "Fri 23:59,Mon 0:00"),
            (
                "20:00-6:00",
                "Mon 0:00,Sun 23:00,Wed 5:59",
                "Wed 6:00,Wed 19:59",
            ),
            ("Sun 22:00-02:00", "Sun 22:00,Mon 1:59", "Mon 2:00,Sun 1:00"),
            (
                "fri-mon 12:00-13:00",
                "Sat 12:30,Mon 12:00",
                "Tue 12:30,Mon 13:00",
            ),
            (
                "Mon,Wed 00:00-24:00",
                "Mon 0:00,Wed 23:59",
                "Tue 0:00,Thu 0:00",
            ),
            ("Tue 8:00-8:00", "Tue 8:00,Wed 7:59", "Wed 8:00,Tue 7:59"),
        ] {
            let parsed = Hours::parse(hours).unwrap();
            for text in inside.split(',') {
                assert!(parsed.contains(moment(text)), "{hours}: {text}");
            }
            for text in outside.split(',') {
                assert!(!parsed.contains(moment(text)), "{hours}: {text}");
            }
        }
    }

    #[test]
    fn an_entry_covers_as_many_minutes_of_the_week_as_written() {
        for (hours, minutes) in [
            ("Mon-Fri 19:00-07:00", 5 * 12 * 60),
            ("Sat-Sun", 2 * 24 * 60),
            ("Mon-Sun 23:59-00:00", 7),
        ] {
            let parsed = Hours::parse(hours).unwrap();
            let inside = (0..WEEK_MINUTES).filter(|minute| parsed.contains(Moment(*minute)));
            assert_eq!(inside.count(), minutes, "{hours}");
        }
    }

    #[test]
    fn an_invalid_time_of_the_week_is_refused() {
        for text in [
            "",
            "Mon-",
            "Monday",
            "7-19",
            "7:00",
            "25:00-26:00",
            "7:60-8:00",
            "24:00-1:00",
            "7:0-8:00",
            "Mon Tue",
            "Mon 7:00-8:00 x",
            "+7:00-8:00",
            "Mon 99999999999:00-8:00",
        ] {
            let error = Hours::parse(text).unwrap_err();
            assert!(error.contains("time of the week"), "{text}: {error}");
        }
    }

    #[test]
    fn moments_print_as_people_write_them() {
        assert_eq!(Moment::new(4, 7, 5).to_string(), "Fri 07:05");
    }
}

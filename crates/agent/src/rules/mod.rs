//! The owner's rules: when others may start work on a node. Without a file all work is accepted.
//!
//! The TOML file is read for each request, so changes take effect at once. An invalid file refuses
//! all work.

mod hours;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use dipole_naming::environment::variable;
use serde::Deserialize;

use super::toml_lines;
use hours::{Hours, Moment};

/// Names the file if `--rules` is absent.
const VARIABLE: &str = "DIPOLE_AGENT_RULES";
const EXPECTED: &str = "max-load = 1.0, hours = [\"Mon-Fri 19:00-07:00\", \"Sat-Sun\"], users-logged-in = \
                        \"allow\", \"refuse-others\" or \"refuse\", max-ranks = 8";

/// The rules in the owner's configuration file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rules {
    /// Maximum load of the last minute, per core.
    max_load: Option<f64>,
    /// Times at which work is accepted; empty for any time.
    hours: Vec<Hours>,
    users: Users,
    max_ranks: Option<u32>,
}

/// Behaviour while users are logged in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Users {
    #[default]
    Allow,
    /// Refuse work while users other than the agent's are logged in.
    RefuseOthers,
    /// Refuse work while any user is logged in.
    Refuse,
}

/// The content of the file.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Written {
    max_load: Option<toml::Spanned<f64>>,
    #[serde(default)]
    hours: Vec<toml::Spanned<String>>,
    #[serde(default)]
    users_logged_in: Users,
    max_ranks: Option<u32>,
}

/// Why the rules cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RulesError {
    #[error("cannot read the owner's rules {file}: {cause}")]
    Unreadable { file: PathBuf, cause: io::Error },
    #[error("the owner's rules {file}, line {line}: {what}; there may be {EXPECTED}")]
    Wrong {
        file: PathBuf,
        line: usize,
        what: String,
    },
}

/// State of the node that the rules refer to.
#[derive(Clone, Debug)]
pub(crate) struct HostState {
    load_per_core: f64,
    moment: Moment,
    /// Users who are logged in.
    users: Vec<String>,
    own_user: String,
}

/// The file of rules: the given one, that of the environment, or the default one if it exists.
pub(crate) fn locate(given: Option<&Path>) -> Option<PathBuf> {
    let set = |name| variable(name).map(PathBuf::from);
    if let Some(file) = given.map(Path::to_owned).or_else(|| set(VARIABLE)) {
        return Some(file);
    }
    let folder = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    let file = folder.join("dipole/agent.toml");
    file.exists().then_some(file)
}

impl Rules {
    /// Reads a file; without one there are no rules.
    pub(crate) fn load(file: Option<&Path>) -> Result<Rules, RulesError> {
        let Some(file) = file else {
            return Ok(Rules::default());
        };
        let text =
            dipole_naming::files::read_text(file).map_err(|cause| RulesError::Unreadable {
                file: file.to_owned(),
                cause,
            })?;
        Rules::parse(&text).map_err(|(line, what)| RulesError::Wrong {
            file: file.to_owned(),
            line,
            what,
        })
    }

    /// Errors have line numbers.
    fn parse(text: &str) -> Result<Rules, (usize, String)> {
        let line_at = |at| toml_lines::line_at(text, at);
        let written: Written = toml_lines::parsed(text)?;
        if let Some(load) = &written.max_load
            && !(0.0..=1e6).contains(load.get_ref())
        {
            let what = format!("max-load {} is not from 0 to 1000000", load.get_ref());
            return Err((line_at(load.span().start), what));
        }
        let hours = written.hours.iter().map(|entry| {
            Hours::parse(entry.get_ref()).map_err(|what| (line_at(entry.span().start), what))
        });
        Ok(Rules {
            max_load: written.max_load.map(toml::Spanned::into_inner),
            hours: hours.collect::<Result<_, _>>()?,
            users: written.users_logged_in,
            max_ranks: written.max_ranks,
        })
    }

    /// How many of the requested ranks may start in addition to `running` ones; `None` for all.
    ///
    /// # Errors
    /// All reasons for a refusal.
    pub(crate) fn evaluate(
        &self,
        state: &HostState,
        running: u32,
        requested: u32,
    ) -> Result<Option<u32>, String> {
        let mut reasons = Vec::new();
        if let Some(limit) = self.max_load
            && state.load_per_core > limit
        {
            let load = state.load_per_core;
            reasons.push(format!(
                "load {load:.2} per core is above the owner's {limit}"
            ));
        }
        if !self.hours.is_empty() && !self.hours.iter().any(|entry| entry.contains(state.moment)) {
            let hours: Vec<String> = self.hours.iter().map(Hours::to_string).collect();
            reasons.push(format!(
                "{} is outside the owner's hours ({})",
                state.moment,
                hours.join(", ")
            ));
        }
        let counts = |user: &&String| match self.users {
            Users::Allow => false,
            Users::RefuseOthers => **user != state.own_user,
            Users::Refuse => true,
        };
        let blocking: Vec<&str> = state
            .users
            .iter()
            .filter(counts)
            .map(String::as_str)
            .collect();
        if !blocking.is_empty() {
            let names = blocking.join(", ");
            reasons.push(format!(
                "{names} is logged in, while the owner allows no logins"
            ));
        }
        let free = self.max_ranks.map(|limit| limit.saturating_sub(running));
        if free == Some(0) {
            reasons.push(format!(
                "{running} ranks run there, and the owner allows at most {}",
                self.max_ranks.unwrap_or(0)
            ));
        }
        match reasons.is_empty() {
            true => Ok(free.map(|free| free.min(requested))),
            false => Err(reasons.join("; ")),
        }
    }
}

impl fmt::Display for Rules {
    /// Writes the rules for display; nothing without rules.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(
            self.max_load
                .map(|load| format!("load per core up to {load}")),
        );
        if !self.hours.is_empty() {
            let hours: Vec<String> = self.hours.iter().map(Hours::to_string).collect();
            parts.push(hours.join(", "));
        }
        match self.users {
            Users::Allow => {}
            Users::RefuseOthers => parts.push("while no other user is logged in".to_owned()),
            Users::Refuse => parts.push("while no user is logged in".to_owned()),
        }
        parts.extend(self.max_ranks.map(|limit| format!("up to {limit} ranks")));
        f.write_str(&parts.join("; "))
    }
}

impl HostState {
    /// Gathers the current state.
    pub(crate) fn gather(rules: &Rules) -> io::Result<HostState> {
        let users = match rules.users {
            Users::Allow => Vec::new(),
            Users::RefuseOthers | Users::Refuse => logged_in()?,
        };
        Ok(HostState {
            load_per_core: load_per_core()?,
            moment: Moment::now(),
            users,
            own_user: std::env::var("USER").unwrap_or_default(),
        })
    }
}

fn load_per_core() -> io::Result<f64> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    let load = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    let load: f64 = load.ok_or_else(|| io::Error::other("/proc/loadavg holds no load"))?;
    Ok(load / f64::from(cores()?))
}

/// Number of cores of the machine, not only those that this process may use.
pub(crate) fn cores() -> io::Result<u32> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let is_core = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let cores = u32::try_from(stat.lines().filter(is_core).count()).unwrap_or(1);
    Ok(cores.max(1))
}

/// Users who are logged in, from `who`, which knows where the system records logins.
pub(crate) fn logged_in() -> io::Result<Vec<String>> {
    let failed =
        |why: String| io::Error::other(format!("`who` failed to list the users logged in: {why}"));
    let output = Command::new("who")
        .env("LC_ALL", "C")
        .output()
        .map_err(|cause| failed(cause.to_string()))?;
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle() -> HostState {
        HostState {
            load_per_core: 0.5,
            moment: Moment::new(0, 12, 0),
            users: Vec::new(),
            own_user: "me".to_owned(),
        }
    }

    fn rules(text: &str) -> Rules {
        Rules::parse(text).unwrap()
    }

    #[test]
    fn without_rules_all_work_is_accepted_and_each_rule_refuses_with_its_reason() {
        assert_eq!(Rules::default().evaluate(&idle(), 0, 5), Ok(None));
        let state = HostState {
            load_per_core: 3.1,
            users: vec!["me".to_owned(), "you".to_owned()],
            ..idle()
        };
        for (text, wanted) in [
            (
                "max-load = 1.0",
                "load 3.10 per core is above the owner's 1",
            ),
            (
                "hours = ['20:00-7:00']",
                "Mon 12:00 is outside the owner's hours (20:00-7:00)",
            ),
            ("users-logged-in = 'refuse'", "me, you is logged in"),
            ("users-logged-in = 'refuse-others'", "you is logged in"),
            (
                "max-ranks = 8",
                "8 ranks run there, and the owner allows at most 8",
            ),
        ] {
            let error = rules(text).evaluate(&state, 8, 1).unwrap_err();
            assert!(error.starts_with(wanted), "{error}");
            assert!(!error.contains(';'), "{error}");
        }
        let all = rules("max-load = 1\nhours = ['Sun']\nmax-ranks = 1");
        assert_eq!(
            all.evaluate(&state, 8, 1).unwrap_err().split("; ").count(),
            3
        );
    }

    #[test]
    fn what_the_rules_allow_is_welcome_up_to_the_max_ranks() {
        let all = rules(
            "max-load = 0.5\nhours = ['Mon 12:00-12:01']\nusers-logged-in = 'refuse'\n\
             max-ranks = 4",
        );
        assert_eq!(all.evaluate(&idle(), 0, 3), Ok(Some(3)));
        assert_eq!(all.evaluate(&idle(), 2, 3), Ok(Some(2)));
        let mine = HostState {
            users: vec!["me".to_owned()],
            ..idle()
        };
        assert_eq!(
            rules("users-logged-in = 'refuse-others'").evaluate(&mine, 0, 1),
            Ok(None)
        );
        assert_eq!(
            rules("users-logged-in = 'allow'").evaluate(&mine, 0, 1),
            Ok(None)
        );
    }

    #[test]
    fn a_wrong_file_is_refused_with_its_line() {
        for (text, line, wanted) in [
            ("\nmax-laod = 1", 2, "max-laod"),
            ("max-load = 'x'", 1, "invalid type"),
            ("# mine\n\nmax-load = -1.0", 3, "max-load -1"),
            ("max-load = nan", 1, "NaN"),
            (
                "hours = [\n'Sat',\n'Sat-'\n]",
                3,
                "`Sat-` is not a time of the week",
            ),
            ("max-ranks = -1", 1, "invalid value"),
            ("users-logged-in = 'maybe'", 1, "maybe"),
            ("max-load = 1\nmax-load = 2", 2, "duplicate"),
            ("max-load", 1, ""),
        ] {
            let (found, error) = Rules::parse(text).unwrap_err();
            assert_eq!(found, line, "{text}: {error}");
            assert!(error.contains(wanted), "{text}: {error}");
        }
        let error = Rules::load(Some(Path::new("/nowhere/agent.toml"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere/agent.toml"), "{error}");
    }

    #[test]
    fn the_facts_of_this_machine_can_be_had() {
        let state = HostState::gather(&Rules::default()).unwrap();
        assert!(state.load_per_core >= 0.0);
        assert!(
            state.users.is_empty(),
            "users are not listed without a rule"
        );
    }
}

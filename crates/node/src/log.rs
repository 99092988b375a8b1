//! Logging for Rust programs, the C libraries and the tools.
//!
//! Without `DIPOLE_LOG`, long waits are logged if standard error is a terminal, and nothing else.
//! Programs with their own `tracing` subscriber keep
//! it and need not call this.

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::Once;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::variables::LOG;

/// The modules that log long waits.
const LONG_WAITS: &str = "dipole_driver=warn,dipole_bsp::slow_wait=warn,dipole_group=warn";

/// `DIPOLE_LOG` is not a valid filter.
#[derive(Debug)]
pub struct LogError {
    found: String,
    cause: String,
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{LOG}: found `{}`, expected a level, such as info: {}",
            self.found, self.cause
        )
    }
}

impl std::error::Error for LogError {}

/// The filter in `DIPOLE_LOG`: a level (`error`, `warn`, `info`, `debug`, `trace`) or levels of
/// modules, as in `warn,dipole_node=debug`. `None` if the variable is not set or empty.
///
/// # Errors
/// The filter is invalid.
pub fn filter() -> Result<Option<EnvFilter>, LogError> {
    match std::env::var_os(LOG) {
        Some(text) if !text.is_empty() => parse(&text.to_string_lossy()).map(Some),
        _ => Ok(None),
    }
}

/// The filter in `DIPOLE_LOG`, or without one, for a terminal, that of long waits: a user who waits
/// in front of it sees what for.
///
/// # Errors
/// The filter is invalid.
pub fn filter_for(is_terminal: bool) -> Result<Option<EnvFilter>, LogError> {
    match filter()? {
        None if is_terminal => parse(LONG_WAITS).map(Some),
        given => Ok(given),
    }
}

fn parse(text: &str) -> Result<EnvFilter, LogError> {
    let wrong = |cause: String| LogError {
        found: text.to_owned(),
        cause,
    };
    // A word alone would name a module, which does not exist, and nothing would be logged.
    if let Some(word) = text
        .split(',')
        .find(|part| !is_level_or_module(part.trim()))
    {
        return Err(wrong(format!(
            "`{word}` is neither a level nor a part of Dipole"
        )));
    }
    let filter = EnvFilter::builder().parse(text);
    filter.map_err(|cause| wrong(cause.to_string()))
}

fn is_level_or_module(part: &str) -> bool {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = LEVELS.iter().any(|level| part.eq_ignore_ascii_case(level));
    part.is_empty() || is_level || part.contains(['=', '[', ':']) || part.starts_with("dipole")
}

/// Logs to standard error according to `DIPOLE_LOG`, in colour on a terminal. Without the variable
/// only long waits are logged, to a terminal. Does nothing if there is already a subscriber.
///
/// # Errors
/// The filter is invalid.
pub fn from_env() -> Result<(), LogError> {
    if let Some(filter) = filter_for(io::stderr().is_terminal())? {
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_target(false)
            .with_ansi(io::stderr().is_terminal() && allows_colours())
            .finish();
        let _another_is_there = log.try_init();
    }
    Ok(())
}

/// False if the user wants no colours, or the terminal shows none.
fn allows_colours() -> bool {
    let is_set = |value: std::ffi::OsString| !value.is_empty();
    let is_refused = std::env::var_os("NO_COLOR").is_some_and(is_set);
    !is_refused && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// Calls [`from_env`] once, for libraries. An invalid `DIPOLE_LOG` is reported on standard error,
/// and nothing is logged.
pub fn init_library(name: &str) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if let Err(wrong) = from_env() {
            use io::Write;
            let _closed = writeln!(io::stderr(), "{name}: {wrong}; nothing is logged");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_levels_of_modules_and_other_text_is_reported() {
        for text in ["info", "warn,dipole_node=debug", "off"] {
            assert!(parse(text).is_ok(), "{text}");
        }
        let wrong = parse("foo,,=").expect_err("no filter").to_string();
        assert!(
            wrong.starts_with("DIPOLE_LOG: found `foo,,=`, expected a level"),
            "{wrong}"
        );
    }
}

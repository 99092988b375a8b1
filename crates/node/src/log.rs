//! Logging for Rust programs, the C libraries and the tools.
//!
//! Nothing is logged unless `DIPOLE_LOG` is set. Programs with their own `tracing` subscriber keep
//! it and need not call this.

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::Once;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::variables::LOG;

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

fn parse(text: &str) -> Result<EnvFilter, LogError> {
    let filter = EnvFilter::builder().parse(text);
    filter.map_err(|cause| LogError {
        found: text.to_owned(),
        cause: cause.to_string(),
    })
}

/// Logs to standard error according to `DIPOLE_LOG`, in colour on a terminal. Does nothing if the
/// variable is not set or there is already a subscriber.
///
/// # Errors
/// The filter is invalid.
pub fn from_env() -> Result<(), LogError> {
    if let Some(filter) = filter()? {
        let log = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .with_target(false)
            .with_ansi(io::stderr().is_terminal())
            .finish();
        let _another_is_there = log.try_init();
    }
    Ok(())
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

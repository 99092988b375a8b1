//! What a program logs: one way for programs in Rust, the libraries for C, and the tools.
//!
//! Nothing is logged unless `DIPOLE_LOG` says what, and a library never installs a subscriber by
//! itself: a program in Rust that has its own (of `tracing`) keeps it and need not call this.

use std::fmt;
use std::io::{self, IsTerminal};
use std::sync::Once;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::variables::LOG;

/// `DIPOLE_LOG` is no filter.
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

/// The filter that `DIPOLE_LOG` asks for: a level (`error`, `warn`, `info`, `debug`, `trace`), or
/// levels of parts, as in `warn,dipole_node=debug`. None if it is not set, or empty.
///
/// # Errors
/// It is no filter.
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

/// From now on this process logs to standard error what `DIPOLE_LOG` asks for; nothing if it is not
/// set, or if there is a subscriber already. In colour where that is a terminal.
///
/// # Errors
/// `DIPOLE_LOG` is no filter.
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

/// [`from_env`] at the first call; for libraries, which say on standard error what is wrong with
/// `DIPOLE_LOG` and go on without a log.
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
    fn a_filter_is_a_level_or_levels_of_parts_and_what_is_none_is_named() {
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

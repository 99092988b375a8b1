//! The interface of subjects.
//!
//! Every subject implements [`Channel`]. The workloads in [`crate::pingpong`] and `flow` are written
//! once for this trait, so that all subjects do the same work.

use std::io;
use std::time::{Duration, Instant};

use crate::control::Outcome;

/// How to send a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMode {
    /// Each message is sent immediately and separately.
    Now,
    /// Together with the following ones, if that is faster.
    More,
    /// Immediately and without acknowledgement, if the subject supports that.
    Unreliable,
}

/// One end of a connection between the two sides.
///
/// "Try" means that a subject that spins returns immediately, and a subject that blocks waits in the
/// call and reports [`io::ErrorKind::TimedOut`].
pub trait Channel {
    /// Sends a message. False if there is no room: try again with the same message, a part of which
    /// may have been sent.
    fn try_send(&mut self, payload: &[u8], mode: SendMode) -> io::Result<bool>;

    /// Sends messages that [`SendMode::More`] has delayed. False if some are left.
    fn try_flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Receives the next message, which must be `length` bytes long, and passes it to `consume` in
    /// place, after exactly one copy out of the transport.
    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>>;

    /// Returns another handle of the same connection, so that one thread can send while another
    /// receives.
    fn second(&self) -> io::Result<Self>
    where
        Self: Sized,
    {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this subject cannot be used by two threads at once; leave out --threads",
        ))
    }

    /// Closes the connection and adds final figures to the outcome.
    fn finish(self, outcome: &mut Outcome) -> io::Result<()>
    where
        Self: Sized,
    {
        let _nothing_to_add = outcome;
        Ok(())
    }
}

/// Failed attempts between two readings of the clock.
const ATTEMPTS_PER_LOOK: u32 = 256;
/// Failed attempts after which the core is yielded. Two spinning sides on one core would otherwise
/// use up their time slices.
const ATTEMPTS_PER_YIELD: u32 = 8192;

/// Repeats `attempt` until it returns a value, for at most `limit`.
pub fn until<R>(
    doing: &str,
    limit: Duration,
    mut attempt: impl FnMut() -> io::Result<Option<R>>,
) -> io::Result<R> {
    let mut since = None;
    let mut attempts = 0_u32;
    loop {
        match attempt() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            // A subject that blocks has a shorter time limit than this function. On a busy machine
            // the other side may not get its core for that long.
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                if since.get_or_insert_with(Instant::now).elapsed() >= limit {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
        attempts = attempts.wrapping_add(1);
        if attempts.is_multiple_of(ATTEMPTS_PER_LOOK) {
            let since = since.get_or_insert_with(Instant::now);
            if since.elapsed() >= limit {
                return Err(timed_out(doing, limit));
            }
            if attempts.is_multiple_of(ATTEMPTS_PER_YIELD) {
                std::thread::yield_now();
            }
        }
    }
}

/// Like [`until`], for attempts that return true when done.
pub fn until_done(
    doing: &str,
    limit: Duration,
    mut attempt: impl FnMut() -> io::Result<bool>,
) -> io::Result<()> {
    until(doing, limit, || Ok(attempt()?.then_some(())))
}

pub fn timed_out(doing: &str, limit: Duration) -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("{doing}: nothing happened for {limit:?}; is the other side alive?"),
    )
}

/// Creates an error about invalid data from the other side.
pub fn broken(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_gives_up_after_its_limit_and_says_what_it_waited_for() {
        let error = until::<()>("waiting for a signal", Duration::ZERO, || Ok(None)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(
            error.to_string().contains("waiting for a signal"),
            "{error}"
        );
    }

    #[test]
    fn until_outlasts_attempts_that_give_up_sooner() {
        let mut calls = 0;
        let value = until("waiting long", Duration::from_secs(60), || {
            calls += 1;
            if calls < 3 {
                return Err(io::Error::from(io::ErrorKind::TimedOut));
            }
            Ok(Some(calls))
        });
        assert_eq!(value.expect("no error"), 3);
        let error = until::<()>("waiting", Duration::ZERO, || {
            Err(io::Error::from(io::ErrorKind::TimedOut))
        });
        let kind = error.expect_err("its time is up").kind();
        assert_eq!(kind, io::ErrorKind::TimedOut);
    }

    #[test]
    fn until_returns_the_first_value() {
        let mut calls = 0;
        let value = until("counting", Duration::from_secs(60), || {
            calls += 1;
            Ok((calls == 1000).then_some(calls))
        });
        assert_eq!(value.expect("no error"), 1000);
    }
}

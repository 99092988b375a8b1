//! What a subject must be able to do to be measured.
//!
//! Every subject, ours and each peer, implements [`Channel`], and the
//! workloads in [`super::pingpong`] and [`super::flow`] are written once over
//! it: so all of them do the same work by construction.

use std::io;
use std::time::{Duration, Instant};

use crate::control::Outcome;

/// How a message is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendMode {
    /// At once, by itself.
    Now,
    /// Together with those that follow, if the subject gains by it.
    More,
    /// At once and unconfirmed, where the subject knows the difference.
    Unreliable,
}

/// One end of a connection between the two sides.
///
/// "Try" means: a subject that spins returns at once, one that blocks waits
/// inside and reports [`io::ErrorKind::TimedOut`] when nothing ever happens.
pub trait Channel {
    /// Hands a message over. False: no room, offer the same one again; a part
    /// of it may have left already.
    fn try_send(&mut self, payload: &[u8], mode: SendMode) -> io::Result<bool>;

    /// Sends off what [`SendMode::More`] held back, if anything ever is. False: not all of it left.
    fn try_flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    /// Takes the next message, which must be `length` bytes, and shows it to
    /// `consume` in place: after exactly one copy out of the transport.
    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>>;

    /// Another handle to the same connection: one thread sends by it while
    /// another receives by this one.
    fn second(&self) -> io::Result<Self>
    where
        Self: Sized,
    {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this subject cannot be used by two threads at once; leave out --threads",
        ))
    }

    /// Closes the connection; adds to the outcome what is known only then.
    fn finish(self, outcome: &mut Outcome) -> io::Result<()>
    where
        Self: Sized,
    {
        let _nothing_to_add = outcome;
        Ok(())
    }
}

/// How many vain attempts pass between two looks at the clock.
const ATTEMPTS_PER_LOOK: u32 = 256;
/// After so many vain attempts the core is offered to others: two spinners on
/// one core would otherwise wait out each other's time slice.
const ATTEMPTS_PER_YIELD: u32 = 8192;

/// Repeats `attempt` until it yields a value, at most `limit` long.
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
            // One that blocks has a patience of its own, shorter than ours: a busy machine
            // may well keep the other side from its core for so long.
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

/// [`until`] for attempts that answer yes or no.
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

/// The other side said something that does not belong there.
pub fn broken(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_gives_up_after_its_limit_and_says_what_it_waited_for() {
        let error = until::<()>("waiting for nobody", Duration::ZERO, || Ok(None)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("waiting for nobody"), "{error}");
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

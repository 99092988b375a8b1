//! How much one user may take of the lender's time: questions, connections, and the closing of
//! descriptors that it was given.
//!
//! To close a stranger's file can take as long as the stranger wants (a socket that lingers, a
//! file system in user space). So that is left to threads, few for each user.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Questions of a user at once: a job that starts.
const BURST: u32 = 512;
/// How soon there is one more.
const REFILL: Duration = Duration::from_millis(10);
/// Connections of a user that have not asked yet.
const MOST_SILENT: usize = 64;
/// Threads that close what a user gave.
const MOST_CLOSING: usize = 8;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Guests {
    guests: HashMap<u32, Guest>,
}

#[derive(Debug)]
struct Guest {
    questions: u32,
    filled: Instant,
    silent: usize,
    closing: Arc<AtomicUsize>,
}

impl Guests {
    fn guest(&mut self, uid: u32, now: Instant) -> &mut Guest {
        self.guests.entry(uid).or_insert_with(|| Guest {
            questions: BURST,
            filled: now,
            silent: 0,
            closing: Arc::default(),
        })
    }

    /// Whether one more connection of a user is heard.
    pub(super) fn enters(&mut self, uid: u32, now: Instant) -> Result<(), String> {
        let guest = self.guest(uid, now);
        if guest.silent >= MOST_SILENT {
            return Err(format!(
                "user {uid} has {} connections that ask nothing",
                guest.silent
            ));
        }
        if guest.closing.load(Ordering::Relaxed) >= MOST_CLOSING {
            return Err(format!(
                "descriptors that user {uid} sent do not get closed"
            ));
        }
        guest.silent += 1;
        Ok(())
    }

    /// A connection that entered has asked, or is gone.
    pub(super) fn has_asked(&mut self, uid: u32) {
        if let Some(guest) = self.guests.get_mut(&uid) {
            guest.silent = guest.silent.saturating_sub(1);
        }
    }

    /// Whether a question of a user is looked at.
    pub(super) fn asks(&mut self, uid: u32, now: Instant) -> Result<(), String> {
        let guest = self.guest(uid, now);
        let since = now.saturating_duration_since(guest.filled);
        let more = since.as_nanos() / REFILL.as_nanos();
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            guest.questions = guest.questions.saturating_add(more).min(BURST);
            guest.filled = now;
        }
        match guest.questions.checked_sub(1) {
            Some(left) => {
                guest.questions = left;
                Ok(())
            }
            None => Err(format!("user {uid} asks too often; again in a second")),
        }
    }

    /// Closes what a user gave, elsewhere.
    pub(super) fn close(&mut self, uid: u32, files: Vec<OwnedFd>, now: Instant) {
        if files.is_empty() {
            return;
        }
        let closing = Arc::clone(&self.guest(uid, now).closing);
        closing.fetch_add(1, Ordering::Relaxed);
        let thread = std::thread::Builder::new()
            .name("dipole-close".to_owned())
            .stack_size(64 << 10);
        let closed = Arc::clone(&closing);
        let spawned = thread.spawn(move || {
            drop(files);
            closed.fetch_sub(1, Ordering::Relaxed);
        });
        if let Err(cause) = spawned {
            closing.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%cause, "no thread to close what a process sent");
        }
    }

    /// Forgets users of whom nothing is left to know.
    pub(super) fn tidy(&mut self, now: Instant) {
        let full = REFILL * BURST;
        self.guests.retain(|_, guest| {
            guest.silent > 0
                || guest.closing.load(Ordering::Relaxed) > 0
                || now.saturating_duration_since(guest.filled) < full
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_asks_too_often_waits_and_others_do_not() {
        let mut guests = Guests::default();
        let now = Instant::now();
        for _ in 0..BURST {
            guests.asks(7, now).unwrap();
        }
        let said = guests.asks(7, now).unwrap_err();
        assert!(said.contains("user 7"), "{said}");
        guests.asks(8, now).unwrap();
        let later = now + REFILL;
        guests.asks(7, later).unwrap();
        guests.asks(7, later).unwrap_err();
        guests.tidy(later);
        guests.asks(7, later).unwrap_err();
        guests.tidy(later + REFILL * BURST);
        assert!(guests.guests.is_empty());
    }

    #[test]
    fn connections_that_ask_nothing_are_few() {
        let mut guests = Guests::default();
        let now = Instant::now();
        for _ in 0..MOST_SILENT {
            guests.enters(7, now).unwrap();
        }
        guests.enters(7, now).unwrap_err();
        guests.enters(8, now).unwrap();
        guests.has_asked(7);
        guests.enters(7, now).unwrap();
    }

    #[test]
    fn a_file_that_takes_long_to_close_holds_up_nobody_and_its_user_is_heard_no_more() {
        use rustix::net::sockopt;
        use std::net::{TcpListener, TcpStream};
        let mut guests = Guests::default();
        let now = Instant::now();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut held = Vec::new();
        for _ in 0..MOST_CLOSING {
            // It lingers until the other side has read what fills both buffers.
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            held.push(listener.accept().unwrap());
            sockopt::set_socket_linger(&stream, Some(Duration::from_secs(600))).unwrap();
            stream.set_nonblocking(true).unwrap();
            let filler = vec![0; 1 << 20];
            while std::io::Write::write(&mut &stream, &filler).is_ok() {}
            guests.close(7, vec![stream.into()], now);
        }
        let said = guests.enters(7, now).unwrap_err();
        assert!(said.contains("do not get closed"), "{said}");
        guests.enters(8, now).unwrap();
        drop(held);
        while guests.enters(7, now).is_err() {
            std::thread::yield_now();
        }
    }
}

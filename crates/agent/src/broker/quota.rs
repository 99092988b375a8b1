//! How much of the broker one user may take: questions, idle connections, and descriptors that
//! wait to be closed.
//!
//! Closing a descriptor that a stranger sent can take as long as the stranger likes (a lingering
//! socket, a file system in user space), so the broker's own thread never does it. Each user has
//! one closing thread while there is something to close: a user can only hold up themselves.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Questions that a user may ask at once: a job that starts.
const BURST: u32 = 512;
/// How soon there is one more.
const REFILL: Duration = Duration::from_millis(10);
/// Connections of a user that have not asked anything yet.
const MAX_SILENT: usize = 64;
/// How long closing may take before its user gets nothing more.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// All users who were there lately.
#[derive(Debug, Default)]
pub(super) struct UserQuotas {
    users: HashMap<u32, UserQuota>,
}

#[derive(Debug)]
struct UserQuota {
    questions: u32,
    refilled: Instant,
    silent: usize,
    closing: Closing,
}

/// Closes descriptors in turn; `None` while it has nothing to do and no thread.
#[derive(Clone, Debug, Default)]
struct Closing(Arc<Mutex<Option<Backlog>>>);

#[derive(Debug)]
struct Backlog {
    files: Vec<OwnedFd>,
    /// Since when the thread is busy with those taken before.
    busy_since: Instant,
}

impl Closing {
    fn backlog(&self) -> std::sync::MutexGuard<'_, Option<Backlog>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, files: Vec<OwnedFd>) {
        let mut backlog = self.backlog();
        if let Some(backlog) = &mut *backlog {
            return backlog.files.extend(files);
        }
        let busy_since = Instant::now();
        *backlog = Some(Backlog { files, busy_since });
        let closing = self.clone();
        let thread = std::thread::Builder::new()
            .name("dipole-close".to_owned())
            .stack_size(64 << 10);
        if let Err(cause) = thread.spawn(move || closing.run()) {
            tracing::warn!(%cause, "no thread to close what a process sent");
            // Closed here, at the risk of waiting: better than never.
            *backlog = None;
        }
    }

    /// Closes until nothing is left.
    fn run(&self) {
        loop {
            let mut guard = self.backlog();
            let Some(backlog) = guard.as_mut().filter(|backlog| !backlog.files.is_empty()) else {
                *guard = None;
                return;
            };
            backlog.busy_since = Instant::now();
            let files = std::mem::take(&mut backlog.files);
            drop(guard);
            drop(files);
        }
    }
}

impl UserQuotas {
    fn user(&mut self, uid: u32, now: Instant) -> &mut UserQuota {
        self.users.entry(uid).or_insert_with(|| UserQuota {
            questions: BURST,
            refilled: now,
            silent: 0,
            closing: Closing::default(),
        })
    }

    /// Admits one more connection of a user, which has not asked anything yet.
    pub(super) fn admit(&mut self, uid: u32, now: Instant) -> Result<(), String> {
        let user = self.user(uid, now);
        if user.silent >= MAX_SILENT {
            return Err(format!(
                "user {uid} has {} connections that ask nothing",
                user.silent
            ));
        }
        let late =
            |backlog: &Backlog| now.saturating_duration_since(backlog.busy_since) > CLOSE_LIMIT;
        if user.closing.backlog().as_ref().is_some_and(late) {
            return Err(format!(
                "descriptors that user {uid} sent do not get closed"
            ));
        }
        user.silent += 1;
        Ok(())
    }

    /// An admitted connection has asked, or is gone.
    pub(super) fn has_asked(&mut self, uid: u32) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.silent = user.silent.saturating_sub(1);
        }
    }

    /// Takes one question off a user's allowance.
    pub(super) fn take_question(&mut self, uid: u32, now: Instant) -> Result<(), String> {
        let user = self.user(uid, now);
        let since = now.saturating_duration_since(user.refilled);
        let more = since.as_nanos() / REFILL.as_nanos();
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            user.questions = user.questions.saturating_add(more).min(BURST);
            user.refilled = now;
        }
        match user.questions.checked_sub(1) {
            Some(left) => {
                user.questions = left;
                Ok(())
            }
            None => Err(format!("user {uid} asks too often; try again in a second")),
        }
    }

    /// Closes what a user sent, on that user's closing thread.
    pub(super) fn close(&mut self, uid: u32, files: Vec<OwnedFd>, now: Instant) {
        if !files.is_empty() {
            self.user(uid, now).closing.add(files);
        }
    }

    /// Forgets users about whom nothing is left to know.
    pub(super) fn tidy(&mut self, now: Instant) {
        let full = REFILL * BURST;
        self.users.retain(|_, user| {
            user.silent > 0
                || user.closing.backlog().is_some()
                || now.saturating_duration_since(user.refilled) < full
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_who_asks_too_often_waits_and_others_do_not() {
        let mut quotas = UserQuotas::default();
        let now = Instant::now();
        for _ in 0..BURST {
            quotas.take_question(7, now).unwrap();
        }
        let refused = quotas.take_question(7, now).unwrap_err();
        assert!(refused.contains("user 7"), "{refused}");
        quotas.take_question(8, now).unwrap();
        let later = now + REFILL;
        quotas.take_question(7, later).unwrap();
        quotas.take_question(7, later).unwrap_err();
        quotas.tidy(later);
        quotas.take_question(7, later).unwrap_err();
        quotas.tidy(later + REFILL * BURST);
        assert!(quotas.users.is_empty());
    }

    #[test]
    fn connections_that_ask_nothing_are_few() {
        let mut quotas = UserQuotas::default();
        let now = Instant::now();
        for _ in 0..MAX_SILENT {
            quotas.admit(7, now).unwrap();
        }
        quotas.admit(7, now).unwrap_err();
        quotas.admit(8, now).unwrap();
        quotas.has_asked(7);
        quotas.admit(7, now).unwrap();
    }

    #[test]
    fn a_file_that_takes_long_to_close_holds_up_only_the_user_who_sent_it() {
        use rustix::net::sockopt;
        use std::net::{TcpListener, TcpStream};
        let mut quotas = UserQuotas::default();
        let now = Instant::now();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // It lingers until the other side has read what fills both buffers.
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let peer = listener.accept().unwrap();
        sockopt::set_socket_linger(&stream, Some(Duration::from_secs(600))).unwrap();
        stream.set_nonblocking(true).unwrap();
        let filler = vec![0; 1 << 20];
        while std::io::Write::write(&mut &stream, &filler).is_ok() {}
        quotas.close(7, vec![stream.into()], now);
        let (open, seen) = std::io::pipe()
            .map(|(reader, writer)| (writer, reader))
            .unwrap();
        quotas.close(8, vec![open.into()], now);
        // The end of the file: the other user's descriptor is closed.
        assert_eq!(std::io::Read::read(&mut &seen, &mut [0]).unwrap(), 0);
        quotas.admit(7, now).unwrap();
        let later = Instant::now() + 2 * CLOSE_LIMIT;
        let refused = quotas.admit(7, later).unwrap_err();
        assert!(refused.contains("do not get closed"), "{refused}");
        // Its closing thread may still have to notice that nothing is left.
        while quotas.admit(8, later).is_err() {
            std::thread::yield_now();
        }
        quotas.tidy(later + REFILL * BURST);
        quotas.admit(7, later).unwrap_err();
        drop(peer);
        while quotas.admit(7, later).is_err() {
            std::thread::yield_now();
        }
    }
}

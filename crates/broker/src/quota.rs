//! Limits for each user: the rate of requests, the number of connections without a request, and
//! descriptors that wait to be closed.
//!
//! Closing a descriptor that a client sent can take arbitrarily long (a lingering socket, a file
//! system in user space), so the broker's main thread never does it. Each user has a closing thread
//! while there is something to close, so that users can only block themselves.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Requests that a user may send at once, for example when a job starts.
const BURST: u32 = 512;
/// Time until one more request is allowed.
const REFILL: Duration = Duration::from_millis(10);
/// Maximum number of connections of a user without a request.
const MAX_SILENT: usize = 64;
/// If closing takes longer, the user's connections are refused.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// Quotas of all users with recent requests.
#[derive(Debug, Default)]
pub(super) struct UserQuotas {
    users: HashMap<u32, UserQuota>,
}

#[derive(Debug)]
struct UserQuota {
    requests: u32,
    refilled: Instant,
    silent: usize,
    closing: Closing,
}

/// Closes descriptors in turn; `None` while there is nothing to do and no thread.
#[derive(Clone, Debug, Default)]
struct Closing(Arc<Mutex<Option<Backlog>>>);

#[derive(Debug)]
struct Backlog {
    files: Vec<OwnedFd>,
    /// When the thread began to close the current descriptors.
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
            tracing::warn!(%cause, "cannot start a thread to close descriptors of a client");
            // Closed here, which may block, but is better than never.
            *backlog = None;
        }
    }

    /// Closes descriptors until none is left.
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
            requests: BURST,
            refilled: now,
            silent: 0,
            closing: Closing::default(),
        })
    }

    /// Admits a connection of a user.
    pub(super) fn admit(&mut self, uid: u32, now: Instant) -> Result<(), String> {
        let user = self.user(uid, now);
        if user.silent >= MAX_SILENT {
            return Err(format!(
                "user {uid} has {} connections without a request",
                user.silent
            ));
        }
        let late =
            |backlog: &Backlog| now.saturating_duration_since(backlog.busy_since) > CLOSE_LIMIT;
        if user.closing.backlog().as_ref().is_some_and(late) {
            return Err(format!("descriptors that user {uid} sent cannot be closed"));
        }
        user.silent += 1;
        Ok(())
    }

    /// Counts the first request, or the end, of an admitted connection.
    pub(super) fn has_requested(&mut self, uid: u32) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.silent = user.silent.saturating_sub(1);
        }
    }

    /// Takes a request off a user's allowance.
    pub(super) fn take_request(&mut self, uid: u32, now: Instant) -> Result<(), String> {
        let user = self.user(uid, now);
        let since = now.saturating_duration_since(user.refilled);
        let more = since.as_nanos() / REFILL.as_nanos();
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            user.requests = user.requests.saturating_add(more).min(BURST);
            user.refilled = now;
        }
        match user.requests.checked_sub(1) {
            Some(left) => {
                user.requests = left;
                Ok(())
            }
            None => Err(format!(
                "user {uid} sends too many requests; try again in a second"
            )),
        }
    }

    /// Closes descriptors of a user on the user's closing thread.
    pub(super) fn close(&mut self, uid: u32, files: Vec<OwnedFd>, now: Instant) {
        if !files.is_empty() {
            self.user(uid, now).closing.add(files);
        }
    }

    /// Forgets users whose limits are unused.
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
    fn a_user_who_sends_too_many_requests_waits_and_others_do_not() {
        let mut quotas = UserQuotas::default();
        let now = Instant::now();
        for _ in 0..BURST {
            quotas.take_request(7, now).unwrap();
        }
        let refused = quotas.take_request(7, now).unwrap_err();
        assert!(refused.contains("user 7"), "{refused}");
        quotas.take_request(8, now).unwrap();
        let later = now + REFILL;
        quotas.take_request(7, later).unwrap();
        quotas.take_request(7, later).unwrap_err();
        quotas.tidy(later);
        quotas.take_request(7, later).unwrap_err();
        quotas.tidy(later + REFILL * BURST);
        assert!(quotas.users.is_empty());
    }

    #[test]
    fn connections_without_a_request_are_limited() {
        let mut quotas = UserQuotas::default();
        let now = Instant::now();
        for _ in 0..MAX_SILENT {
            quotas.admit(7, now).unwrap();
        }
        quotas.admit(7, now).unwrap_err();
        quotas.admit(8, now).unwrap();
        quotas.has_requested(7);
        quotas.admit(7, now).unwrap();
    }

    #[test]
    fn a_file_that_takes_long_to_close_holds_up_only_the_user_who_sent_it() {
        use rustix::net::sockopt;
        use std::net::{TcpListener, TcpStream};
        let mut quotas = UserQuotas::default();
        let now = Instant::now();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Closing blocks until the peer has read everything, because of SO_LINGER.
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
        // End of file shows that the other user's descriptor is closed.
        assert_eq!(std::io::Read::read(&mut &seen, &mut [0]).unwrap(), 0);
        quotas.admit(7, now).unwrap();
        let later = Instant::now() + 2 * CLOSE_LIMIT;
        let refused = quotas.admit(7, later).unwrap_err();
        assert!(refused.contains("cannot be closed"), "{refused}");
        // The closing thread may not have finished yet.
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

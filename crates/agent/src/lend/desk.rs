//! The lender's loop: a thread that hears whoever asks and notices who has gone.
//!
//! Nothing here waits for anybody: a connection that has asked nothing after two seconds is
//! closed, an answer that is not read is the end of it. See [`super::guests`] for what bounds a
//! user.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dipole_bpf::loan::channel::{self, Heard};
use dipole_bpf::loan::proof::Caller;
use dipole_bpf::loan::wire::{Answer, Question, Reason, Refusal, WireError};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::book::{Book, Lent};
use super::guests::Guests;

const LISTENER: u64 = 0;
const END: u64 = 1;
const FIRST_CONNECTION: u64 = 2;
/// Events handled, and connections let in, before anything else is looked at.
const MOST_EVENTS: usize = 64;
/// Connections of all users.
const MOST_CONNECTIONS: usize = 8192;
/// How long a connection may say nothing.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often loans are looked at again.
const ROUND: Duration = Duration::from_secs(1);
/// How long nobody is let in after that failed, for want of descriptors.
const REST: Duration = Duration::from_millis(100);

/// See the module.
pub(super) struct Desk {
    epoll: OwnedFd,
    listener: OwnedFd,
    /// Readable when the agent ends.
    _end: UnixStream,
    book: Arc<Mutex<Book>>,
    guests: Guests,
    connections: HashMap<u64, Connection>,
    next: u64,
    rests_until: Option<Instant>,
}

struct Connection {
    socket: OwnedFd,
    caller: Caller,
    /// Until when it has to ask; `None` when it has a loan.
    until: Option<Instant>,
}

impl Desk {
    pub(super) fn new(
        listener: OwnedFd,
        end: UnixStream,
        book: Arc<Mutex<Book>>,
    ) -> io::Result<Desk> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let watch = |file: &dyn AsFd, token| {
            let data = epoll::EventData::new_u64(token);
            epoll::add(&epoll, file.as_fd(), data, epoll::EventFlags::IN)
        };
        watch(&listener, LISTENER)?;
        watch(&end, END)?;
        Ok(Desk {
            epoll,
            listener,
            _end: end,
            book,
            guests: Guests::default(),
            connections: HashMap::new(),
            next: FIRST_CONNECTION,
            rests_until: None,
        })
    }

    /// Returns when the agent ends.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut round = Instant::now();
        loop {
            let now = Instant::now();
            if now >= round {
                self.look_again(now);
                round = now + ROUND;
            }
            let mut nap = round.saturating_duration_since(now);
            if let Some(until) = self.rests_until {
                nap = nap.min(until.saturating_duration_since(now));
            }
            for token in self.wait(nap)? {
                match token {
                    LISTENER => self.accept(),
                    END => return Ok(()),
                    connection => self.hear(connection),
                }
            }
            if self
                .rests_until
                .is_some_and(|until| until <= Instant::now())
            {
                self.rests_until = None;
                let data = epoll::EventData::new_u64(LISTENER);
                epoll::add(&self.epoll, &self.listener, data, epoll::EventFlags::IN)?;
            }
        }
    }

    fn wait(&self, nap: Duration) -> io::Result<Vec<u64>> {
        let mut ready = Vec::with_capacity(MOST_EVENTS);
        // At least a millisecond, so that a round that is nearly due is not spun for.
        let nap = nap.max(Duration::from_millis(1));
        let nap = Timespec {
            tv_sec: nap.as_secs().cast_signed(),
            tv_nsec: nap.subsec_nanos().into(),
        };
        let into = rustix::buffer::spare_capacity(&mut ready);
        match epoll::wait(&self.epoll, into, Some(&nap)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(ready.iter().map(|event| event.data.u64()).collect())
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(&mut self) {
        for _ in 0..MOST_EVENTS {
            let socket = match channel::accept(self.listener.as_fd()) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(cause) => {
                    tracing::warn!(event = "deaf", %cause, "cannot let in who asks for rings");
                    let _ = epoll::delete(&self.epoll, &self.listener);
                    self.rests_until = Some(Instant::now() + REST);
                    return;
                }
            };
            self.enter(socket);
        }
    }

    fn enter(&mut self, socket: OwnedFd) {
        let now = Instant::now();
        let caller = match Caller::of(socket.as_fd()) {
            Ok(caller) => caller,
            Err(cause) => {
                tracing::warn!(%cause, "the kernel does not say who asks for a ring");
                return;
            }
        };
        let room = match self.connections.len() {
            MOST_CONNECTIONS.. => Err("too many processes have loans".to_owned()),
            _ => self.guests.enters(caller.uid, now),
        };
        if let Err(text) = room {
            tracing::debug!(uid = caller.uid, pid = caller.pid, "turned away: {text}");
            refuse(&socket, Reason::Busy, text);
            self.guests.close(caller.uid, vec![socket], now);
            return;
        }
        let token = self.next;
        self.next += 1;
        let data = epoll::EventData::new_u64(token);
        let watched = epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN);
        let connection = Connection {
            socket,
            caller,
            until: Some(now + PATIENCE),
        };
        self.connections.insert(token, connection);
        if let Err(cause) = watched {
            tracing::warn!(%cause, "cannot hear who asks for a ring");
            self.end(token, Vec::new());
        }
    }

    fn hear(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(&token) else {
            return;
        };
        let (bytes, mut files) = match channel::hear(connection.socket.as_fd()) {
            Heard::Nothing => return,
            Heard::End => return self.end(token, Vec::new()),
            Heard::Message(bytes, files) => (bytes, files),
        };
        if connection.until.take().is_none() {
            // Who has a loan has nothing more to say.
            return self.end(token, files);
        }
        let now = Instant::now();
        let caller = connection.caller.clone();
        self.guests.has_asked(caller.uid);
        let allowed = self.guests.asks(caller.uid, now);
        let answer = match (allowed, Question::decode(&bytes)) {
            (Err(text), _) => Err(refusal(Reason::Busy, text)),
            (Ok(()), Err(error)) => Err(misunderstood(error)),
            (Ok(()), Ok(question)) => self.book().lend(token, &caller, question, &mut files),
        };
        let lent = match answer {
            Ok(lent) => lent,
            Err(refusal) => {
                let (uid, pid) = (caller.uid, caller.pid);
                tracing::debug!(event = "ring-refused", uid, pid, "{}", refusal.text);
                self.book().count_refusal();
                if let Some(connection) = self.connections.get(&token) {
                    let answer = Answer::Refused(refusal);
                    let _hung_up = channel::say(connection.socket.as_fd(), &answer.encode(), &[]);
                }
                return self.end(token, files);
            }
        };
        self.guests.close(caller.uid, files, now);
        let told = self.tell(token, &lent);
        if let Some(replaced) = lent.replaces {
            self.end(replaced, Vec::new());
        }
        if !told || lent.dry {
            self.end(token, Vec::new());
        }
    }

    /// True if the answer has gone.
    fn tell(&self, token: u64, lent: &Lent) -> bool {
        let Some(connection) = self.connections.get(&token) else {
            return false;
        };
        let files: Vec<_> = [&lent.ring, &lent.sender]
            .into_iter()
            .filter_map(|file| file.as_ref().map(AsFd::as_fd))
            .collect();
        let answer = Answer::Granted(lent.granted.clone()).encode();
        channel::say(connection.socket.as_fd(), &answer, &files).is_ok()
    }

    /// Ends a connection and its loan.
    fn end(&mut self, token: u64, mut files: Vec<OwnedFd>) {
        let Some(connection) = self.connections.remove(&token) else {
            return;
        };
        if connection.until.is_some() {
            self.guests.has_asked(connection.caller.uid);
        }
        files.extend(self.book().end(token));
        // It is open until it is closed elsewhere, and would be told of until then.
        let _ = epoll::delete(&self.epoll, &connection.socket);
        files.push(connection.socket);
        self.guests
            .close(connection.caller.uid, files, Instant::now());
    }

    /// What has changed without anybody saying so.
    fn look_again(&mut self, now: Instant) {
        let ended = self.book().look_again(now);
        for token in ended {
            self.end(token, Vec::new());
        }
        let late = |one: &Connection| one.until.is_some_and(|until| until <= now);
        let late = self.connections.iter().filter(|(_, one)| late(one));
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
            self.end(token, Vec::new());
        }
        self.guests.tidy(now);
    }
}

pub(super) fn refusal(reason: Reason, text: impl Into<String>) -> Refusal {
    Refusal {
        reason,
        text: text.into(),
    }
}

fn misunderstood(error: WireError) -> Refusal {
    match error {
        WireError::Version { found } => refusal(
            Reason::Version,
            format!("the question is of version {found}; install the same Dipole as the agent's"),
        ),
        WireError::Nonsense => refusal(Reason::Nonsense, "the question makes no sense"),
    }
}

/// Says so if that can be said at once.
fn refuse(socket: &OwnedFd, reason: Reason, text: String) {
    let answer = Answer::Refused(refusal(reason, text));
    let _unheard = channel::say(socket.as_fd(), &answer.encode(), &[]);
}

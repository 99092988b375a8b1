//! Connections that come, greet, hand over memory, and go: the rare part of a hub.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;

use super::bell::{Bell, Waking};
use super::control::{self, Heard, Said};
use super::memory::{Mapped, Place};
use super::pull::{self, Probe};
use super::ring::{Consumer, Producer};
use super::{
    BELL_BYTES, Closing, Conn, ConnId, Hub, LISTENER, Open, PAGE_BYTES, PeerFacts, ShmEvent,
    small_places,
};
use crate::segment::Segment;

/// Newcomers, and messages of one connection, handled in one call.
const EVENTS: usize = 64;
/// Times so many messages that may lie before a ring in a socket: far more than a
/// socket holds.
const ROUNDS_BEFORE_RING: usize = 64;
/// Connections that may be open without a greeting; the oldest is closed for one more.
const MAX_SILENT: usize = 256;

impl Conn {
    /// The peer broke the format.
    #[cold]
    pub(super) fn break_off(&mut self, what: &'static str, ending: &mut Vec<ConnId>) {
        if !self.is_ending() {
            ending.push(self.id);
        }
        self.broken.get_or_insert(what);
    }

    fn hang_up(&mut self, ending: &mut Vec<ConnId>) {
        if !self.is_ending() {
            ending.push(self.id);
        }
        self.hung_up = true;
    }

    fn is_ending(&self) -> bool {
        self.hung_up || self.broken.is_some()
    }
}

impl Hub {
    /// Connections that come, greet and go, and wake-ups. Bounded work.
    ///
    /// No connection is told of as opened while one whose peer has gone has records left: what
    /// a process has pushed is shown before anything of the process that takes its place.
    ///
    /// # Errors
    /// Only when the epoll is broken.
    pub fn poll_connections(&mut self, events: &mut Vec<ShmEvent>) -> io::Result<()> {
        // With room for all, so that no end is seen later than what came after it.
        let mut ready = Vec::with_capacity(self.conns.len() + 1);
        let timeout = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut ready),
            Some(&timeout),
        ) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut accepts = false;
        let mut beginning = Vec::new();
        for event in ready {
            let token = event.data.u64();
            if token == LISTENER {
                accepts = true;
                continue;
            }
            let index = usize::try_from(token & 0xffff_ffff).unwrap_or(usize::MAX);
            let known = self.conns.get(index).and_then(Option::as_ref);
            match known.filter(|conn| conn.id.token() == token) {
                Some(conn) if conn.open.is_some() => _ = self.hear(index, events),
                Some(_) => beginning.push(index),
                None => {}
            }
        }
        self.end_all(events);
        if !self.ending.is_empty() {
            return Ok(());
        }
        for index in beginning {
            self.hear(index, events);
        }
        if accepts {
            self.accept();
        }
        self.end_all(events);
        Ok(())
    }

    fn end_all(&mut self, events: &mut Vec<ShmEvent>) {
        for conn in std::mem::take(&mut self.ending) {
            self.end(conn, events);
        }
    }

    /// Closes a connection that has ended and tells it, or leaves it for the next call
    /// if something of it has not been taken.
    fn end(&mut self, id: ConnId, events: &mut Vec<ShmEvent>) {
        let Some(conn) = self.find(id) else { return };
        let waits = conn.open.as_ref().is_some_and(|it| it.into.has_record());
        // Who came and never greeted was never told of either.
        let told = conn.begun_here || conn.open.is_some();
        let why = match conn.broken {
            Some(what) => Closing::Broke { what },
            None if waits => {
                self.ending.push(id);
                self.set_active(id.index);
                return;
            }
            None if conn.was_full => Closing::Full,
            None => Closing::HungUp,
        };
        if let Closing::Broke { what } = why {
            self.stats.broken += 1;
            tracing::warn!("a process of this node is cut off, it gave {what}");
        }
        if told {
            let all_read = self.is_read(id);
            events.push(ShmEvent::Closed {
                conn: id,
                why,
                all_read,
            });
        }
        self.close(id);
    }

    /// Lets those in who have connected. What they say is heard in a later call: who has ended
    /// before they came is known by then.
    fn accept(&mut self) {
        for _ in 0..EVENTS {
            let socket = match control::accept(self.listener.as_fd()) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(cause) => {
                    self.turn_away(&cause);
                    return;
                }
            };
            if !self.may_enter(&socket) {
                continue;
            }
            match self.enter(socket, None) {
                Ok(conn) => self.bound_silent(conn),
                Err(cause) => {
                    tracing::warn!("a process of this node is turned away: {cause}");
                }
            }
        }
    }

    /// Whether who has connected is of our user and there is room.
    fn may_enter(&mut self, socket: &OwnedFd) -> bool {
        let own_uid = rustix::process::geteuid().as_raw();
        match crate::sys::peer_credentials(socket.as_fd()) {
            Ok(who) if who.uid == own_uid => {}
            Ok(who) => {
                self.stats.strangers += 1;
                tracing::warn!(
                    "process {} of uid {} is turned away: memory is shared with processes of \
                     uid {own_uid} only",
                    who.pid,
                    who.uid
                );
                return false;
            }
            Err(cause) => {
                tracing::warn!("a process that the kernel cannot name is turned away: {cause}");
                return false;
            }
        }
        if self.is_full() {
            self.stats.turned_away += 1;
            tracing::warn!(
                "a process of this node is turned away: this one has {} connections, its limit \
                 (DIPOLE_MAX_PEERS)",
                self.options.max_connections
            );
            // It is closed next, which tells it as well, without the reason.
            let _ = control::say(socket.as_fd(), &Said::Full, &[]);
            return false;
        }
        true
    }

    /// Nobody can be let in for want of descriptors. Whoever waits would keep the
    /// descriptor readable and this process awake: they are let in with the spare
    /// one, and out again.
    #[cold]
    fn turn_away(&mut self, cause: &io::Error) {
        tracing::warn!("processes of this node are turned away, raise `ulimit -n`: {cause}");
        self.spare = None;
        for _ in 0..EVENTS {
            match control::accept(self.listener.as_fd()) {
                Ok(Some(socket)) => drop(socket),
                Ok(None) | Err(_) => break,
            }
        }
        self.spare = self.bell_file.try_clone().ok();
    }

    /// Keeps those that never greet from taking all descriptors.
    fn bound_silent(&mut self, conn: ConnId) {
        self.silent.push_back(conn);
        if self.silent.len() <= MAX_SILENT {
            return;
        }
        let conns = &self.conns;
        self.silent.retain(|id| {
            let conn = conns.get(id.index()).and_then(Option::as_ref);
            conn.is_some_and(|conn| conn.id == *id && conn.open.is_none())
        });
        if self.silent.len() > MAX_SILENT
            && let Some(oldest) = self.silent.pop_front()
        {
            self.close(oldest);
        }
    }

    /// Reads what a connection's socket has; true if there may be more.
    fn hear(&mut self, index: usize, events: &mut Vec<ShmEvent>) -> bool {
        for _ in 0..EVENTS {
            let Some(Some(conn)) = self.conns.get_mut(index) else {
                return false;
            };
            let done = match control::hear(conn.socket.as_fd()) {
                Ok(Heard::Nothing) => return false,
                Ok(Heard::Message(Said::Wake, _)) => {
                    self.woken = true;
                    Ok(())
                }
                Ok(Heard::Message(Said::Ring, mut files)) => {
                    let place = Place::alone(self.options.ring_slots, self.options.ring_bytes);
                    let ring = files
                        .pop()
                        .map(|file| Segment::open(file.as_fd(), place.end(), true));
                    match (&mut conn.open, ring) {
                        (Some(open), Some(Ok(ring))) => {
                            open.next = Some(ring);
                            Ok(())
                        }
                        _ => Err("a ring that cannot be used"),
                    }
                }
                Ok(Heard::Message(Said::Hello { probe, greeting }, files)) => {
                    let hello = control::hello(self.probe.probe(), &self.greeting);
                    conn.greeted(&hello, &self.bell_file, probe, greeting, files)
                        .map(|opened| events.push(opened))
                }
                Ok(Heard::Message(Said::Full, _)) if conn.begun_here && conn.open.is_none() => {
                    conn.was_full = true;
                    Ok(())
                }
                Ok(Heard::Nonsense | Heard::Message(Said::Full, _)) => {
                    Err("a message of no known form")
                }
                Err(_) => {
                    conn.hang_up(&mut self.ending);
                    // Level-triggered: it would be told again and again.
                    let _ = epoll::delete(&self.epoll, &conn.socket);
                    return false;
                }
            };
            if let Err(what) = done {
                conn.break_off(what, &mut self.ending);
                let _ = epoll::delete(&self.epoll, &conn.socket);
                return false;
            }
        }
        true
    }

    /// The small ring has shown its last record.
    #[cold]
    pub(super) fn move_over(&mut self, index: usize) {
        let mut none = Vec::new();
        for _ in 0..ROUNDS_BEFORE_RING {
            let Some(Some(conn)) = self.conns.get_mut(index) else {
                return;
            };
            let Some(open) = &mut conn.open else { return };
            if let Some(segment) = open.next.take() {
                let place = Place::alone(self.options.ring_slots, self.options.ring_bytes);
                open.into = Consumer::new(Mapped::new(&Arc::new(segment), place));
                return;
            }
            // The ring was sent before the record that promises it.
            if !self.hear(index, &mut none) {
                break;
            }
        }
        let Some(Some(conn)) = self.conns.get_mut(index) else {
            return;
        };
        let Some(open) = &mut conn.open else { return };
        match open.next.take() {
            Some(segment) => {
                let place = Place::alone(self.options.ring_slots, self.options.ring_bytes);
                open.into = Consumer::new(Mapped::new(&Arc::new(segment), place));
            }
            None => conn.break_off("no ring where one was promised", &mut self.ending),
        }
    }
}

impl Conn {
    /// The peer has said who it is and handed over its memory.
    fn greeted(
        &mut self,
        hello: &Said,
        bell: &OwnedFd,
        probe: Probe,
        greeting: Vec<u8>,
        files: Vec<OwnedFd>,
    ) -> Result<ShmEvent, &'static str> {
        if self.open.is_some() {
            return Err("a second greeting");
        }
        let mut files = files.into_iter();
        let own = files.next().ok_or("a greeting without a bell")?;
        let theirs = Segment::open(own.as_fd(), BELL_BYTES, false)
            .map_err(|_| "a bell that cannot be used")?;
        let (page, ours) = match self.page.take() {
            Some(page) => (page, 0),
            None => {
                let file = files.next().ok_or("a greeting without memory")?;
                let page = Segment::open(file.as_fd(), PAGE_BYTES, true)
                    .map_err(|_| "memory that cannot be used")?;
                control::say(self.socket.as_fd(), hello, &[bell.as_fd()])
                    .map_err(|_| "no way to answer its greeting")?;
                (page, 1)
            }
        };
        let page = Arc::new(page);
        let places = small_places();
        let who = crate::sys::peer_credentials(self.socket.as_fd())
            .map_err(|_| "no sign of who it is")?;
        let can_pull = pull::pull(who.pid, probe, 0, &mut []).is_ok();
        self.open = Some(Box::new(Open {
            bell: Bell::new(theirs),
            waking: Waking::default(),
            out: Producer::new(Mapped::new(&page, places[ours])),
            large: false,
            was_full: false,
            into: Consumer::new(Mapped::new(&page, places[1 - ours])),
            pid: who.pid,
            probe,
            can_pull,
            next: None,
        }));
        Ok(ShmEvent::Opened {
            conn: self.id,
            facts: PeerFacts {
                pid: who.pid,
                uid: who.uid,
                gid: who.gid,
                greeting,
            },
        })
    }
}

//! Accepting, handshakes, memory hand-over and closing: the infrequent part of a hub.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;

use super::bell::{Bell, Waking};
use super::control::{self, ControlMessage, ReceivedControl};
use super::memory::{Mapped, RingLayout};
use super::pull::{self, Probe};
use super::ring::{Consumer, Producer};
use super::table::{Connection, OpenRings};
use super::{
    BELL_BYTES, CloseReason, ConnId, Hub, LISTENER, PAGE_BYTES, PeerInfo, ShmEvent,
    small_ring_layouts,
};
use crate::segment::Segment;

/// Maximum connections, or messages per connection, handled in one call.
const EVENTS: usize = 64;
/// Batches of messages read before a promised ring must appear; far more than a socket holds.
const ROUNDS_BEFORE_RING: usize = 64;
/// Maximum open connections without a greeting; beyond that the oldest is closed.
const MAX_UNGREETED: usize = 256;

impl Connection {
    /// Records a format violation by the peer and schedules the connection for closing.
    #[cold]
    pub(super) fn mark_broken(&mut self, what: &'static str, ending: &mut Vec<ConnId>) {
        if !self.is_ending() {
            ending.push(self.id);
        }
        self.broken.get_or_insert(what);
    }

    fn mark_closed(&mut self, ending: &mut Vec<ConnId>) {
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
    /// Handles new connections, handshakes, closed connections and wake-ups. Bounded work.
    ///
    /// Reports no connection as opened while a closed one still has unread records, so all
    /// records of an exited process are seen before those of its successor.
    ///
    /// # Errors
    /// Only when the epoll is broken.
    pub fn poll_connections(&mut self, events: &mut Vec<ShmEvent>) -> io::Result<()> {
        // Room for all events, so that no close is seen later than what followed it.
        let mut ready = Vec::with_capacity(self.table.slots() + 1);
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
            let known = self.table.at(index);
            match known.filter(|conn| conn.id.token() == token) {
                Some(conn) if conn.open.is_some() => _ = self.receive_control(index, events),
                Some(_) => beginning.push(index),
                None => {}
            }
        }
        self.close_ended(events);
        if !self.ending.is_empty() {
            return Ok(());
        }
        for index in beginning {
            self.receive_control(index, events);
        }
        if accepts {
            self.accept();
        }
        self.close_ended(events);
        Ok(())
    }

    fn close_ended(&mut self, events: &mut Vec<ShmEvent>) {
        for conn in std::mem::take(&mut self.ending) {
            self.close_if_drained(conn, events);
        }
    }

    /// Number of answers that the peer had made to the records that [`is_read`](Self::is_read) has
    /// found taken, or more: as many must arrive before their fate is known.
    pub fn answers(&mut self, conn: ConnId) -> u64 {
        let open = self.find(conn).and_then(|found| found.open.as_ref());
        open.map_or(0, |open| open.out.answers())
    }

    /// Sets the number of answers that this side has made, before it pushes anything that follows from
    /// them.
    pub fn set_answers(&mut self, conn: ConnId, count: u64) {
        if let Some(open) = self.find(conn).and_then(|found| found.open.as_mut()) {
            open.into.set_answers(count);
        }
    }

    /// Closes a connection that has ended and reports it, or postpones that to the next call
    /// if unread records are left.
    fn close_if_drained(&mut self, id: ConnId, events: &mut Vec<ShmEvent>) {
        let Some(conn) = self.find(id) else { return };
        let waits = conn.open.as_ref().is_some_and(|it| it.into.has_record());
        // Connections that never sent a greeting were not reported as opened either.
        let told = conn.initiated_here || conn.open.is_some();
        let reason = match conn.broken {
            Some(what) => CloseReason::Violation { what },
            None if waits => {
                self.ending.push(id);
                self.order.set_active(id.index);
                return;
            }
            None => conn.refusal.clone().unwrap_or(CloseReason::HungUp),
        };
        match reason {
            CloseReason::Violation { what } => {
                self.stats.violations += 1;
                tracing::warn!("closing the connection of a local process that sent {what}");
            }
            CloseReason::NoDescriptors { at_peer: false } => tracing::warn!(
                "closing the connection of a local process: this process has no free descriptors for \
                 shared memory, raise `ulimit -n`"
            ),
            _ => {}
        }
        if told {
            let all_read = self.is_read(id);
            let answers = self.answers(id);
            events.push(ShmEvent::Closed {
                conn: id,
                reason,
                all_read,
                answers,
            });
        }
        self.close(id);
    }

    /// Accepts new connections. Their messages are read in a later call, after the end of
    /// earlier connections has been noticed.
    fn accept(&mut self) {
        // It could not be opened again while descriptors were short.
        if self.listener.spare.is_none() {
            self.listener.spare = self.wakeups.bell_file.try_clone().ok();
        }
        for _ in 0..EVENTS {
            let socket = match control::accept(self.listener.socket.as_fd()) {
                Ok(Some(socket)) => socket,
                Ok(None) => return,
                Err(cause) => {
                    self.drop_waiting(&cause);
                    return;
                }
            };
            if !self.is_acceptable(&socket) {
                continue;
            }
            match self.insert(socket, None) {
                Ok(conn) => self.limit_ungreeted(conn),
                Err(cause) => {
                    tracing::warn!("rejecting a connection from a local process: {cause}");
                }
            }
        }
    }

    /// True if the process belongs to our user and there is room for the connection.
    fn is_acceptable(&mut self, socket: &OwnedFd) -> bool {
        let own_uid = rustix::process::geteuid().as_raw();
        match crate::sys::peer_credentials(socket.as_fd()) {
            Ok(who) if who.uid == own_uid => {}
            Ok(who) => {
                self.stats.foreign_users += 1;
                tracing::warn!(
                    "rejecting process {} of uid {}: memory is shared only with processes of \
                     uid {own_uid}",
                    who.pid,
                    who.uid
                );
                return false;
            }
            Err(cause) => {
                tracing::warn!("rejecting a local process whose credentials are unknown: {cause}");
                return false;
            }
        }
        if self.is_full() {
            self.stats.rejected += 1;
            tracing::warn!(
                "rejecting a local process: all {} connections are in use \
                 (limit: DIPOLE_MAX_PEERS)",
                self.options.max_connections
            );
            // The connection is closed next; this message adds the reason.
            let _ = control::send(socket.as_fd(), &ControlMessage::Full, &[]);
            return false;
        }
        true
    }

    /// Accepts and closes pending connections when descriptors have run out, using the spare
    /// one. Otherwise the listener would stay readable and keep this process awake.
    #[cold]
    fn drop_waiting(&mut self, cause: &io::Error) {
        tracing::warn!("rejecting local processes, raise `ulimit -n`: {cause}");
        self.listener.spare = None;
        for _ in 0..EVENTS {
            match control::accept(self.listener.socket.as_fd()) {
                Ok(Some(socket)) => {
                    let _ = control::send(socket.as_fd(), &ControlMessage::NoDescriptors, &[]);
                }
                Ok(None) | Err(_) => break,
            }
        }
        self.listener.spare = self.wakeups.bell_file.try_clone().ok();
    }

    /// Limits the descriptors held by connections that never send a greeting.
    fn limit_ungreeted(&mut self, conn: ConnId) {
        self.ungreeted.push_back(conn);
        if self.ungreeted.len() <= MAX_UNGREETED {
            return;
        }
        let table = &self.table;
        self.ungreeted
            .retain(|id| table.get(*id).is_some_and(|conn| conn.open.is_none()));
        if self.ungreeted.len() > MAX_UNGREETED
            && let Some(oldest) = self.ungreeted.pop_front()
        {
            self.close(oldest);
        }
    }

    /// Reads messages from a connection's socket; true if there may be more.
    fn receive_control(&mut self, index: usize, events: &mut Vec<ShmEvent>) -> bool {
        for _ in 0..EVENTS {
            let Some(conn) = self.table.at_mut(index) else {
                return false;
            };
            let done = match control::receive(conn.socket.as_fd()) {
                Ok(ReceivedControl::Nothing) => return false,
                Ok(ReceivedControl::Message(ControlMessage::Wake, _)) => {
                    self.wakeups.woken = true;
                    Ok(())
                }
                Ok(ReceivedControl::Message(ControlMessage::Ring, mut files)) => {
                    let place =
                        RingLayout::standalone(self.options.ring_slots, self.options.ring_bytes);
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
                Ok(ReceivedControl::Message(ControlMessage::Hello { probe, greeting }, files)) => {
                    let hello = control::hello(self.probe.probe(), &self.greeting);
                    conn.on_hello(&hello, &self.wakeups.bell_file, probe, greeting, files)
                        .map(|opened| events.push(opened))
                }
                Ok(ReceivedControl::Message(ControlMessage::Full, _))
                    if conn.initiated_here && conn.open.is_none() =>
                {
                    conn.refusal = Some(CloseReason::Full);
                    Ok(())
                }
                Ok(ReceivedControl::Message(ControlMessage::NoDescriptors, _)) => {
                    conn.refusal = Some(CloseReason::NoDescriptors { at_peer: true });
                    Ok(())
                }
                Ok(ReceivedControl::NoDescriptors) => {
                    // The connection is closed next; this message adds the reason.
                    let reason = ControlMessage::NoDescriptors;
                    let _ = control::send(conn.socket.as_fd(), &reason, &[]);
                    conn.refusal = Some(CloseReason::NoDescriptors { at_peer: false });
                    conn.mark_closed(&mut self.ending);
                    let _ = epoll::delete(&self.epoll, &conn.socket);
                    return false;
                }
                Ok(
                    ReceivedControl::Malformed | ReceivedControl::Message(ControlMessage::Full, _),
                ) => Err("a malformed message"),
                Err(_) => {
                    conn.mark_closed(&mut self.ending);
                    // Level-triggered: it would be reported again and again.
                    let _ = epoll::delete(&self.epoll, &conn.socket);
                    return false;
                }
            };
            if let Err(what) = done {
                conn.mark_broken(what, &mut self.ending);
                let _ = epoll::delete(&self.epoll, &conn.socket);
                return false;
            }
        }
        true
    }

    /// Replaces the small ring, whose last record was read, by the large one.
    #[cold]
    pub(super) fn switch_ring(&mut self, index: usize) {
        let mut none = Vec::new();
        for _ in 0..ROUNDS_BEFORE_RING {
            let Some(conn) = self.table.at_mut(index) else {
                return;
            };
            let Some(open) = &mut conn.open else { return };
            if let Some(segment) = open.next.take() {
                let place =
                    RingLayout::standalone(self.options.ring_slots, self.options.ring_bytes);
                open.into = open.into.successor(Mapped::new(&Arc::new(segment), place));
                return;
            }
            // The peer sends the ring before the record that announces it.
            if !self.receive_control(index, &mut none) {
                break;
            }
        }
        let Some(conn) = self.table.at_mut(index) else {
            return;
        };
        let Some(open) = &mut conn.open else { return };
        match open.next.take() {
            Some(segment) => {
                let place =
                    RingLayout::standalone(self.options.ring_slots, self.options.ring_bytes);
                open.into = open.into.successor(Mapped::new(&Arc::new(segment), place));
            }
            None => conn.mark_broken("no ring where one was announced", &mut self.ending),
        }
    }
}

impl Connection {
    /// Handles the peer's hello: maps its memory and opens the connection.
    fn on_hello(
        &mut self,
        hello: &ControlMessage,
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
                control::send(self.socket.as_fd(), hello, &[bell.as_fd()])
                    .map_err(|_| "a greeting on a socket that takes no answer")?;
                (page, 1)
            }
        };
        let page = Arc::new(page);
        let places = small_ring_layouts();
        let who =
            crate::sys::peer_credentials(self.socket.as_fd()).map_err(|_| "no credentials")?;
        let can_pull = pull::pull(who.pid, probe, 0, &mut []).is_ok();
        self.open = Some(Box::new(OpenRings {
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
            peer: PeerInfo {
                pid: who.pid,
                uid: who.uid,
                gid: who.gid,
                greeting,
            },
        })
    }
}

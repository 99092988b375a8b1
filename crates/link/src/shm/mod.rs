//! Records between the processes of one node, through shared memory.
//!
//! A [`Hub`] listens on a unix socket. A connecting process passes one page of memory with two
//! small rings, one per direction; a side that needs more space creates a large ring and passes
//! it over the socket. After that the socket carries only wake-ups, and its end of file shows
//! that the other process is gone. The hub moves records and does not interpret them.

mod bell;
mod connections;
mod control;
mod error;
mod event;
mod memory;
#[cfg(all(test, not(miri)))]
mod model;
mod poll_order;
pub mod pull;
mod ring;
mod table;

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::net::Shutdown;

use crate::segment::Segment;
use bell::{Bell, Sleep};
use control::ControlMessage;
pub use error::{PushError, ShmError};
pub use event::{CloseReason, PeerInfo, ShmEvent, ShmStats};
use memory::{CONTROL_BYTES, INLINE_BYTES, Mapped, RingLayout, SLOT_BYTES};
use poll_order::PollOrder;
use pull::OwnProbe;
use ring::{FormatViolation, Producer};
pub use ring::{MAX_RECORD_BYTES, Payload};
use table::{Connection, Table};

/// Maximum greeting length in bytes.
pub const MAX_GREETING_BYTES: usize = 64;
/// Slots in each of the two small rings that every connection starts with.
const SMALL_SLOTS: usize = 8;
/// Size of the page with the small rings.
const PAGE_BYTES: usize = 4096;
const BELL_BYTES: usize = 4096;
/// Tag of the last record in the small ring: all later records are in the large ring.
const RING_SWITCHED: u64 = u64::MAX;
const LISTENER: u64 = u64::MAX;

/// Sizes and limits of a [`Hub`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmOptions {
    /// Slots of a large ring, rounded up to a power of two. Must be the same in all peers.
    pub ring_slots: usize,
    /// Size of a large ring's area for longer payloads, rounded up to a power of two that holds
    /// two maximum-size records. Must be the same in all peers.
    pub ring_bytes: usize,
    /// Maximum number of connections; further ones are rejected. Each takes a descriptor, a
    /// page, and up to two large rings.
    pub max_connections: usize,
}

impl Default for ShmOptions {
    fn default() -> ShmOptions {
        ShmOptions {
            ring_slots: 1024,
            ring_bytes: 1 << 20,
            max_connections: 4096,
        }
    }
}

/// Identifies a connection of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    index: u32,
    generation: u32,
}

impl ConnId {
    /// A small number, reused after the connection has ended.
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }

    pub(crate) fn new(index: u32, generation: u32) -> ConnId {
        ConnId { index, generation }
    }

    fn token(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

/// The socket on which peers connect.
#[derive(Debug)]
struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Closed temporarily to accept and reject connections when descriptors run out.
    spare: Option<OwnedFd>,
}

/// This hub's sleep state, and what must wake its caller.
#[derive(Debug)]
struct Wakeups {
    bell: Bell,
    /// The bell's memory, passed to peers.
    bell_file: OwnedFd,
    sleep: Sleep,
    /// A wake-up was read from a socket.
    woken: bool,
    /// Room that a sender waits for is available on some connection, not reported yet.
    room_available: bool,
}

impl Wakeups {
    fn begin_sleep(&mut self) {
        self.sleep.begin(self.bell.word());
    }

    fn end_sleep(&mut self) {
        self.sleep.end(self.bell.word());
    }

    /// True once after a wake-up was read, or after requested room was noticed.
    #[inline]
    fn take(&mut self) -> bool {
        mem::take(&mut self.woken) | mem::take(&mut self.room_available)
    }
}

/// One process's shared-memory connections to the other processes of its node.
#[derive(Debug)]
pub struct Hub {
    options: ShmOptions,
    greeting: Vec<u8>,
    /// The process that opened the hub; a forked child must not touch what it shares.
    pid: u32,
    listener: Listener,
    epoll: OwnedFd,
    wakeups: Wakeups,
    probe: OwnProbe,
    table: Table,
    order: PollOrder,
    /// Connections that closed or violated the format and have not been reported yet.
    ending: Vec<ConnId>,
    /// Accepted connections without a greeting yet, oldest first.
    ungreeted: VecDeque<ConnId>,
    stats: ShmStats,
}

/// Layouts of the two small rings: index 0 is written by the connecting side.
fn small_ring_layouts() -> [RingLayout; 2] {
    let place = |index: usize| {
        let slots = 2 * CONTROL_BYTES + index * SMALL_SLOTS * SLOT_BYTES;
        RingLayout {
            control: index * CONTROL_BYTES,
            slots,
            slot_count: SMALL_SLOTS,
            area: slots,
            near_bytes: 0,
            wide_bytes: 0,
        }
    };
    [place(0), place(1)]
}

impl Hub {
    /// Listens on `socket`, a file created with mode 0600. `greeting` is sent to every peer.
    ///
    /// # Errors
    /// [`ShmError`].
    pub fn open(socket: &Path, greeting: &[u8], options: &ShmOptions) -> Result<Hub, ShmError> {
        if greeting.len() > MAX_GREETING_BYTES {
            return Err(ShmError::GreetingTooLong {
                length: greeting.len(),
            });
        }
        let failed = |cause| ShmError::Socket {
            path: socket.to_owned(),
            cause,
        };
        let listener = control::listen(socket).map_err(failed)?;
        let (segment, bell_file) = Segment::create_own(BELL_BYTES).map_err(ShmError::Memory)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| ShmError::Memory(error.into()))?;
        epoll::add(
            &epoll,
            &listener,
            epoll::EventData::new_u64(LISTENER),
            epoll::EventFlags::IN,
        )
        .map_err(|error| ShmError::Memory(error.into()))?;
        let spare = Some(bell_file.try_clone().map_err(ShmError::Memory)?);
        let ring_bytes = options.ring_bytes.max(2 * MAX_RECORD_BYTES);
        Ok(Hub {
            options: ShmOptions {
                ring_slots: options.ring_slots.max(SMALL_SLOTS).next_power_of_two(),
                ring_bytes: ring_bytes.next_power_of_two(),
                max_connections: options.max_connections,
            },
            greeting: greeting.to_vec(),
            pid: std::process::id(),
            listener: Listener {
                socket: listener,
                path: socket.to_owned(),
                spare,
            },
            epoll,
            wakeups: Wakeups {
                bell: Bell::new(segment),
                bell_file,
                sleep: Sleep::default(),
                woken: false,
                room_available: false,
            },
            probe: OwnProbe::random(),
            table: Table::default(),
            order: PollOrder::default(),
            ending: Vec::new(),
            ungreeted: VecDeque::new(),
            stats: ShmStats::default(),
        })
    }

    /// Readable when [`poll_connections`](Self::poll_connections) has work.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Starts a connection; [`poll_connections`](Self::poll_connections) reports the outcome.
    ///
    /// # Errors
    /// No process listens there, access is denied, the listener belongs to another user
    /// ([`ShmError::Foreign`]), or the connection limit is reached.
    pub fn connect(&mut self, socket: &Path) -> Result<ConnId, ShmError> {
        let failed = |cause| ShmError::Socket {
            path: socket.to_owned(),
            cause,
        };
        if self.is_full() {
            return Err(ShmError::TooMany {
                limit: self.options.max_connections,
            });
        }
        let stream = control::connect(socket).map_err(failed)?;
        let own_uid = rustix::process::geteuid().as_raw();
        let who = crate::sys::peer_credentials(stream.as_fd()).map_err(failed)?;
        if who.uid != own_uid {
            return Err(ShmError::Foreign {
                path: socket.to_owned(),
                pid: who.pid,
                uid: who.uid,
                own_uid,
            });
        }
        let (segment, file) = Segment::create(PAGE_BYTES).map_err(ShmError::Memory)?;
        let hello = control::hello(self.probe.probe(), &self.greeting);
        let files = [self.wakeups.bell_file.as_fd(), file.as_fd()];
        match control::send(stream.as_fd(), &hello, &files) {
            // A peer that is full or exiting has closed already; its last message is still read.
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {}
            sent => sent.map_err(failed)?,
        }
        self.insert(stream, Some(segment)).map_err(ShmError::Memory)
    }

    fn is_full(&self) -> bool {
        self.table.len() >= self.options.max_connections
    }

    fn insert(&mut self, socket: OwnedFd, page: Option<Segment>) -> io::Result<ConnId> {
        let id = self.table.reserve().ok_or(io::ErrorKind::QuotaExceeded)?;
        let added = epoll::add(
            &self.epoll,
            &socket,
            epoll::EventData::new_u64(id.token()),
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        );
        if let Err(error) = added {
            self.table.cancel(id);
            return Err(error.into());
        }
        self.table.fill(Connection::new(id, socket, page));
        Ok(id)
    }

    /// Closes a connection. The peer notices after it has read all records.
    pub fn close(&mut self, conn: ConnId) {
        let own = self.pid == std::process::id();
        let Some(found) = self.table.remove(conn) else {
            return;
        };
        // Closing alone is not enough if a child process holds a copy of the descriptor.
        if own {
            let _ = epoll::delete(&self.epoll, &found.socket);
            let _ = rustix::net::shutdown(&found.socket, Shutdown::Both);
        }
        self.order.remove(conn.index);
    }

    #[inline]
    fn find(&mut self, conn: ConnId) -> Option<&mut Connection> {
        self.table.get_mut(conn)
    }

    /// Copies a record into the ring and publishes it. Does not wake the peer: see
    /// [`wake_peer`](Self::wake_peer).
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    #[inline]
    pub fn push(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError> {
        self.push_parts(conn, tag, &[], payload)
    }

    /// Like [`push`](Self::push), with the payload in two parts.
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    #[inline]
    pub fn push_parts(
        &mut self,
        conn: ConnId,
        tag: u64,
        head: &[u8],
        rest: &[u8],
    ) -> Result<(), PushError> {
        let length = head.len() + rest.len();
        let Some(Connection {
            open: Some(open), ..
        }) = self.find(conn)
        else {
            return Err(PushError::Gone);
        };
        let usable = open.large || (length <= INLINE_BYTES && !open.was_full);
        if !usable || length > MAX_RECORD_BYTES || !open.out.push_parts(tag, head, rest) {
            return self.push_slowly(conn, tag, head, rest);
        }
        let room_available = open.out.take_room_available();
        self.wakeups.room_available |= room_available;
        self.stats.records_out += 1;
        self.stats.bytes_out += length as u64;
        Ok(())
    }

    /// Like [`push`](Self::push), for a record that [`is_read`](Self::is_read) ignores.
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    pub fn push_notice(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError> {
        let ring = |hub: &mut Self| {
            let open = hub.find(conn)?.open.as_mut()?;
            Some((open.large, open.out.required_end()))
        };
        let before = ring(self);
        self.push(conn, tag, payload)?;
        // The first record in a new ring implies that the old ring was read.
        if let Some((large, needed)) = before
            && let Some(open) = self.find(conn).and_then(|found| found.open.as_mut())
            && open.large == large
        {
            open.out.set_required_end(needed);
        }
        Ok(())
    }

    /// Retries after creating the large ring, if the small ring was the problem.
    #[cold]
    fn push_slowly(
        &mut self,
        conn: ConnId,
        tag: u64,
        head: &[u8],
        rest: &[u8],
    ) -> Result<(), PushError> {
        let length = head.len() + rest.len();
        if length > MAX_RECORD_BYTES {
            return Err(PushError::TooLong { length });
        }
        let options = self.options;
        let place = RingLayout::standalone(options.ring_slots, options.ring_bytes);
        let Some(found) = self.find(conn) else {
            return Err(PushError::Gone);
        };
        let Some(open) = &mut found.open else {
            return Err(PushError::Gone);
        };
        if open.large {
            return Err(PushError::Full);
        }
        // The switch record needs a slot in the small ring; wait for one if it is full.
        if !open.out.has_slot() {
            open.was_full = true;
            return Err(PushError::Full);
        }
        let made = Segment::create(place.end()).and_then(|(segment, file)| {
            control::send(found.socket.as_fd(), &ControlMessage::Ring, &[file.as_fd()])?;
            Ok(segment)
        });
        let Ok(segment) = made else {
            return Err(PushError::Full);
        };
        let segment = Arc::new(segment);
        open.out
            .push(RING_SWITCHED, &(options.ring_slots as u64).to_le_bytes());
        // Threads waiting for room in the old ring must check the new one.
        let producer_waits = open.out.take_room_available() || open.out.wants_room();
        open.out = Producer::new(Mapped::new(&segment, place));
        open.large = true;
        self.wakeups.room_available |= producer_waits;
        self.stats.large_rings += 1;
        self.push_parts(conn, tag, head, rest)
    }

    /// Requests a wake-up from the peer when it takes a record; the caller waits for room, or
    /// until everything is read. Progress is reported once, to all waiters, by
    /// [`arm`](Self::arm) or [`take_woken`](Self::take_woken); a waiter that is not satisfied
    /// must call this again.
    pub fn want_room(&mut self, conn: ConnId) {
        if let Some(Connection {
            open: Some(open), ..
        }) = self.find(conn)
        {
            open.out.want_room(true);
        }
    }

    /// Wakes the peer if it sleeps.
    #[inline]
    pub fn wake_peer(&mut self, conn: ConnId) {
        let Some(found) = self.find(conn) else { return };
        if Self::wake_connection(found) {
            self.stats.wakeups += 1;
        }
    }

    #[inline]
    fn wake_connection(conn: &mut Connection) -> bool {
        let Some(open) = &mut conn.open else {
            return false;
        };
        if !open.waking.is_due(open.bell.word()) {
            return false;
        }
        // A full socket already holds enough wake-ups; `poll_connections` detects a broken one.
        let _ = control::send(conn.socket.as_fd(), &ControlMessage::Wake, &[]);
        true
    }

    /// True if a short record fits now, or if the connection is closed.
    pub fn has_room(&mut self, conn: ConnId) -> bool {
        let open = self.find(conn).and_then(|found| found.open.as_mut());
        open.is_none_or(|open| open.out.has_slot())
    }

    /// True if the peer has taken all records, not counting notices at the end.
    pub fn is_read(&mut self, conn: ConnId) -> bool {
        match self.find(conn) {
            Some(Connection {
                open: Some(open), ..
            }) => {
                let read = open.out.is_read();
                if read {
                    open.out.want_room(false);
                }
                let room_available = open.out.take_room_available();
                self.wakeups.room_available |= room_available;
                read
            }
            _ => true,
        }
    }

    /// Bytes of long payloads in the ring that the peer has not taken, rounded up to the steps in
    /// which it reports its progress.
    pub fn unread_bytes(&mut self, conn: ConnId) -> u64 {
        let open = self.find(conn).and_then(|found| found.open.as_mut());
        let Some(open) = open else { return 0 };
        let unread = open.out.unread_bytes();
        self.wakeups.room_available |= open.out.take_room_available();
        unread
    }

    /// Passes up to about `limit` records to `take`, in order per connection. `take` returns how many
    /// answers this side has made on the connection, if there are more: see
    /// [`answers`](Self::answers).
    #[inline]
    pub fn poll(
        &mut self,
        limit: usize,
        take: &mut impl FnMut(ConnId, u64, Payload<'_>) -> Option<u64>,
    ) -> usize {
        let mut taken = 0;
        for at in 0..self.order.active_len() {
            taken += self.poll_one(self.order.active(at), limit, take);
        }
        if self.order.is_round_due() {
            taken += self.poll_others(limit, take);
        }
        taken
    }

    fn poll_others(
        &mut self,
        limit: usize,
        take: &mut impl FnMut(ConnId, u64, Payload<'_>) -> Option<u64>,
    ) -> usize {
        let mut taken = 0;
        let slots = self.table.slots();
        for _ in 0..PollOrder::round_len(slots) {
            let Some(index) = self.order.next_other(slots) else {
                continue;
            };
            let got = self.poll_one(index as usize, limit, take);
            if got > 0 {
                self.order.set_active(index);
            }
            taken += got;
        }
        taken
    }

    #[inline]
    fn poll_one(
        &mut self,
        index: usize,
        limit: usize,
        take: &mut impl FnMut(ConnId, u64, Payload<'_>) -> Option<u64>,
    ) -> usize {
        let (mut taken, moved) = self.poll_ring(index, limit, take);
        if moved {
            self.switch_ring(index);
            // Switch rings at most once per call: a hostile peer could switch rings forever.
            taken += self.poll_ring(index, limit - taken, take).0;
        }
        taken
    }

    /// Reads records from the current ring; the second value is true if it was the ring's last.
    #[inline]
    fn poll_ring(
        &mut self,
        index: usize,
        limit: usize,
        take: &mut impl FnMut(ConnId, u64, Payload<'_>) -> Option<u64>,
    ) -> (usize, bool) {
        let Some(conn) = self.table.at_mut(index) else {
            return (0, false);
        };
        let id = conn.id;
        let Some(open) = &mut conn.open else {
            return (0, false);
        };
        let mut taken = 0;
        while taken < limit {
            let shown = open.into.take(|tag, payload| {
                if tag == RING_SWITCHED {
                    return (true, None);
                }
                self.stats.records_in += 1;
                self.stats.bytes_in += payload.len() as u64;
                (false, take(id, tag, payload))
            });
            match shown {
                Ok(Some(false)) => taken += 1,
                Ok(Some(true)) => return (taken, true),
                Ok(None) => {
                    open.into.publish_position();
                    break;
                }
                Err(FormatViolation(what)) => {
                    conn.mark_broken(what, &mut self.ending);
                    return (taken, false);
                }
            }
        }
        // After reading something we poll again soon, and only then pay for a fence.
        let awaited = match taken {
            0 => open.into.producer_waits(),
            _ => open.into.producer_seems_to_wait(),
        };
        if awaited && Self::wake_connection(conn) {
            self.stats.wakeups += 1;
        }
        (taken, false)
    }

    /// Prepares to sleep by requesting wake-ups. Returns false, and stays awake, if work is pending.
    pub fn arm(&mut self) -> bool {
        // Publish all progress, so that no waiting producer is left behind.
        for conn in self.table.iter_mut() {
            if let Some(open) = &mut conn.open {
                open.into.publish_position();
                if open.into.producer_waits() && Self::wake_connection(conn) {
                    self.stats.wakeups += 1;
                }
            }
        }
        self.wakeups.begin_sleep();
        let waits = self
            .table
            .iter_mut()
            .filter_map(|conn| conn.open.as_mut())
            .any(|open| open.into.has_record() || open.out.take_wanted_room())
            || mem::take(&mut self.wakeups.room_available)
            || !self.ending.is_empty();
        if waits {
            self.disarm();
        }
        !waits
    }

    /// Ends the sleep state: peers need not send wake-ups.
    pub fn disarm(&mut self) {
        self.wakeups.end_sleep();
    }

    /// True once after a wake-up was read, or after requested room was noticed. If one thread
    /// sleeps and another one consumes the wake-up, the sleeper misses it, as do others until
    /// the hub is armed again.
    #[inline]
    pub fn take_woken(&mut self) -> bool {
        self.wakeups.take()
    }

    /// True if we may read the peer's memory.
    #[must_use]
    pub fn can_pull(&self, conn: ConnId) -> bool {
        let open = self.table.get(conn).and_then(|found| found.open.as_ref());
        open.is_some_and(|open| open.can_pull)
    }

    /// Blocks peers from reading our memory until [`allow_pulls`](Self::allow_pulls). Reads in
    /// progress fail too, because the probe is read last.
    pub fn block_pulls(&mut self) {
        self.probe.invalidate();
    }

    /// Lets peers read our memory again.
    pub fn allow_pulls(&mut self) {
        self.probe.restore();
    }

    /// Copies from the peer's memory into `into`.
    ///
    /// # Errors
    /// The kernel refuses, or the peer is gone or [blocks](Self::block_pulls) reads.
    pub fn pull(&mut self, conn: ConnId, address: u64, into: &mut [u8]) -> io::Result<()> {
        let Some(Connection {
            open: Some(open), ..
        }) = self.find(conn)
        else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        pull::pull(open.pid, open.probe, address, into)?;
        self.stats.pulled_bytes += into.len() as u64;
        Ok(())
    }

    /// The address that peers pass to [`pull`](Self::pull) to read `bytes`.
    #[must_use]
    pub fn address_of(bytes: &[u8]) -> u64 {
        bytes.as_ptr().expose_provenance() as u64
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> ShmStats {
        self.stats
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // In a forked child everything still belongs to the parent.
        if self.pid != std::process::id() {
            return;
        }
        let _ = std::fs::remove_file(&self.listener.path);
        // Shut down explicitly, because a child process may hold copies of the sockets.
        for conn in self.table.iter() {
            let _ = rustix::net::shutdown(&conn.socket, Shutdown::Both);
        }
    }
}

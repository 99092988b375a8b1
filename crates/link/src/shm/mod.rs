//! Records between processes of one node, through memory they share.
//!
//! A [`Hub`] listens at a socket file. Who connects hands over a page of memory with
//! two small rings, one each way; a side that has more to say makes a large ring of
//! its own and hands that over too. The socket then carries nothing but wake-ups
//! and, by its end, the news that the other process is gone. It moves records and
//! knows nothing of what they mean.

mod bell;
mod connections;
mod control;
mod error;
mod event;
mod memory;
#[cfg(all(test, not(miri)))]
mod model;
pub mod pull;
mod ring;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::net::Shutdown;

use crate::segment::Segment;
use bell::{Bell, Sleep, Waking};
use control::Said;
pub use error::{PushError, ShmError};
pub use event::{Closing, PeerFacts, ShmEvent, ShmStats};
use memory::{CONTROL_BYTES, INLINE_BYTES, Mapped, Place, SLOT_BYTES};
use pull::{OwnProbe, Probe};
use ring::{Broken, Consumer, Producer};
pub use ring::{MAX_RECORD_BYTES, Payload};

/// Longest greeting.
pub const MAX_GREETING_BYTES: usize = 64;
/// Slots of the rings that every connection has from the start.
const SMALL_SLOTS: usize = 8;
/// Bytes of a connection's first memory.
const PAGE_BYTES: usize = 4096;
const BELL_BYTES: usize = 4096;
/// Tag of the record after which everything comes by the large ring.
const MOVED: u64 = u64::MAX;
/// Connections looked at in every poll beside those that were active lately.
const OTHERS_PER_POLL: usize = 8;
const ACTIVE: usize = 64;
/// Polls of those between two looks at some of the others.
const POLLS_PER_OTHERS: u32 = 32;
const LISTENER: u64 = u64::MAX;

/// Sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmOptions {
    /// Slots of a large ring, rounded up to a power of two. Peers must have the same.
    pub ring_slots: usize,
    /// Bytes of its area for longer payloads, rounded up to a power of two that holds
    /// two of the longest. Peers must have the same.
    pub ring_bytes: usize,
    /// Connections at most; those that would be one more are told so. Each takes a
    /// descriptor, a page, and up to two large rings.
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

/// A connection of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    index: u32,
    life: u32,
}

impl ConnId {
    /// A small number, used again after its connection has ended.
    #[must_use]
    pub fn index(self) -> usize {
        self.index as usize
    }

    pub(crate) fn new(index: u32, life: u32) -> ConnId {
        ConnId { index, life }
    }

    fn token(self) -> u64 {
        u64::from(self.life) << 32 | u64::from(self.index)
    }
}

/// A connection whose peer has said who it is.
#[derive(Debug)]
struct Open {
    bell: Bell,
    waking: Waking,
    out: Producer,
    /// `out` is the large ring.
    large: bool,
    /// The small ring was found full: the next record takes a large one.
    was_full: bool,
    into: Consumer,
    pid: i32,
    probe: Probe,
    can_pull: bool,
    /// A large ring that has come and is not used yet.
    next: Option<Segment>,
}

#[derive(Debug)]
struct Conn {
    id: ConnId,
    socket: OwnedFd,
    /// The page that we made, until the peer has said hello.
    page: Option<Segment>,
    /// We connected, not the peer.
    begun_here: bool,
    open: Option<Box<Open>>,
    hung_up: bool,
    /// The peer has no room for us.
    was_full: bool,
    broken: Option<&'static str>,
}

/// See the module.
#[derive(Debug)]
pub struct Hub {
    options: ShmOptions,
    greeting: Vec<u8>,
    path: PathBuf,
    pid: u32,
    listener: OwnedFd,
    epoll: OwnedFd,
    bell: Bell,
    bell_file: OwnedFd,
    sleep: Sleep,
    probe: OwnProbe,
    conns: Vec<Option<Conn>>,
    lives: Vec<u32>,
    free: Vec<u32>,
    active: Vec<u32>,
    /// Connections that hung up or broke the format, until that is told.
    ending: Vec<ConnId>,
    /// Connections from elsewhere that had not greeted when they came, oldest first.
    silent: VecDeque<ConnId>,
    /// Given up to turn away whoever comes when there are no descriptors left.
    spare: Option<OwnedFd>,
    next_other: usize,
    polls: u32,
    /// A wake-up was read from a socket.
    woken: bool,
    /// Room that was wanted has come on some connection, and nobody was told.
    room_came: bool,
    stats: ShmStats,
}

/// Where the two small rings lie: that of whoever connected first.
fn small_places() -> [Place; 2] {
    let place = |index: usize| {
        let slots = 2 * CONTROL_BYTES + index * SMALL_SLOTS * SLOT_BYTES;
        Place {
            told: index * CONTROL_BYTES,
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
    /// Listens at `socket`, a file that is made with mode 0600; `greeting` is told to
    /// everybody who connects.
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
            path: socket.to_owned(),
            pid: std::process::id(),
            listener,
            epoll,
            bell: Bell::new(segment),
            bell_file,
            sleep: Sleep::default(),
            probe: OwnProbe::random(),
            conns: Vec::new(),
            lives: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            ending: Vec::new(),
            silent: VecDeque::new(),
            spare,
            next_other: 0,
            polls: 0,
            woken: false,
            room_came: false,
            stats: ShmStats::default(),
        })
    }

    /// Readable when [`poll_connections`](Self::poll_connections) has work.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Begins a connection; [`poll_connections`](Self::poll_connections) tells how it went.
    ///
    /// # Errors
    /// Nobody listens there, we may not connect, it is another user's process
    /// ([`ShmError::Foreign`]), or there are as many connections as there may be.
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
        let files = [self.bell_file.as_fd(), file.as_fd()];
        match control::say(stream.as_fd(), &hello, &files) {
            // Closed already by one that has no room, or ends; what it said will be heard.
            Err(cause) if cause.kind() == io::ErrorKind::BrokenPipe => {}
            said => said.map_err(failed)?,
        }
        self.enter(stream, Some(segment)).map_err(ShmError::Memory)
    }

    fn is_full(&self) -> bool {
        self.conns.len() - self.free.len() >= self.options.max_connections
    }

    fn enter(&mut self, socket: OwnedFd, page: Option<Segment>) -> io::Result<ConnId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.conns.len()).map_err(io::Error::other)?;
                self.conns.push(None);
                self.lives.push(0);
                index
            }
        };
        let at = index as usize;
        self.lives[at] = self.lives[at].wrapping_add(1);
        let id = ConnId {
            index,
            life: self.lives[at],
        };
        let added = epoll::add(
            &self.epoll,
            &socket,
            epoll::EventData::new_u64(id.token()),
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        );
        if let Err(error) = added {
            self.free.push(index);
            return Err(error.into());
        }
        self.conns[at] = Some(Conn {
            id,
            socket,
            begun_here: page.is_some(),
            page,
            open: None,
            hung_up: false,
            was_full: false,
            broken: None,
        });
        Ok(id)
    }

    /// Ends a connection; its peer sees that when it has read everything.
    pub fn close(&mut self, conn: ConnId) {
        let own = self.pid == std::process::id();
        let Some(place) = self.conns.get_mut(conn.index()) else {
            return;
        };
        let Some(found) = place.take_if(|found| found.id == conn) else {
            return;
        };
        // Closing alone ends it only if no child of this process has it too.
        if own {
            let _ = epoll::delete(&self.epoll, &found.socket);
            let _ = rustix::net::shutdown(&found.socket, Shutdown::Both);
        }
        self.active.retain(|index| *index != conn.index);
        self.free.push(conn.index);
    }

    #[inline]
    fn find(&mut self, conn: ConnId) -> Option<&mut Conn> {
        self.conns
            .get_mut(conn.index())?
            .as_mut()
            .filter(|found| found.id == conn)
    }

    /// Copies a record in and publishes it. The peer is not woken: see
    /// [`ring`](Self::ring).
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    #[inline]
    pub fn push(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError> {
        self.push_parts(conn, tag, &[], payload)
    }

    /// Like [`push`](Self::push), a record whose payload comes in two parts.
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
        let Some(Conn {
            open: Some(open), ..
        }) = self.find(conn)
        else {
            return Err(PushError::Gone);
        };
        let usable = open.large || (length <= INLINE_BYTES && !open.was_full);
        if !usable || length > MAX_RECORD_BYTES || !open.out.push_parts(tag, head, rest) {
            return self.push_slowly(conn, tag, head, rest);
        }
        let room_came = open.out.take_room_came();
        self.room_came |= room_came;
        self.stats.records_out += 1;
        self.stats.bytes_out += length as u64;
        Ok(())
    }

    /// Like [`push`](Self::push), of something that need not be read for everything to have
    /// arrived: see [`is_read`](Self::is_read).
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    pub fn push_notice(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError> {
        let ring = |hub: &mut Self| {
            let open = hub.find(conn)?.open.as_mut()?;
            Some((open.large, open.out.needed()))
        };
        let before = ring(self);
        self.push(conn, tag, payload)?;
        // The first record of another ring shows that the old one was read.
        if let Some((large, needed)) = before
            && let Some(open) = self.find(conn).and_then(|found| found.open.as_mut())
            && open.large == large
        {
            open.out.set_needed(needed);
        }
        Ok(())
    }

    /// Makes the large ring if that helps.
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
        let place = Place::alone(options.ring_slots, options.ring_bytes);
        let Some(found) = self.find(conn) else {
            return Err(PushError::Gone);
        };
        let Some(open) = &mut found.open else {
            return Err(PushError::Gone);
        };
        if open.large {
            return Err(PushError::Full);
        }
        // The last record of the small ring needs a slot: wait for it if need be.
        if !open.out.has_slot() {
            open.was_full = true;
            return Err(PushError::Full);
        }
        let made = Segment::create(place.end()).and_then(|(segment, file)| {
            control::say(found.socket.as_fd(), &Said::Ring, &[file.as_fd()])?;
            Ok(segment)
        });
        let Ok(segment) = made else {
            return Err(PushError::Full);
        };
        let segment = Arc::new(segment);
        open.out
            .push(MOVED, &(options.ring_slots as u64).to_le_bytes());
        // Who waits for the old ring looks at the new one.
        let is_awaited = open.out.take_room_came() || open.out.is_wanted();
        open.out = Producer::new(Mapped::new(&segment, place));
        open.large = true;
        self.room_came |= is_awaited;
        self.stats.rings += 1;
        self.push_parts(conn, tag, head, rest)
    }

    /// The caller is going to wait for room, or for everything to be read: the peer
    /// rings when it takes something. That something was taken is told once, by
    /// [`arm`](Self::arm) or [`take_woken`](Self::take_woken), to all who wait: who still
    /// waits then wishes again.
    pub fn want_room(&mut self, conn: ConnId) {
        if let Some(Conn {
            open: Some(open), ..
        }) = self.find(conn)
        {
            open.out.want_room(true);
        }
    }

    /// Wakes the peer if it sleeps.
    #[inline]
    pub fn ring(&mut self, conn: ConnId) {
        let Some(found) = self.find(conn) else { return };
        if Self::ring_at(found) {
            self.stats.bells += 1;
        }
    }

    #[inline]
    fn ring_at(conn: &mut Conn) -> bool {
        let Some(open) = &mut conn.open else {
            return false;
        };
        if !open.waking.is_due(open.bell.word()) {
            return false;
        }
        // A full socket holds wake-ups enough; a broken one is seen by `poll_connections`.
        let _ = control::say(conn.socket.as_fd(), &Said::Wake, &[]);
        true
    }

    /// True if one more short record fits now, or none will ever be taken.
    pub fn has_room(&mut self, conn: ConnId) -> bool {
        let open = self.find(conn).and_then(|found| found.open.as_mut());
        open.is_none_or(|open| open.out.has_slot())
    }

    /// True if the peer has taken everything that was pushed, but for notices at the end.
    pub fn is_read(&mut self, conn: ConnId) -> bool {
        match self.find(conn) {
            Some(Conn {
                open: Some(open), ..
            }) => {
                let read = open.out.is_read();
                if read {
                    open.out.want_room(false);
                }
                let room_came = open.out.take_room_came();
                self.room_came |= room_came;
                read
            }
            _ => true,
        }
    }

    /// Shows up to about `limit` records to `take`, in order for each connection.
    #[inline]
    pub fn poll(&mut self, limit: usize, take: &mut impl FnMut(ConnId, u64, Payload<'_>)) -> usize {
        let mut taken = 0;
        for at in 0..self.active.len() {
            let index = self.active[at];
            taken += self.poll_one(index as usize, limit, take);
        }
        self.polls = self.polls.wrapping_add(1);
        if self.polls.is_multiple_of(POLLS_PER_OTHERS) || self.active.is_empty() {
            taken += self.poll_others(limit, take);
        }
        taken
    }

    fn poll_others(
        &mut self,
        limit: usize,
        take: &mut impl FnMut(ConnId, u64, Payload<'_>),
    ) -> usize {
        let mut taken = 0;
        for _ in 0..OTHERS_PER_POLL.min(self.conns.len()) {
            self.next_other = (self.next_other + 1) % self.conns.len();
            let index = self.next_other;
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            if self.active.contains(&number) {
                continue;
            }
            let got = self.poll_one(index, limit, take);
            if got > 0 {
                self.set_active(number);
            }
            taken += got;
        }
        taken
    }

    /// Looks at a connection in every poll from now on.
    fn set_active(&mut self, index: u32) {
        if self.active.contains(&index) {
            return;
        }
        if self.active.len() >= ACTIVE {
            self.active.remove(0);
        }
        self.active.push(index);
    }

    #[inline]
    fn poll_one(
        &mut self,
        index: usize,
        limit: usize,
        take: &mut impl FnMut(ConnId, u64, Payload<'_>),
    ) -> usize {
        let (mut taken, moved) = self.poll_ring(index, limit, take);
        if moved {
            self.move_over(index);
            // Once in a call: a hostile peer could have more rings.
            taken += self.poll_ring(index, limit - taken, take).0;
        }
        taken
    }

    /// Shows records of the ring in use, and whether that was its last.
    #[inline]
    fn poll_ring(
        &mut self,
        index: usize,
        limit: usize,
        take: &mut impl FnMut(ConnId, u64, Payload<'_>),
    ) -> (usize, bool) {
        let Some(Some(conn)) = self.conns.get_mut(index) else {
            return (0, false);
        };
        let id = conn.id;
        let Some(open) = &mut conn.open else {
            return (0, false);
        };
        let mut taken = 0;
        while taken < limit {
            let shown = open.into.take(|tag, payload| {
                if tag == MOVED {
                    return true;
                }
                self.stats.records_in += 1;
                self.stats.bytes_in += payload.len() as u64;
                take(id, tag, payload);
                false
            });
            match shown {
                Ok(Some(false)) => taken += 1,
                Ok(Some(true)) => return (taken, true),
                Ok(None) => {
                    open.into.tell();
                    break;
                }
                Err(Broken(what)) => {
                    conn.break_off(what, &mut self.ending);
                    return (taken, false);
                }
            }
        }
        // Whoever has taken something goes on at once; the next look has time for a fence.
        let awaited = match taken {
            0 => open.into.is_awaited(),
            _ => open.into.seems_awaited(),
        };
        if awaited && Self::ring_at(conn) {
            self.stats.bells += 1;
        }
        (taken, false)
    }

    /// Before sleeping: tells peers to ring. False, and awake, if something is there.
    pub fn arm(&mut self) -> bool {
        // Producers that wait for what was read are told all of it.
        for conn in self.conns.iter_mut().flatten() {
            if let Some(open) = &mut conn.open {
                open.into.tell();
                if open.into.is_awaited() && Self::ring_at(conn) {
                    self.stats.bells += 1;
                }
            }
        }
        self.sleep.begin(self.bell.word());
        let waits = self
            .conns
            .iter_mut()
            .flatten()
            .filter_map(|conn| conn.open.as_mut())
            .any(|open| open.into.has_record() || open.out.has_wanted_room())
            || std::mem::take(&mut self.room_came)
            || !self.ending.is_empty();
        if waits {
            self.disarm();
        }
        !waits
    }

    /// Awake: peers need not ring.
    pub fn disarm(&mut self) {
        self.sleep.end(self.bell.word());
    }

    /// True once after a wake-up was read, or room that was wanted was seen in passing. Where
    /// one thread sleeps and another does that, the sleeper does not hear it, nor another
    /// before it is armed anew.
    #[inline]
    pub fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken) | std::mem::take(&mut self.room_came)
    }

    /// True if the peer's memory can be read.
    #[must_use]
    pub fn can_pull(&self, conn: ConnId) -> bool {
        let found = self.conns.get(conn.index()).and_then(Option::as_ref);
        found.is_some_and(|found| {
            found.id == conn && found.open.as_ref().is_some_and(|open| open.can_pull)
        })
    }

    /// Peers can read nothing from us until [`show`](Self::show). What they have begun to read
    /// fails, too: they read the probe last.
    pub fn hide(&mut self) {
        self.probe.spoil();
    }

    /// Peers can read from us again.
    pub fn show(&mut self) {
        self.probe.mend();
    }

    /// Copies from the peer's memory.
    ///
    /// # Errors
    /// The kernel refuses, the peer is gone or [hides](Self::hide) its memory.
    pub fn pull(&mut self, conn: ConnId, address: u64, into: &mut [u8]) -> io::Result<()> {
        let Some(Conn {
            open: Some(open), ..
        }) = self.find(conn)
        else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        pull::pull(open.pid, open.probe, address, into)?;
        self.stats.pulled_bytes += into.len() as u64;
        Ok(())
    }

    /// Where peers find `bytes` to [`pull`](Self::pull) them.
    #[must_use]
    pub fn address_of(bytes: &[u8]) -> u64 {
        bytes.as_ptr().expose_provenance() as u64
    }

    /// Counters.
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
        let _ = std::fs::remove_file(&self.path);
        // Peers learn of it even if a child of this process has the sockets too.
        for conn in self.conns.iter().flatten() {
            let _ = rustix::net::shutdown(&conn.socket, Shutdown::Both);
        }
    }
}

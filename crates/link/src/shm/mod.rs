//! Records between processes of one node, through memory they share.
//!
//! A [`Hub`] listens at a socket file. Who connects hands over a page of memory with
//! two small rings, one each way; a side that has more to say makes a large ring of
//! its own and hands that over too. The socket then carries nothing but wake-ups
//! and, by its end, the news that the other process is gone. It moves records and
//! knows nothing of what they mean.

mod control;
mod pull;
mod ring;
mod segment;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::event::epoll;
use rustix::io::Errno;

use control::Said;
use ring::{Broken, CONTROL_BYTES, Consumer, INLINE_BYTES, Place, Producer, SLOT_BYTES};
pub use ring::{MAX_RECORD_BYTES, Payload};
use segment::Segment;

/// Longest greeting.
pub const MAX_GREETING_BYTES: usize = 64;
/// Slots of the rings that every connection has from the start.
const SMALL_SLOTS: usize = 8;
const SMALL_AREA_BYTES: usize = 0;
/// Bytes of a connection's first memory.
const PAGE_BYTES: usize = 4096;
const BELL_BYTES: usize = 4096;
/// Tag of the record after which everything comes by the large ring.
const MOVED: u64 = u64::MAX;
/// Connections looked at in every poll beside those that were active lately.
const OTHERS_PER_POLL: usize = 8;
const ACTIVE: usize = 8;
/// Polls of those between two looks at some of the others.
const POLLS_PER_OTHERS: u32 = 32;
const LISTENER: u64 = u64::MAX;
/// Events handled in one call.
const EVENTS: usize = 64;

/// Sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmOptions {
    /// Slots of a large ring, a power of two.
    pub ring_slots: usize,
    /// Bytes of its area for longer payloads, a power of two.
    pub ring_bytes: usize,
}

impl Default for ShmOptions {
    fn default() -> ShmOptions {
        ShmOptions {
            ring_slots: 1024,
            ring_bytes: 1 << 20,
        }
    }
}

/// Why memory cannot be shared.
#[derive(Debug)]
pub enum ShmError {
    /// The socket file cannot be made or reached.
    Socket {
        /// Which.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// No memory or descriptors.
    Memory(io::Error),
    /// The greeting is longer than [`MAX_GREETING_BYTES`].
    GreetingTooLong {
        /// Its length.
        length: usize,
    },
}

impl fmt::Display for ShmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShmError::Socket { path, cause } => write!(f, "socket {}: {cause}", path.display()),
            ShmError::Memory(cause) => write!(f, "no memory to share: {cause}"),
            ShmError::GreetingTooLong { length } => write!(
                f,
                "a greeting of {length} bytes is too long, the limit is {MAX_GREETING_BYTES}"
            ),
        }
    }
}

impl std::error::Error for ShmError {}

/// Why a record was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// No room now.
    Full,
    /// Longer than [`MAX_RECORD_BYTES`].
    TooLong {
        /// Its length.
        length: usize,
    },
    /// There is no such connection (any more), or it is not open yet.
    Gone,
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

    fn token(self) -> u64 {
        u64::from(self.life) << 32 | u64::from(self.index)
    }
}

/// Who is at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerFacts {
    /// Its process, as the kernel says.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// What it told with its connection.
    pub greeting: Vec<u8>,
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closing {
    /// Its process closed it or ended.
    HungUp,
    /// It broke the format.
    Broke {
        /// How.
        what: &'static str,
    },
}

/// News of connections.
#[derive(Debug)]
pub enum ShmEvent {
    /// Records can be pushed.
    Opened {
        /// Which.
        conn: ConnId,
        /// Who.
        facts: PeerFacts,
    },
    /// It is over; everything that came has been shown.
    Closed {
        /// Which.
        conn: ConnId,
        /// Why.
        why: Closing,
    },
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmStats {
    /// Records pushed.
    pub records_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Records taken.
    pub records_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Sleeping peers woken.
    pub bells: u64,
    /// Large rings made.
    pub rings: u64,
    /// Bytes fetched from peers' memory.
    pub pulled_bytes: u64,
}

/// The word that tells whether its owner sleeps: odd while it does.
#[derive(Debug)]
struct Bell {
    word: NonNull<AtomicU64>,
    _segment: Segment,
}

// SAFETY: one atomic in a mapping that the value keeps.
unsafe impl Send for Bell {}

impl Bell {
    fn new(segment: Segment) -> Bell {
        Bell {
            word: segment.at(0, 8).cast(),
            _segment: segment,
        }
    }

    #[inline]
    fn word(&self) -> &AtomicU64 {
        // SAFETY: aligned, in the mapping, an atomic; a peer's bell is mapped for
        // reading and only loaded.
        unsafe { self.word.as_ref() }
    }
}

/// A connection whose peer has said who it is.
#[derive(Debug)]
struct Open {
    bell: Bell,
    /// The last of its sleeps that was ended by us.
    rung: u64,
    out: Producer,
    /// `out` is the large ring.
    large: bool,
    into: Consumer,
    pid: i32,
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
    open: Option<Box<Open>>,
    hung_up: bool,
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
    epoch: u64,
    /// A number that peers read to see whether they may read from us.
    probe: Box<u64>,
    conns: Vec<Option<Conn>>,
    lives: Vec<u32>,
    free: Vec<u32>,
    active: Vec<u32>,
    next_other: usize,
    polls: u32,
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
            area_bytes: SMALL_AREA_BYTES,
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
        Ok(Hub {
            options: *options,
            greeting: greeting.to_vec(),
            path: socket.to_owned(),
            pid: std::process::id(),
            listener,
            epoll,
            bell: Bell::new(segment),
            bell_file,
            epoch: 0,
            probe: Box::new(rand::random()),
            conns: Vec::new(),
            lives: Vec::new(),
            free: Vec::new(),
            active: Vec::new(),
            next_other: 0,
            polls: 0,
            stats: ShmStats::default(),
        })
    }

    /// Readable when [`attend`](Self::attend) has work.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Begins a connection; [`attend`](Self::attend) tells how it went.
    ///
    /// # Errors
    /// Nobody listens there, or we may not connect.
    pub fn connect(&mut self, socket: &Path) -> Result<ConnId, ShmError> {
        let failed = |cause| ShmError::Socket {
            path: socket.to_owned(),
            cause,
        };
        let stream = control::connect(socket).map_err(failed)?;
        let (segment, file) = Segment::create(PAGE_BYTES).map_err(ShmError::Memory)?;
        let hello = self.hello();
        control::say(
            stream.as_fd(),
            &hello,
            &[self.bell_file.as_fd(), file.as_fd()],
        )
        .map_err(failed)?;
        self.enter(stream, Some(segment)).map_err(ShmError::Memory)
    }

    fn hello(&self) -> Said {
        Said::Hello {
            probe_at: std::ptr::from_ref::<u64>(&self.probe).expose_provenance() as u64,
            probe: *self.probe,
            greeting: self.greeting.clone(),
        }
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
        epoll::add(
            &self.epoll,
            &socket,
            epoll::EventData::new_u64(id.token()),
            epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
        )?;
        self.conns[at] = Some(Conn {
            id,
            socket,
            page,
            open: None,
            hung_up: false,
            broken: None,
        });
        Ok(id)
    }

    /// Ends a connection; its peer sees that when it has read everything.
    pub fn close(&mut self, conn: ConnId) {
        if self.find(conn).is_none() {
            return;
        }
        self.active.retain(|index| *index != conn.index);
        // Closing the socket takes it out of the epoll.
        self.conns[conn.index()] = None;
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
        let found = self
            .conns
            .get_mut(conn.index())
            .and_then(Option::as_mut)
            .filter(|found| found.id == conn);
        let Some(Conn {
            open: Some(open), ..
        }) = found
        else {
            return Err(PushError::Gone);
        };
        if !(open.large || payload.len() <= INLINE_BYTES) || !open.out.takes(payload.len()) {
            return self.push_slowly(conn, tag, payload);
        }
        if !open.out.push(tag, payload) {
            return self.push_slowly(conn, tag, payload);
        }
        open.out.want_room(false);
        self.stats.records_out += 1;
        self.stats.bytes_out += payload.len() as u64;
        Ok(())
    }

    /// Makes the large ring if that helps.
    #[cold]
    fn push_slowly(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError> {
        if payload.len() > MAX_RECORD_BYTES {
            return Err(PushError::TooLong {
                length: payload.len(),
            });
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
        open.out = Producer::new(&segment, place);
        open.large = true;
        self.stats.rings += 1;
        self.push(conn, tag, payload)
    }

    /// The caller is going to wait for room, or for everything to be read: the peer
    /// rings when it takes something.
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
        // What was pushed must be visible to a peer whose sleep we do not see.
        fence(Ordering::SeqCst);
        let epoch = open.bell.word().load(Ordering::Relaxed);
        if epoch.is_multiple_of(2) || epoch == open.rung {
            return false;
        }
        open.rung = epoch;
        // A full socket holds wake-ups enough; a broken one is seen by `attend`.
        let _ = control::say(conn.socket.as_fd(), &Said::Wake, &[]);
        true
    }

    /// True if the peer has taken everything that was pushed.
    pub fn is_read(&mut self, conn: ConnId) -> bool {
        match self.find(conn) {
            Some(Conn {
                open: Some(open), ..
            }) => {
                let read = open.out.is_read();
                if read {
                    open.out.want_room(false);
                }
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
                if self.active.len() >= ACTIVE {
                    self.active.remove(0);
                }
                self.active.push(number);
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
        take: &mut impl FnMut(ConnId, u64, Payload<'_>),
    ) -> usize {
        let Some(Some(conn)) = self.conns.get_mut(index) else {
            return 0;
        };
        let id = conn.id;
        let Some(open) = &mut conn.open else { return 0 };
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
                Ok(Some(true)) => {
                    self.move_over(index);
                    break;
                }
                Ok(None) => {
                    open.into.tell();
                    break;
                }
                Err(Broken(what)) => {
                    conn.broken = Some(what);
                    break;
                }
            }
        }
        if let Some(Some(conn)) = self.conns.get_mut(index)
            && let Some(open) = &mut conn.open
            && open.into.is_awaited()
            && Self::ring_at(conn)
        {
            self.stats.bells += 1;
        }
        taken
    }

    /// The small ring has shown its last record.
    #[cold]
    fn move_over(&mut self, index: usize) {
        self.hear(index);
        let place = Place::alone(self.options.ring_slots, self.options.ring_bytes);
        let Some(Some(conn)) = self.conns.get_mut(index) else {
            return;
        };
        let Some(open) = &mut conn.open else { return };
        match open.next.take() {
            Some(segment) => open.into = Consumer::new(&Arc::new(segment), place),
            None => conn.broken = Some("no ring where one was promised"),
        }
    }

    /// Connections that come, greet and go, and wake-ups. Bounded work.
    ///
    /// # Errors
    /// Only when the epoll is broken.
    pub fn attend(&mut self, events: &mut Vec<ShmEvent>) -> io::Result<()> {
        let mut ready = Vec::with_capacity(EVENTS);
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
        for event in ready {
            let token = event.data.u64();
            if token == LISTENER {
                self.accept();
                continue;
            }
            let index = usize::try_from(token & 0xffff_ffff).unwrap_or(usize::MAX);
            let known = self.conns.get(index).and_then(Option::as_ref);
            if known.is_none_or(|conn| conn.id.token() != token) {
                continue;
            }
            if let Some(event) = self.hear(index) {
                events.push(event);
            }
        }
        for index in 0..self.conns.len() {
            let Some(Some(conn)) = self.conns.get_mut(index) else {
                continue;
            };
            let drained = conn
                .open
                .as_ref()
                .is_none_or(|open| !open.into.has_record());
            let why = match conn.broken {
                Some(what) => Closing::Broke { what },
                None if conn.hung_up && drained => Closing::HungUp,
                None => continue,
            };
            let conn = conn.id;
            events.push(ShmEvent::Closed { conn, why });
            self.close(conn);
        }
        Ok(())
    }

    fn accept(&mut self) {
        for _ in 0..EVENTS {
            match control::accept(self.listener.as_fd()) {
                Ok(Some(socket)) => {
                    if let Err(cause) = self.enter(socket, None) {
                        tracing::warn!("a process of this node is turned away: {cause}");
                    }
                }
                Ok(None) => return,
                Err(cause) => {
                    tracing::warn!("a process of this node cannot connect: {cause}");
                    return;
                }
            }
        }
    }

    /// Reads what a connection's socket has.
    fn hear(&mut self, index: usize) -> Option<ShmEvent> {
        let mut opened = None;
        for _ in 0..EVENTS {
            let hello = self.hello();
            let conn = self.conns.get_mut(index)?.as_mut()?;
            match control::hear(conn.socket.as_fd()) {
                Ok(Some((Said::Wake, _))) => {}
                Ok(Some((Said::Ring, mut files))) => {
                    let place = Place::alone(self.options.ring_slots, self.options.ring_bytes);
                    let ring = files
                        .pop()
                        .map(|file| Segment::open(file.as_fd(), place.end(), true));
                    match (&mut conn.open, ring) {
                        (Some(open), Some(Ok(ring))) => open.next = Some(ring),
                        _ => conn.broken = Some("a ring that cannot be used"),
                    }
                }
                Ok(Some((
                    Said::Hello {
                        probe_at,
                        probe,
                        greeting,
                    },
                    files,
                ))) => match Self::greeted(
                    conn,
                    &hello,
                    &self.bell_file,
                    (probe_at, probe),
                    greeting,
                    files,
                ) {
                    Ok(event) => opened = Some(event),
                    Err(what) => conn.broken = Some(what),
                },
                Ok(None) => break,
                Err(_) => {
                    conn.hung_up = true;
                    // Level-triggered: it would be told again and again.
                    let _ = epoll::delete(&self.epoll, &conn.socket);
                    break;
                }
            }
        }
        opened
    }

    fn greeted(
        conn: &mut Conn,
        hello: &Said,
        bell: &OwnedFd,
        (probe_at, probe): (u64, u64),
        greeting: Vec<u8>,
        files: Vec<OwnedFd>,
    ) -> Result<ShmEvent, &'static str> {
        if conn.open.is_some() {
            return Err("a second greeting");
        }
        let mut files = files.into_iter();
        let own = files.next().ok_or("a greeting without a bell")?;
        let theirs = Segment::open(own.as_fd(), BELL_BYTES, false)
            .map_err(|_| "a bell that cannot be used")?;
        let (page, ours) = match conn.page.take() {
            Some(page) => (page, 0),
            None => {
                let file = files.next().ok_or("a greeting without memory")?;
                let page = Segment::open(file.as_fd(), PAGE_BYTES, true)
                    .map_err(|_| "memory that cannot be used")?;
                control::say(conn.socket.as_fd(), hello, &[bell.as_fd()])
                    .map_err(|_| "no answer could be sent")?;
                (page, 1)
            }
        };
        let page = Arc::new(page);
        let places = small_places();
        let (pid, uid) = control::peer(conn.socket.as_fd()).map_err(|_| "nobody known")?;
        let mut read = [0; 8];
        let can_pull =
            pull::pull(pid, probe_at, &mut read).is_ok() && u64::from_ne_bytes(read) == probe;
        conn.open = Some(Box::new(Open {
            bell: Bell::new(theirs),
            rung: 0,
            out: Producer::new(&page, places[ours]),
            large: false,
            into: Consumer::new(&page, places[1 - ours]),
            pid,
            can_pull,
            next: None,
        }));
        Ok(ShmEvent::Opened {
            conn: conn.id,
            facts: PeerFacts { pid, uid, greeting },
        })
    }

    /// Before sleeping: tells peers to ring. False, and awake, if something is there.
    pub fn arm(&mut self) -> bool {
        if self.epoch.is_multiple_of(2) {
            self.epoch += 1;
        } else {
            self.epoch += 2;
        }
        self.bell.word().store(self.epoch, Ordering::Relaxed);
        // Whoever does not see that we sleep has pushed before; we look after.
        fence(Ordering::SeqCst);
        let waits = self
            .conns
            .iter_mut()
            .flatten()
            .filter_map(|conn| conn.open.as_mut())
            .any(|open| open.into.has_record() || open.out.has_wanted_room());
        if waits {
            self.disarm();
        }
        !waits
    }

    /// Awake: peers need not ring.
    pub fn disarm(&mut self) {
        if !self.epoch.is_multiple_of(2) {
            self.epoch += 1;
            self.bell.word().store(self.epoch, Ordering::Relaxed);
        }
    }

    /// True if the peer's memory can be read.
    #[must_use]
    pub fn can_pull(&self, conn: ConnId) -> bool {
        let found = self.conns.get(conn.index()).and_then(Option::as_ref);
        found.is_some_and(|found| {
            found.id == conn && found.open.as_ref().is_some_and(|open| open.can_pull)
        })
    }

    /// Copies from the peer's memory.
    ///
    /// # Errors
    /// The kernel refuses, or the peer is gone.
    pub fn pull(&mut self, conn: ConnId, address: u64, into: &mut [u8]) -> io::Result<()> {
        let Some(Conn {
            open: Some(open), ..
        }) = self.find(conn)
        else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        pull::pull(open.pid, address, into)?;
        self.stats.pulled_bytes += into.len() as u64;
        Ok(())
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> ShmStats {
        self.stats
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // In a forked child the file still belongs to the parent.
        if self.pid == std::process::id() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

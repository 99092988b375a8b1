//! A hub with its socket, a second process, and waits with a deadline that fails the test.

#![allow(dead_code, reason = "each test program uses its part")]

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dipole_link::shm::{
    CloseReason, ConnId, Hub, PeerInfo, PushError, ShmError, ShmEvent, ShmOptions,
};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Environment variable with the peer's socket, set for a test that runs as the other process.
const ROLE: &str = "DIPOLE_SHM_TEST_PEER";

/// Runs this test again as another process that connects to `side`.
pub(crate) fn other(test: &str, side: &Side) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(ROLE, side.path())
        .stdout(Stdio::piped());
    command
}

/// The socket to connect to, if this is the other process.
pub(crate) fn role() -> Option<PathBuf> {
    std::env::var_os(ROLE).map(Into::into)
}

/// Longer than any wait should take.
const DEADLINE: Duration = Duration::from_secs(30);

/// The seed of this run, which is printed; `DIPOLE_SEED` sets it.
pub(crate) fn seed() -> u64 {
    let chosen = std::env::var("DIPOLE_SEED").ok();
    let seed = chosen.map_or(1, |text| text.parse().expect("DIPOLE_SEED is a number"));
    println!("seed {seed}: replay with DIPOLE_SEED={seed}");
    seed
}

/// Bytes derived from a number.
pub(crate) fn pattern(number: u64, length: usize) -> Vec<u8> {
    let start = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..length as u64)
        .map(|at| {
            start
                .wrapping_add(at.wrapping_mul(0x0101_0303_0507_0b0d))
                .to_le_bytes()[4]
        })
        .collect()
}

/// A hub, and its events that the test has not consumed yet.
#[derive(Debug)]
pub(crate) struct Side {
    pub(crate) hub: Hub,
    path: PathBuf,
    opened: VecDeque<(ConnId, PeerInfo)>,
    closed: VecDeque<(ConnId, CloseReason)>,
    open: Vec<ConnId>,
    records: VecDeque<(ConnId, u64, Vec<u8>)>,
    _folder: Option<tempfile::TempDir>,
}

impl Side {
    pub(crate) fn new() -> Side {
        Side::greeting(b"hello")
    }

    pub(crate) fn greeting(greeting: &[u8]) -> Side {
        let folder = tempfile::tempdir().expect("a folder");
        let mut side = Side::at(&folder.path().join("socket"), greeting);
        side._folder = Some(folder);
        side
    }

    pub(crate) fn at(path: &Path, greeting: &[u8]) -> Side {
        Side::try_at(path, greeting).expect("a socket")
    }

    pub(crate) fn try_at(path: &Path, greeting: &[u8]) -> Result<Side, ShmError> {
        Ok(Side {
            hub: Hub::open(path, greeting, &ShmOptions::default())?,
            path: path.to_owned(),
            opened: VecDeque::new(),
            closed: VecDeque::new(),
            open: Vec::new(),
            records: VecDeque::new(),
            _folder: None,
        })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Appends all pending connection events.
    pub(crate) fn poll_connections(&mut self) {
        let mut events = Vec::new();
        self.hub.poll_connections(&mut events).expect("an epoll");
        for event in events {
            match event {
                ShmEvent::Opened { conn, peer } => {
                    self.open.push(conn);
                    self.opened.push_back((conn, peer));
                }
                ShmEvent::Closed { conn, reason, .. } => {
                    self.open.retain(|open| *open != conn);
                    self.closed.push_back((conn, reason));
                }
            }
        }
    }

    /// Appends all pending records.
    pub(crate) fn poll(&mut self) {
        let records = &mut self.records;
        self.hub.poll(256, &mut |conn, tag, payload| {
            let mut bytes = vec![0; payload.len()];
            payload.copy_to(&mut bytes);
            records.push_back((conn, tag, bytes));
            None
        });
    }

    /// Sleeps until something happens; calls `before` at the last moment.
    fn sleep(&mut self, before: &mut impl FnMut()) {
        if self.hub.arm() {
            before();
            let limit = Timespec {
                tv_sec: DEADLINE.as_secs().try_into().expect("short"),
                tv_nsec: 0,
            };
            let descriptor = self.hub.descriptor();
            let files = &mut [PollFd::new(&descriptor, PollFlags::IN)];
            let ready = rustix::event::poll(files, Some(&limit)).expect("a descriptor");
            assert!(ready > 0, "nothing happened for {DEADLINE:?}");
        }
        self.hub.disarm();
    }

    /// Repeats `attempt` until it returns something; sleeps in between.
    pub(crate) fn wait<R>(
        &mut self,
        what: &str,
        before: &mut impl FnMut(),
        mut attempt: impl FnMut(&mut Side) -> Option<R>,
    ) -> R {
        let begun = Instant::now();
        loop {
            if let Some(result) = attempt(self) {
                return result;
            }
            self.poll();
            self.poll_connections();
            if let Some(result) = attempt(self) {
                return result;
            }
            assert!(begun.elapsed() < DEADLINE, "waited in vain for {what}");
            self.sleep(before);
        }
    }

    /// Waits without sleeping, for a side whose bell does not work.
    pub(crate) fn wait_awake<R>(
        &mut self,
        what: &str,
        mut attempt: impl FnMut(&mut Side) -> Option<R>,
    ) -> R {
        let begun = Instant::now();
        loop {
            self.poll_connections();
            if let Some(result) = attempt(self) {
                return result;
            }
            assert!(begun.elapsed() < DEADLINE, "waited in vain for {what}");
            std::thread::yield_now();
        }
    }

    /// Connects and waits until the peer has answered.
    pub(crate) fn connect(&mut self, path: &Path) -> ConnId {
        let conn = self.hub.connect(path).expect("a listener");
        assert_eq!(self.opened(), conn);
        conn
    }

    /// The next connection that opened.
    pub(crate) fn opened(&mut self) -> ConnId {
        self.opened_facts().0
    }

    pub(crate) fn opened_facts(&mut self) -> (ConnId, PeerInfo) {
        self.wait("a connection", &mut || (), |side| side.opened.pop_front())
    }

    /// Why the next connection ended.
    pub(crate) fn closed(&mut self) -> CloseReason {
        self.closed_one().1
    }

    pub(crate) fn closed_one(&mut self) -> (ConnId, CloseReason) {
        self.wait("the end of a connection", &mut || (), |side| {
            side.closed.pop_front()
        })
    }

    pub(crate) fn take_opened(&mut self) -> Option<(ConnId, PeerInfo)> {
        self.opened.pop_front()
    }

    /// An opened connection with this greeting, if there is one.
    pub(crate) fn try_opened(&mut self, greeting: &[u8]) -> Option<ConnId> {
        let is_it = |(_, peer): &(ConnId, PeerInfo)| peer.greeting == greeting;
        let at = self.opened.iter().position(is_it)?;
        self.opened.remove(at).map(|(conn, _)| conn)
    }

    pub(crate) fn take_closed(&mut self) -> Option<(ConnId, CloseReason)> {
        self.closed.pop_front()
    }

    /// Why this connection ended, if it has.
    pub(crate) fn try_closed(&mut self, conn: ConnId) -> Option<()> {
        let at = self.closed.iter().position(|(closed, _)| *closed == conn)?;
        self.closed.remove(at).map(|_| ())
    }

    pub(crate) fn take_record(&mut self) -> Option<(ConnId, u64, Vec<u8>)> {
        self.records.pop_front()
    }

    pub(crate) fn close_all(&mut self) {
        for conn in std::mem::take(&mut self.open) {
            self.hub.close(conn);
        }
    }

    pub(crate) fn ring_all(&mut self) {
        for conn in self.open.clone() {
            self.hub.wake_peer(conn);
        }
    }

    /// Waits for the next record.
    pub(crate) fn receive(&mut self) -> (ConnId, u64, Vec<u8>) {
        self.wait("a record", &mut || (), |side| side.records.pop_front())
    }

    /// The next record's tag; calls `before` before each sleep.
    pub(crate) fn receive_sleeping(&mut self, before: &mut impl FnMut()) -> u64 {
        self.wait("a record", before, |side| side.records.pop_front())
            .1
    }

    /// Takes some records, which must be numbered from `next` and hold the patterns.
    pub(crate) fn try_receive_up_to(&mut self, limit: usize, next: u64) -> u64 {
        let mut taken = 0;
        self.hub.poll(limit, &mut |_, tag, payload| {
            let mut bytes = vec![0; payload.len()];
            payload.copy_to(&mut bytes);
            assert_eq!(tag, next + taken);
            assert!(bytes == pattern(tag, bytes.len()), "record {tag}");
            taken += 1;
            None
        });
        taken
    }

    /// Pushes, sleeps for room if needed, and wakes the peer.
    pub(crate) fn push(&mut self, conn: ConnId, tag: u64, payload: &[u8]) {
        self.wait("room", &mut || (), |side| {
            match side.hub.push(conn, tag, payload) {
                Ok(()) => Some(()),
                Err(PushError::Full) => {
                    side.hub.want_room(conn);
                    side.hub.wake_peer(conn);
                    None
                }
                Err(error) => panic!("not pushed: {error:?}"),
            }
        });
        self.hub.wake_peer(conn);
    }

    /// Waits until the peer has read everything.
    pub(crate) fn flush(&mut self, conn: ConnId) {
        self.wait("everything to be read", &mut || (), |side| {
            if side.hub.is_read(conn) {
                return Some(());
            }
            side.hub.want_room(conn);
            side.hub.wake_peer(conn);
            None
        });
    }
}

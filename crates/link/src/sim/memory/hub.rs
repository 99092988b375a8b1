//! One process's end of the simulated memory: the interface of [`Hub`](crate::shm::Hub).

use std::io;
use std::path::Path;
use std::sync::MutexGuard;

use rand::Rng;

use super::{End, GUARD_BYTES, Letter, News, Record, Region, Ring, SharedMemory, Side, State};
use crate::chance::happens;
use crate::shm::{ConnId, MAX_RECORD_BYTES, Payload, PushError, ShmError, ShmEvent, ShmStats};

/// One process's connections with others of its node. See [`SharedMemory`].
#[derive(Debug)]
pub struct SimHub {
    memory: SharedMemory,
    process: usize,
}

impl SimHub {
    pub(super) fn new(memory: SharedMemory, process: usize) -> SimHub {
        SimHub { memory, process }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.memory.lock()
    }

    /// Like [`Hub::connect`](crate::shm::Hub::connect).
    ///
    /// # Errors
    /// [`ShmError::TooMany`], or [`ShmError::Socket`] when nobody listens there.
    pub fn connect(&mut self, socket: &Path) -> Result<ConnId, ShmError> {
        let mut state = self.state();
        let Some(&other) = state.listeners.get(socket) else {
            return Err(ShmError::Socket {
                path: socket.to_owned(),
                cause: io::ErrorKind::ConnectionRefused.into(),
            });
        };
        let end = |process: usize| End {
            process,
            greeting: match &state.processes[process] {
                Some(process) => process.greeting.clone(),
                None => Vec::new(),
            },
            conn: None,
            open: false,
            was_full: false,
            hung_up: false,
            can_fetch: false,
            ring: Ring::default(),
        };
        let ends = [end(self.process), end(other)];
        state.pairs.push(ends);
        let side = Side {
            pair: state.pairs.len() - 1,
            end: 0,
        };
        let Some(conn) = state.enter(side) else {
            state.pairs.pop();
            let limit = state.own(self.process).max_connections;
            return Err(ShmError::TooMany { limit });
        };
        state.post(side.other(), News::Hello);
        Ok(conn)
    }

    /// Like [`Hub::close`](crate::shm::Hub::close).
    pub fn close(&mut self, conn: ConnId) {
        let mut state = self.state();
        if let Some(side) = state.side(self.process, conn) {
            state.close(side);
        }
    }

    /// Like [`Hub::push`](crate::shm::Hub::push).
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    pub fn push(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError> {
        let mut state = self.state();
        let Some(side) = state.open_side(self.process, conn) else {
            return Err(PushError::Gone);
        };
        if payload.len() > MAX_RECORD_BYTES {
            return Err(PushError::TooLong {
                length: payload.len(),
            });
        }
        let most_ns = state.config.visible_ns;
        let visible_ns = state.now_ns + state.within(most_ns);
        let (slots, bytes) = (state.config.ring_slots, state.config.ring_bytes);
        let ring = &mut state.end_mut(side.other()).ring;
        let fits = ring.records.is_empty() || ring.bytes + payload.len() <= bytes;
        if ring.records.len() >= slots || !fits {
            return Err(PushError::Full);
        }
        // Seen in passing; the next `arm` tells.
        ring.wanted &= !ring.room_came;
        let before = ring.records.back().map_or(0, |record| record.visible_ns);
        ring.bytes += payload.len();
        ring.records.push_back(Record {
            visible_ns: visible_ns.max(before),
            is_notice: false,
            tag,
            payload: payload.to_vec(),
        });
        let stats = &mut state.own(self.process).stats;
        stats.records_out += 1;
        stats.bytes_out += payload.len() as u64;
        Ok(())
    }

    /// Like [`Hub::push_parts`](crate::shm::Hub::push_parts).
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    pub fn push_parts(
        &mut self,
        conn: ConnId,
        tag: u64,
        head: &[u8],
        rest: &[u8],
    ) -> Result<(), PushError> {
        self.push(conn, tag, &[head, rest].concat())
    }

    /// Like [`Hub::push_notice`](crate::shm::Hub::push_notice).
    ///
    /// # Errors
    /// [`PushError`]; nothing was pushed.
    pub fn push_notice(&mut self, conn: ConnId, tag: u64, payload: &[u8]) -> Result<(), PushError> {
        self.push(conn, tag, payload)?;
        let mut state = self.state();
        if let Some(side) = state.open_side(self.process, conn)
            && let Some(pushed) = state.end_mut(side.other()).ring.records.back_mut()
        {
            pushed.is_notice = true;
        }
        Ok(())
    }

    /// Like [`Hub::want_room`](crate::shm::Hub::want_room).
    pub fn want_room(&mut self, conn: ConnId) {
        let mut state = self.state();
        if let Some(side) = state.open_side(self.process, conn) {
            state.end_mut(side.other()).ring.wanted = true;
        }
    }

    /// Like [`Hub::ring`](crate::shm::Hub::ring): what was pushed before is seen from now on.
    pub fn ring(&mut self, conn: ConnId) {
        let mut state = self.state();
        let Some(side) = state.open_side(self.process, conn) else {
            return;
        };
        let now_ns = state.now_ns;
        for record in &mut state.end_mut(side.other()).ring.records {
            record.visible_ns = record.visible_ns.min(now_ns);
        }
        if state.wake(side.other()) {
            state.own(self.process).stats.bells += 1;
        }
    }

    /// Like [`Hub::has_room`](crate::shm::Hub::has_room).
    pub fn has_room(&mut self, conn: ConnId) -> bool {
        let mut state = self.state();
        let slots = state.config.ring_slots;
        let side = state.open_side(self.process, conn);
        side.is_none_or(|side| state.end_mut(side.other()).ring.records.len() < slots)
    }

    /// Like [`Hub::is_read`](crate::shm::Hub::is_read).
    pub fn is_read(&mut self, conn: ConnId) -> bool {
        let mut state = self.state();
        let Some(side) = state.open_side(self.process, conn) else {
            return true;
        };
        let ring = &mut state.end_mut(side.other()).ring;
        let read = ring.records.iter().all(|record| record.is_notice);
        if read {
            ring.wanted = false;
        }
        read
    }

    /// Like [`Hub::poll`](crate::shm::Hub::poll).
    pub fn poll(&mut self, limit: usize, take: &mut dyn FnMut(ConnId, u64, Payload<'_>)) -> usize {
        let mut shown = Vec::new();
        let mut state = self.state();
        for side in state.own(self.process).sides() {
            let mut most = limit;
            let short = state.config.short_polls;
            if happens(&mut state.dice, short) {
                most = state.dice.random_range(0..=limit.min(4));
            }
            let now_ns = state.now_ns;
            let end = state.end_mut(side);
            let Some(conn) = end.conn.filter(|_| end.open) else {
                continue;
            };
            let ring = &mut end.ring;
            let visible = ring.records.iter();
            let visible = visible.take_while(|record| record.visible_ns <= now_ns);
            let count = visible.count().min(most);
            if count == 0 {
                continue;
            }
            for record in ring.records.drain(..count) {
                ring.bytes -= record.payload.len();
                shown.push((conn, record));
            }
            ring.room_came |= ring.wanted;
            if ring.wanted {
                state.wake(side.other());
            }
        }
        let stats = &mut state.own(self.process).stats;
        stats.records_in += shown.len() as u64;
        let bytes = shown.iter().map(|(_, record)| record.payload.len() as u64);
        stats.bytes_in += bytes.sum::<u64>();
        drop(state);
        for (conn, record) in &shown {
            take(*conn, record.tag, Payload::of(&record.payload));
        }
        shown.len()
    }

    /// Like [`Hub::arm`](crate::shm::Hub::arm).
    pub fn arm(&mut self) -> bool {
        let mut state = self.state();
        let now_ns = state.now_ns;
        let mut waits = false;
        for side in state.own(self.process).sides() {
            let end = state.end(side);
            let news = end.ring.records.front();
            let news = news.is_some_and(|record| record.visible_ns <= now_ns);
            waits |= end.hung_up || end.open && news;
            let out = &mut state.end_mut(side.other()).ring;
            if std::mem::take(&mut out.room_came) {
                out.wanted = false;
                waits = true;
            }
        }
        if !waits {
            let process = state.own(self.process);
            process.asleep = true;
            process.rung = false;
        }
        !waits
    }

    /// Like [`Hub::disarm`](crate::shm::Hub::disarm).
    pub fn disarm(&mut self) {
        self.state().own(self.process).asleep = false;
    }

    /// Like [`Hub::take_woken`](crate::shm::Hub::take_woken).
    pub fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.state().own(self.process).woken)
    }

    /// Like [`Hub::can_pull`](crate::shm::Hub::can_pull).
    #[must_use]
    pub fn can_pull(&self, conn: ConnId) -> bool {
        let state = self.state();
        let side = state.open_side(self.process, conn);
        side.is_some_and(|side| state.end(side).can_fetch)
    }

    /// Like [`Hub::hide`](crate::shm::Hub::hide).
    pub fn hide(&mut self) {
        self.state().own(self.process).hides = true;
    }

    /// Like [`Hub::show`](crate::shm::Hub::show).
    pub fn show(&mut self) {
        self.state().own(self.process).hides = false;
    }

    /// Like [`Hub::pull`](crate::shm::Hub::pull).
    ///
    /// # Errors
    /// The peer is gone, has never told of that memory, or the dice say so.
    pub fn pull(&mut self, conn: ConnId, address: u64, into: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        let side = state.open_side(self.process, conn);
        let side = side.ok_or(io::ErrorKind::NotConnected)?;
        state.fetch(side, address, into)?;
        state.own(self.process).stats.pulled_bytes += into.len() as u64;
        Ok(())
    }

    /// Some time: how long things take is decided by the seed.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        let mut state = self.state();
        let most_ns = state.config.socket_ns;
        state.now_ns + state.within(most_ns)
    }

    /// Where peers find `bytes`, as they are now.
    pub fn address_of(&mut self, bytes: &[u8]) -> u64 {
        let mut state = self.state();
        let process = state.own(self.process);
        let address = process.next_address;
        process.next_address += bytes.len() as u64 + GUARD_BYTES;
        process.regions.push(Region {
            address,
            length: bytes.len(),
            lies_at: bytes.as_ptr().addr(),
            contents: Some(bytes.to_vec()),
        });
        address
    }

    /// Like [`Hub::poll_connections`](crate::shm::Hub::poll_connections).
    pub fn poll_connections(&mut self, events: &mut Vec<ShmEvent>) {
        let mut state = self.state();
        let now_ns = state.now_ns;
        loop {
            state.tell_ends(self.process, events);
            let has_rest = state.has_rest(self.process);
            let due = |letter: &Letter| {
                let comes = matches!(letter.news, News::Hello | News::Answer);
                letter.at_ns <= now_ns && !(comes && has_rest)
            };
            let letters = &mut state.own(self.process).letters;
            let next = letters.iter().position(due);
            let Some(Letter { side, news, .. }) = next.and_then(|at| letters.remove(at)) else {
                break;
            };
            state.read(self.process, side, news, events);
        }
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> ShmStats {
        self.state().own(self.process).stats
    }
}

impl Drop for SimHub {
    fn drop(&mut self) {
        let mut state = self.state();
        let process = state.own(self.process);
        let path = std::mem::take(&mut process.path);
        let letters = std::mem::take(&mut process.letters);
        let sides = process.sides();
        state.listeners.remove(&path);
        for side in sides {
            state.close(side);
        }
        for letter in letters {
            // It connected and was never let in.
            if letter.news == News::Hello {
                state.post(letter.side.other(), News::HungUp);
            }
        }
        state.processes[self.process] = None;
    }
}

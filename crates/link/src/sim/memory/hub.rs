//! One process's side of the simulated memory: the interface of [`Hub`](crate::shm::Hub).

use std::io;
use std::path::Path;
use std::sync::MutexGuard;

use rand::Rng;

use super::{
    End, GUARD_BYTES, PendingEvent, Record, Region, Ring, SharedMemory, Side, SocketEvent, State,
};
use crate::chance::happens;
use crate::shm::{ConnId, MAX_RECORD_BYTES, Payload, PushError, ShmError, ShmEvent, ShmStats};

/// One process's connections to the others of its node. See [`SharedMemory`].
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
    /// [`ShmError::TooMany`], or [`ShmError::Socket`] if no process listens there.
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
            peer_is_full: false,
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
        state.post(side.other(), SocketEvent::Hello);
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
        // A poll also detects room; the next `arm` reports it.
        ring.wanted &= !ring.room_available;
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

    /// Like [`Hub::wake_peer`](crate::shm::Hub::wake_peer): earlier records become visible.
    pub fn wake_peer(&mut self, conn: ConnId) {
        let mut state = self.state();
        let Some(side) = state.open_side(self.process, conn) else {
            return;
        };
        let now_ns = state.now_ns;
        for record in &mut state.end_mut(side.other()).ring.records {
            record.visible_ns = record.visible_ns.min(now_ns);
        }
        if state.wake(side.other()) {
            state.own(self.process).stats.wakeups += 1;
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

    /// Like [`Hub::answers`](crate::shm::Hub::answers).
    pub fn answers(&mut self, conn: ConnId) -> u64 {
        let state = self.state();
        let side = state.open_side(self.process, conn);
        side.map_or(0, |side| state.end(side.other()).ring.answers)
    }

    /// Like [`Hub::set_answers`](crate::shm::Hub::set_answers).
    pub fn set_answers(&mut self, conn: ConnId, count: u64) {
        let mut state = self.state();
        if let Some(side) = state.open_side(self.process, conn) {
            state.end_mut(side).ring.answers = count;
        }
    }

    /// Like [`Hub::unread_bytes`](crate::shm::Hub::unread_bytes).
    pub fn unread_bytes(&mut self, conn: ConnId) -> u64 {
        let mut state = self.state();
        let Some(side) = state.open_side(self.process, conn) else {
            return 0;
        };
        let records = &state.end_mut(side.other()).ring.records;
        records
            .iter()
            .map(|record| record.payload.len() as u64)
            .sum()
    }

    /// Like [`Hub::poll`](crate::shm::Hub::poll).
    pub fn poll(
        &mut self,
        limit: usize,
        take: &mut dyn FnMut(ConnId, u64, Payload<'_>) -> Option<u64>,
    ) -> usize {
        let mut shown = Vec::new();
        let mut state = self.state();
        for side in state.own(self.process).sides() {
            let mut most = limit;
            let short = state.config.short_polls;
            if happens(&mut state.rng, short) {
                most = state.rng.random_range(0..=limit.min(4));
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
            ring.room_available |= ring.wanted;
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
            if let Some(answers) = take(*conn, record.tag, Payload::of(&record.payload)) {
                self.set_answers(*conn, answers);
            }
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
            let event = end.ring.records.front();
            let event = event.is_some_and(|record| record.visible_ns <= now_ns);
            waits |= end.hung_up || end.open && event;
            let out = &mut state.end_mut(side.other()).ring;
            if std::mem::take(&mut out.room_available) {
                out.wanted = false;
                waits = true;
            }
        }
        if !waits {
            let process = state.own(self.process);
            process.asleep = true;
            process.wake_pending = false;
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

    /// Like [`Hub::block_pulls`](crate::shm::Hub::block_pulls).
    pub fn block_pulls(&mut self) {
        self.state().own(self.process).pulls_blocked = true;
    }

    /// Like [`Hub::allow_pulls`](crate::shm::Hub::allow_pulls).
    pub fn allow_pulls(&mut self) {
        self.state().own(self.process).pulls_blocked = false;
    }

    /// Like [`Hub::pull`](crate::shm::Hub::pull).
    ///
    /// # Errors
    /// The peer is gone, the memory was never announced, or a random fault.
    pub fn pull(&mut self, conn: ConnId, address: u64, into: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        let side = state.open_side(self.process, conn);
        let side = side.ok_or(io::ErrorKind::NotConnected)?;
        state.fetch(side, address, into)?;
        state.own(self.process).stats.pulled_bytes += into.len() as u64;
        Ok(())
    }

    /// A time for measuring durations, which are determined by the seed.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        let mut state = self.state();
        let most_ns = state.config.socket_ns;
        state.now_ns + state.within(most_ns)
    }

    /// The address for peers to pull `bytes`, as they are now.
    pub fn address_of(&mut self, bytes: &[u8]) -> u64 {
        let mut state = self.state();
        let process = state.own(self.process);
        let address = process.next_address;
        process.next_address += bytes.len() as u64 + GUARD_BYTES;
        process.regions.push(Region {
            address,
            length: bytes.len(),
            local_address: bytes.as_ptr().addr(),
            contents: Some(bytes.to_vec()),
        });
        address
    }

    /// Like [`Hub::poll_connections`](crate::shm::Hub::poll_connections).
    pub fn poll_connections(&mut self, events: &mut Vec<ShmEvent>) {
        let mut state = self.state();
        let now_ns = state.now_ns;
        loop {
            state.report_closed(self.process, events);
            let has_rest = state.has_rest(self.process);
            let due = |pending: &PendingEvent| {
                let comes = matches!(pending.event, SocketEvent::Hello | SocketEvent::Answer);
                pending.at_ns <= now_ns && !(comes && has_rest)
            };
            let pending = &mut state.own(self.process).pending;
            let next = pending.iter().position(due);
            let Some(PendingEvent { side, event, .. }) = next.and_then(|at| pending.remove(at))
            else {
                break;
            };
            state.read(self.process, side, event, events);
        }
    }

    /// Returns the counters so far.
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
        let pending = std::mem::take(&mut process.pending);
        let sides = process.sides();
        state.listeners.remove(&path);
        for side in sides {
            state.close(side);
        }
        for pending in pending {
            // A connection that was never accepted.
            if pending.event == SocketEvent::Hello {
                state.post(pending.side.other(), SocketEvent::HungUp);
            }
        }
        state.processes[self.process] = None;
    }
}

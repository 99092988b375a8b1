//! The carrier of a simulated rank: it queues data for the simulation, and returns control to it.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use dipole_bsp::Failure;
use dipole_bsp::carrier::Carrier;
use dipole_node::{RegionKey, RegionMemory};

/// Messages that a rank may have queued.
pub(crate) const ROOM: usize = 16;

/// State shared by a rank and the simulation.
#[derive(Debug, Default)]
pub(crate) struct RankState {
    pub(crate) outgoing: VecDeque<(u32, Outgoing)>,
    /// One for each remote write, dead once its bytes are no longer needed.
    pub(crate) pending_writes: Vec<Weak<()>>,
    /// The key of the memory opened last.
    pub(crate) opened_key: u64,
    pub(crate) received: VecDeque<(u32, Vec<u8>)>,
    pub(crate) departed: Vec<u32>,
    /// Ranks that must be checked for being alive.
    pub(crate) watched: Vec<u32>,
    pub(crate) has_crashed: bool,
}

/// Data that a rank sends.
#[derive(Debug)]
pub(crate) enum Outgoing {
    Message(Vec<u8>),
    Write(RegionKey, u64, Bytes),
}

/// Bytes, and a token that lives as long as they are needed.
struct Tracked(
    Bytes,
    #[expect(dead_code, reason = "dropped with the bytes")] Arc<()>,
);

impl AsRef<[u8]> for Tracked {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl RankState {
    pub(crate) fn has_pending_writes(&self) -> bool {
        let mut writes = self.pending_writes.iter();
        writes.any(|bytes| bytes.strong_count() > 0)
    }
}

/// Why a rank's thread has returned control.
pub(crate) enum Pause {
    OpenMemory(RegionMemory),
    CloseMemory(u64),
    /// Until no bytes of remote writes are needed.
    ReclaimMemory,
    /// Until a message arrives, there is room again after a shortage, or this time has passed.
    Receive(Duration, bool),
    Compute(u64),
    /// Until everything has arrived.
    Drain(Duration),
    /// The program has ended.
    Ended(Result<(), Failure>),
    /// The program has panicked.
    Panicked,
}

pub(crate) struct SimulatedCarrier {
    pub(crate) rank: u32,
    pub(crate) state: Arc<Mutex<RankState>>,
    pub(crate) pauses: Sender<(u32, Pause)>,
    pub(crate) resumes: Arc<Mutex<Receiver<()>>>,
}

impl SimulatedCarrier {
    /// Returns control to the simulation until that resumes this rank.
    pub(crate) fn pause(&self, why: Pause) {
        let sent = self.pauses.send((self.rank, why));
        sent.expect("the simulation outlives its ranks");
        let resumes = self.resumes.lock().expect("one at a time");
        resumes.recv().expect("the simulation outlives its ranks");
    }

    fn state(&self) -> std::sync::MutexGuard<'_, RankState> {
        self.state.lock().expect("one at a time")
    }
}

impl Carrier for SimulatedCarrier {
    type Message = Vec<u8>;

    fn has_room(&mut self) -> Result<bool, Failure> {
        Ok(self.state().outgoing.len() < ROOM)
    }

    fn send(&mut self, to: u32, message: Vec<u8>) -> Result<(), Failure> {
        let message = Outgoing::Message(message);
        self.state().outgoing.push_back((to, message));
        Ok(())
    }

    fn open_memory(&mut self, memory: &RegionMemory) -> Result<Option<u64>, Failure> {
        self.pause(Pause::OpenMemory(memory.clone()));
        Ok(Some(self.state().opened_key))
    }

    fn close_memory(&mut self, key: u64) {
        self.pause(Pause::CloseMemory(key));
    }

    fn write_remote(
        &mut self,
        to: u32,
        key: u64,
        offset: u64,
        bytes: Bytes,
    ) -> Result<(), Failure> {
        let token = Arc::new(());
        let mut state = self.state();
        state.pending_writes.retain(|it| it.strong_count() > 0);
        state.pending_writes.push(Arc::downgrade(&token));
        let bytes = Bytes::from_owner(Tracked(bytes, token));
        let write = Outgoing::Write(RegionKey(key), offset, bytes);
        state.outgoing.push_back((to, write));
        Ok(())
    }

    fn has_pending_writes(&self) -> bool {
        self.state().has_pending_writes()
    }

    fn reclaim_memory(&mut self) {
        (self.state().outgoing).retain(|(_, next)| matches!(next, Outgoing::Message(_)));
        self.pause(Pause::ReclaimMemory);
    }

    fn receive(&mut self, timeout: Duration) -> Result<Option<(u32, Vec<u8>)>, Failure> {
        let is_full = self.state().outgoing.len() >= ROOM;
        if self.state().received.is_empty() {
            self.pause(Pause::Receive(timeout, is_full));
        }
        let mut state = self.state();
        if state.has_crashed {
            let rank = self.rank;
            let cause = "it has crashed".to_owned();
            return Err(Failure::Gone { rank, cause });
        }
        Ok(state.received.pop_front())
    }

    fn check(&mut self, ranks: &[u32]) -> Result<(), Failure> {
        let mut state = self.state();
        state.watched.extend(ranks);
        match ranks.iter().find(|rank| state.departed.contains(rank)) {
            None => Ok(()),
            Some(&rank) => Err(Failure::Gone {
                rank,
                cause: "its session has ended".to_owned(),
            }),
        }
    }

    fn close(&mut self, timeout: Duration) {
        if !self.state().has_crashed {
            self.pause(Pause::Drain(timeout));
        }
    }
}

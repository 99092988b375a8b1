//! A flow of messages between two endpoints, and the session and edge it uses.

use dipole_engine::{Blocked, LongSend};
use dipole_link::shm::ConnId;
use dipole_node::Departure;
use dipole_proto::{EdgeId, PeerId};

use super::RETRY_NS;
use crate::memory::Asking;
use crate::payload::Tag;
use crate::scenario::FlowPlan;

/// A message being passed to the engine.
pub(super) struct Pending {
    pub(super) tag: Tag,
    pub(super) bytes: Vec<u8>,
    pub(super) more: bool,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {} bytes", self.tag, self.bytes.len())
    }
}

/// The session and edge of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) enum Carrier {
    Packets { peer: PeerId },
    Memory { conn: ConnId, incarnation: u64 },
}

/// A flow that has started.
#[derive(Debug)]
pub struct Flow {
    pub plan: FlowPlan,
    pub stream: Option<u32>,
    pub(super) carrier: Option<Carrier>,
    pub edge: Option<EdgeId>,
    /// The peer of its first edge. Two processes may have two connections, between which there is
    /// no order.
    pub(super) peer: Option<PeerId>,
    /// Messages that were accepted, given up, or reported as lost.
    pub(super) done: u32,
    pub(super) pending: Option<Pending>,
    /// A long message that its sender continues.
    pub(super) long: Option<LongSend>,
    /// It does nothing before this time.
    pub(super) at_ns: u64,
    /// When the next message is due.
    pub(super) due_ns: u64,
    /// Why it was last blocked.
    pub(super) blocked: Option<Blocked>,
    refused: bool,
    /// Its operations on the target's memory.
    pub asking: Asking,
}

impl Flow {
    pub fn new(plan: FlowPlan) -> Flow {
        Flow {
            plan,
            stream: None,
            carrier: None,
            edge: None,
            peer: None,
            done: 0,
            pending: None,
            long: None,
            at_ns: 0,
            due_ns: 0,
            blocked: None,
            refused: false,
            asking: Asking::default(),
        }
    }

    /// True if all planned messages have been handled.
    pub fn is_done(&self) -> bool {
        self.has_sent_all() && self.asking.is_idle()
    }

    pub(super) fn has_sent_all(&self) -> bool {
        self.done >= self.plan.messages && self.long.is_none()
    }

    /// The bytes of an abandoned message that peers may still fetch.
    pub fn offered(&self) -> Option<&[u8]> {
        let pending = self.pending.as_ref()?;
        let in_memory = matches!(self.carrier, Some(Carrier::Memory { .. }));
        (in_memory && self.long.is_some()).then_some(&pending.bytes)
    }

    /// True if it leads to the peer that is gone.
    pub(super) fn leads_to(&self, gone: &Departure) -> bool {
        match self.carrier {
            None => false,
            Some(Carrier::Packets { peer }) => gone.peer == peer,
            Some(Carrier::Memory { incarnation, .. }) => match self.peer {
                Some(peer) => gone.peer == peer,
                None => gone.incarnation == incarnation,
            },
        }
    }

    /// Forgets a session whose peer is gone.
    pub fn forget_session(&mut self, now_ns: u64) {
        self.stream = None;
        self.carrier = None;
        self.edge = None;
        self.peer = None;
        self.pending = None;
        if self.long.take().is_some() {
            self.done += 1;
        }
        self.refused = false;
        self.at_ns = now_ns + RETRY_NS;
    }
}

//! Memory in which the messages of a port land, divided into slots.
//!
//! A slot is free, or holds the message that the handler got last from it. Free ones are offered to
//! the engine, so that messages are stored there as they arrive. Protected by the driver's lock.

use std::collections::VecDeque;

use dipole_engine::{Engine, Landed, PortRef};
use dipole_link::{Region as RegionMemory, RegionError};
use dipole_proto::{Instant, PeerId};

use crate::address::Address;

/// Free slots offered to the engine: as many as long messages may be in flight.
const MAX_OFFERED: usize = 16;

/// Memory for the messages of a port: slots of the same size, for
/// [`Node::open_port_into`](crate::Node::open_port_into).
#[derive(Debug)]
pub struct Slots {
    slots: Vec<RegionMemory>,
    slot_bytes: usize,
}

impl Slots {
    /// `slots` slots of `slot_bytes` each, in memory of their own.
    ///
    /// # Errors
    /// [`RegionError::Create`] if there is not enough memory; [`RegionError::NoSlot`].
    pub fn new(slot_bytes: usize, slots: usize) -> Result<Slots, RegionError> {
        check_count(slot_bytes, slots)?;
        let slots = (0..slots).map(|_| RegionMemory::new(slot_bytes));
        Ok(Slots {
            slots: slots.collect::<Result<_, _>>()?,
            slot_bytes,
        })
    }

    /// `slots` slots of `slot_bytes` each, one after the other from `offset` of `memory`, which may
    /// be an open region. While the handler reads one of them, the others cannot be filled.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`], [`RegionError::NoSlot`].
    pub fn within(
        memory: &RegionMemory,
        offset: usize,
        slot_bytes: usize,
        slots: usize,
    ) -> Result<Slots, RegionError> {
        check_count(slot_bytes, slots)?;
        let all = memory.part(offset, slot_bytes.saturating_mul(slots))?;
        let slots = (0..slots).map(|index| all.part(index * slot_bytes, slot_bytes));
        Ok(Slots {
            slots: slots.collect::<Result<_, _>>()?,
            slot_bytes,
        })
    }
}

fn check_count(slot_bytes: usize, slots: usize) -> Result<(), RegionError> {
    match slot_bytes == 0 || slots == 0 {
        true => Err(RegionError::NoSlot),
        false => Ok(()),
    }
}

/// A message in a slot, for the handler.
#[derive(Debug)]
pub(crate) struct FilledSlot {
    pub(crate) slot: SlotRef,
    pub(crate) memory: RegionMemory,
    pub(crate) length: usize,
    pub(crate) source: Address,
    pub(crate) peer: PeerId,
}

/// Identifies a slot of a port, even after the port was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRef {
    pub(crate) port: PortRef,
    ring: u64,
    pub(crate) index: usize,
}

/// The next message of a port.
#[derive(Debug)]
pub(crate) enum Arrival {
    Slot(FilledSlot),
    Message(dipole_engine::Message),
}

/// The slots of a port, and which of them are free.
#[derive(Debug)]
pub(crate) struct SlotRing {
    id: u64,
    slots: Vec<RegionMemory>,
    slot_bytes: usize,
    /// Indices of free slots; the one that was released first is used first.
    free: VecDeque<usize>,
    /// A message waits for a slot.
    is_starved: bool,
}

impl SlotRing {
    /// All slots are free. `id` differs from that of every other ring of the process.
    pub(crate) fn new(slots: Slots, id: u64) -> SlotRing {
        SlotRing {
            id,
            free: (0..slots.slots.len()).collect(),
            slots: slots.slots,
            slot_bytes: slots.slot_bytes,
            is_starved: false,
        }
    }

    /// Offers free slots to messages that arrive.
    pub(crate) fn offer(&self, engine: &mut Engine, endpoint: u32, port: PortRef) {
        if engine.offered(endpoint) < self.free.len().min(MAX_OFFERED) {
            for index in self.free.iter().take(MAX_OFFERED) {
                engine.offer_slot(endpoint, port, &self.slots[*index]);
            }
        }
    }

    /// Takes the next message. If all slots are taken while messages are waiting, the port
    /// continues when a slot is [released](Self::release).
    pub(crate) fn take(
        &mut self,
        engine: &mut Engine,
        (endpoint, port): (u32, PortRef),
        now: Instant,
    ) -> Option<Arrival> {
        let (slots, free) = (&self.slots, &self.free);
        let slot = |at: usize| free.get(at).map(|index| &slots[*index]);
        let landed = engine.take_landed(now, endpoint, self.slot_bytes, slot);
        self.is_starved = landed.is_none() && engine.has_message(endpoint);
        let (at, length, source, peer) = match landed? {
            Landed::Outside(message) => return Some(Arrival::Message(message)),
            Landed::Slot {
                index,
                length,
                source,
                peer,
            } => (index, length, source, peer),
        };
        let index = self.free.remove(at)?;
        self.offer(engine, endpoint, port);
        Some(Arrival::Slot(FilledSlot {
            slot: SlotRef {
                port,
                ring: self.id,
                index,
            },
            memory: self.slots[index].clone(),
            length,
            source,
            peer,
        }))
    }

    /// Frees a slot, if it belongs to this ring.
    pub(crate) fn release(&mut self, engine: &mut Engine, endpoint: u32, slot: SlotRef) {
        if slot.ring != self.id {
            return;
        }
        self.free.push_back(slot.index);
        self.offer(engine, endpoint, slot.port);
        if std::mem::take(&mut self.is_starved) {
            engine.port_returned(endpoint, slot.port);
        }
    }

    /// True if a message waits for a slot.
    pub(crate) fn is_starved(&self) -> bool {
        self.is_starved
    }
}

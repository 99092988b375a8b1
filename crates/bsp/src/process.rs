//! One rank of a program, from `bsp_begin` to `bsp_end`.

mod abort;
mod direct;
mod record;
mod start;
mod sync;

pub use start::{check_most, launched};

use std::ffi::c_void;
use std::time::{Duration, Instant};

use crate::call::Call;
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::local::{Arena, LocalParcel, Mates};
use crate::misuse::Misuse;
use crate::parcel::{CHUNK_BYTES, Parcel};
use crate::superstep::exchange::{Exchange, Outgoing};
use crate::superstep::facts::{Facts, Part};
use crate::superstep::knowledge::Ranks;
use crate::superstep::pace::Pace;
use crate::superstep::queue::{Queue, Queued, TagSizes};
use crate::superstep::registrations::Registrations;
use crate::superstep::schedule::Order;
use crate::trace::Tracer;
use dipole_model::Machine;
use dipole_model::Slots;
use direct::OpenMemory;

/// Bytes that a get waits for.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    into: *mut u8,
    bytes: u64,
}

/// Answers to a rank that is not ready for them yet.
#[derive(Debug)]
struct Kept {
    to: u32,
    chunks: Vec<Vec<u8>>,
    placed: Vec<Outgoing>,
}

/// Memory of another rank of the node that this one copies at the end of the superstep.
#[derive(Clone, Copy, Debug)]
struct Pull {
    mate: usize,
    address: u64,
    wanted: Wanted,
}

/// See the module. The carrier moves what goes to ranks with whom no memory is shared.
///
/// Calls only record; [`sync`](Self::sync) moves everything.
#[derive(Debug)]
pub struct Process<C: Carrier> {
    rank: u32,
    size: u32,
    begun: Instant,
    call: Call,
    // Before the carrier: nobody reaches it any more when that goes.
    open: OpenMemory,
    /// Not needed once all ranks are known to be on this node.
    carrier: Option<C>,
    exchange: Exchange<C::Message>,
    /// Slots in which chunks leave, if any were found to be of use on this link.
    slots: Option<Slots>,
    /// Longest message of records: one slot's.
    chunk_bytes: usize,
    pace: Pace,
    /// A chunk that has its slot already, and to whom it goes.
    next_chunk: Option<(Duration, u32, Outgoing)>,
    mates: Option<Mates>,
    /// For even and odd supersteps.
    arenas: [Arena; 2],
    /// Records for ranks of this node, by index.
    local: Vec<LocalParcel>,
    /// Records for the others and for this rank itself, by rank.
    remote: Vec<Parcel>,
    /// What is to be placed in memory of ranks of other nodes, by rank.
    direct: Vec<Vec<Outgoing>>,
    /// To whom there are records, and of whom is got.
    row: Ranks,
    asked: Ranks,
    wanted: Vec<Wanted>,
    /// Who keeps bytes for this rank.
    keeping: Ranks,
    /// What this rank keeps for others.
    kept: Vec<Kept>,
    pulls: Vec<Pull>,
    /// Others copy memory of this rank at the end of the superstep.
    is_pulled: bool,
    registrations: Registrations,
    tags: TagSizes,
    tag_calls: u32,
    queue: Queue,
    facts: Facts,
    spread: Vec<u8>,
    /// Supersteps before the program's first one: the one in which all began, and those that measure clocks.
    first: u32,
    /// What supersteps cost, as rank 0 knows it.
    machine: Machine,
    /// What is kept of supersteps, if the user wants that.
    trace: Option<Box<Tracer>>,
}

// SAFETY: the addresses in it are the program's, which promised that they stay valid until the
// superstep ends, whichever thread ends it.
unsafe impl<C: Carrier + Send> Send for Process<C> where C::Message: Send {}

impl<C: Carrier> Process<C> {
    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Time since the program began here.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The superstep under way, from 0.
    #[must_use]
    pub fn superstep(&self) -> u32 {
        self.exchange.superstep().wrapping_sub(self.first)
    }

    /// What supersteps cost by the links that join these ranks, as rank 0 has measured them; the
    /// same at all ranks.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Sends to ranks of other nodes in another order than a Latin square, for comparison.
    pub fn set_order(&mut self, order: Order) {
        self.exchange.set_order(order);
    }

    /// Sends to ranks of other nodes in slots of time, or no longer.
    pub fn set_slots(&mut self, slots: Option<Slots>) {
        self.slots = slots;
        let bytes = slots.and_then(|slots| usize::try_from(slots.bytes).ok());
        self.chunk_bytes = bytes.unwrap_or(CHUNK_BYTES);
        for parcel in self.remote.iter_mut().filter(|parcel| parcel.is_empty()) {
            *parcel = Parcel::new(self.chunk_bytes);
        }
        self.set_pace(self.size);
    }

    /// Says which call of the program's the next one is, for messages.
    #[inline]
    pub fn at(&mut self, call: Call) {
        self.call = call;
    }

    /// Where the program is, as messages begin.
    #[must_use]
    pub fn position(&self) -> String {
        let (rank, superstep, call) = (self.rank, self.superstep(), self.call);
        format!("rank {rank}, superstep {superstep}: {call}")
    }

    /// Registers memory from the next superstep on, as this rank's part of an area.
    ///
    /// # Errors
    /// NULL with a size.
    ///
    /// # Safety
    /// While it is registered, as many bytes can be read and written there in `sync`, and
    /// nobody else uses those that ranks put and get meanwhile.
    pub unsafe fn push_registration(
        &mut self,
        address: *mut c_void,
        bytes: u64,
    ) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        let key = unsafe { self.open(address.cast(), bytes)? };
        let address = address.expose_provenance() as u64;
        let part = Part {
            address,
            bytes,
            key,
        };
        Ok(self.registrations.push(part)?)
    }

    /// Takes the newest registration of an address back, from the next superstep on.
    ///
    /// # Errors
    /// There is none.
    pub fn pop_registration(&mut self, address: *const c_void) -> Result<(), Failure> {
        Ok(self.registrations.pop(address.addr() as u64)?)
    }

    /// Sets the size of tags of messages sent from the next superstep on; what was set before.
    pub fn set_tag_size(&mut self, bytes: u64) -> u64 {
        self.tag_calls += 1;
        std::mem::replace(&mut self.tags.set, bytes)
    }

    /// The size of tags of messages sent in this superstep.
    #[must_use]
    pub fn tag_size(&self) -> u64 {
        self.tags.sent
    }

    /// Messages in the queue, and bytes of their payloads.
    #[must_use]
    pub fn queue_size(&self) -> (u64, u64) {
        (self.queue.count(), self.queue.payload_bytes())
    }

    /// The next message of the queue.
    #[must_use]
    pub fn first_message(&self) -> Option<Queued<'_>> {
        self.queue.first()
    }

    /// Takes the next message off the queue; it stays where it lies until the superstep ends.
    pub fn take_message(&mut self) -> Option<Queued<'_>> {
        self.queue.take()
    }

    fn check_rank(&self, rank: u32) -> Result<(), Misuse> {
        if rank < self.size {
            return Ok(());
        }
        let size = self.size;
        let rank = i64::from(rank);
        Err(Misuse::NoSuchRank { rank, size })
    }
}

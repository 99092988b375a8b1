//! One rank of a program, from `bsp_begin` to `bsp_end`.

mod abort;
mod calls;
mod checkpoint;
mod collective_state;
mod migration;
mod open_memory;
mod pacer;
mod pending;
mod preemption;
mod shared_memory;
mod standby;
mod start;
mod sync;

pub use standby::{Decision, Standby};
pub use start::{check_max_ranks, rank_and_size};

use std::ffi::c_void;
use std::time::{Duration, Instant};

use crate::call::Call;
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::misuse::Misuse;
use crate::superstep::collective::Part;
use crate::superstep::exchange::{Exchange, Outgoing};
use crate::superstep::queue::{Queue, Queued};
use crate::superstep::schedule::Order;
use crate::trace::Tracer;
use checkpoint::Checkpoints;
use collective_state::CollectiveState;
use dipole_model::{Machine, Slots};
use open_memory::OpenMemory;
use pacer::Pacer;
use pending::PendingCalls;
use shared_memory::SharedMemory;

/// How long what was sent may take to arrive before links are closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Replies to the gets of another rank, held until that rank is ready for them.
#[derive(Debug)]
struct HeldReplies {
    to: u32,
    chunks: Vec<Vec<u8>>,
    writes: Vec<Outgoing>,
}

/// One rank of a program. Its carrier moves data to and from ranks of other nodes.
///
/// Calls only record what to do; [`sync`](Self::sync) moves the data.
#[derive(Debug)]
pub struct Process<C: Carrier> {
    rank: u32,
    size: u32,
    begun: Instant,
    call: Call,
    // Declared before the carrier, so that peers lose access to the memory before the carrier goes.
    open: OpenMemory,
    /// Dropped once all ranks are known to be on this node.
    carrier: Option<C>,
    exchange: Exchange<C::Message>,
    pacer: Pacer,
    /// Shared with the other ranks of this node, if there are any.
    shared: Option<SharedMemory>,
    pending: PendingCalls,
    held_for: Vec<HeldReplies>,
    collective: CollectiveState,
    queue: Queue,
    /// Buffer for encoding, kept between supersteps.
    scratch: Vec<u8>,
    /// Supersteps before the program's first one: one in which all ranks start, and those that
    /// compare the clocks of nodes.
    first: u32,
    /// Cost of a superstep, as rank 0 knows it.
    machine: Machine,
    trace: Option<Box<Tracer>>,
    /// `None` if the job was started without a folder for them.
    checkpoints: Option<Box<Checkpoints>>,
    /// The program's ranks after this parallel section; `None` if it is the only one.
    standby: Option<Box<Standby<C>>>,
}

impl<C: Carrier> Process<C> {
    /// Returns the rank of this process.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Time since the program began on this rank.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The current superstep, counted from 0.
    #[must_use]
    pub fn superstep(&self) -> u32 {
        self.exchange.superstep().wrapping_sub(self.first)
    }

    /// Cost of a superstep over the links between these ranks, as measured by rank 0. All ranks
    /// have the same values.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Sets the order in which this rank sends to ranks of other nodes. The default is a Latin
    /// square; other orders are for comparison.
    pub fn set_order(&mut self, order: Order) {
        self.exchange.set_order(order);
    }

    /// Sends to ranks of other nodes in time slots, or as fast as the link takes the data (`None`).
    pub fn set_slots(&mut self, slots: Option<Slots>) {
        self.pacer.set_slots(slots);
        self.pending.set_chunk_bytes(self.pacer.chunk_bytes());
        self.set_senders(self.size);
    }

    /// Sets the call of the program that later messages name.
    #[inline]
    pub fn set_call(&mut self, call: Call) {
        self.call = call;
    }

    /// Rank, superstep and call of the program, as messages begin.
    #[must_use]
    pub fn position(&self) -> String {
        let (rank, superstep, call) = (self.rank, self.superstep(), self.call);
        format!("rank {rank}, superstep {superstep}: {call}")
    }

    /// Registers memory as this rank's part of an area, from the next superstep on.
    ///
    /// # Errors
    /// The address is NULL and the size is not 0.
    ///
    /// # Safety
    /// While the memory is registered, `bytes` bytes at `address` must be readable and writable
    /// during `sync`, and nothing else may access the bytes that ranks put or get meanwhile.
    pub unsafe fn push_registration(
        &mut self,
        address: *mut c_void,
        bytes: u64,
    ) -> Result<(), Failure> {
        // SAFETY: the caller promises the same for as long as the memory is registered.
        let key = unsafe { self.open_memory(address.cast(), bytes)? };
        let address = address.expose_provenance() as u64;
        let part = Part {
            address,
            bytes,
            key,
        };
        Ok(self.collective.push_registration(part)?)
    }

    /// Removes the newest registration of an address, from the next superstep on.
    ///
    /// # Errors
    /// The address is not registered.
    pub fn pop_registration(&mut self, address: *const c_void) -> Result<(), Failure> {
        Ok(self.collective.pop_registration(address.addr() as u64)?)
    }

    /// Sets the tag size of messages sent from the next superstep on. Returns the size set before.
    pub fn set_tag_size(&mut self, bytes: u64) -> u64 {
        self.collective.set_tag_bytes(bytes)
    }

    /// The tag size of messages sent in this superstep.
    #[must_use]
    pub fn tag_size(&self) -> u64 {
        self.collective.tag_bytes()
    }

    /// The number of messages in the queue, and the bytes of their payloads.
    #[must_use]
    pub fn queue_size(&self) -> (u64, u64) {
        (self.queue.count(), self.queue.payload_bytes())
    }

    /// The next message of the queue.
    #[must_use]
    pub fn first_message(&self) -> Option<Queued<'_>> {
        self.queue.first()
    }

    /// Removes the next message from the queue. Its bytes stay valid until the superstep ends.
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

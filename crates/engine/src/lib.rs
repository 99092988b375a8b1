//! The loop: the one place that calls both the protocol and what moves its packets and records.
//!
//! [`Engine::step`] takes what has come, feeds the protocol, hands messages over and sends
//! what may go. It never waits and starts no thread; whoever waits steps it. Its parts:
//! `packets.rs` (the link of packets), `shared_memory.rs` (processes of this
//! node), and `core.rs`, which both feed: the protocol and what its events change.

#![forbid(unsafe_code)]

mod command;
mod content;
mod core;
mod departures;
mod dispatch;
mod endpoints;
mod exports;
mod frames;
mod gone;
mod inbox;
mod inboxes;
mod link;
mod liveness;
mod long_messages;
mod memory_operations;
mod net;
mod operation;
mod operations;
mod packer;
mod packets;
mod paths;
mod peers;
mod posted;
mod reader;
mod receives;
mod region;
mod send;
mod send_answers;
mod shared_memory;
mod target;
mod trailer;
mod turns;

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::path::Path as FilePath;

use dipole_driver::{Ready, WaitKey};
use dipole_link::shm::{ConnId, Hub, ShmError, ShmOptions, ShmStats};
use dipole_link::sim::SharedMemory as SimulatedMemory;
use dipole_link::{AnyHub, Link};
use dipole_proto::{Instant, Machine, PeerId};

use command::Commands;
use core::Core;
use dispatch::Dispatch;
use exports::Exports;
use frames::FramePool;
use net::to_wire;
use operations::Operations;
use packer::Packer;
use packets::PacketPort;
use peers::Peers;
use posted::SentPosts;
use shared_memory::SharedMemory;
use trailer::Trailers;

use dipole_naming::{address, key, profile, registry};
use key::ClusterKey;
use profile::Choices;

pub use command::Command;
pub use content::Content;
pub use departures::{Departure, MAX_DEPARTURES};
pub use dipole_driver::Polled;
pub use endpoints::PortRef;
pub use gone::GoneReason;
pub use inbox::{Buffer, Message, Pool};
pub use link::AnyLink;
pub use long_messages::LongSend;
pub use memory_operations::Begun;
pub use operation::{Context, Data, Operation, QueueRef};
pub use operations::{AnswerPlace, MAX_GET_BYTES, OperationId, OperationResult};
pub use paths::{Path, PathState, Paths};
pub use posted::Posted;
pub use reader::{Arriving, Reader, Taking};
pub use region::{Notice, RegionKey};
pub use target::{Blocked, Sent, Target, wait_keys};

/// Packets handed to the link in one call: two full runs of segmentation offload
/// (44 packets of 1472 bytes fill 64 KiB).
const BATCH: usize = 88;
/// How often, in steps, a spinning waiter looks for connections of this node.
const CONNECTIONS_EVERY: u32 = 16;
/// How often it looks at the network while it has no session there.
const STRANGERS_EVERY: u32 = 16;

/// Counters of the engine, beside those of the protocol and the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets handed to the link.
    pub packets_sent: u64,
    /// Packets taken from the link.
    pub packets_received: u64,
    /// Bytes of those packets, sent.
    pub bytes_sent: u64,
    /// Bytes of those packets, received.
    pub bytes_received: u64,
    /// Times that the link could not take all it was offered.
    pub link_full: u64,
    /// Unreliable messages dropped because their endpoint held too many.
    pub unreliable_dropped: u64,
}

/// What a process holds, for tests that it comes back to where it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Bytes of received messages that wait to be read.
    pub pool_bytes: u64,
    /// Bytes granted to peers that they have not used or the application not consumed.
    pub granted_bytes: u64,
    /// Outgoing edges that have not been forgotten.
    pub outgoing_edges: usize,
    /// Incoming edges that have not been forgotten.
    pub incoming_edges: usize,
    /// Messages of which only pieces have arrived.
    pub unfinished_messages: usize,
}

/// A process's protocol, link and endpoints, driven by its caller.
///
/// This is a seam for tests and for callers with a loop of their own; programs
/// use a node.
#[derive(Debug)]
pub struct Engine {
    core: Core,
    packets: PacketPort,
    /// Processes of this node.
    memory: Option<SharedMemory>,
    /// Long messages whose senders did not wait.
    kept: Vec<send::Kept>,
    /// Descriptors of endpoints.
    exports: Option<Exports>,
    /// What is to be done outside the lock goes there.
    control: Option<Commands>,
    steps: u32,
    /// The last record or packet came by shared memory.
    came_by_memory: bool,
    /// There is no session by the network.
    alone: bool,
    /// The progress thread has been asked for.
    is_served: bool,
    /// When it was last stepped: good enough for what needs no better time.
    stepped_at: Instant,
}

impl Engine {
    /// An engine on a link. `incarnation` must be random and `secret` known to
    /// nobody else; with a `key` only who holds it too gets a session.
    #[must_use]
    pub fn new(
        link: AnyLink,
        mut config: dipole_proto::Config,
        incarnation: u64,
        secret: [u64; 2],
        key: Option<&ClusterKey>,
    ) -> Engine {
        let caps = link.caps();
        config.packet_bytes = config.packet_bytes.min(caps.max_frame_bytes);
        let arriving = u32::try_from(caps.receive_frames).unwrap_or(u32::MAX);
        config.window_packets = config.window_packets.min(arriving).max(4);
        let trailers = Trailers::new(key, secret, &mut config);
        let lanes = packets::lanes(&link);
        let frames = FramePool::new(config.frames as usize, config.packet_bytes);
        Engine {
            core: Core {
                machine: Machine::new(config, incarnation, secret, &lanes),
                dispatch: Dispatch::default(),
                packer: Packer::new(frames, caps.small_run_frames),
                peers: Peers::default(),
                ready: Ready::default(),
                operations: Operations::default(),
                long_news: Vec::new(),
                sent_posts: SentPosts::default(),
            },
            packets: PacketPort::new(link, trailers),
            memory: None,
            kept: Vec::new(),
            exports: None,
            control: None,
            steps: 0,
            came_by_memory: false,
            alone: false,
            is_served: false,
            stepped_at: Instant(0),
        }
    }

    /// Meets processes of this node at a socket file.
    ///
    /// # Errors
    /// The socket or its memory cannot be had.
    pub fn open_memory(&mut self, socket: &FilePath) -> Result<(), ShmError> {
        self.open_hub(|greeting, options| Ok(Hub::open(socket, greeting, options)?.into()))
    }

    /// Meets processes of this node in simulated memory.
    ///
    /// # Errors
    /// The socket's name is taken.
    pub fn open_simulated(
        &mut self,
        memory: &SimulatedMemory,
        socket: &FilePath,
    ) -> Result<(), ShmError> {
        self.open_hub(|greeting, options| Ok(memory.open(socket, greeting, options)?.into()))
    }

    fn open_hub(
        &mut self,
        open: impl FnOnce(&[u8], &ShmOptions) -> Result<AnyHub, ShmError>,
    ) -> Result<(), ShmError> {
        self.memory = Some(SharedMemory::open(open, &self.core.machine)?);
        Ok(())
    }

    /// Lets messages go as measurements of shared memory and of the link of packets say; what goes by
    /// memory that is opened later goes as it is built.
    pub fn choose(&mut self, memory: Choices, packets: Choices) {
        if let Some(shared) = &mut self.memory {
            shared.choose(memory);
        }
        if let Some(most) = packets.run_packets {
            self.core.packer.shorten_runs(most);
        }
    }

    /// What becomes readable when [`step`](Self::step) has something to do.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut descriptors = self.packets.link().descriptors();
        descriptors.extend(self.memory.iter().filter_map(SharedMemory::descriptor));
        descriptors.extend(self.exports_descriptor());
        descriptors
    }

    // ---- stepping ----------------------------------------------------------------

    /// Looks at the small port for as long as so many system calls take, until something
    /// is there: the tightest way to wait while spinning. True if something is, and no bulk
    /// comes: [`take_found`](Self::take_found) may follow. Else [`step`](Self::step) must.
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub fn look(&mut self, now: Instant, calls: u32) -> io::Result<bool> {
        self.packets.look(now, calls)
    }

    /// True while bulk comes: only steps look at its port.
    #[inline]
    pub fn expects_bulk(&self) -> bool {
        self.packets.expects_bulk()
    }

    /// Takes the packets that [`look`](Self::look) has found and sends what they ask for.
    /// Timers, bulk and connections are left to the next [`step`](Self::step).
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub fn take_found(&mut self, now: Instant) -> io::Result<bool> {
        let received = self.packets.take_found(now, &mut self.core)?;
        self.came_by_memory &= !received;
        self.tend_operations(now);
        self.continue_kept();
        if self.has_transmit() {
            self.transmit(now)?;
        }
        Ok(received)
    }

    /// Before sleeping: false, and not armed, if something is there.
    pub fn arm(&mut self) -> bool {
        let armed = self.memory.as_mut().is_none_or(SharedMemory::arm);
        if !armed {
            self.core.ready.notify(WaitKey::RingSpace);
            return false;
        }
        if !self.packets.arm() {
            self.disarm();
            return false;
        }
        true
    }

    /// After sleeping.
    pub fn disarm(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.disarm();
            // The wake-up may have been for room in a ring.
            self.core.ready.notify(WaitKey::RingSpace);
        }
        self.packets.link_mut().disarm();
    }

    /// Takes what processes of this node have sent. With a `reader`, an endpoint at which the
    /// caller waits, the next message for it may be handed over at once.
    #[inline]
    pub fn poll_memory(&mut self, reader: Option<u32>) -> Polled<Message> {
        let Some(memory) = &mut self.memory else {
            return Polled::Nothing;
        };
        let polled = memory.poll(self.stepped_at, &mut self.core, reader);
        self.came_by_memory |= polled.came();
        self.tend_operations(self.stepped_at);
        polled
    }

    /// The same for a reader of an endpoint, which takes all messages for it that come first: how
    /// many.
    #[inline]
    pub fn poll_memory_to(&mut self, endpoint: u32, reader: &mut impl Reader) -> Polled<usize> {
        let Some(memory) = &mut self.memory else {
            return Polled::Nothing;
        };
        let polled = memory.poll_to(self.stepped_at, &mut self.core, (endpoint, reader));
        self.came_by_memory |= polled.came();
        self.tend_operations(self.stepped_at);
        polled
    }

    /// One turn: receive, let time act, send. True if anything came in.
    /// `look_everywhere` also looks where it has long been quiet.
    ///
    /// # Errors
    /// Only when the link is broken.
    pub fn step(&mut self, now: Instant, look_everywhere: bool) -> io::Result<bool> {
        self.stepped_at = now;
        let came = self.poll_memory(None).came();
        self.steps = self.steps.wrapping_add(1);
        if (look_everywhere || self.steps.is_multiple_of(CONNECTIONS_EVERY))
            && let Some(memory) = &mut self.memory
        {
            memory.poll_connections(&mut self.core)?;
        }
        if !self.is_served && self.has_peers() {
            self.ask_for_progress();
        }
        if look_everywhere {
            self.poll_exports()?;
        }
        // Without a session only strangers can come by the network.
        self.alone = self.memory.is_some() && !self.core.machine.has_sessions();
        if self.alone && !look_everywhere && !self.steps.is_multiple_of(STRANGERS_EVERY) {
            return Ok(came);
        }
        Ok(self.step_packets(now, look_everywhere)? | came)
    }

    fn has_peers(&self) -> bool {
        let by_memory = self.memory.as_ref().map_or(0, SharedMemory::peers);
        by_memory > 0 || self.core.machine.has_sessions()
    }

    /// Peers wait for this process to take what they send, whether it makes calls or not.
    #[cold]
    fn ask_for_progress(&mut self) {
        self.is_served = true;
        self.command(Command::Serve);
    }

    fn step_packets(&mut self, now: Instant, look_everywhere: bool) -> io::Result<bool> {
        let received = (self.packets).receive_all(now, &mut self.core, look_everywhere)?;
        if received {
            self.came_by_memory = false;
        }
        self.core.machine.on_timers(now);
        if self.core.machine.has_event() {
            self.core.handle_events(&[][..]);
        }
        self.report_suspects();
        self.time_operations(now);
        self.tend_operations(now);
        self.push_records();
        self.continue_kept();
        if self.has_transmit() || self.packets.has_batch() || self.core.packer.has_open_frames() {
            self.transmit(now)?;
        }
        self.packets.forget_ended(&mut self.core);
        self.tell_paths();
        Ok(received)
    }

    /// Sends everything that may go now.
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub fn transmit(&mut self, now: Instant) -> io::Result<()> {
        self.packets.transmit(now, &mut self.core)
    }

    /// True if some session may have something to send.
    #[inline]
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        self.core.machine.has_transmit()
    }

    /// When [`step`](Self::step) has something to do though nothing arrived.
    #[must_use]
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        [
            self.core.machine.next_deadline(),
            self.packets.next_deadline(now),
            self.operations_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Pushes what pipes have to tell, and wakes processes that have something new.
    #[inline]
    pub fn push_records(&mut self) {
        if let Some(memory) = &mut self.memory {
            if self.core.machine.has_ready_pipe() {
                memory.push_records(&mut self.core.machine);
            }
            memory.wake_peers();
        }
    }

    /// Wakes processes of this node for what was queued with more to come.
    #[inline]
    pub(crate) fn wake_memory_peers(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.wake_peers();
        }
    }

    // ---- peers -------------------------------------------------------------------

    /// Begins, or finds, the session with a process.
    ///
    /// # Errors
    /// [`dipole_proto::ConnectError`].
    pub fn connect(
        &mut self,
        now: Instant,
        to: Destination,
    ) -> Result<PeerId, dipole_proto::ConnectError> {
        let machine = &mut self.core.machine;
        let peer = machine.connect(now, to_wire(to.small), to.incarnation)?;
        self.core.peers.begin(peer);
        Ok(peer)
    }

    /// Begins, or finds, the connection with a process of this node; `None` if this process
    /// shares no memory.
    pub fn connect_memory(
        &mut self,
        socket: &FilePath,
        incarnation: u64,
    ) -> Option<Result<ConnId, ShmError>> {
        let memory = self.memory.as_mut()?;
        let machine = &self.core.machine;
        if let Some(known) = memory.find_process(incarnation) {
            return Some(Ok(known));
        }
        if machine.is_full() {
            let limit = machine.config().max_peers as usize;
            return Some(Err(ShmError::TooMany { limit }));
        }
        Some(memory.connect(socket, incarnation))
    }

    /// The peer that a connection leads to, once it is open.
    ///
    /// # Errors
    /// [`Blocked::Gone`].
    pub fn memory_peer(&self, connection: ConnId) -> Result<Option<PeerId>, Blocked> {
        let Some(memory) = &self.memory else {
            return Err(Blocked::Gone(None));
        };
        let found = memory.peer(connection);
        found.map_err(|reason| Blocked::Gone(reason.map(crate::gone::GoneReason::from)))
    }

    /// Says goodbye to every peer.
    pub fn say_goodbye(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.say_goodbye();
        }
        let peers: Vec<PeerId> = self.core.machine.peers().collect();
        // So that a sender knows what has arrived when it learns that nobody is left.
        for peer in &peers {
            self.core.machine.acknowledge(*peer);
        }
        if let Err(cause) = self.transmit(self.stepped_at) {
            tracing::warn!("the last acknowledgements were not sent: {cause}");
        }
        for peer in peers {
            self.core.machine.disconnect(peer);
        }
    }

    /// Asks all peers now and then whether they live (or stops asking).
    pub fn watch_peers(&mut self, now: Instant, watched: bool) {
        let peers: Vec<PeerId> = self.core.machine.peers().collect();
        for peer in peers {
            self.core.machine.watch(now, peer, watched);
        }
    }

    /// A cluster key that was taken until now is not any more: peers prove anew that they are
    /// members, or are gone after [`RENEWAL_NS`](dipole_proto::RENEWAL_NS).
    pub fn renew_proofs(&mut self, now: Instant) {
        self.core.machine.renew_proofs(now);
    }

    /// Asks a peer now and then whether it lives.
    pub fn watch(&mut self, now: Instant, peer: PeerId) {
        self.core.machine.watch(now, peer, true);
    }

    /// Peers that are gone since the last call, in order; the latest [`MAX_DEPARTURES`] if
    /// there were more.
    pub fn take_departures(&mut self) -> Vec<Departure> {
        self.core.peers.take_departures()
    }

    // ---- counters ----------------------------------------------------------------

    /// The protocol, for its counters and configuration.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.core.machine
    }

    /// The link.
    #[must_use]
    pub fn link(&self) -> &AnyLink {
        self.packets.link()
    }

    /// Counters.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            unreliable_dropped: self.core.dispatch.unreliable_dropped(),
            ..*self.packets.traffic()
        }
    }

    /// Packets and records that have come and gone.
    #[inline]
    pub fn activity(&self) -> u64 {
        let (packets, memory) = (self.packets.traffic(), self.memory_stats());
        let records = memory.map_or(0, |memory| memory.records_in + memory.records_out);
        packets.packets_sent + packets.packets_received + records
    }

    /// Frames that can be filled now.
    #[must_use]
    pub fn free_frames(&self) -> usize {
        self.core.packer.frames.free()
    }

    /// What went through shared memory.
    pub fn memory_stats(&self) -> Option<ShmStats> {
        self.memory.as_ref().map(SharedMemory::stats)
    }

    /// Processes of this node, opening or open.
    pub fn memory_peers(&self) -> usize {
        self.memory.as_ref().map_or(0, SharedMemory::peers)
    }

    /// What this process holds.
    #[must_use]
    pub fn holdings(&self) -> Holdings {
        let machine = &self.core.machine;
        let (outgoing_edges, incoming_edges) = machine.edges();
        Holdings {
            pool_bytes: machine.pool_used(),
            granted_bytes: machine.credit_committed(),
            outgoing_edges,
            incoming_edges,
            unfinished_messages: self.core.dispatch.unfinished(),
        }
    }
}

/// How to reach a process: its small port, and which process is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Where its small port is.
    pub small: SocketAddr,
    /// Its incarnation, zero for whoever is there.
    pub incarnation: u64,
}

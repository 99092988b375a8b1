//! The engine, which connects the protocol with the links that carry its packets and records.
//!
//! [`Engine::step`] receives, runs the protocol, delivers messages and sends. It never blocks and
//! starts no threads; waiting threads step it. `packets.rs` handles the network link and
//! `shared_memory.rs` the processes of this node. Both feed `core.rs`, which holds the protocol
//! and everything that its events change.

#![forbid(unsafe_code)]

mod addresses;
mod arrivals;
mod batch;
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
mod ports;
mod posted;
mod reader;
mod receives;
mod refusals;
mod region;
mod send;
mod send_answers;
mod shared_memory;
mod shortages;
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
use dipole_proto::wire::Trailers as Offer;
use dipole_proto::{Instant, Machine, PeerId};

use command::Commands;
use core::Core;
use dipole_model::Choices;
use dispatch::Dispatch;
use exports::Exports;
use frames::FramePool;
use net::to_wire;
use operations::Operations;
use packer::Packer;
use packets::PacketPort;
use peers::Peers;
use posted::SentPosts;
use refusals::Refusals;
use shared_memory::SharedMemory;
use shortages::InjectedShortages;
use trailer::Trailers;

use dipole_naming::{address, key, registry};
use key::ClusterKey;

pub use command::Command;
pub use content::Content;
pub use departures::{Departure, MAX_DEPARTURES};
pub use dipole_driver::Polled;
pub use endpoints::PortRef;
pub use gone::GoneReason;
pub use inbox::{Buffer, Message, Pool};
pub use link::AnyLink;
pub use long_messages::LongSend;
pub use memory_operations::OperationStart;
pub use operation::{Context, Data, Operation, QueueRef};
pub use operations::{AnswerBuffer, MAX_GET_BYTES, OperationId, OperationResult};
pub use paths::{Path, PathState, Paths};
pub use ports::Landed;
pub use posted::PostedOperation;
pub use reader::{Arriving, Reader, ReaderSink};
pub use region::{Notice, RegionKey};
pub use target::{Blocked, Sent, Target, wait_keys};

/// Packets per call of the link: two full GSO runs (44 packets of 1472 bytes fill 64 KiB).
const BATCH: usize = 88;
/// Steps between two checks for new connections within this node, while a thread spins.
const CONNECTIONS_EVERY: u32 = 16;
/// Steps between two polls of the network while there is no session on it.
const STRANGERS_EVERY: u32 = 16;

/// Counters of the engine, in addition to those of the protocol and the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets passed to the link.
    pub packets_sent: u64,
    /// Packets received from the link.
    pub packets_received: u64,
    /// Bytes of the packets sent.
    pub bytes_sent: u64,
    /// Bytes of the packets received.
    pub bytes_received: u64,
    /// How often the link accepted less than it was offered.
    pub link_full: u64,
    /// Unreliable messages dropped because their endpoint held too many.
    pub unreliable_dropped: u64,
}

/// Resources that a process holds, for tests that check for leaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Bytes of unread messages.
    pub pool_bytes: u64,
    /// Bytes granted to peers, and not yet used by them or consumed by the application.
    pub granted_bytes: u64,
    /// Outgoing edges that still have state.
    pub outgoing_edges: usize,
    /// Incoming edges that still have state.
    pub incoming_edges: usize,
    /// Messages that have only partly arrived.
    pub unfinished_messages: usize,
}

/// A process's protocol, links and endpoints, driven by its caller.
///
/// Meant for nodes, for tests, and for callers with their own event loop.
#[derive(Debug)]
pub struct Engine {
    core: Core,
    packets: PacketPort,
    /// Peers on this node.
    memory: Option<SharedMemory>,
    /// Long messages that are sent in the background.
    background_sends: Vec<send::BackgroundSend>,
    /// Exported descriptors of endpoints.
    exports: Option<Exports>,
    /// Queue for work outside the lock.
    control: Option<Commands>,
    steps: u32,
    /// The last record or packet arrived through shared memory.
    last_was_shm: bool,
    /// There are no sessions over the network.
    no_network_peers: bool,
    /// The progress thread has been requested.
    progress_thread_requested: bool,
    /// Shortages that a fault plan injects.
    shortages: Option<Box<InjectedShortages>>,
    /// Time of the last step, for uses that tolerate an old time.
    stepped_at: Instant,
}

impl Engine {
    /// Creates an engine on a link. `incarnation` must be random and `secret` must be known only
    /// to this process. With a `key`, only peers that have it too get a session.
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
        config.queue_packets = arriving;
        if !caps.checks_frames && config.trailers == Offer::KERNEL {
            config.trailers = Offer::CRC32C;
        }
        let trailers = Trailers::new(key, secret, &mut config);
        let secret = trailers.secret_of_core(secret);
        let lanes = packets::lanes(&link);
        let frames = FramePool::new(config.frames as usize, config.packet_bytes);
        Engine {
            core: Core {
                machine: Machine::new(config, incarnation, secret, &lanes).into(),
                dispatch: Dispatch::default(),
                packer: Packer::new(frames, caps.small_run_frames),
                peers: Peers::default(),
                refusals: Refusals::default(),
                ready: Ready::default(),
                operations: Operations::default(),
                long_events: Vec::new(),
                sent_posts: SentPosts::default(),
            },
            packets: PacketPort::new(link, trailers),
            memory: None,
            background_sends: Vec::new(),
            exports: None,
            control: None,
            steps: 0,
            last_was_shm: false,
            no_network_peers: false,
            progress_thread_requested: false,
            shortages: None,
            stepped_at: Instant(0),
        }
    }

    /// Opens shared memory with processes of this node, at a socket file.
    ///
    /// # Errors
    /// The socket or its memory is not available.
    pub fn open_memory(&mut self, socket: &FilePath) -> Result<(), ShmError> {
        let shortage = self.take_ring_shortage();
        self.open_hub(|greeting, options| {
            let hub = Hub::open(socket, greeting, options)?;
            Ok(shortages::hub_with(shortage, hub))
        })
    }

    /// Opens simulated shared memory with processes of this node.
    ///
    /// # Errors
    /// The socket's name is already in use.
    pub fn open_simulated(
        &mut self,
        memory: &SimulatedMemory,
        socket: &FilePath,
    ) -> Result<(), ShmError> {
        self.open_hub(|greeting, options| Ok(memory.open(socket, greeting, options)?.into()))
    }

    /// Records the inputs of the protocol core from now on.
    ///
    /// # Errors
    /// The directory or the first file cannot be created or written.
    pub fn record(&mut self, options: dipole_record::Options, now: Instant) -> io::Result<()> {
        self.core.machine.record(options, now)
    }

    fn open_hub(
        &mut self,
        open: impl FnOnce(&[u8], &ShmOptions) -> Result<AnyHub, ShmError>,
    ) -> Result<(), ShmError> {
        self.memory = Some(SharedMemory::open(open, &self.core.machine)?);
        Ok(())
    }

    /// Applies measured profiles of shared memory and the network link. Must be called after
    /// shared memory was opened.
    pub fn apply_profile(&mut self, memory: Choices, packets: Choices) {
        if let Some(shared) = &mut self.memory {
            shared.apply_profile(memory);
        }
        if let Some(max) = packets.run_packets {
            self.core.packer.shorten_runs(max);
        }
    }

    /// Descriptors that become readable when [`step`](Self::step) has something to do.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut descriptors = self.packets.link().descriptors();
        descriptors.extend(self.memory.iter().filter_map(SharedMemory::descriptor));
        descriptors.extend(self.exports_descriptor());
        descriptors
    }

    // ---- stepping ----------------------------------------------------------------

    /// Polls for small packets with up to `calls` system calls, until there are some: the tightest
    /// spin loop. True if there are some and no bulk traffic is arriving; then
    /// [`take_polled`](Self::take_polled) may follow. Otherwise [`step`](Self::step) must follow.
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub fn spin_poll(&mut self, now: Instant, calls: u32) -> io::Result<bool> {
        self.packets.spin_poll(now, calls)
    }

    /// True while bulk traffic arrives; only steps poll its socket.
    #[inline]
    pub fn expects_bulk(&self) -> bool {
        self.packets.expects_bulk()
    }

    /// Handles the packets that [`spin_poll`](Self::spin_poll) found and sends the replies.
    /// Timers, bulk and connections are left to the next [`step`](Self::step).
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub fn take_polled(&mut self, now: Instant) -> io::Result<bool> {
        let received = self.packets.take_polled(now, &mut self.core)?;
        self.last_was_shm &= !received;
        self.tend_operations(now);
        self.continue_background_sends();
        if self.has_transmit() {
            self.transmit(now)?;
        }
        Ok(received)
    }

    /// Prepares for sleep. False, and not armed, if something has already arrived.
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

    /// Ends the sleep that [`arm`](Self::arm) prepared.
    pub fn disarm(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.disarm();
            // The wake-up may mean that a ring has room again.
            self.core.ready.notify(WaitKey::RingSpace);
        }
        self.packets.link_mut().disarm();
    }

    /// Polls shared memory. If the caller waits at the endpoint `reader`, its next message may be
    /// handed over directly.
    #[inline]
    pub fn poll_memory(&mut self, reader: Option<u32>) -> Polled<Message> {
        let Some(memory) = &mut self.memory else {
            return Polled::Nothing;
        };
        let polled = memory.poll(self.stepped_at, &mut self.core, reader);
        self.last_was_shm |= polled.made_progress();
        self.tend_operations(self.stepped_at);
        polled
    }

    /// Polls shared memory and passes an endpoint's messages to a reader; returns their number.
    #[inline]
    pub fn poll_memory_to(&mut self, endpoint: u32, reader: &mut impl Reader) -> Polled<usize> {
        let Some(memory) = &mut self.memory else {
            return Polled::Nothing;
        };
        let polled = memory.poll_to(self.stepped_at, &mut self.core, (endpoint, reader));
        self.last_was_shm |= polled.made_progress();
        self.tend_operations(self.stepped_at);
        polled
    }

    /// Receives, handles timers, and sends. True if anything arrived. With `look_everywhere` it
    /// also polls sources that have long been quiet.
    ///
    /// # Errors
    /// Only when the link is broken.
    pub fn step(&mut self, now: Instant, look_everywhere: bool) -> io::Result<bool> {
        self.stepped_at = now;
        if self.shortages.is_some() {
            self.renew_shortages();
        }
        let progress = self.poll_memory(None).made_progress();
        self.steps = self.steps.wrapping_add(1);
        if (look_everywhere || self.steps.is_multiple_of(CONNECTIONS_EVERY))
            && let Some(memory) = &mut self.memory
        {
            memory.poll_connections(&mut self.core)?;
        }
        if !self.progress_thread_requested && self.has_peers() {
            self.request_progress_thread();
        }
        if look_everywhere {
            self.poll_exports()?;
        }
        // Without sessions, the network can only bring packets of new peers.
        self.no_network_peers = self.memory.is_some() && !self.core.machine.has_sessions();
        if self.no_network_peers && !look_everywhere && !self.steps.is_multiple_of(STRANGERS_EVERY)
        {
            return Ok(progress);
        }
        Ok(self.step_packets(now, look_everywhere)? | progress)
    }

    fn has_peers(&self) -> bool {
        let by_memory = self.memory.as_ref().map_or(0, SharedMemory::peers);
        by_memory > 0 || self.core.machine.has_sessions()
    }

    /// Requests the progress thread, because peers expect acknowledgements even if this process
    /// makes no calls.
    #[cold]
    fn request_progress_thread(&mut self) {
        self.progress_thread_requested = true;
        self.command(Command::StartProgressThread);
    }

    fn step_packets(&mut self, now: Instant, look_everywhere: bool) -> io::Result<bool> {
        let received = (self.packets).receive_all(now, &mut self.core, look_everywhere)?;
        if received {
            self.last_was_shm = false;
        }
        self.core.machine.on_timers(now);
        if self.core.machine.has_event() {
            self.core.handle_events(&[][..]);
        }
        self.report_suspects();
        self.on_operation_timer(now);
        self.tend_operations(now);
        self.push_records();
        self.continue_background_sends();
        self.transmit_pending(now)?;
        self.packets.forget_ended(&mut self.core);
        self.log_path_changes();
        Ok(received)
    }

    /// Sends everything that may be sent now.
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub fn transmit(&mut self, now: Instant) -> io::Result<()> {
        let free = self.free_frames();
        self.packets.transmit(now, &mut self.core)?;
        // No acknowledgement follows unreliable packets: their frames can be used from now on.
        if !self.background_sends.is_empty() && self.free_frames() > free {
            self.continue_background_sends();
            self.packets.transmit(now, &mut self.core)?;
        }
        Ok(())
    }

    /// Like [`transmit`](Self::transmit), if there is something to send.
    #[inline]
    fn transmit_pending(&mut self, now: Instant) -> io::Result<()> {
        if self.has_transmit() || self.packets.has_batch() || self.core.packer.has_open_frames() {
            self.transmit(now)?;
        }
        Ok(())
    }

    /// True if some session may have something to send.
    #[inline]
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        self.core.machine.has_transmit()
    }

    /// When [`step`](Self::step) is needed even if nothing arrives.
    #[must_use]
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        [
            self.core.machine.next_deadline(now),
            self.packets.next_deadline(now),
            self.core.packer.next_deadline(&self.core.machine, now),
            self.operations_deadline(),
            self.shortage_deadline(now),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Sends pending records in shared memory and wakes peers that have new ones.
    #[inline]
    pub fn push_records(&mut self) {
        if let Some(memory) = &mut self.memory {
            if self.core.machine.has_ready_pipe() {
                memory.push_records(&mut self.core.machine);
            }
            memory.wake_peers();
        }
    }

    /// Wakes peers on this node for messages that were queued with more to follow.
    #[inline]
    pub(crate) fn wake_memory_peers(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.wake_peers();
        }
    }

    // ---- peers -------------------------------------------------------------------

    /// Opens a session with a process, or returns the existing one.
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

    /// Opens a connection with a process of this node, or returns the existing one; `None` if this
    /// process does not use shared memory.
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

    /// The peer at the other end of a connection, once it is open.
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

    /// Disconnects from every peer.
    pub fn send_goodbye(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.send_goodbye();
        }
        let peers: Vec<PeerId> = self.core.machine.peers().collect();
        // Acknowledge what has arrived before senders find out that this process is gone.
        for peer in &peers {
            self.core.machine.acknowledge(*peer);
        }
        if let Err(cause) = self.transmit(self.stepped_at) {
            tracing::warn!("cannot send the last acknowledgements: {cause}");
        }
        for peer in peers {
            self.core.machine.disconnect(peer);
        }
    }

    /// Starts or stops probing all peers.
    pub fn watch_peers(&mut self, now: Instant, watched: bool) {
        let peers: Vec<PeerId> = self.core.machine.peers().collect();
        for peer in peers {
            self.core.machine.watch(now, peer, watched);
        }
    }

    /// A cluster key was withdrawn: peers must prove their membership again within
    /// [`RENEWAL_NS`](dipole_proto::RENEWAL_NS).
    pub fn renew_proofs(&mut self, now: Instant) {
        self.core.machine.renew_proofs(now);
    }

    /// Starts probing a peer.
    pub fn watch(&mut self, now: Instant, peer: PeerId) {
        self.core.machine.watch(now, peer, true);
    }

    /// Returns the peers that have gone since the last call, in order; at most the latest
    /// [`MAX_DEPARTURES`].
    pub fn take_departures(&mut self) -> Vec<Departure> {
        self.core.peers.take_departures()
    }

    // ---- counters ----------------------------------------------------------------

    /// The protocol state machine, for its counters and configuration.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.core.machine
    }

    /// Returns the link to other nodes.
    #[must_use]
    pub fn link(&self) -> &AnyLink {
        self.packets.link()
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic {
            unreliable_dropped: self.core.dispatch.unreliable_dropped(),
            ..*self.packets.traffic()
        }
    }

    /// Total number of packets and records, sent and received.
    #[inline]
    pub fn activity(&self) -> u64 {
        let (packets, memory) = (self.packets.traffic(), self.memory_stats());
        let records = memory.map_or(0, |memory| memory.records_in + memory.records_out);
        packets.packets_sent + packets.packets_received + records
    }

    /// Number of free frames.
    #[must_use]
    pub fn free_frames(&self) -> usize {
        self.core.packer.frames.free()
    }

    /// Counters of shared memory.
    pub fn memory_stats(&self) -> Option<ShmStats> {
        self.memory.as_ref().map(SharedMemory::stats)
    }

    /// Peers in shared memory, including opening connections.
    pub fn memory_peers(&self) -> usize {
        self.memory.as_ref().map_or(0, SharedMemory::peers)
    }

    /// The resources that this process holds.
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

/// The address of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Address of its small-packet port.
    pub small: SocketAddr,
    /// Its incarnation; zero means any.
    pub incarnation: u64,
}

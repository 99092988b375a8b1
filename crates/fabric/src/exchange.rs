//! The message protocol of one libfabric endpoint over one Dipole endpoint.
//!
//! A short message is sent whole, behind a head (`wire.rs`); the receiver copies it into the
//! matching receive, or keeps it until one is posted. For a long message the sender sends only an
//! offer: the region that holds it. The receiver gets the message from there straight into the
//! receive's buffer and reports that, which completes the send. Short messages are offered, too,
//! while too many unexpected ones wait at the receiver (`throttle.rs`). The receiver of a short
//! message reports that a receive has it if the sender wants to know (`FI_DELIVERY_COMPLETE`).
//!
//! Nothing here blocks: operations without room are posted, or the call returns `FI_EAGAIN`.

mod atomic;
mod batch;
mod departed;
mod edges;
mod null_buffer;
mod outstanding;
mod receives;
mod rma;
mod schedule;
mod sleep;
mod throttle;
mod waiting;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dipole_node::{
    Address, Choices, Completion, CompletionQueue, Endpoint, EndpointId, GoneReason, Message,
    NodeId, Operation, ReceiveError, Rights, SendError,
};

use crate::abi::errno::{
    FI_EACCES, FI_ECANCELED, FI_ECONNABORTED, FI_EIO, FI_EMSGSIZE, FI_ETIMEDOUT,
};
use crate::abi::fabric::{FI_MSG, FI_SEND, FI_TAGGED};
use crate::atomics::Atomics;
use crate::completion::{Entry, Sinks};
use crate::ffi::{AGAIN, Failure};
use crate::memory::Pieces;
use crate::name::{Destination, Name, number};
use crate::node::Domain;
use crate::wire::{Head, Kind, Offer};
pub(crate) use atomic::AtomicRequest;
use batch::Batch;
pub(crate) use departed::Survivor;
use edges::{PeerEdge, PeerEdges};
use outstanding::{Outstanding, Pending, Untaken};
use receives::{ArrivalReader, Receives};
pub(crate) use receives::{PeekMode, ReceiveRequest};
pub(crate) use rma::RmaRequest;
use schedule::Schedule;
use throttle::MAX_UNTHROTTLED_BYTES;

/// Longest injected message.
pub(crate) const INJECT_BYTES: usize = 8 << 10;
/// Longest message that shares a packet.
const MAX_BATCHED_BYTES: usize = 512;
/// Rights of the receiver of a long message.
const READABLE: Rights = Rights {
    get: true,
    ..Rights::NONE
};
/// The context of posted messages whose completion nothing depends on.
const UNTRACKED: u64 = 0;
/// How long closing an endpoint waits until everything it sent has left.
const LINGER: Duration = Duration::from_secs(10);
/// The same after deaths: messages may wait for processes that were dead before they were sent.
const LINGER_AFTER_DEATHS: Duration = Duration::from_secs(1);

/// A message that the program sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendRequest {
    pub(crate) is_tagged: bool,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) from: Pieces,
    pub(crate) context: usize,
    /// The program wants a completion even if the send succeeds.
    pub(crate) notify: bool,
    /// The send completes only when the receiver has the message.
    pub(crate) wants_delivery: bool,
    /// The program may reuse the buffer as soon as the call returns.
    pub(crate) is_injected: bool,
}

impl SendRequest {
    fn flags(&self) -> u64 {
        FI_SEND | if self.is_tagged { FI_TAGGED } else { FI_MSG }
    }

    fn entry(&self) -> Entry {
        Entry {
            context: self.context,
            flags: self.flags(),
            length: self.from.length(),
            ..Entry::default()
        }
    }

    fn head(&self, kind: Kind) -> Head {
        Head {
            kind,
            is_tagged: self.is_tagged,
            has_data: self.data.is_some(),
            tag: self.tag,
            data: self.data.unwrap_or(0),
            number: 0,
        }
    }
}

/// The state of an endpoint.
pub(crate) struct Exchange {
    own: Name,
    // Edges and regions are dropped before the endpoint that they belong to.
    edges: PeerEdges,
    outstanding: Outstanding,
    atomics: Arc<Atomics>,
    receives: Receives,
    batch: Batch,
    schedule: Schedule,
    scratch: Vec<u8>,
    pub(crate) sinks: Sinks,
    survivor: Survivor,
    /// Messages that a poll could not read in place.
    arrived: VecDeque<Message>,
    queue: CompletionQueue,
    endpoint: Endpoint,
    node: dipole_node::Node,
}

impl Exchange {
    pub(crate) fn new(domain: &Domain, endpoint: Endpoint, survivor: Survivor) -> Exchange {
        let node = domain.node.clone();
        Exchange {
            own: Name {
                messages: endpoint.address(),
                regions: domain.regions.address(),
                atomics: domain.port.address(),
                ports: node.ports(),
            },
            edges: PeerEdges::default(),
            outstanding: Outstanding::default(),
            atomics: Arc::clone(&domain.atomics),
            receives: Receives::new(&domain.unexpected),
            batch: Batch::default(),
            schedule: Schedule::new(),
            scratch: Vec::new(),
            sinks: Sinks::default(),
            survivor,
            arrived: VecDeque::new(),
            queue: node.completion_queue(),
            endpoint,
            node,
        }
    }

    pub(crate) fn name(&self) -> Name {
        self.own
    }

    /// The edge to an endpoint whose ports are known, or which has sent messages here.
    #[inline]
    fn edge(&mut self, to: Destination) -> Result<&mut PeerEdge, Failure> {
        let index = self.edge_index(to)?;
        Ok(self.edges.at(index))
    }

    /// The index of [`edge`](Self::edge).
    #[inline]
    fn edge_index(&mut self, to: Destination) -> Result<usize, Failure> {
        match self.edges.find(number(to.address)) {
            Some(index) => Ok(index),
            None => self.open_edge(to),
        }
    }

    #[cold]
    fn open_edge(&mut self, to: Destination) -> Result<usize, Failure> {
        let edge = match to.ports {
            Some(ports) => self.endpoint.edge_at(to.address, ports),
            None => self.endpoint.edge(to.address),
        };
        let edge = edge.map_err(|error| failure_of(&error))?;
        edge.attach(&self.queue);
        let is_local = to.address.node == self.own.messages.node;
        let shares_memory = is_local && self.node.stats().local.is_some();
        let whole_bytes = self.node.choices(shares_memory).whole_bytes(shares_memory);
        let number = number(to.address);
        Ok((self.edges).insert(number, edge, shares_memory, whole_bytes))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `AGAIN` if the send queue is full; another failure if the peer is gone.
    #[inline]
    pub(crate) fn send(&mut self, to: &Name, message: SendRequest) -> Result<(), Failure> {
        let sent = self.send_to(to, message);
        self.or_dropped(sent, &message)
    }

    #[inline]
    fn send_to(&mut self, to: &Name, message: SendRequest) -> Result<(), Failure> {
        if message.from.null_bytes() > 0 {
            return self.fail_null_buffer(to, message);
        }
        if self.schedule.count_sent(message.from.length()) {
            self.progress();
        }
        if to.messages == self.own.messages {
            self.send_to_self(&message);
        } else if self.is_eager(to, message.from.length())? {
            let mut head = message.head(Kind::Message);
            if message.wants_delivery {
                head.number = self.outstanding.next_number();
            }
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.clear();
            scratch.extend_from_slice(&head.encode());
            message.from.gather(&mut scratch);
            let sent = self.send_short(to.message_endpoint(), &scratch);
            self.scratch = scratch;
            let is_sent = sent?;
            if message.wants_delivery {
                let untaken = Untaken::of(None, to, &message);
                self.outstanding.insert_untaken(head.number, untaken);
                return Ok(());
            }
            if !is_sent {
                self.defer_completion(&message);
                return Ok(());
            }
        } else {
            return self.offer(to, message);
        }
        if message.notify || !self.sinks.counters.is_empty() {
            self.sinks.complete(message.notify, message.entry());
        }
        Ok(())
    }

    /// True if a message of this length is sent whole instead of being offered.
    #[inline]
    fn is_eager(&mut self, to: &Name, length: usize) -> Result<bool, Failure> {
        if length > MAX_UNTHROTTLED_BYTES && self.is_throttled(to)? {
            return Ok(false);
        }
        if length <= Choices::LEAST_WHOLE_BYTES {
            return Ok(true);
        }
        let peer = self.edge(to.message_endpoint())?;
        Ok(length <= peer.whole_bytes)
    }

    /// Sends a message at once, or adds it to a batch if it is one of many in this round. False if
    /// it waits for the batch to be flushed.
    #[inline]
    fn send_short(&mut self, to: Destination, bytes: &[u8]) -> Result<bool, Failure> {
        let round = self.schedule.round();
        let peer = self.edge(to)?;
        if peer.shares_memory || !peer.count_message(round) || bytes.len() > MAX_BATCHED_BYTES {
            self.send_bytes(to, bytes)?;
            return Ok(true);
        }
        match peer.edge.try_send_more(bytes) {
            Ok(()) => Ok(false),
            Err(SendError::Full { .. }) => self.send_bytes(to, bytes).map(|()| true),
            Err(error) => Err(failure_of(&error)),
        }
    }

    /// Completes a batched message when its packet leaves: when the packet is full, or at the next
    /// call for progress.
    fn defer_completion(&mut self, message: &SendRequest) {
        if self.batch.push(message.notify, message.entry()) {
            self.flush();
        }
    }

    /// Sends all batched messages and completes them.
    #[cold]
    fn flush(&mut self) {
        if let Err(error) = self.endpoint.flush_edges() {
            log_error(&error);
        }
        self.batch.complete(&self.sinks);
    }

    /// Sends bytes at once, or posts a copy if the send queue is full.
    #[inline]
    fn send_bytes(&mut self, to: Destination, bytes: &[u8]) -> Result<(), Failure> {
        let edge = &self.edge(to)?.edge;
        match edge.try_send(bytes) {
            Ok(()) => return Ok(()),
            Err(SendError::Full { .. }) => {}
            Err(error) => return Err(failure_of(&error)),
        }
        let posted = edge.post(Operation::Message, &[IoSlice::new(bytes)], UNTRACKED);
        posted.map_err(|error| failure_of(&error))?;
        self.outstanding.add_posted(1);
        Ok(())
    }

    /// Opens a region over a long message and sends its key.
    fn offer(&mut self, to: &Name, message: SendRequest) -> Result<(), Failure> {
        let memory = match message.is_injected {
            true => {
                self.check_injected(message.from.length())?;
                message.from.copied_region()
            }
            false => message.from.as_region(),
        };
        let region = (self.endpoint)
            .open_region(memory.memory.clone(), READABLE)
            .map_err(|_| Failure(FI_EIO))?;
        let number = self.outstanding.next_number();
        let offer = Offer::new(message.from.length(), region.key(), number);
        self.send_offer(to, &message, offer)?;
        let untaken = Untaken::of(Some((region, memory)), to, &message);
        self.outstanding.insert_untaken(number, untaken);
        Ok(())
    }

    fn send_offer(
        &mut self,
        to: &Name,
        message: &SendRequest,
        offer: Offer,
    ) -> Result<(), Failure> {
        let mut bytes = message.head(Kind::Offer).encode().to_vec();
        bytes.extend_from_slice(&offer.encode());
        self.send_bytes(to.message_endpoint(), &bytes)
    }

    /// Completes a message that a receive has, or whose data the receiver could not fetch.
    fn on_taken(&mut self, number: u64, failure: u64) {
        if let Some(untaken) = self.outstanding.take_untaken(number) {
            let mut entry = untaken.entry;
            entry.failure = i32::try_from(failure)
                .ok()
                .filter(|number| *number != 0)
                .map(|number| (number, 0));
            self.sinks.complete(untaken.notify, entry);
        }
    }

    /// Processes what has arrived and advances outstanding operations; true if there was anything
    /// to do.
    #[inline]
    pub(crate) fn progress(&mut self) -> bool {
        self.schedule.begin_round();
        let has_flushed = !self.batch.is_empty();
        if has_flushed {
            self.flush();
        }
        let has_moved = match self.outstanding.posted() {
            0 => self.take_messages(),
            // Alternate, because each of the two polls the network.
            _ if self.schedule.is_even() => self.take_completion() || self.take_messages(),
            _ => self.take_messages(),
        };
        if self.edges.are_held_up() {
            self.advance_queues();
        }
        self.schedule.end_round();
        has_moved || has_flushed
    }

    /// Like [`progress`](Self::progress), for a program that reads completions. Returns the number of
    /// such polls in a row in which nothing happened while the program began no operation.
    #[inline]
    pub(crate) fn poll_for_program(&mut self) -> u32 {
        let has_moved = self.progress();
        self.schedule.count_poll(has_moved)
    }

    /// The program has begun an operation.
    #[inline]
    pub(crate) fn on_operation(&mut self) {
        self.schedule.on_operation();
    }

    #[inline]
    fn take_messages(&mut self) -> bool {
        let with_network = self.schedule.includes_network(self.edges.shares_memory());
        let has_received = self.poll(with_network)
            || (!with_network && self.schedule.is_network_due() && self.poll(true));
        if has_received {
            self.schedule.on_received();
        }
        has_received
    }

    /// Receives all messages that wait; true if there were any.
    #[inline]
    fn poll(&mut self, with_network: bool) -> bool {
        let mut reader = ArrivalReader {
            receives: &mut self.receives,
            sinks: &self.sinks,
            arrived: &mut self.arrived,
        };
        let received = self.endpoint.poll(&mut reader, with_network);
        while let Some(message) = self.arrived.pop_front() {
            self.receive(message);
        }
        match received {
            Ok(count) => count > 0,
            Err(ReceiveError::Forked) => false,
            Err(error) => {
                log_error(&error);
                false
            }
        }
    }

    fn take_completion(&mut self) -> bool {
        match self.queue.poll() {
            Ok(Some(completion)) => {
                self.on_completion(completion);
                true
            }
            Ok(None) | Err(_) => false,
        }
    }

    /// Sleeps until a message arrives, for at most `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) {
        if !self.batch.is_empty() {
            return self.flush();
        }
        // Neither completions of posted operations nor room on an edge wake a thread that waits for
        // messages.
        let is_busy = self.outstanding.posted() > 0 || self.edges.are_held_up();
        let sleep = match is_busy {
            false => timeout,
            true => timeout.min(Duration::from_millis(1)),
        };
        match self.endpoint.receive_timeout(sleep) {
            Ok(message) => self.receive(message),
            Err(_) => {
                self.schedule.on_slept();
                if self.outstanding.posted() > 0 {
                    self.take_completion();
                }
            }
        }
    }

    fn on_completion(&mut self, completion: Completion) {
        let (context, result) = match completion {
            Completion::Sent { context } | Completion::Done { context, .. } => (context, Ok(())),
            Completion::Failed { context, error } => (context, Err(failure_of(&error))),
            // Receives are not posted to this queue, and messages do not go there.
            _ => return,
        };
        self.outstanding.on_completed();
        self.on_part(context, result);
    }

    /// Handles the end of a part of an operation.
    fn on_part(&mut self, number: u64, result: Result<(), Failure>) {
        match self.outstanding.take(number) {
            Some(Pending::Fetch(fetch)) => self.on_fetch_part(number, fetch, result),
            Some(Pending::Rma(rma)) => self.on_rma_part(number, rma, result),
            None => {}
        }
    }

    #[inline]
    pub(crate) fn is_peer_check_due(&self) -> bool {
        self.schedule.is_peer_check_due()
    }

    /// Checks whether the peers are alive that operations wait for, and fails operations whose peer
    /// is gone. `find` returns the name of a source, `gone` the reason why a process is gone.
    #[cold]
    pub(crate) fn check_peers(
        &mut self,
        find: impl Fn(u64) -> Option<Name>,
        gone: impl Fn(u64) -> Option<GoneReason>,
    ) {
        self.schedule.on_peers_checked();
        let mut peers: Vec<u64> = self.receives.sources().collect();
        peers.extend(self.outstanding.peers());
        peers.sort_unstable();
        peers.dedup();
        peers.retain(|peer| *peer != number(self.own.messages));
        for peer in peers {
            let (target, ports) = (address(peer), find(peer).map(|name| name.ports));
            let reason = ports.and_then(|ports| gone(ports.incarnation));
            let to = Destination {
                address: target,
                ports,
            };
            let checked = match reason {
                Some(_) => Err(SendError::PeerGone { target, reason }),
                None => match self.edge(to) {
                    Ok(peer) => peer.edge.watch(),
                    Err(_) => continue,
                },
            };
            match checked {
                Ok(()) | Err(SendError::Full { .. }) => {}
                Err(error) => {
                    // Receive first what the peer sent before it died.
                    while self.take_messages() {}
                    self.on_peer_gone(peer, &error);
                }
            }
        }
    }

    fn on_peer_gone(&mut self, peer: u64, error: &SendError) {
        let Failure(failure) = failure_of(error);
        let reported = match self.survivor.hides(Failure(failure)) {
            true => 0,
            false => u64::from(failure.unsigned_abs()),
        };
        for number in self.outstanding.untaken_by(peer) {
            self.on_taken(number, reported);
        }
        self.fail_updates_to(peer, failure);
        self.fail_receives_from(peer, failure);
    }

    /// Closes the endpoint. Incomplete operations are dropped, and their memory belongs to the
    /// program again.
    pub(crate) fn end(&mut self) -> Sinks {
        self.drain();
        self.edges.clear_queues();
        self.outstanding.clear();
        self.receives.clear();
        std::mem::take(&mut self.sinks)
    }

    /// Waits a limited time until everything sent has left.
    fn drain(&mut self) {
        if !self.batch.is_empty() {
            self.flush();
        }
        let linger = match self.survivor.has_seen_deaths() {
            true => LINGER_AFTER_DEATHS,
            false => LINGER,
        };
        let deadline = Instant::now() + linger;
        while self.is_sending() && Instant::now() < deadline {
            if !self.progress() {
                self.wait(Duration::from_millis(1));
            }
        }
    }

    /// True if something has not left, or has not been answered.
    fn is_sending(&self) -> bool {
        let outstanding = &self.outstanding;
        outstanding.posted() > 0
            || outstanding.has_injected()
            || !outstanding.updates.is_empty()
            || self.edges.are_held_up()
    }
}

/// Converts the result of [`number`] back to an address.
fn address(number: u64) -> Address {
    let half = |number: u64| u32::try_from(number & 0xffff_ffff).unwrap_or_default();
    Address {
        node: NodeId(half(number >> 32)),
        endpoint: EndpointId(half(number)),
    }
}

/// The libfabric error number of a send error, which is logged.
fn failure_of(error: &SendError) -> Failure {
    let failure = match error {
        SendError::Full { .. } => return AGAIN,
        SendError::TimedOut { .. } => FI_ETIMEDOUT,
        SendError::TooLong { .. } => FI_EMSGSIZE,
        SendError::OperationFailed { .. } => FI_EACCES,
        SendError::PeerGone { .. } | SendError::Refused { .. } | SendError::Unreachable(_) => {
            FI_ECONNABORTED
        }
        SendError::Cancelled { .. } => FI_ECANCELED,
        _ => FI_EIO,
    };
    log_error(error);
    Failure(failure)
}

/// Prints why operations fail, because MPI libraries report only that they did.
#[cold]
fn log_error(error: &dyn std::fmt::Display) {
    const MAX_LINES: u32 = 16;
    static LINES: AtomicU32 = AtomicU32::new(0);
    if LINES.fetch_add(1, Ordering::Relaxed) < MAX_LINES {
        eprintln!("dipole: {error}");
    }
}

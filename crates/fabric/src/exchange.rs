//! Messages and operations of one endpoint of libfabric over one of Dipole.
//!
//! A short message goes whole, behind a head (`wire.rs`); it is copied into the receive
//! that takes it, or kept until there is one. Of a long one the head tells where it lies: whoever
//! takes it gets it from there straight into the receive's memory, and says so, which completes
//! the send. `exchange/receives.rs` is the receiving side, `exchange/remote.rs` reads and writes
//! others' regions.
//!
//! Nothing here blocks: what finds no room is posted, or told to be tried again.

mod atomic;
mod edges;
mod nowhere;
mod receives;
mod remote;
mod settle;

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dipole_node::registry::Ports;
use dipole_node::{
    Address, Completion, CompletionQueue, Endpoint, EndpointId, GoneReason, Message, NodeId,
    Operation, ReceiveError, Region, Rights, SendError,
};
use rustc_hash::FxHashMap;

use crate::abi::errno::{
    FI_EACCES, FI_ECANCELED, FI_ECONNABORTED, FI_EIO, FI_EMSGSIZE, FI_ETIMEDOUT,
};
use crate::abi::fabric::{FI_MSG, FI_SEND, FI_TAGGED};
use crate::atomics::Atomics;
use crate::completion::{Entry, Sinks};
use crate::guard::{AGAIN, Failure};
use crate::matching::Matcher;
use crate::memory::{Lent, Pieces};
use crate::name::{Name, number};
use crate::place::Domain;
use crate::wire::{HEAD_BYTES, Head, Kind, Offer};
pub(crate) use atomic::Updating;
use edges::{Edges, Way};
use receives::{Arrived, Fetch, Receive, Taker};
pub(crate) use receives::{Look, Posting};
pub(crate) use remote::Asked;
use remote::Remote;

/// Longest message that goes whole within a node, where its receiver fetches a longer one from its
/// sender's memory; and longest one whose memory is the program's again at once.
pub(crate) const EAGER_BYTES: usize = 8 << 10;
/// Longest message that goes whole over the network. To fetch one takes two ways more, and each of
/// them waits for a process to look: long where ranks are more than cores.
const EAGER_FAR_BYTES: usize = 64 << 10;
/// Looks at shared memory, if there is any, of which one is at the network, too, whatever comes.
const LOOKS_PER_STEP: u32 = 64;
/// So long a wait is for what comes through shared memory; then it is for both.
const NEAR_WAIT: Duration = Duration::from_micros(2);
/// Longest message that shares packets: longer ones fill them.
const MOST_GATHERED_BYTES: usize = 512;
/// What gathered messages fill when they leave: about a packet, so that its receiver is at work
/// while the next is gathered.
const PACKET_BYTES: usize = 1300;
/// What a message takes in a packet beside its bytes.
const OVERHEAD_BYTES: usize = HEAD_BYTES + 16;
/// Looks in vain between two at the clock.
const LOOKS_PER_CHECK: u32 = 4096;
/// Whoever is waited for is asked so often whether it lives.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// The context of what nobody asks about.
const UNWATCHED: u64 = 0;
/// What receivers of long messages may do.
const READABLE: Rights = Rights {
    get: true,
    ..Rights::NONE
};
/// How long an endpoint that is closed waits until what it sent has left.
const LINGER: Duration = Duration::from_secs(10);

/// A message that the program sends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    pub(crate) is_tagged: bool,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) from: Pieces,
    pub(crate) context: usize,
    /// The program wants to see it completed.
    pub(crate) wanted: bool,
    /// It is complete when its receiver has it.
    pub(crate) is_confirmed: bool,
}

impl Sending {
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
        }
    }
}

/// A long message that its receiver has not fetched.
struct Offered {
    /// Closed when this is dropped, before the memory.
    _region: Region,
    _memory: Lent,
    to: u64,
    wanted: bool,
    entry: Entry,
}

/// What a completion of the node's queue belongs to.
enum Pending {
    Fetch(Fetch),
    Remote(Remote),
}

/// See the module.
pub(crate) struct Exchange {
    own: Name,
    // Before the endpoint: what is attached to it goes first.
    edges: Edges,
    offered: FxHashMap<u64, Offered>,
    pending: FxHashMap<u64, Pending>,
    /// Atomic operations that were not answered.
    updates: FxHashMap<u64, atomic::Asked>,
    atomics: Arc<Atomics>,
    tagged: Matcher<Receive, Arrived>,
    untagged: Matcher<Receive, Arrived>,
    /// Taken out of the messages that wait, by the context of whoever claimed them.
    claimed: Vec<(usize, Arrived)>,
    /// Gets that found no room.
    delayed: VecDeque<(u64, receives::Get)>,
    /// Messages that wait where they came.
    held: usize,
    /// The last number of an operation.
    last: u64,
    /// Posted, and not completed.
    posted: usize,
    scratch: Vec<u8>,
    looks: u32,
    /// Since when nothing has come, while only shared memory is looked at.
    idle_since: Option<Instant>,
    /// The last look there that found nothing.
    looked_at: Instant,
    /// When peers were last asked whether they live.
    asked_at: Instant,
    /// Some peers are of this node.
    shares_memory: bool,
    pub(crate) sinks: Sinks,
    /// Sends that have not left: they share packets with those that follow.
    withheld: Vec<(bool, Entry)>,
    /// Bytes that they fill.
    gathered: usize,
    /// Grows with each look at what has come.
    turn: u64,
    /// Messages that were not read where they lay, while the endpoint is polled.
    arrived: VecDeque<Message>,
    queue: CompletionQueue,
    endpoint: Endpoint,
    node: dipole_node::Node,
}

impl Exchange {
    pub(crate) fn new(domain: &Domain, endpoint: Endpoint) -> Exchange {
        let node = domain.node.clone();
        Exchange {
            own: Name {
                messages: endpoint.address(),
                regions: domain.regions.address(),
                atomics: domain.port.address(),
                ports: node.ports(),
            },
            atomics: Arc::clone(&domain.atomics),
            updates: FxHashMap::default(),
            edges: Edges::default(),
            withheld: Vec::new(),
            gathered: 0,
            turn: 0,
            arrived: VecDeque::new(),
            offered: FxHashMap::default(),
            pending: FxHashMap::default(),
            tagged: Matcher::new(),
            untagged: Matcher::new(),
            claimed: Vec::new(),
            delayed: VecDeque::new(),
            held: 0,
            last: UNWATCHED,
            posted: 0,
            scratch: Vec::new(),
            looks: 0,
            idle_since: None,
            looked_at: Instant::now(),
            asked_at: Instant::now(),
            shares_memory: false,
            sinks: Sinks::default(),
            queue: node.completion_queue(),
            endpoint,
            node,
        }
    }

    pub(crate) fn name(&self) -> Name {
        self.own
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The way to an endpoint of a process whose whereabouts are known, or which has sent here.
    #[inline]
    fn edge(&mut self, to: Address, ports: Option<Ports>) -> Result<&mut Way, Failure> {
        match self.edges.find(number(to)) {
            Some(at) => Ok(self.edges.at(at)),
            None => self.open_edge(to, ports),
        }
    }

    #[cold]
    fn open_edge(&mut self, to: Address, ports: Option<Ports>) -> Result<&mut Way, Failure> {
        let edge = match ports {
            Some(ports) => self.endpoint.edge_at(to, ports),
            None => self.endpoint.edge(to),
        };
        let edge = edge.map_err(|error| failed(&error))?;
        edge.attach(&self.queue);
        let is_near = to.node == self.own.messages.node && self.node.stats().local.is_some();
        self.shares_memory |= is_near;
        Ok(self.edges.insert(number(to), edge, is_near))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `AGAIN`: there is no room just now. The peer is gone.
    #[inline]
    pub(crate) fn send(&mut self, to: &Name, message: Sending) -> Result<(), Failure> {
        if message.from.lost() > 0 {
            return self.send_nothing(to, message);
        }
        if to.messages == self.own.messages {
            self.send_to_self(&message);
        } else if !message.is_confirmed && self.is_eager(to, message.from.length())? {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.clear();
            scratch.extend_from_slice(&message.head(Kind::Message).encode());
            message.from.gather(&mut scratch);
            let sent = self.send_short((to.messages, to.ports), &scratch);
            self.scratch = scratch;
            if !sent? {
                self.withhold(&message);
                return Ok(());
            }
        } else {
            return self.offer(to, message);
        }
        if message.wanted || !self.sinks.counters.is_empty() {
            self.sinks.complete(message.wanted, message.entry());
        }
        Ok(())
    }

    /// Whether a message of this length is sent as it is, not offered.
    #[inline]
    fn is_eager(&mut self, to: &Name, length: usize) -> Result<bool, Failure> {
        if length <= EAGER_BYTES {
            return Ok(true);
        }
        let way = self.edge(to.messages, Some(to.ports))?;
        Ok(!way.shares_memory && length <= EAGER_FAR_BYTES)
    }

    /// Sends a message at once, unless it is one of many: those share packets. Whether it has
    /// left, or will without being told.
    #[inline]
    fn send_short(&mut self, to: (Address, Ports), bytes: &[u8]) -> Result<bool, Failure> {
        let turn = self.turn;
        let way = self.edge(to.0, Some(to.1))?;
        if way.shares_memory || !way.is_burst(turn) || bytes.len() > MOST_GATHERED_BYTES {
            self.send_bytes((to.0, Some(to.1)), bytes)?;
            return Ok(true);
        }
        match way.edge.try_send_more(bytes) {
            Ok(()) => Ok(false),
            Err(SendError::Full { .. }) => {
                self.send_bytes((to.0, Some(to.1)), bytes).map(|()| true)
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// A message has left when the packet does that it shares: when that is full, or the program
    /// looks at what has come.
    fn withhold(&mut self, message: &Sending) {
        self.withheld.push((message.wanted, message.entry()));
        self.gathered += message.from.length() + OVERHEAD_BYTES;
        if self.gathered >= PACKET_BYTES {
            self.flush();
        }
    }

    /// What shares packets leaves, and completes.
    #[cold]
    fn flush(&mut self) {
        if let Err(error) = self.endpoint.flush_edges() {
            say(&error);
        }
        self.gathered = 0;
        for (wanted, entry) in self.withheld.drain(..) {
            self.sinks.complete(wanted, entry);
        }
    }

    /// Sends bytes at once, or lets a copy wait for its turn.
    #[inline]
    fn send_bytes(
        &mut self,
        (to, ports): (Address, Option<Ports>),
        bytes: &[u8],
    ) -> Result<(), Failure> {
        let edge = &self.edge(to, ports)?.edge;
        match edge.try_send(bytes) {
            Ok(()) => return Ok(()),
            Err(SendError::Full { .. }) => {}
            Err(error) => return Err(failed(&error)),
        }
        let posted = edge.post(Operation::Message, &[IoSlice::new(bytes)], UNWATCHED);
        posted.map_err(|error| failed(&error))?;
        self.posted += 1;
        Ok(())
    }

    /// Tells where a long message lies.
    fn offer(&mut self, to: &Name, message: Sending) -> Result<(), Failure> {
        let memory = message.from.shown();
        let region = (self.endpoint)
            .open_region(memory.memory.clone(), READABLE)
            .map_err(|_| Failure(FI_EIO))?;
        let number = self.next();
        let offer = Offer {
            length: message.from.length() as u64,
            key: region.key().0,
            number,
        };
        let mut bytes = message.head(Kind::Offer).encode().to_vec();
        bytes.extend_from_slice(&offer.encode());
        self.send_bytes((to.messages, Some(to.ports)), &bytes)?;
        let offered = Offered {
            _region: region,
            _memory: memory,
            to: self::number(to.messages),
            wanted: message.wanted,
            entry: message.entry(),
        };
        self.offered.insert(number, offered);
        Ok(())
    }

    /// The receiver of an offered message has it, or could not fetch it.
    fn fetched(&mut self, number: u64, failure: u64) {
        if let Some(offered) = self.offered.remove(&number) {
            let mut entry = offered.entry;
            entry.failure = i32::try_from(failure)
                .ok()
                .filter(|number| *number != 0)
                .map(|number| (number, 0));
            self.sinks.complete(offered.wanted, entry);
        }
    }

    /// Takes what has come and goes on with what has begun; true if there was anything.
    #[inline]
    pub(crate) fn progress(&mut self) -> bool {
        self.turn += 1;
        let has_left = !self.withheld.is_empty();
        if has_left {
            self.flush();
        }
        let has_moved = match self.posted {
            0 => self.take_messages(),
            // In turn, since each looks at the network.
            _ if self.looks & 1 == 0 => self.take_completion() || self.take_messages(),
            _ => self.take_messages(),
        };
        if !self.delayed.is_empty() {
            self.get_delayed();
        }
        self.looks = self.looks.wrapping_add(1);
        has_moved || has_left
    }

    #[inline]
    fn take_messages(&mut self) -> bool {
        let at_network = !self.shares_memory || self.looks.is_multiple_of(LOOKS_PER_STEP);
        let has_come =
            self.poll(at_network) || (!at_network && self.is_network_due() && self.poll(true));
        if has_come {
            self.idle_since = None;
        }
        has_come
    }

    /// True if nothing has come through shared memory for some time, or this process was off its
    /// core meanwhile: each time that it is so.
    fn is_network_due(&mut self) -> bool {
        let now = Instant::now();
        let last = std::mem::replace(&mut self.looked_at, now);
        let since = *self.idle_since.get_or_insert(now);
        let is_due = now - since.min(last) >= NEAR_WAIT;
        if is_due {
            self.idle_since = Some(now);
        }
        is_due
    }

    /// Takes what has come; true if there was anything.
    #[inline]
    fn poll(&mut self, at_network: bool) -> bool {
        let mut taker = Taker {
            tagged: &mut self.tagged,
            untagged: &mut self.untagged,
            sinks: &self.sinks,
            arrived: &mut self.arrived,
        };
        let taken = self.endpoint.poll(&mut taker, at_network);
        while let Some(message) = self.arrived.pop_front() {
            self.receive(message);
        }
        match taken {
            Ok(count) => count > 0,
            Err(ReceiveError::Forked) => false,
            Err(error) => {
                say(&error);
                false
            }
        }
    }

    fn take_completion(&mut self) -> bool {
        match self.queue.poll() {
            Ok(Some(completion)) => {
                self.note(completion);
                true
            }
            Ok(None) | Err(_) => false,
        }
    }

    /// Sleeps until something comes, at most `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) {
        if !self.withheld.is_empty() {
            return self.flush();
        }
        // Completions of what was posted wake nobody who waits for messages.
        let nap = match self.posted {
            0 => timeout,
            _ => timeout.min(Duration::from_millis(1)),
        };
        match self.endpoint.receive_timeout(nap) {
            Ok(message) => self.receive(message),
            Err(_) => {
                // After a nap, not after so many looks: the next one is at messages alone.
                self.looks |= LOOKS_PER_CHECK - 1;
                if self.posted > 0 {
                    self.take_completion();
                }
            }
        }
    }

    fn note(&mut self, completion: Completion) {
        let (context, result) = match completion {
            Completion::Sent { context } | Completion::Done { context, .. } => (context, Ok(())),
            Completion::Failed { context, error } => (context, Err(failed(&error))),
            // No receives are posted, no messages wait there.
            _ => return,
        };
        self.posted -= 1;
        match self.pending.remove(&context) {
            Some(Pending::Fetch(fetch)) => self.fetch_goes_on(context, fetch, result),
            Some(Pending::Remote(remote)) => self.remote_goes_on(context, remote, result),
            None => {}
        }
    }

    /// True when those that are waited for are to be asked whether they live.
    #[inline]
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.looks.is_multiple_of(LOOKS_PER_CHECK) && self.asked_at.elapsed() >= ASK_AGAIN
    }

    /// Has those that somebody waits for asked whether they live; what waits for one that is gone
    /// fails. `find` knows the names of sources, `gone` why processes are gone.
    #[cold]
    pub(crate) fn ask_peers(
        &mut self,
        find: impl Fn(u64) -> Option<Name>,
        gone: impl Fn(u64) -> Option<GoneReason>,
    ) {
        self.asked_at = Instant::now();
        let mut waited_for: Vec<u64> = self.sources().collect();
        waited_for.extend(self.offered.values().map(|offered| offered.to));
        waited_for.extend(self.updates.values().map(|asked| asked.of));
        waited_for.sort_unstable();
        waited_for.dedup();
        waited_for.retain(|number| *number != self::number(self.own.messages));
        for number in waited_for {
            let (target, ports) = (address(number), find(number).map(|name| name.ports));
            let reason = ports.and_then(|ports| gone(ports.incarnation));
            let asked = match reason {
                Some(_) => Err(SendError::PeerGone { target, reason }),
                None => match self.edge(target, ports) {
                    Ok(way) => way.edge.watch(),
                    Err(_) => continue,
                },
            };
            match asked {
                Ok(()) | Err(SendError::Full { .. }) => {}
                Err(error) => {
                    // What it sent before.
                    while self.take_messages() {}
                    self.peer_is_gone(number, &error);
                }
            }
        }
    }

    fn peer_is_gone(&mut self, number: u64, error: &SendError) {
        let Failure(why) = failed(error);
        let offered = self.offered.iter();
        let lost: Vec<u64> = offered
            .filter(|(_, offered)| offered.to == number)
            .map(|(lost, _)| *lost)
            .collect();
        for lost in lost {
            self.fetched(lost, u64::from(why.unsigned_abs()));
        }
        self.fail_updates_of(number, why);
        self.fail_receives_from(number, why);
    }

    /// Its program closes the endpoint: what has not come, or was not fetched, never will be, and
    /// the memory of all that is the program's again.
    pub(crate) fn end(&mut self) -> Sinks {
        self.drain();
        self.offered.clear();
        self.pending.clear();
        self.updates.clear();
        self.delayed.clear();
        self.claimed.clear();
        (self.tagged, self.untagged) = (Matcher::new(), Matcher::new());
        std::mem::take(&mut self.sinks)
    }

    /// Waits until what was sent has left, at most for [`LINGER`].
    fn drain(&mut self) {
        if !self.withheld.is_empty() {
            self.flush();
        }
        let until = Instant::now() + LINGER;
        while (self.posted > 0 || !self.updates.is_empty()) && Instant::now() < until {
            if !self.progress() {
                self.wait(Duration::from_millis(1));
            }
        }
    }
}

/// The address that a number stands for.
fn address(number: u64) -> Address {
    let half = |number: u64| u32::try_from(number & 0xffff_ffff).unwrap_or_default();
    Address {
        node: NodeId(half(number >> 32)),
        endpoint: EndpointId(half(number)),
    }
}

/// The number of a failure.
fn failed(error: &SendError) -> Failure {
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
    say(error);
    Failure(failure)
}

/// Tells the user why operations fail: MPI libraries say only that they did.
#[cold]
fn say(error: &dyn std::fmt::Display) {
    /// Lines that a process says at most.
    const MOST: u32 = 16;
    static SAID: AtomicU32 = AtomicU32::new(0);
    if SAID.fetch_add(1, Ordering::Relaxed) < MOST {
        eprintln!("dipole: {error}");
    }
}

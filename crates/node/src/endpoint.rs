//! Directed-point endpoints: what a Rust program sends to and receives from.
//!
//! `endpoint/send.rs` is the way of a message into packets or into the memory of
//! this node.

mod future;
mod poll;
mod posted;
mod send;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use dipole_proto::Instant;

use crate::address::{Address, EndpointId};
use crate::completion::CompletionQueue;
use crate::control::Command;
use crate::edge::Edge;
use crate::edges::PostedBytes;
use crate::error::{OpenError, ReceiveError, SendError, TargetError};
use crate::inner::Inner;
use crate::owner::EndpointOwner;
use crate::process::ProcessState;
use crate::region::{Region, RegionMemory, Rights};
use crate::registry::{Claim, Ports};
use crate::{Message, Pool};
use dipole_driver::{Polled, Stepper, Timeout, WaitError, WaitKey, Want};
use dipole_engine::{Context, Operation, Target};
use send::More;

/// Of an answer that waits: the edge that an endpoint keeps for answers has no queue.
const UNWATCHED: Context = 0;
/// Memory up to this length is not offered for what arrives, but copied to.
const COPIED_BYTES: usize = 4 << 10;

/// An endpoint of this process: receives from anybody, sends along its edges.
///
/// Several threads may use it at once. Dropping it closes it: messages that wait
/// are dropped, those that come are refused and their senders told.
#[derive(Debug)]
pub struct Endpoint {
    inner: Arc<Inner>,
    owner: Arc<EndpointOwner>,
}

impl Endpoint {
    pub(crate) fn new(inner: Arc<Inner>, claim: Claim) -> Endpoint {
        let owner = Arc::new(EndpointOwner::new(claim, &inner.driver));
        Endpoint { inner, owner }
    }

    /// Its own address.
    #[must_use]
    pub fn address(&self) -> Address {
        Address {
            node: self.inner.config.node,
            endpoint: self.id(),
        }
    }

    fn id(&self) -> EndpointId {
        self.owner.id
    }

    /// An edge to another endpoint, and to it alone. Returns at once: the edge connects
    /// behind, up to `connect_timeout`, waiting for the endpoint to be opened and its process
    /// to answer. To an endpoint that has sent here it is open from the start.
    ///
    /// # Errors
    /// [`SendError::Ended`], [`SendError::Forked`], [`SendError::Broken`]: no threads are left.
    pub fn edge(&self, to: Address) -> Result<Edge, SendError> {
        let edge = self.open_edge(to)?;
        self.ensure_progress()?;
        Ok(edge)
    }

    /// The same to an endpoint of a process that told the caller where it is
    /// ([`Node::ports`](crate::Node::ports)): neither a hosts file nor a directory is asked, so
    /// its node may be one that this one has never heard of.
    ///
    /// # Errors
    /// Those of [`edge`](Self::edge).
    pub fn edge_at(&self, to: Address, ports: Ports) -> Result<Edge, SendError> {
        self.check_usable()?;
        let id = self.inner.driver.with(|state, now| {
            let (engine, edges, _) = state.parts();
            edges.open_at(engine, self.id().0, (to, ports), now)
        });
        let edge = Edge::new(&self.inner, &self.owner, id, to);
        self.ensure_progress()?;
        Ok(edge)
    }

    /// An edge that connects while somebody steps the engine.
    fn open_edge(&self, to: Address) -> Result<Edge, SendError> {
        self.check_usable()?;
        let id = self.inner.driver.with(|state, now| {
            let (engine, edges, _) = state.parts();
            edges.open(engine, self.id().0, to, now)
        });
        Ok(Edge::new(&self.inner, &self.owner, id, to))
    }

    /// An edge that connects while its caller does something else needs a thread that steps
    /// the engine.
    fn ensure_progress(&self) -> Result<(), SendError> {
        self.inner.ensure_progress().map_err(SendError::Broken)
    }

    /// Opens memory to those who have an edge to this endpoint and the region's key, as far as
    /// `rights` allow.
    ///
    /// # Errors
    /// [`OpenError::Ended`], [`OpenError::Forked`], [`OpenError::Sleep`]: no threads are left.
    ///
    /// # Source
    /// The regions of active ports, GAMMA §2.
    pub fn open_region(&self, memory: RegionMemory, rights: Rights) -> Result<Region, OpenError> {
        Region::open(&self.inner, &self.owner, memory, rights)
    }

    /// Answers a message: sends to the endpoint it came from. Never blocks, and never looks
    /// for anybody: the process that sent it is known.
    ///
    /// While all frames are in use an answer waits in a copy: one process that has stopped
    /// costs the others nothing. The endpoint keeps the edges that its answers take, 1024 at
    /// most; those used longest ago are closed behind the scenes, which loses nothing.
    ///
    /// # Errors
    /// [`SendError::PeerGone`]: that process is gone. [`SendError::Full`]: it does not read
    /// its answers, or 1024 of them wait, or 32 MiB in this process. Those of
    /// [`send`](Self::send).
    pub fn reply(&self, message: &Message, payload: &[u8]) -> Result<(), SendError> {
        self.check_usable()?;
        let (to, peer) = (message.source(), message.peer());
        let source = self.id().0;
        let id = self.inner.driver.with_last(|state, now| {
            let (engine, edges, _) = state.parts();
            edges.answering(engine, source, (to, peer), now)
        })?;
        match self
            .inner
            .send_along(source, (id, to), payload.into(), Timeout::Zero)
        {
            Err(SendError::Full {
                by_receiver: false, ..
            }) => self.inner.post(
                id,
                Operation::Message,
                PostedBytes::Copied(payload.to_vec()),
                UNWATCHED,
            ),
            sent => sent,
        }
    }

    /// Sends to one endpoint, without an edge of the caller's. Waits as
    /// [`Edge::send`] does. The endpoint keeps the edge, as for [`reply`](Self::reply).
    ///
    /// # Errors
    /// Those of [`Edge::send`].
    pub fn send_to(&self, to: Address, payload: &[u8]) -> Result<(), SendError> {
        self.send_to_until(to, payload, Timeout::Infinite)
    }

    /// Like [`send_to`](Self::send_to), but returns within `timeout`.
    ///
    /// # Errors
    /// Those of [`Edge::send_timeout`].
    pub fn send_to_timeout(
        &self,
        to: Address,
        payload: &[u8],
        timeout: Duration,
    ) -> Result<(), SendError> {
        self.send_to_until(to, payload, Timeout::After(timeout))
    }

    /// Like [`send_to`](Self::send_to), but never blocks.
    ///
    /// # Errors
    /// [`SendError::Full`], also while the edge connects, and those of `send_to`.
    pub fn try_send_to(&self, to: Address, payload: &[u8]) -> Result<(), SendError> {
        self.send_to_until(to, payload, Timeout::Zero)
    }

    fn send_to_until(&self, to: Address, payload: &[u8], until: Timeout) -> Result<(), SendError> {
        self.check_usable()?;
        let source = self.id().0;
        let id = self.inner.driver.with(|state, now| {
            let (engine, edges, _) = state.parts();
            edges.cached(engine, source, to, now)
        });
        self.ensure_progress()?;
        self.inner
            .send_along(source, (id, to), payload.into(), until)
    }

    /// Messages of this endpoint appear in a completion queue from now on.
    pub fn attach(&self, queue: &CompletionQueue) {
        if !self.inner.is_forked() {
            self.inner.driver.with(|state, _| {
                let (engine, _, queues) = state.parts();
                queues.attach_endpoint(engine, self.id().0, queue.id());
            });
        }
    }

    /// Points this endpoint at another; every message goes to each target. Waits,
    /// up to `connect_timeout`, until that endpoint exists and its process answers.
    /// Naming a target again renews its session if the peer was gone.
    ///
    /// # Errors
    /// [`TargetError`].
    ///
    /// # Source
    /// `dp_target` of DP §2, table 1.
    pub fn target(&self, to: Address) -> Result<(), TargetError> {
        if self.inner.is_forked() {
            return Err(TargetError::Forked);
        }
        if self.is_ended() {
            return Err(TargetError::Ended);
        }
        let edge = self
            .open_edge(to)
            .map_err(|error| target_error(error, to))?;
        // It fails by itself when `connect_timeout` is over.
        let opened = self.inner.wait_target(edge.id(), to, Timeout::Infinite);
        if let Err(error) = opened {
            // The error is its own once the edge is gone.
            drop(edge);
            return Err(target_error(error, to));
        }
        let taken = self.inner.driver.with_last(|state, _| {
            let (_, edges, _) = state.parts();
            edges.take_open(edge.id())
        });
        let target = taken.ok_or(TargetError::Ended)?;
        self.change_targets(|targets| targets.push(target), to);
        Ok(())
    }

    /// Takes a target back; the others stay.
    pub fn untarget(&self, to: Address) {
        self.change_targets(|_| {}, to);
    }

    /// Takes `except` out of the targets and lets `change` work on the rest.
    fn change_targets(&self, change: impl FnOnce(&mut Vec<Target>), except: Address) {
        let id = self.id().0;
        self.inner.driver.with_last(|state, _| {
            let known = state.engine.targets(id).map_or(&[][..], |targets| targets);
            let others = known.iter().filter(|target| target.address != except);
            let mut targets = others.cloned().collect();
            change(&mut targets);
            state.engine.set_targets(id, targets);
        });
    }

    /// Ends the endpoint as dropping it does, though handles to it are left: their
    /// calls fail from now on.
    pub fn end(&self) {
        if !self.inner.is_forked() {
            self.owner.end();
        }
    }

    /// True after [`end`](Self::end), or when the last copy of its descriptor was closed.
    #[inline]
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.owner.is_ended()
    }

    /// Gives the endpoint a token buffer pool of `bytes`, in one piece, and tells where
    /// it lies: messages are put there from now on. When they fill it, further ones
    /// lie elsewhere until it is empty again; so do those longer than 16 KiB, which are
    /// put together in buffers of their own.
    ///
    /// # Errors
    /// [`OpenError::Pool`]: there is not so much memory, or the endpoint has ended.
    ///
    /// # Source
    /// `dp_mmap` of DP §2, table 1, and §4.2.
    pub fn set_pool(&self, bytes: usize) -> Result<Pool, OpenError> {
        if self.inner.is_forked() {
            return Err(OpenError::Forked);
        }
        let id = self.id().0;
        let pool = self
            .inner
            .driver
            .with(|state, _| state.engine.set_pool(id, bytes));
        pool.ok_or(OpenError::Pool {
            endpoint: self.address(),
            bytes,
        })
    }

    /// The endpoint's descriptor, for `poll`, `select`, `epoll` and their like: readable
    /// while a message waits, writable while [`try_send`](Self::try_send) is worth a try.
    /// Closing its last copy (`dup`, a forked child) ends the endpoint; nothing but
    /// waiting and closing should be done with it. A thread of this node keeps it
    /// up to date. Each call makes the endpoint's one descriptor anew; an earlier one
    /// is not kept up any more.
    ///
    /// # Errors
    /// [`OpenError::Sleep`]: no descriptors or threads are left.
    ///
    /// # Source
    /// The file descriptor of DP §2.
    pub fn export(&self) -> Result<OwnedFd, OpenError> {
        if self.inner.is_forked() {
            return Err(OpenError::Forked);
        }
        let id = self.id().0;
        let user = self.inner.driver.with(|state, _| state.engine.export(id));
        let user = user.map_err(OpenError::Sleep)?;
        let exported = Command::Exported(Arc::downgrade(&self.owner));
        self.inner.control.commands.post(exported);
        self.inner.ensure_progress().map_err(OpenError::Sleep)?;
        Ok(user)
    }

    /// Sends a message. It is copied; it leaves before this returns unless earlier
    /// packets still wait. Blocks while frames or the receiver's credit are used up,
    /// receiving meanwhile. Delivery is confirmed only by [`drain`](Self::drain).
    ///
    /// # Errors
    /// [`SendError`]; nothing was queued unless the peer went in the middle of a
    /// long message.
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Timeout::Infinite, More::No)
    }

    /// Like [`send`](Self::send), but gives up if the message cannot begin within
    /// `timeout`. One that has begun is sent to its end; so that the call can return in time
    /// all the same, a long one to a process of this node is copied first, which `send` spares.
    ///
    /// # Errors
    /// [`SendError::TimedOut`] and those of `send`; nothing was queued.
    pub fn send_timeout(&self, payload: &[u8], timeout: Duration) -> Result<(), SendError> {
        self.send_until(payload, Timeout::After(timeout), More::No)
    }

    /// Like [`send`](Self::send), but never blocks: the message is queued whole or
    /// not at all. To another node that takes a frame for each of its packets: seven in
    /// eight of all frames (896 of 1024, some 1.2 MB in packets of 1472 bytes) bound its length.
    ///
    /// # Errors
    /// [`SendError::Full`] and those of `send`, [`SendError::TooLong`] for what only `send` can
    /// send; nothing was queued.
    pub fn try_send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Timeout::Zero, More::No)
    }

    /// Like [`send`](Self::send), but more follows: the message may wait and share
    /// its packet. It leaves with the next `send`, `flush` or wait, or when
    /// packets are full.
    ///
    /// # Errors
    /// Those of `send`.
    pub fn send_more(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Timeout::Infinite, More::Comes)
    }

    /// Everything queued by [`send_more`](Self::send_more) leaves as far as the
    /// window allows.
    ///
    /// # Errors
    /// [`SendError::Broken`] and [`SendError::Forked`].
    pub fn flush(&self) -> Result<(), SendError> {
        self.check_usable()?;
        let targets = self.targets();
        self.inner
            .driver
            .with(|state, now| {
                for target in targets.iter().flat_map(|targets| targets.iter()) {
                    state.engine.flush(target.edge.peer);
                }
                state.engine.transmit(now)
            })
            .map_err(SendError::Broken)
    }

    /// Sends a message without repeats: it arrives at most once, maybe never, and
    /// is dropped if the receiver holds too many. Never blocks.
    ///
    /// # Errors
    /// [`SendError::Full`] if no frame is free, and those of `send`.
    pub fn send_unreliable(&self, payload: &[u8]) -> Result<(), SendError> {
        self.check_usable()?;
        for target in self.some_targets()?.iter() {
            self.send_unreliably(target, payload)?;
        }
        Ok(())
    }

    /// Waits until everything sent to the targets' processes has been acknowledged:
    /// it lies in their token buffer pools.
    ///
    /// # Errors
    /// [`SendError::TimedOut`], [`SendError::PeerGone`], [`SendError::Broken`].
    pub fn drain(&self, timeout: Duration) -> Result<(), SendError> {
        self.check_usable()?;
        self.flush()?;
        let begun = std::time::Instant::now();
        for target in self.some_targets()?.iter() {
            let left = timeout.saturating_sub(begun.elapsed());
            self.inner.wait_acknowledged(target, Timeout::After(left))?;
        }
        Ok(())
    }

    /// Waits for the next message. It is read where it lies; dropping it gives the
    /// memory back.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn receive(&self) -> Result<Message, ReceiveError> {
        self.receive_until(Timeout::Infinite)
    }

    /// Waits for the next message, at most `timeout`; with none it looks at the network once.
    ///
    /// # Errors
    /// [`ReceiveError::TimedOut`] and those of `receive`.
    pub fn receive_timeout(&self, timeout: Duration) -> Result<Message, ReceiveError> {
        self.receive_until(Timeout::from(timeout))
    }

    /// The next message if there is one; looks at the network once.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`] and [`ReceiveError::Forked`].
    pub fn try_receive(&self) -> Result<Option<Message>, ReceiveError> {
        match self.receive_until(Timeout::Zero) {
            Ok(message) => Ok(Some(message)),
            Err(ReceiveError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next message if it has come, or lies in memory shared with its sender: costs much less
    /// than [`try_receive`](Self::try_receive), which has to be called now and then besides, since
    /// nothing here looks at the network.
    ///
    /// # Errors
    /// [`ReceiveError::Broken`], [`ReceiveError::Forked`] and [`ReceiveError::Ended`].
    #[inline]
    pub fn glance(&self) -> Result<Option<Message>, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        if self.is_ended() {
            return Err(ReceiveError::Ended);
        }
        let id = self.id().0;
        let mut taken = None;
        let reading = Reading {
            endpoint: self,
            taken: &mut taken,
            attempt: |state: &mut ProcessState, now| state.engine.take(now, id),
            hand_over: |state: &mut ProcessState| state.poll_memory_for(id),
        };
        match self.inner.driver.glance(false, reading) {
            Err(cause) | Ok(Some(Err(cause))) => Err(ReceiveError::Broken(cause)),
            Ok(Some(Ok(())) | None) => Ok(taken),
        }
    }

    /// Waits for the next message and has it in memory of the caller's: its length and source. A
    /// short one is copied; a long one that arrives meanwhile comes there straight from the link,
    /// or from its sender's memory in another process of this node.
    ///
    /// # Errors
    /// [`ReceiveError::TooShort`] leaves the message in place; those of `receive`. The memory may
    /// then hold a part of a message that is still to be received.
    ///
    /// # Source
    /// Single copy, Nectar §2.1 and §3.1.
    pub fn receive_into(&self, buffer: &mut [u8]) -> Result<(usize, Address), ReceiveError> {
        self.receive_into_until(buffer, Timeout::Infinite)
    }

    /// The same, waiting at most `timeout`; with none it looks at the network once.
    ///
    /// # Errors
    /// [`ReceiveError::TimedOut`] and those of `receive_into`.
    pub fn receive_into_timeout(
        &self,
        buffer: &mut [u8],
        timeout: Duration,
    ) -> Result<(usize, Address), ReceiveError> {
        self.receive_into_until(buffer, Timeout::from(timeout))
    }

    fn receive_into_until(
        &self,
        buffer: &mut [u8],
        until: Timeout,
    ) -> Result<(usize, Address), ReceiveError> {
        if buffer.len() > COPIED_BYTES {
            return RegionMemory::lend(buffer, |memory| self.receive_to(memory, until));
        }
        let message = self.receive_fitting_until(buffer.len(), until)?;
        buffer[..message.len()].copy_from_slice(&message);
        Ok((message.len(), message.source()))
    }

    /// Like [`receive_into_timeout`](Self::receive_into_timeout), into memory that others may
    /// reach, too.
    ///
    /// # Errors
    /// Those of `receive_into_timeout`.
    pub fn receive_to_region(
        &self,
        memory: &RegionMemory,
        timeout: Duration,
    ) -> Result<(usize, Address), ReceiveError> {
        self.receive_to(memory, Timeout::from(timeout))
    }

    fn receive_to(
        &self,
        memory: &RegionMemory,
        until: Timeout,
    ) -> Result<(usize, Address), ReceiveError> {
        /// Takes the memory back, whatever ends the wait.
        struct Offer<'a>(&'a Endpoint, &'a RegionMemory);
        impl Drop for Offer<'_> {
            fn drop(&mut self) {
                let Offer(endpoint, memory) = self;
                if !endpoint.inner.is_forked() {
                    let id = endpoint.id().0;
                    (endpoint.inner.driver).with_last(|state, _| state.engine.withdraw(id, memory));
                }
            }
        }
        let id = self.id().0;
        let mut offer = None;
        let given = memory.bytes();
        self.wait_message(until, |state, now| {
            let taken = state.engine.take_into(now, id, memory);
            if taken.is_none() {
                offer.get_or_insert_with(|| Offer(self, memory));
            }
            let too_short = |needed| ReceiveError::TooShort { needed, given };
            Some(taken?.map_err(too_short))
        })?
    }

    /// Waits for the next message, at most `timeout`, and takes it if it has at most `bytes`
    /// bytes; a longer one stays where it is.
    ///
    /// # Errors
    /// [`ReceiveError::TooShort`], [`ReceiveError::TimedOut`] and those of `receive`.
    pub fn receive_fitting(
        &self,
        bytes: usize,
        timeout: Duration,
    ) -> Result<Message, ReceiveError> {
        self.receive_fitting_until(bytes, Timeout::from(timeout))
    }

    fn receive_fitting_until(&self, bytes: usize, until: Timeout) -> Result<Message, ReceiveError> {
        let id = self.id().0;
        self.wait_message(until, |state, now| {
            let needed = state.engine.next_length(id)?;
            if needed > bytes {
                let given = bytes;
                return Some(Err(ReceiveError::TooShort { needed, given }));
            }
            state.engine.take(now, id).map(Ok)
        })?
    }

    /// Waits for a message and takes all that wait, at most `limit`, oldest first: at less cost
    /// than one by one. How many; none only where `limit` is 0.
    ///
    /// # Errors
    /// Those of [`receive`](Self::receive); nothing was taken.
    pub fn receive_many(
        &self,
        messages: &mut impl Extend<Message>,
        limit: usize,
    ) -> Result<usize, ReceiveError> {
        self.receive_many_until(messages, limit, Timeout::Infinite)
    }

    /// The same, waiting at most `timeout`; with none it looks at the network once.
    ///
    /// # Errors
    /// [`ReceiveError::TimedOut`] and those of `receive_many`.
    pub fn receive_many_timeout(
        &self,
        messages: &mut impl Extend<Message>,
        limit: usize,
        timeout: Duration,
    ) -> Result<usize, ReceiveError> {
        self.receive_many_until(messages, limit, Timeout::from(timeout))
    }

    fn receive_many_until(
        &self,
        messages: &mut impl Extend<Message>,
        limit: usize,
        until: Timeout,
    ) -> Result<usize, ReceiveError> {
        let id = self.id().0;
        if limit == 0 {
            return Ok(0);
        }
        self.wait_message(until, |state, now| {
            let taken = state.engine.take_many(now, id, limit, messages);
            (taken > 0).then_some(taken)
        })
    }

    fn receive_until(&self, until: Timeout) -> Result<Message, ReceiveError> {
        let id = self.id().0;
        let hand_over = |state: &mut ProcessState| state.poll_memory_for(id);
        self.wait_reading(until, |state, now| state.engine.take(now, id), hand_over)
    }

    fn wait_message<R>(
        &self,
        until: Timeout,
        attempt: impl FnMut(&mut ProcessState, Instant) -> Option<R>,
    ) -> Result<R, ReceiveError> {
        let look = |state: &mut ProcessState| state.poll_memory().into();
        self.wait_reading(until, attempt, look)
    }

    /// Waits for what `attempt` finds, or `hand_over` brings out of shared memory.
    #[inline]
    fn wait_reading<R>(
        &self,
        until: Timeout,
        attempt: impl FnMut(&mut ProcessState, Instant) -> Option<R>,
        hand_over: impl FnMut(&mut ProcessState) -> Polled<R>,
    ) -> Result<R, ReceiveError> {
        if self.inner.is_forked() {
            return Err(ReceiveError::Forked);
        }
        if self.is_ended() {
            return Err(ReceiveError::Ended);
        }
        let what = |state: &ProcessState| {
            let sources = state.engine.sources(self.id().0);
            if sources.is_empty() {
                format!(
                    "a message to endpoint {}; nobody has sent to it yet",
                    self.address()
                )
            } else {
                let names: Vec<String> = sources.iter().map(ToString::to_string).collect();
                format!(
                    "a message to endpoint {} from {}",
                    self.address(),
                    names.join(", ")
                )
            }
        };
        let mut taken = None;
        let reading = Reading {
            endpoint: self,
            taken: &mut taken,
            attempt,
            hand_over,
        };
        let keys = [WaitKey::Endpoint(self.id().0)];
        let waited = (self.inner.driver).wait_for(until, &keys, &what, reading);
        match waited {
            // Closed by another thread while this one waited.
            Ok(Ok(())) => taken.ok_or(ReceiveError::Ended),
            Ok(Err(cause)) | Err(WaitError::Broken(cause)) => Err(ReceiveError::Broken(cause)),
            Err(WaitError::TimedOut { waited }) => Err(ReceiveError::TimedOut {
                endpoint: self.address(),
                waited,
            }),
        }
    }

    fn targets(&self) -> Option<Arc<[Target]>> {
        let id = self.id().0;
        self.inner
            .driver
            .with_last(|state, _| state.engine.targets(id).cloned())
    }

    fn some_targets(&self) -> Result<Arc<[Target]>, SendError> {
        self.targets().ok_or(SendError::NoTarget {
            from: self.address(),
        })
    }

    #[inline]
    fn check_usable(&self) -> Result<(), SendError> {
        if self.inner.is_forked() {
            return Err(SendError::Forked);
        }
        if self.is_ended() {
            return Err(SendError::Ended);
        }
        Ok(())
    }
}

/// What a reader waits for: what its attempts find, or that its endpoint ends.
struct Reading<'a, R, A, H> {
    endpoint: &'a Endpoint,
    /// Not by way of the wait's result: it would be moved there several times.
    taken: &'a mut Option<R>,
    attempt: A,
    hand_over: H,
}

impl<R, A, H> Reading<'_, R, A, H> {
    /// Credit that a sender waits for leaves with what was taken.
    #[inline]
    fn give_credit(&self, state: &mut ProcessState) -> io::Result<()> {
        match state.engine.has_transmit() {
            true => state.engine.transmit(self.endpoint.inner.driver.now()),
            false => Ok(()),
        }
    }
}

impl<R, A, H> Want<ProcessState> for Reading<'_, R, A, H>
where
    A: FnMut(&mut ProcessState, Instant) -> Option<R>,
    H: FnMut(&mut ProcessState) -> Polled<R>,
{
    type Got = io::Result<()>;

    #[inline]
    fn attempt(&mut self, state: &mut ProcessState, now: Instant) -> Option<io::Result<()>> {
        if self.endpoint.is_ended() {
            return Some(Ok(()));
        }
        *self.taken = (self.attempt)(state, now);
        self.taken.as_ref()?;
        Some(self.give_credit(state))
    }

    #[inline]
    fn poll_memory(&mut self, state: &mut ProcessState) -> Polled<io::Result<()>> {
        match (self.hand_over)(state) {
            Polled::Nothing => Polled::Nothing,
            Polled::Came => Polled::Came,
            Polled::Got(taken) => {
                *self.taken = Some(taken);
                Polled::Got(self.give_credit(state))
            }
        }
    }
}

/// Why an edge did not open.
fn target_error(error: SendError, target: Address) -> TargetError {
    match error {
        SendError::Unreachable(cause) => {
            let shared = |cause: Arc<TargetError>| TargetError::Unresolved {
                target,
                cause: cause.to_string(),
            };
            Arc::try_unwrap(cause).unwrap_or_else(shared)
        }
        SendError::TimedOut { target, waited } => TargetError::TimedOut { target, waited },
        SendError::PeerGone { target, reason } => TargetError::PeerGone { target, reason },
        SendError::Forked => TargetError::Forked,
        SendError::Broken(cause) => TargetError::Broken(cause),
        _ => TargetError::Ended,
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.end();
    }
}

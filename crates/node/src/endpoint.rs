//! Directed-point endpoints: what a Rust program sends to and receives from.
//!
//! `endpoint/send.rs` is the way of a message into packets or into the memory of
//! this node.

mod future;
mod poll;
mod posted;
mod receive;
mod send;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::address::{Address, EndpointId};
use crate::completion::CompletionQueue;
use crate::control::Command;
use crate::edge::Edge;
use crate::edges::{NewPost, PostedBytes};
use crate::error::{OpenError, SendError, TargetError};
use crate::inner::Inner;
use crate::owner::EndpointOwner;
use crate::region::{Region, RegionMemory, Rights};
use crate::registry::{Claim, Ports};
use crate::{Message, Pool};
use dipole_driver::Timeout;
use dipole_engine::{Context, Operation, Target};
use send::More;

/// Of an answer that waits: the edge that an endpoint keeps for answers has no queue.
const UNWATCHED: Context = 0;

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
            }) => {
                let post = NewPost {
                    operation: Operation::Message,
                    bytes: PostedBytes::Copied(payload.to_vec()),
                    context: UNWATCHED,
                };
                self.inner.post(id, post)
            }
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

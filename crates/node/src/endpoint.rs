//! Directed-point endpoints, which send and receive messages.
//!
//! `endpoint/send.rs` sends messages as packets or through shared memory.

mod fanout;
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
use crate::edges::{EdgeRef, NewPost, OverflowPolicy, PostedBytes};
use crate::error::{OpenError, SendError, TargetError};
use crate::inner::Inner;
use crate::owner::EndpointOwner;
use crate::region::{Region, RegionMemory, Rights};
use crate::registry::{Claim, Ports};
use crate::slots::SlotRef;
use crate::{Message, Pool};
use dipole_driver::Timeout;
use dipole_engine::{Context, Operation};
use dipole_proto::PeerId;
use send::More;

/// Context of a queued reply: reply edges have no completion queue.
const NO_CONTEXT: Context = 0;

/// An endpoint of this process: receives from any endpoint and sends along its edges.
///
/// Several threads may use it at once. Dropping it closes it: unread messages are dropped, and
/// new ones are refused, which their senders are notified of.
#[derive(Debug)]
pub struct Endpoint {
    inner: Arc<Inner>,
    owner: Arc<EndpointOwner>,
}

impl Endpoint {
    pub(crate) fn new(inner: Arc<Inner>, claim: Claim) -> Endpoint {
        let owner = Arc::new(EndpointOwner::new(
            claim,
            &inner.driver,
            inner.config.linger,
        ));
        Endpoint { inner, owner }
    }

    /// The endpoint's own address.
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

    /// Opens an edge to another endpoint. Returns at once; the edge connects in the background
    /// for up to `connect_timeout`, while the target endpoint may still be opened. An edge to an
    /// endpoint that has sent to this one is open from the start.
    ///
    /// # Errors
    /// [`SendError::Ended`], [`SendError::Forked`], [`SendError::Broken`] if no thread can start.
    pub fn edge(&self, to: Address) -> Result<Edge, SendError> {
        let id = self.open_edge(to)?;
        let edge = Edge::new(&self.inner, &self.owner, id, to);
        self.ensure_progress()?;
        Ok(edge)
    }

    /// Like [`edge`](Self::edge), to a process whose ports are known, for example from that
    /// process ([`Node::ports`](crate::Node::ports)). No hosts file or directory is used, so its
    /// node may be unknown here.
    ///
    /// # Errors
    /// The errors of [`edge`](Self::edge).
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

    /// Opens an edge that connects only while a thread steps the engine.
    fn open_edge(&self, to: Address) -> Result<EdgeRef, SendError> {
        self.check_usable()?;
        Ok(self.inner.driver.with(|state, now| {
            let (engine, edges, _) = state.parts();
            edges.open(engine, self.id().0, to, now)
        }))
    }

    /// Starts the progress thread, so that edges connect while their owner does something else.
    fn ensure_progress(&self) -> Result<(), SendError> {
        self.inner.ensure_progress().map_err(SendError::Broken)
    }

    /// Opens memory to peers that have an edge to this endpoint and the region's key, with the
    /// given `rights`.
    ///
    /// # Errors
    /// [`OpenError::Ended`], [`OpenError::Forked`], [`OpenError::Sleep`] if no thread can start.
    ///
    /// # Source
    /// The regions of active ports, GAMMA §2.
    pub fn open_region(&self, memory: RegionMemory, rights: Rights) -> Result<Region, OpenError> {
        Region::open(&self.inner, &self.owner, memory, rights)
    }

    /// Replies to a message: sends to the endpoint it came from. Never blocks and needs no
    /// address lookup, because the sending process is known.
    ///
    /// While all frames are in use, a copy of the reply is queued, so that a stopped peer does
    /// not hold up the others. The endpoint keeps up to 1024 edges for replies and closes the
    /// least recently used ones, which loses no messages.
    ///
    /// # Errors
    /// [`SendError::PeerGone`] if that process is gone. [`SendError::Full`] if it does not read
    /// its replies, if 1024 of them are queued, or 32 MiB in this process. Those of
    /// [`send`](Self::send).
    pub fn reply(&self, message: &Message, payload: &[u8]) -> Result<(), SendError> {
        self.reply_to((message.source(), message.peer()), payload)
    }

    /// Replies to an endpoint of a process: see [`reply`](Self::reply).
    pub(crate) fn reply_to(
        &self,
        (to, peer): (Address, PeerId),
        payload: &[u8],
    ) -> Result<(), SendError> {
        self.check_usable()?;
        let source = self.id().0;
        let id = self.inner.driver.with_last(|state, now| {
            let (engine, edges, _) = state.parts();
            edges.reply_edge(engine, source, (to, peer), now)
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
                    context: NO_CONTEXT,
                };
                self.inner.post(id, post)
            }
            sent => sent,
        }
    }

    /// Frees a slot of a port on this endpoint.
    pub(crate) fn release_slot(&self, slot: SlotRef) {
        if !self.inner.is_forked() {
            let driver = &self.inner.driver;
            driver.with_last(|state, _| state.release_slot(slot));
        }
    }

    /// Sends to an endpoint without an explicit edge. Blocks like [`Edge::send`]. The endpoint
    /// caches the edge as for [`reply`](Self::reply).
    ///
    /// # Errors
    /// The errors of [`Edge::send`].
    pub fn send_to(&self, to: Address, payload: &[u8]) -> Result<(), SendError> {
        self.send_to_until(to, payload, Timeout::Infinite)
    }

    /// Like [`send_to`](Self::send_to), but returns within `timeout`.
    ///
    /// # Errors
    /// The errors of [`Edge::send_timeout`].
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
        let source = self.id().0;
        let mut begun_at = None;
        loop {
            self.check_usable()?;
            let (id, now) = self.inner.driver.with(|state, now| {
                let (engine, edges, _) = state.parts();
                (edges.cached(engine, source, to, now), now)
            });
            self.ensure_progress()?;
            let elapsed_ns = now.since(*begun_at.get_or_insert(now));
            let left = until.after(Duration::from_nanos(elapsed_ns));
            let sent = (self.inner).send_along(source, (id, to), payload.into(), left);
            // Another thread replaced the cached edge meanwhile.
            if !matches!(sent, Err(SendError::Ended)) {
                return sent;
            }
        }
    }

    /// From now on, messages of this endpoint appear in a completion queue.
    pub fn attach(&self, queue: &CompletionQueue) {
        if !self.inner.is_forked() {
            self.inner.driver.with(|state, _| {
                let (engine, _, queues) = state.parts();
                queues.attach_endpoint(engine, self.id().0, queue.id());
            });
        }
    }

    /// Adds a target: every message goes to each target. Waits for up to `connect_timeout` until
    /// that endpoint exists and its process answers. Adding a target again renews its session if
    /// the peer was gone.
    ///
    /// A message is queued for all targets or for none: a call that fails has sent nothing, so it
    /// may be repeated. If the process of one of several targets is gone, one call fails with
    /// [`SendError::PeerGone`] or [`SendError::Refused`] and its address; later messages go to the
    /// other targets.
    ///
    /// Each target gets a copy of its own, also when several are on one node; a broadcast of
    /// `dipole-group` sends each node one copy.
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
        // The edge fails on its own after `connect_timeout`.
        let opened = self.inner.wait_target(edge, to, Timeout::Infinite);
        self.inner.driver.with(|state, _| {
            if opened.is_ok() {
                state.add_target(self.id().0, to, edge);
            } else {
                // Closing the edge leaves the error as its only owner.
                let (engine, edges, queues) = state.parts();
                edges.close(engine, queues, edge);
            }
        });
        opened.map(drop).map_err(|error| target_error(error, to))
    }

    /// Removes a target; later sends no longer go to it, nor do messages that wait for room there. Unless
    /// its [policy](Self::set_overflow_policy) drops messages, the next [`drain`](Self::drain) fails
    /// with [`SendError::Cancelled`] if there were such messages.
    pub fn untarget(&self, to: Address) {
        let id = self.id().0;
        self.inner
            .driver
            .with(|state, _| state.remove_target(id, to));
    }

    /// Sets what happens to messages while a target has no room. By default sending waits, so
    /// that one slow target slows down all of them.
    ///
    /// # Errors
    /// [`SendError::NoTarget`] if `to` is not a target of this endpoint.
    pub fn set_overflow_policy(
        &self,
        to: Address,
        policy: OverflowPolicy,
    ) -> Result<(), SendError> {
        self.check_usable()?;
        let id = self.id().0;
        let is_target = self
            .inner
            .driver
            .with_last(|state, _| state.set_overflow_policy(id, to, policy));
        match is_target {
            true => Ok(()),
            false => Err(SendError::NoTarget {
                from: self.address(),
            }),
        }
    }

    /// Messages that a target did not get because of its [`OverflowPolicy`]; `None` if `to` is not
    /// a target.
    #[must_use]
    pub fn dropped_messages(&self, to: Address) -> Option<u64> {
        let id = self.id().0;
        self.inner
            .driver
            .with_last(|state, _| state.targets.dropped_to(id, to))
    }

    /// Closes the endpoint while handles to it still exist; their calls fail from now on.
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

    /// Gives the endpoint a contiguous token buffer pool of `bytes` for its messages, and returns
    /// its location. While the pool is full, messages are stored elsewhere until it is empty
    /// again. Messages longer than 16 KiB always get their own buffers.
    ///
    /// # Errors
    /// [`OpenError::Pool`] if there is not enough memory, or the endpoint has been closed.
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

    /// The endpoint's descriptor, for `poll`, `select` and `epoll`: readable while a message is
    /// waiting, writable while [`try_send`](Self::try_send) may succeed. Use it only for waiting
    /// and closing; closing its last copy (made by `dup` or a fork) closes the endpoint. A thread
    /// of this node keeps it up to date. Each call creates a new descriptor, and earlier ones are
    /// no longer updated.
    ///
    /// # Errors
    /// [`OpenError::Sleep`] if there are no descriptors or threads left.
    ///
    /// # Source
    /// The file descriptor of DP §2.
    pub fn export(&self) -> Result<OwnedFd, OpenError> {
        if self.inner.is_forked() {
            return Err(OpenError::Forked);
        }
        let id = self.id().0;
        // First, because dropping the descriptor after a failure would close the endpoint.
        self.inner.ensure_progress().map_err(OpenError::Sleep)?;
        let user = self.inner.driver.with(|state, _| state.engine.export(id));
        let user = user.map_err(OpenError::Sleep)?;
        let exported = Command::Exported(Arc::downgrade(&self.owner));
        self.inner.control.commands.post(exported);
        Ok(user)
    }

    /// Sends a message. It is copied, and leaves before this returns unless earlier packets are
    /// waiting. Blocks while there are no free frames or no credit from the receiver, and
    /// receives meanwhile. Only [`drain`](Self::drain) confirms delivery.
    ///
    /// # Errors
    /// [`SendError`]. Nothing was queued, unless the peer failed in the middle of a long message.
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Timeout::Infinite, More::No)
    }

    /// Like [`send`](Self::send), but gives up if the message cannot start within `timeout`. Once
    /// started, it is sent completely. A long message within this node is therefore copied first,
    /// which `send` avoids.
    ///
    /// # Errors
    /// [`SendError::TimedOut`] and those of `send`; nothing was queued.
    pub fn send_timeout(&self, payload: &[u8], timeout: Duration) -> Result<(), SendError> {
        self.send_until(payload, Timeout::After(timeout), More::No)
    }

    /// Like [`send`](Self::send), but never blocks: the message is queued as a whole or not at
    /// all. To another node it needs a frame for each packet, and may use seven eighths of all
    /// frames (3584 of 4096, or about 5 MB in packets of 1472 bytes).
    ///
    /// # Errors
    /// [`SendError::Full`] and those of `send`; [`SendError::TooLong`] if only `send` can send it.
    /// Nothing was queued.
    pub fn try_send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Timeout::Zero, More::No)
    }

    /// Like [`send`](Self::send), but more messages follow, so this one may wait to share their
    /// packet. It leaves with the next `send`, `flush` or wait, or when the packet is full.
    ///
    /// # Errors
    /// The errors of `send`.
    pub fn send_more(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_until(payload, Timeout::Infinite, More::Yes)
    }

    /// Like [`send_more`](Self::send_more), but returns within `timeout`; zero never waits.
    ///
    /// # Errors
    /// [`SendError::Full`], [`SendError::TimedOut`] and those of `send`; nothing was queued.
    pub fn send_more_timeout(&self, payload: &[u8], timeout: Duration) -> Result<(), SendError> {
        self.send_until(payload, Timeout::from(timeout), More::Yes)
    }

    /// Sends everything queued by [`send_more`](Self::send_more), as far as the window allows.
    ///
    /// # Errors
    /// [`SendError::Broken`] and [`SendError::Forked`].
    pub fn flush(&self) -> Result<(), SendError> {
        self.check_usable()?;
        let id = self.id().0;
        self.inner
            .driver
            .with(|state, now| {
                for (edge, _) in state.targets.edges_of(id) {
                    if let Some(Ok(target)) = state.edges.target(edge) {
                        state.engine.flush(target.edge.peer);
                    }
                }
                state.engine.transmit(now)
            })
            .map_err(SendError::Broken)
    }

    /// Sends a message without retransmission: it arrives at most once, and is dropped if the
    /// receiver already holds too many. Never blocks.
    ///
    /// # Errors
    /// [`SendError::Full`] if there is no room for it at any target, and those of `send`.
    pub fn send_unreliable(&self, payload: &[u8]) -> Result<(), SendError> {
        self.check_usable()?;
        self.send_unreliably(payload)
    }

    /// Waits until everything sent by [`send`](Self::send), also to targets that were removed since, by
    /// [`send_to`](Self::send_to) and [`reply`](Self::reply) has been acknowledged by the receiving
    /// processes: the messages are then in their token buffer pools.
    ///
    /// # Errors
    /// [`SendError::TimedOut`], [`SendError::PeerGone`], [`SendError::Refused`],
    /// [`SendError::Cancelled`] and [`SendError::Broken`], for the first target that failed; the others
    /// have been waited for.
    /// A refusal is reported once by a later send or by this call, even after its edge was closed; while
    /// the target refuses, each call reports it until [`target`](Self::target) is called again.
    /// [`SendError::NoTarget`]: the endpoint has no targets, and has never sent to an address.
    pub fn drain(&self, timeout: Duration) -> Result<(), SendError> {
        self.check_usable()?;
        let begun = std::time::Instant::now();
        let left = || Timeout::After(timeout.saturating_sub(begun.elapsed()));
        let id = self.id().0;
        let driver = &self.inner.driver;
        let mut drained = Ok(());
        let (sent_to, has_retired) =
            driver.with_last(|state, _| (state.edges.sent_to(id), state.edges.has_retired(id)));
        let targets = match self.require_targets() {
            Err(SendError::NoTarget { .. }) if has_retired || !sent_to.is_empty() => Vec::new(),
            targets => {
                self.flush()?;
                targets?
            }
        };
        for (edge, to) in targets {
            let taken = self
                .inner
                .wait_target(edge, to, left())
                .and_then(|target| self.inner.wait_acknowledged(id, &target, left()));
            if is_loss(&taken) {
                driver.with_last(|state, _| state.targets.reported(id, to));
            }
            drained = drained.and(taken);
        }
        for sent in sent_to {
            let taken = self.inner.wait_acknowledged(id, &sent.target, left());
            let taken = taken.and(sent.loss());
            if is_loss(&taken) {
                driver.with(|state, _| {
                    let (engine, edges, _) = state.parts();
                    edges.reported_loss(engine, id, &sent.target);
                });
            }
            drained = drained.and(taken);
        }
        drained
    }

    /// The edges and addresses of the targets.
    fn require_targets(&self) -> Result<Vec<(EdgeRef, Address)>, SendError> {
        let id = self.id().0;
        let targets = self
            .inner
            .driver
            .with_last(|state, _| state.targets.edges_of(id));
        match targets.is_empty() {
            true => Err(SendError::NoTarget {
                from: self.address(),
            }),
            false => Ok(targets),
        }
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

/// Converts the error of an edge that did not open.
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
        SendError::Interrupted { target } => TargetError::Interrupted { target },
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

/// True if the error says that messages to a target are lost.
fn is_loss(drained: &Result<(), SendError>) -> bool {
    matches!(
        drained,
        Err(SendError::PeerGone { .. } | SendError::Refused { .. } | SendError::Cancelled { .. })
    )
}

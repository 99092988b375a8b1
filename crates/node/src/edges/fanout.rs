//! Messages to several targets of an endpoint.
//!
//! A message is queued for all targets or for none, so that a caller who repeats a call that failed
//! does not send anything twice. A target that has no room gets the message in the queue of its
//! edge; the targets share one copy. Its [`OverflowPolicy`] decides about the messages that follow.
//!
//! A target whose process is gone is reported once, by a call that queues nothing. From then on
//! messages go to the others.

use bytes::Bytes;
use dipole_engine::{Blocked, Content, Engine, Target};
use dipole_proto::Instant;
use rustc_hash::FxHashMap;

use super::posts::{MAX_POSTED, MAX_POSTED_BYTES};
use super::{EdgeRef, EdgeTable, Stage};
use crate::address::Address;
use crate::error::SendError;
use crate::queues::QueueTable;

/// Treatment of further messages while a message waits for room at a target.
///
/// At most 1024 messages and 32 MiB wait for a target, whatever the policy says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverflowPolicy {
    /// Sending waits, or fails with [`SendError::Full`] for all targets.
    #[default]
    Wait,
    /// This many messages wait; the target does not get those that follow.
    DropNewest {
        /// The number of messages that may wait.
        messages: usize,
    },
    /// This many messages wait; each that follows replaces the oldest one.
    DropOldest {
        /// The number of messages that may wait.
        messages: usize,
    },
    /// Only the latest message waits.
    KeepLatest,
}

/// A message on its way to several targets.
pub(crate) struct FanOut<'a> {
    payload: &'a [u8],
    /// More messages follow.
    more: bool,
    /// The caller waits until long messages have been sent from its memory.
    in_place: bool,
    /// The copy for targets without room.
    copy: Option<Bytes>,
}

impl FanOut<'_> {
    pub(crate) fn new(payload: &[u8], more: bool, in_place: bool) -> FanOut<'_> {
        FanOut {
            payload,
            more,
            in_place,
            copy: None,
        }
    }

    /// True if a copy waits for room at some target.
    pub(crate) fn is_queued(&self) -> bool {
        self.copy.is_some()
    }

    fn shared(&mut self) -> Bytes {
        let payload = self.payload;
        let copy = self
            .copy
            .get_or_insert_with(|| Bytes::copy_from_slice(payload));
        copy.clone()
    }
}

/// The result of sending to all targets.
pub(crate) enum Delivery {
    /// The message is queued for all targets except these, which the caller sends it to in turn.
    Sent(Vec<Target>),
    /// This target has no room for another message; nothing was queued.
    Blocked(Address),
}

/// A target of an endpoint.
#[derive(Debug)]
struct EndpointTarget {
    address: Address,
    edge: EdgeRef,
    policy: OverflowPolicy,
    dropped_messages: u64,
    loss: Option<Loss>,
    /// A call that waited for acknowledgements has returned a loss.
    is_loss_known: bool,
}

/// The edge of a target that was removed or replaced.
pub(crate) struct RemovedTarget {
    pub(crate) edge: EdgeRef,
    /// The caller has got an error for it.
    pub(crate) is_loss_known: bool,
    /// Messages that wait may not be dropped.
    pub(crate) is_lossless: bool,
}

/// Why a target gets no messages any more.
#[derive(Clone, Copy, Debug)]
struct Loss {
    why: Blocked,
    /// A call has returned this loss.
    is_reported: bool,
}

/// The targets of all endpoints of a process.
#[derive(Debug, Default)]
pub(crate) struct TargetTable {
    by_endpoint: FxHashMap<u32, Vec<EndpointTarget>>,
    /// Messages that targets did not get because of their policies.
    dropped_messages: u64,
}

impl TargetTable {
    /// Messages that targets did not get because of their policies.
    pub(crate) fn dropped_messages(&self) -> u64 {
        self.dropped_messages
    }

    /// Adds a target, or replaces the edge of one; returns what was replaced.
    pub(crate) fn add(
        &mut self,
        source: u32,
        address: Address,
        edge: EdgeRef,
    ) -> Option<RemovedTarget> {
        let targets = self.by_endpoint.entry(source).or_default();
        if let Some(known) = targets.iter_mut().find(|known| known.address == address) {
            let replaced = known.removed();
            (known.edge, known.loss, known.is_loss_known) = (edge, None, false);
            return Some(replaced);
        }
        targets.push(EndpointTarget {
            address,
            edge,
            policy: OverflowPolicy::Wait,
            dropped_messages: 0,
            loss: None,
            is_loss_known: false,
        });
        None
    }

    /// Removes a target.
    pub(crate) fn remove(&mut self, source: u32, address: Address) -> Option<RemovedTarget> {
        let targets = self.by_endpoint.get_mut(&source)?;
        let at = targets.iter().position(|known| known.address == address)?;
        let removed = targets.remove(at).removed();
        if targets.is_empty() {
            self.by_endpoint.remove(&source);
        }
        Some(removed)
    }

    /// Counts messages that a target did not get because it was removed.
    pub(crate) fn count_dropped(&mut self, messages: usize) {
        self.dropped_messages += messages as u64;
    }

    /// A caller has got an error that says that this target is lost.
    pub(crate) fn reported(&mut self, source: u32, address: Address) {
        if let Some(target) = self.find(source, address) {
            target.is_loss_known = true;
        }
    }

    /// Removes all targets of an endpoint, whose edges the caller closes.
    pub(crate) fn close_endpoint(&mut self, source: u32) {
        self.by_endpoint.remove(&source);
    }

    /// Sets the policy of a target; false if there is no such target.
    pub(crate) fn set_policy(
        &mut self,
        source: u32,
        address: Address,
        policy: OverflowPolicy,
    ) -> bool {
        let found = self.find(source, address);
        let is_target = found.is_some();
        if let Some(target) = found {
            target.policy = policy;
        }
        is_target
    }

    /// Messages that a target did not get because of its policy.
    pub(crate) fn dropped_to(&mut self, source: u32, address: Address) -> Option<u64> {
        Some(self.find(source, address)?.dropped_messages)
    }

    fn find(&mut self, source: u32, address: Address) -> Option<&mut EndpointTarget> {
        let targets = self.by_endpoint.get_mut(&source)?;
        targets.iter_mut().find(|known| known.address == address)
    }

    /// The target of an endpoint that has one only, if messages to it never wait in its queue.
    pub(crate) fn only(&self, source: u32, edges: &EdgeTable) -> Option<Target> {
        let [only] = self.by_endpoint.get(&source)?.as_slice() else {
            return None;
        };
        let is_idle = only.policy == OverflowPolicy::Wait && !edges.has_posts(only.edge);
        let target = edges.target(only.edge)?.ok()?;
        is_idle.then_some(target)
    }

    /// The edges and addresses of an endpoint's targets.
    pub(crate) fn edges_of(&self, source: u32) -> Vec<(EdgeRef, Address)> {
        let targets = self.by_endpoint.get(&source).into_iter().flatten();
        targets
            .map(|target| (target.edge, target.address))
            .collect()
    }

    /// Records that a target failed while the caller sent to it.
    pub(crate) fn lose(&mut self, source: u32, address: Address, why: Blocked) {
        if let Some(target) = self.find(source, address) {
            target.lose(why);
        }
    }

    /// The targets that get messages.
    ///
    /// # Errors
    /// A target is lost and this has not been reported before, or all targets are lost.
    pub(crate) fn live(
        &mut self,
        (engine, edges): (&Engine, &EdgeTable),
        source: u32,
    ) -> Result<Vec<Target>, SendError> {
        let targets = self.by_endpoint.entry(source).or_default();
        report_losses(targets, engine, edges)?;
        let live = targets.iter().filter(|target| target.loss.is_none());
        Ok(live
            .filter_map(|target| edges.target(target.edge)?.ok())
            .collect())
    }

    /// Queues a message for all targets, or for none.
    ///
    /// # Errors
    /// The errors of [`live`](Self::live); nothing was queued.
    pub(crate) fn send(
        &mut self,
        (engine, edges, queues): (&mut Engine, &mut EdgeTable, &mut QueueTable),
        source: u32,
        message: &mut FanOut<'_>,
        now: Instant,
    ) -> Result<Delivery, SendError> {
        let targets = self.by_endpoint.entry(source).or_default();
        report_losses(targets, engine, edges)?;
        let mut live = targets.iter().filter(|target| target.loss.is_none());
        let full = live
            .find(|target| target.policy == OverflowPolicy::Wait && edges.has_posts(target.edge));
        if let Some(full) = full {
            return Ok(Delivery::Blocked(full.address));
        }
        let mut in_turn = Vec::new();
        for target in targets.iter_mut().filter(|target| target.loss.is_none()) {
            let dropped_before = target.dropped_messages;
            in_turn.extend(target.send((&mut *engine, &mut *edges, &mut *queues), message, now));
            self.dropped_messages += target.dropped_messages - dropped_before;
        }
        Ok(Delivery::Sent(in_turn))
    }
}

/// Finds targets that are gone, and reports each of them once.
fn report_losses(
    targets: &mut [EndpointTarget],
    engine: &Engine,
    edges: &EdgeTable,
) -> Result<(), SendError> {
    for target in &mut *targets {
        if target.loss.is_none()
            && let Some(why) = edges.loss(engine, target.edge)
        {
            target.lose(why);
        }
    }
    let lost = |target: &EndpointTarget| Some((target.address, target.loss?));
    let unreported = targets
        .iter_mut()
        .find(|target| target.loss.is_some_and(|loss| !loss.is_reported));
    if let Some(target) = unreported
        && let Some(loss) = &mut target.loss
    {
        loss.is_reported = true;
        return Err(SendError::from_blocked(loss.why, target.address, 0));
    }
    match targets.iter().find(|target| target.loss.is_none()) {
        Some(_) => Ok(()),
        // The caller reports an endpoint without targets.
        None => targets
            .iter()
            .find_map(lost)
            .map_or(Ok(()), |(address, loss)| {
                Err(SendError::from_blocked(loss.why, address, 0))
            }),
    }
}

impl EndpointTarget {
    fn removed(&self) -> RemovedTarget {
        RemovedTarget {
            edge: self.edge,
            is_loss_known: self.is_loss_known || self.loss.is_some_and(|loss| loss.is_reported),
            is_lossless: self.policy == OverflowPolicy::Wait,
        }
    }

    fn lose(&mut self, why: Blocked) {
        if self.loss.is_none() {
            self.loss = Some(Loss {
                why,
                is_reported: false,
            });
        }
    }

    /// Sends at once if there is room, and otherwise queues a copy as the policy allows. Returns
    /// the target if the caller has to send the message itself.
    fn send(
        &mut self,
        (engine, edges, queues): (&mut Engine, &mut EdgeTable, &mut QueueTable),
        message: &mut FanOut<'_>,
        now: Instant,
    ) -> Option<Target> {
        let target = edges.target(self.edge)?.ok()?;
        let is_long = message.payload.len() > engine.whole_limit(target.edge.peer);
        if is_long && message.in_place && self.policy == OverflowPolicy::Wait {
            return Some(target);
        }
        if !is_long && !edges.has_posts(self.edge) {
            let content = Content::from(message.payload);
            match engine.send_whole(now, target.edge, content, message.more) {
                Ok(()) => {
                    target.sent.count(message.payload.len());
                    return None;
                }
                Err(Blocked::NoFrame | Blocked::NoCredit | Blocked::Opening) => {}
                Err(why) => {
                    self.lose(why);
                    return None;
                }
            }
        }
        self.queue((engine, edges, queues), message, now);
        None
    }

    fn queue(
        &mut self,
        (engine, edges, queues): (&mut Engine, &mut EdgeTable, &mut QueueTable),
        message: &mut FanOut<'_>,
        now: Instant,
    ) {
        let (most, replaces) = match self.policy {
            OverflowPolicy::Wait => (MAX_POSTED, false),
            OverflowPolicy::DropNewest { messages } => (messages, false),
            OverflowPolicy::DropOldest { messages } => (messages, true),
            OverflowPolicy::KeepLatest => (1, true),
        };
        let most = most.clamp(1, MAX_POSTED);
        let Some(state) = edges.get_mut(self.edge) else {
            return;
        };
        loop {
            let (messages, bytes) = state.posts.waiting();
            let has_room = messages < most && bytes + message.payload.len() <= MAX_POSTED_BYTES;
            if has_room || messages == 0 {
                break;
            }
            self.dropped_messages += 1;
            if !replaces || !state.posts.drop_oldest() {
                return;
            }
        }
        state.posts.push_message(message.shared());
        edges.continue_posts((engine, queues), self.edge, now);
    }
}

impl EdgeTable {
    /// True if operations wait on an edge.
    pub(crate) fn has_posts(&self, id: EdgeRef) -> bool {
        self.get(id).is_some_and(|edge| !edge.posts.is_empty())
    }

    /// Starts what waits on an edge, now or when there is room.
    fn continue_posts(
        &mut self,
        (engine, queues): (&mut Engine, &mut QueueTable),
        id: EdgeRef,
        now: Instant,
    ) {
        if !self.waiting.contains(&id) {
            self.waiting.push(id);
        }
        self.advance_posts(engine, queues, id, now);
    }

    /// Why an open edge carries no messages any more.
    fn loss(&self, engine: &Engine, id: EdgeRef) -> Option<Blocked> {
        let edge = self.get(id)?;
        let Stage::Open(target) = &edge.stage else {
            return None;
        };
        let gone = engine.is_open(target.edge.peer).err();
        gone.or(edge.posts.failure())
    }
}

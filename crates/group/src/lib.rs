//! Groups: barriers, broadcasts and reductions among members that make the same calls.
//!
//! Each member has a port. Its handler stores arriving messages (`state.rs`) and forwards
//! broadcasts, even while the member computes. A call sends along the pattern in `shape.rs` and
//! waits for the messages it needs (`calls.rs`, `reduce.rs`). `failure.rs` detects lost members and
//! notifies the others.
//!
//! # Source
//! GAMMA §2: the parallel programs that active ports serve; dissemination barrier: Hensgen,
//! Finkel, Manber 1988.

#![forbid(unsafe_code)]

mod calls;
mod error;
mod failure;
mod members;
mod reduce;
mod reduction;
mod shape;
mod state;

use std::fmt;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipole_proto::wire::{GroupCall, GroupHead, GroupOperation, members_to_bytes};

use dipole_node::Address;
use dipole_node::Message;
use dipole_node::Node;
use dipole_node::SendError;
use dipole_node::{ActivePort, PortContext};
use dipole_node::{Edge, Operation};
use error::Deadline;
pub use error::{GroupError, Member};
pub use members::Members;
use members::Roster;
pub use reduction::{Combine, Number, Order};
use state::{CollectiveState, Reaction};

/// A member of a group.
///
/// All members make the same calls in the same order; only this order decides which calls belong
/// together. A call returns when this member has done its part: after a barrier, all members have
/// called it; after a reduction, its root has the bytes of all; after a broadcast, the root may be
/// ahead of the others by at most 64 calls or 32 MiB. A member that computes delays only members
/// that need its data, not the broadcasts that pass through it.
///
/// An error ends the generation for all members. Each incomplete and each later call fails with the
/// same reason, which names the members that are gone, late, or made a different call. Some
/// members may have completed the call in which the error occurred. Afterwards
/// [`reform_without`](Self::reform_without) or [`reform`](Self::reform) starts a new generation.
///
/// Port handlers must not make calls. Dropping the group leaves it: calls that the others have
/// already begun complete, and later ones fail there.
pub struct Group {
    port: ActivePort,
    shared: Arc<Shared>,
    roster: Arc<Roster>,
    /// Calls, and bytes they moved, since the last point at which all members were in step.
    ahead: (u64, u64),
    /// The message being sent.
    scratch: Vec<u8>,
    /// The reduction's intermediate result.
    work: Vec<u8>,
    /// Edges with replies to members of an ended generation.
    answers: Vec<Edge>,
}

/// State shared by the calls and the handler.
struct Shared {
    state: Mutex<CollectiveState>,
    /// The handler is running; the port must not close before it has finished sending.
    handler_is_running: AtomicBool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, CollectiveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The port's handler; it never blocks.
    fn handle(&self, context: &PortContext, message: &Message) {
        self.handler_is_running.store(true, Ordering::Release);
        self.on_message(context, message);
        self.handler_is_running.store(false, Ordering::Release);
    }

    fn on_message(&self, context: &PortContext, message: &Message) {
        let (head, data) = match GroupHead::parse(message) {
            Ok(parsed) => parsed,
            Err(cause) => {
                tracing::debug!("ignored a message from {}: {cause}", message.source());
                return;
            }
        };
        // Release the lock at once: another thread may be waiting for it.
        let reaction = self.state().on_message(message.source(), &head, data);
        match reaction {
            Reaction::None => {}
            Reaction::Reply(from, ending) => {
                let told = context.reply(message, &failure::ended_message(&head, from, &ending));
                if let Err(cause) = told {
                    tracing::debug!("cannot reply to {}: {cause}", message.source());
                }
            }
            Reaction::Forward(roster, key) => {
                let root = head.call.root as usize;
                // Forward to each child even if an earlier one failed.
                let mut to_all = true;
                if root < roster.size() {
                    for child in roster.placement.children(roster.rank, root) {
                        to_all &= self.forward(context, &roster, child, message);
                    }
                }
                self.state().on_forwarded(key, head.offset, to_all);
            }
        }
    }

    /// Sends to one member without blocking; false if that failed.
    fn forward(&self, context: &PortContext, roster: &Roster, to: usize, message: &[u8]) -> bool {
        let Ok(edge) = roster.edge(to, |address| context.edge(address)) else {
            return false;
        };
        let sent = edge.send_if_room(message);
        let post = || edge.post(Operation::Message, &[IoSlice::new(message)], 0);
        matches!(sent, Ok(true)) || post().is_ok()
    }
}

impl Group {
    /// Joins a group as the member `rank`, whose address must be on this node. Opens the member's
    /// port and waits until all members have joined with the same list.
    ///
    /// # Errors
    /// [`GroupError`]. If members are missing, [`GroupError::TimedOut`] names one of them.
    pub fn join(
        node: &Node,
        members: Members,
        rank: usize,
        timeout: Duration,
    ) -> Result<Group, GroupError> {
        let address = check(&members, rank)?;
        if address.node != node.id() {
            let (own, other) = (node.id(), address.node);
            let cause = format!("rank {rank} is on node {other}, but this is node {own}");
            return Err(GroupError::Members { cause });
        }
        let roster = Arc::new(Roster::new(members, rank));
        let shared = Arc::new(Shared {
            state: Mutex::new(CollectiveState::new(Arc::clone(&roster))),
            handler_is_running: AtomicBool::new(false),
        });
        let handling = Arc::clone(&shared);
        let handler = move |context: &PortContext, message: Message| {
            handling.handle(context, &message);
        };
        let port = node.open_port(address.endpoint, handler);
        let mut group = Group {
            port: port.map_err(GroupError::Open)?,
            shared,
            roster,
            ahead: (0, 0),
            scratch: Vec::new(),
            work: Vec::new(),
            answers: Vec::new(),
        };
        group.start(Deadline::after(timeout), true)?;
        Ok(group)
    }
}

/// Checks the list and returns the address of the member `rank`.
fn check(members: &Members, rank: usize) -> Result<Address, GroupError> {
    let wrong = |cause| Err(GroupError::Members { cause });
    let mut sorted = members.addresses.clone();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return wrong(format!("{} is listed twice", twice[0]));
    }
    match members.addresses.get(rank) {
        Some(address) => Ok(*address),
        None => wrong(format!(
            "there is no rank {rank} among {} members",
            sorted.len()
        )),
    }
}

impl Group {
    /// This member's position in the list.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.roster.rank
    }

    /// Returns the number of members.
    #[must_use]
    pub fn size(&self) -> usize {
        self.roster.size()
    }

    /// The list of members.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.roster.members
    }

    /// Members of this generation that are known to have died or left. The members agree on
    /// this list only once the next generation has started.
    #[must_use]
    pub fn gone(&self) -> Vec<Member> {
        let lost = self.shared.state().lost().clone();
        self.members_at(lost)
    }

    /// Starts a new generation with another list of members. All of them call this, or
    /// [`Group::join`] if they are new, with the same list and generation; waits for them.
    ///
    /// # Errors
    /// The errors of [`Group::join`].
    pub fn reform(&mut self, members: Members, timeout: Duration) -> Result<(), GroupError> {
        self.renew(members)?;
        self.start(Deadline::after(timeout), true)
    }

    /// Starts the next generation without the members known to be gone and those in `gone`; the
    /// others keep their order. All remaining members call this. If they disagree about who is
    /// gone, or more members fail meanwhile, they retry until they agree; each attempt increments
    /// the generation.
    ///
    /// # Errors
    /// [`GroupError::Excluded`]: the others believe that this member is gone. Also those of
    /// [`Group::join`].
    pub fn reform_without(&mut self, gone: &[usize], timeout: Duration) -> Result<(), GroupError> {
        let deadline = Deadline::after(timeout);
        let own = self.roster.address(self.rank());
        let mut lost: Vec<usize> = self.gone().iter().map(|member| member.rank).collect();
        lost.extend(gone);
        let mut next = self.without(&lost);
        loop {
            self.renew(next)?;
            match self.start(deadline, false) {
                Err(GroupError::Gone { members }) => {
                    let lost: Vec<usize> = members.iter().map(|member| member.rank).collect();
                    next = self.without(&lost);
                }
                Err(GroupError::Left { member }) => next = self.without(&[member.rank]),
                Err(GroupError::Disagreement { theirs }) => next = self.common(theirs),
                ended => return ended,
            }
            if !next.addresses.contains(&own) {
                return Err(GroupError::Excluded { theirs: next });
            }
        }
    }

    /// The next generation without the ranks in `lost`.
    fn without(&self, lost: &[usize]) -> Members {
        let known = self.roster.members.addresses.iter().enumerate();
        let left = known.filter(|(rank, _)| !lost.contains(rank));
        Members {
            generation: self.roster.members.generation + 1,
            addresses: left.map(|(_, address)| *address).collect(),
        }
    }

    /// A generation that members with this list and members with `theirs` both arrive at.
    fn common(&self, theirs: Members) -> Members {
        let own = &self.roster.members;
        let known = own.addresses.iter().copied();
        let addresses: Vec<_> = known.filter(|it| theirs.addresses.contains(it)).collect();
        if theirs.generation > own.generation && theirs.addresses == addresses {
            return theirs;
        }
        Members {
            generation: theirs.generation.max(own.generation) + 1,
            addresses,
        }
    }

    /// Switches to another list; this member keeps its port.
    fn renew(&mut self, members: Members) -> Result<(), GroupError> {
        let own = self.roster.address(self.rank());
        let rank = members.addresses.iter().position(|it| *it == own);
        let Some(rank) = rank else {
            let cause = format!("this member's port {own} is not in the new list");
            return Err(GroupError::Members { cause });
        };
        let (before, after) = (self.roster.members.generation, members.generation);
        if after <= before {
            let cause = format!("generation {after} is not newer than generation {before}");
            return Err(GroupError::Members { cause });
        }
        check(&members, rank)?;
        self.finish_forwarding();
        self.roster = Arc::new(Roster::new(members, rank));
        self.ahead = (0, 0);
        let late = self.shared.state().renew(Arc::clone(&self.roster));
        self.answers.clear();
        for (address, head, from, ending) in late {
            let message = failure::ended_message(&head, from, &ending);
            if let Ok(edge) = self.port.edge(address)
                && edge
                    .post(Operation::Message, &[IoSlice::new(&message)], 0)
                    .is_ok()
            {
                // Posted messages are sent only while their edge exists.
                self.answers.push(edge);
            }
        }
        Ok(())
    }

    /// The barrier that starts a generation. Its messages contain the list of members.
    fn start(&mut self, deadline: Deadline, awaits_joiners: bool) -> Result<(), GroupError> {
        let list = members_to_bytes(&self.roster.members.pairs());
        let call = GroupCall {
            operation: GroupOperation::Start,
            root: 0,
            length: list.len() as u64,
        };
        self.call(call, deadline, |group, context| {
            let context = context.with_awaits_joiners(awaits_joiners);
            group.disseminate(&context, &list)?;
            group.open_edges()?;
            Ok(call.length)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.port.is_forked() {
            return;
        }
        self.finish_forwarding();
        self.announce_leave();
    }
}

impl From<SendError> for GroupError {
    fn from(cause: SendError) -> GroupError {
        GroupError::Send(cause)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, size) = (self.rank(), self.size());
        let generation = self.roster.members.generation;
        write!(f, "Group(rank {rank} of {size}, generation {generation})")
    }
}

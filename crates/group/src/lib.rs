//! Groups: barriers, broadcasts and reductions of members that make the same calls.
//!
//! Each member has a port whose handler files what the others tell it (`board.rs`), also
//! while the member computes, and passes broadcasts on. A call sends along the pattern of
//! `shape.rs` and waits for what it needs (`calls.rs`); `telling.rs` finds out
//! who is gone and tells the others. `members.rs` is the list, `reduction.rs` combines.
//!
//! # Source
//! GAMMA §2: the parallel programs that active ports serve; dissemination barrier: Hensgen,
//! Finkel, Manber 1988.

#![forbid(unsafe_code)]

mod board;
mod calls;
mod error;
mod members;
mod reduction;
mod shape;
mod telling;

use std::fmt;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dipole_proto::wire::{GroupCall, GroupHead, GroupOperation, members_to_bytes};

use board::{Board, Verdict};
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
pub use reduction::{Combine, Number};

/// A member of a group.
///
/// All members make the same calls in the same order; which call meets which is decided by that
/// alone. A call returns when this member has done its part: after a barrier all have called it,
/// after a reduction its root has had everybody's bytes, after a broadcast the root may be ahead of the
/// others, by 64 calls or 32 MiB at most. A member that computes delays those who need
/// something of it, not the broadcasts that go through it.
///
/// An error ends the generation for all members: each call in progress that is not yet complete, and
/// each later one, fails for the same reason, which names who is gone, or late, or called
/// something else. Some members may have completed the call in which that happened. After that
/// [`reform_without`](Self::reform_without) or [`reform`](Self::reform) begins another generation.
///
/// Calls are not to be made in handlers of ports. Dropping the group leaves it: calls that the
/// others have begun are ended properly, later ones fail there.
pub struct Group {
    port: ActivePort,
    shared: Arc<Shared>,
    roster: Arc<Roster>,
    /// Calls, and bytes they moved, since all were known to be at the same place.
    ahead: (u64, u64),
    /// A message on its way to the edge.
    scratch: Vec<u8>,
    /// What is combined.
    work: Vec<u8>,
    /// Edges to those who were told that they are late.
    answers: Vec<Edge>,
}

/// What calls and handler share.
struct Shared {
    board: Mutex<Board>,
    /// The handler runs: what it says must not come after the port's end.
    is_handling: AtomicBool,
}

impl Shared {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handler of the port. It never waits.
    fn handle(&self, context: &PortContext, message: &Message) {
        self.is_handling.store(true, Ordering::Release);
        self.take_in(context, message);
        self.is_handling.store(false, Ordering::Release);
    }

    fn take_in(&self, context: &PortContext, message: &Message) {
        let (head, data) = match GroupHead::parse(message) {
            Ok(parsed) => parsed,
            Err(cause) => {
                tracing::debug!("{} is no member's: {cause}", message.source());
                return;
            }
        };
        // Not for longer: what follows may find that another thread waits for the lock.
        let verdict = self.board().take_in(message.source(), &head, data);
        match verdict {
            Verdict::Nothing => {}
            Verdict::Reply(from, ending) => {
                let told = context.reply(message, &telling::ended_message(&head, from, &ending));
                if let Err(cause) = told {
                    tracing::debug!("{} is not told: {cause}", message.source());
                }
            }
            Verdict::PassOn(roster, key) => {
                let root = head.call.root as usize;
                // Each must have it, whether another could be given it or not.
                let mut to_all = true;
                if root < roster.size() {
                    for child in shape::children(roster.rank, root, roster.size()) {
                        to_all &= self.pass_on(context, &roster, child, message);
                    }
                }
                self.board().passed_on(key, head.offset, to_all);
            }
        }
    }

    /// Sends without waiting, whatever is in the way; whether it could.
    fn pass_on(&self, context: &PortContext, roster: &Roster, to: usize, message: &[u8]) -> bool {
        let Ok(edge) = roster.edge(to, |address| context.edge(address)) else {
            return false;
        };
        let sent = edge.send_if_room(message);
        let post = || edge.post(Operation::Message, &[IoSlice::new(message)], 0);
        matches!(sent, Ok(true)) || post().is_ok()
    }
}

impl Group {
    /// Takes part in a group as the member `rank`, whose address must be of this node: opens
    /// its port, and waits until all members are there and have the same list.
    ///
    /// # Errors
    /// [`GroupError`]; of members that do not come, [`GroupError::TimedOut`] names one.
    pub fn join(
        node: &Node,
        members: Members,
        rank: usize,
        timeout: Duration,
    ) -> Result<Group, GroupError> {
        let address = check(&members, rank)?;
        if address.node != node.id() {
            let (own, other) = (node.id(), address.node);
            let cause = format!("rank {rank} is on node {other}, this is node {own}");
            return Err(GroupError::Members { cause });
        }
        let roster = Arc::new(Roster::new(members, rank));
        let shared = Arc::new(Shared {
            board: Mutex::new(Board::new(Arc::clone(&roster))),
            is_handling: AtomicBool::new(false),
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

/// The address of the member `rank`, if that can be.
fn check(members: &Members, rank: usize) -> Result<Address, GroupError> {
    let wrong = |cause| Err(GroupError::Members { cause });
    let mut sorted = members.addresses.clone();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return wrong(format!("the list has {} twice", twice[0]));
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
    /// This member's place in the list.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.roster.rank
    }

    /// How many members there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.roster.size()
    }

    /// Who they are.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.roster.members
    }

    /// Members of this generation that are known to be gone, or to have left: in all members the
    /// same only once the next generation has begun.
    #[must_use]
    pub fn gone(&self) -> Vec<Member> {
        let lost = self.shared.board().lost().clone();
        self.named(lost)
    }

    /// Begins another generation, with other members, in another order. All of them call this, or
    /// [`Group::join`] if they are new, with the same list and generation; waits for them.
    ///
    /// # Errors
    /// Those of [`Group::join`].
    pub fn reform(&mut self, members: Members, timeout: Duration) -> Result<(), GroupError> {
        self.renew(members)?;
        self.start(Deadline::after(timeout), true)
    }

    /// Begins the next generation without those known to be gone, and `gone` as well; the others
    /// keep their order. All who are left call this. If they do not know of the same
    /// ones gone, or others go meanwhile, they agree on those whom nobody misses; the
    /// generation's number tells how often that took.
    ///
    /// # Errors
    /// [`GroupError::Excluded`]: the others took this member for gone; others of [`Group::join`].
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

    /// The next generation without those ranks.
    fn without(&self, lost: &[usize]) -> Members {
        let known = self.roster.members.addresses.iter().enumerate();
        let left = known.filter(|(rank, _)| !lost.contains(rank));
        Members {
            generation: self.roster.members.generation + 1,
            addresses: left.map(|(_, address)| *address).collect(),
        }
    }

    /// The generation in which those meet who have this list and those who have another one.
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

    /// Goes over to another list, in which this member has the port that it has.
    fn renew(&mut self, members: Members) -> Result<(), GroupError> {
        let own = self.roster.address(self.rank());
        let rank = members.addresses.iter().position(|it| *it == own);
        let Some(rank) = rank else {
            let cause = format!("its own port {own} is not in the new list");
            return Err(GroupError::Members { cause });
        };
        let (before, after) = (self.roster.members.generation, members.generation);
        if after <= before {
            let cause = format!("generation {after} does not come after {before}");
            return Err(GroupError::Members { cause });
        }
        check(&members, rank)?;
        self.finish_passing_on();
        self.roster = Arc::new(Roster::new(members, rank));
        self.ahead = (0, 0);
        let late = self.shared.board().renew(Arc::clone(&self.roster));
        self.answers.clear();
        for (address, head, from, ending) in late {
            let message = telling::ended_message(&head, from, &ending);
            if let Ok(edge) = self.port.edge(address)
                && edge
                    .post(Operation::Message, &[IoSlice::new(&message)], 0)
                    .is_ok()
            {
                // What is posted goes if its edge stays.
                self.answers.push(edge);
            }
        }
        Ok(())
    }

    /// The barrier that a generation begins with. Its messages carry the list.
    fn start(&mut self, deadline: Deadline, is_patient: bool) -> Result<(), GroupError> {
        let list = members_to_bytes(&self.roster.members.pairs());
        let call = GroupCall {
            operation: GroupOperation::Start,
            root: 0,
            length: list.len() as u64,
        };
        self.call(call, deadline, |group, turn| {
            let turn = turn.patient(is_patient);
            group.disseminate(&turn, &list)?;
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
        self.finish_passing_on();
        self.say_left();
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

//! Nodes that announce themselves at another address than the known one.
//!
//! Such a node has moved, or two nodes have one number by mistake. Agents at both addresses are
//! challenged. An agent that still runs at the known address responds, and nothing changes. If it
//! does not within [`SILENCE`], and the one at the new address does, the node has moved. The
//! failure detector would need several seconds for that.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::Membership;
use super::Queued;
use super::auth::{Body, Received};
use super::contacts::{canonical, digest};
use crate::member::Member;

/// How long the agent at the known address may take to respond.
const SILENCE: Duration = Duration::from_millis(600);
/// How often it is challenged meanwhile, because packets get lost.
const CHALLENGE_EVERY: Duration = Duration::from_millis(200);
/// Most moves that are checked at a time. Further ones are left to the failure detector.
const MAX_MOVES: usize = 256;

#[derive(Debug)]
struct Move {
    /// The node as it announced itself.
    member: Member,
    next_challenge: Duration,
    end: Duration,
    /// The response from the new address: the address, where it came from, and its packet.
    response: Option<(SocketAddr, SocketAddr, Received)>,
}

/// Moves that are being checked, by node.
#[derive(Debug, Default)]
pub(super) struct Moves(BTreeMap<u32, Move>);

impl Moves {
    /// When [`Membership::on_moves`] must be called.
    pub(super) fn next_deadline(&self) -> Duration {
        let all = self.0.values();
        let next = all.map(|moving| moving.next_challenge.min(moving.end));
        next.min().unwrap_or(Duration::MAX)
    }
}

impl Membership {
    /// Checks whether a node has moved to the announced addresses. The challenges that are sent there
    /// use at most `credit` bytes.
    pub(crate) fn check_move(&mut self, now: Duration, member: &Member, mut credit: usize) {
        if self.moves.0.contains_key(&member.node) || self.moves.0.len() >= MAX_MOVES {
            return;
        }
        for at in member.facts.directories().into_iter().map(canonical) {
            let challenge = self.challenge(now, member.node, at);
            if let Some(left) = credit.checked_sub(challenge.len()) {
                credit = left;
                self.queued.push(Queued::Address(at, challenge));
            }
        }
        self.challenge_known(now, member.node);
        self.moves.0.insert(
            member.node,
            Move {
                member: member.clone(),
                next_challenge: now + CHALLENGE_EVERY,
                end: now + SILENCE,
                response: None,
            },
        );
    }

    /// Challenges a node at its known addresses. Without a key it has responded there before.
    fn challenge_known(&mut self, now: Duration, node: u32) {
        let known = self.up.get(&node);
        let directories = known.map_or_else(Vec::new, |known| known.facts.directories());
        for at in directories.into_iter().map(canonical) {
            let via = self.contacts.reply_address(node, at).unwrap_or(at);
            let challenge = self.challenge(now, node, at);
            self.queued.push(Queued::Address(via, challenge));
        }
    }

    /// Handles the response of a node whose move is being checked. Returns true if the sender must
    /// wait for the result of the check.
    pub(super) fn on_response_in_move(
        &mut self,
        (at, via): (SocketAddr, SocketAddr),
        received: &Received,
        described: [u8; 8],
    ) -> bool {
        let Some(moving) = self.moves.0.get_mut(&received.from) else {
            return false;
        };
        let is_at = |member: &Member| {
            let mut directories = member.facts.directories().into_iter().map(canonical);
            directories.any(|directory| directory == at)
        };
        if is_at(&moving.member) && digest(&moving.member) == described {
            moving.response = Some((at, via, received.clone()));
            return true;
        }
        if self.up.get(&received.from).is_some_and(is_at) {
            // The agent still runs there, so another node has announced its number.
            self.moves.0.remove(&received.from);
        }
        false
    }

    /// Ends checks whose time is over, and repeats challenges of the others.
    pub(super) fn on_moves(&mut self, now: Duration) {
        let all = self.moves.0.iter_mut();
        let due = all.filter(|(_, moving)| now >= moving.next_challenge.min(moving.end));
        let due: Vec<u32> = due
            .map(|(node, moving)| {
                moving.next_challenge = now + CHALLENGE_EVERY;
                *node
            })
            .collect();
        for node in due {
            let is_over = |moving: &Move| now >= moving.end;
            if !self.moves.0.get(&node).is_some_and(is_over) {
                self.challenge_known(now, node);
            } else if let Some(moving) = self.moves.0.remove(&node)
                && let Some((at, via, response)) = moving.response
            {
                self.contacts.move_to((at, via), (node, response.run));
                let min_incarnation = match response.body {
                    Body::Response {
                        min_incarnation, ..
                    } => u64::from_le_bytes(min_incarnation),
                    _ => 0,
                };
                let member = Some((moving.member, true));
                self.accept_sender(now, (at, via), (&response, min_incarnation), member);
                // Programs look for the node, so other agents get the news before the next round.
                let done = self.foca.gossip(&mut self.runtime);
                self.process_output(now, done);
            }
        }
    }
}

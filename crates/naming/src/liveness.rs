//! Asks a silent peer's node whether its process lives: one that computes for minutes,
//! or sits in a debugger, is not gone.
//!
//! The registry knows about this node. The directory of another node is asked by UDP, again
//! and again until it answers; no call here blocks. Times are nanoseconds of the caller's clock.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use crate::address::NodeId;
use crate::envelope::Header;
use crate::hosts::Hosts;
use crate::net::any_like;
use crate::registry::{self, Answer, QUESTION_BYTES, Registry};

/// First pause between two attempts; it doubles.
const FIRST_PAUSE_NS: u64 = 20_000_000;
/// How often answers are looked for.
const LOOK_NS: u64 = 5_000_000;
/// Packets taken in one look.
const MOST_ANSWERS: u32 = 64;
/// A question that nobody answered for so long is dropped: the protocol asks again, or
/// has given the peer up.
const GIVE_UP_NS: u64 = 5_000_000_000;

/// What is known about a silent process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It runs.
    Lives,
    /// It has ended.
    Ended,
}

#[derive(Debug)]
struct Question<P> {
    peer: P,
    node: NodeId,
    incarnation: u64,
    nonce: u64,
    /// One on each of the node's interfaces; they are asked in turn.
    directories: Vec<SocketAddr>,
    attempts: usize,
    asked_ns: u64,
    next_ns: u64,
    pause_ns: u64,
}

/// Finds out about silent processes, which the caller names by a `P` of its own.
#[derive(Debug)]
pub struct LivenessProber<P> {
    registry: Registry,
    hosts: Hosts,
    /// Made with the first question for each family of addresses.
    sockets: [Option<UdpSocket>; 2],
    questions: Vec<Question<P>>,
    looked_ns: u64,
}

impl<P: Copy + PartialEq> LivenessProber<P> {
    /// Asks this registry, and the directories of these hosts.
    #[must_use]
    pub fn new(registry: Registry, hosts: Hosts) -> LivenessProber<P> {
        LivenessProber {
            registry,
            hosts,
            sockets: [None, None],
            questions: Vec::new(),
            looked_ns: 0,
        }
    }

    /// True if a question is open.
    #[inline]
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.questions.is_empty()
    }

    /// When [`poll`](Self::poll) has something to do.
    #[must_use]
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.is_busy()
            .then(|| self.looked_ns.saturating_add(LOOK_NS))
    }

    /// A peer has fallen silent: returns what is known at once, else asks its node.
    pub fn suspect(
        &mut self,
        peer: P,
        node: NodeId,
        incarnation: u64,
        now_ns: u64,
    ) -> Option<Verdict> {
        if node == self.registry.node() {
            return match self.registry.lives(incarnation) {
                Ok(true) => Some(Verdict::Lives),
                Ok(false) => Some(Verdict::Ended),
                Err(error) => {
                    tracing::warn!(%error, "nobody can vouch for a silent process");
                    None
                }
            };
        }
        // It may have come after this process began.
        if self.hosts.get(node).is_none()
            && let Some(hosts) = self.hosts.again()
        {
            self.hosts = hosts;
        }
        let host = self.hosts.get(node)?;
        self.questions.retain(|question| question.peer != peer);
        self.questions.push(Question {
            peer,
            node,
            incarnation,
            nonce: rand::random(),
            directories: self
                .hosts
                .directories_as_seen_from(self.registry.node(), host),
            attempts: 0,
            asked_ns: now_ns,
            next_ns: now_ns,
            pause_ns: FIRST_PAUSE_NS,
        });
        // The next poll looks at once.
        self.looked_ns = 0;
        None
    }

    /// Sends questions that are due and takes answers, without blocking; `report` gets each verdict.
    pub fn poll(&mut self, now_ns: u64, mut report: impl FnMut(P, Verdict)) {
        if self.questions.is_empty() || now_ns < self.looked_ns.saturating_add(LOOK_NS) {
            return;
        }
        self.looked_ns = now_ns;
        self.receive(&mut report);
        self.questions
            .retain(|question| now_ns.saturating_sub(question.asked_ns) < GIVE_UP_NS);
        for question in &mut self.questions {
            if now_ns < question.next_ns {
                continue;
            }
            question.next_ns = now_ns.saturating_add(question.pause_ns);
            question.pause_ns *= 2;
            let header = Header {
                from: self.registry.node(),
                to: question.node,
                nonce: question.nonce,
            };
            let body = registry::Question::Liveness(question.incarnation);
            let authenticator = self.registry.authenticator();
            let packet = authenticator.seal_to_length(header, &body, QUESTION_BYTES);
            let directory = question.directories[question.attempts % question.directories.len()];
            question.attempts += 1;
            let socket = &mut self.sockets[usize::from(directory.is_ipv6())];
            let sent =
                bound(socket, directory).and_then(|socket| socket.send_to(&packet, directory));
            if let Err(cause) = sent {
                tracing::debug!(node = %question.node, %cause, "asking about a silent process");
            }
        }
    }

    fn receive(&mut self, report: &mut impl FnMut(P, Verdict)) {
        let authenticator = self.registry.authenticator();
        let mut buffer = [0; QUESTION_BYTES + 1];
        for socket in self.sockets.iter().flatten() {
            for _ in 0..MOST_ANSWERS {
                let (length, from) = match socket.recv_from(&mut buffer) {
                    Ok(received) => received,
                    Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => break,
                    // A report about a question that reached nobody.
                    Err(_) => continue,
                };
                let packet = &buffer[..length];
                let refused = self.questions.iter().position(|question| {
                    question.directories.contains(&from)
                        && authenticator.refused(packet, question.nonce).is_some()
                });
                if let Some(position) = refused {
                    let question = self.questions.swap_remove(position);
                    tracing::warn!(
                        directory = %from,
                        "node {} does not say whether a silent process lives: its cluster key is \
                         not ours",
                        question.node
                    );
                    continue;
                }
                let Ok(opened) = authenticator.open(packet) else {
                    continue;
                };
                // The nonce is random: only a node that saw the question can answer it.
                let position = self.questions.iter().position(|question| {
                    question.nonce == opened.header.nonce && question.directories.contains(&from)
                });
                let (Some(position), Ok(answer)) = (position, opened.read()) else {
                    continue;
                };
                let is_asked = opened.header.from == self.questions[position].node;
                let verdict = match answer {
                    Answer::Alive if is_asked => Some(Verdict::Lives),
                    Answer::Ended if is_asked => Some(Verdict::Ended),
                    Answer::WrongNode if !is_asked => None,
                    _ => continue,
                };
                let question = self.questions.swap_remove(position);
                match verdict {
                    Some(verdict) => report(question.peer, verdict),
                    None => tracing::warn!(
                        directory = %from,
                        "node {} answers where the hosts file has node {}; correct one of them",
                        opened.header.from,
                        question.node
                    ),
                }
            }
        }
    }
}

fn bound(socket: &mut Option<UdpSocket>, directory: SocketAddr) -> io::Result<&UdpSocket> {
    if socket.is_none() {
        let made = UdpSocket::bind((any_like(directory), 0))?;
        made.set_nonblocking(true)?;
        *socket = Some(made);
    }
    socket.as_ref().ok_or(io::ErrorKind::NotConnected.into())
}

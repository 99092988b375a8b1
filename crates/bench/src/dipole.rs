//! `dipole`: endpoints of this project, through the public API of `dipole-node` only.
//!
//! Work: `send` copies a message into frames, the kernel moves them, and the protocol adds headers,
//! a checksum, acknowledgements and retransmissions; `receive` returns the message in place, after
//! one copy out of the kernel's packets. The node has the default configuration, except for the
//! time that a waiting thread spins.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use dipole_node::{
    Address, Config, Endpoint, EndpointId, Message, Node, ReceiveError, SendError, Stats,
};

use crate::channel::{Channel, SendMode, broken, timed_out};
use crate::control::{Job, Outcome};
use crate::peers::Meet;
use crate::pingpong::{GIVE_UP, LOST_AFTER};
use crate::statistics::as_float;
use crate::traffic::MemoryTraffic;
use crate::work::{Carrier, Kind, Role, name_of};

/// Endpoint ids of the two sides, which may be on one node.
const LEAD: u32 = 7;
const FOLLOW: u32 = 8;
/// Offset of the ids of a second pair of endpoints.
const SECOND: u32 = 2;
/// Longer than any wait, so that a spinning thread never sleeps.
pub(super) const SPIN: Duration = Duration::from_secs(3600);
/// Limit of small messages that a receiver reads with one call.
const TOGETHER: usize = 64;

/// Opens this side's node, whose id, hosts file and registry are in the environment, and connects an
/// endpoint to the other side's.
pub fn open(job: &Job, meet: Meet) -> io::Result<Dipole> {
    let node = open_node(job, |_| ())?;
    let endpoint = open_endpoint(&node, job, 0)?;
    meet(Vec::new())?;
    point(node, endpoint, job, 0)
}

/// Like [`open`], with two endpoints of one node.
pub fn open_two(job: &Job, meet: Meet) -> io::Result<(Dipole, Dipole)> {
    let node = open_node(job, |_| ())?;
    let (one, other) = (
        open_endpoint(&node, job, 0)?,
        open_endpoint(&node, job, SECOND)?,
    );
    meet(Vec::new())?;
    let one = point(node.clone(), one, job, 0)?;
    Ok((one, point(node, other, job, SECOND)?))
}

fn open_endpoint(node: &Node, job: &Job, beyond: u32) -> io::Result<Endpoint> {
    let (own, _) = endpoints(job);
    node.endpoint(EndpointId(own + beyond)).map_err(failed)
}

fn point(node: Node, endpoint: Endpoint, job: &Job, beyond: u32) -> io::Result<Dipole> {
    let (_, other) = endpoints(job);
    let target = endpoint.target(Address::new(job.other_node, other + beyond));
    target.map_err(failed)?;
    let patience = match job.work.kind {
        // One thread does both directions and must not block in either.
        Kind::Bidir if !job.work.two_threads_a_side => None,
        _ if job.work.may_lose => Some(LOST_AFTER),
        _ => Some(GIVE_UP),
    };
    Ok(Dipole {
        node,
        endpoint: Arc::new(endpoint),
        patience,
        role: job.role,
        carrier: Some(job.carrier),
        received: VecDeque::new(),
        received_bytes: 0,
        together: match job.work.kind {
            Kind::Rate => TOGETHER,
            _ => 1,
        },
    })
}

/// Returns this side's endpoint and the other's.
pub fn endpoints(job: &Job) -> (u32, u32) {
    let (own, other) = job.role.own_and_other(LEAD, FOLLOW);
    (job.first_endpoint + own, job.first_endpoint + other)
}

/// Opens this side's node with the configuration of the job.
pub fn open_node(job: &Job, change: impl FnOnce(&mut Config)) -> io::Result<Node> {
    let mut config = Config::from_env().map_err(failed)?;
    config.bind = job.own;
    if job.work.block {
        config.spin = Duration::ZERO;
    } else if !job.work.two_threads_a_side {
        config.spin = SPIN;
    }
    config.fault = match &job.fault {
        None => None,
        Some(plan) => Some(plan.parse().map_err(failed)?),
    };
    change(&mut config);
    Node::open(config).map_err(failed)
}

pub struct Dipole {
    node: Node,
    endpoint: Arc<Endpoint>,
    /// Time limit of a call; `None` if it never waits.
    patience: Option<Duration>,
    role: Role,
    /// The link that must have carried the messages, if it is known.
    carrier: Option<Carrier>,
    /// Messages that were received together, the oldest first.
    received: VecDeque<Message>,
    /// Limit of messages that are received together.
    together: usize,
    /// Bytes of received messages.
    received_bytes: u64,
}

impl Dipole {
    /// Creates a channel from a connected endpoint, for calls that wait.
    pub fn waiting(node: Node, endpoint: Endpoint, role: Role) -> Self {
        Self {
            node,
            endpoint: Arc::new(endpoint),
            patience: Some(GIVE_UP),
            role,
            carrier: None,
            received: VecDeque::new(),
            received_bytes: 0,
            together: 1,
        }
    }

    fn receive(&mut self) -> Result<Message, ReceiveError> {
        let timeout = self.patience.unwrap_or_default();
        if self.together == 1 {
            return self.endpoint.receive_timeout(timeout);
        }
        loop {
            if let Some(message) = self.received.pop_front() {
                return Ok(message);
            }
            let (received, together) = (&mut self.received, self.together);
            (self.endpoint).receive_many_timeout(received, together, timeout)?;
        }
    }
}

impl Channel for Dipole {
    fn try_send(&mut self, payload: &[u8], mode: SendMode) -> io::Result<bool> {
        let sent = match (mode, self.patience) {
            (SendMode::Unreliable, _) => self.endpoint.send_unreliable(payload),
            (SendMode::More, _) => self.endpoint.send_more(payload),
            // With a timeout, a message without room in the ring would be copied once more.
            (SendMode::Now, Some(_)) => self.endpoint.send(payload),
            (SendMode::Now, None) => self.endpoint.try_send(payload),
        };
        match sent {
            Ok(()) => Ok(true),
            Err(SendError::Full { .. }) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }

    fn try_flush(&mut self) -> io::Result<bool> {
        self.endpoint.flush().map(|()| true).map_err(failed)
    }

    fn try_receive<R>(
        &mut self,
        length: usize,
        consume: impl FnOnce(&[u8]) -> R,
    ) -> io::Result<Option<R>> {
        let received = match self.receive() {
            Ok(message) => Some(message),
            Err(ReceiveError::TimedOut { .. }) if self.patience.is_none() => None,
            Err(ReceiveError::TimedOut { waited, .. }) => {
                return Err(timed_out("receiving", waited));
            }
            Err(error) => return Err(failed(error)),
        };
        match received {
            Some(message) if message.len() != length => Err(broken(format!(
                "received a message of {} bytes, expected {length}",
                message.len()
            ))),
            Some(message) => {
                self.received_bytes += length as u64;
                Ok(Some(consume(&message)))
            }
            None => Ok(None),
        }
    }

    fn second(&self) -> io::Result<Self> {
        Ok(Self {
            node: self.node.clone(),
            endpoint: Arc::clone(&self.endpoint),
            received: VecDeque::new(),
            received_bytes: 0,
            ..*self
        })
    }

    fn finish(self, outcome: &mut Outcome) -> io::Result<()> {
        let stats = self.node.stats();
        check_carrier(self.carrier, &stats)?;
        outcome.moved = Some(moved(self.received_bytes, &stats));
        drop(self.endpoint);
        self.node.close(GIVE_UP).map_err(failed)?;
        if self.role == Role::Lead {
            outcome.remarks.extend(remarks(&stats));
        }
        Ok(())
    }
}

/// Checks that the messages were carried by the link under whose name the figure is filed.
pub fn check_carrier(carrier: Option<Carrier>, stats: &Stats) -> io::Result<()> {
    let by_shm = stats.local.is_some_and(|local| local.records_out > 0);
    match carrier {
        Some(carrier) if by_shm != (carrier == Carrier::Shm) => Err(broken(format!(
            "the messages were to go by {}, but {} records went through shared memory; is \
             DIPOLE_LINK obeyed?",
            name_of(carrier),
            stats.local.map_or(0, |local| local.records_out)
        ))),
        Some(Carrier::Bpf)
            if stats
                .bpf
                .is_none_or(|bpf| bpf.raw + bpf.joined < bpf.socket) =>
        {
            Err(broken(format!(
                "the small packets were to take the fast path, but most took the socket: {:?}",
                stats.bpf
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the bytes moved, for received messages of this many bytes.
fn moved(received: u64, stats: &Stats) -> MemoryTraffic {
    let local = stats.local.unwrap_or_default();
    MemoryTraffic {
        received,
        ring_out: local.bytes_out,
        ring_in: local.bytes_in,
        fetched: local.pulled_bytes,
        packets_out: stats.traffic.bytes_sent,
        packets_in: stats.traffic.bytes_received,
    }
}

/// Describes the cost of the fault wrapper: retransmissions per loss.
fn remarks(stats: &Stats) -> Vec<String> {
    let Some(faults) = stats.faults.filter(|faults| faults.dropped > 0) else {
        return Vec::new();
    };
    let repeats = stats.protocol.repeats;
    vec![format!(
        "{} packets of {} dropped on purpose, {repeats} repeats: {:.2} per loss",
        faults.dropped,
        stats.traffic.packets_sent + faults.dropped,
        as_float(repeats) / as_float(faults.dropped)
    )]
}

pub fn failed(error: impl Display) -> io::Error {
    io::Error::other(error.to_string())
}

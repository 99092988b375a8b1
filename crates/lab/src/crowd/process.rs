//! One process of a crowd: a node with an inbox, and an endpoint for each process it sends to.

use std::io;
use std::sync::mpsc::{self, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use dipole_node::{Address, Config, Endpoint, EndpointId, Message, Node, ReceiveError, SendError};

use crate::task::{CrowdCount, CrowdJob, CrowdPart};
use dipole_bench::channel::broken;
use dipole_bench::control::{Ready, Verdict};
use dipole_bench::dipole::{Dipole, failed};
use dipole_bench::machine;
use dipole_bench::pingpong;
use dipole_bench::statistics::nanoseconds;
use dipole_bench::stdio::{recv, send};
use dipole_bench::work::{Kind, Role, Workload};

/// All processes are on this node.
const NODE: u32 = 1;
/// The inbox of process `i` is this endpoint plus `i`.
const INBOX: u32 = 100;
/// The endpoint from which `i` sends to `j` is this one plus `64 * i + j`.
const OUTBOX: u32 = 1000;
/// Endpoint plus `i` of a process, to which no process sends.
const BYSTANDER: u32 = 10_000;
const MOST_PROCESSES: usize = 64;
/// Messages sent per turn, to all others together.
const TURN_MESSAGES: usize = 64;
/// Limit of messages received per turn.
const TAKEN_MESSAGES: usize = 256;
/// Time that an idle process waits for a message before it tries to send again.
const NOTHING_TO_DO: Duration = Duration::from_millis(1);
/// Longer than any measurement.
const LONG: Duration = Duration::from_secs(3600);

/// Plays its role until the parent kills this process, and sends its counters meanwhile.
pub(crate) fn take_part(job: &CrowdJob) -> io::Result<()> {
    machine::pin(job.core)?;
    let mut config = Config::from_env().map_err(failed)?;
    if job.block {
        config.spin = Duration::ZERO;
    }
    let node = Node::open(config).map_err(failed)?;
    match job.part {
        CrowdPart::Flow { first } => Flow::open(job, &node, first)?.run(job, &node),
        CrowdPart::Ping => play_pingpong(job, node, Role::Lead),
        CrowdPart::Echo => play_pingpong(job, node, Role::Follow),
        CrowdPart::Wait => {
            let inbox = open(&node, inbox(job.index))?;
            meet_twice(job, &node, || Ok(()))?;
            match inbox.receive_timeout(LONG) {
                Ok(message) => Err(broken(format!(
                    "{} bytes arrived from {} to a process that has no senders",
                    message.len(),
                    message.source()
                ))),
                Err(error) => Err(failed(error)),
            }
        }
    }
}

fn inbox(index: usize) -> u32 {
    INBOX + number(index)
}

fn outbox(from: usize, to: usize) -> u32 {
    OUTBOX + number(MOST_PROCESSES * from + to)
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "there are at most 64 processes"
)]
fn number(index: usize) -> u32 {
    index as u32
}

fn open(node: &Node, id: u32) -> io::Result<Endpoint> {
    node.endpoint(EndpointId(id)).map_err(failed)
}

/// Waits until all endpoints are open, connects ours, and waits until all are connected. Meanwhile
/// the node must reply to processes that still connect.
fn meet_twice(
    job: &CrowdJob,
    node: &Node,
    point: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    // No process sends here, so receiving takes no messages away.
    let bystander = open(node, BYSTANDER + number(job.index))?;
    send(&Ready::default())?;
    recv::<Ready>()?;
    point()?;
    send(&Ready::default())?;
    let (sender, heard) = mpsc::channel();
    thread::spawn(move || {
        // The channel is only closed when the process exits.
        let _nobody_listens = sender.send(recv::<Ready>());
    });
    loop {
        match heard.try_recv() {
            Ok(go) => return go.map(|_| ()),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(broken(
                    "the thread that listens to the parent died".to_owned(),
                ));
            }
        }
        match bystander.receive_timeout(NOTHING_TO_DO) {
            Err(ReceiveError::TimedOut { .. }) => {}
            Ok(message) => {
                return Err(broken(format!(
                    "{} bytes arrived from {} to an endpoint that has no senders",
                    message.len(),
                    message.source()
                )));
            }
            Err(error) => return Err(failed(error)),
        }
    }
}

fn play_pingpong(job: &CrowdJob, node: Node, role: Role) -> io::Result<()> {
    let (_, other) = role.own_and_other(0, 1);
    let endpoint = open(&node, inbox(job.index))?;
    meet_twice(job, &node, || {
        endpoint
            .target(Address::new(NODE, inbox(other)))
            .map_err(failed)
    })?;
    let work = Workload {
        kind: Kind::Pingpong,
        size_bytes: job.size_bytes,
        duration: job.duration,
        unreliable: false,
        block: job.block,
        may_lose: false,
        threads: false,
        two_threads_a_side: false,
    };
    let mut channel = Dipole::waiting(node, endpoint, role);
    let outcome = match role {
        Role::Lead => pingpong::lead(&mut channel, &work)?,
        Role::Follow => pingpong::follow(&mut channel, &work)?,
    };
    send(&Verdict::Done(outcome))
}

/// Sends to all other processes of this role and counts messages from each.
struct Flow {
    inbox: Endpoint,
    outboxes: Vec<(usize, Endpoint)>,
    received: Vec<u64>,
    payload: Vec<u8>,
}

impl Flow {
    fn open(job: &CrowdJob, node: &Node, first: usize) -> io::Result<Self> {
        let others = (first..job.processes).filter(|&other| other != job.index);
        let outboxes = others
            .map(|other| Ok((other, open(node, outbox(job.index, other))?)))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            inbox: open(node, inbox(job.index))?,
            outboxes,
            received: vec![0; job.processes],
            payload: vec![0x5a; job.size_bytes],
        })
    }

    /// Continues after its duration, so that the others are measured under full load.
    fn run(mut self, job: &CrowdJob, node: &Node) -> io::Result<()> {
        meet_twice(job, node, || {
            for (other, outbox) in &self.outboxes {
                let target = Address::new(NODE, inbox(*other));
                outbox.target(target).map_err(failed)?;
            }
            Ok(())
        })?;
        let (start, cpu_before_ns) = (Instant::now(), machine::process_cpu_ns());
        let mut told = false;
        loop {
            let sent = self.send_some()?;
            let taken = self.take_some()?;
            if !sent && !taken {
                match self.inbox.receive_timeout(NOTHING_TO_DO) {
                    Ok(message) => count(&mut self.received, &message)?,
                    Err(ReceiveError::TimedOut { .. }) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            if !told && start.elapsed() >= job.duration {
                told = true;
                send(&CrowdCount {
                    received: self.received.clone(),
                    elapsed_ns: nanoseconds(start.elapsed()),
                    cpu_ns: machine::process_cpu_ns() - cpu_before_ns,
                })?;
            }
        }
    }

    /// Sends a share of the turn to each receiver; false if none had room.
    fn send_some(&mut self) -> io::Result<bool> {
        let each = (TURN_MESSAGES / self.outboxes.len().max(1)).max(1);
        let mut any = false;
        for (_, outbox) in &self.outboxes {
            for _ in 0..each {
                match outbox.try_send(&self.payload) {
                    Ok(()) => any = true,
                    Err(SendError::Full { .. }) => break,
                    Err(error) => return Err(failed(error)),
                }
            }
        }
        Ok(any)
    }

    /// Receives available messages up to a limit; false if there were none.
    fn take_some(&mut self) -> io::Result<bool> {
        for taken in 0..TAKEN_MESSAGES {
            match self.inbox.try_receive().map_err(failed)? {
                Some(message) => count(&mut self.received, &message)?,
                None => return Ok(taken > 0),
            }
        }
        Ok(true)
    }
}

/// Counts a message for the process that sent it.
fn count(received: &mut [u64], message: &Message) -> io::Result<()> {
    let source = message.source();
    let from = source
        .endpoint
        .0
        .checked_sub(OUTBOX)
        .and_then(|rest| received.get_mut(rest as usize / MOST_PROCESSES));
    match from {
        Some(count) => {
            *count += 1;
            Ok(())
        }
        None => Err(broken(format!(
            "a message arrived from {source}, which is not an outbox"
        ))),
    }
}

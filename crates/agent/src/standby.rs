//! The agent's standby answers for the node while the agent is stopped.
//!
//! A stopped process keeps its ports and locks, so no other process of the node can take over as
//! it does from a dead one. The standby is a process that the agent starts, that shares the sockets
//! at which the node is asked, and that ends with the agent. While the agent runs it reads nothing.

use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;
use dipole_bpf::grant::channel::{self, Received};
use dipole_node::NodeId;
use dipole_node::registry::DirectoryLock;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, getppid};

use super::{AgentError, opened};

/// Between two looks at the agent, while it runs and while it is stopped.
const WATCH: Duration = Duration::from_millis(500);
const SERVE: Duration = Duration::from_millis(50);
/// A standby that has ended is not started again before.
const RESTART: Duration = Duration::from_secs(10);
/// Packets taken between two looks at the agent.
const MOST_PACKETS: u32 = 64;
/// Longer ones are no questions.
const PACKET_BYTES: usize = 1 << 16;

/// The agent's side.
pub(super) struct Standby {
    node: NodeId,
    json: bool,
    program: std::path::PathBuf,
    running: Option<(Child, OwnedFd)>,
    next_start: Instant,
}

impl Standby {
    pub(super) fn new(node: NodeId, json: bool) -> io::Result<Standby> {
        Ok(Standby {
            node,
            json,
            // Looked up now: once the program is replaced on disk, the path is another.
            program: std::env::current_exe()?,
            running: None,
            next_start: Instant::now(),
        })
    }

    /// Starts it if it does not run.
    pub(super) fn tend(&mut self, lock: &DirectoryLock) {
        if let Some((child, _)) = &mut self.running
            && matches!(child.try_wait(), Ok(None))
        {
            return;
        }
        let now = Instant::now();
        if now < self.next_start {
            return;
        }
        self.next_start = now + RESTART;
        match self.start(lock) {
            Ok(running) => self.running = Some(running),
            Err(cause) => tracing::warn!(
                node = self.node.0,
                %cause,
                "starting the process that answers while this agent is stopped"
            ),
        }
    }

    fn start(&self, lock: &DirectoryLock) -> io::Result<(Child, OwnedFd)> {
        let (own, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        for socket in lock.sockets() {
            channel::send(own.as_fd(), b"socket", &[socket.as_fd()])?;
        }
        let child = Command::new(&self.program)
            .args(self.json.then_some("--json"))
            .args(["agent-standby", "--nid", &self.node.to_string()])
            .stdin(theirs)
            .stdout(Stdio::null())
            // Neither stopped nor interrupted with the agent from a terminal.
            .process_group(0)
            .spawn()?;
        Ok((child, own))
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            let _gone = child.kill();
            let _gone = child.wait();
        }
    }
}

/// Arguments of the hidden subcommand `agent-standby`; sockets come by its standard input, whose end
/// is that of the agent.
#[derive(Args, Debug)]
pub struct StandbyArgs {
    /// The agent's node.
    #[arg(long)]
    nid: NodeId,
}

/// Answers whenever the agent is stopped, until it has ended.
pub fn standby(args: &StandbyArgs) -> ExitCode {
    match serve(args.nid) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(event = "failed", node = args.nid.0, %error, "standby failed");
            ExitCode::FAILURE
        }
    }
}

fn serve(node: NodeId) -> Result<(), AgentError> {
    let system = |doing| move |cause| AgentError::System { doing, cause };
    // Even of an agent that was killed while this process was stopped.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| system("asking to end with the agent")(error.into()))?;
    let (_, registry) = opened(Some(node))?;
    let link = io::stdin();
    let mut sockets = Vec::new();
    while let Received::Message(_, files) = channel::recv(link.as_fd()) {
        sockets.extend(files.into_iter().map(UdpSocket::from));
    }
    let lock = DirectoryLock::beside(&registry, sockets);
    let lock = lock.map_err(system("taking over the agent's sockets"))?;
    let agent = getppid().ok_or(AgentError::System {
        doing: "finding the agent",
        cause: io::ErrorKind::NotFound.into(),
    })?;
    let mut answered = Answered::default();
    loop {
        // Packets are left to an agent that runs.
        let answers = is_stopped(agent);
        answered.is_now(answers, node, agent);
        let mut watched = vec![PollFd::new(&link, PollFlags::IN)];
        if answers {
            watched.extend(
                lock.sockets()
                    .map(|socket| PollFd::new(socket, PollFlags::IN)),
            );
        }
        let pause = if answers { SERVE } else { WATCH };
        let pause = rustix::time::Timespec::try_from(pause).ok();
        match poll(&mut watched, pause.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(system("waiting")(error.into())),
        }
        if !watched[0].revents().is_empty() {
            return Ok(());
        }
        drop(watched);
        if answers && is_stopped(agent) {
            answered.count += answer(&lock);
        }
    }
}

/// Answers what has come; how many.
fn answer(lock: &DirectoryLock) -> u64 {
    let mut count = 0;
    let mut packet = vec![0; PACKET_BYTES];
    for (interface, socket) in lock.sockets().enumerate() {
        for _ in 0..MOST_PACKETS {
            let Ok((length, from)) = socket.recv_from(&mut packet) else {
                break;
            };
            if let Some(reply) = lock.reply(interface, &packet[..length]) {
                let _is_asked_again = socket.send_to(&reply, from);
                count += 1;
            }
        }
    }
    count
}

/// What was done while the agent was stopped, for the log.
#[derive(Default)]
struct Answered {
    since: Option<Instant>,
    count: u64,
}

impl Answered {
    fn is_now(&mut self, answers: bool, node: NodeId, agent: Pid) {
        let pid = agent.as_raw_nonzero();
        match (answers, self.since) {
            (true, None) => {
                self.since = Some(Instant::now());
                tracing::warn!(
                    event = "stopped",
                    node = node.0,
                    pid,
                    "the agent is stopped: its standby answers for the node; `kill -CONT` lets the \
                     agent go on"
                );
            }
            (false, Some(since)) => {
                let (seconds, count) = (since.elapsed().as_secs(), self.count);
                tracing::info!(
                    event = "continued",
                    node = node.0,
                    pid,
                    seconds,
                    count,
                    "the agent goes on"
                );
                *self = Answered::default();
            }
            _ => {}
        }
    }
}

/// True for a process that was stopped by a signal or a debugger.
fn is_stopped(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    // The name, in parentheses, may hold anything.
    stat.is_ok_and(|text| {
        let state = text.rsplit_once(')').map(|(_, rest)| rest.trim_start());
        state.is_some_and(|state| state.starts_with(['T', 't']))
    })
}

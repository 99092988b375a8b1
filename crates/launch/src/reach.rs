//! `dipole reach`: connects to a node through its agent. It replaces `ssh` and forwards the
//! standard streams of the guard that the agent starts.
//!
//! If no agent listens, the remote shell is used instead. If a call fails, the launcher gets the
//! reason as a refusal, as from a shim.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use clap::Args;
use dipole_naming::threads;
use dipole_node::registry::{ProbeLength, ProbeResult, Prober};
use dipole_node::{ClusterKey, NodeId, variables};

use super::message::{self, BANNER, BY_AGENT, ToLauncher};
use super::read_pieces;
use crate::call::{
    Answer, Channel, Frame, GREETING_BYTES, Greeting, IDLE_LIMIT, MAX_CHUNK_BYTES, Receiver,
    Request, Sender, Standing, send_keepalives, watch_standing,
};

/// How long to wait for a TCP connection to each address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an agent may take to send its greeting and its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// How often an agent that is busy or closes the connection is called, with doubling pauses.
const ATTEMPTS: u32 = 6;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);
/// How long an agent, which sends something every second, may be silent before its node's directory
/// is probed.
const SILENCE: Duration = Duration::from_secs(2);
/// Number and timeout of probes, to all addresses at once, before the machine is considered dead:
/// about 3 s after the last packet, not later than the membership, which takes at least 3 s.
const PROBES: u32 = 3;
const PROBE_TIMEOUT: Duration = Duration::from_millis(300);
/// Exit status of `ssh` when it could not connect.
const SHELL_FAILED: i32 = 255;

/// Arguments of the hidden subcommand `reach`.
#[derive(Args, Debug)]
pub struct ReachArgs {
    /// Addresses of the agent, on each of its interfaces.
    #[arg(value_delimiter = ',', required = true)]
    agent: Vec<SocketAddr>,
    #[arg(long)]
    node: NodeId,
    /// Number of ranks that may be placed there.
    #[arg(long)]
    ranks: u32,
    /// The job's program and its arguments.
    #[arg(long, allow_hyphen_values = true)]
    job: String,
    /// Command to run instead if no agent listens; none if empty.
    #[arg(last = true)]
    shell: Vec<OsString>,
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("no agent answers at {}: {cause}", list(.at))]
    NoAgent {
        at: Vec<SocketAddr>,
        cause: io::Error,
    },
    /// No agent answers, and no other way to reach the node is allowed.
    #[error(
        "{0}; the node is not in a hosts file, so the cluster key is not sent to it with a remote \
         shell: start `dipole agent` there with this key, or name the node in a hosts file"
    )]
    NoOtherWay(Box<CallError>),
    #[error("{0}")]
    Key(String),
    #[error("{agent}: {why}")]
    Greeting { agent: SocketAddr, why: String },
    /// The agent's proof was made with another key, or it reports that ours was.
    #[error(
        "the agent at {agent} does not hold the cluster key {own}: compare `dipole key \
         show` on both machines, and set {} there to a copy of the same",
        variables::KEY
    )]
    KeyMismatch { agent: SocketAddr, own: String },
    /// The agent closed the connection after our proof, in every attempt.
    #[error(
        "the agent at {agent} closed the connection after the proof of cluster key {own}: it \
         ended, or something between the two machines closes connections (see its log)"
    )]
    Closed { agent: SocketAddr, own: String },
    /// The agent was busy in every attempt.
    #[error(
        "the agent at {agent} is busy: it has too many callers or jobs; try again \
         later, and see its log for who they are"
    )]
    Busy { agent: SocketAddr },
    #[error("the agent at {agent} does not answer; is it stopped, or its machine overloaded?")]
    Silent { agent: SocketAddr },
    #[error("refuses work: {reason}")]
    Refused { reason: String },
    #[error("the connection to the agent at {agent}: {cause}")]
    System { agent: SocketAddr, cause: io::Error },
}

fn list(addresses: &[SocketAddr]) -> String {
    let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    addresses.join(", ")
}

/// Reaches the node, through its agent or else with the shell.
pub fn reach(args: &ReachArgs) -> ExitCode {
    // A busy agent refuses callers; another attempt may succeed.
    let (mut tried, mut attempt) = (1, call(args));
    while tried < ATTEMPTS
        && matches!(
            attempt,
            Err(CallError::Closed { .. } | CallError::Busy { .. })
        )
    {
        std::thread::sleep(ATTEMPT_PAUSE * (1 << (tried - 1)));
        (tried, attempt) = (tried + 1, call(args));
    }
    let call = match attempt {
        Ok(call) => call,
        Err(error @ CallError::NoAgent { .. }) if !args.shell.is_empty() => {
            tracing::info!("{error}; trying {}", args.shell[0].display());
            return run_shell(args, &error);
        }
        Err(error) => {
            let error = match error {
                CallError::NoAgent { .. } => CallError::NoOtherWay(Box::new(error)),
                error => error,
            };
            let refused = ToLauncher::Refused {
                reason: error.to_string(),
                status: 1,
            };
            let mut out = io::stdout().lock();
            let _hung_up = out
                .write_all(BANNER)
                .and_then(|()| message::write(&refused, &mut out));
            return ExitCode::FAILURE;
        }
    };
    let (receiver, sender, standing) = call;
    let mut out = io::stdout();
    let _hung_up = out.write_all(BY_AGENT).and_then(|()| out.flush());
    let last_received = Arc::new(Mutex::new(Instant::now()));
    let status = start_watches(args, sender, &standing, &last_received)
        .and_then(|()| forward_output(receiver, &last_received, &standing));
    match status {
        Ok(status) => ExitCode::from(status),
        Err(cause) => {
            eprintln!("dipole reach: the agent's connection ended: {cause}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the threads that send to the agent and that end the call if it cannot go on.
fn start_watches(
    args: &ReachArgs,
    sender: Sender<TcpStream>,
    standing: &Arc<Standing>,
    last_received: &Arc<Mutex<Instant>>,
) -> io::Result<()> {
    let key = load_key().map_err(io::Error::other)?;
    let (agent, node, last) = (args.agent.clone(), args.node, Arc::clone(last_received));
    let stream = sender.stream().try_clone()?;
    threads::start("dipole-watch", move || {
        watch_machine(&agent, node, &key, &last, &stream);
    })?;
    let stream = sender.stream().try_clone()?;
    watch_standing(Arc::clone(standing), move || {
        eprintln!(
            "dipole reach: the agent has only a cluster key that was withdrawn: ending the call"
        );
        let _gone = stream.shutdown(Shutdown::Both);
    })?;
    let sender = Arc::new(Mutex::new(sender));
    send_keepalives(Arc::clone(&sender), Arc::clone(standing))?;
    threads::start("dipole-input", move || forward_input(&sender))?;
    Ok(())
}

fn run_shell(args: &ReachArgs, error: &CallError) -> ExitCode {
    let shell = args.shell[0].display();
    let hint = format!(
        "{error}; start `dipole agent` there with this cluster key, or make `{shell}` work"
    );
    let status = match Command::new(&args.shell[0]).args(&args.shell[1..]).status() {
        Ok(status) => status.code(),
        Err(cause) => {
            eprintln!("cannot start `{shell}`: {cause}; {hint}");
            return ExitCode::FAILURE;
        }
    };
    if status == Some(SHELL_FAILED) {
        eprintln!("{hint}");
    }
    let status = status.and_then(|code| u8::try_from(code).ok());
    status.map_or(ExitCode::FAILURE, ExitCode::from)
}

type Call = (Receiver<TcpStream>, Sender<TcpStream>, Arc<Standing>);

fn call(args: &ReachArgs) -> Result<Call, CallError> {
    let key = load_key()?;
    let (agent, mut stream) = connect(&args.agent)?;
    let system = |cause: io::Error| match cause.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => CallError::Silent { agent },
        _ => CallError::System { agent, cause },
    };
    stream.set_nodelay(true).map_err(system)?;
    stream
        .set_read_timeout(Some(ANSWER_TIMEOUT))
        .map_err(system)?;
    let mut greeting = [0; GREETING_BYTES];
    stream.read_exact(&mut greeting).map_err(|cause| {
        if cause.kind() == io::ErrorKind::UnexpectedEof {
            let why = "the connection was closed without a greeting; is it an agent?".to_owned();
            return CallError::Greeting { agent, why };
        }
        system(cause)
    })?;
    let greeting = Greeting::from_bytes(greeting);
    if greeting.is_busy() {
        return Err(CallError::Busy { agent });
    }
    greeting
        .check()
        .map_err(|why| CallError::Greeting { agent, why })?;
    let channel = Channel::call(&mut stream, &key, &greeting).map_err(|cause| {
        use io::ErrorKind::{
            BrokenPipe, ConnectionReset, InvalidData, PermissionDenied, ResourceBusy, UnexpectedEof,
        };
        let own = key.fingerprint();
        match cause.kind() {
            InvalidData | PermissionDenied => CallError::KeyMismatch { agent, own },
            ResourceBusy => CallError::Busy { agent },
            BrokenPipe | UnexpectedEof | ConnectionReset => CallError::Closed { agent, own },
            _ => system(cause),
        }
    })?;
    let standing = Arc::new(Standing::of(&channel, &key));
    let from = stream.try_clone().map_err(system)?;
    let (mut receiver, mut sender) = channel.split(from, stream);
    let request = Request {
        who: who(),
        command: args.job.clone(),
        ranks: args.ranks,
    };
    let request = serde_json::to_vec(&request).map_err(|cause| system(cause.into()))?;
    sender.send(&Frame::Request(request)).map_err(system)?;
    let answer = match receiver.receive().map_err(system)? {
        Some(Frame::Answer(answer)) => serde_json::from_slice(&answer).map_err(io::Error::from),
        _ => Err(io::Error::other(
            "the call ended without an answer; see the agent's log",
        )),
    };
    match answer.map_err(system)? {
        Answer::Accepted { .. } => {}
        Answer::Refused { reason } => return Err(CallError::Refused { reason }),
    }
    let limit = sender.stream().set_read_timeout(Some(IDLE_LIMIT));
    limit.map_err(system)?;
    Ok((receiver, sender, standing))
}

fn load_key() -> Result<ClusterKey, CallError> {
    let file = std::env::var_os(variables::KEY)
        .ok_or_else(|| CallError::Key(format!("{} is not set", variables::KEY)))?;
    ClusterKey::load(file.as_ref()).map_err(|error| CallError::Key(error.to_string()))
}

/// Closes the connection when the machine is dead: its agent has been silent, and its directory,
/// which some process of the node serves, does not respond either.
fn watch_machine(
    agent: &[SocketAddr],
    node: NodeId,
    key: &ClusterKey,
    last_received: &Mutex<Instant>,
    stream: &TcpStream,
) {
    loop {
        let last = *last_received.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = last.elapsed();
        if silence < SILENCE {
            std::thread::sleep(SILENCE - silence);
            continue;
        }
        let responds = |at: &SocketAddr| {
            let Ok(prober) = Prober::open(None, *at, node, Some(key)) else {
                return false;
            };
            (0..PROBES).any(|_| {
                let reply = prober.probe(ProbeLength::SHORTEST, PROBE_TIMEOUT);
                !matches!(reply, ProbeResult::Silent | ProbeResult::Failed(_))
            })
        };
        let is_alive = std::thread::scope(|scope| {
            let responds = &responds;
            let start = |at| Builder::new().spawn_scoped(scope, move || responds(at));
            let probes: Vec<_> = agent.iter().map(|at| (at, start(at))).collect();
            let mut results = probes.into_iter().map(|(at, probe)| match probe {
                Ok(probe) => probe.join().unwrap_or(true),
                Err(_) => responds(at),
            });
            results.any(|responds| responds)
        });
        if !is_alive {
            eprintln!(
                "dipole reach: its machine does not respond: no packet from its agent and its directory for {} s",
                last.elapsed().as_secs()
            );
            let _gone = stream.shutdown(Shutdown::Both);
            return;
        }
        std::thread::sleep(SILENCE / 2);
    }
}

fn connect(agent: &[SocketAddr]) -> Result<(SocketAddr, TcpStream), CallError> {
    let mut last = io::Error::other("no address");
    for address in agent {
        match TcpStream::connect_timeout(address, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok((*address, stream)),
            Err(cause) => last = cause,
        }
    }
    Err(CallError::NoAgent {
        at: agent.to_vec(),
        cause: last,
    })
}

/// User and machine of this caller, for the agent's log.
fn who() -> String {
    let user = std::env::var("USER")
        .unwrap_or_else(|_| format!("uid {}", rustix::process::getuid().as_raw()));
    let machine = rustix::system::uname();
    format!("{user}@{}", machine.nodename().to_string_lossy())
}

fn forward_input(sender: &Mutex<Sender<TcpStream>>) {
    let send = |frame| {
        let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.send(&frame)
    };
    // The thread that reads from the connection reports its loss.
    let _lost = read_pieces(io::stdin().lock(), MAX_CHUNK_BYTES, |piece| {
        send(Frame::Data(piece.to_vec()))
    })
    .and_then(|()| send(Frame::InputEnd));
}

fn forward_output(
    mut receiver: Receiver<TcpStream>,
    last_received: &Mutex<Instant>,
    standing: &Standing,
) -> io::Result<u8> {
    loop {
        let frame = receiver.receive().map_err(describe_timeout)?;
        *last_received.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        match frame {
            Some(Frame::Data(bytes)) => {
                let mut out = io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Some(Frame::Errors(bytes)) => io::stderr().write_all(&bytes)?,
            Some(Frame::Alive) => {}
            Some(Frame::Proof(proof)) => standing.on_proof(proof),
            Some(Frame::Last(status)) => return Ok(status),
            Some(_) => return Err(io::Error::other("an unexpected frame")),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Adds a message to a timeout.
fn describe_timeout(cause: io::Error) -> io::Error {
    match cause.kind() {
        io::ErrorKind::WouldBlock => io::Error::other(format!(
            "nothing was received for {} s",
            IDLE_LIMIT.as_secs()
        )),
        _ => cause,
    }
}

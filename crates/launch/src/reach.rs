//! `dipole reach`: reaches a node through its agent. It takes the place of `ssh` and carries the
//! standard streams of the guard that the agent starts.
//!
//! Where no agent listens, the remote shell is tried instead. If a call fails, the launcher is told
//! why in the form in which a shim would refuse.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use dipole_node::registry::{ProbeLength, Prober, Reply};
use dipole_node::{ClusterKey, NodeId, variables};

use super::message::{self, BANNER, BY_AGENT, Up};
use super::read_pieces;
use crate::call::{
    Answer, Channel, Frame, GREETING_BYTES, Greeting, IDLE_LIMIT, MAX_CHUNK_BYTES, Receiver,
    Request, Sender, Standing, send_keepalives, watch_standing,
};

/// How long an address may take to accept a call.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an agent may take to greet and to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(8);
/// How often an agent that is busy or hangs up is called, with pauses that double.
const ATTEMPTS: u32 = 6;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);
/// How long an agent may be silent, which says something every second, before its node's directory
/// is asked.
const SILENCE: Duration = Duration::from_secs(2);
/// How often and how long all its addresses are asked, at once, before the machine is taken for gone:
/// some 3 s after the last word, not later than the nodes' membership, which takes 3 s at least.
const QUESTIONS: u32 = 3;
const QUESTION_TIMEOUT: Duration = Duration::from_millis(300);
/// What `ssh` returns when it could not connect.
const SHELL_FAILED: i32 = 255;

/// Arguments of the hidden subcommand `reach`.
#[derive(Args, Debug)]
pub struct ReachArgs {
    /// Addresses of the agent, on each of its interfaces.
    #[arg(value_delimiter = ',', required = true)]
    agent: Vec<SocketAddr>,
    /// The node that the agent answers for.
    #[arg(long)]
    node: NodeId,
    /// How many ranks may be placed there.
    #[arg(long)]
    ranks: u32,
    /// The job's program and its arguments.
    #[arg(long, allow_hyphen_values = true)]
    job: String,
    /// What to run instead if nothing listens there; if empty, nothing is.
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
    /// Besides, there is no other way.
    #[error(
        "{0}; other nodes know this one, but nobody has written it down, so the cluster key is \
         not given to it by a remote shell: start `dipole agent` there with this key, or name \
         the node in a hosts file"
    )]
    NoOtherWay(Box<CallError>),
    #[error("{0}")]
    Key(String),
    #[error("{agent}: {why}")]
    Greeting { agent: SocketAddr, why: String },
    /// The agent sent another proof than ours, or says that ours is of another key.
    #[error(
        "the agent at {agent} does not hold the cluster key {own}: compare `dipole key \
         show` on both machines, and set {} there to a copy of the same",
        variables::KEY
    )]
    KeyMismatch { agent: SocketAddr, own: String },
    /// The agent hung up after our proof without a word, in every attempt.
    #[error(
        "the agent at {agent} hung up on the proof of cluster key {own}: it ended, or something \
         between the two machines cuts connections off (see its log)"
    )]
    HungUp { agent: SocketAddr, own: String },
    /// In every attempt others had taken all places.
    #[error(
        "the agent at {agent} is busy: too many callers or jobs compete for it; try again \
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

/// Reaches the node, by its agent or else by the shell.
pub fn reach(args: &ReachArgs) -> ExitCode {
    // An agent under load sends callers away: another attempt may succeed.
    let (mut tried, mut attempt) = (1, call(args));
    while tried < ATTEMPTS
        && matches!(
            attempt,
            Err(CallError::HungUp { .. } | CallError::Busy { .. })
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
            let refused = Up::Refused {
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
    let heard = Arc::new(Mutex::new(Instant::now()));
    if let (Ok(stream), Ok(key)) = (sender.stream().try_clone(), load_key()) {
        let (agent, node, heard) = (args.agent.clone(), args.node, Arc::clone(&heard));
        std::thread::spawn(move || watch_machine(&agent, node, &key, &heard, &stream));
    }
    if let Ok(stream) = sender.stream().try_clone() {
        watch_standing(Arc::clone(&standing), move || {
            eprintln!(
                "dipole reach: the agent has nothing but a cluster key that was withdrawn: the \
                 call ends"
            );
            let _gone = stream.shutdown(Shutdown::Both);
        });
    }
    let sender = Arc::new(Mutex::new(sender));
    send_keepalives(Arc::clone(&sender), Arc::clone(&standing));
    std::thread::spawn(move || carry_input(&sender));
    match carry_output(receiver, &heard, &standing) {
        Ok(status) => ExitCode::from(status),
        Err(cause) => {
            eprintln!("dipole reach: the agent's connection ended: {cause}");
            ExitCode::FAILURE
        }
    }
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
            let why = "something hung up without a greeting; is it an agent?".to_owned();
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
            BrokenPipe | UnexpectedEof | ConnectionReset => CallError::HungUp { agent, own },
            _ => system(cause),
        }
    })?;
    let standing = Arc::new(channel.standing(&key));
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
            "it ended without an answer; see the agent's log",
        )),
    };
    match answer.map_err(system)? {
        Answer::Accepted { .. } => {}
        Answer::Refused { reason } => return Err(CallError::Refused { reason }),
    }
    let patience = sender.stream().set_read_timeout(Some(IDLE_LIMIT));
    patience.map_err(system)?;
    Ok((receiver, sender, standing))
}

fn load_key() -> Result<ClusterKey, CallError> {
    let file = std::env::var_os(variables::KEY)
        .ok_or_else(|| CallError::Key(format!("{} is not set", variables::KEY)))?;
    ClusterKey::load(file.as_ref()).map_err(|error| CallError::Key(error.to_string()))
}

/// Ends the connection when the machine is gone: its agent has been silent, and its directory, which
/// answers whatever programs do there, says nothing either.
fn watch_machine(
    agent: &[SocketAddr],
    node: NodeId,
    key: &ClusterKey,
    heard: &Mutex<Instant>,
    stream: &TcpStream,
) {
    loop {
        let last = *heard.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = last.elapsed();
        if silence < SILENCE {
            std::thread::sleep(SILENCE - silence);
            continue;
        }
        let answers = |at: &SocketAddr| {
            let Ok(prober) = Prober::open(None, *at, node, Some(key)) else {
                return false;
            };
            (0..QUESTIONS).any(|_| {
                let reply = prober.probe(ProbeLength::SHORTEST, QUESTION_TIMEOUT);
                !matches!(reply, Reply::Silent | Reply::Failed(_))
            })
        };
        let answered = std::thread::scope(|scope| {
            let asked: Vec<_> = agent.iter().map(|at| scope.spawn(|| answers(at))).collect();
            let mut answers = asked.into_iter().map(|asked| asked.join().unwrap_or(true));
            answers.any(|answers| answers)
        });
        if !answered {
            eprintln!(
                "dipole reach: its machine does not answer: silent for {} s, and so is its directory",
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

/// The name that the other side's log shows for this caller.
fn who() -> String {
    let user = std::env::var("USER")
        .unwrap_or_else(|_| format!("uid {}", rustix::process::getuid().as_raw()));
    let machine = rustix::system::uname();
    format!("{user}@{}", machine.nodename().to_string_lossy())
}

fn carry_input(sender: &Mutex<Sender<TcpStream>>) {
    let send = |frame| {
        let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.send(&frame)
    };
    // A lost connection is noticed by the thread that reads from it.
    let _lost = read_pieces(io::stdin().lock(), MAX_CHUNK_BYTES, |piece| {
        send(Frame::Data(piece.to_vec()))
    })
    .and_then(|()| send(Frame::InputEnd));
}

fn carry_output(
    mut receiver: Receiver<TcpStream>,
    heard: &Mutex<Instant>,
    standing: &Standing,
) -> io::Result<u8> {
    loop {
        let frame = receiver.receive().map_err(name_timeout)?;
        *heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        match frame {
            Some(Frame::Data(bytes)) => {
                let mut out = io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Some(Frame::Errors(bytes)) => io::stderr().write_all(&bytes)?,
            Some(Frame::Alive) => {}
            Some(Frame::Proof(proof)) => standing.heard(proof),
            Some(Frame::Last(status)) => return Ok(status),
            Some(_) => return Err(io::Error::other("an unexpected frame")),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Gives a time-out a message of its own.
fn name_timeout(cause: io::Error) -> io::Error {
    match cause.kind() {
        io::ErrorKind::WouldBlock => io::Error::other(format!(
            "nothing was received for {} s",
            IDLE_LIMIT.as_secs()
        )),
        _ => cause,
    }
}

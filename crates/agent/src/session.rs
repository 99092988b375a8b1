//! The session of one authenticated caller. It is a process of its own, so that the job outlives
//! the agent and a slow caller does not delay others.
//!
//! It checks the owner's rules, starts a `dipole guard` and forwards its standard streams. When the
//! caller disconnects, or this process dies, the guard ends all processes of the job.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use clap::Args;
use dipole_naming::threads;
use dipole_node::registry::Registry;
use dipole_node::{Config, NodeId, variables};

use super::jobs::{Entry, JobStatus, Jobs};
use super::rules::{self, HostState, Rules};
use super::{AgentError, open_node};
use dipole_launch::call::{
    Answer, Channel, Frame, GREETING_BYTES, Greeting, IDLE_LIMIT, MAX_CHUNK_BYTES, PROOF_BYTES,
    Receiver, Request, Sender, Standing, send_keepalives, watch_standing,
};
use dipole_launch::read_pieces;

/// How long a caller may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for the last message to a caller.
const LAST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(1);
const WITHDRAWN: &[u8] = b"the agent ends this job: its caller has only a cluster key that \
    was withdrawn; copy the key file to every node before `dipole key rotate` goes on\n";
/// Longest text of a caller that is logged, in characters.
const MAX_TEXT_CHARS: usize = 500;
/// Environment variables of a login, in addition to those that the shell's files set.
const LOGIN_VARIABLES: [&str; 10] = [
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "PATH",
    "LANG",
    "TZ",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
];

/// Arguments of the hidden subcommand `agent-session`; the connection is its standard input.
#[derive(Args, Debug)]
pub struct SessionArgs {
    /// Address of the caller.
    #[arg(long)]
    peer: SocketAddr,
    /// The greeting that the agent sent, in hexadecimal.
    #[arg(long, value_parser = digits::<GREETING_BYTES>)]
    greeting: [u8; GREETING_BYTES],
    /// The caller's proof, in hexadecimal.
    #[arg(long, value_parser = digits::<PROOF_BYTES>)]
    proof: [u8; PROOF_BYTES],
    #[arg(long)]
    nid: NodeId,
    /// The owner's rules, if the agent got `--rules`.
    #[arg(long)]
    rules: Option<PathBuf>,
}

fn digits<const N: usize>(text: &str) -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    if text.len() != N * 2 || !text.is_ascii() {
        return Err(format!("not {N} bytes"));
    }
    for (index, byte) in bytes.iter_mut().enumerate() {
        let pair = &text[index * 2..index * 2 + 2];
        *byte = u8::from_str_radix(pair, 16).map_err(|error| error.to_string())?;
    }
    Ok(bytes)
}

/// Encodes bytes for the command line of a session.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Serves the caller until it disconnects.
pub fn session(args: &SessionArgs) -> ExitCode {
    // Signals from the agent's terminal must not reach the ranks.
    let _leads_one_already = rustix::process::setsid();
    let peer = args.peer;
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(AgentError::Caller(cause)) => {
            tracing::warn!(event = "caller-lost", %peer, %cause, "a caller disconnected");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!(event = "failed", %peer, %error, "session failed");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &SessionArgs) -> Result<(), AgentError> {
    let system = |doing| move |cause| AgentError::System { doing, cause };
    let (config, registry) = open_node(Some(args.nid))?;
    let key = config.key.clone().ok_or(AgentError::NoKey)?;
    let descriptor = io::stdin().as_fd().try_clone_to_owned();
    let mut stream = TcpStream::from(descriptor.map_err(system("taking over the connection"))?);
    let set_up = || {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))
    };
    set_up().map_err(AgentError::Caller)?;
    let greeting = Greeting::from_bytes(args.greeting);
    let channel = Channel::answer(&mut stream, &key, &greeting, &args.proof);
    let channel = channel.map_err(AgentError::Caller)?;
    let standing = Arc::new(Standing::of(&channel, &key));
    let from = stream.try_clone().map_err(system("serving a caller"))?;
    let (mut receiver, mut sender) = channel.split(from, stream);
    let request: Request = match receiver.receive().map_err(AgentError::Caller)? {
        Some(Frame::Request(bytes)) => {
            let request = serde_json::from_slice(&bytes);
            sanitized(request.map_err(|cause| AgentError::Caller(cause.into()))?)
        }
        _ => {
            return Err(AgentError::Caller(io::Error::other(
                "the caller sent no request",
            )));
        }
    };
    let (node, peer) = (config.node.0, args.peer);
    let (who, command) = (&request.who, &request.command);
    let (max_ranks, entry) = match admit(args, &registry, &request) {
        Ok(admitted) => admitted,
        Err(reason) => {
            tracing::info!(
                event = "work-refused", node, %peer, who, command, reason, "work refused"
            );
            send_answer(&mut sender, &Answer::Refused { reason })?;
            return Ok(());
        }
    };
    let started = guard(&config, max_ranks).spawn();
    let mut guard = match started {
        Ok(guard) => guard,
        Err(cause) => {
            let reason = format!("this machine cannot start work: {cause}");
            send_answer(&mut sender, &Answer::Refused { reason })?;
            return Err(system("starting a guard")(cause));
        }
    };
    let pid = guard.id();
    tracing::info!(
        event = "work-started", node, %peer, who, command, ranks = request.ranks, pid,
        "work started"
    );
    let expelled = move || {
        tracing::warn!(
            event = "caller-withdrawn", node, %peer, pid,
            "a caller has only a cluster key that was withdrawn; its job is ended"
        );
    };
    let forwarded = send_answer(&mut sender, &Answer::Accepted { max_ranks })
        .and_then(|()| forward(&mut guard, receiver, sender, standing, expelled));
    // Closing its input ends the guard even if the caller has gone.
    drop(guard.stdin.take());
    let status = guard.wait().map_err(system("waiting for a guard"))?;
    drop(entry);
    let status = status_of(status);
    tracing::info!(
        event = "work-ended", node, %peer, who, command, pid, status, "work ended"
    );
    forwarded
}

/// Replaces control characters in the texts of a request, for logs and terminals.
fn sanitized(request: Request) -> Request {
    let plain = |text: &str| -> String {
        let shown = text.chars().take(MAX_TEXT_CHARS);
        shown
            .map(|c| if c.is_control() { '?' } else { c })
            .collect()
    };
    Request {
        who: plain(&request.who),
        command: plain(&request.command),
        ranks: request.ranks,
    }
}

fn send_answer(sender: &mut Sender<TcpStream>, answer: &Answer) -> Result<(), AgentError> {
    serde_json::to_vec(answer)
        .map_err(io::Error::from)
        .and_then(|bytes| sender.send(&Frame::Answer(bytes)))
        .map_err(AgentError::Caller)
}

/// Checks the owner's rules. The error is sent to the caller.
fn admit(
    args: &SessionArgs,
    registry: &Registry,
    request: &Request,
) -> Result<(Option<u32>, Entry), String> {
    let file = rules::locate(args.rules.as_deref());
    let rules = Rules::load(file.as_deref()).map_err(|error| error.to_string())?;
    let unknown = |cause: io::Error| format!("cannot examine this machine: {cause}");
    let state = HostState::gather(&rules).map_err(unknown)?;
    let jobs = Jobs::of(registry).map_err(unknown)?;
    let living = jobs.living().map_err(unknown)?;
    let running = living.iter().map(|job| job.ranks).sum();
    let granted = rules.evaluate(&state, running, request.ranks)?;
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let entry = jobs.add(&JobStatus {
        pid: std::process::id(),
        who: request.who.clone(),
        peer: args.peer.to_string(),
        command: request.command.clone(),
        ranks: granted.unwrap_or(request.ranks),
        since: since.map_or(0, |since| since.as_secs()),
    });
    Ok((granted, entry.map_err(unknown)?))
}

/// The command of a guard with the environment of a login. From the agent's own environment it gets
/// only the location of this node's registry and of the cluster key.
fn guard(config: &Config, max_ranks: Option<u32>) -> Command {
    let own = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
    let mut command = Command::new(own);
    command
        .arg("guard")
        .args(["--parent", &std::process::id().to_string()]);
    if let Some(max) = max_ranks {
        command.args(["--max-ranks", &max.to_string()]);
    }
    command.env_clear();
    for (name, value) in std::env::vars_os() {
        let wanted = name
            .to_str()
            .is_some_and(|name| LOGIN_VARIABLES.contains(&name) || name.starts_with("LC_"));
        if wanted {
            command.env(name, value);
        }
    }
    command.env(variables::RUNTIME_DIR, &config.runtime_dir);
    // The guard has another working directory.
    let key = std::env::var_os(variables::KEY).map(std::path::absolute);
    if let Some(Ok(key)) = key {
        command.env(variables::KEY, key);
    }
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let home = home.filter(|home| home.is_dir());
    command
        .current_dir(home.unwrap_or_else(|| "/".into()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Forwards streams until the guard's outputs end or the caller disconnects.
fn forward(
    guard: &mut Child,
    receiver: Receiver<TcpStream>,
    sender: Sender<TcpStream>,
    standing: Arc<Standing>,
    expelled: impl FnOnce() + Send + 'static,
) -> Result<(), AgentError> {
    let sender = Arc::new(Mutex::new(sender));
    let lock = || sender.lock().unwrap_or_else(PoisonError::into_inner);
    let errors = start_threads(guard, receiver, &sender, standing, expelled);
    let errors = errors.map_err(|cause| {
        let text = format!("the agent cannot forward the streams of the job: {cause}\n");
        let mut sender = lock();
        let _gone = (sender.send(&Frame::Errors(text.into_bytes())))
            .and_then(|()| sender.send(&Frame::Last(1)));
        AgentError::System {
            doing: "forwarding the streams of a job",
            cause,
        }
    })?;
    let forward_output = || {
        let stdout = guard.stdout.take();
        let done = stdout.map_or(Ok(()), |out| forward_stream(out, &sender, Frame::Data));
        let errors = errors.map_or(Ok(()), |errors| errors.join().unwrap_or(Ok(())));
        done.and(errors)?;
        let status = status_of(guard.wait()?);
        let mut sender = lock();
        sender.send(&Frame::Last(status))?;
        // Shutting down only the sending side, so that the kernel does not discard unread data.
        sender.stream().shutdown(Shutdown::Write)
    };
    forward_output().map_err(AgentError::Caller)
}

/// Starts the threads that keep the call alive and forward the input and the messages of the guard.
/// Returns the last one, unless the guard's messages are not piped.
fn start_threads(
    guard: &mut Child,
    mut receiver: Receiver<TcpStream>,
    sender: &Arc<Mutex<Sender<TcpStream>>>,
    standing: Arc<Standing>,
    expelled: impl FnOnce() + Send + 'static,
) -> io::Result<Option<JoinHandle<io::Result<()>>>> {
    let stream = {
        let sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.stream().set_read_timeout(Some(IDLE_LIMIT))?;
        sender.stream().try_clone()?
    };
    send_keepalives(Arc::clone(sender), Arc::clone(&standing))?;
    watch_standing(Arc::clone(&standing), {
        let sender = Arc::clone(sender);
        move || {
            expelled();
            // Tries to send the last message, but does not wait for a blocked sender.
            let _as_before = stream.set_write_timeout(Some(LAST_MESSAGE_TIMEOUT));
            if let Ok(mut sender) = sender.try_lock() {
                let _gone = sender.send(&Frame::Errors(WITHDRAWN.to_vec()));
            }
            let _gone = stream.shutdown(Shutdown::Both);
        }
    })?;
    let stdin = guard.stdin.take();
    threads::start("dipole-input", move || {
        let Some(mut stdin) = stdin else { return };
        loop {
            match receiver.receive() {
                Ok(Some(Frame::Alive)) => {}
                Ok(Some(Frame::Proof(proof))) => standing.on_proof(proof),
                Ok(Some(Frame::Data(bytes))) if stdin.write_all(&bytes).is_ok() => {}
                _ => return,
            }
        }
        // Closing the guard's input ends the job.
    })?;
    let errors = guard.stderr.take().map(|stderr| {
        let sender = Arc::clone(sender);
        threads::start("dipole-errors", move || {
            forward_stream(stderr, &sender, Frame::Errors)
        })
    });
    errors.transpose()
}

fn forward_stream(
    from: impl Read,
    sender: &Mutex<Sender<TcpStream>>,
    frame: impl Fn(Vec<u8>) -> Frame,
) -> io::Result<()> {
    read_pieces(from, MAX_CHUNK_BYTES, |piece| {
        let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
        sender.send(&frame(piece.to_vec()))
    })
}

/// The exit status as shells report it.
fn status_of(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let number = status.code().or(status.signal().map(|signal| 128 + signal));
    number
        .and_then(|number| u8::try_from(number).ok())
        .unwrap_or(u8::MAX)
}

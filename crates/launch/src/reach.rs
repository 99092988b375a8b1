//! Reaches a node through its agent: stands where `ssh` would, and carries the standard streams
//! of the guard that the agent starts.
//!
//! Where nothing listens, the remote shell is tried instead. Why nothing came of a call is said
//! to the launcher as a shim would speak.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use dipole_node::{ClusterKey, variables};

use super::message::{BANNER, Up};
use crate::call::{
    Answer, Channel, Frame, GREETING_BYTES, Greeting, MOST_BYTES, Receiver, Request, SILENCE,
    Sender, say_alive,
};

/// How long an address may take to accept a call.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// How long an agent may take to greet and to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(8);
/// What `ssh` returns when it did not get there.
const SHELL_FAILED: i32 = 255;

/// Arguments of the hidden subcommand `reach`.
#[derive(Args, Debug)]
pub struct ReachArgs {
    /// Where the agent is asked, on each of its cards.
    #[arg(value_delimiter = ',', required = true)]
    agent: Vec<SocketAddr>,
    /// How many ranks may be placed there.
    #[arg(long)]
    ranks: u32,
    /// The job's program and its arguments.
    #[arg(long, allow_hyphen_values = true)]
    job: String,
    /// What to run instead if nothing listens there.
    #[arg(last = true, required = true)]
    shell: Vec<OsString>,
}

/// Why nothing came of a call.
enum NoCall {
    /// Nothing listens at any address.
    Nobody {
        at: Vec<SocketAddr>,
        cause: io::Error,
    },
    Key(String),
    Greeting {
        agent: SocketAddr,
        why: String,
    },
    /// The agent fell silent, or hung up after the proof.
    OtherKey {
        agent: SocketAddr,
        own: String,
    },
    Silent {
        agent: SocketAddr,
    },
    Refused {
        reason: String,
    },
    System {
        agent: SocketAddr,
        cause: io::Error,
    },
}

impl fmt::Display for NoCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoCall::Nobody { at, cause } => {
                let at: Vec<String> = at.iter().map(SocketAddr::to_string).collect();
                write!(f, "no agent answers at {}: {cause}", at.join(", "))
            }
            NoCall::Key(why) => f.write_str(why),
            NoCall::Greeting { agent, why } => write!(f, "{agent}: {why}"),
            NoCall::OtherKey { agent, own } => write!(
                f,
                "the agent at {agent} does not hold the cluster key {own}: compare `dipole key \
                 show` on both machines, and set {} there to a copy of the same",
                variables::KEY
            ),
            NoCall::Silent { agent } => write!(
                f,
                "the agent at {agent} does not answer; is it stopped, or its machine overloaded?"
            ),
            NoCall::Refused { reason } => write!(f, "refuses work: {reason}"),
            NoCall::System { agent, cause } => {
                write!(f, "the connection to the agent at {agent}: {cause}")
            }
        }
    }
}

/// Reaches the node, by its agent or else by the shell.
pub fn reach(args: &ReachArgs) -> ExitCode {
    let call = match call(args) {
        Ok(call) => call,
        Err(nobody @ NoCall::Nobody { .. }) => {
            tracing::info!("{nobody}; trying {}", args.shell[0].display());
            return by_shell(args, &nobody);
        }
        Err(error) => {
            let refused = Up::Refused(error.to_string());
            let mut out = io::stdout().lock();
            let _hung_up = out.write_all(BANNER).and_then(|()| refused.write(&mut out));
            return ExitCode::FAILURE;
        }
    };
    let (receiver, sender) = call;
    let sender = Arc::new(Mutex::new(sender));
    say_alive(Arc::clone(&sender));
    std::thread::spawn(move || carry_input(&sender));
    match carry_output(receiver) {
        Ok(status) => ExitCode::from(status),
        Err(cause) => {
            eprintln!("dipole reach: the agent's connection ended: {cause}");
            ExitCode::FAILURE
        }
    }
}

fn by_shell(args: &ReachArgs, nobody: &NoCall) -> ExitCode {
    let shell = args.shell[0].display();
    let hint = format!(
        "{nobody}; start `dipole agent` there with this cluster key, or make `{shell}` work"
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

type Call = (Receiver<TcpStream>, Sender<TcpStream>);

fn call(args: &ReachArgs) -> Result<Call, NoCall> {
    let file = std::env::var_os(variables::KEY)
        .ok_or_else(|| NoCall::Key(format!("{} is not set", variables::KEY)))?;
    let key = ClusterKey::load(file.as_ref()).map_err(|error| NoCall::Key(error.to_string()))?;
    let (agent, mut stream) = connect(&args.agent)?;
    let system = |cause: io::Error| match cause.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => NoCall::Silent { agent },
        _ => NoCall::System { agent, cause },
    };
    stream.set_nodelay(true).map_err(system)?;
    stream
        .set_read_timeout(Some(ANSWER_PATIENCE))
        .map_err(system)?;
    let mut greeting = [0; GREETING_BYTES];
    stream.read_exact(&mut greeting).map_err(|cause| {
        if cause.kind() == io::ErrorKind::UnexpectedEof {
            let why = "something hung up without a greeting; is it an agent?".to_owned();
            return NoCall::Greeting { agent, why };
        }
        system(cause)
    })?;
    let greeting = Greeting::from_bytes(greeting);
    greeting
        .check()
        .map_err(|why| NoCall::Greeting { agent, why })?;
    let channel = Channel::call(&mut stream, &key, &greeting).map_err(|cause| {
        use io::ErrorKind::{ConnectionReset, InvalidData, UnexpectedEof};
        match cause.kind() {
            InvalidData | UnexpectedEof | ConnectionReset => NoCall::OtherKey {
                agent,
                own: key.fingerprint(),
            },
            _ => system(cause),
        }
    })?;
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
        Answer::Welcome { .. } => {}
        Answer::Refused { reason } => return Err(NoCall::Refused { reason }),
    }
    let patience = sender.stream().set_read_timeout(Some(SILENCE));
    patience.map_err(system)?;
    Ok((receiver, sender))
}

fn connect(agent: &[SocketAddr]) -> Result<(SocketAddr, TcpStream), NoCall> {
    let mut last = io::Error::other("no address");
    for address in agent {
        match TcpStream::connect_timeout(address, CONNECT_PATIENCE) {
            Ok(stream) => return Ok((*address, stream)),
            Err(cause) => last = cause,
        }
    }
    Err(NoCall::Nobody {
        at: agent.to_vec(),
        cause: last,
    })
}

/// As the other side's log names us.
fn who() -> String {
    let user = std::env::var("USER")
        .unwrap_or_else(|_| format!("uid {}", rustix::process::getuid().as_raw()));
    let machine = rustix::system::uname();
    format!("{user}@{}", machine.nodename().to_string_lossy())
}

fn carry_input(sender: &Mutex<Sender<TcpStream>>) {
    let mut stdin = io::stdin().lock();
    let mut buffer = vec![0; MOST_BYTES];
    loop {
        let frame = match stdin.read(&mut buffer) {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => Frame::InputEnd,
            Ok(length) => Frame::Data(buffer[..length].to_vec()),
        };
        // A connection that is gone is noticed by whoever reads from it.
        let mut sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.send(&frame).is_err() || frame == Frame::InputEnd {
            return;
        }
    }
}

fn carry_output(mut receiver: Receiver<TcpStream>) -> io::Result<u8> {
    loop {
        match receiver.receive().map_err(told)? {
            Some(Frame::Data(bytes)) => {
                let mut out = io::stdout().lock();
                out.write_all(&bytes)?;
                out.flush()?;
            }
            Some(Frame::Errors(bytes)) => io::stderr().write_all(&bytes)?,
            Some(Frame::Alive) => {}
            Some(Frame::Last(status)) => return Ok(status),
            Some(_) => return Err(io::Error::other("something that does not belong there")),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// A silence by its name.
fn told(cause: io::Error) -> io::Error {
    match cause.kind() {
        io::ErrorKind::WouldBlock => {
            io::Error::other(format!("nothing was heard for {} s", SILENCE.as_secs()))
        }
        _ => cause,
    }
}

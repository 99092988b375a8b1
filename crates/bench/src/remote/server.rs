//! `dipole bench server`: takes part in the benches of other nodes, one at a time.

use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dipole_node::{
    Address, Config, Edge, Endpoint, EndpointId, Message, Node, OpenError, ReceiveError, SendError,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::{
    ASK_EVERY, Answer, FIRST_ENDPOINT, Machine, PATIENCE, RemoteError, Request, SERVER, ServerArgs,
    other_version, plain, to_bytes,
};
use crate::control::{Job, SIDE_ARGUMENTS, Task};
use crate::machine;
use crate::machine::Cores;
use crate::machine::has_bpf;
use crate::output::Output;
use crate::remote::client::address_of;
use crate::work::{Role, name_of};

/// Interval at which signals are checked.
const LOOK: Duration = Duration::from_millis(200);
/// Limits of the duration and the message length of a job.
const LONGEST: Duration = Duration::from_secs(3600);
const MOST_BYTES: usize = 1 << 30;

/// Serves until a signal arrives.
pub(crate) fn serve(args: &ServerArgs, output: &mut Output<'_>) -> Result<(), RemoteError> {
    let mut config = args.identity().configure()?;
    config.connect_timeout = PATIENCE;
    let own = address_of(&config, config.node).ok_or(RemoteError::NotListed(config.node))?;
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(RemoteError::Signals)?;
    }
    let node = Node::open(config.clone()).map_err(RemoteError::Open)?;
    let endpoint = node
        .endpoint(EndpointId(SERVER))
        .map_err(|error| match error {
            OpenError::Taken { pid, .. } => RemoteError::Taken { process: pid },
            other => RemoteError::Open(other),
        })?;
    let machine = Machine {
        description: machine::description(),
        // Not the first core, which handles most interrupts and is the client's on the same machine.
        core: Cores::choose()?.follow,
        has_bpf: has_bpf() && !own.is_loopback(),
    };
    output.remark(&format!(
        "node {} at {own} takes part in benches: `dipole bench --to {}` on another node; {}, side on \
         core {}",
        config.node, config.node, machine.description, machine.core
    ))?;
    output.flush()?;
    let mut server = Server {
        args,
        config,
        endpoint,
        machine,
        client: None,
    };
    while !ended.load(Ordering::Relaxed) {
        if let Some(line) = server.step()? {
            output.remark(&line)?;
            output.flush()?;
        }
    }
    drop(server);
    // Clients notice immediately that the server has stopped.
    let _unheard = node.close(ASK_EVERY);
    Ok(())
}

struct Server<'a> {
    args: &'a ServerArgs,
    config: Config,
    endpoint: Endpoint,
    machine: Machine,
    client: Option<Client>,
}

/// The client that measures at present.
struct Client {
    address: Address,
    edge: Arc<Edge>,
    side: Option<Side>,
    asked: Instant,
}

impl Server<'_> {
    /// Waits briefly for a request. Returns a line to print, if any.
    fn step(&mut self) -> Result<Option<String>, RemoteError> {
        let lost = self.client.as_mut().and_then(Client::ask);
        if let (Some(why), Some(client)) = (lost, &self.client) {
            let node = client.address.node;
            self.client = None;
            return Ok(Some(format!("node {node} is gone: {why}")));
        }
        match self.endpoint.receive_timeout(LOOK) {
            Ok(message) => Ok(self.answer(&message)),
            Err(ReceiveError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(RemoteError::Output(io::Error::other(error.to_string()))),
        }
    }

    fn answer(&mut self, message: &Message) -> Option<String> {
        let from = message.source();
        let request = match serde_json::from_slice(message) {
            Ok(request) => request,
            Err(error) => {
                let why =
                    format!("a request cannot be understood: {error}; is it of this version?");
                return self.refuse(from, why);
            }
        };
        match (request, &mut self.client) {
            (Request::Hello { version }, client) => {
                if let Some(why) = other_version(&version) {
                    return self.refuse(from, why);
                }
                if let Some(busy) = client {
                    let with = busy.address.node;
                    return self.refuse(from, format!("it measures with node {with} now"));
                }
                self.welcome(from)
            }
            (Request::Start { number, job }, Some(client)) if client.address == from => {
                client.side = None;
                let started = self.start(from, number, job);
                let client = self.client.as_mut()?;
                match started {
                    Ok(side) => client.side = Some(side),
                    Err(how) => client.tell(&Answer::Ended { number, how }),
                }
                None
            }
            (Request::Line { number, line }, Some(client)) if client.address == from => {
                if let Some(side) = client.side.as_mut().filter(|side| side.number == number) {
                    side.write(&line);
                }
                None
            }
            (Request::Stop { number }, Some(client)) if client.address == from => {
                client.side = client.side.take().filter(|side| side.number != number);
                None
            }
            (Request::Bye, Some(client)) if client.address == from => {
                self.client = None;
                Some(format!("node {} is done", from.node))
            }
            // From a client that was rejected or is considered gone.
            _ => None,
        }
    }

    fn welcome(&mut self, from: Address) -> Option<String> {
        let edge = self.endpoint.edge(from).ok()?;
        let client = Client {
            address: from,
            edge: Arc::new(edge),
            side: None,
            asked: Instant::now(),
        };
        client.tell(&Answer::Welcome(self.machine.clone()));
        self.client = Some(client);
        Some(format!("node {} measures", from.node))
    }

    fn refuse(&self, to: Address, why: String) -> Option<String> {
        // The reason may quote the request.
        let why = plain(&why);
        let told = format!("node {} is refused: {why}", to.node);
        let answer = to_bytes(&Answer::Refused { why });
        let sent = self.endpoint.edge(to).and_then(|edge| {
            edge.send_timeout(&answer, ASK_EVERY)?;
            edge.flush(ASK_EVERY)
        });
        match sent {
            Ok(()) => Some(told),
            Err(error) => Some(format!("{told} (not delivered: {error})")),
        }
    }

    /// Starts the process of a job. Only the work is taken from the client.
    fn start(&self, from: Address, number: u64, job: Job) -> Result<Side, String> {
        let work = &job.work;
        if work.duration > LONGEST || work.size_bytes > MOST_BYTES || job.subject.is_threads() {
            let subject = job.subject.name();
            return Err(format!("refuses {subject} with {work:?}"));
        }
        if let Some(why) = job.subject.refuses(work) {
            return Err(format!("refuses: {why}"));
        }
        let address = |node| {
            address_of(&self.config, node)
                .ok_or_else(|| format!("does not find node {node} in its hosts file; add a line"))
        };
        let job = Job {
            role: Role::Follow,
            core: self.machine.core,
            other_core: self.machine.core,
            namespace: None,
            own: address(self.config.node)?,
            other: address(from.node)?,
            other_node: from.node.0,
            first_endpoint: FIRST_ENDPOINT,
            meeting: PathBuf::new(),
            ..job
        };
        let mut environment = self.args.identity().environment();
        environment.push(("DIPOLE_LINK", name_of(job.carrier).into()));
        let client = self.client.as_ref().ok_or("has no client")?;
        let edge = Arc::clone(&client.edge);
        Side::start(number, &Task::Side(job), environment, edge)
            .map_err(|error| format!("cannot start a side: {error}"))
    }
}

impl Client {
    fn tell(&self, answer: &Answer) {
        // `ask` detects a client that is gone.
        let _ = self.edge.send_timeout(&to_bytes(answer), PATIENCE);
    }

    /// Checks now and then whether the client is alive. Returns why not.
    fn ask(&mut self) -> Option<String> {
        if self.asked.elapsed() < ASK_EVERY {
            return None;
        }
        self.asked = Instant::now();
        match self.edge.try_send(&to_bytes(&Answer::Alive)) {
            Ok(()) | Err(SendError::Full { .. }) => None,
            Err(error) => Some(error.to_string()),
        }
    }
}

/// A process that measures; dropping it kills it.
struct Side {
    number: u64,
    child: Child,
    input: ChildStdin,
    forwards: Option<JoinHandle<()>>,
}

impl Side {
    fn start(
        number: u64,
        task: &Task,
        environment: Vec<(&'static str, std::ffi::OsString)>,
        edge: Arc<Edge>,
    ) -> io::Result<Side> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(SIDE_ARGUMENTS)
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were requested as pipes");
        };
        let forwards = thread::spawn(move || {
            let send = |answer| edge.send_timeout(&to_bytes(&answer), PATIENCE);
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send(Answer::Line { number, line }).is_err() {
                    return;
                }
            }
            let how = "ended; its messages are on its own terminal".to_owned();
            let _unheard = send(Answer::Ended { number, how });
        });
        let mut side = Side {
            number,
            child,
            input,
            forwards: Some(forwards),
        };
        side.write(&serde_json::to_string(task).expect("plain data can be written as JSON"));
        Ok(side)
    }

    fn write(&mut self, line: &str) {
        // The last lines of an exited process explain the error.
        let _ended = writeln!(self.input, "{line}");
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _reaped = self.child.wait();
        if let Some(forwards) = self.forwards.take() {
            let _ended = forwards.join();
        }
    }
}

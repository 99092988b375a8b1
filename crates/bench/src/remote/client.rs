//! The client of a bench between two hosts.

use std::cell::Cell;
use std::ffi::OsString;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dipole_node::{
    Address, Config, Edge, Endpoint, EndpointId, Node, NodeId, ReceiveError, SendError, TargetError,
};
use serde::Serialize;

use super::{
    ASK_EVERY, Answer, Machine, PATIENCE, RemoteArgs, RemoteError, Request, SERVER, VERSION, plain,
    to_bytes,
};
use crate::control::{Job, Task};
use crate::failure::RunError;

/// Time limit for a server to appear and to reply.
const CONNECT: Duration = Duration::from_secs(5);

/// A server on another node that works for this process.
pub struct Remote {
    pub own: (NodeId, IpAddr),
    pub other: (NodeId, IpAddr),
    pub machine: Machine,
    /// Additional environment variables for the processes of this side.
    pub environment: Vec<(&'static str, OsString)>,
    talk: Arc<Talk>,
    jobs: Cell<u64>,
}

/// Connection to the bench server.
struct Talk {
    server: NodeId,
    edge: Edge,
    endpoint: Endpoint,
    _node: Node,
}

impl Remote {
    /// Connects to the server of a node, which then works for this process only.
    pub(crate) fn connect(args: &RemoteArgs, node: NodeId) -> Result<Remote, RemoteError> {
        let mut config = args.identity().configure()?;
        config.connect_timeout = CONNECT;
        if node == config.node {
            return Err(RemoteError::Self_(node));
        }
        let address = |node| address_of(&config, node).ok_or(RemoteError::NotListed(node));
        let (own, other) = ((config.node, address(config.node)?), (node, address(node)?));
        let here = Node::open(config).map_err(RemoteError::Open)?;
        let endpoint = here.endpoint(EndpointId::ANY).map_err(RemoteError::Open)?;
        let edge = endpoint
            .edge(Address::new(node.0, SERVER))
            .map_err(|error| unreachable(node, &error))?;
        edge.wait_open(CONNECT + Duration::from_secs(1))
            .map_err(|error| unreachable(node, &error))?;
        let talk = Talk {
            server: node,
            edge,
            endpoint,
            _node: here,
        };
        let version = VERSION.to_owned();
        talk.send(&Request::Hello { version })
            .map_err(|error| unreachable(node, &error))?;
        let machine = match talk.receive(CONNECT) {
            Ok(Answer::Welcome(machine)) => machine,
            Ok(Answer::Refused { why }) => return Err(RemoteError::Refused { node, why }),
            Ok(other) => {
                let event = format!("sent {other:?} instead of a welcome");
                return Err(RemoteError::Silent { node, event });
            }
            Err(event) => return Err(RemoteError::Silent { node, event }),
        };
        Ok(Remote {
            own,
            other,
            machine,
            environment: args.identity().environment(),
            talk: Arc::new(talk),
            jobs: Cell::new(0),
        })
    }

    /// Lets the server start the following side of a job.
    pub(crate) fn start(&self, task: &Task) -> Result<RemoteWorker, RunError> {
        let Task::Side(job) = task else {
            unreachable!("only sides are started on other hosts");
        };
        let number = self.jobs.get() + 1;
        self.jobs.set(number);
        let worker = RemoteWorker {
            talk: Arc::clone(&self.talk),
            number,
        };
        let job: Job = job.clone();
        worker.tell(&Request::Start { number, job })?;
        Ok(worker)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // If this is lost, the server notices that this process exits.
        let _ = self.talk.send(&Request::Bye);
        let _ = self.talk.edge.flush(ASK_EVERY);
    }
}

/// Returns the address of a node, even if it has joined after the configuration was read.
pub(super) fn address_of(config: &Config, node: NodeId) -> Option<IpAddr> {
    let known = config.hosts.get(node).map(|host| host.address);
    known.or_else(|| Some(config.hosts.reload()?.get(node)?.address))
}

fn unreachable(node: NodeId, error: &SendError) -> RemoteError {
    let SendError::Unreachable(cause) = error else {
        let why = error.to_string();
        return RemoteError::Unreachable { node, why };
    };
    match &**cause {
        TargetError::Unresolved { cause, .. } => RemoteError::NoServer {
            node,
            why: cause.clone(),
        },
        TargetError::OtherCluster {
            mismatch,
            fingerprint,
            ..
        } => RemoteError::Unreachable {
            node,
            why: mismatch.explain(fingerprint.as_deref()),
        },
        other => RemoteError::Unreachable {
            node,
            why: other.to_string(),
        },
    }
}

impl Talk {
    fn send(&self, request: &Request) -> Result<(), SendError> {
        self.edge.send_timeout(&to_bytes(request), PATIENCE)
    }

    /// Returns the next reply other than `Alive`, or why there is none.
    fn receive(&self, limit: Duration) -> Result<Answer, String> {
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            let message = match self.endpoint.receive_timeout(left.min(ASK_EVERY)) {
                Ok(message) => message,
                Err(ReceiveError::TimedOut { .. }) if left.is_zero() => {
                    return Err(format!("did not respond for {:.0} s", limit.as_secs_f64()));
                }
                Err(ReceiveError::TimedOut { .. }) => {
                    match self.edge.try_send(&to_bytes(&Request::Alive)) {
                        Ok(()) | Err(SendError::Full { .. }) => continue,
                        Err(error) => return Err(format!("is gone: {error}")),
                    }
                }
                Err(error) => return Err(format!("cannot be event: {error}")),
            };
            if message.source() != Address::new(self.server.0, SERVER) {
                continue;
            }
            match serde_json::from_slice(&message) {
                Ok(Answer::Alive) => {}
                Ok(answer) => return Ok(answer.plain()),
                Err(error) => {
                    return Err(plain(&format!("cannot be understood: {error}")));
                }
            }
        }
    }
}

/// The process of one job on the other host; dropping it kills it.
pub struct RemoteWorker {
    talk: Arc<Talk>,
    number: u64,
}

impl RemoteWorker {
    fn tell(&self, request: &Request) -> Result<(), RunError> {
        self.talk
            .send(request)
            .map_err(|error| self.lost(format!("is gone: {error}")))
    }

    fn lost(&self, event: String) -> RunError {
        RunError::LostThere {
            node: self.talk.server,
            event,
        }
    }

    pub(crate) fn send(&self, message: &impl Serialize) -> Result<(), RunError> {
        let line = serde_json::to_string(message).expect("plain data can be written as JSON");
        let number = self.number;
        self.tell(&Request::Line { number, line })
    }

    pub(crate) fn line(&self, limit: Duration) -> Result<String, RunError> {
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            match self.talk.receive(left).map_err(|event| self.lost(event))? {
                Answer::Line { number, line } if number == self.number => return Ok(line),
                Answer::Ended { number, how } if number == self.number => {
                    return Err(self.lost(how));
                }
                // These messages belong to an earlier job.
                Answer::Line { .. } | Answer::Ended { .. } => {}
                Answer::Refused { why } => return Err(self.lost(format!("refuses: {why}"))),
                Answer::Welcome(_) | Answer::Alive => {}
            }
        }
    }
}

impl Drop for RemoteWorker {
    fn drop(&mut self) {
        let number = self.number;
        let _gone_with_the_server = self.tell(&Request::Stop { number });
    }
}

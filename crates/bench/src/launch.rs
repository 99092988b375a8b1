//! Starts the processes of a measurement and connects them.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{Job, Outcome, Ready, SIDE_ARGUMENTS, Task, Verdict};
use crate::failure::RunError;
use crate::machine::Cores;
use crate::remote::{FIRST_ENDPOINT, RemoteWorker};
use crate::subject::Subject;
use crate::testbed::Testbed;
use crate::work::{Carrier, Placement, Role, Workload};

/// Time limit of a process in addition to its measurement.
pub const SLACK: Duration = Duration::from_secs(45);

/// A measurement of one subject, independent of the testbed.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Name in results: the kind and its variation.
    pub bench: String,
    pub subject: Subject,
    pub work: Workload,
    pub place: Placement,
    /// Link for the messages (Dipole only).
    pub carrier: Carrier,
    /// Plan of the fault wrapper (Dipole only).
    pub fault: Option<String>,
}

impl Entry {
    /// Returns the link that carries the messages.
    pub fn link(&self, testbed: &Testbed) -> String {
        self.subject.link(self.carrier, testbed.name(self.place))
    }
}

/// Runs a measurement. The outcome includes the CPU time of both sides.
pub fn measure(entry: &Entry, testbed: &Testbed, cores: Cores) -> Result<Outcome, RunError> {
    measure_in(entry, testbed, cores, &[])
}

/// Runs a measurement whose local sides have further environment variables.
pub fn measure_in(
    entry: &Entry,
    testbed: &Testbed,
    cores: Cores,
    further: &[(&'static str, OsString)],
) -> Result<Outcome, RunError> {
    let mut sides = Sides::start(entry, testbed, cores, further)?;
    let [lead, follow] = sides.run(entry.work.duration + SLACK)?;
    Ok(joined(lead, follow))
}

/// Adds what both sides have measured to the result of the leading one.
pub(crate) fn joined(mut lead: Outcome, follow: Outcome) -> Outcome {
    lead.cpu_ns_per_message += follow.cpu_ns_per_message;
    lead.remarks.extend(follow.remarks);
    lead.moved = lead.moved.zip(follow.moved).map(|(own, other)| own + other);
    lead
}

/// The two sides of a measurement, or the only process of one whose sides are threads.
pub(crate) struct Sides {
    lead: Worker,
    follow: Option<Worker>,
}

impl Sides {
    pub(crate) fn start(
        entry: &Entry,
        testbed: &Testbed,
        cores: Cores,
        further: &[(&'static str, OsString)],
    ) -> Result<Sides, RunError> {
        let start = |role| {
            let mut environment = testbed.environment(entry.place, role, entry.carrier);
            environment.extend_from_slice(further);
            let task = Task::Side(job(entry, testbed, cores, role));
            let (who, _) = role.own_and_other("leading side", "following side");
            match (role, testbed.remote()) {
                (Role::Follow, Some(remote)) => Ok(Worker {
                    who: format!("{who} (node {})", remote.other.0),
                    place: WorkerPlace::There(remote.start(&task)?),
                }),
                _ => Worker::start(who.to_owned(), &SIDE_ARGUMENTS, &task, environment),
            }
        };
        let lead = start(Role::Lead)?;
        let follow = match entry.subject.is_threads() {
            true => None,
            false => Some(start(Role::Follow)?),
        };
        Ok(Sides { lead, follow })
    }

    /// Connects both sides and returns the result of each.
    pub(crate) fn run(&mut self, limit: Duration) -> Result<[Outcome; 2], RunError> {
        let lead = &mut self.lead;
        let of_lead = lead.recv::<Ready>(SLACK)?;
        let Some(follow) = &mut self.follow else {
            lead.send(&Ready::default())?;
            // The result of threads covers both sides.
            return Ok([lead.verdict(limit)?, Outcome::default()]);
        };
        let of_follow = follow.recv::<Ready>(SLACK)?;
        follow.send(&of_lead)?;
        lead.send(&of_follow)?;
        let start = Instant::now();
        // The side that failed knows the reason; the other has only waited for it.
        let outcome = match lead.verdict(limit) {
            Ok(outcome) => outcome,
            Err(error) => {
                let other = follow.verdict(Duration::ZERO);
                return Err(match other {
                    Err(first @ RunError::Failed { .. }) => first,
                    _ => error,
                });
            }
        };
        let other = follow.verdict(limit.saturating_sub(start.elapsed()))?;
        Ok([outcome, other])
    }
}

pub fn job(entry: &Entry, testbed: &Testbed, cores: Cores, role: Role) -> Job {
    let (own, other) = testbed.addresses(entry.place, role);
    let (core, other_core) = role.own_and_other(cores.lead, cores.follow);
    let (_, other_role) = role.own_and_other(Role::Lead, Role::Follow);
    Job {
        subject: entry.subject,
        work: entry.work.clone(),
        role,
        core,
        other_core,
        namespace: testbed.namespace(entry.place, role),
        own,
        other,
        carrier: entry.carrier,
        other_node: testbed.node(entry.place, other_role),
        first_endpoint: testbed.remote().map_or(0, |_| FIRST_ENDPOINT),
        meeting: testbed.socket_prefix(),
        fault: entry.fault.clone(),
    }
}

/// A started process; dropping it ends it.
pub struct Worker {
    who: String,
    place: WorkerPlace,
}

enum WorkerPlace {
    Here(Local),
    /// The worker runs on another host.
    There(RemoteWorker),
}

struct Local {
    child: Child,
    input: ChildStdin,
    lines: Receiver<io::Result<String>>,
}

impl Worker {
    pub fn start(
        who: String,
        arguments: &[&str],
        task: &impl Serialize,
        environment: Vec<(&'static str, OsString)>,
    ) -> Result<Self, RunError> {
        let program = std::env::current_exe().map_err(RunError::Start)?;
        let mut child = Command::new(program)
            .args(arguments)
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(RunError::Start)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were requested as pipes");
        };
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let place = WorkerPlace::Here(Local {
            child,
            input,
            lines,
        });
        let mut worker = Self { who, place };
        worker.send(task)?;
        Ok(worker)
    }

    pub fn send(&mut self, message: &impl Serialize) -> Result<(), RunError> {
        let here = match &mut self.place {
            WorkerPlace::Here(here) => here,
            WorkerPlace::There(there) => return there.send(message),
        };
        let mut line = serde_json::to_vec(message).expect("plain data can be written as JSON");
        line.push(b'\n');
        // The next receive reports the exit and the last output.
        match here.input.write_all(&line) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(RunError::Start(error)),
            _ => Ok(()),
        }
    }

    fn line(&mut self, limit: Duration) -> Result<String, RunError> {
        let who = self.who.clone();
        let here = match &mut self.place {
            WorkerPlace::Here(here) => here,
            WorkerPlace::There(there) => return there.line(limit),
        };
        match here.lines.recv_timeout(limit) {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(error)) => Err(RunError::Lost {
                who,
                event: format!("is unreadable: {error}"),
            }),
            Err(RecvTimeoutError::Timeout) => Err(RunError::Silent { who, waited: limit }),
            Err(RecvTimeoutError::Disconnected) => {
                let event = match here.child.wait() {
                    Ok(status) => format!("ended with {status}"),
                    Err(error) => format!("ended: {error}"),
                };
                Err(RunError::Lost { who, event })
            }
        }
    }

    pub fn recv<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T, RunError> {
        let line = self.line(limit)?;
        let who = self.who.clone();
        serde_json::from_str(&line).map_err(|_| match serde_json::from_str(&line) {
            Ok(Verdict::Failed(cause)) => RunError::Failed { who, cause },
            _ => RunError::Lost {
                who,
                event: format!("printed {line:?}"),
            },
        })
    }

    pub fn verdict(&mut self, limit: Duration) -> Result<Outcome, RunError> {
        match self.recv(limit)? {
            Verdict::Done(outcome) => Ok(outcome),
            Verdict::Failed(cause) => Err(RunError::Failed {
                who: self.who.clone(),
                cause,
            }),
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // After its result a process is about to exit. Do not wait for one that hangs.
        let _already_gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Returns the figure by which subjects are compared, and whether more of it is better.
pub fn leading_figure(outcome: &Outcome) -> (f64, bool) {
    match (outcome.one_way, outcome.bytes_per_s) {
        (Some(one_way), _) => (one_way.p50_ns, false),
        (None, Some(bytes_per_s)) => (bytes_per_s, true),
        (None, None) => (0.0, true),
    }
}

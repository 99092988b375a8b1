//! Starts the two sides of one measurement and brings them together.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::SIDE_ARGUMENTS;
use super::bed::Bed;
use super::control::{Go, Job, Outcome, Ready, Role, Verdict, Workload};
use super::machine::Cores;
use super::subject::Subject;

/// How long a side may take beyond its measurement.
const SLACK: Duration = Duration::from_secs(45);

/// One measurement of one subject, before anybody knows where.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// What the figures are filed under: the kind and how it was varied.
    pub(crate) bench: String,
    pub(crate) subject: Subject,
    pub(crate) work: Workload,
    /// A plan for the fault wrapper (Dipole only).
    pub(crate) fault: Option<String>,
}

/// Why a measurement yields nothing.
#[derive(Debug)]
pub(crate) enum RunError {
    /// A side could not be started.
    Start(io::Error),
    /// A side ended without a verdict, or said something senseless.
    Lost { role: Role, heard: String },
    /// A side said nothing for too long.
    Silent { role: Role, waited: Duration },
    /// A side tells what went wrong.
    Failed { role: Role, cause: String },
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Start(cause) => {
                write!(
                    f,
                    "cannot start this program again as a side: {cause}; was it moved?"
                )
            }
            RunError::Lost { role, heard } => {
                write!(
                    f,
                    "the {} side {heard}; its messages are above",
                    name(*role)
                )
            }
            RunError::Silent { role, waited } => write!(
                f,
                "the {} side said nothing for {:.0} s and was ended; is the machine overloaded?",
                name(*role),
                waited.as_secs_f64()
            ),
            RunError::Failed { role, cause } => write!(f, "the {} side: {cause}", name(*role)),
        }
    }
}

impl std::error::Error for RunError {}

fn name(role: Role) -> &'static str {
    match role {
        Role::Lead => "leading",
        Role::Follow => "following",
    }
}

/// Runs one measurement; the outcome holds the CPU time of both sides.
pub(crate) fn measure(entry: &Entry, bed: &Bed, cores: Cores) -> Result<Outcome, RunError> {
    let lead = Side::start(&job(entry, bed, cores, Role::Lead), bed)?;
    if entry.subject.is_threads() {
        let mut lead = lead;
        lead.hear::<Ready>(SLACK)?;
        lead.say(&Go::default())?;
        return lead.verdict(entry.work.duration + SLACK);
    }
    let follow = Side::start(&job(entry, bed, cores, Role::Follow), bed)?;
    let (mut lead, mut follow) = (lead, follow);
    let (of_lead, of_follow) = (lead.hear::<Ready>(SLACK)?, follow.hear::<Ready>(SLACK)?);
    follow.say(&Go {
        ports: of_lead.ports,
    })?;
    lead.say(&Go {
        ports: of_follow.ports,
    })?;
    let limit = entry.work.duration + SLACK;
    let start = Instant::now();
    // Whichever fails says why; the other would only say that it waited in vain.
    let mut outcome = match lead.verdict(limit) {
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
    outcome.cpu_ns_per_message += other.cpu_ns_per_message;
    outcome.remarks.extend(other.remarks);
    Ok(outcome)
}

fn job(entry: &Entry, bed: &Bed, cores: Cores, role: Role) -> Job {
    let (own, other) = bed.addresses(role);
    let (core, other_core) = match role {
        Role::Lead => (cores.lead, cores.follow),
        Role::Follow => (cores.follow, cores.lead),
    };
    Job {
        subject: entry.subject,
        work: entry.work.clone(),
        role,
        core,
        other_core,
        namespace: bed.namespace(role),
        own,
        other,
        fault: entry.fault.clone(),
    }
}

/// A started side; dropping it ends its process.
struct Side {
    role: Role,
    child: Child,
    input: ChildStdin,
    lines: Receiver<io::Result<String>>,
}

impl Side {
    fn start(job: &Job, bed: &Bed) -> Result<Self, RunError> {
        let program = std::env::current_exe().map_err(RunError::Start)?;
        let mut child = Command::new(program)
            .args(SIDE_ARGUMENTS)
            .envs(bed.environment(job.role))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(RunError::Start)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both were asked for as pipes");
        };
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut side = Self {
            role: job.role,
            child,
            input,
            lines,
        };
        side.say(job)?;
        Ok(side)
    }

    fn say(&mut self, message: &impl Serialize) -> Result<(), RunError> {
        let mut line = serde_json::to_vec(message).expect("plain data can be written as JSON");
        line.push(b'\n');
        // A side that is gone is noticed, with its last words, by whoever hears it next.
        match self.input.write_all(&line) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(RunError::Start(error)),
            _ => Ok(()),
        }
    }

    fn line(&mut self, limit: Duration) -> Result<String, RunError> {
        let role = self.role;
        match self.lines.recv_timeout(limit) {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(error)) => Err(RunError::Lost {
                role,
                heard: format!("is unreadable: {error}"),
            }),
            Err(RecvTimeoutError::Timeout) => Err(RunError::Silent {
                role,
                waited: limit,
            }),
            Err(RecvTimeoutError::Disconnected) => {
                let heard = match self.child.wait() {
                    Ok(status) => format!("ended with {status}"),
                    Err(error) => format!("ended: {error}"),
                };
                Err(RunError::Lost { role, heard })
            }
        }
    }

    fn hear<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T, RunError> {
        let line = self.line(limit)?;
        let role = self.role;
        serde_json::from_str(&line).map_err(|_| match serde_json::from_str(&line) {
            Ok(Verdict::Failed(cause)) => RunError::Failed { role, cause },
            _ => RunError::Lost {
                role,
                heard: format!("said {line:?}"),
            },
        })
    }

    fn verdict(&mut self, limit: Duration) -> Result<Outcome, RunError> {
        match self.hear(limit)? {
            Verdict::Done(outcome) => Ok(outcome),
            Verdict::Failed(cause) => Err(RunError::Failed {
                role: self.role,
                cause,
            }),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // A side that has told its verdict is about to end by itself; give it no chance to hang.
        let _already_gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The number a subject is compared by, and whether more of it is better.
pub(crate) fn leading_figure(outcome: &Outcome) -> (f64, bool) {
    match (outcome.one_way, outcome.bytes_per_s) {
        (Some(one_way), _) => (one_way.p50_ns, false),
        (None, Some(bytes_per_s)) => (bytes_per_s, true),
        (None, None) => (0.0, true),
    }
}

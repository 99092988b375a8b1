//! Starts the ranks of a contender and collects their output.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use dipole_node::{profile_dir, variables};
use dipole_testbed::Testbed;
use rustix::process::{Pid, Signal, kill_process};

use super::{Link, SuperstepsPlan};
use crate::bsp::sample::RankOutput;

/// Time that ranks have to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Port for bare datagrams in namespaces, where all ports are free.
const BARE_PORT: u16 = 29_000;

/// Reason why a job has no results.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("cannot start {program}: {cause}")]
    Start { program: String, cause: io::Error },
    #[error("cannot prepare the job: {0}")]
    Prepare(io::Error),
    #[error("timed out after {} s and was killed; {progress}; {words}", .limit.as_secs())]
    Late {
        limit: Duration,
        progress: String,
        words: String,
    },
    #[error("exited with {status}: {words}")]
    Ended { status: String, words: String },
}

/// Placement of the ranks.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// All on this node. The folder is for files of the job.
    Here(&'a Path),
    /// One on each node of a testbed.
    Apart(&'a Testbed),
}

impl Place<'_> {
    pub fn nodes(self, ranks: u32) -> u32 {
        match self {
            Place::Here(_) => 1,
            Place::Apart(_) => ranks,
        }
    }

    pub fn name(self, link: Link) -> &'static str {
        match self {
            Place::Apart(_) => "veth",
            Place::Here(_) if link == Link::Shm => "node",
            Place::Here(_) => "loopback",
        }
    }
}

/// A job of one contender.
pub struct Job<'a> {
    pub plan: &'a SuperstepsPlan,
    pub ranks: u32,
    pub link: Link,
    pub place: Place<'a>,
    /// Cores of the ranks; empty if they are not bound.
    pub cores: &'a [usize],
}

impl Job<'_> {
    /// Starts the ranks of a contender and returns what they measure.
    pub fn run(&self, contender: &dyn Contender) -> Result<Vec<RankOutput>, JobError> {
        let command = contender.command(self)?;
        self.collect(command)
    }

    /// Runs Dipole's ranks.
    ///
    /// # Errors
    /// [`JobError`].
    pub fn dipole(&self) -> Result<Vec<RankOutput>, JobError> {
        self.run(&Dipole)
    }

    /// Returns the cores of the ranks, separated by commas.
    pub fn cores_text(&self) -> String {
        let cores: Vec<String> = self.cores.iter().map(ToString::to_string).collect();
        cores.join(",")
    }

    /// Returns the addresses at which ranks 0 and 1 exchange bare datagrams.
    fn bare(&self) -> Result<String, JobError> {
        let addresses = match self.place {
            Place::Apart(testbed) => [1, 2].map(|node| {
                let address = testbed.node(node).addresses[0];
                format!("{address}:{BARE_PORT}")
            }),
            Place::Here(_) => {
                let free = || {
                    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
                    Ok((socket.local_addr()?.to_string(), socket))
                };
                // Keep both sockets open until both addresses are known, so that they differ.
                let (one, other) = (free(), free());
                let (one, other) = (
                    one.map_err(JobError::Prepare)?,
                    other.map_err(JobError::Prepare)?,
                );
                [one.0, other.0]
            }
        };
        Ok(addresses.join(","))
    }

    /// Runs a command to its end and returns the results in its output.
    fn collect(&self, mut command: Command) -> Result<Vec<RankOutput>, JobError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let errors = tempfile::tempfile().map_err(JobError::Prepare)?;
        let copy = errors.try_clone().map_err(JobError::Prepare)?;
        let started = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn();
        let mut child = started.map_err(|cause| JobError::Start { program, cause })?;
        let (lines, inbox) = channel();
        let Some(output) = child.stdout.take() else {
            return Err(JobError::Prepare(io::ErrorKind::BrokenPipe.into()));
        };
        let reader = thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if lines.send(line).is_err() {
                    return;
                }
            }
        });
        let begun = Instant::now();
        let mut results = Vec::new();
        let is_late = loop {
            let left = self.plan.limit.saturating_sub(begun.elapsed());
            match inbox.recv_timeout(left) {
                // Other lines are remarks of a launcher.
                Ok(line) => results.extend(serde_json::from_str(&line).ok()),
                Err(RecvTimeoutError::Disconnected) => break false,
                Err(RecvTimeoutError::Timeout) => break true,
            }
        };
        if is_late {
            end(&mut child);
        }
        let status = child.wait().map_err(JobError::Prepare)?;
        drop(inbox);
        let _a_panicked_reader_has_sent_nothing = reader.join();
        match (is_late, status.success()) {
            (true, _) => Err(JobError::Late {
                limit: self.plan.limit,
                progress: progress(&results),
                words: last_words(copy),
            }),
            (false, false) => Err(JobError::Ended {
                status: status.to_string(),
                words: last_words(copy),
            }),
            (false, true) => Ok(results),
        }
    }
}

/// A program whose supersteps are measured.
pub trait Contender {
    /// Name in results.
    fn name(&self) -> &'static str;

    /// Returns the command that starts the ranks of a job.
    ///
    /// # Errors
    /// [`JobError`].
    fn command(&self, job: &Job<'_>) -> Result<Command, JobError>;
}

/// Dipole itself: this program, started by `dipole run`.
pub struct Dipole;

impl Contender for Dipole {
    fn name(&self) -> &'static str {
        "dipole"
    }

    fn command(&self, job: &Job<'_>) -> Result<Command, JobError> {
        let program = std::env::current_exe().map_err(JobError::Prepare)?;
        let mut command = match job.place {
            Place::Here(folder) => {
                let mut command = Command::new(&program);
                command
                    .env("DIPOLE_HOSTS", "")
                    .env("DIPOLE_NID", "1")
                    .env("DIPOLE_RUNTIME_DIR", folder.join("run"));
                command
            }
            Place::Apart(testbed) => {
                let mut command = testbed.command(1, &program);
                command.envs(profile_dir().map(|folder| (variables::PROFILE, folder)));
                command
            }
        };
        command.args(["run", "-n", &job.ranks.to_string()]);
        if let Place::Apart(testbed) = job.place {
            command.arg("--hosts").arg(testbed.hosts_file());
            command.arg("--rsh").arg(testbed.remote_shell());
        }
        command.args(["--env", &format!("DIPOLE_LINK={}", job.link.name())]);
        command.arg(&program).arg("superstep-rank");
        for (option, value) in [
            ("--seconds", job.plan.seconds.to_string()),
            ("--samples", job.plan.samples.to_string()),
            ("--most-bytes", job.plan.most_bytes.to_string()),
        ] {
            command.args([option, &value]);
        }
        if let Some(count) = job.plan.each {
            command.args(["--each", &count.to_string()]);
        }
        if !job.cores.is_empty() {
            command.args(["--cores", &job.cores_text()]);
        }
        if job.link != Link::Shm && job.ranks > 1 {
            command.args(["--bare", &job.bare()?]);
        }
        Ok(command)
    }
}

/// How far a job came before it was killed.
fn progress(results: &[RankOutput]) -> String {
    let mut samples = results.iter().filter_map(|result| match result {
        RankOutput::Sample(sample) => Some(sample),
        RankOutput::Packets { .. } => None,
    });
    match samples.next_back() {
        None => "no rank had measured anything".to_owned(),
        Some(sample) => format!(
            "rank {} had measured {:?} of {} bytes, and the measurement after it did not end",
            sample.rank, sample.what, sample.bytes
        ),
    }
}

/// Terminates a launcher, and with it its ranks.
fn end(child: &mut Child) {
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return;
    };
    let _it_may_be_gone = kill_process(pid, Signal::TERM);
    let begun = Instant::now();
    while begun.elapsed() < GRACE {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
    let _it_may_be_gone = child.kill();
}

/// Returns the last lines of a job's standard error.
fn last_words(mut errors: File) -> String {
    use std::io::{Read, Seek};
    let mut text = Vec::new();
    let read = errors.rewind().and_then(|()| errors.read_to_end(&mut text));
    if read.is_err() {
        return "its error output cannot be read".to_owned();
    }
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<&str> = text.lines().rev().filter(|line| !line.is_empty()).collect();
    lines.truncate(3);
    lines.reverse();
    match lines.is_empty() {
        true => "no error output".to_owned(),
        false => lines.join(" / "),
    }
}

//! Starts the ranks of one subject and collects what they tell.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use dipole_testbed::Testbed;
use rustix::process::{Pid, Signal, kill_process};

use super::super::mpi::{Library, Network, Start};
use super::sample::Told;
use super::{Link, ProbePlan};

/// The source of what MPI libraries are measured with.
const PEER_SOURCE: &str = include_str!("../../peers/superstep.c");
/// How long ranks that were told to end may take.
const GRACE: Duration = Duration::from_secs(5);
/// A port for bare datagrams in namespaces of our own, where all are free.
const BARE_PORT: u16 = 29_000;

/// Why a job yields nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error("cannot start {program}: {cause}")]
    Start { program: String, cause: io::Error },
    #[error("cannot prepare it: {0}")]
    Prepare(io::Error),
    #[error("it was not done after {} s and was ended", .0.as_secs())]
    Late(Duration),
    #[error("it ended with {status}: {words}")]
    Ended { status: String, words: String },
}

/// A library that is here, and its compiled program.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) library: Library,
    program: PathBuf,
}

impl Peer {
    /// Compiles what is measured into a folder; says why that cannot be done.
    pub(crate) fn prepare(library: Library, folder: &Path) -> Result<Peer, String> {
        let name = library.name();
        let source = folder.join("superstep.c");
        let written = std::fs::write(&source, PEER_SOURCE)
            .map_err(|cause| format!("cannot write {}: {cause}", source.display()));
        let program = written.and_then(|()| library.compile(&source, &folder.join(name), &[]));
        let program = program.map_err(|what| {
            let packages = library.packages();
            format!("{name} is left out: {what} (Debian has it in {packages})")
        })?;
        Ok(Peer { library, program })
    }
}

/// Where ranks run: each on a node of its own, or all on this one.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// All on this node; the folder is for files of the job.
    Here(&'a Path),
    /// One on each node.
    Apart(&'a Testbed),
}

impl Place<'_> {
    pub(crate) fn nodes(self, ranks: u32) -> u32 {
        match self {
            Place::Here(_) => 1,
            Place::Apart(_) => ranks,
        }
    }

    pub(crate) fn name(self, link: Link) -> &'static str {
        match self {
            Place::Apart(_) => "veth",
            Place::Here(_) if link == Link::Shm => "node",
            Place::Here(_) => "loopback",
        }
    }
}

/// A job of one subject.
pub(crate) struct Job<'a> {
    pub(crate) plan: &'a ProbePlan,
    pub(crate) ranks: u32,
    pub(crate) link: Link,
    pub(crate) place: Place<'a>,
    /// Cores of the ranks; empty if they are not bound.
    pub(crate) cores: &'a [usize],
}

impl Job<'_> {
    /// Measures Dipole.
    pub(crate) fn dipole(&self) -> Result<Vec<Told>, JobError> {
        let program = std::env::current_exe().map_err(JobError::Prepare)?;
        let mut command = match self.place {
            Place::Here(folder) => {
                let mut command = Command::new(&program);
                command
                    .env("DIPOLE_HOSTS", "")
                    .env("DIPOLE_NID", "1")
                    .env("DIPOLE_RUNTIME_DIR", folder.join("run"));
                command
            }
            Place::Apart(testbed) => testbed.command(1, &program),
        };
        command.args(["run", "-n", &self.ranks.to_string()]);
        if let Place::Apart(testbed) = self.place {
            command.arg("--hosts").arg(testbed.hosts_file());
            command.arg("--rsh").arg(testbed.remote_shell());
        }
        command.args(["--env", &format!("DIPOLE_LINK={}", self.link.name())]);
        command.arg(&program).args(["bsp", "rank"]);
        for (option, value) in [
            ("--seconds", self.plan.seconds.to_string()),
            ("--samples", self.plan.samples.to_string()),
            ("--most-bytes", self.plan.most_bytes.to_string()),
        ] {
            command.args([option, &value]);
        }
        if let Some(count) = self.plan.each {
            command.args(["--each", &count.to_string()]);
        }
        if !self.cores.is_empty() {
            command.args(["--cores", &self.cores_text()]);
        }
        if self.link != Link::Shm && self.ranks > 1 {
            command.args(["--bare", &self.bare()?]);
        }
        self.told(command)
    }

    /// Measures an MPI library, by shared memory or by TCP.
    pub(crate) fn peer(&self, peer: &Peer) -> Result<Vec<Told>, JobError> {
        let network = match self.place {
            Place::Here(_) => None,
            Place::Apart(testbed) => Some(Network {
                namespaces: (1..=self.ranks)
                    .map(|node| testbed.node(node).namespace.clone().into())
                    .collect(),
                subnet: "10.0.0.0/24",
                interface: "net0",
            }),
        };
        let start = Start {
            ranks: self.ranks,
            is_local: self.link == Link::Shm,
            gives_way: self.cores.is_empty(),
            network,
        };
        let work = [
            peer.program.clone().into_os_string(),
            self.plan.seconds.to_string().into(),
            self.plan.samples.to_string().into(),
            self.plan.most_bytes.to_string().into(),
            match self.cores.is_empty() {
                true => "-".into(),
                false => self.cores_text().into(),
            },
        ];
        let (words, environment) = peer.library.command(&start, &work);
        let mut command = match self.place {
            Place::Here(_) => Command::new(&words[0]),
            Place::Apart(testbed) => testbed.command(1, &words[0]),
        };
        command.args(&words[1..]).envs(environment);
        self.told(command)
    }

    fn cores_text(&self) -> String {
        let cores: Vec<String> = self.cores.iter().map(ToString::to_string).collect();
        cores.join(",")
    }

    /// Where ranks 0 and 1 exchange bare datagrams.
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
                // Both are held until both are known, so that they differ.
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

    /// Runs a command to its end; the lines of its output that are results.
    fn told(&self, mut command: Command) -> Result<Vec<Told>, JobError> {
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
        let mut told = Vec::new();
        let is_late = loop {
            let left = self.plan.limit.saturating_sub(begun.elapsed());
            match inbox.recv_timeout(left) {
                // What is no result is a remark of a launcher's.
                Ok(line) => told.extend(serde_json::from_str(&line).ok()),
                Err(RecvTimeoutError::Disconnected) => break false,
                Err(RecvTimeoutError::Timeout) => break true,
            }
        };
        if is_late {
            end(&mut child);
        }
        let status = child.wait().map_err(JobError::Prepare)?;
        drop(inbox);
        let _a_reader_that_panicked_has_told_nothing = reader.join();
        match (is_late, status.success()) {
            (true, _) => Err(JobError::Late(self.plan.limit)),
            (false, false) => Err(JobError::Ended {
                status: status.to_string(),
                words: last_words(copy),
            }),
            (false, true) => Ok(told),
        }
    }
}

/// Ends a launcher, and with it its ranks.
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

/// The last lines that a job has written to its standard error.
fn last_words(mut errors: File) -> String {
    use std::io::{Read, Seek};
    let mut text = Vec::new();
    let read = errors.rewind().and_then(|()| errors.read_to_end(&mut text));
    if read.is_err() {
        return "its words cannot be read".to_owned();
    }
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<&str> = text.lines().rev().filter(|line| !line.is_empty()).collect();
    lines.truncate(3);
    lines.reverse();
    match lines.is_empty() {
        true => "it said nothing".to_owned(),
        false => lines.join(" / "),
    }
}

//! `dipole shim`: starts the ranks of one host for the launcher, forwards their input and output,
//! and ends them on request, or when the launcher or the guard is gone.
//!
//! It exchanges messages over its standard input and output. End of input, death of the guard and a
//! request of the launcher have the same effect: all processes below this one are killed.

mod images;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use clap::Args;
use dipole_checkpoint::{Identity, Store};
use dipole_naming::environment::default_runtime_dir;
use dipole_naming::threads;
use dipole_node::{NodeId, variables};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use rustix::io::{DupFlags, dup3};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::budget::Budget;
use super::descendants;
use super::guard::watch_parent;
use super::keeper::FromKeeper;
use super::load;
use super::message::{
    self, BANNER, Hello, LoadTable, RankStart, Secret, Start, Stream, ToLauncher, ToShim,
};
use super::mpi;
use super::placement::share;
use super::pmi::PmiServer;
use super::program;
use super::read_pieces;

/// Arguments of the hidden subcommand `shim`.
#[derive(Args, Debug)]
pub struct ShimArgs {
    /// The guard, its parent.
    #[arg(long)]
    parent: Option<u32>,
    /// Number of ranks it may start.
    #[arg(long)]
    max_ranks: Option<u32>,
}

/// Maximum output waiting here for a slow launcher.
const OUTPUT_BUDGET_BYTES: usize = 1 << 20;
/// Pause between two rounds of killing.
const SWEEP_PAUSE: Duration = Duration::from_millis(3);

enum Event {
    Command(ToShim),
    /// A message of the process that keeps images.
    Keeper(FromKeeper),
    /// The launcher or the guard is gone.
    Disconnected,
    Died(Pid, WaitStatus),
    NoChildren,
}

/// Runs `dipole shim`, the parent process of the ranks on a node.
pub fn shim(args: &ShimArgs) -> ExitCode {
    let Err(cause) = try_shim(args) else {
        return ExitCode::SUCCESS;
    };
    eprintln!("dipole shim: {cause}");
    descendants::end_all();
    ExitCode::FAILURE
}

fn try_shim(args: &ShimArgs) -> io::Result<()> {
    descendants::adopt_orphans()?;
    let guard = watch_parent(args.parent)?;
    let mut control = io::stdin().lock();
    io::stdout().write_all(BANNER)?;
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        max_ranks: args.max_ranks,
    };
    message::write(&ToLauncher::Hello(hello), &mut io::stdout())?;
    // The launcher may not need this host.
    let Some(mut start) = read_start(&mut control)? else {
        return Ok(());
    };
    drop(control);
    if let Some(most) = args.max_ranks
        && start.ranks.len() > most as usize
    {
        let ranks = start.ranks.len();
        return Err(io::Error::other(format!(
            "the launcher requested {ranks} ranks, but only {most} are allowed"
        )));
    }

    let (events, inbox) = channel();
    let (outbox, to_write) = channel();
    let budget = Budget::new(OUTPUT_BUDGET_BYTES);
    let writer = threads::start("dipole-output", {
        let (events, budget) = (events.clone(), budget.clone());
        move || write_all(&to_write, &budget, &events)
    })?;
    threads::start("dipole-control", {
        let events = events.clone();
        move || read_control(&events)
    })?;
    if let Some(guard) = guard {
        threads::start("dipole-guard", {
            let events = events.clone();
            move || watch(&guard, &events)
        })?;
    }
    let mut host = HostRanks {
        ranks: Vec::new(),
        input: None,
        readers: Vec::new(),
        pmi: PmiServer::new(start.pmi.clone(), start.ranks.len(), outbox.clone()),
        outbox,
        budget,
        hosts: None,
        key: None,
        images: None,
    };
    if let Err(cause) = host.begin(&mut start, &events) {
        let reason = format!("the ranks cannot be started: {cause}");
        let _ = host.outbox.send(ToLauncher::Refused { reason, status: 1 });
    }
    threads::start("dipole-reap", move || reap(&events))?;
    host.run(&start, &inbox);
    host.end_images();
    host.pmi.close();
    for reader in host.readers.drain(..) {
        let _ = reader.join();
    }
    let _ = host.outbox.send(ToLauncher::Done);
    drop(host);
    let _ = writer.join();
    Ok(())
}

/// Reads the ranks to start; before them the launcher may request loads and a list of images.
/// Returns `None` if the launcher has disconnected.
fn read_start(control: &mut impl io::BufRead) -> io::Result<Option<Box<Start>>> {
    let mut reported: Option<PathBuf> = None;
    loop {
        match message::read(control)? {
            Some(ToShim::Start(start)) => return Ok(Some(start)),
            Some(ToShim::ReportImages { folder }) => {
                message::write(&images::listed(&folder), &mut io::stdout())?;
                reported = Some(folder);
            }
            Some(ToShim::Load { node, runtime_dir }) => {
                let table = ToLauncher::Load(load_table(node, runtime_dir));
                message::write(&table, &mut io::stdout())?;
            }
            Some(_) => {
                return Err(io::Error::other(
                    "the launcher sent an unexpected message instead of ranks to start",
                ));
            }
            None => {
                // The job goes on without this host.
                if let Some(folder) = reported {
                    images::remove(&folder);
                }
                return Ok(None);
            }
        }
    }
}

/// The table of loads of the agent of a node on this host.
fn load_table(node: u32, runtime_dir: Option<PathBuf>) -> LoadTable {
    let folder = runtime_dir.unwrap_or_else(default_runtime_dir);
    load::request_in(&folder, NodeId(node)).map_err(|cause| cause.to_string())
}

struct Rank {
    rank: u32,
    pid: Pid,
    running: bool,
}

/// The ranks of this host.
struct HostRanks {
    ranks: Vec<Rank>,
    /// Input for rank 0, until it ends.
    input: Option<Sender<Vec<u8>>>,
    readers: Vec<std::thread::JoinHandle<()>>,
    outbox: Sender<ToLauncher>,
    budget: Budget,
    /// The hosts file, kept open for the ranks to read.
    hosts: Option<OwnedFd>,
    /// The cluster key, kept open for the ranks to read.
    key: Option<OwnedFd>,
    pmi: PmiServer,
    /// Images that are kept in memory here.
    images: Option<images::Kept>,
}

impl HostRanks {
    /// Writes the files that ranks read.
    fn prepare(&mut self, start: &Start) -> io::Result<()> {
        let hosts = start.hosts.as_deref();
        self.hosts = hosts
            .map(|text| in_memory("dipole-hosts", text))
            .transpose()?;
        let key = start.key.as_ref();
        self.key = key.map(|key| in_memory("dipole-key", &key.0)).transpose()?;
        Ok(())
    }

    /// Sets the variables of a rank.
    fn set_environment(&self, command: &mut Command, start: &Start, rank: u32) {
        set_environment(command, start, rank);
        for (name, file) in [(variables::HOSTS, &self.hosts), (variables::KEY, &self.key)] {
            if let Some(file) = file {
                // The path leads through this process, which outlives all ranks, so no file is left
                // behind.
                let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
                command.env(name, path);
            }
        }
    }

    /// Starts all ranks. Must be called from the first thread: a rank is killed when the thread
    /// that started it ends.
    fn start(&mut self, start: &Start) -> io::Result<()> {
        let directory = match self.directory(start) {
            Ok(directory) => directory,
            Err(reason) => {
                let _ = self.outbox.send(ToLauncher::Refused { reason, status: 1 });
                return Ok(());
            }
        };
        if let Some((reason, status)) = missing_program(start, directory.as_deref())? {
            let _ = self.outbox.send(ToLauncher::Refused { reason, status });
            return Ok(());
        }
        let cores = self.bind(start)?;
        for rank in &start.ranks {
            let mut command = rank_command(start, rank, cores.as_deref())?;
            self.set_environment(&mut command, start, rank.rank);
            if let Some(directory) = &directory {
                command.current_dir(directory);
            }
            // Only this rank may inherit its end of the connection.
            let connection = self.pmi.connect(rank.rank, &mut command)?;
            self.spawn(rank.rank, command)?;
            drop(connection);
        }
        Ok(())
    }

    /// The directory of the ranks, if it exists. Otherwise they start in the current one, which is
    /// the home directory, or the start is refused because the directory is required.
    fn directory(&self, start: &Start) -> Result<Option<PathBuf>, String> {
        if start.directory.is_dir() {
            return Ok(Some(start.directory.clone()));
        }
        let missing = format!("there is no directory {}", start.directory.display());
        if start.directory_required {
            return Err(missing);
        }
        let _ = self.outbox.send(ToLauncher::Warning(format!(
            "{missing}; the ranks start in the home directory"
        )));
        Ok(None)
    }

    /// Starts a rank and the threads that forward its input and output.
    fn spawn(&mut self, rank: u32, mut command: Command) -> io::Result<()> {
        let mut child = command.spawn()?;
        self.ranks.push(Rank {
            rank,
            pid: Pid::from_child(&child),
            running: true,
        });
        let _ = self.outbox.send(ToLauncher::Started {
            rank,
            pid: child.id(),
        });
        if let Some(stdin) = child.stdin.take() {
            let (input, to_feed) = channel();
            self.input = Some(input);
            let outbox = self.outbox.clone();
            threads::start("dipole-input", move || feed(stdin, &to_feed, &outbox))?;
        }
        if let Some(stdout) = child.stdout.take() {
            self.forward(rank, Stream::Stdout, stdout)?;
        }
        if let Some(stderr) = child.stderr.take() {
            self.forward(rank, Stream::Stderr, stderr)?;
        }
        Ok(())
    }

    /// Reports which rank gets which cores; returns the cores of this host, if ranks are bound.
    fn bind(&self, start: &Start) -> io::Result<Option<Vec<usize>>> {
        let usable = sched_getaffinity(None)?;
        let usable = (0..CpuSet::MAX_CPU).filter(|core| usable.is_set(*core));
        let Some(cores) = start.binding.cores(usable.collect()) else {
            return Ok(None);
        };
        let _ = self.outbox.send(ToLauncher::Warning(bound(start, &cores)));
        Ok(Some(cores))
    }

    fn forward(
        &mut self,
        rank: u32,
        stream: Stream,
        from: impl Read + Send + 'static,
    ) -> io::Result<()> {
        let (outbox, budget) = (self.outbox.clone(), self.budget.clone());
        self.readers.push(threads::start("dipole-forward", move || {
            let _nobody_listens = read_pieces(from, 1 << 16, |piece| {
                budget.take(piece.len());
                let bytes = piece.to_vec();
                outbox.send(ToLauncher::Output {
                    rank,
                    stream,
                    bytes,
                })
            });
            let _nobody_listens = outbox.send(ToLauncher::OutputEnded { rank });
        })?);
        Ok(())
    }

    /// Handles events until no process is left.
    fn run(&mut self, start: &Start, inbox: &Receiver<Event>) {
        let mut kill_at: Option<Instant> = None;
        let mut sweeping = false;
        loop {
            let has_work = self.ranks.iter().any(|rank| rank.running) || self.needs_images();
            sweeping |= !has_work || kill_at.is_some_and(|at| at <= Instant::now());
            let event = if sweeping {
                descendants::kill_once();
                inbox.recv_timeout(SWEEP_PAUSE)
            } else if let Some(at) = kill_at {
                inbox.recv_timeout(at.saturating_duration_since(Instant::now()))
            } else {
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            match event {
                Ok(Event::Command(ToShim::Input(bytes))) => {
                    // The launcher sends input only to the host of rank 0.
                    if let Some(input) = &self.input {
                        let _ = input.send(bytes);
                    }
                }
                Ok(Event::Command(ToShim::InputEnd)) => self.input = None,
                Ok(Event::Command(ToShim::Signal(signal))) => {
                    if let Some(signal) = Signal::from_named_raw(signal) {
                        self.signal(signal);
                    }
                }
                Ok(Event::Command(ToShim::End { grace_ms })) => {
                    let at = Instant::now() + Duration::from_millis(grace_ms.into());
                    kill_at = Some(kill_at.map_or(at, |former| former.min(at)));
                    self.signal(Signal::TERM);
                    // A stopped process would not handle SIGTERM.
                    self.signal(Signal::CONT);
                }
                Ok(Event::Command(ToShim::Key(key))) => self.replace_key(&key),
                Ok(Event::Command(
                    command @ (ToShim::EndImages { .. }
                    | ToShim::RemoveImages(_)
                    | ToShim::HoldCheckpoints(_)),
                )) => self.on_images(command),
                Ok(Event::Keeper(message)) => self.on_keeper(message, start),
                Ok(Event::Command(ToShim::PmiBarrier(entries))) => self.pmi.end_barrier(entries),
                Ok(Event::Command(ToShim::Load { node, runtime_dir })) => {
                    let outbox = self.outbox.clone();
                    // The agent may take a while.
                    let look = move || {
                        let _ = outbox.send(ToLauncher::Load(load_table(node, runtime_dir)));
                    };
                    if let Err(cause) = threads::start("dipole-load", look) {
                        let table = ToLauncher::Load(Err(cause.to_string()));
                        let _ = self.outbox.send(table);
                    }
                }
                Ok(Event::Command(ToShim::Start(_) | ToShim::ReportImages { .. }))
                | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Disconnected) => sweeping = true,
                Ok(Event::Died(pid, status)) => self.on_exit(pid, status),
                Ok(Event::NoChildren) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Replaces the key of the ranks, which check the file regularly. The replacement is atomic: at
    /// every moment the file has one complete key.
    fn replace_key(&mut self, key: &Secret) {
        let Some(current) = &mut self.key else { return };
        let replaced = in_memory("dipole-key", &key.0)
            .and_then(|fresh| Ok(dup3(&fresh, current, DupFlags::CLOEXEC)?));
        if let Err(cause) = replaced {
            let _ = self.outbox.send(ToLauncher::Warning(format!(
                "cannot replace the cluster key of the ranks here: {cause}"
            )));
        }
    }

    /// Signals the process group of every running rank. The group id of an ended rank may have been
    /// reused.
    fn signal(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| rank.running) {
            let _ = kill_process_group(rank.pid, signal);
        }
    }

    fn on_exit(&mut self, pid: Pid, status: WaitStatus) {
        self.note_keeper_end(pid);
        if let Some(rank) = self
            .ranks
            .iter_mut()
            .find(|rank| rank.pid == pid && rank.running)
        {
            rank.running = false;
            let _ = self.outbox.send(ToLauncher::Exited {
                rank: rank.rank,
                ending: status.into(),
            });
        }
    }
}

/// Why a program of the ranks cannot be started, with the exit status of shells.
fn missing_program(start: &Start, directory: Option<&Path>) -> io::Result<Option<(String, u8)>> {
    let directory = match directory {
        Some(directory) => directory.to_owned(),
        None => std::env::current_dir()?,
    };
    let search = start.environment.get("PATH").cloned();
    let search = search.or_else(|| std::env::var_os("PATH"));
    let mut programs = start.ranks.iter().filter_map(|rank| {
        let command = start.commands.get(rank.program as usize);
        command.and_then(|words| words.first())
    });
    Ok(programs.find_map(|program| program::why_not(program, &directory, search.as_deref())))
}

/// The cores of each rank as text. Ranks that share a core are listed by core.
fn bound(start: &Start, cores: &[usize]) -> String {
    let is_crowded = |one: &RankStart| one.local.count as usize > cores.len();
    if !start.ranks.iter().any(is_crowded) {
        let shares = start.ranks.iter().map(|one| {
            let share = listed(share(cores, one.local));
            format!("rank {} on {share}", one.rank)
        });
        return format!("bound to cores: {}", shares.collect::<Vec<_>>().join(", "));
    }
    let mut by_core: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in &start.ranks {
        let ranks = by_core.entry(listed(share(cores, one.local))).or_default();
        ranks.push(one.rank.to_string());
    }
    let shares = by_core.iter().map(|(core, ranks)| match &ranks[..] {
        [one] => format!("rank {one} on {core}"),
        [first, .., last] => format!("ranks {first} to {last} on {core}"),
        [] => String::new(),
    });
    format!(
        "bound to cores: {}; there are more ranks than cores, so some share one",
        shares.collect::<Vec<_>>().join(", ")
    )
}

/// The command of a rank; `cores` are those of the host if ranks are bound.
fn rank_command(start: &Start, rank: &RankStart, cores: Option<&[usize]>) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("rank-exec")
        .args(["--parent", &std::process::id().to_string()])
        .args(["--rank", &rank.rank.to_string()]);
    if let Some(cores) = cores {
        command.args(["--cores", &listed(share(cores, rank.local))]);
    }
    let program = start.commands.get(rank.program as usize);
    let stdin = match rank.rank {
        0 => Stdio::piped(),
        _ => Stdio::null(),
    };
    if let Some(images) = &start.images {
        let identity = Identity {
            set: images.set,
            rank: rank.rank,
            size: images.size,
        };
        command
            .arg("--image")
            .arg(Store::new(images.folder.clone()).image(identity));
    }
    command
        .arg("--")
        .args(program.into_iter().flatten())
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    Ok(command)
}

/// Sets the variables of a rank that are the same for all ways to start it.
fn set_environment(command: &mut Command, start: &Start, rank: u32) {
    command
        .env_remove(variables::HOSTS)
        .env_remove(variables::KEY)
        .envs(mpi::variables())
        .envs(&start.environment)
        .env("DIPOLE_RANK", rank.to_string());
    let agent_key = std::env::var_os(variables::KEY)
        .filter(|_| start.uses_agent_key && !start.environment.contains_key(variables::KEY));
    if let Some(file) = agent_key {
        command.env(variables::KEY, file);
    }
}

/// Numbers of cores, separated by commas.
fn listed(cores: &[usize]) -> String {
    let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
    cores.join(",")
}

/// A file in memory that only this user can read and that exists as long as this process.
fn in_memory(name: &str, text: &str) -> io::Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC)?;
    fchmod(&memory, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(memory);
    file.write_all(text.as_bytes())?;
    Ok(file.into())
}

fn write_all(to_write: &Receiver<ToLauncher>, budget: &Budget, events: &Sender<Event>) {
    let mut out = io::stdout().lock();
    let mut broken = false;
    for message in to_write {
        if !broken && message::write(&message, &mut out).is_err() {
            broken = true;
            let _ = events.send(Event::Disconnected);
        }
        if let ToLauncher::Output { bytes, .. } = &message {
            budget.give(bytes.len());
        }
    }
}

fn read_control(events: &Sender<Event>) {
    let mut control = io::stdin().lock();
    while let Ok(Some(message)) = message::read(&mut control) {
        let _ = events.send(Event::Command(message));
    }
    let _ = events.send(Event::Disconnected);
}

fn watch(guard: &OwnedFd, events: &Sender<Event>) {
    let mut watched = [PollFd::new(guard, PollFlags::IN)];
    while let Err(rustix::io::Errno::INTR) = poll(&mut watched, None) {}
    let _ = events.send(Event::Disconnected);
}

fn reap(events: &Sender<Event>) {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => {
                let _ = events.send(Event::Died(pid, status));
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => {
                let _ = events.send(Event::NoChildren);
                return;
            }
        }
    }
}

/// Writes input to a rank. Dropping `stdin` at the end sends end of file.
fn feed(mut stdin: impl Write, to_feed: &Receiver<Vec<u8>>, outbox: &Sender<ToLauncher>) {
    let mut closed = false;
    for bytes in to_feed {
        // The launcher does not need to know that a rank has closed its input.
        closed = closed || stdin.write_all(&bytes).is_err();
        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let _ = outbox.send(ToLauncher::InputTaken(count));
    }
}

//! `dipole shim`: starts the ranks of one host for the launcher, carries their input and output, and
//! ends everything when told to, or when launcher or guard are gone.
//!
//! It exchanges messages over its standard input and output. Input that ends, a guard that dies and
//! a launcher that asks for it all mean the same: no process below this one survives.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use clap::Args;
use dipole_node::variables;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};
use rustix::io::{DupFlags, dup3};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process_group, wait};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::budget::Budget;
use super::descendants;
use super::guard::watch_parent;
use super::message::{self, BANNER, Down, Ending, Hello, Secret, Start, Stream, Up};
use super::placement::share;
use super::program;
use super::read_pieces;

/// Arguments of the hidden subcommand `shim`.
#[derive(Args, Debug)]
pub struct ShimArgs {
    /// The guard above.
    #[arg(long)]
    parent: Option<u32>,
    /// How many ranks it may start.
    #[arg(long)]
    most_ranks: Option<u32>,
}

/// Output that may wait here for a slow launcher.
const OUTPUT_BUDGET_BYTES: usize = 1 << 20;
/// Pause between two rounds of killing.
const SWEEP_PAUSE: Duration = Duration::from_millis(3);

enum Event {
    Command(Down),
    /// The launcher or the guard is gone.
    Disconnected,
    Died(Pid, WaitStatus),
    NoChildren,
}

/// Runs the shim.
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
        most_ranks: args.most_ranks,
    };
    message::write(&Up::Hello(hello), &mut io::stdout())?;
    let start = match message::read(&mut control)? {
        Some(Down::Start(start)) => start,
        Some(_) => {
            return Err(io::Error::other(
                "the launcher sent an unexpected message instead of ranks to start",
            ));
        }
        // The launcher does not need this host.
        None => return Ok(()),
    };
    drop(control);
    if let Some(most) = args.most_ranks
        && start.ranks.len() > most as usize
    {
        let ranks = start.ranks.len();
        return Err(io::Error::other(format!(
            "the launcher wants {ranks} ranks started, but only {most} are allowed"
        )));
    }

    let (events, inbox) = channel();
    let (outbox, to_write) = channel();
    let budget = Budget::new(OUTPUT_BUDGET_BYTES);
    let writer = std::thread::spawn({
        let (events, budget) = (events.clone(), budget.clone());
        move || write_all(&to_write, &budget, &events)
    });
    std::thread::spawn({
        let events = events.clone();
        move || read_control(&events)
    });
    if let Some(guard) = guard {
        std::thread::spawn({
            let events = events.clone();
            move || watch(&guard, &events)
        });
    }
    let mut host = HostRanks {
        ranks: Vec::new(),
        input: None,
        readers: Vec::new(),
        outbox,
        budget,
        hosts: None,
        key: None,
    };
    host.start(&start)?;
    std::thread::spawn(move || reap(&events));
    host.run(&inbox);
    for reader in host.readers.drain(..) {
        let _ = reader.join();
    }
    let _ = host.outbox.send(Up::Done);
    drop(host);
    let _ = writer.join();
    Ok(())
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
    outbox: Sender<Up>,
    budget: Budget,
    /// The hosts file, open for the ranks to read as long as there are any.
    hosts: Option<OwnedFd>,
    /// The cluster key, likewise.
    key: Option<OwnedFd>,
}

impl HostRanks {
    /// Starts all ranks. From the first thread: a rank is killed when the thread
    /// that started it ends.
    fn start(&mut self, start: &Start) -> io::Result<()> {
        let hosts = start
            .hosts
            .as_deref()
            .map(|text| in_memory("dipole-hosts", text));
        let hosts = hosts.transpose()?;
        let key = start
            .key
            .as_ref()
            .map(|key| in_memory("dipole-key", &key.0));
        let key = key.transpose()?;
        let kept_key = std::env::var_os(variables::KEY)
            .filter(|_| start.keeps_key && !start.environment.contains_key(variables::KEY));
        let directory_is_there = start.directory.is_dir();
        if !directory_is_there && start.directory_required {
            let reason = format!("there is no directory {}", start.directory.display());
            let _ = self.outbox.send(Up::Refused { reason, status: 1 });
            return Ok(());
        }
        if !directory_is_there {
            let _ = self.outbox.send(Up::Warning(format!(
                "there is no directory {}; the ranks start in the home directory",
                start.directory.display()
            )));
        }
        let directory = match directory_is_there {
            true => start.directory.clone(),
            false => std::env::current_dir()?,
        };
        let search = start.environment.get("PATH").cloned();
        let search = search.or_else(|| std::env::var_os("PATH"));
        for one in &start.ranks {
            let command = start.commands.get(one.program as usize);
            let program = command.and_then(|words| words.first());
            let wrong = program.and_then(|it| program::why_not(it, &directory, search.as_deref()));
            if let Some((reason, status)) = wrong {
                let _ = self.outbox.send(Up::Refused { reason, status });
                return Ok(());
            }
        }
        let cores = match start.bind {
            true => self.bind(start)?,
            false => Vec::new(),
        };
        for one in &start.ranks {
            let rank = one.rank;
            let mut command = Command::new(std::env::current_exe()?);
            command
                .arg("rank-exec")
                .args(["--parent", &std::process::id().to_string()])
                .args(["--rank", &rank.to_string()]);
            if start.bind {
                command.args(["--cores", &listed(share(&cores, one.place))]);
            }
            command
                .arg("--")
                .args(
                    start
                        .commands
                        .get(one.program as usize)
                        .into_iter()
                        .flatten(),
                )
                .env_remove("DIPOLE_HOSTS")
                .env_remove("DIPOLE_KEY")
                .envs(&start.environment)
                .env("DIPOLE_RANK", rank.to_string())
                .stdin(if rank == 0 {
                    Stdio::piped()
                } else {
                    Stdio::null()
                })
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .process_group(0);
            if let Some(file) = &kept_key {
                command.env(variables::KEY, file);
            }
            for (name, file) in [("DIPOLE_HOSTS", &hosts), ("DIPOLE_KEY", &key)] {
                if let Some(file) = file {
                    // Through this process, which outlives all ranks, so that no file stays behind.
                    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
                    command.env(name, path);
                }
            }
            if directory_is_there {
                command.current_dir(&start.directory);
            }
            let mut child = command.spawn()?;
            self.ranks.push(Rank {
                rank,
                pid: Pid::from_child(&child),
                running: true,
            });
            let _ = self.outbox.send(Up::Started {
                rank,
                pid: child.id(),
            });
            if let Some(stdin) = child.stdin.take() {
                let (input, to_feed) = channel();
                self.input = Some(input);
                let outbox = self.outbox.clone();
                std::thread::spawn(move || feed(stdin, &to_feed, &outbox));
            }
            if let Some(stdout) = child.stdout.take() {
                self.carry(rank, Stream::Stdout, stdout);
            }
            if let Some(stderr) = child.stderr.take() {
                self.carry(rank, Stream::Stderr, stderr);
            }
        }
        self.hosts = hosts;
        self.key = key;
        Ok(())
    }

    /// Says which rank gets which cores; all cores that may be used.
    fn bind(&self, start: &Start) -> io::Result<Vec<usize>> {
        let usable = sched_getaffinity(None)?;
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|core| usable.is_set(*core))
            .collect();
        let told = start.ranks.iter().map(|one| {
            let share = listed(share(&cores, one.place));
            format!("rank {} on {share}", one.rank)
        });
        let told: Vec<String> = told.collect();
        let crowded = start
            .ranks
            .iter()
            .any(|one| one.place.1 as usize > cores.len());
        let remark = match crowded {
            true => "; there are more ranks than cores, so some share one",
            false => "",
        };
        let text = format!("bound to cores: {}{remark}", told.join(", "));
        let _ = self.outbox.send(Up::Warning(text));
        Ok(cores)
    }

    fn carry(&mut self, rank: u32, stream: Stream, from: impl Read + Send + 'static) {
        let (outbox, budget) = (self.outbox.clone(), self.budget.clone());
        self.readers.push(std::thread::spawn(move || {
            let _nobody_listens = read_pieces(from, 1 << 16, |piece| {
                budget.take(piece.len());
                let bytes = piece.to_vec();
                outbox.send(Up::Output {
                    rank,
                    stream,
                    bytes,
                })
            });
        }));
    }

    /// Handles events until no process is left.
    fn run(&mut self, inbox: &Receiver<Event>) {
        let mut kill_at: Option<Instant> = None;
        let mut sweeping = false;
        loop {
            sweeping |= !self.ranks.iter().any(|rank| rank.running)
                || kill_at.is_some_and(|at| at <= Instant::now());
            let event = if sweeping {
                descendants::kill_once();
                inbox.recv_timeout(SWEEP_PAUSE)
            } else if let Some(at) = kill_at {
                inbox.recv_timeout(at.saturating_duration_since(Instant::now()))
            } else {
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            match event {
                Ok(Event::Command(Down::Input(bytes))) => {
                    // The launcher sends input only to the host of rank 0.
                    if let Some(input) = &self.input {
                        let _ = input.send(bytes);
                    }
                }
                Ok(Event::Command(Down::InputEnd)) => self.input = None,
                Ok(Event::Command(Down::Signal(signal))) => {
                    if let Some(signal) = Signal::from_named_raw(signal) {
                        self.signal(signal);
                    }
                }
                Ok(Event::Command(Down::End { grace_ms })) => {
                    let at = Instant::now() + Duration::from_millis(grace_ms.into());
                    kill_at = Some(kill_at.map_or(at, |former| former.min(at)));
                    self.signal(Signal::TERM);
                    // A stopped process would not act on it.
                    self.signal(Signal::CONT);
                }
                Ok(Event::Command(Down::Key(key))) => self.exchange(&key),
                Ok(Event::Command(Down::Start(_))) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::Disconnected) => sweeping = true,
                Ok(Event::Died(pid, status)) => self.died(pid, status),
                Ok(Event::NoChildren) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Gives the ranks another key, in place of the one they were started with: they look at the
    /// file again by themselves. At every moment it holds all of the one or all of the other.
    fn exchange(&mut self, key: &Secret) {
        let Some(held) = &mut self.key else { return };
        let exchanged = in_memory("dipole-key", &key.0)
            .and_then(|fresh| Ok(dup3(&fresh, held, DupFlags::CLOEXEC)?));
        if let Err(cause) = exchanged {
            let _ = self.outbox.send(Up::Warning(format!(
                "the ranks here keep the cluster key as it was: {cause}"
            )));
        }
    }

    /// Signals the process group of every running rank: once a rank has ended, its group id may be
    /// another's.
    fn signal(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| rank.running) {
            let _ = kill_process_group(rank.pid, signal);
        }
    }

    fn died(&mut self, pid: Pid, status: WaitStatus) {
        if let Some(rank) = self
            .ranks
            .iter_mut()
            .find(|rank| rank.pid == pid && rank.running)
        {
            rank.running = false;
            let _ = self.outbox.send(Up::Exited {
                rank: rank.rank,
                ending: ending_of(status),
            });
        }
    }
}

/// Numbers of cores, between commas.
fn listed(cores: &[usize]) -> String {
    let cores: Vec<String> = cores.iter().map(ToString::to_string).collect();
    cores.join(",")
}

/// How a process that was waited for ended.
pub(super) fn ending_of(status: WaitStatus) -> Ending {
    let small = |number: i32| u8::try_from(number & 0xff).unwrap_or(u8::MAX);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ending::Code(small(code)),
        (None, Some(signal)) => Ending::Signal(small(signal)),
        (None, None) => Ending::Code(u8::MAX),
    }
}

/// A file that only this user may read and that exists as long as this process.
fn in_memory(name: &str, text: &str) -> io::Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC)?;
    fchmod(&memory, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(memory);
    file.write_all(text.as_bytes())?;
    Ok(file.into())
}

fn write_all(to_write: &Receiver<Up>, budget: &Budget, events: &Sender<Event>) {
    let mut out = io::stdout().lock();
    let mut broken = false;
    for message in to_write {
        if !broken && message::write(&message, &mut out).is_err() {
            broken = true;
            let _ = events.send(Event::Disconnected);
        }
        if let Up::Output { bytes, .. } = &message {
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

/// Dropping `stdin`, when no more input comes, is its end of file.
fn feed(mut stdin: impl Write, to_feed: &Receiver<Vec<u8>>, outbox: &Sender<Up>) {
    let mut closed = false;
    for bytes in to_feed {
        // A rank that has closed its input does not concern the launcher.
        closed = closed || stdin.write_all(&bytes).is_err();
        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let _ = outbox.send(Up::InputTaken(count));
    }
}

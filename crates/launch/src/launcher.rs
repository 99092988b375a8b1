//! The launcher's loop: contacts hosts, distributes ranks, forwards input, output and signals, and
//! ends the job when a rank fails.

mod balance;
mod checkpoint;
mod follow;
mod images;
mod loss;
mod memory;
mod migration;
mod moves;
mod plan;
mod print;
mod reach;
mod restart;
mod schedule;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use dipole_checkpoint::Note;
use dipole_naming::threads;
use dipole_node::NodeId;
use dipole_node::hosts::Host;
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use signal_hook::consts::{
    SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
};
use signal_hook::iterator::Signals;

use super::budget::Budget;
use super::host::{Contact, HostEvent, Reach, State};
use super::message::{Ending, Entries, Secret, ToLauncher, ToShim};
use super::{HostsFile, Program, RunArgs, RunError, descendants, read_pieces};
use crate::output::Style;
pub use checkpoint::default_folder as default_checkpoint_folder;
pub(crate) use checkpoint::{CheckpointArgs, JobCheckpoints};
use follow::Follow;
pub(crate) use loss::OnLoss;
use loss::{Due, Losses};
use migration::Migration;
use plan::Plan;
use print::{Files, Print, print_all};
use restart::names;

/// Maximum input for rank 0 in flight.
const INPUT_BUDGET_BYTES: usize = 256 << 10;
/// Maximum output waiting for the reader of our output.
const OUTPUT_BUDGET_BYTES: usize = 4 << 20;
/// When the launcher first reports which hosts it waits for, and how often after that.
const FIRST_NOTICE: Duration = Duration::from_secs(2);
const NOTICE_EVERY: Duration = Duration::from_secs(5);
/// How long the others may take to end by themselves after a rank has ended with a status other than 0:
/// they may have finished, too, and still be writing their output.
const SETTLE: Duration = Duration::from_secs(1);
/// How long after the grace period a host may take to report that it is done.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the launcher checks for a rotation of the cluster key.
const CHECK_KEY_EVERY: Duration = Duration::from_millis(500);

/// How long the message that stops a host's ranks may take to be written.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Exit status of a job that exceeded --timeout, as that of timeout(1).
const TIMED_OUT: u8 = 124;

/// Maximum length of the program and its arguments as shown to agents.
const MAX_JOB_CHARS: usize = 500;

enum Event {
    Host(HostEvent),
    /// An event of a host, with the number of the attempt to run the job that contacted it.
    HostOf(u32, HostEvent),
    Signal(i32),
    Input(Vec<u8>),
    InputEnd,
    /// Our output cannot be written.
    OutputBroken(std::io::Error),
    Printed,
}

/// Runs a job; returns its exit status.
pub(super) fn launch(
    args: RunArgs,
    hosts: &HostsFile,
    checkpoints: Option<JobCheckpoints>,
    style: Style,
) -> Result<u8, RunError> {
    let system = |doing| move |cause| RunError::System { doing, cause };
    descendants::adopt_orphans().map_err(system("adopting orphans"))?;
    let (events, inbox) = channel();
    let caught = [
        SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT,
    ];
    let mut signals = Signals::new(caught).map_err(system("catching signals"))?;
    let forward_signals = {
        let events = events.clone();
        move || {
            for signal in signals.forever() {
                let _ = events.send(Event::Signal(signal));
            }
        }
    };
    threads::start("dipole-signals", forward_signals).map_err(system("starting the job"))?;
    let budget = Budget::new(OUTPUT_BUDGET_BYTES);
    let (print, to_print) = channel();
    let files = args.output_dir.clone().map(Files::new).transpose()?;
    let print_output = {
        let (events, budget) = (events.clone(), budget.clone());
        move || print_all(style, files, &to_print, &budget, &events)
    };
    threads::start("dipole-print", print_output).map_err(system("starting the job"))?;
    let mut job = Launch {
        json: style == Style::Json,
        grace: args.grace,
        contacts: BTreeMap::new(),
        running: BTreeMap::new(),
        status: None,
        interruptions: 0,
        end_at: None,
        give_up_at: None,
        timeout_at: None,
        losses: Losses::new(args.on_loss, args.restarts),
        returning: BTreeMap::new(),
        some_succeeded: false,
        notified_at: None,
        pmi_barrier: BTreeMap::new(),
        input: Budget::new(INPUT_BUDGET_BYTES),
        attempt: Attempt {
            follow: args.checkpoints.follow(),
            ..Attempt::default()
        },
        checkpoints,
        print,
        inbox,
        events,
    };
    let outcome = job.run(&args, hosts, &budget);
    if outcome.is_err() {
        job.status = Some(1);
    }
    job.finish();
    descendants::end_all();
    outcome
}

/// The present attempt to run the job. Jobs with checkpoints may need several.
#[derive(Default)]
struct Attempt {
    number: u32,
    /// Status of the rank that failed, if the job is being ended in order to be restarted.
    ends_for_restart: Option<u8>,
    /// Nodes that were lost in any attempt, or that all ranks have left; they are used again only if
    /// there are no others.
    lost_nodes: Vec<NodeId>,
    /// Input that arrived while no rank could take it.
    input: Vec<Vec<u8>>,
    has_input_ended: bool,
    /// Bytes of input on their way to rank 0.
    input_bytes: usize,
    /// The migration that is under way.
    migration: Option<Box<Migration>>,
    /// Moves ranks because of the load, if the user wants that.
    follow: Option<Follow>,
    /// Notes for ranks that could not be written yet.
    unwritten: Vec<(Note, bool)>,
    /// When the launcher last looked for notes of a migration.
    looked_at: Option<Instant>,
}

/// The arguments of the job, and how to reach its hosts.
struct JobSetup<'a> {
    args: &'a RunArgs,
    hosts: &'a HostsFile,
    list: Vec<Host>,
    reach: Reach<'a>,
    budget: &'a Budget,
}

struct Launch {
    json: bool,
    grace: Duration,
    /// By number: the index of the host, or a higher number for a restart of ranks there.
    contacts: BTreeMap<usize, Contact>,
    /// Running ranks, with the number of their contact.
    running: BTreeMap<u32, usize>,
    /// Exit status of the first rank that failed.
    status: Option<u8>,
    interruptions: u32,
    give_up_at: Option<Instant>,
    /// When a job is ended of which a rank has failed.
    end_at: Option<Instant>,
    /// When the job times out.
    timeout_at: Option<Instant>,
    losses: Losses,
    /// Contacts for restarts, and the ranks to start there.
    returning: BTreeMap<usize, Due>,
    /// A rank has succeeded: the job is done or nearly so.
    some_succeeded: bool,
    /// When missing ranks were last reported.
    notified_at: Option<Instant>,
    /// Entries that ranks have put, by contact whose ranks are all in a PMI barrier.
    pmi_barrier: BTreeMap<usize, Entries>,
    input: Budget,
    attempt: Attempt,
    /// `None` if the job makes no checkpoints.
    checkpoints: Option<JobCheckpoints>,
    print: Sender<Print>,
    inbox: Receiver<Event>,
    events: Sender<Event>,
}

impl Launch {
    fn run(&mut self, args: &RunArgs, hosts: &HostsFile, budget: &Budget) -> Result<u8, RunError> {
        let own = std::env::current_exe().map_err(|cause| RunError::System {
            doing: "finding this program",
            cause,
        })?;
        let shell: Vec<String> = args
            .rsh
            .iter()
            .flat_map(|command| command.split_whitespace().map(str::to_owned))
            .collect();
        let reach = Reach {
            shell: &shell,
            program: args.dipole.as_deref().unwrap_or(&own),
            own_node: hosts.own_node,
            starter: hosts.starter,
            has_key: hosts.key.is_some(),
            is_discovered: hosts.hosts.is_from_agent(),
            ranks: args.ranks,
            job: describe(&args.programs),
        };
        let mut setup = JobSetup {
            args,
            hosts,
            list: hosts.in_order(args),
            reach,
            budget,
        };
        self.announce_checkpoints(&args.programs)?;
        loop {
            if let Some(status) = self.reach(&setup)? {
                return Ok(status);
            }
            let plan = self.start(&setup)?;
            if self.attempt.number == 0 {
                self.timeout_at = args.timeout.map(|timeout| Instant::now() + timeout);
            }
            self.supervise(&setup, plan);
            self.abandon_migration();
            if !self.roll_back(&mut setup)? {
                break;
            }
        }
        self.remove_checkpoints();
        Ok(self.status.unwrap_or(0))
    }

    /// Forwards our standard input to rank 0, no faster than rank 0 reads it.
    fn forward_input(&self) -> std::io::Result<()> {
        let (events, budget) = (self.events.clone(), self.input.clone());
        threads::start("dipole-input", move || {
            let _the_launcher_is_gone = read_pieces(std::io::stdin().lock(), 1 << 15, |piece| {
                budget.take(piece.len());
                events.send(Event::Input(piece.to_vec()))
            });
            let _ = events.send(Event::InputEnd);
        })?;
        Ok(())
    }

    /// Handles events until every host has reported that no process is left, and no restart is due.
    fn supervise(&mut self, setup: &JobSetup<'_>, mut plan: Plan) {
        let mut sent_key = None;
        loop {
            self.restart(setup);
            self.follow_load(setup);
            self.migrate(setup, &mut plan);
            self.end_images();
            let check_key_at = self.send_changed_key(&plan, &mut sent_key);
            let is_over = |contact: &Contact| contact.state == State::Gone;
            if self.contacts.values().all(is_over) && self.losses.next_at().is_none() {
                return;
            }
            let wake = [
                self.give_up_at.or(self.timeout_at),
                self.end_at,
                self.next_restart(setup),
                self.next_look(),
                self.next_follow(),
                check_key_at,
            ];
            match self.next(wake.into_iter().flatten().min()) {
                Some(Event::Host(HostEvent::Message(index, message))) => {
                    self.on_message(index, message, &plan);
                }
                Some(Event::Host(HostEvent::ByAgent(index))) => self.set_reached_by_agent(index),
                Some(Event::Host(HostEvent::StderrLine(index, line))) => {
                    self.note_message(index, &line);
                    self.on_stderr(index, &line);
                }
                Some(Event::Host(HostEvent::Ended(index, reason))) => self.on_end(index, reason),
                Some(Event::Signal(signal)) => self.forward_signal(signal),
                Some(Event::Input(bytes)) => self.on_input(bytes),
                Some(Event::InputEnd) => self.on_input_end(),
                Some(Event::OutputBroken(cause)) => self.on_broken_output(&cause),
                Some(Event::Printed | Event::HostOf(..)) => {}
                None if self.give_up_at.is_some_and(|at| at <= Instant::now()) => {
                    self.give_up();
                    return;
                }
                None if self.end_at.is_some_and(|at| at <= Instant::now()) => {
                    self.end_at = None;
                    let status = self.status.unwrap_or(1);
                    self.fail(status);
                }
                None if self.timeout_at.is_some_and(|at| at <= Instant::now()) => {
                    self.timeout_at = None;
                    self.print_message("timed out (--timeout): ending the job".to_owned());
                    self.fail(TIMED_OUT);
                }
                None => {}
            }
        }
    }

    /// Sends a changed cluster key to the shims that got it from here; returns when to check again.
    /// The first call always sends it, because it may have changed while the shims were started.
    fn send_changed_key(&self, plan: &Plan, sent: &mut Option<String>) -> Option<Instant> {
        let key = plan.key()?;
        if sent.as_ref() != Some(&key) {
            let contacts = self.contacts.values();
            for contact in contacts.filter(|it| it.state == State::Ready && !it.by_agent) {
                contact.send(ToShim::Key(Secret(key.clone())));
            }
            *sent = Some(key);
        }
        Some(Instant::now() + CHECK_KEY_EVERY)
    }

    fn give_up(&mut self) {
        let left = self.contacts.values();
        let left: Vec<String> = left
            .filter(|contact| contact.state != State::Gone)
            .map(|contact| contact.host.to_string())
            .collect();
        self.print_message(format!(
            "gave up waiting for {} to report that nothing is left there",
            left.join(", ")
        ));
        for contact in self.contacts.values_mut() {
            contact.disconnect();
        }
    }

    fn on_message(&mut self, index: usize, message: ToLauncher, plan: &Plan) {
        match message {
            ToLauncher::Started { rank, pid } => {
                let node = self.contacts.get(&index);
                let node = node.map(|contact| contact.host.node.0);
                let _ = self.print.send(Print::Started(rank));
                self.event(json!({"event": "started", "rank": rank, "node": node, "pid": pid}));
            }
            ToLauncher::Output {
                rank,
                stream,
                bytes,
            } => {
                let _ = self.print.send(Print::Output {
                    rank,
                    stream,
                    bytes,
                });
            }
            ToLauncher::Exited { rank, ending } if self.running.get(&rank) == Some(&index) => {
                self.on_exit(rank, ending);
            }
            ToLauncher::Exited { rank, ending } => self.on_other_exit(index, rank, ending),
            ToLauncher::OutputEnded { rank } => self.on_output_end(index, rank),
            ToLauncher::InputTaken(bytes) => {
                let taken = bytes as usize;
                self.attempt.input_bytes = self.attempt.input_bytes.saturating_sub(taken);
                self.input.give(taken);
            }
            ToLauncher::PmiBarrier(entries) => {
                self.pmi_barrier.insert(index, entries);
                self.end_pmi_barrier();
            }
            ToLauncher::PmiAbort { rank, status } => {
                self.print_message(format!("rank {rank} has aborted the job (MPI_Abort)"));
                self.fail(status);
            }
            ToLauncher::Warning(text) => self.on_stderr(index, &text),
            ToLauncher::Hello(hello) if self.is_target(index) => self.on_target(index, &hello),
            ToLauncher::Hello(hello) => self.start_again(index, &hello, plan),
            ToLauncher::Refused { reason, status } => {
                if !self.retry_later(index, Some(&reason)) {
                    self.on_refusal(index, &reason, status);
                }
            }
            ToLauncher::Load(table) => self.on_table(index, table),
            ToLauncher::Images { images, backlog } => self.on_images(index, &images, backlog),
            ToLauncher::NotFetched(reason) => self.on_not_fetched(index, &reason),
            ToLauncher::Done => {}
        }
    }

    /// Ends the barrier of the ranks' MPI library when all hosts with ranks have reached it.
    fn end_pmi_barrier(&mut self) {
        let is_there = |index: &usize| self.pmi_barrier.contains_key(index);
        if !self.pmi_barrier.is_empty() && self.running.values().all(is_there) {
            let all: Entries = std::mem::take(&mut self.pmi_barrier)
                .into_values()
                .flatten()
                .collect();
            self.send_to_all(|| ToShim::PmiBarrier(all.clone()));
        }
    }

    /// Handles a host that starts none of its ranks.
    fn on_refusal(&mut self, index: usize, reason: &str, status: u8) {
        // Other hosts are likely to report the same, so only the first reason is printed.
        if self.status.is_none() {
            self.on_stderr(index, reason);
        }
        self.running.retain(|_, on| *on != index);
        self.fail(status);
    }

    fn on_exit(&mut self, rank: u32, ending: Ending) {
        let index = self.running.remove(&rank);
        self.event(json!({"event": "exited", "rank": rank, "ending": ending}));
        if ending.status() == 0 {
            self.some_succeeded = true;
            // The ranks of other hosts may have waited for this one.
            self.end_pmi_barrier();
            return;
        }
        let (how, settle) = match ending {
            Ending::Code(code) => (format!("ended with status {code}"), SETTLE),
            Ending::Signal(signal) => (format!("was killed by signal {signal}"), Duration::ZERO),
        };
        let Some(contact) = index.and_then(|index| self.contacts.get(&index)) else {
            return;
        };
        let node = contact.host.node;
        let what = format!("rank {rank} {how}");
        self.on_loss((&[rank], node), ending.status(), &what, settle);
    }

    /// Records the first failure and ends the job.
    fn fail(&mut self, status: u8) {
        self.status.get_or_insert(status);
        if self.give_up_at.is_some() {
            return;
        }
        self.give_up_at = Some(Instant::now() + self.grace + REPORT_TIMEOUT);
        self.stop_restarts();
        let grace_ms = u32::try_from(self.grace.as_millis()).unwrap_or(u32::MAX);
        self.send_to_all(|| ToShim::End { grace_ms });
    }

    fn on_end(&mut self, index: usize, reason: Option<String>) {
        let contact = self.contacts.get_mut(&index);
        let Some(contact) = contact.filter(|contact| contact.state != State::Gone) else {
            return;
        };
        contact.disconnect();
        let (host, node) = (contact.host.to_string(), contact.host.node);
        self.end_former_on(index);
        if self.retry_later(index, reason.as_deref()) {
            return;
        }
        let lost: Vec<u32> = self
            .running
            .iter()
            .filter(|(_, on)| **on == index)
            .map(|(rank, _)| *rank)
            .collect();
        self.running.retain(|_, on| *on != index);
        if !lost.is_empty() {
            self.attempt.lost_nodes.push(node);
            let reason = reason.unwrap_or_else(|| "it ended early".to_owned());
            self.event(json!({"event": "lost", "ranks": lost, "reason": reason}));
            let ranks = names(&lost);
            let what = format!("{host} is lost ({reason}), and with it rank {ranks}");
            let status = Ending::Signal(9).status();
            self.on_loss((&lost, node), status, &what, Duration::ZERO);
        }
    }

    /// Ends the job because its output cannot be written; silently if its reader has left.
    fn on_broken_output(&mut self, cause: &std::io::Error) {
        if cause.kind() == std::io::ErrorKind::BrokenPipe {
            self.fail(Ending::Signal(13).status());
        } else {
            self.print_message(format!("cannot write the output: {cause}; ending the job"));
            self.fail(1);
        }
    }

    /// Stops the ranks and then this process, as Ctrl-Z stops a single program.
    fn stop(&self) {
        let ready = self.contacts.values();
        let ready = ready.filter(|contact| contact.state == State::Ready);
        let sent: Vec<_> = ready
            .map(|contact| contact.send_and_notify(ToShim::Signal(SIGSTOP)))
            .collect();
        for written in sent {
            let _lost = written.recv_timeout(WRITE_TIMEOUT);
        }
        let _continued = kill_process(getpid(), Signal::STOP);
    }

    fn forward_signal(&mut self, signal: i32) {
        if signal == SIGTSTP {
            return self.stop();
        }
        self.send_to_all(|| ToShim::Signal(signal));
        if matches!(signal, SIGINT | SIGTERM | SIGHUP | SIGQUIT) {
            self.interruptions += 1;
            self.stop_restarts();
            if self.interruptions == 1 {
                self.print_message(
                    "the signal was sent to the ranks; a second one ends the job".to_owned(),
                );
            }
            if self.interruptions == 2 {
                self.print_message("a second signal: ending the job".to_owned());
                self.fail(Ending::Signal(small(signal)).status());
            }
        }
    }

    fn on_stderr(&mut self, index: usize, line: &str) {
        let host = self.contacts.get(&index).map_or_else(
            || format!("host {index}"),
            |contact| contact.host.to_string(),
        );
        self.print_message(format!("{host}: {line}"));
    }

    fn on_input(&mut self, bytes: Vec<u8>) {
        self.prefer_input();
        match self.holds_input() {
            true => self.attempt.input.push(bytes),
            false => self.send_to_rank_0(ToShim::Input(bytes)),
        }
    }

    fn on_input_end(&mut self) {
        self.prefer_input();
        self.attempt.has_input_ended = true;
        if !self.holds_input() {
            self.send_to_rank_0(ToShim::InputEnd);
        }
    }

    /// True while input must not be sent to rank 0.
    fn holds_input(&self) -> bool {
        self.attempt.ends_for_restart.is_some() || self.migrates(0)
    }

    fn send_to_rank_0(&mut self, message: ToShim) {
        if let ToShim::Input(bytes) = &message {
            self.attempt.input_bytes += bytes.len();
        }
        let index = self.running.get(&0);
        match (index.and_then(|index| self.contacts.get(index)), message) {
            (Some(contact), message) => contact.send(message),
            (None, ToShim::Input(bytes)) => self.input.give(bytes.len()),
            (None, _) => {}
        }
    }

    fn send_to_all(&self, message: impl Fn() -> ToShim) {
        for contact in self.contacts.values() {
            if contact.state == State::Ready {
                contact.send(message());
            }
        }
    }

    /// The next event; `None` at the deadline.
    fn next(&self, until: Option<Instant>) -> Option<Event> {
        loop {
            let received = match until {
                Some(until) => self
                    .inbox
                    .recv_timeout(until.saturating_duration_since(Instant::now())),
                None => self
                    .inbox
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected),
            };
            match received.ok() {
                Some(Event::HostOf(attempt, event)) if attempt == self.attempt.number => {
                    return Some(Event::Host(event));
                }
                // The host was contacted for an earlier attempt.
                Some(Event::HostOf(..)) => {}
                event => return event,
            }
        }
    }

    fn print_message(&self, text: String) {
        let print = if self.json {
            Print::Event(json!({"event": "message", "text": text}))
        } else {
            Print::Message(text)
        };
        let _ = self.print.send(print);
    }

    fn event(&self, event: serde_json::Value) {
        if self.json {
            let _ = self.print.send(Print::Event(event));
        }
    }

    /// Disconnects all hosts and waits until everything has been printed.
    fn finish(&mut self) {
        for contact in self.contacts.values_mut() {
            contact.disconnect();
        }
        let _ = self.print.send(Print::Done {
            status: self.status,
        });
        let (closed, _) = channel();
        self.print = closed;
        loop {
            match self.next(None) {
                Some(Event::OutputBroken(cause)) => {
                    let broken = cause.kind() == std::io::ErrorKind::BrokenPipe;
                    let status = if broken {
                        Ending::Signal(13).status()
                    } else {
                        1
                    };
                    self.status.get_or_insert(status);
                    return;
                }
                Some(Event::Printed) | None => return,
                Some(Event::Signal(SIGTSTP)) => self.stop(),
                Some(Event::Signal(SIGCONT)) => {}
                // The user does not want to wait for a blocked reader of our output.
                Some(Event::Signal(_)) => return,
                Some(_) => {}
            }
        }
    }
}

/// The programs and their arguments, for display.
fn describe(programs: &[Program]) -> String {
    let words = |one: &Program| -> String {
        let words: Vec<_> = one
            .command
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        words.join(" ")
    };
    let commands: Vec<String> = programs.iter().map(words).collect();
    commands.join(" : ").chars().take(MAX_JOB_CHARS).collect()
}

fn small(signal: i32) -> u8 {
    u8::try_from(signal).unwrap_or(u8::MAX)
}

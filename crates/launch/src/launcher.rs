//! The launcher's loop: contacts hosts, distributes ranks, carries input and output, forwards
//! signals, and ends the job when a rank fails.

mod loss;
mod plan;
mod print;
mod reach;
mod restart;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use dipole_node::hosts::Host;
use dipole_node::job::node_from_env;
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use signal_hook::consts::{
    SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
};
use signal_hook::iterator::Signals;

use super::budget::Budget;
use super::host::{Contact, HostEvent, Reach, State};
use super::message::{Down, Ending, Secret, Up};
use super::{HostsFile, Program, RunArgs, RunError, descendants, read_pieces};
use crate::output::Style;
pub(crate) use loss::OnLoss;
use loss::{Due, Losses};
use plan::Plan;
use print::{Files, Print, print_all};
use restart::names;

/// Input for rank 0 in flight.
const INPUT_BUDGET_BYTES: usize = 256 << 10;
/// Output that waits for the reader of ours.
const OUTPUT_BUDGET_BYTES: usize = 4 << 20;
/// When the launcher first names the hosts it waits for, and how often after that.
const FIRST_NOTICE: Duration = Duration::from_secs(2);
const NOTICE_EVERY: Duration = Duration::from_secs(5);
/// How much longer than the grace period a host may take to report that it is done.
const LAST_REPORT: Duration = Duration::from_secs(5);

/// How often the launcher looks whether the cluster key is being exchanged.
const LOOK_AT_KEY_EVERY: Duration = Duration::from_millis(500);

/// How long the message that stops a host's ranks may take to leave.
const WRITTEN_WITHIN: Duration = Duration::from_secs(1);
/// The status of a job that took longer than --timeout, as timeout(1) has it.
const OUT_OF_TIME: u8 = 124;

/// Characters of the program and its arguments that agents get to see.
const MAX_JOB_CHARS: usize = 500;

enum Event {
    Host(HostEvent),
    Signal(i32),
    Input(Vec<u8>),
    InputEnd,
    /// Our output cannot be written.
    OutputBroken(std::io::Error),
    Printed,
}

/// Runs a job to its end; returns the exit status.
pub(super) fn launch(args: RunArgs, hosts: &HostsFile, style: Style) -> Result<u8, RunError> {
    let system = |doing| move |cause| RunError::System { doing, cause };
    descendants::adopt_orphans().map_err(system("adopting orphans"))?;
    let (events, inbox) = channel();
    let caught = [
        SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT,
    ];
    let mut signals = Signals::new(caught).map_err(system("catching signals"))?;
    std::thread::spawn({
        let events = events.clone();
        move || {
            for signal in signals.forever() {
                let _ = events.send(Event::Signal(signal));
            }
        }
    });
    let budget = Budget::new(OUTPUT_BUDGET_BYTES);
    let (print, to_print) = channel();
    let files = args.output_dir.clone().map(Files::new).transpose()?;
    std::thread::spawn({
        let (events, budget) = (events.clone(), budget.clone());
        move || print_all(style, files, &to_print, &budget, &events)
    });
    let mut job = Launch {
        json: style == Style::Json,
        grace: args.grace,
        contacts: BTreeMap::new(),
        running: BTreeMap::new(),
        status: None,
        interruptions: 0,
        give_up_at: None,
        out_of_time_at: None,
        losses: Losses::new(args.on_loss, args.restarts),
        returning: BTreeMap::new(),
        some_ended_well: false,
        notified_at: None,
        input: Budget::new(INPUT_BUDGET_BYTES),
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

/// The arguments of the job and how its hosts are reached.
struct Means<'a> {
    args: &'a RunArgs,
    hosts: &'a HostsFile,
    list: Vec<Host>,
    reach: Reach<'a>,
    budget: &'a Budget,
}

struct Launch {
    json: bool,
    grace: Duration,
    /// By number: the index of the host, or a later one if ranks return there.
    contacts: BTreeMap<usize, Contact>,
    /// Ranks that have not ended, with the index of their host.
    running: BTreeMap<u32, usize>,
    /// Status of the first rank that failed.
    status: Option<u8>,
    interruptions: u32,
    give_up_at: Option<Instant>,
    /// When the job must have ended.
    out_of_time_at: Option<Instant>,
    losses: Losses,
    /// Contacts for restarts, and the ranks to be started there.
    returning: BTreeMap<usize, Due>,
    /// A rank has succeeded: the job is done or nearly so.
    some_ended_well: bool,
    /// When missing ranks were last reported.
    notified_at: Option<Instant>,
    input: Budget,
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
            own_node: node_from_env().map_err(RunError::Environment)?,
            has_key: hosts.key.is_some(),
            is_discovered: hosts.hosts.is_of_agent(),
            ranks: args.ranks,
            job: describe(&args.programs),
        };
        let means = Means {
            args,
            hosts,
            list: hosts.hosts.iter().cloned().collect(),
            reach,
            budget,
        };
        if let Some(status) = self.reach(&means)? {
            return Ok(status);
        }
        let plan = self.start(&means)?;
        self.out_of_time_at = args.timeout.map(|timeout| Instant::now() + timeout);
        self.supervise(&means, &plan);
        Ok(self.status.unwrap_or(0))
    }

    /// Forwards our standard input to rank 0, no faster than that reads.
    fn forward_input(&self) {
        let (events, budget) = (self.events.clone(), self.input.clone());
        std::thread::spawn(move || {
            let _the_launcher_is_gone = read_pieces(std::io::stdin().lock(), 1 << 15, |piece| {
                budget.take(piece.len());
                events.send(Event::Input(piece.to_vec()))
            });
            let _ = events.send(Event::InputEnd);
        });
    }

    /// Handles events until every host has reported that nothing is left there and no restart is due.
    fn supervise(&mut self, means: &Means<'_>, plan: &Plan) {
        let mut told_key = None;
        loop {
            self.restart(means);
            let look_at_key = self.pass_key_on(plan, &mut told_key);
            let is_over = |contact: &Contact| contact.state == State::Gone;
            if self.contacts.values().all(is_over) && self.losses.next_at().is_none() {
                return;
            }
            let wake = [
                self.give_up_at.or(self.out_of_time_at),
                self.next_restart(means),
                look_at_key,
            ];
            match self.next(wake.into_iter().flatten().min()) {
                Some(Event::Host(HostEvent::Message(index, message))) => {
                    self.on_message(index, message, plan);
                }
                Some(Event::Host(HostEvent::ByAgent(index))) => self.is_reached_by_agent(index),
                Some(Event::Host(HostEvent::StderrLine(index, line))) => {
                    self.on_stderr(index, &line)
                }
                Some(Event::Host(HostEvent::Ended(index, reason))) => self.ended(index, reason),
                Some(Event::Signal(signal)) => self.forward_signal(signal),
                Some(Event::Input(bytes)) => self.send_to_rank_0(Down::Input(bytes)),
                Some(Event::InputEnd) => self.send_to_rank_0(Down::InputEnd),
                Some(Event::OutputBroken(cause)) => self.output_broken(&cause),
                Some(Event::Printed) => {}
                None if self.give_up_at.is_some_and(|at| at <= Instant::now()) => {
                    self.give_up();
                    return;
                }
                None if self.out_of_time_at.is_some_and(|at| at <= Instant::now()) => {
                    self.out_of_time_at = None;
                    self.print_message("the time of --timeout is up: ending the job".to_owned());
                    self.fail(OUT_OF_TIME);
                }
                None => {}
            }
        }
    }

    /// Tells the shims that got the cluster key from here when its file has changed; returns when
    /// to look again. The first time all are told: it may have changed while they were started.
    fn pass_key_on(&self, plan: &Plan, told: &mut Option<String>) -> Option<Instant> {
        let key = plan.key()?;
        if told.as_ref() != Some(&key) {
            let held = self.contacts.values();
            for contact in held.filter(|it| it.state == State::Ready && !it.by_agent) {
                contact.send(Down::Key(Secret(key.clone())));
            }
            *told = Some(key);
        }
        Some(Instant::now() + LOOK_AT_KEY_EVERY)
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

    fn on_message(&mut self, index: usize, message: Up, plan: &Plan) {
        match message {
            Up::Started { rank, pid } => {
                let node = self.contacts.get(&index);
                let node = node.map(|contact| contact.host.node.0);
                let _ = self.print.send(Print::Started(rank));
                self.event(json!({"event": "started", "rank": rank, "node": node, "pid": pid}));
            }
            Up::Output {
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
            Up::Exited { rank, ending } => self.exited(rank, ending),
            Up::InputTaken(bytes) => self.input.give(bytes as usize),
            Up::Warning(text) => self.on_stderr(index, &text),
            Up::Hello(hello) => self.is_back(index, &hello, plan),
            Up::Refused { reason, status } => {
                if !self.has_not_returned(index, Some(&reason)) {
                    self.refused(index, &reason, status);
                }
            }
            Up::Done => {}
        }
    }

    /// A host starts none of its ranks.
    fn refused(&mut self, index: usize, reason: &str, status: u8) {
        // What one host lacks others mostly lack, too: it is said once.
        if self.status.is_none() {
            self.on_stderr(index, reason);
        }
        self.running.retain(|_, on| *on != index);
        self.fail(status);
    }

    fn exited(&mut self, rank: u32, ending: Ending) {
        let index = self.running.remove(&rank);
        self.event(json!({"event": "exited", "rank": rank, "ending": ending}));
        if ending.status() == 0 {
            self.some_ended_well = true;
            return;
        }
        let how = match ending {
            Ending::Code(code) => format!("ended with status {code}"),
            Ending::Signal(signal) => format!("was ended by signal {signal}"),
        };
        let Some(contact) = index.and_then(|index| self.contacts.get(&index)) else {
            return;
        };
        let node = contact.host.node;
        self.lose(
            &[rank],
            node,
            ending.status(),
            &format!("rank {rank} {how}"),
        );
    }

    /// Notes the first failure and ends the job.
    fn fail(&mut self, status: u8) {
        self.status.get_or_insert(status);
        if self.give_up_at.is_some() {
            return;
        }
        self.give_up_at = Some(Instant::now() + self.grace + LAST_REPORT);
        self.stop_restarts();
        let grace_ms = u32::try_from(self.grace.as_millis()).unwrap_or(u32::MAX);
        self.send_to_all(|| Down::End { grace_ms });
    }

    fn ended(&mut self, index: usize, reason: Option<String>) {
        let contact = self.contacts.get_mut(&index);
        let Some(contact) = contact.filter(|contact| contact.state != State::Gone) else {
            return;
        };
        contact.disconnect();
        let (host, node) = (contact.host.to_string(), contact.host.node);
        if self.has_not_returned(index, reason.as_deref()) {
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
            let reason = reason.unwrap_or_else(|| "it ended early".to_owned());
            self.event(json!({"event": "lost", "ranks": lost, "reason": reason}));
            let ranks = names(&lost);
            let what = format!("{host} is lost ({reason}), and with it rank {ranks}");
            self.lose(&lost, node, Ending::Signal(9).status(), &what);
        }
    }

    /// Ends the job whose output cannot be written, quietly if its reader has left.
    fn output_broken(&mut self, cause: &std::io::Error) {
        if cause.kind() == std::io::ErrorKind::BrokenPipe {
            self.fail(Ending::Signal(13).status());
        } else {
            self.print_message(format!("cannot write the output: {cause}; ending the job"));
            self.fail(1);
        }
    }

    /// Stops the ranks and then this process, as Ctrl-Z stops one program.
    fn stop(&self) {
        let ready = self.contacts.values();
        let ready = ready.filter(|contact| contact.state == State::Ready);
        let sent: Vec<_> = ready
            .map(|contact| contact.send_noting(Down::Signal(SIGSTOP)))
            .collect();
        for written in sent {
            let _lost = written.recv_timeout(WRITTEN_WITHIN);
        }
        let _continued = kill_process(getpid(), Signal::STOP);
    }

    fn forward_signal(&mut self, signal: i32) {
        if signal == SIGTSTP {
            return self.stop();
        }
        self.send_to_all(|| Down::Signal(signal));
        if matches!(signal, SIGINT | SIGTERM | SIGHUP | SIGQUIT) {
            self.interruptions += 1;
            self.stop_restarts();
            if self.interruptions == 1 {
                self.print_message(
                    "the signal went to the ranks; a second one ends the job".to_owned(),
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

    fn send_to_rank_0(&self, message: Down) {
        let index = self.running.get(&0);
        match (index.and_then(|index| self.contacts.get(index)), message) {
            (Some(contact), message) => contact.send(message),
            (None, Down::Input(bytes)) => self.input.give(bytes.len()),
            (None, _) => {}
        }
    }

    fn send_to_all(&self, message: impl Fn() -> Down) {
        for contact in self.contacts.values() {
            if contact.state == State::Ready {
                contact.send(message());
            }
        }
    }

    /// The next event; `None` at the deadline.
    fn next(&self, until: Option<Instant>) -> Option<Event> {
        let received = match until {
            Some(until) => self
                .inbox
                .recv_timeout(until.saturating_duration_since(Instant::now())),
            None => self
                .inbox
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
        };
        received.ok()
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

    /// Disconnects all hosts and waits until everything is printed.
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
                // The user does not want to wait for a reader of our output that is stuck.
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

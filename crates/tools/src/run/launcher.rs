//! The launcher's loop: reaches hosts, deals ranks, carries input and output,
//! passes signals on, and ends the job when a rank fails.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use dipole_node::hosts::Host;
use dipole_node::job::{default_runtime_dir, node_from_env, write_ranks};
use dipole_node::{ClusterKey, NodeId, variables};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::budget::Budget;
use super::host::{Contact, HostEvent, Reach, State};
use super::message::{Down, Ending, Start, Stream, Up};
use super::placement::{Room, candidates, deal};
use super::{HostsFile, RunArgs, RunError, descendants};
use crate::output::{Printer, Style};

/// Input for rank 0 that may be under way.
const INPUT_BUDGET_BYTES: usize = 256 << 10;
/// Output that may wait for whoever reads ours.
const OUTPUT_BUDGET_BYTES: usize = 4 << 20;
/// When it is first said for whom the start waits, and how often after that.
const FIRST_WORD: Duration = Duration::from_secs(2);
const NEXT_WORD: Duration = Duration::from_secs(5);
/// How much longer than the grace a host may take to report that it is done.
const LAST_REPORT: Duration = Duration::from_secs(5);

/// Characters of the program and its arguments that agents are told.
const MOST_DESCRIBED: usize = 500;

enum Event {
    Host(HostEvent),
    Signal(i32),
    Input(Vec<u8>),
    InputEnd,
    /// Whoever reads our output has gone.
    OutputBroken,
    Printed,
}

enum Print {
    Output {
        rank: u32,
        stream: Stream,
        bytes: Vec<u8>,
    },
    Message(String),
    Event(serde_json::Value),
    /// Nothing comes after this.
    Done {
        status: Option<u8>,
    },
}

/// Runs a job to its end; returns the exit status.
pub(super) fn launch(args: RunArgs, hosts: &HostsFile, style: Style) -> Result<u8, RunError> {
    let system = |doing| move |cause| RunError::System { doing, cause };
    descendants::adopt_orphans().map_err(system("adopting orphans"))?;
    let (events, inbox) = channel();
    let passed_on = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];
    let mut signals = Signals::new(passed_on).map_err(system("catching signals"))?;
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
    std::thread::spawn({
        let (events, budget) = (events.clone(), budget.clone());
        move || print_all(style, &to_print, &budget, &events)
    });
    let mut job = Launch {
        json: style == Style::Json,
        grace: args.grace,
        contacts: Vec::new(),
        running: BTreeMap::new(),
        status: None,
        interruptions: 0,
        give_up_at: None,
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

struct Launch {
    json: bool,
    grace: Duration,
    contacts: Vec<Contact>,
    /// Ranks that have not ended, with the index of their host.
    running: BTreeMap<u32, usize>,
    /// Of the first rank that failed.
    status: Option<u8>,
    interruptions: u32,
    give_up_at: Option<Instant>,
    input: Budget,
    print: Sender<Print>,
    inbox: Receiver<Event>,
    events: Sender<Event>,
}

impl Launch {
    fn run(&mut self, args: &RunArgs, hosts: &HostsFile, budget: &Budget) -> Result<u8, RunError> {
        if let Some(status) = self.reach(args, hosts, budget)? {
            return Ok(status);
        }
        self.start(args, hosts)?;
        self.tend();
        Ok(self.status.unwrap_or(0))
    }

    /// Tries hosts until those that answer suffice; a status if a signal came instead.
    fn reach(
        &mut self,
        args: &RunArgs,
        hosts: &HostsFile,
        budget: &Budget,
    ) -> Result<Option<u8>, RunError> {
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
            has_key: has_key()?,
            ranks: args.ranks,
            job: describe(&args.command),
        };
        let mut list: Vec<Host> = hosts.hosts.iter().cloned().collect();
        let mut failed: Vec<usize> = Vec::new();
        let started = Instant::now();
        let mut next_word = FIRST_WORD;
        loop {
            for contact in &self.contacts {
                let slots = &mut list[contact.index].slots;
                *slots = contact.most_ranks.map_or(*slots, |most| most.min(*slots));
            }
            let wanted = candidates(&list, &failed, args.ranks);
            if wanted.is_empty() {
                return Err(RunError::NoHost { tried: list.len() });
            }
            for index in &wanted {
                if !self.contacts.iter().any(|contact| contact.index == *index) {
                    self.connect(*index, &list[*index], &reach, budget, &mut failed);
                }
            }
            let waiting: Vec<&Contact> = self
                .contacts
                .iter()
                .filter(|contact| contact.state == State::Waiting)
                .collect();
            if waiting.is_empty() && wanted.iter().all(|index| !failed.contains(index)) {
                return Ok(None);
            }
            if started.elapsed() >= next_word {
                let names: Vec<String> = waiting
                    .iter()
                    .map(|contact| {
                        let seconds = contact.since.elapsed().as_secs();
                        format!("{} (no answer for {seconds} s)", contact.host)
                    })
                    .collect();
                if !names.is_empty() {
                    self.say(format!("waiting for {}", names.join(", ")));
                }
                next_word = started.elapsed() + NEXT_WORD;
            }
            let wake = waiting
                .iter()
                .map(|contact| contact.since + args.start_timeout)
                .chain([started + next_word])
                .min()
                .unwrap_or(started + next_word);
            match self.next(Some(wake)) {
                Some(Event::Signal(signal)) => {
                    let status = Ending::Signal(small(signal)).status();
                    self.status = Some(status);
                    return Ok(Some(status));
                }
                Some(Event::Host(event)) => self.reached(event, &mut failed),
                _ => {}
            }
            for position in 0..self.contacts.len() {
                let contact = &self.contacts[position];
                if contact.state == State::Waiting && contact.since.elapsed() >= args.start_timeout
                {
                    let seconds = args.start_timeout.as_secs_f64();
                    self.skip(
                        position,
                        &format!("no answer within {seconds} s"),
                        &mut failed,
                    );
                }
            }
        }
    }

    fn connect(
        &mut self,
        index: usize,
        host: &Host,
        reach: &Reach<'_>,
        budget: &Budget,
        failed: &mut Vec<usize>,
    ) {
        let (to_us, from_host) = channel();
        let events = self.events.clone();
        std::thread::spawn(move || {
            for event in from_host {
                let _ = events.send(Event::Host(event));
            }
        });
        match Contact::start(index, host, reach, &to_us, budget) {
            Ok(contact) => self.contacts.push(contact),
            Err(cause) => {
                self.say(format!("{host} skipped: {cause}"));
                failed.push(index);
            }
        }
    }

    fn skip(&mut self, position: usize, reason: &str, failed: &mut Vec<usize>) {
        let contact = &mut self.contacts[position];
        contact.leave();
        failed.push(contact.index);
        let (host, node) = (contact.host.to_string(), contact.host.node.0);
        self.say(format!("{host} skipped: {reason}"));
        self.event(json!({"event": "skipped", "node": node, "reason": reason}));
    }

    /// What a host says before the ranks are dealt.
    fn reached(&mut self, event: HostEvent, failed: &mut Vec<usize>) {
        match event {
            HostEvent::Said(index, Up::Hello(hello)) => {
                let Some(position) = self.position(index) else {
                    return;
                };
                // A late word of one that was skipped changes nothing.
                if self.contacts[position].state != State::Waiting {
                    return;
                }
                let own = env!("CARGO_PKG_VERSION");
                if hello.version == own {
                    let contact = &mut self.contacts[position];
                    contact.state = State::Ready;
                    contact.most_ranks = hello.most_ranks;
                    let node = contact.host.node.0;
                    self.event(json!({"event": "host", "node": node, "shim_pid": hello.pid}));
                } else {
                    let reason = format!("its dipole is version {}, not {own}", hello.version);
                    self.skip(position, &reason, failed);
                }
            }
            HostEvent::Ended(index, reason) => {
                if let Some(position) = self
                    .position(index)
                    .filter(|position| self.contacts[*position].state != State::Gone)
                {
                    let reason = reason.unwrap_or_else(|| "it ended at once".to_owned());
                    self.skip(position, &reason, failed);
                }
            }
            HostEvent::Said(index, Up::Refused(reason)) => {
                if let Some(position) = self
                    .position(index)
                    .filter(|position| self.contacts[*position].state == State::Waiting)
                {
                    self.skip(position, &reason, failed);
                }
            }
            HostEvent::Muttered(index, line) => self.muttered(index, &line),
            HostEvent::Said(..) => {}
        }
    }

    /// Deals the ranks to the hosts that answered and lets them start.
    fn start(&mut self, args: &RunArgs, hosts: &HostsFile) -> Result<(), RunError> {
        let system = |doing| move |cause| RunError::System { doing, cause };
        self.contacts.sort_by_key(|contact| contact.index);
        let ready: Vec<usize> = (0..self.contacts.len())
            .filter(|position| self.contacts[*position].state == State::Ready)
            .collect();
        let rooms: Vec<Room> = ready
            .iter()
            .map(|position| &self.contacts[*position])
            .map(|contact| Room {
                slots: contact.host.slots,
                most: contact.most_ranks,
            })
            .collect();
        let dealt = deal(&rooms, args.ranks).map_err(|room| RunError::NoRoom {
            ranks: args.ranks,
            room,
        })?;
        let nodes: Vec<NodeId> = dealt
            .iter()
            .map(|at| self.contacts[ready[*at]].host.node)
            .collect();
        let random = random_bytes().map_err(system("drawing a job number"))?;
        let id = u64::from_le_bytes(random);
        // The upper half is the launcher's; two jobs at once get different parts of it.
        let base = 0x8000_0000 | (u32::from(u16::from_le_bytes([random[0], random[1]]) >> 1) << 16);
        let mut environment = BTreeMap::new();
        for given in &args.environment {
            match given.split_once('=') {
                Some((name, value)) => {
                    environment.insert(name.to_owned(), OsString::from(value));
                }
                None => {
                    if let Some(value) = std::env::var_os(given) {
                        environment.insert(given.clone(), value);
                    }
                }
            }
        }
        // What tunes Dipole tunes it on all hosts; what names a place does not.
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else {
                continue;
            };
            let is_place = ["NID", "RUNTIME_DIR", "HOSTS", "BIND", "CAPTURE"]
                .iter()
                .any(|place| name.strip_prefix("DIPOLE_") == Some(place));
            if name.starts_with("DIPOLE_") && !is_place {
                environment.entry(name).or_insert(value);
            }
        }
        for (name, value) in [
            ("DIPOLE_JOB", id.to_string()),
            ("DIPOLE_JOB_BASE", base.to_string()),
            ("DIPOLE_SIZE", args.ranks.to_string()),
            ("DIPOLE_RANKS", write_ranks(&nodes)),
        ] {
            environment.insert(name.to_owned(), value.into());
        }
        let directory = std::env::current_dir().map_err(system("finding the directory"))?;
        for (at, position) in ready.iter().enumerate() {
            let ranks: Vec<u32> = (0..args.ranks)
                .zip(&dealt)
                .filter(|(_, dealt_to)| **dealt_to == at)
                .map(|(rank, _)| rank)
                .collect();
            let contact = &mut self.contacts[*position];
            if ranks.is_empty() {
                contact.leave();
                continue;
            }
            self.running
                .extend(ranks.iter().map(|rank| (*rank, contact.index)));
            let mut environment = environment.clone();
            environment.insert("DIPOLE_NID".into(), contact.host.node.to_string().into());
            if let Some(given) = &contact.host.runtime_dir {
                environment.insert("DIPOLE_RUNTIME_DIR".into(), given.into());
            } else if hosts.text.is_none() {
                environment.insert("DIPOLE_RUNTIME_DIR".into(), default_runtime_dir().into());
            }
            contact.tell(Down::Start(Box::new(Start {
                ranks,
                command: args.command.clone(),
                environment,
                directory: directory.clone(),
                hosts: hosts.text.clone(),
            })));
        }
        self.forward_input();
        Ok(())
    }

    /// Reads our standard input for rank 0, no faster than it does.
    fn forward_input(&self) {
        let (events, budget) = (self.events.clone(), self.input.clone());
        std::thread::spawn(move || {
            let mut stdin = std::io::stdin().lock();
            let mut buffer = vec![0; 1 << 15];
            loop {
                match stdin.read(&mut buffer) {
                    Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => {
                        let _ = events.send(Event::InputEnd);
                        return;
                    }
                    Ok(length) => {
                        budget.take(length);
                        let _ = events.send(Event::Input(buffer[..length].to_vec()));
                    }
                }
            }
        });
    }

    /// Until every host has reported that nothing is left there.
    fn tend(&mut self) {
        while self
            .contacts
            .iter()
            .any(|contact| contact.state != State::Gone)
        {
            match self.next(self.give_up_at) {
                Some(Event::Host(HostEvent::Said(index, message))) => self.said(index, message),
                Some(Event::Host(HostEvent::Muttered(index, line))) => self.muttered(index, &line),
                Some(Event::Host(HostEvent::Ended(index, reason))) => self.ended(index, reason),
                Some(Event::Signal(signal)) => self.pass_on(signal),
                Some(Event::Input(bytes)) => self.tell_rank_0(Down::Input(bytes)),
                Some(Event::InputEnd) => self.tell_rank_0(Down::InputEnd),
                Some(Event::OutputBroken) => {
                    self.fail(Ending::Signal(13).status());
                }
                Some(Event::Printed) => {}
                None => {
                    let left: Vec<String> = self
                        .contacts
                        .iter()
                        .filter(|contact| contact.state != State::Gone)
                        .map(|contact| contact.host.to_string())
                        .collect();
                    self.say(format!(
                        "gave up waiting for {} to report that nothing is left there",
                        left.join(", ")
                    ));
                    for contact in &mut self.contacts {
                        contact.leave();
                    }
                }
            }
        }
    }

    fn said(&mut self, index: usize, message: Up) {
        match message {
            Up::Started { rank, pid } => {
                let node = self
                    .position(index)
                    .map(|position| self.contacts[position].host.node.0);
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
            Up::Complaint(text) => self.muttered(index, &text),
            Up::Hello(_) | Up::Done | Up::Refused(_) => {}
        }
    }

    fn exited(&mut self, rank: u32, ending: Ending) {
        self.running.remove(&rank);
        self.event(json!({"event": "exited", "rank": rank, "ending": ending}));
        let status = ending.status();
        if status == 0 {
            return;
        }
        // Those that end because the job is ended are no news.
        if self.status.is_none() {
            let how = match ending {
                Ending::Code(code) => format!("ended with status {code}"),
                Ending::Signal(signal) => format!("was ended by signal {signal}"),
            };
            let others = if self.running.is_empty() {
                ""
            } else {
                "; ending the others"
            };
            self.say(format!("rank {rank} {how}{others}"));
        }
        self.fail(status);
    }

    /// Notes the first failure and ends the job.
    fn fail(&mut self, status: u8) {
        self.status.get_or_insert(status);
        if self.give_up_at.is_some() {
            return;
        }
        self.give_up_at = Some(Instant::now() + self.grace + LAST_REPORT);
        let grace_ms = u32::try_from(self.grace.as_millis()).unwrap_or(u32::MAX);
        self.tell_all(|| Down::End { grace_ms });
    }

    fn ended(&mut self, index: usize, reason: Option<String>) {
        let Some(position) = self.position(index) else {
            return;
        };
        let contact = &mut self.contacts[position];
        if contact.state == State::Gone {
            return;
        }
        contact.leave();
        let host = contact.host.to_string();
        let lost: BTreeSet<u32> = self
            .running
            .iter()
            .filter(|(_, on)| **on == index)
            .map(|(rank, _)| *rank)
            .collect();
        self.running.retain(|_, on| *on != index);
        if !lost.is_empty() {
            let reason = reason.unwrap_or_else(|| "it ended early".to_owned());
            let names: Vec<String> = lost.iter().map(u32::to_string).collect();
            let names = names.join(", ");
            self.say(format!(
                "{host} is lost ({reason}), and with it rank {names}"
            ));
            self.event(json!({"event": "lost", "ranks": lost, "reason": reason}));
            self.fail(Ending::Signal(9).status());
        }
    }

    fn pass_on(&mut self, signal: i32) {
        self.tell_all(|| Down::Signal(signal));
        if matches!(signal, SIGINT | SIGTERM | SIGHUP | SIGQUIT) {
            self.interruptions += 1;
            if self.interruptions == 2 {
                self.say("a second signal: ending the job".to_owned());
                self.fail(Ending::Signal(small(signal)).status());
            }
        }
    }

    fn muttered(&mut self, index: usize, line: &str) {
        let host = self.position(index).map_or_else(
            || format!("host {index}"),
            |position| self.contacts[position].host.to_string(),
        );
        self.say(format!("{host}: {line}"));
    }

    fn tell_rank_0(&self, message: Down) {
        let at = self.running.get(&0).and_then(|index| self.position(*index));
        match (at, message) {
            (Some(position), message) => self.contacts[position].tell(message),
            (None, Down::Input(bytes)) => self.input.give(bytes.len()),
            (None, _) => {}
        }
    }

    fn tell_all(&self, message: impl Fn() -> Down) {
        for contact in &self.contacts {
            if contact.state == State::Ready {
                contact.tell(message());
            }
        }
    }

    fn position(&self, index: usize) -> Option<usize> {
        self.contacts
            .iter()
            .position(|contact| contact.index == index)
    }

    /// The next event; `None` when the time has come.
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

    fn say(&self, text: String) {
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

    /// Hangs up everywhere and waits until everything is printed.
    fn finish(&mut self) {
        for contact in &mut self.contacts {
            contact.leave();
        }
        let _ = self.print.send(Print::Done {
            status: self.status,
        });
        let (closed, _) = channel();
        self.print = closed;
        loop {
            match self.next(None) {
                Some(Event::Printed | Event::OutputBroken) | None => return,
                // Whoever reads our output does not; the user does not want to wait for it.
                Some(Event::Signal(_)) => return,
                Some(_) => {}
            }
        }
    }
}

/// True if there is a cluster key; one that cannot be used is an error.
fn has_key() -> Result<bool, RunError> {
    let Some(file) = std::env::var_os(variables::KEY) else {
        return Ok(false);
    };
    ClusterKey::load(file.as_ref()).map_err(RunError::Key)?;
    Ok(true)
}

/// The program and its arguments, for people to read.
fn describe(command: &[OsString]) -> String {
    let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    words.join(" ").chars().take(MOST_DESCRIBED).collect()
}

fn small(signal: i32) -> u8 {
    u8::try_from(signal).unwrap_or(u8::MAX)
}

fn random_bytes() -> std::io::Result<[u8; 8]> {
    let mut bytes = [0; 8];
    let length = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if length == bytes.len() {
        Ok(bytes)
    } else {
        Err(std::io::Error::other("too few random bytes"))
    }
}

fn print_all(style: Style, to_print: &Receiver<Print>, budget: &Budget, events: &Sender<Event>) {
    let mut printer = Printer::new(style, std::io::stdout(), std::io::stderr());
    let mut broken = false;
    for print in to_print {
        let result = match print {
            Print::Output {
                rank,
                stream,
                bytes,
            } => {
                let result = if broken {
                    Ok(())
                } else {
                    printer.output(rank, stream, &bytes)
                };
                budget.give(bytes.len());
                result
            }
            Print::Message(text) => {
                // Where nobody reads our errors there is nobody to tell.
                let _ = std::io::Write::write_fmt(
                    &mut std::io::stderr(),
                    format_args!("dipole run: {text}\n"),
                );
                Ok(())
            }
            Print::Event(event) => printer.event(&event.to_string()),
            Print::Done { status } => printer.finish().and_then(|()| match (style, status) {
                (Style::Json, status) => {
                    let done = json!({"event": "done", "status": status.unwrap_or(0)});
                    printer.event(&done.to_string())
                }
                _ => Ok(()),
            }),
        };
        if result.is_err() && !broken {
            broken = true;
            let _ = events.send(Event::OutputBroken);
        }
    }
    let _ = events.send(Event::Printed);
}

//! The start of a job: contacts hosts and distributes the ranks to them.

use std::sync::mpsc::channel;
use std::time::Instant;

use dipole_naming::threads;
use dipole_node::NodeId;
use dipole_node::hosts::Host;
use serde_json::json;
use signal_hook::consts::{SIGCONT, SIGTSTP};

use super::plan::Plan;
use super::{Event, FIRST_NOTICE, JobSetup, Launch, NOTICE_EVERY, small};
use crate::RunError;
use crate::host::{Contact, HostEvent, State};
use crate::message::{Ending, ToLauncher, ToShim};
use crate::placement::{Capacity, candidates, place};

impl Launch {
    /// Contacts hosts until enough have answered; returns a status if a signal arrived first.
    pub(super) fn reach(&mut self, setup: &JobSetup<'_>) -> Result<Option<u8>, RunError> {
        let (mut list, args) = (setup.list.clone(), setup.args);
        let mut failed: Vec<usize> = Vec::new();
        let started = Instant::now();
        let mut next_notice = FIRST_NOTICE;
        loop {
            for (index, contact) in &self.contacts {
                let slots = &mut list[*index].slots;
                *slots = contact.max_ranks.map_or(*slots, |max| max.min(*slots));
            }
            let wanted = candidates(&list, &failed, self.ranks(args));
            if wanted.is_empty() {
                return Err(RunError::NoHost { tried: list.len() });
            }
            for index in &wanted {
                if !self.contacts.contains_key(index)
                    && let Err(cause) = self.connect(*index, &list[*index], setup)
                {
                    self.print_message(format!("{} skipped: {cause}", list[*index]));
                    failed.push(*index);
                }
            }
            let waiting: Vec<&Contact> = self
                .contacts
                .values()
                .filter(|contact| contact.state == State::Waiting)
                .collect();
            if waiting.is_empty() && wanted.iter().all(|index| !failed.contains(index)) {
                return Ok(None);
            }
            if started.elapsed() >= next_notice {
                let names: Vec<String> = waiting
                    .iter()
                    .map(|contact| {
                        let seconds = contact.since.elapsed().as_secs();
                        format!("{} (no answer for {seconds} s)", contact.host)
                    })
                    .collect();
                if !names.is_empty() {
                    self.print_message(format!("waiting for {}", names.join(", ")));
                }
                next_notice = started.elapsed() + NOTICE_EVERY;
            }
            let wake = waiting
                .iter()
                .map(|contact| contact.since + args.start_timeout)
                .chain([started + next_notice])
                .min()
                .unwrap_or(started + next_notice);
            match self.next(Some(wake)) {
                Some(Event::Signal(SIGTSTP)) => self.stop(),
                Some(Event::Signal(SIGCONT)) => {}
                Some(Event::Signal(signal)) => {
                    let status = Ending::Signal(small(signal)).status();
                    self.status = Some(status);
                    return Ok(Some(status));
                }
                Some(Event::Host(event)) => self.on_start_event(event, &mut failed),
                // Between two attempts.
                Some(Event::Input(bytes)) => self.attempt.input.push(bytes),
                Some(Event::InputEnd) => self.attempt.has_input_ended = true,
                _ => {}
            }
            for index in self.late(setup) {
                let seconds = args.start_timeout.as_secs_f64();
                let reason = format!("no answer within {seconds} s");
                self.skip(index, &reason, &mut failed);
            }
        }
    }

    /// Contacts that have not answered in time.
    pub(super) fn late(&self, setup: &JobSetup<'_>) -> Vec<usize> {
        let late = self.contacts.iter().filter(|(_, contact)| {
            contact.state == State::Waiting && contact.since.elapsed() >= setup.args.start_timeout
        });
        late.map(|(index, _)| *index).collect()
    }

    /// Contacts a host. `number` is the index of the host, or a higher number for a restart.
    pub(super) fn connect(
        &mut self,
        number: usize,
        host: &Host,
        setup: &JobSetup<'_>,
    ) -> std::io::Result<()> {
        let (to_us, from_host) = channel();
        let (events, attempt) = (self.events.clone(), self.attempt.number);
        threads::start("dipole-host", move || {
            for event in from_host {
                let _ = events.send(Event::HostOf(attempt, event));
            }
        })?;
        let contact = Contact::start(number, host, &setup.reach, &to_us, setup.budget)?;
        if let Some(folder) = self.reported_folder(host.node) {
            contact.send(ToShim::ReportImages { folder });
        }
        self.contacts.insert(number, contact);
        Ok(())
    }

    fn skip(&mut self, index: usize, reason: &str, failed: &mut Vec<usize>) {
        let Some(contact) = self.contacts.get_mut(&index) else {
            return;
        };
        contact.disconnect();
        failed.push(index);
        let (host, node) = (contact.host.to_string(), contact.host.node.0);
        self.print_message(format!("{host} skipped: {reason}"));
        self.event(json!({"event": "skipped", "node": node, "reason": reason}));
    }

    /// Handles an event of a host before the ranks are placed.
    fn on_start_event(&mut self, event: HostEvent, failed: &mut Vec<usize>) {
        match event {
            HostEvent::Message(index, ToLauncher::Hello(hello)) => {
                let reports_images = self.is_memory_restarted();
                let contact = self.contacts.get_mut(&index);
                // A late answer of a skipped host is ignored.
                let Some(contact) = contact.filter(|contact| contact.state == State::Waiting)
                else {
                    return;
                };
                if let Some(reason) = hello.wrong_version() {
                    self.skip(index, &reason, failed);
                } else {
                    if !reports_images {
                        contact.state = State::Ready;
                    }
                    contact.max_ranks = hello.max_ranks;
                    let node = contact.host.node.0;
                    self.event(json!({"event": "host", "node": node, "shim_pid": hello.pid}));
                }
            }
            HostEvent::Message(index, ToLauncher::Images { images, backlog }) => {
                let contact = self.contacts.get_mut(&index);
                if let Some(contact) = contact.filter(|it| it.state == State::Waiting) {
                    contact.state = State::Ready;
                    self.note_images(index, &images, backlog);
                }
            }
            HostEvent::ByAgent(index) => self.set_reached_by_agent(index),
            HostEvent::Ended(index, reason) => {
                let contact = self.contacts.get(&index);
                if contact.is_some_and(|contact| contact.state != State::Gone) {
                    let reason = reason.unwrap_or_else(|| "it ended at once".to_owned());
                    self.skip(index, &reason, failed);
                }
            }
            HostEvent::Message(index, ToLauncher::Refused { reason, .. }) => {
                let contact = self.contacts.get(&index);
                if contact.is_some_and(|contact| contact.state == State::Waiting) {
                    self.skip(index, &reason, failed);
                }
            }
            HostEvent::StderrLine(index, line) => self.on_stderr(index, &line),
            HostEvent::Message(..) => {}
        }
    }

    pub(super) fn set_reached_by_agent(&mut self, index: usize) {
        if let Some(contact) = self.contacts.get_mut(&index) {
            contact.by_agent = true;
        }
    }

    /// Distributes the ranks to the hosts that answered, and starts them.
    pub(super) fn start(&mut self, setup: &JobSetup<'_>) -> Result<Plan, RunError> {
        let args = setup.args;
        let is_ready = |contact: &Contact| contact.state == State::Ready;
        let ready = || self.contacts.values().filter(|contact| is_ready(contact));
        // Without a hosts file this machine takes any number of ranks.
        let is_bounded = setup.hosts.text.is_some() && !args.oversubscribe;
        let capacities: Vec<Capacity> = ready()
            .map(|contact| {
                let (slots, max) = (contact.host.slots, contact.max_ranks);
                let max = match is_bounded {
                    true => Some(max.map_or(slots, |max| max.min(slots))),
                    false => max,
                };
                Capacity { slots, max }
            })
            .collect();
        let most = self.ranks(args);
        let at_least = match args.at_least {
            Some(least) if !self.continues() => least,
            _ => most,
        };
        let (ranks, placed) = place(&capacities, most, at_least)?;
        if ranks < most {
            let text = format!("starting {ranks} of {most} ranks (--at-least)");
            self.print_message(text);
        }
        let ready_nodes: Vec<NodeId> = ready().map(|contact| contact.host.node).collect();
        let nodes: Vec<NodeId> = placed.iter().map(|at| ready_nodes[*at]).collect();
        self.select_images(&nodes);
        let plan = Plan::new(args, setup.hosts, self.checkpoints.as_ref(), &nodes)?;
        let ready = self.contacts.iter_mut().filter(|(_, it)| is_ready(it));
        for (at, (index, contact)) in ready.enumerate() {
            let ranks: Vec<u32> = (0..ranks)
                .zip(&placed)
                .filter(|(_, on)| **on == at)
                .map(|(rank, _)| rank)
                .collect();
            if ranks.is_empty() {
                contact.disconnect();
                continue;
            }
            self.running
                .extend(ranks.iter().map(|rank| (*rank, *index)));
            let start = plan.start(contact, ranks, 0);
            contact.send(ToShim::Start(Box::new(start)));
        }
        match self.attempt.number {
            0 => self.forward_input().map_err(|cause| RunError::System {
                doing: "starting the job",
                cause,
            })?,
            _ => self.repeat_input(),
        }
        Ok(plan)
    }
}

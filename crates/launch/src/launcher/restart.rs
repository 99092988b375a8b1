//! Restarts of ranks that failed or were lost, as [`Losses`](super::Losses) decides.

use std::time::{Duration, Instant};

use dipole_node::NodeId;
use serde_json::json;

use super::loss::{Due, OnLoss};
use super::plan::Plan;
use super::{JobSetup, Launch, NOTICE_EVERY};
use crate::host::State;
use crate::message::{Hello, ToShim};

impl Launch {
    /// Handles ranks that failed, or were lost together.
    pub(super) fn on_loss(
        &mut self,
        (ranks, node): (&[u32], NodeId),
        status: u8,
        what: &str,
        settle: Duration,
    ) {
        // Ranks are expected to end while the job is being ended.
        if self.give_up_at.is_some() || self.end_at.is_some() {
            return;
        }
        self.cancel_migration(what);
        if self.checkpoints.is_some() && self.losses.restarts() {
            return self.end_for_restart(what, status);
        }
        match self.losses.lost(Instant::now(), node, ranks, status) {
            OnLoss::End => {
                let others = match self.running.is_empty() {
                    true => "",
                    false => "; ending the others",
                };
                self.print_message(format!("{what}{others}"));
                self.status.get_or_insert(status);
                self.end_at = Some(Instant::now() + settle);
            }
            OnLoss::Continue => {
                self.print_message(format!("{what}; the others continue"));
                self.status.get_or_insert(status);
            }
            OnLoss::Restart => {
                self.print_message(format!("{what}; it will be started again there"))
            }
        }
    }

    /// Contacts the hosts of ranks whose restart is due.
    pub(super) fn restart(&mut self, setup: &JobSetup<'_>) {
        let now = Instant::now();
        let waited = |since: Instant| now.duration_since(since) >= setup.args.start_timeout;
        for number in self.late(setup) {
            self.disconnect(number);
            self.retry_later(number, Some("no answer"));
        }
        while let Some(due) = self.losses.take_due(now) {
            // The job has finished without them, or no running rank waits for them.
            if self.running.is_empty() && (self.some_succeeded || waited(due.since)) {
                self.print_message(format!("rank {} did not return", names(&due.ranks)));
                self.status.get_or_insert(due.status);
                continue;
            }
            let Some(host) = setup.list.iter().find(|host| host.node == due.node) else {
                continue;
            };
            let number = self.next_number(setup);
            match self.connect(number, host, setup) {
                Ok(()) => {
                    self.returning.insert(number, due);
                }
                Err(cause) => self.reschedule(due, &cause.to_string()),
            }
        }
    }

    /// The number of a contact that is not the first one to its host.
    pub(super) fn next_number(&self, setup: &JobSetup<'_>) -> usize {
        let last = self.contacts.keys().next_back();
        last.map_or(0, |last| last + 1).max(setup.list.len())
    }

    /// When [`restart`](Self::restart) must be called again.
    pub(super) fn next_restart(&self, setup: &JobSetup<'_>) -> Option<Instant> {
        let waiting = self.contacts.values();
        let waiting = waiting.filter(|contact| contact.state == State::Waiting);
        let late = waiting.map(|contact| contact.since + setup.args.start_timeout);
        late.chain(self.losses.next_at()).min()
    }

    /// Starts ranks again on a host whose shim has answered.
    pub(super) fn start_again(&mut self, number: usize, hello: &Hello, plan: &Plan) {
        let contact = self.contacts.get_mut(&number);
        let (Some(due), Some(contact)) = (self.returning.remove(&number), contact) else {
            return;
        };
        if let Some(reason) = hello.wrong_version() {
            contact.disconnect();
            self.reschedule(due, &reason);
            return;
        }
        contact.state = State::Ready;
        let start = plan.start(contact, due.ranks.clone(), due.restarts);
        contact.send(ToShim::Start(Box::new(start)));
        let host = contact.host.to_string();
        self.running
            .extend(due.ranks.iter().map(|rank| (*rank, number)));
        let after = due.since.elapsed().as_secs_f64();
        let ranks = names(&due.ranks);
        self.print_message(format!(
            "{host} answers: rank {ranks} restarted {after:.1} s after the loss"
        ));
        self.event(
            json!({"event": "restarted", "ranks": due.ranks, "node": due.node.0,
            "restarts": due.restarts}),
        );
    }

    /// Schedules another attempt, if the contact was for a restart, or cancels the migration that it
    /// was for; returns whether it was for either.
    pub(super) fn retry_later(&mut self, number: usize, reason: Option<&str>) -> bool {
        if self.lose_target(number, reason.unwrap_or("it ended at once")) {
            return true;
        }
        let Some(due) = self.returning.remove(&number) else {
            return false;
        };
        self.reschedule(due, reason.unwrap_or("it ended at once"));
        true
    }

    fn reschedule(&mut self, due: Due, reason: &str) {
        if self
            .notified_at
            .is_none_or(|at| at.elapsed() >= NOTICE_EVERY)
        {
            self.notified_at = Some(Instant::now());
            let ranks = names(&due.ranks);
            self.print_message(format!(
                "node {} is not back yet ({reason}): rank {ranks} waits",
                due.node
            ));
        }
        self.losses.try_later(Instant::now(), due);
    }

    /// Cancels all restarts and a migration because the job ends.
    pub(super) fn stop_restarts(&mut self) {
        self.cancel_migration("the job ends");
        for due in self.losses.stop() {
            self.status.get_or_insert(due.status);
        }
        for (number, due) in std::mem::take(&mut self.returning) {
            self.status.get_or_insert(due.status);
            self.disconnect(number);
        }
    }

    pub(super) fn disconnect(&mut self, number: usize) {
        if let Some(contact) = self.contacts.get_mut(&number) {
            contact.disconnect();
        }
    }
}

pub(super) fn names(ranks: &[u32]) -> String {
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    names.join(", ")
}

//! Ranks that fail or are lost, and return: carries out what [`Losses`](super::Losses) decides.

use std::time::Instant;

use dipole_node::NodeId;
use serde_json::json;

use super::loss::{Due, OnLoss};
use super::plan::Plan;
use super::{Launch, Means, NOTICE_EVERY};
use crate::host::State;
use crate::message::{Down, Hello};

impl Launch {
    /// Some ranks have failed, or were lost together.
    pub(super) fn lose(&mut self, ranks: &[u32], node: NodeId, status: u8, what: &str) {
        // While the job is being ended, ends of ranks are expected.
        if self.give_up_at.is_some() {
            return;
        }
        match self.losses.lost(Instant::now(), node, ranks, status) {
            OnLoss::End => {
                let others = match self.running.is_empty() {
                    true => "",
                    false => "; ending the others",
                };
                self.print_message(format!("{what}{others}"));
                self.fail(status);
            }
            OnLoss::Continue => {
                self.print_message(format!("{what}; the others go on"));
                self.status.get_or_insert(status);
            }
            OnLoss::Restart => self.print_message(format!("{what}; to be started again there")),
        }
    }

    /// Contacts the hosts of ranks whose restart is due.
    pub(super) fn restart(&mut self, means: &Means<'_>) {
        let now = Instant::now();
        let waited = |since: Instant| now.duration_since(since) >= means.args.start_timeout;
        for number in self.late(means) {
            self.disconnect(number);
            self.has_not_returned(number, Some("no answer"));
        }
        while let Some(due) = self.losses.take_due(now) {
            // The others have finished the job without them, or none is left that waits for them.
            if self.running.is_empty() && (self.some_ended_well || waited(due.since)) {
                self.print_message(format!("rank {} did not come back", names(&due.ranks)));
                self.status.get_or_insert(due.status);
                continue;
            }
            let Some(host) = means.list.iter().find(|host| host.node == due.node) else {
                continue;
            };
            let last = self.contacts.keys().next_back();
            let number = last.map_or(0, |last| last + 1).max(means.list.len());
            match self.connect(number, host, means) {
                Ok(()) => {
                    self.returning.insert(number, due);
                }
                Err(cause) => self.not_yet(due, &cause.to_string()),
            }
        }
    }

    /// When [`restart`](Self::restart) has something to do again.
    pub(super) fn next_restart(&self, means: &Means<'_>) -> Option<Instant> {
        let waiting = self.contacts.values();
        let waiting = waiting.filter(|contact| contact.state == State::Waiting);
        let late = waiting.map(|contact| contact.since + means.args.start_timeout);
        late.chain(self.losses.next_at()).min()
    }

    /// The shim of a host that was lost, or of ranks that failed, has answered.
    pub(super) fn is_back(&mut self, number: usize, hello: &Hello, plan: &Plan) {
        let contact = self.contacts.get_mut(&number);
        let (Some(due), Some(contact)) = (self.returning.remove(&number), contact) else {
            return;
        };
        let own = env!("CARGO_PKG_VERSION");
        if hello.version != own {
            contact.disconnect();
            let reason = format!("its dipole is version {}, not {own}", hello.version);
            self.not_yet(due, &reason);
            return;
        }
        contact.state = State::Ready;
        let start = plan.start(contact, due.ranks.clone(), due.restarts);
        contact.send(Down::Start(Box::new(start)));
        let host = contact.host.to_string();
        self.running
            .extend(due.ranks.iter().map(|rank| (*rank, number)));
        let after = due.since.elapsed().as_secs_f64();
        let ranks = names(&due.ranks);
        self.print_message(format!(
            "{host} answers: rank {ranks} started again {after:.1} s after the loss"
        ));
        self.event(
            json!({"event": "restarted", "ranks": due.ranks, "node": due.node.0,
            "restarts": due.restarts}),
        );
    }

    /// Schedules another attempt if the contact was one for a restart; returns whether it was.
    pub(super) fn has_not_returned(&mut self, number: usize, reason: Option<&str>) -> bool {
        let Some(due) = self.returning.remove(&number) else {
            return false;
        };
        self.not_yet(due, reason.unwrap_or("it ended at once"));
        true
    }

    fn not_yet(&mut self, due: Due, reason: &str) {
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

    /// Cancels all restarts: the job is to end.
    pub(super) fn stop_restarts(&mut self) {
        for due in self.losses.stop() {
            self.status.get_or_insert(due.status);
        }
        for (number, due) in std::mem::take(&mut self.returning) {
            self.status.get_or_insert(due.status);
            self.disconnect(number);
        }
    }

    fn disconnect(&mut self, number: usize) {
        if let Some(contact) = self.contacts.get_mut(&number) {
            contact.disconnect();
        }
    }
}

pub(super) fn names(ranks: &[u32]) -> String {
    let names: Vec<String> = ranks.iter().map(u32::to_string).collect();
    names.join(", ")
}

//! Migrations: ranks continue on other hosts, and the others keep their processes.
//!
//! `dipole migrate` leaves a request in the folder of the job, or `follow` finds better hosts. First
//! the new hosts must answer, then rank 0 gets the order, and the ranks that move take images. They
//! are started from these while their former processes wait. Once all have arrived, the launcher
//! decides that they move. If anything fails before that, the job goes on where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use dipole_checkpoint::{Answer, MIGRATION, MigrationRequest, Moved, Note, Order, Prepared, Store};
use dipole_naming::key::random_bytes;
use dipole_node::NodeId;
use dipole_node::hosts::Host;
use serde_json::json;

use super::follow::{Obstacle, TABLE_TIMEOUT};
use super::moves::{Wanted, select};
use super::plan::Plan;
use super::restart::names;
use super::{JobSetup, Launch};
use crate::host::State;
use crate::message::{Ending, Hello, Images, ToShim};

/// How often the launcher looks for a request, and for notes of a migration that is under way.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOK_OFTEN: Duration = Duration::from_millis(5);
/// How long the last output of an ended process may take, and how long a process may take to end.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
const END_TIMEOUT: Duration = Duration::from_secs(15);

/// A migration that is under way.
pub(super) struct Migration {
    order: Order,
    /// The job at its new places.
    plan: Plan,
    moves: BTreeMap<u32, Move>,
    /// The last message on standard error of each new contact.
    messages: BTreeMap<usize, String>,
    until: Instant,
    stage: Stage,
    origin: Origin,
    /// When rank 0 had all images: the job stands still about since then.
    stopped_at: Instant,
}

/// Where a migration comes from.
enum Origin {
    /// `dipole migrate`, which waits for the answer.
    User,
    /// The load of the hosts.
    Load {
        /// Contacts whose tables of loads are awaited, because they may be fresher than those that
        /// have led to the migration.
        unconfirmed: BTreeSet<usize>,
        since: Instant,
        obstacle: Obstacle,
    },
}

/// The move of a rank.
struct Move {
    /// Number of the contact where it is, and of the one where it will be.
    from: usize,
    to: usize,
    former_host: Host,
    host: Host,
}

/// The progress of a migration: the events that the launcher waits for.
enum Stage {
    /// The hosts to answer.
    Contacting,
    /// The end of the superstep, and images.
    Ordered,
    /// The ranks to be restored.
    Restoring,
    /// Their former processes to end. Nothing is cancelled any more.
    Ending {
        since: Instant,
        former: BTreeMap<u32, Former>,
    },
}

/// The former process of a rank.
#[derive(Default)]
struct Former {
    /// Number of its two outputs that have ended.
    ended_outputs: u32,
    ended_at: Option<Instant>,
}

impl Former {
    fn is_gone(&self) -> bool {
        let is_late = |at: Instant| at.elapsed() >= OUTPUT_TIMEOUT;
        self.ended_at
            .is_some_and(|at| self.ended_outputs >= 2 || is_late(at))
    }
}

impl Migration {
    fn number(&self) -> u64 {
        self.order.number
    }

    fn is_decided(&self) -> bool {
        matches!(self.stage, Stage::Ending { .. })
    }

    fn is_target(&self, index: usize) -> bool {
        self.moves.values().any(|one| one.to == index)
    }

    fn former(&mut self, index: usize, rank: u32) -> Option<&mut Former> {
        let is_there = self.moves.get(&rank).is_some_and(|one| one.from == index);
        match &mut self.stage {
            Stage::Ending { former, .. } if is_there => former.get_mut(&rank),
            _ => None,
        }
    }

    /// True if the load of the hosts is the reason, and the ranks may still stay.
    fn is_optional(&self) -> bool {
        matches!(self.origin, Origin::Load { .. }) && !self.is_decided()
    }

    /// Records that a host has sent its table of loads, or has none.
    pub(super) fn on_table(&mut self, index: usize) {
        if let Origin::Load { unconfirmed, .. } = &mut self.origin {
            unconfirmed.remove(&index);
        }
    }

    fn set_obstacle(&mut self, found: Obstacle) {
        if let Origin::Load { obstacle, .. } = &mut self.origin {
            *obstacle = found;
        }
    }

    /// Former and new node of each rank that moves.
    fn nodes(&self) -> Vec<(NodeId, NodeId)> {
        let moves = self.moves.values();
        moves
            .map(|one| (one.former_host.node, one.host.node))
            .collect()
    }

    /// Ranks by the contact where they will be.
    fn arrivals(&self) -> BTreeMap<usize, Vec<u32>> {
        let mut arrivals: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for (rank, one) in &self.moves {
            arrivals.entry(one.to).or_default().push(*rank);
        }
        arrivals
    }

    fn why_late(&self) -> &'static str {
        match self.stage {
            Stage::Contacting => "the hosts have not answered, or rank 0 has not read its input",
            Stage::Ordered => "no superstep has ended, or an image is not complete",
            _ => "the ranks were not restored",
        }
    }
}

impl Launch {
    /// When [`migrate`](Self::migrate) must be called again.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.checkpoints.as_ref()?;
        let pause = match self.attempt.migration {
            Some(_) => LOOK_OFTEN,
            None => LOOK_EVERY,
        };
        Some(self.attempt.looked_at? + pause)
    }

    /// Handles requests, and continues with the migration that is under way.
    pub(super) fn migrate(&mut self, setup: &JobSetup<'_>, plan: &mut Plan) {
        let Some(store) = self.checkpoints.as_ref().map(|it| it.store().clone()) else {
            return;
        };
        let now = Instant::now();
        if self.next_look().is_some_and(|at| now < at) {
            return;
        }
        self.attempt.looked_at = Some(now);
        let is_unwritten = |(note, content): &(Note, bool)| store.leave(*note, content).is_err();
        self.attempt.unwritten.retain(is_unwritten);
        if let Some(request) = store.take_note::<MigrationRequest>(Note::Request)
            && let Err(reason) = self.begin_migration(&request, setup)
        {
            self.print_message(format!("no rank is moved: {reason}"));
            self.leave(Note::Answer(request.number), &Answer::Err(reason));
        }
        let Some(mut migration) = self.attempt.migration.take() else {
            return;
        };
        let advanced = self.advance(&store, &mut migration, plan, setup);
        let is_over = matches!(advanced, Ok(true));
        if !is_over {
            self.attempt.migration = Some(migration);
        }
        if let Err(reason) = advanced {
            self.cancel_migration(&reason);
        }
    }

    /// True unless the job is being ended or restarted.
    pub(super) fn may_migrate(&self) -> bool {
        self.attempt.ends_for_restart.is_none() && self.give_up_at.is_none()
    }

    /// Begins a migration that the user has requested.
    fn begin_migration(
        &mut self,
        request: &MigrationRequest,
        setup: &JobSetup<'_>,
    ) -> Result<(), String> {
        self.cancel_optional("`dipole migrate` requests another migration");
        if self.attempt.migration.is_some() {
            return Err("another migration is under way; try again when it is over".to_owned());
        }
        if !self.may_migrate() {
            return Err("the job is being ended or restarted".to_owned());
        }
        let places = self.places()?;
        let mut hosts = setup.hosts.in_order(setup.args);
        hosts.sort_by_key(|host| self.attempt.lost_nodes.contains(&host.node));
        let is_bounded = setup.hosts.text.is_some() && !setup.args.oversubscribe;
        let wanted = Wanted {
            hosts: &request.to,
            ranks: &request.ranks,
        };
        let selected = select(&hosts, &places, wanted, is_bounded)?;
        let timeout = Duration::from_millis(request.timeout_ms);
        let (number, origin) = (request.number, Origin::User);
        self.begin_moves(&selected, setup, (number, timeout), origin)
    }

    /// Begins a migration because of the load of the hosts.
    pub(super) fn begin_automatic(
        &mut self,
        selected: &[(u32, &Host)],
        timeout: Duration,
        setup: &JobSetup<'_>,
    ) -> Result<(), String> {
        let number = random_bytes().map_err(|cause| cause.to_string())?;
        let origin = Origin::Load {
            unconfirmed: BTreeSet::new(),
            since: Instant::now(),
            obstacle: Obstacle::default(),
        };
        let number = u64::from_le_bytes(number);
        self.begin_moves(selected, setup, (number, timeout), origin)
    }

    /// Contacts the hosts.
    fn begin_moves(
        &mut self,
        selected: &[(u32, &Host)],
        setup: &JobSetup<'_>,
        (number, timeout): (u64, Duration),
        mut origin: Origin,
    ) -> Result<(), String> {
        let mut nodes = self.places()?;
        for (rank, host) in selected {
            nodes[*rank as usize] = host.node;
        }
        let plan = Plan::new(setup.args, setup.hosts, self.checkpoints.as_ref(), &nodes);
        let plan = plan.map_err(|error| error.to_string())?;
        let moves = self.contact(selected, setup)?;
        let (job, base) = plan.job();
        let now = Instant::now();
        if let Origin::Load { unconfirmed, .. } = &mut origin {
            unconfirmed.extend(moves.values().map(|one| one.to));
        }
        self.attempt.migration = Some(Box::new(Migration {
            order: Order {
                number,
                job,
                base,
                nodes: nodes.iter().map(|node| node.0).collect(),
                ranks: moves.keys().copied().collect(),
            },
            plan,
            moves,
            messages: BTreeMap::new(),
            until: now + timeout,
            stage: Stage::Contacting,
            origin,
            stopped_at: now,
        }));
        Ok(())
    }

    /// The node of each rank.
    pub(super) fn places(&self) -> Result<Vec<NodeId>, String> {
        let running = (0..).zip(&self.running);
        let places = running.map(|(expected, (rank, index))| match self.contacts.get(index) {
            Some(contact) if *rank == expected => Ok(contact.host.node),
            _ => Err(format!("rank {expected} has ended")),
        });
        let places: Vec<NodeId> = places.collect::<Result<_, _>>()?;
        match places.is_empty() {
            true => Err("the job has ended".to_owned()),
            false => Ok(places),
        }
    }

    /// Contacts each host once, even if it runs ranks of the job already.
    fn contact(
        &mut self,
        selected: &[(u32, &Host)],
        setup: &JobSetup<'_>,
    ) -> Result<BTreeMap<u32, Move>, String> {
        let mut numbers: BTreeMap<NodeId, usize> = BTreeMap::new();
        let mut moves = BTreeMap::new();
        for (rank, host) in selected {
            let number = match numbers.get(&host.node) {
                Some(number) => *number,
                None => {
                    let number = self.next_number(setup);
                    if let Err(cause) = self.connect(number, host, setup) {
                        numbers.into_values().for_each(|it| self.disconnect(it));
                        return Err(format!("{host} cannot be contacted: {cause}"));
                    }
                    numbers.insert(host.node, number);
                    number
                }
            };
            let from = self.running[rank];
            moves.insert(
                *rank,
                Move {
                    from,
                    to: number,
                    former_host: self.contacts[&from].host.clone(),
                    host: (*host).clone(),
                },
            );
        }
        Ok(moves)
    }

    /// Continues with a migration. Returns true when it is over, and why it must be cancelled.
    fn advance(
        &mut self,
        store: &Store,
        migration: &mut Migration,
        plan: &mut Plan,
        setup: &JobSetup<'_>,
    ) -> Result<bool, String> {
        if !migration.is_decided() {
            self.check(migration)?;
        }
        let number = migration.number();
        match &migration.stage {
            Stage::Contacting => {
                let is_ready = |index: &usize| {
                    let contact = self.contacts.get(index);
                    contact.is_some_and(|contact| contact.state == State::Answered)
                };
                let has_input = migration.moves.contains_key(&0) && self.attempt.input_bytes > 0;
                let is_ready = migration.arrivals().keys().all(is_ready) && !has_input;
                if is_ready && self.confirm(migration, setup)? {
                    let left = store.leave(Note::Order, &migration.order);
                    left.map_err(|error| error.to_string())?;
                    migration.stage = Stage::Ordered;
                }
            }
            Stage::Ordered => {
                if let Some(prepared) = store.read::<Prepared>(Note::Prepared(number)) {
                    self.restore(store, migration, prepared?);
                }
            }
            Stage::Restoring => {
                let has_arrived = |rank: &u32| {
                    let note = Note::Arrived(number, *rank);
                    store.read::<()>(note).is_some()
                };
                if migration.moves.keys().all(has_arrived) {
                    self.decide(store, migration, plan)?;
                }
            }
            Stage::Ending { since, former } => {
                let is_late = since.elapsed() >= END_TIMEOUT;
                if is_late || former.values().all(Former::is_gone) {
                    self.finish_migration(store, migration);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns whether the hosts have had the time to send their tables, if the migration depends on
    /// these. Fails if it is not sensible any more.
    fn confirm(&self, migration: &mut Migration, setup: &JobSetup<'_>) -> Result<bool, String> {
        let Origin::Load {
            unconfirmed, since, ..
        } = &migration.origin
        else {
            return Ok(true);
        };
        if !unconfirmed.is_empty() && since.elapsed() < TABLE_TIMEOUT {
            return Ok(false);
        }
        let moves = migration.moves.iter();
        let moves: Vec<_> = moves.map(|(rank, one)| (*rank, one.host.node)).collect();
        let confirmed = self.confirm_moves(setup, &moves);
        if confirmed.is_err() {
            migration.set_obstacle(Obstacle::Loads);
        }
        confirmed.map(|()| true)
    }

    /// Fails if the ranks cannot move any more.
    fn check(&self, migration: &Migration) -> Result<(), String> {
        let ends = |rank: &u32| self.running.get(rank) != Some(&migration.moves[rank].from);
        if let Some(rank) = migration.moves.keys().find(|rank| ends(rank)) {
            return Err(format!("rank {rank} has ended"));
        }
        if !self.running.contains_key(&0) {
            return Err("rank 0 has ended".to_owned());
        }
        if Instant::now() >= migration.until {
            let why = migration.why_late();
            return Err(match migration.origin {
                Origin::User => format!("{why} in the time of --timeout"),
                Origin::Load { .. } => why.to_owned(),
            });
        }
        Ok(())
    }

    /// Starts the ranks on their new hosts.
    fn restore(&mut self, store: &Store, migration: &mut Migration, set: u64) {
        store.remove_former_notes(migration.number());
        migration.plan.set_images(Some(Images {
            folder: store.folder().to_owned(),
            set,
            size: u32::try_from(migration.order.nodes.len()).unwrap_or(u32::MAX),
        }));
        for (index, ranks) in migration.arrivals() {
            let Some(contact) = self.contacts.get_mut(&index) else {
                continue;
            };
            contact.state = State::Ready;
            let mut start = migration.plan.start(contact, ranks, 0);
            let number = migration.number().to_string();
            start
                .environment
                .insert(MIGRATION.to_owned(), number.into());
            contact.send(ToShim::Start(Box::new(start)));
        }
        migration.stage = Stage::Restoring;
        migration.stopped_at = Instant::now();
    }

    /// Decides that the ranks move.
    fn decide(
        &mut self,
        store: &Store,
        migration: &mut Migration,
        plan: &mut Plan,
    ) -> Result<(), String> {
        let left = store.leave(Note::Decision(migration.number()), &true);
        left.map_err(|error| error.to_string())?;
        let mut former = BTreeMap::new();
        for (rank, one) in &migration.moves {
            self.running.insert(*rank, one.to);
            former.insert(*rank, Former::default());
        }
        let nodes = &migration.order.nodes;
        let lost = &mut self.attempt.lost_nodes;
        lost.retain(|node| !nodes.contains(&node.0));
        for one in migration.moves.values() {
            let node = one.former_host.node;
            if !nodes.contains(&node.0) && !lost.contains(&node) {
                lost.push(node);
            }
        }
        std::mem::swap(plan, &mut migration.plan);
        migration.stage = Stage::Ending {
            since: Instant::now(),
            former,
        };
        Ok(())
    }

    /// Lets the ranks go on at their new places.
    fn finish_migration(&mut self, store: &Store, migration: &Migration) {
        let number = migration.number();
        if migration.moves.contains_key(&0) {
            let unread: Vec<u8> = store.read(Note::Input(number)).unwrap_or_default();
            self.attempt.input.insert(0, unread);
            self.repeat_input();
        }
        self.leave_for_ranks(Note::Go(number), true);
        let stood_still = migration.stopped_at.elapsed();
        let mut moved = Vec::new();
        for (rank, one) in &migration.moves {
            let (from, to) = (one.former_host.to_string(), one.host.to_string());
            self.print_message(format!("rank {rank} has moved from {from} to {to}"));
            self.event(json!({"event": "migrated", "rank": rank,
                "from": one.former_host.node.0, "to": one.host.node.0}));
            let rank = *rank;
            moved.push(Moved { rank, from, to });
        }
        let milliseconds = u64::try_from(stood_still.as_millis()).unwrap_or(u64::MAX);
        let nodes = migration.nodes();
        if let Origin::Load { .. } = migration.origin {
            self.print_message(format!(
                "after {milliseconds} ms of standstill the job goes on"
            ));
            return self.on_followed(&nodes);
        }
        let used = migration.order.nodes.iter().copied().map(NodeId);
        self.on_user_moved(&nodes, &used.collect::<Vec<_>>());
        self.leave(Note::Answer(number), &Answer::Ok((moved, milliseconds)));
    }

    /// Cancels the migration that is under way, unless it is decided: the job goes on where it is.
    pub(super) fn cancel_migration(&mut self, reason: &str) {
        let Some(migration) = self.attempt.migration.take_if(|it| !it.is_decided()) else {
            return;
        };
        if let Some(checkpoints) = &self.checkpoints {
            let _withdrawn: Option<Order> = checkpoints.store().take_note(Note::Order);
        }
        self.leave_for_ranks(Note::Decision(migration.number()), false);
        for index in migration.arrivals().into_keys() {
            self.disconnect(index);
        }
        let ranks: Vec<u32> = migration.moves.keys().copied().collect();
        if ranks.contains(&0) && self.attempt.ends_for_restart.is_none() {
            self.repeat_input();
        }
        let ranks = names(&ranks);
        self.print_message(format!("rank {ranks} stays where it is: {reason}"));
        match migration.origin {
            Origin::Load { obstacle, .. } => self.on_not_followed(obstacle),
            Origin::User => {
                let answer = Answer::Err(reason.to_owned());
                self.leave(Note::Answer(migration.number()), &answer);
            }
        }
    }

    /// Cancels a migration that has no other reason than the load, for something more urgent.
    pub(super) fn cancel_optional(&mut self, reason: &str) {
        let migration = self.attempt.migration.as_ref();
        if migration.is_some_and(|migration| migration.is_optional()) {
            self.cancel_migration(reason);
        }
    }

    /// Cancels such a migration of rank 0, which may need the input that has arrived to end its
    /// superstep.
    pub(super) fn prefer_input(&mut self) {
        if self.migrates(0) {
            self.cancel_optional("input for rank 0 has arrived");
        }
    }

    /// Answers for a migration that was decided, but has not ended before the job has.
    pub(super) fn abandon_migration(&mut self) {
        let migration = self.attempt.migration.take();
        if let Some(migration) = migration.filter(|it| matches!(it.origin, Origin::User)) {
            let reason = "the job has ended, or is being restarted".to_owned();
            self.leave(Note::Answer(migration.number()), &Answer::Err(reason));
        }
    }

    /// Leaves a note for which ranks wait. If the disk is full, the launcher tries again later.
    fn leave_for_ranks(&mut self, note: Note, content: bool) {
        if !self.leave(note, &content) {
            self.attempt.unwritten.push((note, content));
        }
    }

    /// Leaves a note; returns whether it was written. Its receiver gives up after a while if it cannot
    /// be written.
    fn leave(&self, note: Note, content: &impl serde::Serialize) -> bool {
        let store = self.checkpoints.as_ref().map(|it| it.store());
        match store.map(|store| store.leave(note, content)) {
            Some(Err(error)) => {
                self.print_message(format!("migration: {error}"));
                false
            }
            _ => true,
        }
    }

    /// True if a rank is about to move.
    pub(super) fn migrates(&self, rank: u32) -> bool {
        let migration = self.attempt.migration.as_ref();
        migration.is_some_and(|migration| migration.moves.contains_key(&rank))
    }

    /// True if a contact is for ranks that move to it.
    pub(super) fn is_target(&self, index: usize) -> bool {
        let migration = self.attempt.migration.as_ref();
        migration.is_some_and(|migration| migration.is_target(index))
    }

    /// Handles the answer of a host to which ranks move.
    pub(super) fn on_target(&mut self, index: usize, hello: &Hello) {
        let migration = self.attempt.migration.as_ref();
        let count = migration.and_then(|it| it.arrivals().get(&index).map(Vec::len));
        let Some(contact) = self.contacts.get_mut(&index) else {
            return;
        };
        let allowed = hello.max_ranks.map(|max| max as usize);
        if let Some(reason) = hello.wrong_version() {
            self.lose_target(index, &reason);
        } else if let Some(max) = allowed.filter(|max| count > Some(*max)) {
            contact.max_ranks = hello.max_ranks;
            self.lose_target(index, &format!("its owner allows {max} ranks"));
        } else {
            contact.state = State::Answered;
            if migration.is_some_and(|migration| migration.is_optional()) {
                self.request_table(index);
            }
        }
    }

    /// Cancels the migration if a host to which ranks move is lost before they do; returns whether it
    /// was one.
    pub(super) fn lose_target(&mut self, index: usize, reason: &str) -> bool {
        let migration = self.attempt.migration.as_ref();
        let is_open = migration.is_some_and(|it| it.is_target(index) && !it.is_decided());
        if is_open {
            let host = self.contacts.get(&index).map(|it| it.host.to_string());
            let host = host.unwrap_or_default();
            let message = migration.and_then(|it| it.messages.get(&index));
            let message = message.map_or(String::new(), |text| format!(" ({text})"));
            if let Some(migration) = &mut self.attempt.migration
                && let Some(contact) = self.contacts.get(&index)
            {
                migration.set_obstacle(Obstacle::Refusal(contact.host.node));
            }
            self.cancel_migration(&format!("{host}: {reason}{message}"));
        }
        is_open
    }

    /// Notes a message of a host to which ranks move: it may explain why the host is lost.
    pub(super) fn note_message(&mut self, index: usize, text: &str) {
        if let Some(migration) = &mut self.attempt.migration
            && migration.is_target(index)
        {
            migration.messages.insert(index, text.to_owned());
        }
    }

    /// Handles the end of a process that is not the present one of its rank.
    pub(super) fn on_other_exit(&mut self, index: usize, rank: u32, ending: Ending) {
        let migration = self.attempt.migration.as_mut();
        if let Some(former) = migration.and_then(|it| it.former(index, rank)) {
            former.ended_at = Some(Instant::now());
        } else if self.is_target(index) {
            let status = ending.status();
            let reason = format!("rank {rank} could not be restored (status {status})");
            self.lose_target(index, &reason);
        }
    }

    /// Handles the end of an output of a rank.
    pub(super) fn on_output_end(&mut self, index: usize, rank: u32) {
        let migration = self.attempt.migration.as_mut();
        if let Some(former) = migration.and_then(|it| it.former(index, rank)) {
            former.ended_outputs += 1;
        }
    }

    /// Handles the end of a contact: no former process is left there.
    pub(super) fn end_former_on(&mut self, index: usize) {
        let Some(migration) = self.attempt.migration.as_mut() else {
            return;
        };
        let ranks: Vec<u32> = migration.moves.keys().copied().collect();
        for rank in ranks {
            if let Some(former) = migration.former(index, rank) {
                former.ended_at.get_or_insert_with(Instant::now);
                former.ended_outputs = 2;
            }
        }
    }
}

//! Migration: ranks continue on other nodes, and the others keep their processes.
//!
//! All of this happens between two supersteps of the program. Rank 0 has the order of the launcher,
//! and sends it to all. The ranks that move take images. Once these run on their new nodes, the
//! launcher decides, and rank 0 sends the decision to all. Until then nothing is lost: the former
//! processes go on if anything fails. Then they end, and all ranks connect again.
//!
//! # Source
//! `bsp-protocols-thesis`, §8.2, where all processes are restarted.

use std::io::stdin;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use dipole_checkpoint::{
    MIGRATION, Note, Order, Outcome, Prepared, Store, Until, end_without_handlers,
};
use dipole_node::job::Job;
use dipole_node::{Address, EndpointId, NodeId, is_cancelled};
use rustix::fs::{FileType, fstat};
use rustix::io::ioctl_fionread;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{CLOSE_TIMEOUT, Process};
use crate::carrier::Carrier;
use crate::failure::Failure;
use crate::superstep::record::Malformed;

/// Pause between two looks for a note.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// An order that rank 0 accepts, or its reason to refuse it.
type Accepted = Result<Order, String>;

impl<C: Carrier> Process<C> {
    /// Moves ranks to other nodes, as the launcher has ordered.
    ///
    /// # Errors
    /// A rank is lost. If ranks cannot be moved, the program goes on.
    pub(super) fn migrate(&mut self) -> Result<(), Failure> {
        let Some(store) = self.checkpoints.as_ref().map(|it| it.store().clone()) else {
            return Ok(());
        };
        let Some(order) = self.share_order()? else {
            return Ok(());
        };
        let (superstep, first) = (self.exchange.superstep(), self.first);
        let moves = order.ranks.contains(&self.rank);
        // Ranks that stay do not wait for their images, which only complete the set.
        let taken = self.take_image(match moves {
            true => Until::Written,
            false => Until::Begun,
        });
        let taken_as = match taken.result {
            Ok(Outcome::Restored(environment)) => {
                self.begin_restored(&environment, taken.elapsed)?;
                wait_to_go(&store, self.rank)?;
                return self.connect_again(C::reopen(None)?, superstep);
            }
            Ok(Outcome::Continued) => Ok(taken.set),
            Err(error) => {
                let rank = self.rank;
                Err(format!("rank {rank} cannot be saved: {error}"))
            }
        };
        if !self.decide(&store, &order, moves, taken_as)? {
            return Ok(());
        }
        if moves {
            self.end_moved(&store, order.number)?;
        }
        self.close(CLOSE_TIMEOUT);
        drop(self.take_links());
        // All ranks continue where the images were taken.
        self.first = first;
        let job = job_of(&order, self.rank);
        self.connect_again(C::reopen(Some(job))?, superstep)
    }

    /// Sends rank 0's order to all ranks. Returns `None` if rank 0 refuses it.
    fn share_order(&mut self) -> Result<Option<Order>, Failure> {
        let order = self.checkpoints.as_mut().and_then(|it| it.order.take());
        let mut messages = Vec::new();
        if let Some(order) = order {
            let number = order.number;
            let accepted = self.check(order);
            let accepted_bytes = encode(&accepted)?;
            messages.extend((0..self.size).map(|to| (to, accepted_bytes.clone())));
            if let (Err(reason), Some(checkpoints)) = (accepted, &self.checkpoints) {
                let refused = Prepared::Err(reason);
                report(checkpoints.store(), Note::Prepared(number), &refused);
            }
        }
        let received = self.exchange_hidden(&messages)?;
        let accepted = received.first().ok_or(Malformed)?;
        let accepted: Accepted = postcard::from_bytes(accepted).map_err(|_| Malformed)?;
        Ok(accepted.ok())
    }

    fn check(&self, order: Order) -> Accepted {
        let (placed, size) = (order.nodes.len(), self.size as usize);
        match placed == size {
            true => Ok(order),
            false => Err(format!(
                "{placed} ranks were started, but {size} take part in the program"
            )),
        }
    }

    /// Sends rank 0 the outcomes of the images, and to all ranks what the launcher then decides:
    /// whether the ranks move.
    fn decide(
        &mut self,
        store: &Store,
        order: &Order,
        moves: bool,
        taken: Prepared,
    ) -> Result<bool, Failure> {
        let mut messages = Vec::new();
        if moves {
            messages.push((0, encode(&taken)?));
        }
        let received = self.exchange_hidden(&messages)?;
        let mut messages = Vec::new();
        if self.rank == 0 {
            let outcomes: Result<Vec<Prepared>, _> = received
                .iter()
                .map(|outcome| postcard::from_bytes(outcome))
                .collect();
            let outcomes = outcomes.map_err(|_| Malformed)?;
            let sets: Result<Vec<u64>, String> = outcomes.into_iter().collect();
            let prepared = sets.and_then(|sets| sets.first().copied().ok_or_else(String::new));
            let is_reported = report(store, Note::Prepared(order.number), &prepared);
            let decision = match prepared {
                Ok(_) if is_reported => wait_for(store, Note::Decision(order.number))?,
                _ => false,
            };
            messages.extend((0..self.size).map(|to| (to, vec![u8::from(decision)])));
        }
        let received = self.exchange_hidden(&messages)?;
        Ok(received.first().ok_or(Malformed)?.first() == Some(&1))
    }

    /// Ends the former process of this rank.
    fn end_moved(&mut self, store: &Store, number: u64) -> Result<(), Failure> {
        if self.rank == 0 {
            let unread = unread_input().map_err(Failure::system("reading the standard input"))?;
            report(store, Note::Input(number), &unread);
        }
        self.close(CLOSE_TIMEOUT);
        end_without_handlers(0)
    }
}

fn encode(content: &impl Serialize) -> Result<Vec<u8>, Failure> {
    Ok(postcard::to_stdvec(content).map_err(|_| Malformed)?)
}

/// Leaves a note for the launcher, which cancels the migration if it gets none in time. Returns
/// whether it could be written.
fn report(store: &Store, note: Note, content: &impl Serialize) -> bool {
    match store.leave(note, content) {
        Ok(()) => true,
        Err(error) => {
            eprintln!("bsp: migration: {error}");
            false
        }
    }
}

/// Waits for a note of the launcher, which bounds the time and ends all processes when it ends.
fn wait_for<T: DeserializeOwned>(store: &Store, note: Note) -> Result<T, Failure> {
    loop {
        if let Some(content) = store.read(note) {
            return Ok(content);
        }
        if is_cancelled() {
            return Err(Failure::Interrupted);
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Waits in a restored process until the former one has ended, if that still runs.
fn wait_to_go(store: &Store, rank: u32) -> Result<(), Failure> {
    let number = dipole_node::variable(MIGRATION).and_then(|text| text.parse().ok());
    let Some(number) = number else {
        // The whole job was restarted from this image.
        return Ok(());
    };
    report(store, Note::Arrived(number, rank), &());
    let _goes: bool = wait_for(store, Note::Go(number))?;
    Ok(())
}

/// The job at its new places.
fn job_of(order: &Order, rank: u32) -> Job {
    let addresses = (order.base..).zip(&order.nodes);
    Job {
        id: order.job,
        rank,
        size: u32::try_from(order.nodes.len()).unwrap_or(u32::MAX),
        addresses: addresses
            .map(|(endpoint, node)| Address {
                node: NodeId(*node),
                endpoint: EndpointId(endpoint),
            })
            .collect(),
    }
}

/// Takes the unread bytes from the pipe of the standard input. While a rank moves, nothing is added
/// to it.
fn unread_input() -> std::io::Result<Vec<u8>> {
    let input = stdin();
    let mut unread = Vec::new();
    if FileType::from_raw_mode(fstat(input.as_fd())?.st_mode) != FileType::Fifo {
        return Ok(unread);
    }
    loop {
        let count = usize::try_from(ioctl_fionread(input.as_fd())?).unwrap_or(0);
        if count == 0 {
            return Ok(unread);
        }
        let start = unread.len();
        unread.resize(start + count, 0);
        let read = rustix::io::read(input.as_fd(), &mut unread[start..])?;
        unread.truncate(start + read);
    }
}

//! Checkpoints at the end of a superstep. The ranks agree on one by a bit that travels with what
//! they exchange anyway; then each takes an image of its process and goes on.
//!
//! # Source
//! `bsp-protocols-thesis`, ch. 8.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dipole_checkpoint::{
    CaptureError, Identity, Interval, Note, Order, Outcome, Recorder, Store, Until,
};
use dipole_node::job::{LauncherRequest, leave_launcher, rejoin_launcher, take_request};
use dipole_node::{default_runtime_dir, trace_dir, variable};

use super::Process;
use super::pacer::Pacer;
use super::pending::PendingCalls;
use super::shared_memory::SharedMemory;
use crate::carrier::{Carrier, Connection};
use crate::failure::Failure;
use crate::local::{LocalRanks, SyncPhase};
use crate::misuse::Misuse;
use crate::superstep::collective::Ending;
use crate::superstep::exchange::Exchange;
use crate::superstep::node_map::NodeMap;
use crate::superstep::request::Request;

/// Folder of the job's checkpoints, and how often one is taken.
const FOLDER: &str = "DIPOLE_CHECKPOINT_DIR";
const EVERY: &str = "DIPOLE_CHECKPOINT_EVERY";
/// Highest number of a checkpoint in the folder when the job was started.
const LAST: &str = "DIPOLE_CHECKPOINT_LAST";
/// How often rank 0 looks for a request.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The checkpoints of a job, as one rank sees them.
#[derive(Debug)]
pub(super) struct Checkpoints {
    store: Store,
    recorder: Recorder,
    /// `None` if checkpoints are only requested.
    interval: Option<Interval>,
    /// This rank requests one.
    is_requested: bool,
    /// The ranks have agreed on this at the end of the present superstep.
    agreed: Request,
    /// Rank 0: how ranks move at the end of the present superstep.
    pub(super) order: Option<Order>,
    /// Number of the last one; the same on all ranks.
    last: u64,
    last_at: Instant,
    looked_at: Instant,
    /// Supersteps since the last one.
    supersteps: u64,
}

impl Checkpoints {
    /// As the environment selects them; `None` if it names no folder.
    pub(super) fn from_env() -> Result<Option<Box<Checkpoints>>, Failure> {
        let Some(folder) = variable(FOLDER) else {
            return Ok(None);
        };
        let interval = variable(EVERY).map(|text| {
            let invalid = |right| Failure::NotSaved(format!("{EVERY} is `{text}`, not {right}"));
            text.parse().map_err(invalid)
        });
        let mut checkpoints = Checkpoints::new(Store::new(folder.into()), interval.transpose()?);
        // Images of former attempts never belong to the same set as new ones.
        checkpoints.last = variable(LAST)
            .and_then(|text| text.parse().ok())
            .unwrap_or(0);
        Ok(Some(Box::new(checkpoints)))
    }

    fn new(store: Store, interval: Option<Interval>) -> Checkpoints {
        let now = Instant::now();
        Checkpoints {
            store,
            recorder: Recorder::default(),
            interval,
            is_requested: false,
            agreed: Request::None,
            order: None,
            last: 0,
            last_at: now,
            looked_at: now,
            supersteps: 0,
        }
    }

    /// Request of this rank at the end of this superstep.
    pub(super) fn due(&mut self, rank: u32) -> Request {
        self.supersteps += 1;
        if rank > 0 {
            return match self.is_requested {
                true => Request::Checkpoint,
                false => Request::None,
            };
        }
        // The launcher's requests reach all ranks, and not at the same time.
        match take_request() {
            Some(LauncherRequest::Preempt) => return Request::Preemption,
            Some(LauncherRequest::Checkpoint) => self.is_requested = true,
            None => {}
        }
        let now = Instant::now();
        let is_requested = self.is_requested || self.is_interval_over(now);
        if now.duration_since(self.looked_at) >= LOOK_EVERY {
            self.looked_at = now;
            self.order = self.store.take_note(Note::Order);
            if self.order.is_some() {
                return Request::Migration;
            }
            if !is_requested && self.store.take_request() {
                return Request::Checkpoint;
            }
        }
        match is_requested {
            true => Request::Checkpoint,
            false => Request::None,
        }
    }

    fn is_interval_over(&self, now: Instant) -> bool {
        let is_over = match self.interval {
            Some(Interval::Supersteps(supersteps)) => self.supersteps >= supersteps,
            Some(Interval::Time(time)) => now.duration_since(self.last_at) >= time,
            None => false,
        };
        // The next checkpoint waits until rank 0 has written its last image, and the hosts have copied
        // former ones.
        is_over && !self.recorder.is_writing() && !self.store.is_held()
    }

    /// Notes the request of all ranks.
    #[inline]
    pub(super) fn agree(&mut self, request: Request) {
        self.agreed = request;
    }

    /// Takes the agreement.
    #[inline]
    pub(super) fn take_agreed(&mut self) -> Request {
        std::mem::take(&mut self.agreed)
    }

    /// The folder of the job.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    fn take(
        &mut self,
        identity: Identity,
        ignored: &[PathBuf],
        until: Until,
    ) -> Result<Outcome, CaptureError> {
        let Checkpoints {
            store, recorder, ..
        } = self;
        recorder.take(store, identity, ignored, "bsp", until)
    }

    /// Begins the next checkpoint. Returns its number.
    fn begin(&mut self) -> u64 {
        self.last += 1;
        let now = Instant::now();
        (self.last_at, self.looked_at, self.supersteps) = (now, now, 0);
        self.is_requested = false;
        self.last
    }
}

impl<C: Carrier> Process<C> {
    /// Requests a checkpoint at the end of this superstep.
    ///
    /// # Errors
    /// The job has no folder for checkpoints.
    pub fn request_checkpoint(&mut self) -> Result<(), Failure> {
        let checkpoints = self.checkpoints.as_mut().ok_or(Misuse::NoCheckpoints)?;
        checkpoints.is_requested = true;
        Ok(())
    }

    /// Takes an image of this process. After a restoration, continues with new links.
    ///
    /// # Errors
    /// The ranks do not find each other again. An image that cannot be written is reported, and the
    /// program goes on.
    pub(super) fn checkpoint(&mut self) -> Result<(), Failure> {
        let taken = self.take_image(Until::Begun);
        match taken.result {
            Ok(Outcome::Continued) => Ok(()),
            Ok(Outcome::Restored(environment)) => {
                self.continue_restored(&environment, taken.elapsed)
            }
            Err(error) => {
                let (rank, set) = (self.rank, taken.set);
                eprintln!(
                    "bsp: rank {rank}: checkpoint {set} was not written, and the program goes on: \
                     {error}"
                );
                Ok(())
            }
        }
    }

    /// Takes an image of this process, which has checkpoints.
    pub(super) fn take_image(&mut self, until: Until) -> Taken {
        let (rank, size) = (self.rank, self.size);
        let elapsed = self.begun.elapsed();
        let Some(checkpoints) = &mut self.checkpoints else {
            let result = Err(CaptureError::Unsupported(Misuse::NoCheckpoints.to_string()));
            return Taken {
                set: 0,
                elapsed,
                result,
            };
        };
        let set = checkpoints.begin();
        let identity = Identity { set, rank, size };
        let ignored: Vec<PathBuf> = [Some(default_runtime_dir()), trace_dir()]
            .into_iter()
            .flatten()
            .collect();
        // Its library has descriptors and threads, which an image cannot hold.
        let has_left = leave_launcher();
        let result = checkpoints.take(identity, &ignored, until);
        if has_left && !matches!(result, Ok(Outcome::Restored(_))) {
            rejoin_launcher();
        }
        Taken {
            set,
            elapsed,
            result,
        }
    }

    /// Continues in a process that was restored from an image, as were all others.
    pub(super) fn continue_restored(
        &mut self,
        environment: &[(String, String)],
        elapsed: Duration,
    ) -> Result<(), Failure> {
        let superstep = self.exchange.superstep();
        self.begin_restored(environment, elapsed)?;
        self.connect_again(C::reopen(None)?, superstep)
    }

    /// Replaces the description of the former process.
    pub(super) fn begin_restored(
        &mut self,
        environment: &[(String, String)],
        elapsed: Duration,
    ) -> Result<(), Failure> {
        replace_environment(environment);
        // A request to the former process.
        let _answered = take_request();
        // Not dropped: its descriptors and addresses may belong to something else now.
        std::mem::forget(self.take_links());
        if let Some(checkpoints) = &mut self.checkpoints {
            let last = checkpoints.last;
            if let Some(now) = Checkpoints::from_env()? {
                *checkpoints = now;
            }
            checkpoints.last = checkpoints.last.max(last);
        }
        let now = Instant::now();
        self.begun = now.checked_sub(elapsed).unwrap_or(now);
        Ok(())
    }

    /// Removes all that describes the links to other ranks, also those for further parallel sections.
    /// Nothing may be sent or received before [`connect_again`](Self::connect_again).
    pub(super) fn take_links(&mut self) -> impl Sized + use<C> {
        let alone = NodeMap::new(&vec![0; self.size as usize]);
        (
            std::mem::take(&mut self.open),
            self.carrier.take(),
            std::mem::replace(&mut self.exchange, Exchange::new(self.rank, alone)),
            self.shared.take(),
            std::mem::replace(&mut self.pending, PendingCalls::new(self.size)),
            std::mem::replace(&mut self.pacer, Pacer::unpaced()),
            self.trace.take(),
            self.standby.take(),
        )
    }

    /// Connects with the other ranks before a superstep. All of them do that. They may be on other
    /// nodes than before.
    pub(super) fn connect_again(
        &mut self,
        connection: Connection<C>,
        superstep: u32,
    ) -> Result<(), Failure> {
        let Connection {
            carrier,
            node_map,
            slots,
            ..
        } = connection;
        let ranks: Vec<u32> = node_map.ranks_with(self.rank).collect();
        self.shared = match ranks.len() {
            1 => None,
            _ => Some(SharedMemory::new(LocalRanks::new(
                self.rank, self.size, &ranks,
            )?)),
        };
        self.exchange = Exchange::continued(self.rank, node_map, superstep);
        self.carrier = Some(carrier);
        self.set_slots(slots);
        if let Some(shared) = &self.shared {
            shared.ranks().reach(SyncPhase::Left, superstep);
        }
        let mut keys = Vec::new();
        for part in self.collective.registrations().own_parts() {
            let start =
                std::ptr::with_exposed_provenance_mut(usize::try_from(part.address).unwrap_or(0));
            // SAFETY: the program has promised when it registered the memory that it stays writable
            // while it is registered.
            keys.push(unsafe { self.open_memory(start, part.bytes)? });
        }
        self.collective.set_keys(self.rank, &keys);
        let others = (0..self.size).filter(|rank| *rank != self.rank).collect();
        self.exchange_hellos(others, keys, Vec::new())?;
        // After this superstep, all ranks have all hellos.
        self.exchange_hidden(&[])?;
        if self.exchange.node_map().nodes() == 1 {
            self.close(Duration::ZERO);
        }
        Ok(())
    }

    /// Sends messages to ranks in a superstep that the program does not see. Returns those that this
    /// rank gets. The program still reads the messages of its last superstep.
    pub(super) fn exchange_hidden(
        &mut self,
        messages: &[(u32, Vec<u8>)],
    ) -> Result<Vec<Vec<u8>>, Failure> {
        let queue = std::mem::take(&mut self.queue);
        let tag = vec![0; usize::try_from(self.tag_size()).unwrap_or(0)];
        for (to, message) in messages {
            // SAFETY: `tag` has the length of a tag, and both are readable.
            unsafe { self.send(*to, tag.as_ptr(), message.as_ptr(), message.len() as u64)? };
        }
        // With this ending none of them requests a checkpoint.
        self.end_superstep(Ending::End)?;
        self.first = self.first.wrapping_add(1);
        let mut received = Vec::new();
        while let Some(message) = self.queue.take() {
            received.push(message.payload.to_vec());
        }
        self.queue = queue;
        Ok(received)
    }
}

/// An image that a rank has taken, or has been restored from.
pub(super) struct Taken {
    pub(super) set: u64,
    /// Time since the program began, when it was taken.
    pub(super) elapsed: Duration,
    pub(super) result: Result<Outcome, CaptureError>,
}

/// Replaces the variables of Dipole.
fn replace_environment(environment: &[(String, String)]) {
    let old = std::env::vars_os().map(|(name, _)| name);
    let old: Vec<_> = old
        .filter(|name| name.to_string_lossy().starts_with("DIPOLE_"))
        .collect();
    // SAFETY: a restored process has one thread.
    unsafe {
        for name in old {
            std::env::remove_var(name);
        }
        for (name, value) in environment {
            std::env::set_var(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_is_due_by_interval_or_request() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path().to_owned());
        let mut checkpoints = Checkpoints::new(store, Some(Interval::Supersteps(3)));
        let due: Vec<Request> = (0..3).map(|_| checkpoints.due(0)).collect();
        assert_eq!(due, [Request::None, Request::None, Request::Checkpoint]);
        assert_eq!(checkpoints.due(1), Request::None);
        assert_eq!(checkpoints.begin(), 1);
        assert_eq!(checkpoints.due(0), Request::None);
        checkpoints.is_requested = true;
        assert_eq!(checkpoints.due(1), Request::Checkpoint);
        assert_eq!(checkpoints.begin(), 2);
        checkpoints.store.request().expect("own folder");
        look_again(&mut checkpoints);
        assert_eq!(checkpoints.due(0), Request::Checkpoint);
        assert!(!checkpoints.store.take_request());
    }

    #[test]
    fn an_order_counts_more_than_a_checkpoint_and_is_taken_by_rank_0() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path().to_owned());
        let mut checkpoints = Checkpoints::new(store, None);
        let order = Order {
            number: 5,
            job: 6,
            base: 7,
            nodes: vec![1, 2],
            ranks: vec![1],
        };
        let left = checkpoints.store.leave(Note::Order, &order);
        left.expect("own folder");
        checkpoints.is_requested = true;
        look_again(&mut checkpoints);
        assert_eq!(checkpoints.due(1), Request::Checkpoint);
        assert_eq!(checkpoints.due(0), Request::Migration);
        assert_eq!(checkpoints.order, Some(order));
    }

    fn look_again(checkpoints: &mut Checkpoints) {
        let looked_at = checkpoints.looked_at.checked_sub(LOOK_EVERY);
        checkpoints.looked_at = looked_at.expect("later than the start");
    }
}

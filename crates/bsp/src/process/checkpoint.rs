//! Checkpoints at the end of a superstep. The ranks agree on one by a bit that travels with what
//! they exchange anyway; then each takes an image of its process and goes on.
//!
//! # Source
//! `bsp-protocols-thesis`, ch. 8.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use dipole_checkpoint::{Identity, Interval, Outcome, Store, take};
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

/// Folder of the job's checkpoints, and how often one is taken.
const FOLDER: &str = "DIPOLE_CHECKPOINT_DIR";
const EVERY: &str = "DIPOLE_CHECKPOINT_EVERY";
/// How often rank 0 looks for a request.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The checkpoints of a job, as one rank sees them.
#[derive(Debug)]
pub(super) struct Checkpoints {
    store: Store,
    /// `None` if checkpoints are only requested.
    interval: Option<Interval>,
    /// This rank requests one.
    is_requested: bool,
    /// The ranks have agreed on one at the end of the present superstep.
    is_agreed: bool,
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
        let checkpoints = Checkpoints::new(Store::new(folder.into()), interval.transpose()?);
        Ok(Some(Box::new(checkpoints)))
    }

    fn new(store: Store, interval: Option<Interval>) -> Checkpoints {
        let now = Instant::now();
        Checkpoints {
            store,
            interval,
            is_requested: false,
            is_agreed: false,
            last: 0,
            last_at: now,
            looked_at: now,
            supersteps: 0,
        }
    }

    /// True if a rank should request a checkpoint at the end of this superstep.
    pub(super) fn is_due(&mut self, rank: u32, size: u32) -> bool {
        self.supersteps += 1;
        if self.is_requested || rank > 0 {
            return self.is_requested;
        }
        if let Some(Interval::Supersteps(supersteps)) = self.interval
            && self.supersteps >= supersteps
        {
            return self.is_written(size);
        }
        let now = Instant::now();
        if let Some(Interval::Time(time)) = self.interval
            && now.duration_since(self.last_at) >= time
        {
            return self.is_written(size);
        }
        if now.duration_since(self.looked_at) < LOOK_EVERY {
            return false;
        }
        self.looked_at = now;
        self.store.take_request()
    }

    /// True unless rank 0's last image is still being written. The next checkpoint waits for it.
    fn is_written(&self, size: u32) -> bool {
        let identity = Identity {
            set: self.last,
            rank: 0,
            size,
        };
        !self.store.is_being_written(identity)
    }

    /// Notes whether any rank has requested a checkpoint.
    #[inline]
    pub(super) fn agree(&mut self, is_requested: bool) {
        self.is_agreed = is_requested;
    }

    /// Takes the agreement, if there is one.
    #[inline]
    pub(super) fn take_agreed(&mut self) -> bool {
        std::mem::take(&mut self.is_agreed)
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
        let (rank, size) = (self.rank, self.size);
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(());
        };
        let set = checkpoints.begin();
        let identity = Identity { set, rank, size };
        let elapsed = self.begun.elapsed();
        let ignored: Vec<PathBuf> = [Some(default_runtime_dir()), trace_dir()]
            .into_iter()
            .flatten()
            .collect();
        match take(&checkpoints.store, identity, &ignored, "bsp") {
            Ok(Outcome::Continued) => Ok(()),
            Ok(Outcome::Restored(environment)) => {
                replace_environment(&environment);
                self.continue_restored(elapsed)
            }
            Err(error) => {
                eprintln!(
                    "bsp: rank {rank}: checkpoint {set} was not written, and the program goes on: \
                     {error}"
                );
                Ok(())
            }
        }
    }

    /// Connects with the other ranks, which were restored, too. They may be on other nodes now.
    fn continue_restored(&mut self, elapsed: Duration) -> Result<(), Failure> {
        let Connection {
            carrier,
            node_map,
            slots,
            ..
        } = C::reopen()?;
        let ranks: Vec<u32> = node_map.ranks_with(self.rank).collect();
        let shared = match ranks.len() {
            1 => None,
            _ => Some(SharedMemory::new(LocalRanks::new(
                self.rank, self.size, &ranks,
            )?)),
        };
        let epoch = self.exchange.superstep();
        let exchange = Exchange::continued(self.rank, node_map, epoch);
        // What described the links of the former process is not dropped: its descriptors and
        // addresses may belong to something else now.
        forget(&mut self.open, Default::default());
        forget(&mut self.carrier, Some(carrier));
        forget(&mut self.exchange, exchange);
        forget(&mut self.shared, shared);
        forget(&mut self.pending, PendingCalls::new(self.size));
        forget(&mut self.pacer, Pacer::unpaced());
        forget(&mut self.trace, None);
        forget(&mut self.standby, None);
        if let Some(checkpoints) = &mut self.checkpoints {
            let last = checkpoints.last;
            if let Some(now) = Checkpoints::from_env()? {
                *checkpoints = now;
            }
            checkpoints.last = last;
        }
        self.set_slots(slots);
        if let Some(shared) = &self.shared {
            shared.ranks().reach(SyncPhase::Left, epoch);
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
        // A superstep that the program does not see: after it, all ranks have all hellos. The
        // program still reads the messages of the last one.
        let queue = std::mem::take(&mut self.queue);
        // With this ending none of them requests a checkpoint.
        self.end_superstep(Ending::End)?;
        self.queue = queue;
        self.first = self.first.wrapping_add(1);
        if self.exchange.node_map().nodes() == 1 {
            self.close(Duration::ZERO);
        }
        let now = Instant::now();
        self.begun = now.checked_sub(elapsed).unwrap_or(now);
        Ok(())
    }
}

fn forget<T>(place: &mut T, value: T) {
    std::mem::forget(std::mem::replace(place, value));
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
        let due: Vec<bool> = (0..3).map(|_| checkpoints.is_due(0, 2)).collect();
        assert_eq!(due, [false, false, true]);
        assert!(!checkpoints.is_due(1, 2));
        assert_eq!(checkpoints.begin(), 1);
        assert!(!checkpoints.is_due(0, 2));
        checkpoints.is_requested = true;
        assert!(checkpoints.is_due(1, 2));
        assert_eq!(checkpoints.begin(), 2);
        checkpoints.store.request().expect("own folder");
        let looked_at = checkpoints.looked_at.checked_sub(LOOK_EVERY);
        checkpoints.looked_at = looked_at.expect("later than the start");
        assert!(checkpoints.is_due(0, 2));
        assert!(!checkpoints.store.take_request());
    }
}

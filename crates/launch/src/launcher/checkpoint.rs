//! Checkpoints of a job: where they are, and restarts of the whole job from the last complete one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use dipole_checkpoint::{Interval, Set, Store};
use dipole_naming::environment::variable;
use dipole_naming::files;
use dipole_naming::key::random_bytes;
use serde_json::json;

use super::follow::Follow;
use super::loss::OnLoss;
use super::memory::{self, Memory};
use super::{JobSetup, Launch, REPORT_TIMEOUT};
use crate::guard::{FOLDER, NOT_RESTORED};
use crate::message::{Images, ToShim};
use crate::{Program, RunArgs, RunError, seconds};

/// Statuses with which a rank would end again: it cannot be restored, or the program not started.
const FINAL: [u8; 3] = [NOT_RESTORED, 126, 127];
/// How the job was started, in its folder.
const JOB_FILE: &str = "job.json";
/// Bounds of `--migrate-every` and `--migrate-bias`.
const MIN_PERIOD: Duration = Duration::from_millis(100);
const MAX_BIAS: f64 = 1000.0;

/// Options of `dipole run` for checkpoints.
#[derive(Args, Debug, Default)]
pub(crate) struct CheckpointArgs {
    /// Save the job every so many supersteps (`1000`) or seconds (`60s`). BSP programs with one
    /// thread per rank can be saved
    #[arg(long, value_name = "SUPERSTEPS|SECONDSs", value_parser = interval)]
    checkpoint_every: Option<String>,
    /// Folder for the checkpoints of jobs, which all hosts must reach under this name [default:
    /// dipole/checkpoints in the user's state directory]
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,
    /// Keep the images of each host in its memory, with copies in the memory of so many other hosts:
    /// the job survives the loss of that many hosts at once without a folder that all of them reach
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16),
          conflicts_with_all = ["checkpoint_dir", "restart", "migrate_every", "at_least"])]
    checkpoint_copies: Option<u32>,
    /// How fast each host sends copies of images, in MiB per second
    #[arg(long, value_name = "MIB", default_value_t = 250, requires = "checkpoint_copies",
          value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint_rate: u32,
    /// Continue a job from its last complete checkpoint, or from the one with this number
    #[arg(long, value_name = "JOB[/NUMBER]", conflicts_with_all = ["command", "first_ranks"])]
    restart: Option<String>,
    /// Compare the hosts every so many seconds by the loads that their agents report, and move ranks
    /// to the best ones at the end of a superstep; the other ranks keep their processes
    #[arg(long, value_name = "SECONDS", value_parser = period)]
    migrate_every: Option<Duration>,
    /// Load that a rank is expected to add to the host to which it moves: the more, the fewer ranks
    /// move
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = load, requires = "migrate_every")]
    migrate_bias: f64,
}

impl CheckpointArgs {
    /// Moves ranks because of the load, if that is wanted.
    pub(super) fn follow(&self) -> Option<Follow> {
        let every = self.migrate_every?;
        Some(Follow::new(every, self.migrate_bias))
    }

    /// Refuses copies that would never be used.
    pub(crate) fn check_loss(&self, on_loss: OnLoss) -> Result<(), clap::Error> {
        match self.checkpoint_copies {
            Some(_) if on_loss != OnLoss::Restart => Err(clap::Error::raw(
                clap::error::ErrorKind::ArgumentConflict,
                "--checkpoint-copies keeps images for restarts only: add --on-loss restart",
            )),
            _ => Ok(()),
        }
    }
}

/// Parses the time between two comparisons.
fn period(text: &str) -> Result<Duration, String> {
    let period = seconds(text)?;
    match period >= MIN_PERIOD {
        true => Ok(period),
        false => Err("expected at least 0.1 seconds".to_owned()),
    }
}

/// Parses a load that is added.
fn load(text: &str) -> Result<f64, &'static str> {
    let load = text.parse().ok();
    let load = load.filter(|load| (0.0..=MAX_BIAS).contains(load));
    load.ok_or("expected a number from 0 to 1000, such as 1 or 0.5")
}

/// Checks an interval, which the ranks get as text.
fn interval(text: &str) -> Result<String, &'static str> {
    text.parse::<Interval>().map(|_| text.to_owned())
}

/// The checkpoints of the job.
#[derive(Debug)]
pub(crate) struct JobCheckpoints {
    id: u64,
    store: Store,
    every: Option<String>,
    /// The set that the ranks continue from; `None` for a start from the beginning.
    from: Option<Set>,
    /// The highest number of a checkpoint when the ranks were started.
    last: u64,
    is_restart: bool,
    /// Restarts since the last new checkpoint.
    futile_restarts: u32,
    /// The images are in the memory of the hosts, not in a folder that all of them reach.
    pub(super) memory: Option<Memory>,
}

impl JobCheckpoints {
    /// As the options select them; `None` if the job makes none.
    pub(crate) fn new(args: &CheckpointArgs) -> Result<Option<JobCheckpoints>, RunError> {
        let CheckpointArgs {
            checkpoint_every,
            checkpoint_dir,
            restart,
            migrate_every,
            checkpoint_copies,
            checkpoint_rate,
            ..
        } = args;
        if let Some(copies) = checkpoint_copies {
            let every = checkpoint_every.clone();
            return JobCheckpoints::in_memory(*copies, *checkpoint_rate, every).map(Some);
        }
        let has_folder = checkpoint_every.is_some() || checkpoint_dir.is_some();
        if !has_folder && restart.is_none() && migrate_every.is_none() {
            return Ok(None);
        }
        let folder = match checkpoint_dir.clone().or_else(default_folder) {
            Some(folder) => std::path::absolute(folder),
            None => {
                let reason = "neither HOME nor XDG_STATE_HOME is set, so the place for checkpoints is \
                              not known: use --checkpoint-dir";
                return Err(RunError::Checkpoint(reason.to_owned()));
            }
        };
        let folder = folder.map_err(|cause| RunError::Checkpoint(cause.to_string()))?;
        let system = |doing| move |cause| RunError::System { doing, cause };
        let mut checkpoints = JobCheckpoints {
            id: match restart {
                Some(job) => parse_id(job)?,
                None => {
                    let random = random_bytes().map_err(system("drawing a job number"))?;
                    u64::from_le_bytes(random)
                }
            },
            store: Store::new(PathBuf::new()),
            every: checkpoint_every.clone(),
            from: None,
            last: 0,
            is_restart: restart.is_some(),
            futile_restarts: 0,
            memory: None,
        };
        checkpoints.store = Store::new(folder.join(format!("{:016x}", checkpoints.id)));
        if let Some(job) = restart {
            checkpoints.from = Some(checkpoints.select(job)?);
            checkpoints.last = checkpoints.highest()?;
        }
        Ok(Some(checkpoints))
    }

    /// Checkpoints in the memory of the hosts.
    fn in_memory(
        copies: u32,
        mib_per_second: u32,
        every: Option<String>,
    ) -> Result<JobCheckpoints, RunError> {
        let doing = "drawing a job number";
        let random = random_bytes().map_err(|cause| RunError::System { doing, cause })?;
        let id = u64::from_le_bytes(random);
        Ok(JobCheckpoints {
            id,
            // It never exists: nothing is left there for the launcher, and nothing is requested.
            store: Store::new(memory::folder(id, 0)),
            every,
            from: None,
            last: 0,
            is_restart: false,
            futile_restarts: 0,
            memory: Some(Memory::new(copies, mib_per_second)?),
        })
    }

    /// Number of the job.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Selects the set that the ranks of the next attempt continue from, and a number that is higher
    /// than those of all images.
    pub(super) fn continue_from(&mut self, set: Option<Set>, last: u64) {
        let number = |set: &Option<Set>| set.as_ref().map(|set| set.number);
        if number(&set) != number(&self.from) {
            self.futile_restarts = 1;
        }
        (self.from, self.last) = (set, last);
    }

    /// True if the job continues from a checkpoint of an earlier run.
    pub(crate) fn is_restart(&self) -> bool {
        self.is_restart
    }

    /// The set that `--restart` names.
    fn select(&self, given: &str) -> Result<Set, RunError> {
        let number = given.split_once('/').map(|(_, number)| number);
        let sets = self.sets()?;
        let mut complete = sets.iter().filter(|set| set.is_complete());
        let is_named = |set: &&Set| number.is_none_or(|number| number.parse() == Ok(set.number));
        let found = complete.rfind(is_named);
        found.cloned().ok_or_else(|| {
            let numbers: Vec<String> = sets
                .iter()
                .filter(|set| set.is_complete())
                .map(|set| set.number.to_string())
                .collect();
            RunError::Checkpoint(format!(
                "{} holds no complete checkpoint for `{given}`; complete are: {}",
                self.store.folder().display(),
                match numbers.is_empty() {
                    true => "none".to_owned(),
                    false => numbers.join(", "),
                }
            ))
        })
    }

    fn highest(&self) -> Result<u64, RunError> {
        let highest = self.store.highest();
        highest.map_err(|error| RunError::Checkpoint(error.to_string()))
    }

    fn sets(&self) -> Result<Vec<Set>, RunError> {
        let sets = self.store.sets();
        sets.map_err(|error| RunError::Checkpoint(error.to_string()))
    }

    /// The programs of the job, as it was started first. Other launchers do not write them down; then the
    /// images have to suffice.
    pub(crate) fn programs(&self) -> Result<Vec<Program>, RunError> {
        let path = self.store.folder().join(JOB_FILE);
        if let (Some(set), Ok(false)) = (&self.from, path.try_exists()) {
            let command = vec![OsString::from("false")];
            let ranks = set.size;
            return Ok(vec![Program { ranks, command }]);
        }
        // Its programs will run, so another user must not have written it.
        let text = files::read_trusted(&path, files::MAX_TEXT_BYTES)
            .and_then(|text| Ok(serde_json::from_slice(&text)?));
        text.map_err(|cause| RunError::Checkpoint(format!("{}: {cause}", path.display())))
    }

    /// Variables for the ranks.
    pub(super) fn environment(&self) -> BTreeMap<String, OsString> {
        let folder = self.store.folder().as_os_str().to_owned();
        let mut variables = BTreeMap::from([
            (FOLDER.to_owned(), folder),
            (
                "DIPOLE_CHECKPOINT_LAST".to_owned(),
                self.last.to_string().into(),
            ),
        ]);
        if let Some(every) = &self.every {
            variables.insert("DIPOLE_CHECKPOINT_EVERY".to_owned(), every.into());
        }
        variables
    }

    /// The folder of the job.
    pub(super) fn store(&self) -> &Store {
        &self.store
    }

    /// The images that the ranks continue from.
    pub(super) fn images(&self) -> Option<Images> {
        let set = self.from.as_ref()?;
        Some(Images {
            folder: self.store.folder().to_owned(),
            set: set.number,
            size: set.size,
        })
    }

    /// Selects the last complete set for the next attempt. Returns false if there have been too many
    /// attempts without a new one.
    fn advance(&mut self, max_restarts: u32) -> Result<bool, RunError> {
        if self.memory.is_some() {
            // The set is selected when the hosts that are left have reported their images.
            self.futile_restarts += 1;
            return Ok(self.futile_restarts <= max_restarts);
        }
        let newest = self.sets()?.into_iter().rfind(Set::is_complete);
        let number = |set: &Option<Set>| set.as_ref().map(|set| set.number);
        match number(&newest) == number(&self.from) {
            true => self.futile_restarts += 1,
            false => self.futile_restarts = 1,
        }
        self.from = newest;
        self.last = self.highest()?;
        Ok(self.futile_restarts <= max_restarts)
    }
}

fn parse_id(text: &str) -> Result<u64, RunError> {
    let id = text.split_once('/').map_or(text, |(id, _)| id);
    u64::from_str_radix(id, 16).map_err(|_| {
        RunError::Checkpoint(format!(
            "`{text}` is not a job with checkpoints; `dipole checkpoints` lists them"
        ))
    })
}

/// Where checkpoints are kept by default: `dipole/checkpoints` in `$XDG_STATE_HOME`, else in
/// `~/.local/state`; `None` if neither is known.
#[must_use]
pub fn default_folder() -> Option<PathBuf> {
    let state = match (variable("XDG_STATE_HOME"), variable("HOME")) {
        (Some(state), _) => PathBuf::from(state),
        (None, Some(home)) => PathBuf::from(home).join(".local/state"),
        (None, None) => return None,
    };
    Some(state.join("dipole/checkpoints"))
}

impl Launch {
    /// True if the ranks continue from images.
    pub(super) fn continues(&self) -> bool {
        let checkpoints = self.checkpoints.as_ref();
        checkpoints.is_some_and(|checkpoints| checkpoints.from.is_some())
    }

    /// The number of ranks to start. Images exist only of ranks that took part.
    pub(super) fn ranks(&self, args: &RunArgs) -> u32 {
        let from = self.checkpoints.as_ref().and_then(|it| it.from.as_ref());
        from.map_or(args.ranks, |set| set.size)
    }

    /// Prepares the folder, and prints how the job is restarted by hand.
    pub(super) fn announce_checkpoints(&self, programs: &[Program]) -> Result<(), RunError> {
        let Some(checkpoints) = &self.checkpoints else {
            return Ok(());
        };
        let (folder, id) = (checkpoints.store.folder(), checkpoints.id);
        if checkpoints.memory.is_some() {
            self.announce_memory(id);
            return Ok(());
        }
        let failed = |cause: std::io::Error| {
            RunError::Checkpoint(format!("checkpoints in {}: {cause}", folder.display()))
        };
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(folder).map_err(failed)?;
        let text = serde_json::to_vec(programs).map_err(std::io::Error::other);
        files::write(&folder.join(JOB_FILE), &text.map_err(failed)?).map_err(failed)?;
        match &checkpoints.from {
            Some(set) => self.print_message(format!(
                "job {id:016x} continues from checkpoint {}",
                set.number
            )),
            None => {
                let option = match folder.parent() {
                    Some(other) if default_folder().as_deref() != Some(other) => {
                        format!(" --checkpoint-dir {}", other.display())
                    }
                    _ => String::new(),
                };
                self.print_message(format!(
                    "checkpoints go to {}; restart with: dipole run{option} --restart {id:016x}",
                    folder.display()
                ));
            }
        }
        self.event(json!({"event": "checkpoints", "job": format!("{id:016x}"), "folder": folder}));
        Ok(())
    }

    /// Ends all ranks at once, because the job will be restarted.
    pub(super) fn end_for_restart(&mut self, what: &str, status: u8) {
        let may_be_damaged = status == NOT_RESTORED && self.refuse_set();
        if FINAL.contains(&status) && !may_be_damaged {
            self.print_message(format!("{what}; ending the others"));
            return self.fail(status);
        }
        self.print_message(format!(
            "{what}; the job will be restarted from its last checkpoint"
        ));
        self.attempt.ends_for_restart = Some(status);
        self.give_up_at = Some(Instant::now() + REPORT_TIMEOUT);
        self.keep_images();
        self.send_to_all(|| ToShim::End { grace_ms: 0 });
    }

    /// Prepares the next attempt after the job was ended for it. Returns false if the job has ended.
    pub(super) fn roll_back(&mut self, setup: &mut JobSetup<'_>) -> Result<bool, RunError> {
        let lost = self.attempt.ends_for_restart.take();
        let is_ended_otherwise = self.status.is_some() || self.interruptions > 0;
        let Some(checkpoints) = &mut self.checkpoints else {
            return Ok(false);
        };
        let Some(status) = lost.filter(|_| !is_ended_otherwise) else {
            if lost.is_some() {
                self.name_left_images();
            }
            return Ok(false);
        };
        if !checkpoints.advance(setup.args.restarts)? {
            let most = setup.args.restarts;
            self.print_message(format!(
                "the job has been restarted {most} times without a new checkpoint (--restarts); \
                 ending it"
            ));
            self.status = Some(status);
            self.name_left_images();
            return Ok(false);
        }
        let is_selected_later = checkpoints.memory.is_some();
        if !is_selected_later {
            self.announce_restart();
        }
        self.attempt.number += 1;
        self.attempt.input_bytes = 0;
        for contact in self.contacts.values_mut() {
            contact.disconnect();
        }
        self.contacts.clear();
        self.running.clear();
        self.pmi_barrier.clear();
        (self.give_up_at, self.end_at) = (None, None);
        self.some_succeeded = false;
        let lost = &self.attempt.lost_nodes;
        let memory = self.checkpoints.as_ref().and_then(|it| it.memory.as_ref());
        let has_images = |node| memory.is_some_and(|memory| memory.has_images(node));
        setup
            .list
            .sort_by_key(|host| (lost.contains(&host.node), !has_images(host.node)));
        Ok(true)
    }

    /// Prints where the next attempt begins.
    pub(super) fn announce_restart(&self) {
        let from = self.checkpoints.as_ref().and_then(|it| it.from.as_ref());
        let number = from.map(|set| set.number);
        let place = match number {
            Some(number) => format!("checkpoint {number}"),
            None => "the beginning: no checkpoint is complete".to_owned(),
        };
        self.print_message(format!("restarting the job from {place}"));
        self.event(json!({"event": "restarting", "checkpoint": number}));
    }

    /// Sends the input that arrived between two attempts.
    pub(super) fn repeat_input(&mut self) {
        for bytes in std::mem::take(&mut self.attempt.input) {
            self.send_to_rank_0(ToShim::Input(bytes));
        }
        if self.attempt.has_input_ended {
            self.send_to_rank_0(ToShim::InputEnd);
        }
    }

    /// Removes the checkpoints of a job that has succeeded.
    pub(super) fn remove_checkpoints(&self) {
        if let (Some(checkpoints), None | Some(0)) = (&self.checkpoints, self.status)
            && checkpoints.memory.is_none()
        {
            let folder = checkpoints.store.folder();
            if let Err(cause) = fs::remove_dir_all(folder) {
                let folder = folder.display();
                self.print_message(format!(
                    "checkpoints in {folder} cannot be removed: {cause}"
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_named_in_hexadecimal() {
        assert_eq!(parse_id("00ff").unwrap(), 255);
        assert_eq!(parse_id("00ff/3").unwrap(), 255);
        assert!(parse_id("x").is_err());
    }
}

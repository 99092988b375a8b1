//! `dipole checkpoints` and `dipole checkpoint`: lists, verifies, removes and requests checkpoints
//! of jobs.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use dipole_checkpoint::{Chain, Identity, Image, Set, Store};
use serde_json::json;

use crate::output::Failure;

/// Save a running job at the end of its current superstep
///
/// The job must have been started with --checkpoint-every, --checkpoint-dir or --migrate-every.
#[derive(Args, Debug)]
pub(crate) struct CheckpointArgs {
    /// The job, as `dipole run` prints it
    job: String,
    #[command(flatten)]
    place: Place,
}

/// List the checkpoints of jobs
///
/// A checkpoint is complete when the images of all ranks are; only then can the job be restarted
/// from it, with `dipole run --restart JOB`.
#[derive(Args, Debug)]
pub(crate) struct CheckpointsArgs {
    /// Only this job
    job: Option<String>,
    #[command(flatten)]
    place: Place,
    /// Read all images, and check that none is damaged
    #[arg(long)]
    verify: bool,
    /// Remove all but the newest N complete checkpoints of each job, and the images on which these build
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    prune: Option<u32>,
}

#[derive(Args, Debug)]
pub(crate) struct Place {
    /// Folder for the checkpoints of jobs [default: dipole/checkpoints in the user's state directory]
    #[arg(long, value_name = "DIR")]
    checkpoint_dir: Option<PathBuf>,
}

impl Place {
    /// The checkpoints of a job.
    pub(crate) fn store(&self, job: &str) -> Result<Store, Failure> {
        let folder = self.folder()?;
        match is_job(job) && folder.join(job).is_dir() {
            true => Ok(Store::new(folder.join(job))),
            false => Err(unknown(job, &folder)),
        }
    }

    fn folder(&self) -> Result<PathBuf, Failure> {
        let given = self.checkpoint_dir.clone();
        given
            .or_else(dipole_launch::default_checkpoint_folder)
            .ok_or_else(|| {
                Failure::from("neither HOME nor XDG_STATE_HOME is set: use --checkpoint-dir")
            })
    }
}

/// Requests a checkpoint.
pub(crate) fn request(args: &CheckpointArgs, out: &mut dyn Write) -> Result<ExitCode, Failure> {
    args.place.store(&args.job)?.request()?;
    writeln!(out, "requested; `dipole checkpoints {}` shows it", args.job)?;
    Ok(ExitCode::SUCCESS)
}

/// Lists, verifies or removes checkpoints.
pub(crate) fn list(
    args: &CheckpointsArgs,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let folder = args.place.folder()?;
    let jobs = jobs(&folder, args.job.as_deref())?;
    let mut all_intact = true;
    let mut verified = BTreeMap::new();
    for (name, store) in &jobs {
        if let Some(keep) = args.prune {
            let removed = store.prune(keep as usize)?;
            for number in removed {
                match is_json {
                    true => writeln!(out, "{}", json!({"job": name, "removed": number}))?,
                    false => writeln!(out, "{name}/{number}  removed")?,
                }
            }
        }
        for set in store.sets()? {
            let damaged = match args.verify {
                true => damaged(store, &set, &mut verified),
                false => Vec::new(),
            };
            all_intact &= damaged.is_empty();
            print_set(name, store, &set, &damaged, is_json, out)?;
        }
    }
    if jobs.is_empty() && !is_json {
        writeln!(out, "there are no checkpoints in {}", folder.display())?;
    }
    Ok(match all_intact {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn print_set(
    job: &str,
    store: &Store,
    set: &Set,
    damaged: &[String],
    is_json: bool,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let bytes: u64 = images(store, set)
        .filter_map(|path| Some(fs::metadata(path).ok()?.len()))
        .sum();
    let complete = set.is_complete();
    if is_json {
        let line = json!({
            "job": job, "checkpoint": set.number, "ranks": set.size, "images": set.ranks.len(),
            "bytes": bytes, "complete": complete, "builds_on": set.bases, "damaged": damaged,
        });
        writeln!(out, "{line}")?;
        return Ok(());
    }
    let state = match (complete, damaged) {
        (_, [_, ..]) => "DAMAGED".to_owned(),
        (true, _) => "complete".to_owned(),
        (false, _) => format!("{} of {} images", set.ranks.len(), set.size),
    };
    let (number, size, mib) = (set.number, set.size, bytes.div_ceil(1 << 20));
    let bases = match (set.bases.first(), set.bases.last()) {
        (Some(first), Some(last)) if first < last => format!(", changes since {first} to {last}"),
        (Some(only), _) => format!(", changes since {only}"),
        _ => String::new(),
    };
    writeln!(
        out,
        "{job}/{number}  {size} ranks  {mib} MiB  {state}{bases}"
    )?;
    for reason in damaged {
        writeln!(out, "    {reason}")?;
    }
    Ok(())
}

fn images(store: &Store, set: &Set) -> impl Iterator<Item = PathBuf> {
    set.ranks.iter().map(|rank| {
        store.image(Identity {
            set: set.number,
            rank: *rank,
            size: set.size,
        })
    })
}

/// Errors of the images of a set, and of those on which they build. Each image is read once.
fn damaged(
    store: &Store,
    set: &Set,
    verified: &mut BTreeMap<PathBuf, Option<String>>,
) -> Vec<String> {
    let mut errors = Vec::new();
    for image in images(store, set) {
        match Chain::open(&image) {
            Err(error) => errors.push(error.to_string()),
            Ok(chain) => {
                for path in chain.paths() {
                    let outcome = verified.entry(path.to_owned()).or_insert_with(|| {
                        let verified = Image::open(path).and_then(Image::verify);
                        verified.err().map(|error| error.to_string())
                    });
                    errors.extend(outcome.clone());
                }
            }
        }
    }
    errors
}

/// Jobs are named by 16 hexadecimal digits.
fn is_job(name: &str) -> bool {
    name.len() == 16 && name.bytes().all(|digit| digit.is_ascii_hexdigit())
}

fn jobs(folder: &Path, only: Option<&str>) -> Result<BTreeMap<String, Store>, Failure> {
    let mut jobs = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_job(&name) && only.is_none_or(|only| only == name) {
            jobs.insert(name, Store::new(entry.path()));
        }
    }
    match only {
        Some(only) if jobs.is_empty() => Err(unknown(only, folder)),
        _ => Ok(jobs),
    }
}

fn unknown(job: &str, folder: &Path) -> Failure {
    let folder = folder.display();
    Failure::from(format!("{folder} has no checkpoints of a job `{job}`"))
}

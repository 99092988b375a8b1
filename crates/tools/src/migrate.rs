//! `dipole migrate`: moves ranks of a running job to other hosts.

use std::io::Write;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use dipole_checkpoint::{Answer, MigrationRequest, Note, Store};
use serde_json::json;

use crate::checkpoints::Place;
use crate::output::Failure;

/// How long `dipole run` may take to notice the request, and to answer after the time for the
/// migration is over.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Move ranks of a running BSP job to other hosts at the end of a superstep
///
/// Only the ranks that move are restarted; the others keep their processes. If anything fails before
/// they have moved, the job goes on where it is. The job must have been started with
/// --checkpoint-every, --checkpoint-dir or --migrate-every. With the latter, ranks also move by
/// themselves, but not to hosts that this command has emptied.
#[derive(Args, Debug)]
pub(crate) struct MigrateArgs {
    /// The job, as `dipole run` prints it
    job: String,
    /// Hosts of the job to move to: numbers, names or addresses, separated by commas [default: those
    /// with free slots, in the order of `dipole run`]
    #[arg(
        long,
        value_name = "HOSTS",
        value_delimiter = ',',
        required_unless_present = "rank"
    )]
    to: Vec<String>,
    /// Rank to move; may be repeated, or several separated by commas [default: all that are not on
    /// HOSTS]
    #[arg(long, value_name = "R", value_delimiter = ',')]
    rank: Vec<u32>,
    /// How long it may take, in seconds: the rest of the superstep, and writing and reading images
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    timeout: u32,
    #[command(flatten)]
    place: Place,
}

/// Requests a migration, and waits for its outcome.
pub(crate) fn execute(
    args: &MigrateArgs,
    is_json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let store = args.place.store(&args.job)?;
    if store.read::<MigrationRequest>(Note::Request).is_some() {
        let reason = "another request for a migration waits; try again when it is answered";
        return Err(Failure::from(reason));
    }
    let timeout = Duration::from_secs(args.timeout.into());
    let number = random_number()?;
    let request = MigrationRequest {
        number,
        to: args.to.clone(),
        ranks: args.rank.clone(),
        timeout_ms: u64::from(args.timeout) * 1000,
    };
    store.leave(Note::Request, &request)?;
    let (moved, milliseconds) = wait(&store, number, timeout)?.map_err(Failure::from)?;
    for one in &moved {
        let (rank, from, to) = (one.rank, &one.from, &one.to);
        match is_json {
            true => writeln!(out, "{}", json!({"rank": rank, "from": from, "to": to}))?,
            false => writeln!(out, "rank {rank}: {from} -> {to}")?,
        }
    }
    match is_json {
        true => writeln!(out, "{}", json!({"pause_ms": milliseconds}))?,
        false => writeln!(out, "after {milliseconds} ms of standstill the job goes on")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits for the answer of `dipole run`.
fn wait(store: &Store, number: u64, timeout: Duration) -> Result<Answer, Failure> {
    let begun = Instant::now();
    let mut is_noticed = false;
    loop {
        if let Some(answer) = store.take_note::<Answer>(Note::Answer(number)) {
            return Ok(answer);
        }
        if !store.folder().is_dir() {
            return Err(Failure::from("the job has ended"));
        }
        is_noticed = is_noticed || store.read::<MigrationRequest>(Note::Request).is_none();
        let waited = begun.elapsed();
        if !is_noticed && waited >= NOTICE_TIMEOUT {
            let _withdrawn = store.take_note::<MigrationRequest>(Note::Request);
            return Err(Failure::from(
                "the job does not run: no `dipole run` has noticed the request; to continue it from \
                 its last checkpoint, use `dipole run --restart`",
            ));
        }
        if waited >= timeout + ANSWER_TIMEOUT {
            return Err(Failure::from(
                "`dipole run` has not answered; its messages show whether the ranks have moved",
            ));
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn random_number() -> Result<u64, Failure> {
    Ok(u64::from_le_bytes(dipole_naming::key::random_bytes()?))
}

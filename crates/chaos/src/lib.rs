//! `dipole chaos`: runs a user's program on a cluster of network namespaces under a plan of faults
//! that a seed decides, and reports what happened when.
//!
//! ```text
//! dipole chaos            draws the plan, enters new namespaces (enclosure.rs), forwards signals
//!   dipole chaos-cluster  process 1 of the PID namespace: builds the testbed, applies the plan
//!     dipole run, mpirun  starts the ranks on the nodes
//! ```
//!
//! Everything is inside mount, PID and perhaps user namespaces that end with `chaos-cluster`, and
//! `chaos-cluster` is killed when `chaos` ends. So nothing is left behind, whichever process dies.

#![forbid(unsafe_code)]

mod amount;
mod arguments;
mod cluster;
mod enclosure;
mod error;
mod launcher;
mod observer;
mod plan;
mod program;
mod report;
mod target;

use std::io::Write;
use std::process::ExitCode;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

pub use arguments::ChaosArgs;
pub use cluster::{ClusterArgs, cluster};
pub use error::ChaosError;

use arguments::Request;
use plan::Plan;

/// Runs the program under faults, or with `--plan` prints the plan. Returns the program's status.
///
/// # Errors
/// The arguments exclude each other, or the cluster cannot be created here.
pub fn execute(
    mut args: ChaosArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let seed = *args.seed.get_or_insert_with(fresh_seed);
    let shape = args.shape()?;
    let plan = Plan::draw(seed, &args.faults, &shape)?;
    if args.plan {
        report::write_plan(&plan, &shape, json, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.command.is_empty() {
        return Err(ChaosError::NoCommand.into());
    }
    let status = enclosure::run(&Request { args, json })?;
    Ok(ExitCode::from(status))
}

/// The exit status for an error of [`execute`] or [`cluster()`].
#[must_use]
pub fn error_status(error: &(dyn std::error::Error + 'static)) -> u8 {
    match error.downcast_ref() {
        Some(ChaosError::NoCommand | ChaosError::Usage(_)) => 2,
        _ => 1,
    }
}

/// A seed that is short enough to type.
fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now();
    let since = now.duration_since(std::time::UNIX_EPOCH);
    let nanoseconds = since.map_or(0, |since| since.subsec_nanos());
    let mixed = u64::from(nanoseconds) << 32 | u64::from(std::process::id());
    u64::from(ChaCha8Rng::seed_from_u64(mixed).next_u32() % 1_000_000)
}

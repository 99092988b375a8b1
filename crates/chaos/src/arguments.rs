//! The command line of `dipole chaos`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::amount::{self, Delay, Probability, Repeated};
use crate::error::ChaosError;
use crate::launcher;

/// Ranks that a plan can have.
const MOST_RANKS: u32 = 4096;

/// Run a program on a cluster of network namespaces under a seeded plan of faults
///
/// The program is not changed: an endpoint or BSP program, whose ranks `dipole run` starts, or the
/// command line of `mpirun`, `mpiexec` or `dipole run`, which starts its own ranks. Each node is a
/// network namespace; a switch in user space joins them and loses, repeats, delays, reorders and
/// damages packets. Nodes are cut off and ranks are stopped and killed at times that the seed
/// decides. The same seed and options give the same plan, and `--plan` prints it. The timeline of
/// events, and what was noticed of each, is printed at the end on standard error.
///
/// Works as root, or without privileges where the kernel allows user namespaces; the program then
/// finds itself as root, and /run empty. Nothing is left behind, however it ends. The exit status is
/// that of the program.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct ChaosArgs {
    /// Number of ranks [default: one per node]
    #[arg(short = 'n', long = "ranks", value_name = "P",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_RANKS)))]
    pub(crate) ranks: Option<u32>,
    /// Number of nodes, each a network namespace
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=250))]
    pub(crate) nodes: u32,
    /// Number of networks; every node has an interface on each
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=8))]
    pub(crate) networks: u32,
    /// Seed of the plan, printed with the timeline [default: a new one each time]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) faults: FaultArgs,
    /// Print the plan on standard output, and run nothing
    #[arg(long)]
    pub(crate) plan: bool,
    /// Start the command once, on the first node, instead of as ranks (always so for mpirun, mpiexec
    /// and `dipole run`)
    #[arg(long)]
    pub(crate) once: bool,
    /// Passed to `dipole run`: action on the other ranks when one fails [default: end]
    #[arg(long, value_name = "ACTION", value_parser = ["end", "continue", "restart"],
          conflicts_with = "once")]
    pub(crate) on_loss: Option<String>,
    /// End the program after this time, with status 124
    #[arg(long, value_name = "TIME", value_parser = amount::time)]
    pub(crate) timeout: Option<Duration>,
    /// Write the timeline to this file instead of standard error
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Program and arguments
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Faults and when they happen.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FaultArgs {
    /// Probability that a packet is lost, as 0.01 or 1%
    #[arg(long, value_name = "PROB")]
    pub(crate) loss: Option<Probability>,
    /// Probability that a packet arrives twice
    #[arg(long, value_name = "PROB")]
    pub(crate) duplicate: Option<Probability>,
    /// Probability that up to 8 later packets overtake a packet
    #[arg(long, value_name = "PROB")]
    pub(crate) reorder: Option<Probability>,
    /// Probability that one bit of a packet is flipped
    #[arg(long, value_name = "PROB")]
    pub(crate) corrupt: Option<Probability>,
    /// Probability that a packet is delayed, and by how much, as in 10%:5ms
    #[arg(long, value_name = "PROB:TIME")]
    pub(crate) delay: Option<Delay>,
    /// Cut a node off a network for this time, once or COUNT times: its packets are lost
    #[arg(long, value_name = "[COUNTx]TIME")]
    pub(crate) cut: Option<Repeated>,
    /// Take the interface of a node down for this time, once or COUNT times
    #[arg(long, value_name = "[COUNTx]TIME")]
    pub(crate) unplug: Option<Repeated>,
    /// Stop a rank for this time (SIGSTOP, SIGCONT), once or COUNT times
    #[arg(long, value_name = "[COUNTx]TIME")]
    pub(crate) pause: Option<Repeated>,
    /// Kill this many ranks (SIGKILL)
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub(crate) kill: u32,
    /// Start the clocks of the nodes up to this time apart: CLOCK_MONOTONIC and CLOCK_BOOTTIME. The
    /// kernel can neither change them later nor give a node another date
    #[arg(long, value_name = "TIME", value_parser = amount::time)]
    pub(crate) clock: Option<Duration>,
    /// Faults end after this time, and the program goes on without
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = amount::time)]
    pub(crate) duration: Duration,
}

/// Numbers of nodes, networks and ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) nodes: u32,
    pub(crate) networks: u32,
    pub(crate) ranks: u32,
}

/// All that the process inside the namespaces has to know.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) args: ChaosArgs,
    pub(crate) json: bool,
}

impl ChaosArgs {
    /// True if the command starts its own ranks.
    pub(crate) fn is_once(&self) -> bool {
        self.once || launcher::is_launcher(&self.command)
    }

    pub(crate) fn shape(&self) -> Result<Shape, ChaosError> {
        let given = self.ranks.or_else(|| launcher::ranks(&self.command));
        let ranks = given.unwrap_or(self.nodes);
        if self.on_loss.is_some() && self.is_once() {
            return Err(ChaosError::Usage(
                "--on-loss is an option of `dipole run`, and this command starts its own ranks; give \
                 it to that command"
                    .into(),
            ));
        }
        Ok(Shape {
            nodes: self.nodes,
            networks: self.networks,
            ranks,
        })
    }
}

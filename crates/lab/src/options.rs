//! Options that several measurements share.

use clap::Args;
use dipole_bench::machine::has_bpf;
use dipole_bench::plan::{LinkName, Setup};
use dipole_bench::testbed::On;

/// Link, duration and rounds of a measurement.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunOptions {
    /// Link for Dipole's messages
    #[arg(long, value_enum, default_value_t = LinkName::Auto)]
    pub(crate) link: LinkName,
    /// Duration of each measurement
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// Number of rounds
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// One short round, to see that everything works
    #[arg(long)]
    pub(crate) quick: bool,
    /// All columns, however wide the terminal
    #[arg(long)]
    pub(crate) wide: bool,
}

impl RunOptions {
    /// Returns the setup of a measurement on this testbed.
    pub(crate) fn setup(&self, on: On) -> Setup {
        Setup {
            link: self.link,
            on,
            is_remote: false,
            has_bpf: matches!(on, On::Auto | On::Veth) && has_bpf(),
            seconds: self.seconds,
            rounds: self.rounds,
            quick: self.quick,
        }
    }
}

//! Options of measurements: where and how long.

use clap::Args;

use crate::machine;
use crate::plan::{LinkName, Setup};
use crate::testbed::On;

/// Options of all kinds: where and how long.
#[derive(Args, Debug)]
pub struct SetupArgs {
    /// Link for Dipole's messages
    #[arg(long, value_enum, default_value_t = LinkName::Auto)]
    link: LinkName,
    /// Where the two sides run
    #[arg(long, value_enum, default_value_t = On::Auto)]
    on: On,
    /// Duration of each measurement [default: 1; 0.2 in the standard table, 0.05 for a point of a figure]
    #[arg(long, value_parser = seconds)]
    seconds: Option<f64>,
    /// Number of rounds in which each subject takes its turn; medians and spreads are over these
    /// [default: 5; in the standard table 3 to 5 and for a point of a figure 2 or 3, as long as they
    /// differ and time is left]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// One short round and few sizes, to see that everything works
    #[arg(long)]
    quick: bool,
    /// All columns, however wide the terminal
    #[arg(long)]
    wide: bool,
}

impl SetupArgs {
    /// Returns the setup of a measurement on this host.
    pub fn setup(&self) -> Setup {
        Setup {
            link: self.link,
            on: self.on,
            is_remote: false,
            has_bpf: matches!(self.on, On::Auto | On::Veth) && machine::has_bpf(),
            seconds: self.seconds,
            rounds: self.rounds,
            quick: self.quick,
        }
    }

    /// True if all columns are wanted.
    pub fn is_wide(&self) -> bool {
        self.wide
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("expected more than 0, at most 3600".to_owned()),
    }
}

//! Conditions of a measurement that readers must know: machine, cores, load, stolen time.

use std::sync::OnceLock;

use dipole_node::variables;
use indicatif::{ProgressBar, ProgressStyle};

use crate::machine::{self, Cores, Stolen};
use crate::remote::Remote;
use crate::statistics::Spread;

/// From this load on, other programs certainly disturb measurements.
const BUSY_LOAD: f64 = 0.7;
/// From this share of stolen time on, figures are doubtful.
const STOLEN_SHARE: f64 = 0.01;

/// Describes this machine, its cores and its load.
pub fn machine_line(cores: Cores) -> String {
    on_machine(&places(cores, None))
}

/// Describes the cores of the two sides.
pub fn places(cores: Cores, remote: Option<&Remote>) -> String {
    if let Some(remote) = remote {
        let (other, core) = (remote.other.0, remote.machine.core);
        format!(
            "this side pinned to core {}, the other to core {core} of node {other}",
            cores.lead
        )
    } else if cores.are_one() {
        format!(
            "both sides on core {}, the only one: figures mean little",
            cores.lead
        )
    } else {
        format!("sides pinned to cores {} and {}", cores.lead, cores.follow)
    }
}

/// The machine's load before the first measurement, which adds to it.
pub(crate) fn initial_load() -> Option<f64> {
    static LOAD: OnceLock<Option<f64>> = OnceLock::new();
    *LOAD.get_or_init(machine::load)
}

/// A load, and a warning if other programs disturb measurements.
pub(crate) fn judged(load: f64) -> String {
    match load >= BUSY_LOAD {
        true => format!("{load:.2}: other programs are running and disturb the measurement"),
        false => format!("{load:.2}"),
    }
}

/// Describes this machine and its load.
pub fn on_machine(places: &str) -> String {
    let load = initial_load().map_or_else(String::new, |load| format!("; load {}", judged(load)));
    format!("{}; {places}{load}{}", machine::description(), checksum())
}

/// Describes the checksum of packets over UDP sockets if it is not the default one.
fn checksum() -> String {
    let given = std::env::var(variables::CHECKSUM).unwrap_or_default();
    match given.is_empty() {
        true => String::new(),
        false => format!("; {}={given}", variables::CHECKSUM),
    }
}

/// Describes what happened during the measurement: distance of the cores and stolen time.
pub fn closing_line(cache_line_ns: &[f64], remote: Option<&Remote>, stolen: Stolen) -> String {
    let cache_line = Spread::of(cache_line_ns.iter().copied()).map_or_else(
        || match remote {
            Some(remote) => format!("disturbances of node {} are unknown", remote.other.0),
            None => "cache line between the cores not measured: there is one core".to_owned(),
        },
        |ns| {
            format!(
                "cache line between the cores {:.0} ns one way ({:.0}..{:.0})",
                ns.median, ns.least, ns.most
            )
        },
    );
    let (time, share) = stolen.so_far();
    let doubt = if share >= STOLEN_SHARE {
        ": figures are doubtful"
    } else {
        ""
    };
    format!(
        "{cache_line}; stolen by the host {} ms ({:.2} %){doubt}; figures are medians over \
         rounds, x first is the median of the ratios to the first row within a round",
        time.as_millis(),
        share * 100.0
    )
}

/// Creates a progress bar, which is hidden if standard error is not a terminal.
pub fn progress_bar(measurements: u64) -> ProgressBar {
    let bar = ProgressBar::new(measurements);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} ({eta})")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_of_other_programs_is_a_warning() {
        assert_eq!(judged(0.3), "0.30");
        let busy = judged(27.126);
        assert!(busy.starts_with("27.13: other programs"), "{busy}");
    }
}

//! Compares predictions with measurements by other processes, at other lengths.

use std::error::Error;
use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use dipole_model::{PointToPoint, Profile, Regime};
use dipole_page::byte_size;
use serde::Serialize;

use super::side::Metric;
use super::{CalibrateError, MessagesArgs, placement};
use crate::conditions::{machine_line, progress_bar};
use crate::control::Part;
use crate::failure::RunError;
use crate::machine::{self, Cores};
use crate::output::{Output, Record};
use crate::statistics::Spread;
use crate::testbed::Testbed;
use crate::work::{Carrier, Placement, name_of};

/// Lengths from 1 B to 4 MiB, most of which are not calibrated.
const BYTES: [usize; 20] = [
    1,
    16,
    100,
    400,
    800,
    1300,
    1800,
    3000,
    6000,
    10_000,
    14_000,
    20_000,
    48 << 10,
    100_000,
    200_000,
    400_000,
    700_000,
    1_500_000,
    3_000_000,
    4 << 20,
];
const ROUNDS: usize = 5;
const EACH: Duration = Duration::from_millis(20);
/// If the time of a cache line changes by this factor, the host has moved the cores.
const MOVED: f64 = 1.5;
const QUICK_BYTES: [usize; 3] = [16, 6000, 100_000];
const QUICK_EACH: Duration = Duration::from_millis(1);

/// Prediction and measurement of one length.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct CheckRow {
    check: &'static str,
    link: String,
    bytes: usize,
    predicted_ns: f64,
    predicted_low_ns: f64,
    predicted_high_ns: f64,
    regime: Regime,
    /// One-way time: the median over rounds of the median of a round.
    measured_ns: f64,
    measured_least_ns: f64,
    measured_most_ns: f64,
    /// Error relative to the measurement.
    error: f64,
}

/// Compares predictions of the saved profiles of these links, or of all, with new measurements.
pub(super) fn check_saved(
    arguments: &MessagesArgs,
    output: &mut Output<'_>,
) -> Result<ExitCode, Box<dyn Error>> {
    let links = match arguments.link.is_empty() {
        true => Carrier::value_variants(),
        false => &arguments.link,
    };
    let mut found = Vec::new();
    for link in links {
        let name = name_of(*link);
        if let Some(saved) = Profile::load(&name)?.and_then(|profile| profile.point_to_point) {
            found.push((*link, saved));
        }
    }
    if found.is_empty() {
        return Err(CalibrateError::NoProfile.into());
    }
    check(&found, arguments, output)
}

/// Measures single trips over these links and compares them with predictions.
fn check(
    links: &[(Carrier, PointToPoint)],
    arguments: &MessagesArgs,
    output: &mut Output<'_>,
) -> Result<ExitCode, Box<dyn Error>> {
    let cores = Cores::choose()?;
    let testbed = arguments.testbed()?;
    output.remark(&machine_line(cores))?;
    let (bytes, rounds, each) = match arguments.quick {
        true => (&QUICK_BYTES[..], 1, QUICK_EACH),
        false => (&BYTES[..], ROUNDS, EACH),
    };
    let mut carriers = Vec::new();
    for (carrier, found) in links {
        let (carrier, name) = (*carrier, name_of(*carrier));
        let place = testbed.name(placement(carrier));
        if found.place != place {
            let then = &found.place;
            output.remark(&format!(
                "{name} was calibrated on {then} and is measured on {place} now: the figures do not \
                 belong together"
            ))?;
        }
        if carrier == Carrier::Bpf && testbed.name(Placement::TwoNodes) != "veth" {
            output.remark(&"bpf needs root and namespaces of its own: left out")?;
            continue;
        }
        carriers.push((carrier, found));
    }
    let progress = progress_bar((rounds * carriers.len()) as u64);
    let mut measured = vec![Vec::new(); bytes.len() * carriers.len()];
    let mut cache_line_ns = Vec::new();
    for round in 1..=rounds {
        cache_line_ns.extend(machine::cache_line_ns(cores)?);
        for ((carrier, _), measured) in carriers.iter().zip(measured.chunks_mut(bytes.len())) {
            progress.set_message(format!("{}, round {round} of {rounds}", name_of(*carrier)));
            let samples = super::measure(
                *carrier,
                each,
                Part::Trips(bytes.to_vec()),
                (&testbed, cores),
                None,
            )?;
            let trips = samples
                .into_iter()
                .filter(|sample| sample.what == Metric::Trip);
            for (sample, measured) in trips.zip(measured) {
                measured.extend(Spread::of(sample.ns).map(|ns| ns.median));
            }
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    let now_ns = Spread::of(cache_line_ns).map(|ns| ns.median);
    for (carrier, found) in &carriers {
        let then_ns = found.cache_line_ns.map(|ns| ns.median);
        if let (Some(then), Some(now)) = (then_ns, now_ns)
            && (now > then * MOVED || then > now * MOVED)
        {
            let name = name_of(*carrier);
            output.remark(&format!(
                "{name}: a cache line takes {now:.0} ns between the cores now and took {then:.0} ns when it \
                 was calibrated: the host has moved them, so the figures do not belong together; run \
                 dipole calibrate again"
            ))?;
        }
    }
    let mut lines = Vec::new();
    for ((carrier, found), measured) in carriers.iter().zip(measured.chunks(bytes.len())) {
        lines.extend(beside(*carrier, found, bytes, measured));
    }
    show(&lines, output)?;
    Ok(ExitCode::SUCCESS)
}

/// Combines predictions with measurements, which are medians of rounds by length.
fn beside(
    carrier: Carrier,
    found: &PointToPoint,
    bytes: &[usize],
    measured: &[Vec<f64>],
) -> Vec<CheckRow> {
    let lines = bytes.iter().zip(measured).filter_map(|(&bytes, measured)| {
        let predicted = found.predict(bytes)?;
        let measured = Spread::of(measured.iter().copied())?;
        Some(CheckRow {
            check: "message",
            link: name_of(carrier),
            bytes,
            predicted_ns: predicted.ns.median,
            predicted_low_ns: predicted.ns.low,
            predicted_high_ns: predicted.ns.high,
            regime: predicted.regime,
            measured_ns: measured.median,
            measured_least_ns: measured.least,
            measured_most_ns: measured.most,
            error: predicted.ns.median / measured.median - 1.0,
        })
    });
    lines.collect()
}

fn show(rows: &[CheckRow], output: &mut Output<'_>) -> io::Result<()> {
    let mut errors = String::from("\n");
    let mut links: Vec<&str> = rows.iter().map(|row| &*row.link).collect();
    links.dedup();
    for link in links {
        let of_link = rows.iter().filter(|row| row.link == link);
        if let Some(error) = Spread::of(of_link.map(|row| 100.0 * row.error.abs())) {
            errors += &format!(
                "{link}: median error {:.1} %, at most {:.1} %\n",
                error.median, error.most
            );
        }
    }
    output.print_records("", rows, &errors)
}

impl Record for CheckRow {
    const HEADINGS: &'static str = "link|bytes|predicted us|measured us|least..most|error %";
    const LABELS: usize = 1;

    fn cells(&self) -> Vec<String> {
        vec![
            self.link.clone(),
            byte_size(self.bytes),
            us(self.predicted_ns),
            us(self.measured_ns),
            format!(
                "{}..{}",
                us(self.measured_least_ns),
                us(self.measured_most_ns)
            ),
            format!("{:+.1}", 100.0 * self.error),
        ]
    }
}

/// Measurements for a check in turns with a calibration. On machines whose speed drifts within
/// minutes, predictions and measurements then belong to the same minutes.
pub(super) struct Alongside {
    bytes: &'static [usize],
    each: Duration,
    /// Measured values, indexed by link and length.
    measured: Vec<Vec<Vec<f64>>>,
}

impl Alongside {
    pub(super) fn new(links: usize, is_quick: bool) -> Alongside {
        let (bytes, each) = match is_quick {
            true => (&QUICK_BYTES[..], QUICK_EACH),
            false => (&BYTES[..], EACH),
        };
        Alongside {
            bytes,
            each,
            measured: vec![vec![Vec::new(); bytes.len()]; links],
        }
    }

    /// Measures a round of one link.
    pub(super) fn measure(
        &mut self,
        (link, carrier): (usize, Carrier),
        place: (&Testbed, Cores),
        profiles: &Path,
    ) -> Result<(), RunError> {
        let part = Part::Trips(self.bytes.to_vec());
        let samples = super::measure(carrier, self.each, part, place, Some(profiles))?;
        let trips = samples.into_iter().filter(|it| it.what == Metric::Trip);
        for (sample, all) in trips.zip(&mut self.measured[link]) {
            all.extend(Spread::of(sample.ns).map(|ns| ns.median));
        }
        Ok(())
    }

    /// Prints all links, in the order of measurement.
    pub(super) fn show<'a>(
        &self,
        found: impl Iterator<Item = (Carrier, &'a PointToPoint)>,
        output: &mut Output<'_>,
    ) -> io::Result<()> {
        let links = found.zip(&self.measured);
        let lines = links
            .flat_map(|((carrier, found), measured)| beside(carrier, found, self.bytes, measured));
        show(&lines.collect::<Vec<_>>(), output)
    }
}

fn us(ns: f64) -> String {
    format!("{:.2}", ns * 1e-3)
}

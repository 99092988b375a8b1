//! `dipole predict`: predicts the time of messages and supersteps from the profiles of links.

mod phases;
mod program;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use dipole_model::{Basis, Machine, Parameters, Pattern, PointToPoint, Regime};
use dipole_model::{Profile, ProfileError};
use serde_json::json;

use crate::output::{Failure, table};

/// Predict how long messages and supersteps take, from calibrated parameters
///
/// By default: messages of several lengths over every calibrated link. Supersteps take w + g h + l,
/// where w is computation and h the most bytes that a rank sends or receives. g and l are those that
/// `dipole calibrate supersteps` has measured, interpolated linearly for other numbers of ranks.
#[derive(Args, Debug)]
pub(crate) struct PredictArgs {
    /// Message length
    #[arg(long, value_name = "N,..", value_delimiter = ',',
          value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    bytes: Vec<u64>,
    /// Links [default: those with a profile]
    #[arg(long, value_enum, value_name = "LINK,..", value_delimiter = ',')]
    link: Vec<Link>,
    /// Predict supersteps of these numbers of ranks instead
    #[arg(long, value_name = "P,..", value_delimiter = ',', conflicts_with = "bytes",
          value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ranks: Vec<u32>,
    /// Compare predictions with the measured times of a traced program (DIPOLE_TRACE), and with --ranks
    /// predict it for other numbers of ranks
    #[arg(long, value_name = "DIR",
          conflicts_with_all = ["bytes", "h", "volume", "flops", "work_seconds", "supersteps", "link"])]
    trace: Option<PathBuf>,
    /// With --trace: only the supersteps from FIRST to LAST, as FIRST..LAST; the program's first is 0
    #[arg(long, value_name = "FIRST..LAST", requires = "trace", value_parser = crate::trace::range)]
    steps: Option<(u32, u32)>,
    /// Assume that all ranks are on one node, even if there are measurements between nodes
    #[arg(long, requires = "ranks")]
    one_node: bool,
    /// h of each superstep: the most bytes that a rank sends or receives
    #[arg(
        long,
        value_name = "BYTES",
        requires = "ranks",
        conflicts_with = "volume"
    )]
    h: Option<u64>,
    /// Bytes that all ranks send in each superstep, in equal parts: h is this divided by the number of ranks
    #[arg(long, value_name = "BYTES", requires = "ranks")]
    volume: Option<u64>,
    /// Relation of each superstep, for its contention [default: exchange, as g]
    #[arg(long, value_enum, requires = "ranks", conflicts_with = "trace")]
    pattern: Option<Relation>,
    /// Show the phases of a message side by side instead, over every link and machine
    #[arg(long, conflicts_with_all = ["ranks", "trace"])]
    phases: bool,
    /// With --phases: folders with the profiles of other machines
    #[arg(
        long,
        value_name = "DIR,..",
        value_delimiter = ',',
        requires = "phases"
    )]
    profiles: Vec<PathBuf>,
    /// Number of supersteps
    #[arg(long, default_value_t = 1, requires = "ranks")]
    supersteps: u32,
    /// Computation of all ranks, in equal parts: floating-point operations at the measured speed
    #[arg(long, requires = "ranks", allow_negative_numbers = true)]
    flops: Option<f64>,
    /// Computation as seconds that a single rank needs
    #[arg(long, value_name = "S", requires = "ranks", conflicts_with = "flops")]
    work_seconds: Option<f64>,
    /// Cores for the ranks of one node [default: those of this machine]
    #[arg(long, requires = "ranks", value_parser = clap::value_parser!(u32).range(1..))]
    cores: Option<u32>,
}

/// Links, by the names of their profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Link {
    /// Shared memory
    Shm,
    /// UDP sockets
    Udp,
    /// Rings that the kernel fills and raw frames
    Bpf,
    /// Plain TCP (supersteps only)
    Tcp,
}

impl Link {
    fn name(self) -> &'static str {
        match self {
            Link::Shm => "shm",
            Link::Udp => "udp",
            Link::Bpf => "bpf",
            Link::Tcp => "tcp",
        }
    }
}

/// Relations of supersteps with the same h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Relation {
    /// One rank sends to all others
    OneToMany,
    /// All ranks send to one
    ManyToOne,
    /// Each rank sends to all others
    Exchange,
}

impl Relation {
    fn pattern(self) -> Pattern {
        match self {
            Relation::OneToMany => Pattern::OneToMany,
            Relation::ManyToOne => Pattern::ManyToOne,
            Relation::Exchange => Pattern::Exchange,
        }
    }
}

/// Default lengths of messages.
const USUAL_BYTES: [u64; 9] = [
    1,
    64,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
];

/// Executes the command; with `json` one object per line.
pub(crate) fn execute(
    arguments: &PredictArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    for number in [arguments.flops, arguments.work_seconds]
        .into_iter()
        .flatten()
    {
        if !(number.is_finite() && number >= 0.0) {
            return Err(Failure::with_status(
                2,
                format!("{number} is not a valid amount of work: give a number from 0"),
            ));
        }
    }
    if let Some(dir) = &arguments.trace {
        return traced(dir, arguments, json, out);
    }
    if arguments.phases {
        return phases::show(arguments, json, out);
    }
    let profiles = profiles(arguments)?;
    match arguments.ranks.is_empty() {
        false => supersteps(arguments, &profiles, json, out),
        true => messages(arguments, profiles, json, out),
    }
}

/// Loads the profiles of the requested links, or all.
fn profiles(arguments: &PredictArgs) -> Result<Vec<Profile>, Failure> {
    if dipole_node::profile_dir().is_none() {
        return Err(ProfileError::NoDirectory.into());
    }
    let links = match arguments.link.is_empty() {
        true => Link::value_variants(),
        false => &arguments.link,
    };
    let found: Result<Vec<Option<Profile>>, ProfileError> = links
        .iter()
        .map(|link| Profile::load(link.name()))
        .collect();
    Ok(found?.into_iter().flatten().collect())
}

/// Returns the error for a missing profile, or a missing part of it.
fn missing(arguments: &PredictArgs, what: &str, command: &str) -> Failure {
    let names: Vec<&str> = arguments.link.iter().map(|link| link.name()).collect();
    let by = match names.is_empty() {
        true => "any link".to_owned(),
        false => names.join(", "),
    };
    let folder = dipole_node::profile_dir().unwrap_or_default();
    Failure::from(format!(
        "there is no measurement of {what} over {by} in {}; run {command} first",
        folder.display()
    ))
}

fn messages(
    arguments: &PredictArgs,
    profiles: Vec<Profile>,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let found = profiles.into_iter();
    let links: Vec<(String, PointToPoint)> = found
        .filter_map(|profile| Some((profile.link, profile.point_to_point?)))
        .collect();
    let lacking = (arguments.link.iter()).find(|link| links.iter().all(|it| it.0 != link.name()));
    if links.is_empty() || lacking.is_some() {
        return Err(missing(arguments, "messages", "dipole calibrate"));
    }
    let bytes = match arguments.bytes.is_empty() {
        true => &USUAL_BYTES[..],
        false => &arguments.bytes,
    };
    let mut rows = table([
        "link",
        "bytes",
        "us",
        "95 %",
        "fragments",
        "bound by",
        "MB/s",
    ]);
    for (link, model) in &links {
        for &bytes in bytes {
            let Some(prediction) = usize::try_from(bytes).ok().and_then(|it| model.predict(it))
            else {
                return Err(missing(arguments, "messages", "dipole calibrate"));
            };
            let ns = prediction.ns;
            if json {
                let line = json!({
                    "predict": "message",
                    "link": link,
                    "place": model.place,
                    "bytes": bytes,
                    "ns": ns,
                    "fragments": prediction.fragments,
                    "regime": prediction.regime,
                });
                writeln!(out, "{line}")?;
                continue;
            }
            rows.add_row([
                format!("{link}/{}", model.place),
                bytes.to_string(),
                us(ns.median),
                format!("{}..{}", us(ns.low), us(ns.high)),
                format!("{:.1}", prediction.fragments),
                match prediction.regime {
                    Regime::OneFragment => "-",
                    Regime::NetworkBound => "network",
                    Regime::ReceiverBound => "receiver",
                }
                .to_owned(),
                format!("{:.0}", as_float(bytes) * 1e3 / ns.median),
            ]);
        }
    }
    if !json {
        writeln!(
            out,
            "{rows}\none message, from the call that sends to the end of the call that receives, both sides \
             spinning"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn supersteps(
    arguments: &PredictArgs,
    profiles: &[Profile],
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let mut rows = superstep_table();
    let mut is_empty = true;
    let own = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = arguments.cores.unwrap_or(u32::try_from(own)?);
    for profile in profiles {
        let apart = Machine::of(&profile.cost, false);
        let is_apart = !arguments.one_node && apart.measured().any(|p| p > 1);
        let machine = match is_apart {
            true => apart,
            false => Machine::of(&profile.cost, true),
        };
        let alone = machine.at(1).filter(|alone| alone.basis == Basis::Measured);
        let at_once = |p: u32| if is_apart { p } else { p.min(cores) };
        for &p in &arguments.ranks {
            let Some(parameters) = machine.at(p) else {
                continue;
            };
            let parameters = of_relation(parameters, arguments.pattern, &profile.link)?;
            is_empty = false;
            let told = Program::of(arguments, parameters, alone, at_once(p));
            if json {
                let line = json!({
                    "predict": "superstep",
                    "link": profile.link,
                    "one_node": !is_apart,
                    "parameters": parameters,
                    "h_bytes": told.h_bytes,
                    "superstep_ns": told.superstep_ns,
                    "supersteps": arguments.supersteps,
                    "ns": told.ns,
                    "low_ns": told.interval.0,
                    "high_ns": told.interval.1,
                    "speed_up": told.speed_up,
                });
                writeln!(out, "{line}")?;
                continue;
            }
            rows.add_row([
                profile.link.clone(),
                p.to_string(),
                us(parameters.l_ns),
                format!("{:.3}", parameters.g_ns_per_byte),
                format!("{:.0}", told.h_bytes),
                us(told.superstep_ns),
                format!("{:.3}", told.ns * 1e-6),
                interval(told.interval),
                told.speed_up
                    .map_or("-".to_owned(), |it| format!("{it:.2}")),
                basis(parameters.basis),
            ]);
        }
    }
    if is_empty {
        return Err(missing(
            arguments,
            "supersteps with these ranks, or of two other numbers of ranks to draw a line through,",
            "dipole calibrate supersteps",
        ));
    }
    if !json {
        writeln!(
            out,
            "{rows}\na superstep is w + g h + l; 95 %: interval of all, by the measured spread of l and g; speed-up: relative to the computation by a single rank"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the parameters for a relation.
fn of_relation(
    parameters: Parameters,
    relation: Option<Relation>,
    link: &str,
) -> Result<Parameters, Failure> {
    let Some(relation) = relation else {
        return Ok(parameters);
    };
    let found = parameters.with_pattern(relation.pattern());
    found.ok_or_else(|| {
        Failure::from(format!(
            "contention of {} ranks over {link} was not measured; run dipole calibrate supersteps \
             again",
            parameters.p
        ))
    })
}

/// Predicts a traced program, with its own number of ranks and with others.
fn traced(
    dir: &Path,
    arguments: &PredictArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let program = program::Program::read(dir, arguments.steps)?;
    let profile = Profile::load(&program.link)?;
    let cost = profile.map(|profile| profile.cost).unwrap_or_default();
    let is_one_node = program.nodes == 1;
    let machine = Machine::of(&cost, is_one_node);
    let own = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let cores = arguments.cores.unwrap_or(u32::try_from(own)?);
    let at_once = |p: u32| if is_one_node { p.min(cores) } else { p };
    let mut all = vec![program.ranks];
    all.extend(arguments.ranks.iter().filter(|p| **p != program.ranks));
    let mut rows = program_table();
    for p in all {
        let parameters = machine
            .at(p)
            .ok_or_else(|| no_measurement(p, &program.link))?;
        let forecast = program.forecast(
            parameters,
            machine.at(program.ranks),
            (at_once(program.ranks), at_once(p)),
        );
        let measured_ns = (p == program.ranks).then(|| program.took_ns());
        let off = measured_ns.map(|took| (forecast.ns / took - 1.0) * 100.0);
        if json {
            let line = json!({
                "predict": "program",
                "link": program.link,
                "p": p,
                "basis": parameters.basis,
                "supersteps": program.supersteps.len(),
                "work_ns": forecast.work_ns,
                "h_bytes": forecast.h_bytes,
                "ns": forecast.ns,
                "low_ns": forecast.interval.map(|(low, _)| low),
                "high_ns": forecast.interval.map(|(_, high)| high),
                "measured_ns": measured_ns,
                "off_percent": off,
                "speed_up": forecast.speed_up,
            });
            writeln!(out, "{line}")?;
            continue;
        }
        let or = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        rows.add_row([
            program.link.clone(),
            p.to_string(),
            program.supersteps.len().to_string(),
            format!("{:.3}", forecast.work_ns * 1e-6),
            format!("{:.1}", forecast.h_bytes * 1e-3),
            format!("{:.3}", forecast.ns * 1e-6),
            forecast.interval.map_or("unknown".to_owned(), interval),
            or(measured_ns.map(|ns| format!("{:.3}", ns * 1e-6))),
            or(off.map(|off| format!("{off:+.1}"))),
            format!("{:.2}", forecast.speed_up),
            basis(parameters.basis),
        ]);
    }
    if !json {
        writeln!(
            out,
            "{rows}\nsums over supersteps; other numbers of ranks share computation and h as they are, with \
             their imbalance; 95 %: interval of runs on the machine as calibrated or as during the traced run; \
             speed-up: relative to the computation by a single rank"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn no_measurement(p: u32, link: &str) -> Failure {
    let folder = dipole_node::profile_dir().unwrap_or_default();
    Failure::from(format!(
        "no supersteps of {p} ranks over {link} were measured in {}, nor two other numbers of ranks to \
         extrapolate from; run dipole calibrate supersteps --link {link} first",
        folder.display()
    ))
}

fn basis(basis: Basis) -> String {
    match basis {
        Basis::Measured => "measured".to_owned(),
        Basis::Between(one, other) => format!("between p = {one} and {other}"),
        Basis::Beyond(one, other) => format!("line of p = {one} and {other}"),
    }
}

/// A program of equal supersteps.
struct Program {
    h_bytes: f64,
    superstep_ns: f64,
    ns: f64,
    /// Interval of `ns` that the uncertainty of l and g causes.
    interval: (f64, f64),
    speed_up: Option<f64>,
}

impl Program {
    /// Predicts the program, with this many ranks computing at the same time.
    fn of(
        arguments: &PredictArgs,
        parameters: Parameters,
        alone: Option<Parameters>,
        at_once: u32,
    ) -> Program {
        let ranks = f64::from(parameters.p);
        let (supersteps, flops) = (f64::from(arguments.supersteps), arguments.flops);
        let h_bytes = match (arguments.h, arguments.volume) {
            (Some(h), _) => as_float(h),
            (None, Some(volume)) => as_float(volume) / ranks,
            (None, None) => 0.0,
        };
        // Total over supersteps and ranks. Ranks that compute at the same time are slower than a
        // single one, by the measured ratio if both were measured.
        let slower = alone.map_or(1.0, |alone| alone.s_mflops / parameters.s_mflops);
        let work_ns = match (arguments.work_seconds, flops) {
            (Some(seconds), _) => seconds * 1e9 * slower,
            (None, Some(flops)) => parameters.work_ns(flops),
            (None, None) => 0.0,
        };
        let alone_ns = match flops {
            Some(flops) => Some(alone.unwrap_or(parameters).work_ns(flops)),
            None => arguments.work_seconds.map(|seconds| seconds * 1e9),
        };
        let superstep_ns =
            parameters.superstep_ns(work_ns / f64::from(at_once) / supersteps.max(1.0), h_bytes);
        let ns = superstep_ns * supersteps;
        let half_ns = parameters.half_width_ns(supersteps, h_bytes * supersteps);
        Program {
            h_bytes,
            superstep_ns,
            ns,
            interval: ((ns - half_ns).max(0.0), ns + half_ns),
            speed_up: alone_ns.filter(|_| ns > 0.0).map(|alone| alone / ns),
        }
    }
}

/// The table of equal supersteps.
fn superstep_table() -> comfy_table::Table {
    table([
        "link",
        "p",
        "l us",
        "g ns/B",
        "h",
        "superstep us",
        "all ms",
        "95 %",
        "speed-up",
        "basis",
    ])
}

/// The table of a traced program.
fn program_table() -> comfy_table::Table {
    table([
        "link",
        "p",
        "supersteps",
        "work ms",
        "h kB",
        "predicted ms",
        "95 %",
        "measured ms",
        "off %",
        "speed-up",
        "basis",
    ])
}

fn interval((low, high): (f64, f64)) -> String {
    format!("{:.3}..{:.3}", low * 1e-6, high * 1e-6)
}

fn us(ns: f64) -> String {
    format!("{:.2}", ns * 1e-3)
}

#[allow(clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
fn as_float(number: u64) -> f64 {
    number as f64
}

//! `dipole calibrate messages`: measures the parameters of the model of single messages.
//!
//! Two processes, each pinned to a core, exchange messages of many lengths over each link (`side`),
//! in several rounds with new processes. `parameters` computes the parameters from their samples, and
//! `copies` measures memory copies. The results are saved in the profiles of the links, which
//! `dipole predict` reads.
//!
//! # Source
//! Directed Point §3, §5.1; the four phases: Directed Point II §5.2.

mod check;
mod choices;
pub mod copies;
mod crossover;
mod job;
pub mod parameters;
pub mod side;
pub mod sockets;
mod table;
mod wire;

use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use check::Alongside;
use choices::{ChoiceError, Trials};
use clap::Args;
use dipole_model::PointToPoint;
use dipole_model::{CopyCost, Profile, ProfileError};
use dipole_node::{Choices, variables};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::conditions::{closing_line, machine_line, progress_bar};
use crate::control::{Part, Ready, SIDE_ARGUMENTS, Task};
use crate::estimate::Estimate;
use crate::failure::RunError;
use crate::launch;
use crate::launch::{Entry, SLACK, Worker};
use crate::machine;
use crate::machine::{Cores, Stolen};
use crate::output::Output;
use crate::subject::Subject;
use crate::testbed::{On, SlowPath, Testbed, TestbedError};
use crate::work::{Carrier, Kind, Placement, Role, Workload, name_of};
use side::Sample;

/// Number of rounds. The confidence interval of a median of nine excludes the two extremes.
const ROUNDS: u32 = 9;
/// Duration of the round trips of one length in a round.
const EACH: Duration = Duration::from_millis(25);
const QUICK_ROUNDS: u32 = 1;
const QUICK_EACH: Duration = Duration::from_millis(1);

/// Measure the cost of messages on this machine, and save it for `dipole predict`
///
/// Two processes measure the parameters of the model of messages over each link: the overheads of
/// sending and receiving, the latency, and the gaps between messages, by length; and the cost of
/// copying by level of the memory hierarchy. This takes less than a minute, in which nothing else
/// should run. The results are saved in DIPOLE_PROFILE, by default ~/.config/dipole/profile.
#[derive(Args, Clone, Debug)]
pub struct MessagesArgs {
    /// Links [default: those that are available here]
    #[arg(long, value_enum, value_name = "LINK,..", value_delimiter = ',')]
    link: Vec<Carrier>,
    /// Where the two processes of udp and bpf run
    #[arg(long, value_enum, default_value_t = On::Auto)]
    on: On,
    /// Hold every packet of udp for this long on its way between two network namespaces (needs root).
    /// Set DIPOLE_PROFILE to keep such a profile apart from that of this machine
    #[arg(long, value_name = "US", conflicts_with_all = ["job", "on"],
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    delay_us: Option<u64>,
    /// Send packets of udp at this rate between two network namespaces (needs root)
    #[arg(long, value_name = "MBIT", conflicts_with_all = ["job", "on"],
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    rate_mbit: Option<u64>,
    /// Speed of the network, for the limits next to the parameters [default: what the driver reports]
    #[arg(long, value_name = "MBIT", requires = "job",
          value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    wire_mbit: Option<u64>,
    /// Measure between the two processes of a job, started on two nodes by dipole run or another
    /// launcher, over the link in DIPOLE_LINK; save on each node
    #[arg(long, conflicts_with_all = ["link", "on"])]
    job: bool,
    /// Instead, measure messages of other lengths and compare them with the predictions of the saved
    /// profiles
    #[arg(long, conflicts_with = "job")]
    check: bool,
    /// With --check: calibrate in turns with the check, and save
    #[arg(long, requires = "check")]
    anew: bool,
    /// One short round, to see that everything works; nothing is saved
    #[arg(long)]
    quick: bool,
}

/// Reason why nothing can be calibrated.
#[derive(Debug, thiserror::Error)]
enum CalibrateError {
    #[error("--link bpf needs root and namespaces of its own ({0}); leave it out")]
    NoBpf(String),
    #[error("{0}; with --job it runs as dipole run -n 2 --hosts FILE dipole calibrate --job")]
    NoJob(String),
    #[error(
        "{0} processes are in this job, and a message goes from one to another: start two, one on \
         each of two nodes"
    )]
    NotTwo(u32),
    #[error("there is no profile of messages; run dipole calibrate first")]
    NoProfile,
    #[error("--on node has shared memory only; use --link shm")]
    OnNode,
    #[error(
        "the two sides of {link} measured only a part; this is a fault of this program, please \
         report it"
    )]
    Incomplete { link: String },
}

impl MessagesArgs {
    /// Creates the testbed that the options describe.
    fn testbed(&self) -> Result<Testbed, TestbedError> {
        match (self.delay_us, self.rate_mbit) {
            (None, None) => Testbed::create(self.on),
            (delay_us, rate_mbit) => Testbed::on_path(SlowPath {
                delay: delay_us.map(Duration::from_micros),
                rate_mbit,
            }),
        }
    }
}

/// Results of one link.
struct Link {
    carrier: Carrier,
    found: PointToPoint,
    /// Crossover lengths, if they were measured.
    choices: Option<Choices>,
    rounds: Vec<Vec<Sample>>,
}

/// Measures, prints and saves; with `json` one object per link.
///
/// # Errors
/// Nothing could be measured, or writing to `out` or the profile failed.
pub fn calibrate(
    arguments: &MessagesArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Box<dyn Error>> {
    let output = &mut Output {
        json,
        wide: false,
        out,
    };
    let (rounds, each) = match arguments.quick {
        true => (QUICK_ROUNDS, QUICK_EACH),
        false => (ROUNDS, EACH),
    };
    if arguments.check && !arguments.anew {
        return check::check_saved(arguments, output);
    }
    if arguments.job {
        return job::calibrate(arguments, (rounds, each), output);
    }
    calibrate_here(arguments, (rounds, each), output)
}

/// Calibrates links of this machine.
fn calibrate_here(
    arguments: &MessagesArgs,
    (rounds, each): (u32, Duration),
    output: &mut Output<'_>,
) -> Result<ExitCode, Box<dyn Error>> {
    let begun = Instant::now();
    let cores = Cores::choose()?;
    let testbed = arguments.testbed()?;
    let carriers = carriers(arguments, &testbed)?;
    output.remark(&machine_line(cores))?;
    let apart = testbed.description();
    output.remark(&format!("packets: {apart}; shm: within this node"))?;
    if let Some(remark) = testbed.remark() {
        output.remark(&format!("not between namespaces: {remark}"))?;
    }
    let stolen = Stolen::since_now(cores);
    let progress = progress_bar((u64::from(rounds) + 1) * carriers.len() as u64 + 1);
    progress.set_message("memcpy");
    let copies = copies::measure(cores, arguments.quick)?;
    progress.inc(1);
    let mut run = Run {
        testbed: &testbed,
        cores,
        profiles: testbed.folder().join("profiles"),
        progress,
        cache_line_ns: Vec::new(),
    };
    let mut chosen = Vec::new();
    for &carrier in &carriers {
        chosen.push(run.choose(carrier, arguments.quick)?);
    }
    let mut alongside = (arguments.anew).then(|| Alongside::new(carriers.len(), arguments.quick));
    let samples = run.rounds(&carriers, (rounds, each), alongside.as_mut())?;
    run.progress.finish_and_clear();
    let distance = Estimate::of(run.cache_line_ns.iter().copied()).map(|it| it.measured());
    let mut links = Vec::new();
    for ((carrier, choices), rounds) in carriers.into_iter().zip(chosen).zip(samples) {
        let place = testbed.name(placement(carrier));
        let found =
            parameters::of(place, &rounds, distance).ok_or_else(|| CalibrateError::Incomplete {
                link: name_of(carrier),
            })?;
        let found = PointToPoint {
            wire: testbed.wire(placement(carrier)),
            ..found
        };
        links.push(Link {
            carrier,
            found,
            choices,
            rounds,
        });
    }
    show(&links, &copies, output)?;
    if let Some(alongside) = alongside {
        alongside.show(links.iter().map(|link| (link.carrier, &link.found)), output)?;
    }
    let closing = closing_line(&run.cache_line_ns, None, stolen);
    output.remark(&format!(
        "{closing}; it took {:.0} s",
        begun.elapsed().as_secs_f64()
    ))?;
    if !arguments.quick {
        for link in &links {
            let file = save(link, &copies)?;
            output.remark(&format!("saved in {}", file.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A calibration in progress.
struct Run<'a> {
    testbed: &'a Testbed,
    cores: Cores,
    /// Folder with the profiles that the sides read.
    profiles: PathBuf,
    progress: ProgressBar,
    cache_line_ns: Vec<f64>,
}

impl Run<'_> {
    /// Finds the choices of a link.
    fn choose(&self, carrier: Carrier, is_quick: bool) -> Result<Option<Choices>, ChoiceError> {
        self.progress
            .set_message(format!("{}, crossovers", name_of(carrier)));
        let place = (self.testbed, self.cores);
        let chosen = choose(place, carrier, is_quick, &self.profiles)?;
        self.progress.inc(1);
        Ok(chosen)
    }

    /// Measures all rounds and returns the samples by link and round.
    fn rounds(
        &mut self,
        carriers: &[Carrier],
        (rounds, each): (u32, Duration),
        mut alongside: Option<&mut Alongside>,
    ) -> Result<Vec<Vec<Vec<Sample>>>, Box<dyn Error>> {
        let mut samples: Vec<Vec<Vec<Sample>>> = vec![Vec::new(); carriers.len()];
        // The machine drifts, so each link takes its turn in every round.
        for round in 1..=rounds {
            self.cache_line_ns
                .extend(machine::cache_line_ns(self.cores)?);
            for (number, (carrier, samples)) in carriers.iter().zip(&mut samples).enumerate() {
                let link = name_of(*carrier);
                self.progress
                    .set_message(format!("{link}, round {round} of {rounds}"));
                let place = (self.testbed, self.cores);
                samples.push(measure(
                    *carrier,
                    each,
                    Part::All,
                    place,
                    Some(&self.profiles),
                )?);
                if let Some(alongside) = &mut alongside {
                    alongside.measure((number, *carrier), place, &self.profiles)?;
                }
                self.progress.inc(1);
            }
        }
        Ok(samples)
    }
}

/// Finds the choices for this link and saves them in `profiles`, where the sides read them. With
/// `--quick` the built-in values stay.
fn choose(
    (testbed, cores): (&Testbed, Cores),
    carrier: Carrier,
    is_quick: bool,
    profiles: &Path,
) -> Result<Option<Choices>, ChoiceError> {
    let trials = Trials {
        carrier,
        testbed,
        cores,
    };
    let chosen = match is_quick {
        true => None,
        false => Some(trials.find()?),
    };
    choices::keep(chosen.unwrap_or_default(), carrier, profiles)?;
    Ok(chosen)
}

/// Prints the results and the chosen crossovers.
fn show(links: &[Link], copies: &[CopyCost], output: &mut Output<'_>) -> io::Result<()> {
    for link in links {
        match output.json {
            true => output.print_json(&LinkRow::of(link, copies))?,
            false => output.print(&table::of_link(link, copies))?,
        }
    }
    if !output.json {
        output.print(&table::of_copies(copies))?;
    }
    for link in links {
        if let Some(chosen) = &link.choices {
            let choices = choices::description(chosen);
            output.remark(&format!("{}: {choices}", name_of(link.carrier)))?;
        }
    }
    Ok(())
}

fn carriers(arguments: &MessagesArgs, testbed: &Testbed) -> Result<Vec<Carrier>, CalibrateError> {
    let is_apart = testbed.name(Placement::TwoNodes) == "veth";
    let has_bpf = is_apart && dipole_bpf::has_capabilities();
    let mut carriers = arguments.link.clone();
    if carriers.is_empty() {
        let is_slow = arguments.delay_us.or(arguments.rate_mbit).is_some();
        carriers = match arguments.on {
            _ if is_slow => vec![Carrier::Udp],
            On::Node => vec![Carrier::Shm],
            _ => vec![Carrier::Shm, Carrier::Udp],
        };
        carriers.extend(has_bpf.then_some(Carrier::Bpf));
    }
    if carriers.contains(&Carrier::Bpf) && !has_bpf {
        return Err(CalibrateError::NoBpf(testbed.description()));
    }
    if arguments.on == On::Node && carriers.iter().any(|one| *one != Carrier::Shm) {
        return Err(CalibrateError::OnNode);
    }
    let mut seen = Vec::new();
    carriers.retain(|one| !seen.contains(one) && (seen.push(*one), true).1);
    Ok(carriers)
}

fn placement(carrier: Carrier) -> Placement {
    match carrier {
        Carrier::Shm => Placement::OneNode,
        Carrier::Udp | Carrier::Bpf => Placement::TwoNodes,
    }
}

/// Measures a round of one link with two new processes. The processes use the profiles in this
/// folder, or the user's.
fn measure(
    carrier: Carrier,
    each: Duration,
    part: Part,
    (testbed, cores): (&Testbed, Cores),
    profiles: Option<&Path>,
) -> Result<Vec<Sample>, RunError> {
    let entry = Entry {
        bench: "calibrate".to_owned(),
        subject: Subject::Dipole,
        work: Workload {
            kind: Kind::Pingpong,
            size_bytes: 1,
            duration: each,
            unreliable: false,
            block: false,
            may_lose: false,
            threads: false,
            two_threads_a_side: false,
        },
        place: placement(carrier),
        carrier,
        fault: None,
    };
    let start = |role: Role| {
        let mut environment = testbed.environment(entry.place, role, carrier);
        // Warnings about waiting for a core are unnecessary: the samples show it.
        environment.push(("DIPOLE_LOG", "error".into()));
        environment.extend(profiles.map(|folder| (variables::PROFILE, folder.into())));
        let task = Task::Calibrate(launch::job(&entry, testbed, cores, role), part.clone());
        let (who, _) = role.own_and_other("leading side", "following side");
        Worker::start(who.to_owned(), &SIDE_ARGUMENTS, &task, environment)
    };
    let (mut lead, mut follow) = (start(Role::Lead)?, start(Role::Follow)?);
    let (of_lead, of_follow) = (lead.recv::<Ready>(SLACK)?, follow.recv::<Ready>(SLACK)?);
    follow.send(&of_lead)?;
    lead.send(&of_follow)?;
    match lead.recv(SLACK) {
        Ok(samples) => {
            // The following side returns no samples, but must have finished.
            follow.recv::<Vec<Sample>>(SLACK)?;
            Ok(samples)
        }
        // The side that failed knows the reason; the other has only waited for it.
        Err(error) => Err(match follow.recv::<Vec<Sample>>(Duration::ZERO) {
            Err(first @ RunError::Failed { .. }) => first,
            _ => error,
        }),
    }
}

/// Saves the results in the link's profile, and the samples next to it.
fn save(link: &Link, copies: &[CopyCost]) -> Result<PathBuf, Box<dyn Error>> {
    let name = name_of(link.carrier);
    let mut profile = Profile::load(&name)?.unwrap_or_else(|| Profile::new(&name));
    profile.point_to_point = Some(link.found.clone());
    profile.copies = copies.to_vec();
    profile.choices = link.choices.or(profile.choices);
    let file = profile.save()?;
    // Only one of two processes on two nodes has samples.
    if link.rounds.iter().any(|samples| !samples.is_empty()) {
        save_samples(&file.with_extension("samples.jsonl"), &link.rounds)?;
    }
    Ok(file)
}

fn save_samples(file: &Path, rounds: &[Vec<Sample>]) -> Result<(), ProfileError> {
    #[derive(Serialize)]
    struct SampleRow<'a> {
        round: usize,
        #[serde(flatten)]
        sample: &'a Sample,
    }
    let write = || -> io::Result<()> {
        let mut text = Vec::new();
        for (round, samples) in rounds.iter().enumerate() {
            for sample in samples {
                serde_json::to_writer(&mut text, &SampleRow { round, sample })?;
                text.push(b'\n');
            }
        }
        dipole_naming::files::write(file, &text)
    };
    write().map_err(|cause| ProfileError::File {
        file: file.to_owned(),
        action: "write the samples next to",
        cause,
    })
}

/// Results of one link for `--json`.
#[derive(Serialize)]
struct LinkRow<'a> {
    calibrate: &'static str,
    link: String,
    #[serde(flatten)]
    found: &'a PointToPoint,
    #[serde(skip_serializing_if = "Option::is_none")]
    choices: Option<Choices>,
    copies: &'a [CopyCost],
    samples: usize,
    outliers: usize,
}

impl<'a> LinkRow<'a> {
    fn of(link: &'a Link, copies: &'a [CopyCost]) -> Self {
        let (outliers, samples) = parameters::outliers(&link.rounds);
        Self {
            calibrate: "link",
            link: name_of(link.carrier),
            found: &link.found,
            choices: link.choices,
            copies,
            samples,
            outliers,
        }
    }
}

//! `dipole-lab crossings`: how often a byte crosses memory on each path that Dipole has.
//!
//! Counted: the engines' counters show how many bytes passed each stage, and the effect of a stage is
//! known: a copy reads and writes a byte, a checksum reads it. Headers, retransmissions and
//! acknowledgements are included. Measured: the CPU time of both sides for one more byte, from streams
//! of two message lengths with sides that sleep while waiting, as multiples of one crossing by
//! `memcpy` at the same level of the memory hierarchy.
//!
//! # Source
//! Gigabit Nectar §2.4, table 1: the interface (copied or shared buffers), the checksum, crossings.

use std::error::Error;

use clap::Args;
use dipole_bench::SetupArgs;
use dipole_bench::calibrate::copies;
use dipole_bench::conditions::machine_line;
use dipole_bench::control::Outcome;
use dipole_bench::failure::RunError;
use dipole_bench::launch::{self, Entry};
use dipole_bench::machine::Cores;
use dipole_bench::output::{Output, Record};
use dipole_bench::plan::{LEAST_ROUNDS, PlanError, ROUNDS, Setup, TABLE_SECONDS, Variation};
use dipole_bench::statistics::{Spread, as_float};
use dipole_bench::subject::Subject;
use dipole_bench::testbed::{On, Testbed};
use dipole_bench::traffic::{COPY, MemoryTraffic};
use dipole_bench::work::{Carrier, Kind, Placement};
use dipole_model::CopyCost;
use dipole_page::byte_size;
use serde::Serialize;

/// Streams of a shorter and a longer message on one path.
#[derive(Clone, Debug)]
pub(crate) struct Path {
    pub(crate) shorter: Entry,
    pub(crate) longer: Entry,
}

/// The measurements to make.
#[derive(Clone, Debug)]
pub(crate) struct CrossingsPlan {
    pub(crate) paths: Vec<Path>,
    pub(crate) rounds: u32,
    pub(crate) quick: bool,
    pub(crate) on: On,
}

/// Result of one path.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct CrossingsRow {
    bench: &'static str,
    subject: String,
    link: String,
    testbed: &'static str,
    size_bytes: usize,
    /// How the program passes and receives messages.
    interface: &'static str,
    checksum: &'static str,
    /// Crossings according to the counters.
    crossings: Option<f64>,
    /// CPU time of both sides for one more byte.
    cpu_ns_per_byte: f64,
    copy_ns_per_byte: f64,
    /// CPU time as a multiple of a crossing by `memcpy`.
    cpu_in_crossings: f64,
}

impl Record for CrossingsRow {
    const HEADINGS: &'static str =
        "path|message|interface|checksum|crossings|CPU ns/B|memcpy ns/B|CPU in crossings";
    const LABELS: usize = 1;

    fn cells(&self) -> Vec<String> {
        let crossings = self
            .crossings
            .map_or_else(|| "-".to_owned(), |it| format!("{it:.2}"));
        vec![
            format!("{}, {}", self.subject, self.link),
            byte_size(self.size_bytes),
            self.interface.to_owned(),
            self.checksum.to_owned(),
            crossings,
            format!("{:.3}", self.cpu_ns_per_byte),
            format!("{:.3}", self.copy_ns_per_byte),
            format!("{:.1}", self.cpu_in_crossings),
        ]
    }
}

/// The text after the table.
const AFTER: &str = "\ncrossings: how often a processor reads or writes a byte of a message, by the \
                     engines' counters\nCPU: of both sides, for one more byte; a crossing is half of \
                     the time that memcpy takes for a byte\n";

/// Number of times that each byte crosses memory, on every path: counted and measured
#[derive(Args, Debug)]
pub(crate) struct CrossingsArgs {
    #[command(flatten)]
    setup: SetupArgs,
}

/// Runs the measurements and prints the results. False if a path failed.
pub(crate) fn execute(
    args: &CrossingsArgs,
    output: &mut Output<'_>,
) -> Result<bool, Box<dyn Error>> {
    output.wide = args.setup.is_wide();
    let plan = plan(&args.setup.setup())?;
    measure(&plan, Cores::choose()?, output)
}

/// Lengths of messages in one piece, in one packet, and in several.
const WHOLE: [usize; 2] = [2 << 10, 8 << 10];
const PACKET: [usize; 2] = [256, 1400];
const LONG: [usize; 2] = [256 << 10, 1 << 20];

fn plan(setup: &Setup) -> Result<CrossingsPlan, PlanError> {
    let placements = setup.placements()?;
    let own = [
        (Placement::OneNode, Carrier::Shm, WHOLE),
        (Placement::OneNode, Carrier::Shm, LONG),
        (Placement::TwoNodes, Carrier::Bpf, PACKET),
        (Placement::TwoNodes, Carrier::Udp, PACKET),
        (Placement::TwoNodes, Carrier::Udp, LONG),
    ]
    .map(|path| (Subject::Dipole, path));
    let sockets = [
        (
            Subject::BareUnixBlock,
            (Placement::OneNode, Carrier::Shm, LONG),
        ),
        (
            Subject::BareTcpBlock,
            (Placement::TwoNodes, Carrier::Udp, LONG),
        ),
    ];
    let all = own.into_iter().chain(sockets);
    let all = all.filter(|(_, (place, carrier, _))| {
        placements.contains(place) && (*carrier != Carrier::Bpf || setup.has_bpf)
    });
    let paths = all.map(|(subject, (place, carrier, sizes))| {
        let [shorter, longer] = sizes.map(|size_bytes| {
            let variation = Variation {
                kind: Kind::Stream,
                size_bytes,
                duration: setup.duration(TABLE_SECONDS),
                block: true,
                unreliable: false,
                two_threads_a_side: false,
                place,
                carrier,
                rounds: setup.rounds(LEAST_ROUNDS, ROUNDS),
            };
            variation.entry("crossings".to_owned(), subject, None)
        });
        Path { shorter, longer }
    });
    Ok(CrossingsPlan {
        paths: paths.collect(),
        rounds: setup.rounds(LEAST_ROUNDS, ROUNDS).most,
        quick: setup.quick,
        on: setup.on,
    })
}

fn measure(
    plan: &CrossingsPlan,
    cores: Cores,
    output: &mut Output<'_>,
) -> Result<bool, Box<dyn Error>> {
    let apart = plan.paths.iter();
    let apart = apart.filter(|path| path.longer.place == Placement::TwoNodes);
    let testbed = Testbed::create(if apart.count() > 0 { plan.on } else { On::Node })?;
    output.remark(&machine_line(cores))?;
    let copies = copies::measure(cores, plan.quick)?;
    let (mut lines, mut all_well) = (Vec::new(), true);
    for path in &plan.paths {
        match line(path, plan.rounds, &testbed, cores, &copies) {
            Ok(line) => lines.extend(line),
            Err(error) => {
                all_well = false;
                let (subject, link) = (path.longer.subject.name(), path.longer.link(&testbed));
                eprintln!("dipole-lab: crossings of {subject} over {link}: {error}");
            }
        }
    }
    output.print_records("", &lines, AFTER)?;
    Ok(all_well)
}

fn line(
    path: &Path,
    rounds: u32,
    testbed: &Testbed,
    cores: Cores,
    copies: &[CopyCost],
) -> Result<Option<CrossingsRow>, RunError> {
    let (mut slopes, mut moved) = (Vec::new(), Vec::new());
    let bytes = |entry: &Entry| as_float(entry.work.size_bytes as u64);
    let further = bytes(&path.longer) - bytes(&path.shorter);
    for _ in 0..rounds {
        let [shorter, longer]: [Outcome; 2] = [
            launch::measure(&path.shorter, testbed, cores)?,
            launch::measure(&path.longer, testbed, cores)?,
        ];
        slopes.push((longer.cpu_ns_per_message - shorter.cpu_ns_per_message) / further);
        moved.extend(longer.moved);
    }
    let entry = &path.longer;
    let crossings = moved.iter().copied().sum::<MemoryTraffic>().crossings();
    let size_bytes = entry.work.size_bytes;
    let fits = copies.iter().find(|level| level.bytes >= size_bytes);
    let (Some(cpu), Some(copy)) = (Spread::of(slopes), fits.or(copies.last())) else {
        return Ok(None);
    };
    let (interface, checksum) = nature(entry);
    let copy_ns_per_byte = copy.ns_per_byte.median;
    Ok(Some(CrossingsRow {
        bench: "crossings",
        subject: entry.subject.name(),
        link: entry.link(testbed),
        testbed: testbed.name(entry.place),
        size_bytes,
        interface,
        checksum,
        // Sockets copy into the kernel and out of it.
        crossings: crossings.or((entry.subject != Subject::Dipole).then_some(2.0 * COPY)),
        cpu_ns_per_byte: cpu.median,
        copy_ns_per_byte,
        cpu_in_crossings: cpu.median / (copy_ns_per_byte / COPY),
    }))
}

/// Returns interface and checksum of a path.
fn nature(entry: &Entry) -> (&'static str, &'static str) {
    match (entry.subject, entry.carrier) {
        (Subject::Dipole, Carrier::Shm) => ("copy, share", "none"),
        (Subject::Dipole, _) => ("copy, share", "trailer"),
        _ => ("copy, copy", "header"),
    }
}

//! Groups of Dipole, a bare transport, and all external subjects that can do the same work.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dipole_bench::plan::{Group, LEAST_ROUNDS, PlanError, ROUNDS, Setup, Variation, keep_subjects};
use dipole_bench::subject::Subject;
use dipole_bench::work::{Kind, Placement};
use dipole_bench::{SetupArgs, size};

use super::Peer;

/// Seconds per measurement. Some external tools take a second to start.
const SECONDS: f64 = 0.2;
const SIZES_BYTES: [usize; 5] = [64, 1 << 10, 8 << 10, 64 << 10, 1 << 20];
const QUICK_SIZES_BYTES: [usize; 2] = [64, 64 << 10];

/// Compare Dipole with libraries and tools of other projects, whichever are installed: Open MPI,
/// MPICH, libfabric, UCX, Aeron, ZeroMQ, BSPonMPI, iperf3, sockperf
#[derive(Args, Debug)]
pub(crate) struct PeersArgs {
    /// Kind of measurement [default: both]
    kind: Option<PeerKind>,
    #[command(flatten)]
    pub(super) setup: SetupArgs,
    /// Message length in bytes [default: 64 B to 1 MiB]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    size: Option<usize>,
    /// Subjects to measure, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "SUBJECT,..", value_parser = subject)]
    subjects: Vec<Subject>,
    /// Write an HTML page of figures and tables, in one file that needs no network
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

/// Work that other projects' programs can do, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PeerKind {
    /// Round trips: the one-way latency
    Pingpong,
    /// One way: the transmission throughput
    Stream,
}

/// Parses the name of an external subject or of one of our own.
fn subject(name: &str) -> Result<Subject, String> {
    match Peer::named(name) {
        Some(peer) => Ok(peer.subject()),
        None => Subject::from_str(name, false),
    }
}

/// Returns the groups to measure.
pub(super) fn groups(args: &PeersArgs, setup: &Setup) -> Result<Vec<Group>, PlanError> {
    let kinds = match args.kind {
        None => vec![Kind::Pingpong, Kind::Stream],
        Some(PeerKind::Pingpong) => vec![Kind::Pingpong],
        Some(PeerKind::Stream) => vec![Kind::Stream],
    };
    let sizes = match (args.size, setup.quick) {
        (Some(size), _) => vec![size],
        (None, true) => QUICK_SIZES_BYTES.to_vec(),
        (None, false) => SIZES_BYTES.to_vec(),
    };
    let mut groups = Vec::new();
    for place in setup.placements()? {
        for &kind in &kinds {
            groups.extend(sizes.iter().map(|&size| group(setup, place, kind, size)));
        }
    }
    keep_subjects(&mut groups, &args.subjects);
    Ok(groups)
}

fn group(setup: &Setup, place: Placement, kind: Kind, size_bytes: usize) -> Group {
    let variation = Variation {
        kind,
        size_bytes,
        duration: setup.duration(SECONDS),
        block: false,
        unreliable: false,
        two_threads_a_side: false,
        place,
        carrier: setup.carrier(place),
        rounds: setup.rounds(LEAST_ROUNDS, ROUNDS),
    };
    let bare = match place {
        Placement::TwoNodes => Subject::BareTcpSpin,
        Placement::OneNode => Subject::BareShm,
    };
    let mut group = variation.group(&[bare]);
    let others = Peer::all().map(|peer| variation.entry(variation.bench(), peer.subject(), None));
    group.entries.extend(others);
    let ours = variation.carriers().into_iter();
    let ours = ours.map(|carrier| Variation {
        carrier,
        ..variation
    });
    let ours = ours.map(|varied| varied.entry(varied.bench(), Subject::Dipole, None));
    group.entries.splice(0..0, ours);
    group.entries.retain(|entry| {
        let external = Peer::of(entry.subject).and_then(|peer| peer.refuses(&entry.work));
        external.is_none() && entry.subject.refuses(&entry.work).is_none()
    });
    group.is_point = true;
    group
}

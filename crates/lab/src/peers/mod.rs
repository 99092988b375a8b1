//! Libraries and tools of other projects, whichever are installed.
//!
//! A library is measured by a small program that is compiled first (`peers/message_*.c` with `work.h`,
//! which do the same work as Dipole's sides); a tool is measured as it is, and `output` parses what it
//! prints. Both sides are pinned and placed like Dipole's. CPU time is that of both sides: measured by
//! the program itself, or the time of all processes of a tool.

mod output;
mod plan;
mod run;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dipole_bench::control::Outcome;
use dipole_bench::failure::RunError;
use dipole_bench::launch::Entry;
use dipole_bench::machine::Cores;
use dipole_bench::output::Output;
use dipole_bench::run::{Externals, measure};
use dipole_bench::subject::{External, Subject};
use dipole_bench::testbed::Testbed;
use dipole_bench::work::{Kind, Workload, name_of};

use crate::mpi::{self, Library};
pub(crate) use plan::PeersArgs;

/// Limit of one write of iperf3.
const IPERF_MOST_BYTES: usize = 1 << 20;
/// Message lengths of sockperf.
const SOCKPERF_BYTES: std::ops::RangeInclusive<usize> = 14..=65_506;
/// An eighth of Aeron's default log buffers.
const AERON_MOST_BYTES: usize = 2 << 20;

/// Names and texts of the sources.
const SOURCES: [(&str, &str); 5] = [
    ("work.h", include_str!("../../peers/work.h")),
    ("message_mpi.c", include_str!("../../peers/message_mpi.c")),
    ("message_bsp.c", include_str!("../../peers/message_bsp.c")),
    (
        "message_zeromq.c",
        include_str!("../../peers/message_zeromq.c"),
    ),
    (
        "message_aeron.c",
        include_str!("../../peers/message_aeron.c"),
    ),
];

/// A library or tool of another project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Mpi(Library),
    Libfabric,
    Ucx,
    Aeron,
    ZeroMq,
    BspOnMpi,
    Iperf3,
    Sockperf,
}

impl Peer {
    const ALL: [(Peer, External); 9] = [
        (
            Peer::Mpi(Library::OpenMpi),
            external("open-mpi", Some("shm"), "tcp"),
        ),
        (
            Peer::Mpi(Library::Mpich),
            external("mpich", Some("shm"), "tcp"),
        ),
        (Peer::Libfabric, external("libfabric", Some("shm"), "tcp")),
        (Peer::Ucx, external("ucx", Some("shm"), "tcp")),
        (Peer::Aeron, external("aeron", Some("shm"), "udp")),
        (Peer::ZeroMq, external("zeromq", Some("unix"), "tcp")),
        (Peer::BspOnMpi, external("bsponmpi", Some("shm"), "tcp")),
        (Peer::Iperf3, external("iperf3", None, "tcp")),
        (Peer::Sockperf, external("sockperf", None, "tcp")),
    ];

    pub(crate) fn all() -> impl Iterator<Item = Peer> {
        Peer::ALL.into_iter().map(|(peer, _)| peer)
    }

    pub(crate) fn named(name: &str) -> Option<Peer> {
        let mut all = Peer::ALL.into_iter();
        all.find(|(_, external)| external.name == name)
            .map(|(peer, _)| peer)
    }

    pub(crate) fn of(subject: Subject) -> Option<Peer> {
        match subject {
            Subject::External(external) => Peer::named(external.name),
            _ => None,
        }
    }

    pub(crate) fn subject(self) -> Subject {
        let mut all = Peer::ALL.into_iter();
        let found = all.find(|(peer, _)| *peer == self);
        let (_, external) = found.expect("the table has all peers");
        Subject::External(external)
    }

    /// Returns how to install it.
    fn packages(self) -> String {
        let debian = |packages: &str| format!("Debian has it in {packages}");
        match self {
            Peer::Mpi(library) => debian(library.packages()),
            Peer::Libfabric => debian("libfabric-bin"),
            Peer::Ucx => debian("ucx-utils"),
            Peer::ZeroMq => debian("libzmq3-dev"),
            Peer::Iperf3 => debian("iperf3"),
            Peer::Sockperf => debian("sockperf"),
            Peer::Aeron => {
                "Debian has no package: build its C driver and client from source, where \
                            cc finds their headers and libraries"
                    .to_owned()
            }
            Peer::BspOnMpi => {
                "Debian has no package: build it from source, where mpicc finds bsp.h \
                               and libbsponmpi"
                    .to_owned()
            }
        }
    }

    /// Returns why it cannot do this work, as a sentence without subject. `None` if it can.
    pub(crate) fn refuses(self, work: &Workload) -> Option<String> {
        let (kind, bytes) = (work.kind, work.size_bytes);
        if !matches!(kind, Kind::Pingpong | Kind::Stream)
            || work.unreliable
            || work.two_threads_a_side
        {
            return Some(format!(
                "is measured in reliable pingpongs and streams with one thread per side, not in {}",
                name_of(kind)
            ));
        }
        if work.block && !matches!(self, Peer::Sockperf | Peer::Iperf3 | Peer::ZeroMq) {
            return Some("does not sleep while it waits; leave --block out".to_owned());
        }
        let only = |does: &str| Some(format!("measures {does} only"));
        match self {
            Peer::Libfabric if kind != Kind::Pingpong => only("pingpongs"),
            Peer::Iperf3 if kind != Kind::Stream => only("streams"),
            Peer::Iperf3 if bytes > IPERF_MOST_BYTES => Some(format!(
                "writes at most {IPERF_MOST_BYTES} bytes at once, not {bytes}"
            )),
            Peer::Sockperf if !SOCKPERF_BYTES.contains(&bytes) => Some(format!(
                "sends messages of {} to {} bytes, not {bytes}",
                SOCKPERF_BYTES.start(),
                SOCKPERF_BYTES.end()
            )),
            Peer::Aeron if bytes > AERON_MOST_BYTES => Some(format!(
                "sends at most {AERON_MOST_BYTES} bytes at once, not {bytes}"
            )),
            _ => None,
        }
    }

    /// Finds the tool or compiles the program, or returns what is missing.
    fn find(self, name: &str, folder: &Path) -> Result<Found, String> {
        let build = |source: &str, library: Option<Library>, libraries: &[&str]| {
            let (source, program) = (folder.join(source), folder.join(name));
            let program = match library {
                Some(library) => library.compile(&source, &program, libraries),
                None => mpi::compile("cc", &source, &program, libraries),
            };
            Ok(Found {
                peer: self,
                program: program?,
                library,
            })
        };
        match self {
            Peer::Mpi(library) => build("message_mpi.c", Some(library), &[]),
            Peer::ZeroMq => build("message_zeromq.c", None, &["zmq"]),
            Peer::Aeron => build("message_aeron.c", None, &["aeron_driver", "aeron"]),
            Peer::BspOnMpi => [Library::OpenMpi, Library::Mpich]
                .map(|library| build("message_bsp.c", Some(library), &["bsponmpi"]))
                .into_iter()
                .reduce(Result::or)
                .unwrap_or_else(|| Err("no MPI library was found".to_owned())),
            Peer::Libfabric => self.tool("fi_pingpong", "-h"),
            Peer::Ucx => self.tool("ucx_perftest", "-h"),
            Peer::Iperf3 => self.tool("iperf3", "--version"),
            Peer::Sockperf => self.tool("sockperf", "--version"),
        }
    }

    /// Finds a tool by its name.
    fn tool(self, name: &str, harmless: &str) -> Result<Found, String> {
        let mut trial = Command::new(name);
        trial.arg(harmless).stdin(Stdio::null());
        match trial.output() {
            Ok(_) => Ok(Found {
                peer: self,
                program: name.into(),
                library: None,
            }),
            Err(cause) => Err(format!("{name} cannot be started: {cause}")),
        }
    }
}

const fn external(
    name: &'static str,
    node_link: Option<&'static str>,
    network_link: &'static str,
) -> External {
    External {
        name,
        node_link,
        network_link,
    }
}

/// An installed peer and the program that measures it.
#[derive(Clone, Debug)]
struct Found {
    peer: Peer,
    program: PathBuf,
    /// The MPI library that starts it, if any.
    library: Option<Library>,
}

/// The installed peers among those wanted.
#[derive(Debug, Default)]
pub(crate) struct Installed {
    found: Vec<(Subject, Found)>,
    /// A line for each peer that is not installed.
    pub(crate) absent: Vec<String>,
}

impl Installed {
    /// Finds the peers; compiles programs into the folder.
    pub(crate) fn find(
        subjects: impl IntoIterator<Item = Subject>,
        folder: &Path,
    ) -> std::io::Result<Installed> {
        let mut installed = Installed::default();
        let mut seen = Vec::new();
        for subject in subjects {
            let Some(peer) = Peer::of(subject).filter(|_| !seen.contains(&subject)) else {
                continue;
            };
            if seen.is_empty() {
                for (name, text) in SOURCES {
                    std::fs::write(folder.join(name), text)?;
                }
            }
            seen.push(subject);
            let name = subject.name();
            match peer.find(&name, folder) {
                Ok(found) => installed.found.push((subject, found)),
                Err(why) => {
                    let packages = peer.packages();
                    let line = format!("{name} is left out: {why} ({packages})");
                    installed.absent.push(line);
                }
            }
        }
        Ok(installed)
    }

    /// True for an installed peer and for Dipole's own subjects.
    pub(crate) fn has(&self, subject: Subject) -> bool {
        !subject.is_external() || self.get(subject).is_some()
    }

    fn get(&self, subject: Subject) -> Option<&Found> {
        let mut found = self.found.iter();
        found
            .find(|(known, _)| *known == subject)
            .map(|(_, found)| found)
    }
}

impl Externals for Installed {
    fn measure(&self, entry: &Entry, testbed: &Testbed, cores: Cores) -> Result<Outcome, RunError> {
        match self.get(entry.subject) {
            Some(found) => run::measure(found, entry, testbed, cores),
            None => Err(RunError::Lost {
                who: entry.subject.name(),
                event: "is not installed".to_owned(),
            }),
        }
    }

    fn absent(&self) -> &[String] {
        &self.absent
    }
}

/// Runs the measurements and prints the results. False if a measurement failed.
pub(crate) fn execute(args: &PeersArgs, output: &mut Output<'_>) -> Result<bool, Box<dyn Error>> {
    output.wide = args.setup.is_wide();
    let setup = args.setup.setup();
    let mut groups = plan::groups(args, &setup)?;
    let testbed = Testbed::create(setup.testbed_for(&groups))?;
    let entries = groups.iter().flat_map(|group| &group.entries);
    let installed = Installed::find(entries.map(|entry| entry.subject), testbed.folder())?;
    for line in &installed.absent {
        output.remark(line)?;
    }
    for group in &mut groups {
        group.entries.retain(|entry| installed.has(entry.subject));
    }
    groups.retain(|group| !group.entries.is_empty());
    if groups.is_empty() {
        return Err("none of the subjects is installed here".into());
    }
    measure(groups, &testbed, &installed, args.html.as_deref(), output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_work_is_rejected_with_the_limit() {
        let refused = |peer: Peer, kind, bytes| peer.refuses(&Workload::of(kind, bytes));
        assert_eq!(refused(Peer::Ucx, Kind::Stream, 1 << 20), None);
        assert_eq!(refused(Peer::Libfabric, Kind::Pingpong, 64), None);
        for (peer, kind, bytes, word) in [
            (Peer::Libfabric, Kind::Stream, 64, "pingpongs only"),
            (Peer::Iperf3, Kind::Pingpong, 64, "streams only"),
            (Peer::Iperf3, Kind::Stream, 2 << 20, "1048576"),
            (Peer::Sockperf, Kind::Pingpong, 8, "14 to 65506"),
            (Peer::Aeron, Kind::Stream, 4 << 20, "2097152"),
            (Peer::Ucx, Kind::Rate, 64, "rate"),
        ] {
            let why = refused(peer, kind, bytes).expect("refused");
            assert!(why.contains(word), "{peer:?}: {why}");
        }
    }

    #[test]
    fn each_missing_peer_has_a_line_with_what_to_install() {
        let all = [
            Peer::Aeron.subject(),
            Peer::Ucx.subject(),
            Peer::Aeron.subject(),
            Subject::Dipole,
        ];
        let folder = tempfile::tempdir().expect("a folder");
        let installed = Installed::find(all, folder.path()).expect("a folder to write in");
        assert!(installed.has(Subject::Dipole));
        let here = usize::from(installed.has(Peer::Aeron.subject()))
            + usize::from(installed.has(Peer::Ucx.subject()));
        assert_eq!(here + installed.absent.len(), 2, "{installed:?}");
        for line in &installed.absent {
            assert!(
                line.contains("is left out: ") && line.contains("Debian has "),
                "{line}"
            );
        }
    }
}

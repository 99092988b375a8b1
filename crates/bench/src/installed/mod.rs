//! Other projects' libraries and tools beside Dipole: whichever are installed here.
//!
//! A library is measured by a small program that is compiled on the spot (`peers/message_*.c`, which
//! share `work.h`: the work of [`super::pingpong`] and [`super::flow`]), a tool as it is; `output`
//! reads what it prints. Sides are pinned and placed as Dipole's are. CPU time is that of both
//! sides: what a program of ours reads itself, or what all processes of a tool took.

mod output;
mod run;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::control::{Kind, Outcome, Workload, name_of};
use super::failure::RunError;
use super::launch::Entry;
use super::machine::Cores;
use super::mpi::{self, Library};
use super::subject::Subject;
use super::testbed::Testbed;

/// iperf3 writes at most so much at once; sockperf sends messages of these lengths.
const IPERF_MOST_BYTES: usize = 1 << 20;
const SOCKPERF_BYTES: std::ops::RangeInclusive<usize> = 14..=65_506;
/// An eighth of the log buffers that Aeron makes without being asked for others.
const AERON_MOST_BYTES: usize = 2 << 20;

/// The sources of programs, by their names.
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

/// Another project.
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
    /// What to install.
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

    /// Why it cannot do this work, after its name.
    pub(crate) fn refuses(self, work: &Workload) -> Option<String> {
        let (kind, bytes) = (work.kind, work.size_bytes);
        if !matches!(kind, Kind::Pingpong | Kind::Stream)
            || work.unreliable
            || work.two_threads_a_side
        {
            return Some(format!(
                "is measured in reliable pingpongs and streams, by one thread a side; {} was asked for",
                name_of(kind)
            ));
        }
        if work.block && !matches!(self, Peer::Sockperf | Peer::Iperf3 | Peer::ZeroMq) {
            return Some("does not sleep while it waits; leave --block out".to_owned());
        }
        let only = |does: &str| Some(format!("measures {does} alone"));
        match self {
            Peer::Libfabric if kind != Kind::Pingpong => only("pingpongs"),
            Peer::Iperf3 if kind != Kind::Stream => only("streams"),
            Peer::Iperf3 if bytes > IPERF_MOST_BYTES => Some(format!(
                "writes at most {IPERF_MOST_BYTES} bytes at once; {bytes} were asked for"
            )),
            Peer::Sockperf if !SOCKPERF_BYTES.contains(&bytes) => Some(format!(
                "sends messages of {} to {} bytes; {bytes} were asked for",
                SOCKPERF_BYTES.start(),
                SOCKPERF_BYTES.end()
            )),
            Peer::Aeron if bytes > AERON_MOST_BYTES => Some(format!(
                "sends at most {AERON_MOST_BYTES} bytes at once; {bytes} were asked for"
            )),
            _ => None,
        }
    }

    /// Finds or compiles what measures it; says what is missing.
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
                .unwrap_or_else(|| Err("there is no MPI library".to_owned())),
            Peer::Libfabric => self.tool("fi_pingpong", "-h"),
            Peer::Ucx => self.tool("ucx_perftest", "-h"),
            Peer::Iperf3 => self.tool("iperf3", "--version"),
            Peer::Sockperf => self.tool("sockperf", "--version"),
        }
    }

    /// A tool that is found by its name.
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

/// One that is here, and what measures it.
#[derive(Clone, Debug)]
struct Found {
    peer: Peer,
    program: PathBuf,
    /// What starts it, if that is an MPI library.
    library: Option<Library>,
}

/// Those that are here, of those that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Installed {
    found: Vec<(Subject, Found)>,
    /// A line for each that is not.
    pub(crate) absent: Vec<String>,
}

impl Installed {
    /// Looks for them; programs are compiled into the folder.
    pub(crate) fn find(
        subjects: impl IntoIterator<Item = Subject>,
        folder: &Path,
    ) -> std::io::Result<Installed> {
        let mut installed = Installed::default();
        let mut seen = Vec::new();
        for subject in subjects {
            let Some(peer) = subject.installed().filter(|_| !seen.contains(&subject)) else {
                continue;
            };
            if seen.is_empty() {
                for (name, text) in SOURCES {
                    std::fs::write(folder.join(name), text)?;
                }
            }
            seen.push(subject);
            let name = name_of(subject);
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

    /// True for one that is here, and for all that need no installing.
    pub(crate) fn has(&self, subject: Subject) -> bool {
        subject.installed().is_none() || self.get(subject).is_some()
    }

    fn get(&self, subject: Subject) -> Option<&Found> {
        let mut found = self.found.iter();
        found
            .find(|(known, _)| *known == subject)
            .map(|(_, found)| found)
    }

    /// Runs one measurement of one that is here; `None` if the subject is none of them.
    pub(crate) fn measure(
        &self,
        entry: &Entry,
        testbed: &Testbed,
        cores: Cores,
    ) -> Option<Result<Outcome, RunError>> {
        let found = self.get(entry.subject)?;
        Some(run::measure(found, entry, testbed, cores))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_tool_cannot_do_is_refused_with_its_limit() {
        let refused = |peer: Peer, kind, bytes| peer.refuses(&Workload::of(kind, bytes));
        assert_eq!(refused(Peer::Ucx, Kind::Stream, 1 << 20), None);
        assert_eq!(refused(Peer::Libfabric, Kind::Pingpong, 64), None);
        for (peer, kind, bytes, word) in [
            (Peer::Libfabric, Kind::Stream, 64, "pingpongs alone"),
            (Peer::Iperf3, Kind::Pingpong, 64, "streams alone"),
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
    fn each_that_is_missing_has_a_line_with_what_to_install() {
        let all = [
            Subject::Aeron,
            Subject::Ucx,
            Subject::Aeron,
            Subject::Dipole,
        ];
        let folder = tempfile::tempdir().expect("a folder");
        let installed = Installed::find(all, folder.path()).expect("a folder to write in");
        assert!(installed.has(Subject::Dipole));
        let here =
            usize::from(installed.has(Subject::Aeron)) + usize::from(installed.has(Subject::Ucx));
        assert_eq!(here + installed.absent.len(), 2, "{installed:?}");
        for line in &installed.absent {
            assert!(
                line.contains("is left out: ") && line.contains("Debian has "),
                "{line}"
            );
        }
    }
}

//! Programs with a stand-in for libpmix: the versions whose data structures are known, and faults that
//! real servers do not show on demand.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use dipole_testbed::c_programs;

use super::{all_to_all, assert_all_right, clean};

/// Ranks of the jobs here.
const RANKS: usize = 3;

/// A folder with the stand-in, under the name of the library.
pub(crate) struct StandIn {
    folder: tempfile::TempDir,
}

impl StandIn {
    pub(crate) fn new() -> StandIn {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let source = source.join("tests/launchers/pmix_stand_in.c");
        let library = folder.path().join("libpmix.so.2");
        let options = [&c_programs::STRICT[..], &["-std=gnu11", "-shared", "-fPIC"]].concat();
        c_programs::compile("cc", &source, &library, &options, &[]);
        StandIn { folder }
    }

    /// A folder for the files of a job.
    pub(crate) fn job(&self, name: &str) -> PathBuf {
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder).expect("a folder");
        folder
    }

    /// A rank of a job, with the variables that a launcher with PMIx sets.
    fn rank(&self, job: &Path, rank: usize, version: &str, fault: &str) -> Command {
        let mut command = clean(all_to_all());
        command
            .env("STAND_IN_VERSION", version)
            .env("STAND_IN_FAULT", fault);
        self.set_variables(&mut command, job, (rank, RANKS));
        command
    }

    /// Makes a command a rank of a job of this size.
    pub(crate) fn set_variables(
        &self,
        command: &mut Command,
        job: &Path,
        (rank, size): (usize, usize),
    ) {
        let name = job.file_name().expect("a name").to_string_lossy();
        command
            .env("PMIX_RANK", rank.to_string())
            .env("PMIX_NAMESPACE", format!("{name}-{}", std::process::id()))
            .env("PMIX_SERVER_URI4", "server.0;tcp4://127.0.0.1:1")
            .env("PMIX_SERVER_TMPDIR", job)
            .env("LD_LIBRARY_PATH", self.folder.path())
            .env("DIPOLE_RUNTIME_DIR", job.join("registry"))
            .env("STAND_IN_FOLDER", job)
            .env("STAND_IN_SIZE", size.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }

    fn run(&self, job: &Path, version: &str) -> Output {
        let ranks: Vec<Child> = (0..RANKS)
            .map(|rank| self.rank(job, rank, version, "").spawn().expect("a rank"))
            .collect();
        let outputs = ranks
            .into_iter()
            .map(|rank| rank.wait_with_output().expect("its end"));
        let all = outputs.reduce(|mut all, output| {
            assert!(output.status.success(), "{output:?}");
            all.stdout.extend(&output.stdout);
            all
        });
        all.expect("a rank")
    }

    /// The error of a rank that cannot use the library or the server.
    fn error(&self, name: &str, version: &str, fault: &str) -> String {
        let job = self.job(name);
        let output = self.rank(&job, 1, version, fault).output();
        let output = output.expect("a rank");
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

#[test]
fn all_versions_with_the_same_structures_are_used_and_others_are_refused() {
    let stand_in = StandIn::new();
    for version in [
        "3.0.0",
        "3.2.5",
        "4.2.2rc2",
        "OpenPMIx 5.0.11 (PMIx Standard: 5.1)",
        "OpenPMIx 6.1.0, repo rev: v6.1.0",
    ] {
        let job = stand_in.job(&format!("job {version}"));
        assert_all_right(&stand_in.run(&job, version), RANKS);
        // Launchers take a rank for failed that ends without this.
        assert!((0..RANKS).all(|rank| job.join(format!("finalized-{rank}")).exists()));
    }
    for version in ["2.2.5", "7.0.0", "", "unknown"] {
        let error = stand_in.error(&format!("refused {version}"), version, "");
        let expected = format!("Version {{ found: {version:?} }}");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn a_later_program_of_the_ranks_finds_the_nodes_without_the_server() {
    let stand_in = StandIn::new();
    let job = stand_in.job("twice");
    assert_all_right(&stand_in.run(&job, "4.2.2"), RANKS);
    // Versions are checked when the library is loaded.
    assert_all_right(&stand_in.run(&job, "1.0.0"), RANKS);
}

#[test]
fn errors_of_the_library_and_of_the_server_are_reported() {
    let stand_in = StandIn::new();
    for (fault, expected) in [
        (
            "no server",
            "cause: \"PMIx_Init returned UNREACHABLE (-25)\"",
        ),
        (
            "alone",
            "cause: \"libpmix takes this process for rank 0 of `singleton.7`, not for rank 1\"",
        ),
        (
            "wrong type",
            "Unexpected { request: \"PMIx_Get\", line: \"pmix.job.size\"",
        ),
    ] {
        let error = stand_in.error(fault, "4.2.2", fault);
        assert!(error.contains(expected), "{fault}: {error}");
    }
}

#[test]
fn a_rank_without_data_is_reported() {
    let stand_in = StandIn::new();
    let job = stand_in.job("no-data");
    let ranks: Vec<Child> = (0..RANKS)
        .map(|rank| {
            let fault = if rank == 2 { "no data" } else { "" };
            let mut command = stand_in.rank(&job, rank, "4.2.2", fault);
            command.spawn().expect("a rank")
        })
        .collect();
    for rank in ranks {
        let output = rank.wait_with_output().expect("its end");
        let error = String::from_utf8_lossy(&output.stderr);
        let expected = "BusinessCard { rank: 2, found: \"NOT-FOUND (-46)\"";
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn variables_of_two_launchers_that_disagree_are_refused() {
    let stand_in = StandIn::new();
    let job = stand_in.job("sizes");
    let output = stand_in
        .rank(&job, 1, "4.2.2", "other size")
        .env("OMPI_COMM_WORLD_RANK", "1")
        .env("OMPI_COMM_WORLD_SIZE", "3")
        .output()
        .expect("a rank");
    let error = String::from_utf8_lossy(&output.stderr);
    let expected = "its PMIx service counts 99 ranks for rank 1 while its variables count 3";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_server_that_does_not_reply_is_reported() {
    let stand_in = StandIn::new();
    let calls = [("hangs in init", "PMIx_Init"), ("hangs in get", "PMIx_Get")];
    let ranks = calls.map(|(fault, call)| {
        let job = stand_in.job(fault);
        let mut command = stand_in.rank(&job, 1, "4.2.2", fault);
        (call, command.spawn().expect("a rank"))
    });
    for (call, rank) in ranks {
        let output = rank.wait_with_output().expect("its end");
        let error = String::from_utf8_lossy(&output.stderr);
        let expected = format!("Silent {{ request: \"{call}\", seconds: 30 }}");
        assert!(error.contains(&expected), "{error}");
    }
}

#[test]
fn a_library_that_is_missing_or_is_another_one_is_reported() {
    let stand_in = StandIn::new();
    let job = stand_in.job("library");
    std::fs::write(stand_in.folder.path().join("libpmix.so.2"), "text").expect("a file");
    let output = stand_in.rank(&job, 0, "4.2.2", "").output();
    let output = output.expect("a rank");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("Library { cause: \""), "{error}");
    assert!(error.contains("libpmix.so.2: "), "{error}");
}

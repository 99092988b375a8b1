//! An MPI job over the libfabric provider, a BSP job and a viewer that uses TCP exchange arrays by
//! name (`examples/coupling`), on one node and on two. The result is compared with that of one
//! process.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::run;
use dipole_testbed::Testbed;

/// Time limit of the demonstration.
const LIMIT: Duration = Duration::from_secs(120);
/// Numbers of MPI and BSP ranks, chosen so that the distributions differ.
const JOBS: [(u32, u32); 2] = [(2, 3), (3, 2)];

/// A process that is killed when the test ends.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Running {
        let started = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        Running(started.unwrap_or_else(|cause| panic!("{command:?}: {cause}")))
    }

    /// The first line of its output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let out = self.0.stdout.as_mut().expect("it is piped");
        while !line.ends_with('\n') {
            let mut byte = [0];
            assert_eq!(out.read(&mut byte).expect("a pipe"), 1, "it ended");
            line.push(char::from(byte[0]));
        }
        line.trim_end().to_owned()
    }

    /// Its output, after it has exited with success.
    fn finish(mut self, what: &str) -> String {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.0.try_wait().expect("our own process") {
                break status;
            }
            assert!(began.elapsed() < LIMIT, "{what} does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{what}: {status}");
        let out = self.0.stdout.take().expect("it is piped");
        let lines = BufReader::new(out).lines();
        lines.map(|line| line.expect("text") + "\n").collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ended_already = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Programs compiled against the installation.
struct Programs {
    folder: tempfile::TempDir,
    installed: PathBuf,
}

impl Programs {
    /// Returns `None` without MPI and prints that the test is skipped.
    fn new() -> Option<Programs> {
        for program in ["mpicc.openmpi", "mpirun.openmpi"] {
            if Command::new(program).arg("--version").output().is_err() {
                let required = std::env::var("DIPOLE_REQUIRE_LAUNCHERS");
                assert!(required != Ok("1".into()), "{program} is missing");
                eprintln!("SKIPPED: {program} is not installed (Debian: libopenmpi-dev)");
                return None;
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut install = Command::new(env!("CARGO_BIN_EXE_xtask"));
        install.args(["install", "--prefix", "/dipole", "--profile", "dev"]);
        run(install.env("DESTDIR", folder.path()));
        let installed = folder.path().join("dipole");
        let programs = Programs { folder, installed };
        programs.compile("alone", "cc", &[]);
        programs.compile("board", "cc", &["-ldipole"]);
        programs.compile("columns", "cc", &["-lbsp", "-ldipole"]);
        programs.compile("heat", "mpicc.openmpi", &["-ldipole"]);
        Some(programs)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn compile(&self, name: &str, compiler: &str, libraries: &[&str]) {
        let lib = self.installed.join("lib");
        run(Command::new(compiler)
            .args(["-O1", "-Wall", "-Wextra", "-Werror", "-I"])
            .arg(self.installed.join("include"))
            .arg(source(&format!("{name}.c")))
            .arg("-o")
            .arg(self.path(name))
            .arg("-L")
            .arg(&lib)
            .arg(format!("-Wl,-rpath,{}", lib.display()))
            .args(libraries));
    }
}

fn source(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join("examples/coupling").join(name)
}

/// A command on a node of the testbed, or on this machine.
fn on(programs: &Programs, testbed: Option<&Testbed>, node: u32, program: &Path) -> Command {
    let mut command = match testbed {
        Some(testbed) => testbed.command(node, program),
        None => {
            let mut command = Command::new(program);
            for (name, _) in std::env::vars_os() {
                if name.to_string_lossy().starts_with("DIPOLE_") {
                    command.env_remove(name);
                }
            }
            command.env("DIPOLE_RUNTIME_DIR", programs.path("registry"));
            command.env("DIPOLE_NID", "1");
            command
        }
    };
    // A busy machine responds late, which is not the subject of this test.
    command.env("DIPOLE_PEER_TIMEOUT_MS", "60000");
    command
}

/// The ranks of the BSP job, started by `dipole run`.
fn columns(
    programs: &Programs,
    testbed: Option<&Testbed>,
    job: u32,
    count: u32,
    words: &[&str],
) -> Vec<Running> {
    let node = if testbed.is_some() { 2 } else { 1 };
    let nodes = vec![node.to_string(); count as usize].join(",");
    let start = |rank: u32| {
        let mut command = on(programs, testbed, node, &programs.path("columns"));
        command
            .args(words)
            .env("DIPOLE_RANK", rank.to_string())
            .env("DIPOLE_SIZE", count.to_string())
            .env("DIPOLE_JOB", job.to_string())
            .env("DIPOLE_JOB_BASE", (4_000_000_000 + job * 16).to_string())
            .env("DIPOLE_RANKS", &nodes);
        Running::start(command)
    };
    (0..count).map(start).collect()
}

fn heat(programs: &Programs, testbed: Option<&Testbed>, count: u32) -> Running {
    let mut command = on(programs, testbed, 1, Path::new("mpirun.openmpi"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("OMPI_") || text.starts_with("PMIX_") {
            command.env_remove(name);
        }
    }
    command
        .args(["--allow-run-as-root", "--oversubscribe"])
        .args(["--bind-to", "none", "-n", &count.to_string()])
        .arg(programs.path("heat"))
        .arg("1:600")
        .env("FI_PROVIDER_PATH", programs.installed.join("lib/libfabric"))
        .env("OMPI_MCA_pml", "cm")
        .env("OMPI_MCA_mtl", "ofi")
        .env("OMPI_MCA_mtl_ofi_provider_include", "dipole");
    Running::start(command)
}

fn coupled(programs: &Programs, testbed: Option<&Testbed>, number: u32) {
    let (mpi, bsp) = JOBS[number as usize % JOBS.len()];
    let pictures = programs.path(&format!("pictures{}{number}", testbed.is_some()));
    fs::create_dir(&pictures).expect("a folder");
    let address = testbed.map_or("127.0.0.1".to_owned(), |testbed| {
        testbed.node(2).addresses[0].to_string()
    });
    // The viewer runs outside the namespaces, where the board is not reachable.
    let place = if testbed.is_some() { 2 } else { 1 };
    let mut viewer = on(programs, testbed, place, Path::new("python3"));
    viewer.arg(source("viewer.py")).arg(&pictures).arg(&address);
    let mut viewer = Running::start(viewer);
    let at = format!("{address}:{}", viewer.line());

    let mut board = on(programs, testbed, 1, &programs.path("board"));
    board.args(["600", "700", &at]);
    let mut board = Running::start(board);
    assert_eq!(board.line(), "ready");

    let takers = mpi.to_string();
    let words = ["1:600", "1:700", &at, &takers];
    let ranks = columns(programs, testbed, number + 1, bsp, &words);
    heat(programs, testbed, mpi).finish("the MPI job");
    for rank in ranks {
        rank.finish("the BSP job");
    }
    board.finish("the board");
    let seen = viewer.finish("the viewer");
    assert_eq!(seen, run(&mut Command::new(programs.path("alone"))));
    let pictures = fs::read_dir(pictures).expect("a folder").count();
    assert_eq!(pictures, seen.lines().count());
}

#[test]
fn jobs_of_mpi_and_bsp_and_a_viewer_exchange_arrays_by_name() {
    let Some(programs) = Programs::new() else {
        return;
    };
    for number in 0..2 {
        coupled(&programs, None, number);
    }
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: on two nodes: {why}");
        return;
    }
    let testbed = Testbed::builder().nodes(2).build();
    let testbed = testbed.expect("a testbed can be made");
    for number in 0..2 {
        coupled(&programs, Some(&testbed), number);
    }
}

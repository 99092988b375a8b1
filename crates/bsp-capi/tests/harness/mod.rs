//! Compiles programs with the header and the library of this build, and runs them as jobs.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of each test file, of which each uses only a part"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dipole_testbed::Testbed;
use dipole_testbed::c_programs::{
    Finished, Process, STRICT, clean_command, compile, link_library, link_options,
};
#[allow(
    unused_imports,
    reason = "every test file uses only a part of this module"
)]
pub use dipole_testbed::c_programs::{built_library, run};

/// A job that takes longer is considered to hang.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a rank may continue after another one has failed.
const PROMPT: Duration = Duration::from_secs(10);

/// The directory of the crate.
pub fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    crate_dir().join("../..")
}

/// The path of a test program.
pub fn source(name: &str) -> PathBuf {
    crate_dir().join("tests/c").join(name)
}

/// True if a program is installed; otherwise says that the test is skipped. Its package has the same
/// name.
pub fn is_installed(program: &str) -> bool {
    let is_installed = Command::new(program).arg("--version").output().is_ok();
    if !is_installed {
        eprintln!("SKIPPED: {program} is not installed (package {program})");
    }
    is_installed
}

/// A directory with programs, the library under its installed names, and a registry.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        let dir = tempfile::tempdir().expect("a folder for the programs");
        link_library(dir.path(), "libbsp.so");
        Bench { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Compiles a C program, without warnings.
    pub fn compile(&self, source: &Path, options: &[&str]) -> PathBuf {
        let name = source.file_stem().expect("a file");
        self.compile_with(
            "cc",
            name.as_ref(),
            source,
            &[&STRICT[..], options].concat(),
        )
    }

    /// Compiles with any compiler.
    pub fn compile_with(
        &self,
        compiler: &str,
        name: &Path,
        source: &Path,
        options: &[&str],
    ) -> PathBuf {
        let program = self.path().join(name);
        let folder = format!("-I{}", self.path().display());
        let options = [&["-O1", "-pthread", &folder][..], options].concat();
        let [folder, run_path, library] = &link_options(self.path(), "bsp");
        let libraries = [folder, run_path, library, "-lm"];
        compile(compiler, source, &program, &options, &libraries);
        program
    }

    /// A job of a program on one node.
    pub fn job(&self, program: &Path, size: u32) -> Job<'_> {
        Job {
            bench: self,
            program: program.to_owned(),
            nodes: vec![1; size as usize],
            hosts: None,
            testbed: None,
            arguments: Vec::new(),
            variables: Vec::new(),
            prompt: PROMPT,
        }
    }
}

/// Ranks that are started as by `dipole run`, without the environment of the test.
pub struct Job<'a> {
    bench: &'a Bench,
    program: PathBuf,
    nodes: Vec<u32>,
    hosts: Option<PathBuf>,
    testbed: Option<&'a Testbed>,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    prompt: Duration,
}

/// The results of a job.
pub struct Done {
    pub ranks: Vec<Finished>,
}

impl<'a> Job<'a> {
    pub fn argument(mut self, argument: &str) -> Job<'a> {
        self.arguments.push(argument.to_owned());
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Job<'a> {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Puts the ranks on nodes with loopback addresses; `ranks` gives the number on each node.
    pub fn nodes(mut self, ranks: &[u32]) -> Job<'a> {
        static PORT: AtomicU64 = AtomicU64::new(0);
        // The process ID separates the ports of concurrent test processes.
        let first = 20_000
            + (u64::from(std::process::id()) * 16 + PORT.fetch_add(4, Ordering::Relaxed)) % 12_000;
        let mut hosts = String::new();
        self.nodes.clear();
        for (node, count) in (1..).zip(ranks) {
            let port = first + u64::from(node);
            hosts += &format!("{node} 127.0.0.{node} port={port}\n");
            self.nodes
                .extend(std::iter::repeat_n(node, *count as usize));
        }
        let path = self.bench.path().join(format!("hosts.{first}"));
        std::fs::write(&path, hosts).expect("a hosts file");
        self.hosts = Some(path);
        self
    }

    /// Puts the ranks on nodes of a testbed; `ranks` gives the number on each node.
    pub fn testbed(mut self, testbed: &'a Testbed, ranks: &[u32]) -> Job<'a> {
        self.testbed = Some(testbed);
        self.nodes = (1..)
            .zip(ranks)
            .flat_map(|(node, count)| std::iter::repeat_n(node, *count as usize))
            .collect();
        self
    }

    /// Kills the other ranks soon after one has failed, as a launcher does.
    pub fn killed_by_the_launcher(mut self) -> Job<'a> {
        self.prompt = Duration::from_millis(500);
        self
    }

    fn command(&self, rank: usize, job: u64) -> Command {
        let node = self.nodes[rank];
        let mut command = match self.testbed {
            // The testbed sets the address of the node.
            Some(testbed) => testbed.command(node, &self.program),
            None => {
                let mut command = clean_command(&self.program, &["DIPOLE_"]);
                let runtime = self.bench.path().join(format!("registry.{node}"));
                command.env("DIPOLE_RUNTIME_DIR", runtime);
                command.env("DIPOLE_NID", node.to_string());
                command
            }
        };
        let ranks: Vec<_> = self.nodes.iter().map(ToString::to_string).collect();
        command
            .args(&self.arguments)
            .env("DIPOLE_RANK", rank.to_string())
            .env("DIPOLE_SIZE", self.nodes.len().to_string())
            .env("DIPOLE_JOB", job.to_string())
            .env("DIPOLE_JOB_BASE", (4_000_000_000 + job * 16).to_string())
            .env("DIPOLE_RANKS", ranks.join(","))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        if let Some(hosts) = &self.hosts {
            command.env("DIPOLE_HOSTS", hosts);
        }
        command
    }

    /// Runs the job to its end.
    pub fn run(self) -> Done {
        static JOB: AtomicU64 = AtomicU64::new(1);
        let job = JOB.fetch_add(1, Ordering::Relaxed);
        let mut ranks: Vec<Process> = (0..self.nodes.len())
            .map(|rank| Process::start(&mut self.command(rank, job)))
            .collect();
        let began = Instant::now();
        let mut failed: Option<Instant> = None;
        loop {
            for rank in &mut ranks {
                if rank.poll().is_some_and(|status| !status.success()) {
                    failed.get_or_insert_with(Instant::now);
                }
            }
            if ranks.iter_mut().all(|rank| rank.poll().is_some()) {
                break;
            }
            let late = failed.is_some_and(|since| since.elapsed() > self.prompt);
            if late || began.elapsed() > LIMIT {
                ranks.iter_mut().for_each(Process::kill);
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        Done {
            ranks: ranks.into_iter().map(Process::finish).collect(),
        }
    }
}

impl Done {
    /// The output of all ranks, which must have succeeded.
    pub fn output(&self) -> String {
        self.ranks
            .iter()
            .enumerate()
            .map(|(number, rank)| {
                assert!(
                    rank.status.success() && !rank.was_killed,
                    "rank {number}: {}\n{self:?}",
                    rank.status
                );
                rank.out.as_str()
            })
            .collect()
    }

    /// Error messages of the library on all ranks.
    pub fn messages(&self) -> Vec<&str> {
        let lines = self.ranks.iter().flat_map(|rank| rank.err.lines());
        lines.filter(|line| line.starts_with("bsp: ")).collect()
    }
}

impl std::fmt::Debug for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, rank) in self.ranks.iter().enumerate() {
            let ended = if rank.was_killed {
                ", killed by the test"
            } else {
                ""
            };
            writeln!(
                f,
                "rank {number}: {}{ended}\n{}{}",
                rank.status, rank.out, rank.err
            )?;
        }
        Ok(())
    }
}

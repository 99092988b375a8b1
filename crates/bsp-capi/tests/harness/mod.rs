//! Compiles programs with the header and the library of this build, and runs them as jobs.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of each test file, of which each uses only a part"
)]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dipole_testbed::Testbed;

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

/// A directory with programs, the library under its installed names, and a registry.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        let dir = tempfile::tempdir().expect("a folder for the programs");
        let library = built("libbsp.so");
        for name in ["libbsp.so", "libbsp.so.0"] {
            std::os::unix::fs::symlink(&library, dir.path().join(name)).expect("a link");
        }
        Bench { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Compiles a C program, without warnings.
    pub fn compile(&self, source: &Path, options: &[&str]) -> PathBuf {
        let name = source.file_stem().expect("a file");
        let strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];
        self.compile_with("cc", name.as_ref(), source, &[&strict, options].concat())
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
        run(Command::new(compiler)
            .args(["-O1", "-pthread"])
            .args(options)
            .arg("-I")
            .arg(root().join("include"))
            .arg("-I")
            .arg(self.path())
            .arg(source)
            .arg("-L")
            .arg(self.path())
            .arg(format!("-Wl,-rpath,{}", self.path().display()))
            .args(["-lbsp", "-lm", "-o"])
            .arg(&program));
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
    pub ranks: Vec<Rank>,
}

/// The results of a rank.
pub struct Rank {
    pub out: String,
    pub err: String,
    pub status: ExitStatus,
    /// The test had to kill it after another one had failed.
    pub was_killed: bool,
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
                let mut command = Command::new(&self.program);
                for (name, _) in std::env::vars_os() {
                    if name.to_string_lossy().starts_with("DIPOLE_") {
                        command.env_remove(name);
                    }
                }
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
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(hosts) = &self.hosts {
            command.env("DIPOLE_HOSTS", hosts);
        }
        command
    }

    /// Runs the job to its end.
    pub fn run(self) -> Done {
        static JOB: AtomicU64 = AtomicU64::new(1);
        let job = JOB.fetch_add(1, Ordering::Relaxed);
        let mut ranks: Vec<Running> = (0..self.nodes.len())
            .map(|rank| Running::start(&mut self.command(rank, job)))
            .collect();
        let began = Instant::now();
        let mut failed: Option<Instant> = None;
        loop {
            for rank in &mut ranks {
                if rank.has_failed() {
                    failed.get_or_insert_with(Instant::now);
                }
            }
            if ranks.iter().all(|rank| rank.status.is_some()) {
                break;
            }
            let late = failed.is_some_and(|since| since.elapsed() > self.prompt);
            if late || began.elapsed() > LIMIT {
                ranks.iter_mut().for_each(Running::kill);
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        Done {
            ranks: ranks.into_iter().map(Running::finish).collect(),
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

/// A process that is killed when its test ends.
struct Running {
    child: Child,
    out: Option<JoinHandle<String>>,
    err: Option<JoinHandle<String>>,
    status: Option<ExitStatus>,
    was_killed: bool,
}

fn reader(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _end = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Running {
    fn start(command: &mut Command) -> Running {
        let mut child = command.spawn().expect("the program starts");
        Running {
            out: child.stdout.take().map(reader),
            err: child.stderr.take().map(reader),
            child,
            status: None,
            was_killed: false,
        }
    }

    fn has_failed(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("our own process");
        }
        self.status.is_some_and(|status| !status.success())
    }

    fn kill(&mut self) {
        if self.status.is_none() {
            let _killed = self.child.kill();
            self.was_killed = true;
            self.status = self.child.wait().ok();
        }
    }

    fn finish(mut self) -> Rank {
        let text = |thread: Option<JoinHandle<String>>| {
            thread.and_then(|it| it.join().ok()).unwrap_or_default()
        };
        Rank {
            out: text(self.out.take()),
            err: text(self.err.take()),
            status: self.status.expect("it has ended"),
            was_killed: self.was_killed,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a command, which must succeed. Returns its output.
pub fn run(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{stdout}\n{stderr}",
        output.status
    );
    stdout
}

/// A library that cargo has built next to this test.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let deps = test.parent().expect("it lies in deps");
    let library = deps.join(name);
    if !library.exists() {
        let profile = deps.parent().expect("deps lies in the profile's folder");
        return profile.join(name);
    }
    library
}

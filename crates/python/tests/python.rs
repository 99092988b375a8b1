//! The package in a Python interpreter: runs the unit tests in this folder.

#![allow(missing_docs, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use dipole_testbed::c_programs::built_library;
use dipole_testbed::{built, isolated_command};

/// The oldest version whose stable ABI has the buffer protocol.
const OLDEST: (u32, u32) = (3, 11);

/// An interpreter that can import the module; `None` with a message if no such version is installed.
fn interpreter() -> Option<PathBuf> {
    let ask = "import sys; print(sys.executable, *sys.version_info[:2], sep='\\n')";
    for name in ["/usr/bin/python3", "python3"] {
        let Ok(said) = Command::new(name).args(["-c", ask]).output() else {
            continue;
        };
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let mut lines = said.lines();
        let path = lines.next().map(PathBuf::from);
        let mut number = || lines.next()?.parse().ok();
        if number().zip(number()).is_some_and(|found| found >= OLDEST) {
            return path;
        }
    }
    let (major, minor) = OLDEST;
    eprintln!("SKIPPED: Python {major}.{minor} or newer is not installed");
    None
}

/// Packages for Dask, arrays, notebooks, other event loops, and the type checker.
const PACKAGES: &[&str] = &[
    "anyio",
    "cloudpickle",
    "distributed",
    "ipykernel",
    "joblib",
    "mypy",
    "nbconvert",
    "numpy",
    "pandas",
    "trio",
    "typing_extensions",
    "uvloop",
];

/// An interpreter that also has [`PACKAGES`]; `None` with a message if they cannot be installed.
/// The environment is kept for later runs.
fn interpreter_with_packages() -> Option<PathBuf> {
    // Several tests use the environment, and one of them makes it.
    static MAKING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let python = interpreter()?;
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let inside = folder.join("bin/python");
    let complete = folder.join(PACKAGES.join(","));
    if complete.exists() {
        return Some(inside);
    }
    let succeeds = |command: &mut Command| {
        let ran = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        ran.is_ok_and(|status| status.success())
    };
    let make = ["-m", "venv", "--clear"];
    // Whatever is imported is compiled then; most of it is never imported.
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--retries",
        "0",
    ];
    let is_made = succeeds(Command::new(python).args(make).arg(&folder))
        && succeeds(Command::new(&inside).args(install).args(PACKAGES));
    if !is_made {
        let missing = format!("cannot install {} with pip", PACKAGES.join(", "));
        let required = std::env::var_os("DIPOLE_REQUIRE_WHEELS");
        assert!(
            required.is_none_or(|value| value != "1"),
            "DIPOLE_REQUIRE_WHEELS is set but {missing}"
        );
        eprintln!("SKIPPED: {missing}");
        return None;
    }
    std::fs::write(complete, "").expect("a file");
    Some(inside)
}

/// A folder with the package `dipole` and its native module.
fn package() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let package = folder.path().join("dipole");
    std::fs::create_dir(&package).expect("a folder");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("dipole");
    for entry in std::fs::read_dir(sources).expect("the package") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            std::fs::copy(&path, package.join(path.file_name().expect("a name"))).expect("a copy");
        }
    }
    let info = folder.path().join("dipole-0.dist-info");
    std::fs::create_dir(&info).expect("a folder");
    let entry = "[distributed.comm.backends]\ndipole = dipole._dask:Backend\n";
    std::fs::write(info.join("entry_points.txt"), entry).expect("a file");
    let module = built_library("lib_dipole.so");
    std::fs::copy(module, package.join("_dipole.abi3.so")).expect("a copy");
    folder
}

/// The search path with the folder of a program in front.
fn path_with(program: &Path) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folder = program.parent().map(Path::to_owned);
    let folders = folder.into_iter().chain(std::env::split_paths(&path));
    std::env::join_paths(folders).expect("folders of a path")
}

/// A command with the package `dipole` and the program of that name.
fn with_dipole(program: &Path, package: &Path) -> Command {
    let mut command = isolated_command(program);
    command
        .env("PYTHONPATH", package)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("DIPOLE_NID", "1")
        .env("DIPOLE_RUNTIME_DIR", package.join("runtime"))
        .env("PATH", path_with(&built::program("dipole")));
    command
}

/// Runs a command that must succeed; returns its output.
fn run(command: &mut Command) -> String {
    let ran = command.output().expect("it starts");
    let output = String::from_utf8_lossy(&ran.stdout).into_owned();
    println!("{}", String::from_utf8_lossy(&ran.stderr));
    assert!(
        ran.status.success(),
        "{command:?}: {}\n{output}",
        ran.status
    );
    output
}

fn passes(test: &str) {
    if let Some(python) = interpreter() {
        passes_in(&python, test);
    }
}

fn passes_in(python: &Path, test: &str) {
    let package = package();
    let mut command = with_dipole(python, package.path());
    command.args(["-m", "unittest", "-v", test]);
    run(command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")));
}

#[test]
fn messages() {
    passes("test_messages");
}

#[test]
fn waiting() {
    passes("test_waiting");
}

#[test]
fn queues() {
    passes("test_queue");
}

#[test]
fn services() {
    passes("test_services");
}

#[test]
fn supersteps() {
    passes("test_bsp");
}

#[test]
fn clusters() {
    passes("test_cluster");
}

#[test]
fn tools() {
    if let Some(python) = interpreter_with_packages().or_else(interpreter) {
        passes_in(&python, "test_tools");
    }
}

#[test]
fn event_loops() {
    if let Some(python) = interpreter_with_packages() {
        passes_in(&python, "test_loops");
    }
}

#[test]
fn distributed_arrays() {
    if let Some(python) = interpreter_with_packages() {
        passes_in(&python, "test_distributed");
    }
}

#[test]
fn dask() {
    if let Some(python) = interpreter_with_packages() {
        passes_in(&python, "test_dask");
    }
}

fn examples_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/python")
}

#[test]
fn types_of_the_package_and_of_examples() {
    let Some(python) = interpreter_with_packages() else {
        return;
    };
    let mut mypy = isolated_command(&python);
    // NumPy declares its arrays as buffers for Python 3.12 and newer.
    mypy.args(["-m", "mypy", "--strict", "--python-version", "3.12"]);
    mypy.arg("--cache-dir");
    mypy.arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("mypy-cache"));
    mypy.env("MYPYPATH", env!("CARGO_MANIFEST_DIR"));
    mypy.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("dipole"));
    for entry in std::fs::read_dir(examples_folder()).expect("examples") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "py") {
            mypy.arg(path);
        }
    }
    run(&mut mypy);
}

#[test]
fn tutorial() {
    let Some(python) = interpreter_with_packages() else {
        return;
    };
    let package = package();
    let mut tutorial = with_dipole(&python, package.path());
    tutorial.args([
        "-m",
        "nbconvert",
        "--to",
        "notebook",
        "--execute",
        "--stdout",
    ]);
    // Settings of the user are not read.
    for name in [
        "JUPYTER_CONFIG_DIR",
        "JUPYTER_DATA_DIR",
        "JUPYTER_RUNTIME_DIR",
        "IPYTHONDIR",
    ] {
        tutorial.env(name, package.path().join(name));
    }
    let output = run(tutorial.arg(examples_folder().join("tutorial.ipynb")));
    for shown in [
        "in rank 1 of the cluster",
        "text/html",
        "<iframe",
        "the end",
    ] {
        assert!(output.contains(shown), "{shown}: {output}");
    }
}

#[test]
fn examples() {
    let Some(python) = interpreter_with_packages().or_else(interpreter) else {
        return;
    };
    let package = package();
    let folder = examples_folder();
    let has_numpy = Command::new(&python).args(["-c", "import numpy"]).output();
    let has_numpy = has_numpy.is_ok_and(|output| output.status.success());
    for (name, expected) in [
        ("work_queue.py", "100 tasks done by 2 workers"),
        ("parameter_server.py", "parameters: [250, 250,"),
        ("k_means.py", "[["),
        ("halo_exchange.py", "50 steps on 3 strips give"),
        ("matrix_product.py", "two 180 x 180 matrices is correct"),
    ] {
        let needs_numpy = !["work_queue.py", "parameter_server.py"].contains(&name);
        if needs_numpy && !has_numpy {
            eprintln!("SKIPPED: {name}: NumPy is not installed");
            continue;
        }
        let mut job = with_dipole(&built::program("dipole"), package.path());
        job.args(["run", "-n", "3"]).arg(&python);
        let output = run(job.arg(folder.join(name)));
        assert!(output.contains(expected), "{output}");
    }
}

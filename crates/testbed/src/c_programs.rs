//! C programs in tests: compiled without warnings, run as processes with a time limit.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Options that turn every warning into an error.
pub const STRICT: [&str; 5] = ["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
/// How often processes are checked for their end.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long a process may take to end after SIGTERM.
const TERMINATION_TIME: Duration = Duration::from_secs(10);

/// A library that cargo has built with the running test.
///
/// # Panics
/// If this process is not a test that cargo has built.
#[must_use]
pub fn built_library(file: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    let deps = test.parent().expect("tests are in target/PROFILE/deps");
    let library = deps.join(file);
    match library.exists() {
        true => library,
        false => deps.with_file_name(file),
    }
}

/// Links a built library into a folder under the names that the linker and the loader look for.
///
/// # Panics
/// If the folder is not writable.
pub fn link_library(folder: &Path, file: &str) {
    let library = built_library(file);
    for name in [file.to_owned(), format!("{file}.0")] {
        std::os::unix::fs::symlink(&library, folder.join(name)).expect("a writable folder");
    }
}

/// The folder of the public headers.
#[must_use]
pub fn include_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include")
}

/// Compiles a program with `cc` or another compiler. `libraries` come after the source.
///
/// # Panics
/// If the compiler fails; the message has its output.
pub fn compile(
    compiler: impl AsRef<OsStr>,
    source: &Path,
    program: &Path,
    options: &[&str],
    libraries: &[&str],
) {
    let mut command = Command::new(compiler);
    command.args(options).arg("-I").arg(include_dir());
    command.arg(source).arg("-o").arg(program).args(libraries);
    run(&mut command);
}

/// Linker options for a library in a folder, which is also searched at run time.
#[must_use]
pub fn link_options(folder: &Path, library: &str) -> [String; 3] {
    let folder = folder.display();
    [
        format!("-L{folder}"),
        format!("-Wl,-rpath,{folder}"),
        format!("-l{library}"),
    ]
}

/// A command without the environment variables that begin with one of these prefixes.
pub fn clean_command(program: impl AsRef<OsStr>, prefixes: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if prefixes.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
    command
}

/// Runs a command that must succeed; returns its standard output.
///
/// # Panics
/// If the command fails; the message has its output.
pub fn run(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    successful_output(&format!("{command:?}"), &output)
}

/// The standard output of a command that must have succeeded.
///
/// # Panics
/// If the command failed; the message has its output.
#[must_use]
pub fn successful_output(command: &str, output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let err = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    assert!(status.success(), "{command}: {status}\n{out}\n{err}");
    out
}

/// A process that a test has started. It is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    out: Option<JoinHandle<String>>,
    err: Option<JoinHandle<String>>,
    status: Option<ExitStatus>,
    was_killed: bool,
}

/// The result of a process.
#[derive(Debug)]
pub struct Finished {
    /// Text on standard output.
    pub out: String,
    /// Text on standard error.
    pub err: String,
    /// Exit status of the process.
    pub status: ExitStatus,
    /// The test killed it.
    pub was_killed: bool,
}

impl Process {
    /// Starts a command and reads its output in the background.
    ///
    /// # Panics
    /// If the command does not start.
    pub fn start(command: &mut Command) -> Process {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn();
        let mut child = child.unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
        Process {
            out: child.stdout.take().map(read_all),
            err: child.stderr.take().map(read_all),
            child,
            status: None,
            was_killed: false,
        }
    }

    /// The exit status, if the process has ended.
    pub fn poll(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Kills the process if it is still running.
    pub fn kill(&mut self) {
        if self.poll().is_none() {
            let _ended_meanwhile = self.child.kill();
            self.was_killed = true;
            self.status = self.child.wait().ok();
        }
    }

    /// Waits until the process ends. After `limit` it gets SIGTERM, so that a launcher can end its
    /// ranks, and 10 s later SIGKILL.
    #[must_use]
    pub fn wait(mut self, limit: Duration) -> Finished {
        if !self.ends_within(limit) {
            self.was_killed = true;
            let _ended_meanwhile = kill_process(Pid::from_child(&self.child), Signal::TERM);
            self.ends_within(TERMINATION_TIME);
        }
        self.finish()
    }

    fn ends_within(&mut self, limit: Duration) -> bool {
        let begin = Instant::now();
        while self.poll().is_none() {
            if begin.elapsed() > limit {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
        true
    }

    /// The result; kills the process if it is still running.
    ///
    /// # Panics
    /// If the status of the process is not available.
    #[must_use]
    pub fn finish(mut self) -> Finished {
        self.kill();
        let text = |thread: Option<JoinHandle<String>>| {
            let text = thread.and_then(|thread| thread.join().ok());
            text.unwrap_or_default()
        };
        Finished {
            out: text(self.out.take()),
            err: text(self.err.take()),
            status: self.status.expect("a process that has ended"),
            was_killed: self.was_killed,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_all(mut from: impl Read + Send + 'static) -> JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _end = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

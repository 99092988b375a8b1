//! Compiles C programs with the header and the library of this build, and runs them.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test file uses only a part of this module"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dipole_testbed::c_programs::{
    STRICT, clean_command, compile, link_library, link_options, successful_output,
};
#[allow(
    unused_imports,
    reason = "every test file uses only a part of this module"
)]
pub use dipole_testbed::c_programs::{built_library, include_dir, run};
use rustix::process::{Pid, Signal, kill_process};

/// A program that runs longer than this hangs.
const LIMIT_SECONDS: &str = "120";

/// The folder of the crate.
pub fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A folder with programs, the library under its installed names, and a registry.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        let dir = tempfile::tempdir().expect("a folder for the programs");
        link_library(dir.path(), "libdipole.so");
        Bench { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Compiles an example of `examples-c`.
    pub fn compile(&self, name: &str) -> PathBuf {
        let source = crate_dir()
            .join("examples-c")
            .join(name)
            .with_extension("c");
        self.compile_with(name, &source, &["-std=c99"])
    }

    pub fn compile_with(&self, name: &str, source: &Path, options: &[&str]) -> PathBuf {
        let program = self.path().join(name);
        let options = [&STRICT[..], &["-pthread"], options].concat();
        let libraries = link_options(self.path(), "dipole");
        let libraries = libraries.each_ref().map(String::as_str);
        compile("cc", source, &program, &options, &libraries);
        program
    }

    /// A command that runs a program with a time limit, without the test's own settings.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = clean_command("timeout", &["DIPOLE_"]);
        command.args(["-k", "5", LIMIT_SECONDS]).arg(program);
        command.env("DIPOLE_RUNTIME_DIR", self.path().join("registry"));
        command
    }

    /// Compiles and runs an example; returns its output.
    pub fn example(&self, name: &str, arguments: &[&str]) -> String {
        let program = self.compile(name);
        run(self.command(&program).args(arguments))
    }

    pub fn spawn(&self, program: &Path, arguments: &[&str]) -> Running {
        self.start(self.command(program).args(arguments))
    }

    pub fn start(&self, command: &mut Command) -> Running {
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        Running(Some(child))
    }
}

/// A program that is killed at the end of its test.
pub struct Running(Option<Child>);

impl Running {
    /// Reads one line of its output, which must be this one.
    pub fn wait_for(&mut self, line: &str) {
        use std::io::Read;
        let output = self.0.as_mut().and_then(|child| child.stdout.as_mut());
        let output = output.expect("a piped output");
        let mut read = Vec::new();
        let mut byte = [0];
        while output.read(&mut byte).expect("a readable output") == 1 && byte != [b'\n'] {
            read.push(byte[0]);
        }
        assert_eq!(String::from_utf8_lossy(&read), line);
    }

    /// The program itself, which is a child of the `timeout` that was started.
    pub fn program(&self) -> Pid {
        let timeout = self.0.as_ref().expect("a running program").id();
        let processes = std::fs::read_dir("/proc").expect("proc");
        let mut pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let pid = pids.find(|pid| parent(*pid) == Some(timeout));
        pid.and_then(Pid::from_raw).expect("a running program")
    }

    /// Kills the program and waits until it is gone.
    pub fn kill(mut self) {
        kill_process(self.program(), Signal::KILL).expect("a process of this test");
        let mut child = self.0.take().expect("a running program");
        child.wait().expect("`timeout` ends with the program");
    }

    pub fn end_input(&mut self) {
        let child = self.0.as_mut().expect("a running program");
        drop(child.stdin.take().expect("a piped input"));
    }

    /// Waits for its end; returns the rest of its output.
    pub fn finish(mut self) -> String {
        let child = self.0.take().expect("a running program");
        let output = child.wait_with_output().expect("the program ends");
        successful_output("a program", &output)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ended_already = child.kill();
            let _reaped = child.wait();
        }
    }
}

/// The parent of a process; `None` if the process has ended.
fn parent(pid: i32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain any character; the state follows its last bracket.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok()
}

//! Compiles C against the header and the library of this build, and runs it.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "a module of each test file, of which each uses its own part"
)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// A program that takes longer hangs.
const LIMIT_SECONDS: &str = "120";

/// The folder of the crate.
pub fn crate_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The header's folder.
pub fn include_dir() -> PathBuf {
    crate_dir().join("../../include")
}

/// A folder with programs, the library as it is installed, and a registry.
pub struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Bench {
        let dir = tempfile::tempdir().expect("a folder for the programs");
        let library = built("libdipole.so");
        for name in ["libdipole.so", "libdipole.so.0"] {
            std::os::unix::fs::symlink(&library, dir.path().join(name)).expect("a link");
        }
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
        run(Command::new("cc")
            .args([
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-O1",
                "-pthread",
            ])
            .args(options)
            .arg("-I")
            .arg(include_dir())
            .arg(source)
            .arg("-L")
            .arg(self.path())
            .arg(format!("-Wl,-rpath,{}", self.path().display()))
            .arg("-ldipole")
            .arg("-o")
            .arg(&program));
        program
    }

    /// A run of a program in an environment of its own.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", LIMIT_SECONDS]).arg(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DIPOLE_") {
                command.env_remove(name);
            }
        }
        command.env("DIPOLE_RUNTIME_DIR", self.path().join("registry"));
        command
    }

    /// Compiles and runs an example; what it printed.
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

/// A program that ends with its test.
pub struct Running(Option<Child>);

impl Running {
    /// Waits for one line of its output.
    pub fn wait_for(&mut self, line: &str) {
        use std::io::Read;
        let output = self.0.as_mut().and_then(|child| child.stdout.as_mut());
        let output = output.expect("its output is ours");
        let mut said = Vec::new();
        let mut byte = [0];
        while output.read(&mut byte).expect("its output can be read") == 1 && byte != [b'\n'] {
            said.push(byte[0]);
        }
        assert_eq!(String::from_utf8_lossy(&said), line);
    }

    /// The program itself: what was started is `timeout`, which started it.
    pub fn program(&self) -> Pid {
        let timeout = self.0.as_ref().expect("it runs until now").id();
        let processes = std::fs::read_dir("/proc").expect("proc");
        let mut pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let pid = pids.find(|pid| parent(*pid) == Some(timeout));
        pid.and_then(Pid::from_raw).expect("it runs until now")
    }

    /// Kills the program, and waits until it is gone.
    pub fn kill(mut self) {
        kill_process(self.program(), Signal::KILL).expect("our own process");
        let mut child = self.0.take().expect("it runs until now");
        child.wait().expect("`timeout` ends with it");
    }

    /// Its input ends.
    pub fn end_input(&mut self) {
        let child = self.0.as_mut().expect("it runs until now");
        drop(child.stdin.take().expect("its input is ours"));
    }

    /// Waits for its end; the rest of what it printed.
    pub fn finish(mut self) -> String {
        let child = self.0.take().expect("it runs until now");
        judge("it", child.wait_with_output().expect("it ends"))
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

/// The process that started another one; none if that has ended.
fn parent(pid: i32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything: what comes behind its last bracket is the state.
    let (_, behind) = stat.rsplit_once(')')?;
    behind.split_whitespace().nth(1)?.parse().ok()
}

/// Runs a command that must succeed; what it printed.
pub fn run(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
    judge(&format!("{command:?}"), output)
}

fn judge(what: &str, output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{what}: {}\n{said}\n{complained}",
        output.status
    );
    said
}

/// A library that cargo has built beside this test.
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

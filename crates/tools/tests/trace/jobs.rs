//! BSP programs in C, and jobs that run them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use dipole_testbed::Testbed;
use dipole_testbed::c_programs::{compile, link_options};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_dipole");

/// A folder with a program, the library, and the output of runs.
pub(crate) struct Job {
    folder: TempDir,
    program: PathBuf,
}

pub(crate) fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{err}")
}

/// A library for C that was built with this test, or is built now if the test was built alone.
fn library(name: &str, package: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let deps = test.parent().expect("it lies in a folder");
    let built = deps.join(name);
    if !built.exists() {
        let profile = deps.parent().expect("a profile's folder");
        let mut build = dipole_testbed::built::cargo();
        build.args(["build", "--quiet", "--package", package, "--manifest-path"]);
        build.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"));
        build.arg("--target-dir");
        build.arg(profile.parent().expect("a target directory"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success());
        return profile.join(name);
    }
    built
}

impl Job {
    /// Compiles a BSP program with debug information.
    pub(crate) fn compile(source: &Path, options: &[&str]) -> Job {
        Job::compile_with(source, options, ("bsp", "dipole-bsp-capi"))
    }

    /// Compiles a program that uses a library.
    fn compile_with(source: &Path, options: &[&str], (library, package): (&str, &str)) -> Job {
        let folder = tempfile::tempdir().expect("a folder");
        let file = format!("lib{library}.so");
        let built = self::library(&file, package);
        for name in [format!("{file}.0"), file] {
            std::os::unix::fs::symlink(&built, folder.path().join(name)).expect("a link");
        }
        let program = folder.path().join(source.file_stem().expect("a file"));
        let strict = [
            "-O1",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-function",
        ];
        let [folder_option, run_path, name] = &link_options(folder.path(), library);
        let libraries = [folder_option, run_path, name, "-lm"];
        compile(
            "cc",
            source,
            &program,
            &[&strict[..], options].concat(),
            &libraries,
        );
        Job { folder, program }
    }

    pub(crate) fn late() -> Job {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/late.c");
        Job::compile_with(&source, &[], ("dipole", "dipole-capi"))
    }

    pub(crate) fn slowed() -> Job {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/slowed.c");
        Job::compile(&source, &[])
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn traces(&self) -> PathBuf {
        self.path("traces")
    }

    /// The command that runs it with traces, by so many ranks here.
    pub(crate) fn command(&self, ranks: u32, arguments: &[&str]) -> Command {
        self.command_with(ranks, &[], arguments)
    }

    /// The same with options of `dipole run`.
    pub(crate) fn command_with(&self, ranks: u32, options: &[&str], arguments: &[&str]) -> Command {
        let mut command = dipole_testbed::isolated_command(PROGRAM);
        command
            .args(["run", "-n", &ranks.to_string()])
            .args(options)
            .env("DIPOLE_RUNTIME_DIR", self.path("runtime"))
            .env("DIPOLE_PROFILE", self.path("profile"))
            .env_remove("DIPOLE_HOSTS");
        self.finish(command, arguments)
    }

    fn finish(&self, mut command: Command, arguments: &[&str]) -> Command {
        command
            .arg("--env")
            .arg(format!("DIPOLE_TRACE={}", self.traces().display()))
            .arg(&self.program)
            .args(arguments)
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, ranks: u32, arguments: &[&str]) {
        let output = self.command(ranks, arguments).output().expect("it starts");
        assert!(output.status.success(), "{}", text(&output));
    }

    /// Runs the ranks on the nodes of a testbed, over UDP.
    pub(crate) fn run_on(&self, testbed: &Testbed, ranks: u32, arguments: &[&str]) {
        let mut command = testbed.command(1, PROGRAM);
        command.args(["run", "-n", &ranks.to_string(), "--hosts"]);
        command.arg(testbed.hosts_file()).arg("--rsh");
        command.arg(testbed.remote_shell());
        command.args(["--env", "DIPOLE_LINK=udp"]);
        let output = self.finish(command, arguments).output().expect("it starts");
        assert!(output.status.success(), "{}", text(&output));
    }

    /// `dipole trace` of the last run.
    pub(crate) fn trace(&self, arguments: &[&str]) -> String {
        self.trace_with(&[], arguments)
    }

    /// Checks that the terminal output of `dipole trace` fits into narrow and wide terminals, and
    /// contains `part` in each of them.
    pub(crate) fn trace_fits(&self, part: &str) {
        for columns in [40, 80, 200] {
            let shown = self.trace_with(&[("COLUMNS", &columns.to_string())], &[]);
            let widest = shown.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns), "{columns} columns\n{shown}");
            assert!(shown.contains(part), "{part} in {columns} columns\n{shown}");
        }
    }

    fn trace_with(&self, variables: &[(&str, &str)], arguments: &[&str]) -> String {
        let output = dipole_testbed::isolated_command(PROGRAM)
            .envs(variables.iter().copied())
            .arg("trace")
            .arg(self.traces())
            .args(arguments)
            .env("DIPOLE_PROFILE", self.path("profile"))
            .output()
            .expect("it starts");
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn summary(&self) -> Value {
        serde_json::from_str(&self.trace(&["--json"])).expect("an object")
    }
}

/// The call of a summary whose line of the source ends so many supersteps or more.
pub(crate) fn main_call(summary: &Value) -> &Value {
    let calls = summary["calls"].as_array().expect("calls");
    let longest = calls.iter().max_by_key(|call| call["supersteps"].as_u64());
    longest.expect("at least one")
}

pub(crate) fn reasons(call: &Value) -> Vec<&str> {
    let reasons = call["reasons"].as_array().expect("a list");
    reasons.iter().filter_map(Value::as_str).collect()
}

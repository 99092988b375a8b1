//! `dipole calibrate` as a job on the nodes of a testbed.

use std::process::{Command, Output};

use dipole_testbed::Testbed;

pub(crate) fn text(output: &Output) -> String {
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{out}{err}")
}

/// Runs `dipole calibrate` with this many processes from the first node.
pub(crate) fn calibrate(testbed: &Testbed, processes: u32, arguments: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_dipole");
    let mut command: Command = testbed.command(1, program);
    command.args(["run", "-n", &processes.to_string(), "--hosts"]);
    command.arg(testbed.hosts_file()).arg("--rsh");
    command.arg(testbed.remote_shell());
    // All nodes share one file system, and each writes the same file.
    let profile = testbed.folder().join("profile");
    command
        .arg("--env")
        .arg(format!("DIPOLE_PROFILE={}", profile.display()));
    command.args(["--env", "DIPOLE_LINK=udp"]);
    command.arg(program).args(arguments);
    command.output().expect("the program runs")
}

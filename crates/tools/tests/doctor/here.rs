//! One machine with the loopback address: needs no privileges.

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use dipole_testbed::free_port;
use tempfile::TempDir;

use crate::testbed::{Process, Report, cleaned, once_answered};

const DIPOLE: &str = env!("CARGO_BIN_EXE_dipole");

struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().expect("a directory");
        Place { directory }
    }

    fn hosts(&self, text: &str) -> PathBuf {
        let path = self.directory.path().join("hosts");
        std::fs::write(&path, text).expect("our own directory");
        path
    }

    fn command(&self, program: &str) -> Command {
        cleaned(
            dipole_testbed::isolated_command(program),
            &self.directory.path().join("runtime"),
        )
    }

    fn report(&self, arguments: &[&str]) -> Report {
        let mut command = self.command(DIPOLE);
        Report::of(
            command
                .args(["--json", "doctor", "--timeout", "0.5"])
                .args(arguments),
        )
    }

    /// Like `report`, with a limit set by the shell's `ulimit`.
    fn limited(&self, limit: &str) -> Report {
        let mut command = self.command("sh");
        let script = format!("ulimit {limit} && exec \"$0\" --json doctor");
        Report::of(command.args(["-c", &script, DIPOLE]))
    }
}

fn free_ports<const N: usize>() -> [u16; N] {
    [(); N].map(|()| free_port("127.0.0.1"))
}

#[test]
fn a_single_machine_is_healthy() {
    let place = Place::new();
    let report = place.report(&[]);
    report.expect_nothing_broken();
    report.expect(
        "hosts file",
        "this machine",
        "good",
        &["node 1 alone", "DIPOLE_HOSTS"],
    );
    report.expect(
        "runtime directory",
        "this machine",
        "good",
        &["node-1 is ours alone"],
    );
    report.expect("shared memory", "this machine", "good", &["use it"]);
    for name in [
        "kernel",
        "clock",
        "frequency",
        "cores",
        "segmentation",
        "one-copy reads",
    ] {
        report.finding(name, "this machine");
    }
    let output = place
        .command(DIPOLE)
        .arg("doctor")
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("shared memory") && text.contains("\n0 broken, "),
        "{text}"
    );
}

#[test]
fn a_variable_that_no_program_reads_is_named() {
    let place = Place::new();
    let mut command = place.command(DIPOLE);
    let report =
        Report::of(
            command
                .env("DIPOLE_LNK", "shm")
                .args(["--json", "doctor", "--timeout", "0.5"]),
        );
    report.expect(
        "variables",
        "this machine",
        "slow",
        &["DIPOLE_LNK", "environment.md"],
    );
}

#[test]
fn healthy_closed_and_wrong_nodes_on_loopback_are_distinguished() {
    let place = Place::new();
    let [one, two, three] = free_ports();
    let hosts = place.hosts(&format!(
        "1 127.0.0.1 port={one}\n2 127.0.0.1 port={two}\n3 127.0.0.1 port={three}\n"
    ));
    let path = hosts.to_str().expect("text");
    let _receiver = Process::receiver(place.command(DIPOLE), 2, &hosts);
    let report = once_answered(|| place.report(&["--hosts", path]), "node 2");
    // Nothing is broken, but node 3 is unknown.
    assert_eq!(report.status, 3, "{report:#?}");
    report.expect(
        "own address",
        "node 1",
        "good",
        &["127.0.0.1 is on a device"],
    );
    report.expect("link", "lo", "good", &["up"]);
    report.expect("own directory", "node 1", "good", &["is free"]);
    report.expect("route", "node 2", "good", &["leave from 127.0.0.1"]);
    report.expect(
        "directory",
        "node 2",
        "good",
        &["both sides mean the same node"],
    );
    report.expect(
        "packet size",
        "node 2",
        "good",
        &["packets of 9000 bytes get through"],
    );
    report.expect("version", "node 2", "good", &["on both sides"]);
    assert!(report.find("round trip", "node 2").is_some());
    let (start, found) = ("dipole recv 3:7 --nid 3", "no process of Dipole runs there");
    report.expect(
        "directory",
        "node 3",
        "unknown",
        &["the host is up", found, start],
    );

    // First node 2's own directory is at its port, then node 3's.
    let report = place.report(&["--hosts", path, "--nid", "2"]);
    report.expect(
        "own directory",
        "node 2",
        "good",
        &["a process of this node answers"],
    );
    place.hosts(&format!("1 127.0.0.1 port={one}\n3 127.0.0.1 port={two}\n"));
    let report = place.report(&["--hosts", path]);
    assert_eq!(report.status, 1);
    let words = ["another node answers", "not node 3", "DIPOLE_NID=3 there"];
    report.expect("directory", "node 3", "broken", &words);
}

#[test]
fn doctors_of_a_job_answer_each_other() {
    let place = Place::new();
    let [one, two] = free_ports();
    let hosts = place.hosts(&format!(
        "1 127.0.0.1 port={one} ssh=one\n2 127.0.0.1 port={two} ssh=two\n"
    ));
    let rsh = place.directory.path().join("rsh");
    std::fs::write(&rsh, "#!/bin/sh\nexec sh -c \"$2\"\n").expect("our own directory");
    let runs = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&rsh, runs).expect("our own file");
    let mut command = place.command(DIPOLE);
    command.args(["run", "-n", "2", "--hosts"]).arg(&hosts);
    command.arg("--rsh").arg(&rsh);
    let report = Report::of(command.args([DIPOLE, "--json", "doctor"]));
    for node in ["node 1", "node 2"] {
        report.expect(
            "directory",
            node,
            "good",
            &["both sides mean the same node"],
        );
    }
    report.expect_nothing_broken();
}

#[test]
fn a_port_that_another_program_uses_is_reported() {
    let place = Place::new();
    let holder = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let port = holder.local_addr().expect("an address").port();
    let hosts = place.hosts(&format!("1 127.0.0.1 port={port}\n"));
    let report = place.report(&["--hosts", hosts.to_str().expect("text")]);
    assert_eq!(report.status, 1);
    let words = ["held by another program", "ss -ulpn"];
    report.expect("own directory", "node 1", "broken", &words);
}

#[test]
fn an_address_of_another_machine_is_broken() {
    let place = Place::new();
    // A documentation network, whose addresses no machine has.
    let hosts = place.hosts("1 192.0.2.77\n");
    let path = hosts.to_str().expect("text");
    let report = place.report(&["--hosts", path]);
    assert_eq!(report.status, 1);
    let words = [
        "192.0.2.77 is on no device of this machine",
        "correct the line of node 1",
    ];
    report.expect("own address", "node 1", "broken", &words);
    // The other line matches this machine, so the number is wrong.
    place.hosts("1 192.0.2.77\n2 127.0.0.1\n");
    let report = place.report(&["--hosts", path]);
    report.expect("own address", "node 1", "broken", &["set DIPOLE_NID=2"]);
}

#[test]
fn a_wrong_hosts_file_is_broken_and_wrong_usage_is_something_else() {
    let place = Place::new();
    let hosts = place.hosts("1 127.0.0.1\nsecond 127.0.0.1\n");
    let path = hosts.to_str().expect("text");
    let report = place.report(&["--hosts", path]);
    assert_eq!(report.status, 1);
    report.expect(
        "hosts file",
        "this machine",
        "broken",
        &["hosts:2: found `second`"],
    );
    place.hosts("5 127.0.0.1\n");
    let report = place.report(&["--hosts", path]);
    assert_eq!(report.status, 1);
    let words = [
        "this is node 1, which is not among",
        "`1 ADDRESS`",
        "DIPOLE_NID",
    ];
    report.expect("hosts file", "this machine", "broken", &words);
    // The missing line is that of this node; other nodes are not affected.
    report.expect("route", "node 5", "good", &["leave from 127.0.0.1"]);
    let mut command = place.command(DIPOLE);
    command
        .args(["--json", "doctor"])
        .env("DIPOLE_LINK", "pigeon");
    let report = Report::of(&mut command);
    assert_eq!(report.status, 1);
    let words = ["DIPOLE_LINK", "auto, shm, udp or bpf"];
    report.expect("configuration", "this machine", "broken", &words);
    // Faults that prevent every program from starting are reported as broken as well: a number that is not in the file, or
    // a missing key where one is required.
    for (name, value, words) in [
        (
            "DIPOLE_NID",
            "7",
            ["DIPOLE_NID=7", "the hosts file has no node 7"],
        ),
        ("DIPOLE_NID", "0", ["DIPOLE_NID", "1 to 4294967295"]),
        (
            "DIPOLE_PORTS",
            "9-8",
            ["DIPOLE_PORTS", "two or more ports, such as 7412-7500"],
        ),
    ] {
        let mut command = place.command(DIPOLE);
        command.env("DIPOLE_HOSTS", path).env(name, value);
        let report = Report::of(command.args(["--json", "doctor"]));
        assert_eq!(report.status, 1, "{name}={value}");
        report.expect("configuration", "this machine", "broken", &words);
    }
    let mut command = place.command(DIPOLE);
    command.env("DIPOLE_HOSTS", place.hosts("1 127.0.0.1\n2 127.0.0.2\n"));
    let report = Report::of(command.args(["--json", "doctor"]).env("DIPOLE_KEY", ""));
    assert_eq!(report.status, 1);
    assert_eq!(report.count("cluster key"), 1, "{report:#?}");
    let words = ["DIPOLE_KEY: found an empty value", "unset the variable"];
    report.expect("cluster key", "this machine", "broken", &words);
    for wrong in ["--timeout=never", "--nothing"] {
        assert_eq!(place.report(&[wrong]).status, 2, "{wrong}");
    }
}

#[test]
fn a_runtime_directory_that_others_can_change_is_broken() {
    let place = Place::new();
    let runtime = place.directory.path().join("runtime");
    std::fs::create_dir(&runtime).expect("our own directory");
    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(&runtime, open).expect("our own directory");
    let report = place.report(&[]);
    assert_eq!(report.status, 1);
    let words = ["can be changed by others (mode 0777)", "`chmod go-w` it"];
    report.expect("runtime directory", "this machine", "broken", &words);
    std::fs::remove_dir(&runtime).expect("our own directory");
    std::os::unix::fs::symlink(place.directory.path(), &runtime).expect("our own directory");
    let report = place.report(&[]);
    let words = ["a symbolic link", "DIPOLE_RUNTIME_DIR"];
    report.expect("runtime directory", "this machine", "broken", &words);
}

#[test]
fn low_limits_are_reported() {
    let place = Place::new();
    let report = place.limited("-l 64");
    report.expect_nothing_broken();
    let words = ["only 64 KiB may be locked", "ulimit -l unlimited"];
    report.expect("locked memory", "this machine", "good", &words);
    let report = place.limited("-n 256");
    report.expect_nothing_broken();
    report.expect(
        "open files",
        "this machine",
        "slow",
        &["256 descriptors", "ulimit -n 65536"],
    );
    let report = place.limited("-n 20");
    assert_eq!(report.status, 1);
    report.expect(
        "open files",
        "this machine",
        "broken",
        &["20 descriptors", "too few"],
    );
}

#[test]
fn lines_fit_the_terminal_and_are_whole_elsewhere() {
    let place = Place::new();
    let widest = |columns: Option<&str>| {
        let mut command = place.command("sh");
        let script = "ulimit -n 256 && exec \"$0\" doctor --verbose";
        command.args(["-c", script, DIPOLE]).env_remove("COLUMNS");
        command.envs(columns.map(|columns| ("COLUMNS", columns)));
        let output = command.output().expect("dipole runs");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains("256"), "{text}");
        let widths = text.lines().map(|line| line.chars().count());
        widths.max().expect("findings")
    };
    assert!(widest(None) > 80, "one line for each finding");
    for columns in [40, 80] {
        assert!(widest(Some(&columns.to_string())) <= columns);
    }
}

#[test]
fn slow_settings_fail_only_on_request() {
    let place = Place::new();
    let status = |arguments: &[&str]| {
        let mut command = place.command(DIPOLE);
        command
            .args(["--json", "doctor"])
            .args(arguments)
            .env("DIPOLE_LINK", "udp");
        let report = Report::of(&mut command);
        let words = ["DIPOLE_LINK=udp is set", "use packets", "unset DIPOLE_LINK"];
        report.expect("shared memory", "this machine", "slow", &words);
        report.status
    };
    assert_eq!(status(&[]), 0);
    assert_eq!(status(&["--strict"]), 1);
}

//! Cards measured, kept, and told of. Needs root; skipped aloud without.

use std::path::PathBuf;

use crate::testbed::{Report, Testbed};

fn report(testbed: &Testbed, calibrate: bool) -> Report {
    let mut command = testbed.dipole(1);
    command.args(["--json", "doctor", "--timeout", "0.2", "--hosts"]);
    command.arg(testbed.hosts());
    if calibrate {
        command.arg("--calibrate");
    }
    Report::of(&mut command)
}

fn file(testbed: &Testbed) -> PathBuf {
    testbed.directory.path().join("runtime-1/cards/eth0")
}

#[test]
fn a_card_is_measured_once_and_told_of_until_its_file_is_spoilt() {
    let Some(testbed) = Testbed::make("k", false) else {
        return;
    };
    let without = report(&testbed, false);
    let words = [
        "none, so small packets come by a ring at TCX",
        "--calibrate",
    ];
    without.expect("calibration", "eth0", "good", &words);
    assert!(without.find("sending", "eth0").is_none());

    let made = report(&testbed, true);
    made.expect("calibration", "eth0", "good", &[" s old", "cards/eth0"]);
    let told = report(&testbed, false);
    for report in [&made, &told] {
        let words = [
            "tcx 64 B",
            "xdp-generic 1400 B",
            "af-xdp 64 B",
            "private pair",
        ];
        report.expect("receiving", "eth0", "good", &words);
        let words = ["by AF_", "af-packet 64 B", "socket 1472 B", "ns"];
        report.expect("sending", "eth0", "good", &words);
        let words = ["raw up to", "8 by af-packet", "8 by socket"];
        report.expect("bulk runs", "eth0", "good", &words);
    }

    let text = std::fs::read_to_string(file(&testbed)).expect("a file");
    std::fs::write(file(&testbed), text.replace("send", "sand")).expect("ours");
    let spoilt = report(&testbed, false);
    let words = ["spoilt in line 10", "as usual", "--calibrate"];
    spoilt.expect("calibration", "eth0", "slow", &words);
    assert!(spoilt.find("sending", "eth0").is_none());

    std::fs::write(file(&testbed), text).expect("ours");
    testbed.ip(1, "link set eth0 mtu 1300");
    let changed = report(&testbed, false);
    let words = ["does not hold any more: another MTU"];
    changed.expect("calibration", "eth0", "slow", &words);
}

#[test]
fn a_node_without_a_card_cannot_be_calibrated() {
    let directory = tempfile::tempdir().expect("a directory");
    let dipole = std::process::Command::new(env!("CARGO_BIN_EXE_dipole"));
    let mut command = crate::testbed::cleaned(dipole, directory.path());
    let report = Report::of(command.args(["--json", "doctor", "--calibrate"]));
    report.expect("calibration", "this machine", "broken", &["DIPOLE_BIND"]);
    assert_eq!(report.status, 1);
}

//! Cards measured, kept, and told of. Needs root; skipped aloud without.

use std::path::PathBuf;

use crate::bed::{Bed, Report};

fn report(bed: &Bed, calibrate: bool) -> Report {
    let mut command = bed.dipole(1);
    command.args(["--json", "doctor", "--timeout", "0.2", "--hosts"]);
    command.arg(bed.hosts());
    if calibrate {
        command.arg("--calibrate");
    }
    Report::of(&mut command)
}

fn file(bed: &Bed) -> PathBuf {
    bed.directory.path().join("runtime-1/cards/eth0")
}

#[test]
fn a_card_is_measured_once_and_told_of_until_its_file_is_spoilt() {
    let Some(bed) = Bed::make("k", false) else {
        return;
    };
    let without = report(&bed, false);
    let words = [
        "none, so small packets come by a ring at TCX",
        "--calibrate",
    ];
    without.expect("calibration", "eth0", "good", &words);
    assert!(without.find("sending", "eth0").is_none());

    let made = report(&bed, true);
    made.expect("calibration", "eth0", "good", &[" s old", "cards/eth0"]);
    let told = report(&bed, false);
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

    let text = std::fs::read_to_string(file(&bed)).expect("a file");
    std::fs::write(file(&bed), text.replace("send", "sand")).expect("ours");
    let spoilt = report(&bed, false);
    let words = ["spoilt in line 10", "as usual", "--calibrate"];
    spoilt.expect("calibration", "eth0", "slow", &words);
    assert!(spoilt.find("sending", "eth0").is_none());

    std::fs::write(file(&bed), text).expect("ours");
    bed.ip(1, "link set eth0 mtu 1300");
    let changed = report(&bed, false);
    let words = ["does not hold any more: another MTU"];
    changed.expect("calibration", "eth0", "slow", &words);
}

#[test]
fn a_node_without_a_card_cannot_be_calibrated() {
    let directory = tempfile::tempdir().expect("a directory");
    let dipole = std::process::Command::new(env!("CARGO_BIN_EXE_dipole"));
    let mut command = crate::bed::cleaned(dipole, directory.path());
    let report = Report::of(command.args(["--json", "doctor", "--calibrate"]));
    report.expect("calibration", "this machine", "broken", &["DIPOLE_BIND"]);
    assert_eq!(report.status, 1);
}

//! The systemd units that root installs are confined.

#![allow(missing_docs, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// Ratings of `systemd-analyze security` below 4, in tenths.
const HIGHEST: &str = "--threshold=39";

/// Whether a unit of `examples/systemd` is rated below the threshold, and its table; `None` if units
/// cannot be rated here.
fn rate(unit: &str, name: &str) -> Option<(bool, String)> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let source = top.join("examples/systemd").join(format!("{unit}.in"));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(name);
    let text = fs::read_to_string(source)
        .expect("a unit")
        .replace("@PREFIX@", "/usr");
    fs::write(&file, text).expect("a file");
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=yes", "--no-pager", HIGHEST]);
    let Ok(output) = command.arg(&file).output() else {
        eprintln!("SKIPPED: systemd-analyze is not installed (Debian: systemd)");
        return None;
    };
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("unrecognized option") || errors.contains("Unknown option") {
        eprintln!("SKIPPED: systemd-analyze cannot rate files: {errors}");
        return None;
    }
    assert!(table.contains("exposure level"), "{errors}");
    Some((output.status.success(), table))
}

#[test]
fn units_of_the_system_are_rated_below_4() {
    for (unit, name) in [
        ("dipole-agent@.service", "dipole-agent@1000.service"),
        ("dipole-broker.service", "dipole-broker.service"),
    ] {
        let Some((is_confined, table)) = rate(unit, name) else {
            return;
        };
        assert!(is_confined, "{name}:\n{table}");
    }
    // A user's service manager can take no privileges away.
    let users = rate("dipole-agent.service", "dipole-agent.service");
    assert!(users.is_some_and(|(is_confined, _)| !is_confined));
}

#[test]
fn jobs_of_the_agent_keep_what_programs_need() {
    let unit =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/systemd/dipole-agent@.service.in");
    let text = fs::read_to_string(unit).expect("a unit");
    // Jobs inherit all settings of the agent. These would hide devices, files and other ranks, or
    // break programs that generate code, containers, debuggers, and threads bound to cores.
    for name in [
        "PrivateDevices",
        "DeviceAllow",
        "DevicePolicy",
        "ProtectClock",
        "PrivateTmp",
        "ProtectHome",
        "PrivateNetwork",
        "PrivateUsers",
        "PrivateIPC",
        "RemoveIPC",
        "RestrictNamespaces",
        "MemoryDenyWriteExecute",
        "ProcSubset",
        "IPAddressDeny",
    ] {
        let is_set = text
            .lines()
            .any(|line| line.starts_with(&format!("{name}=")));
        assert!(!is_set, "{name}");
    }
    for group in ["@debug", "@resources", "@mount", "@privileged"] {
        assert!(!text.contains(group), "{group}");
    }
}

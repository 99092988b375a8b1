//! The systemd units are confined, as far as the work that they start allows.

#![allow(missing_docs, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// The text of a unit of `examples/systemd`.
fn text_of(unit: &str) -> String {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let source = top.join("examples/systemd").join(format!("{unit}.in"));
    fs::read_to_string(source).expect("a unit")
}

/// Whether `systemd-analyze security` rates a unit at most `tenths`, and its table; `None` if units cannot
/// be rated here.
fn rate(unit: &str, name: &str, tenths: u32) -> Option<(bool, String)> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join(name);
    fs::write(&file, text_of(unit).replace("@PREFIX@", "/usr")).expect("a file");
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=yes", "--no-pager"]);
    command.arg(format!("--threshold={tenths}"));
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
fn units_of_the_system_are_rated_below_4_and_the_users_below_8() {
    for (unit, name, tenths) in [
        ("dipole-agent@.service", "dipole-agent@1000.service", 39),
        ("dipole-broker.service", "dipole-broker.service", 39),
        ("dipole-agent.service", "dipole-agent.service", 79),
    ] {
        let Some((is_confined, table)) = rate(unit, name, tenths) else {
            return;
        };
        assert!(is_confined, "{name}:\n{table}");
    }
}

/// A user's service manager fails to drop capabilities, and puts services with the others into a user
/// namespace.
#[test]
fn the_users_unit_has_no_setting_that_needs_privileges_or_a_user_namespace() {
    let text = text_of("dipole-agent.service");
    for name in [
        "CapabilityBoundingSet=",
        "AmbientCapabilities=",
        "Private",
        "Protect",
        "ReadOnlyPaths=",
        "InaccessiblePaths=",
        "TemporaryFileSystem=",
    ] {
        let is_set = text.lines().any(|line| line.starts_with(name));
        assert!(!is_set, "{name}");
    }
}

#[test]
fn jobs_of_the_agent_keep_what_programs_need() {
    let text = text_of("dipole-agent@.service") + &text_of("dipole-agent.service");
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

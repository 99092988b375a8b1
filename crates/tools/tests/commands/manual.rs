//! The generated manual pages pass a checker.

use std::process::Command;

#[test]
fn the_formatter_has_nothing_to_complain_about() {
    let mut checker = Command::new("mandoc");
    if checker.args(["-T", "ascii", "/dev/null"]).output().is_err() {
        eprintln!("SKIPPED: mandoc is not installed (package mandoc)");
        return;
    }
    let mut dipole = dipole_testbed::isolated_command(env!("CARGO_BIN_EXE_dipole"));
    let output = dipole.arg("manual").output().expect("it starts");
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let folder = tempfile::tempdir().expect("a directory");
    let mut count = 0;
    for page in text.split('\u{1}').skip(1) {
        let (name, page) = page.split_once('\n').expect("a name");
        let path = folder.path().join(name);
        std::fs::write(&path, page).expect("our own directory");
        let mut lint = Command::new("mandoc");
        lint.args(["-T", "lint", "-W", "warning"]).arg(&path);
        let said = lint.output().expect("mandoc runs").stdout;
        let said = String::from_utf8_lossy(&said);
        assert!(said.is_empty(), "{name}: {said}");
        count += 1;
    }
    assert!(count > 20, "{count} pages");
}

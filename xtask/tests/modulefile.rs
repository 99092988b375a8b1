//! The module file in `examples/modulefile`, with the `modulecmd` of Environment Modules (Debian:
//! environment-modules).

#![allow(missing_docs, reason = "tests")]

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn the_module_file_leads_to_the_version_that_is_loaded() {
    let modulecmd = [
        "/usr/lib/x86_64-linux-gnu/modulecmd.tcl",
        "/usr/libexec/modulecmd.tcl",
    ];
    let Some(modulecmd) = modulecmd.iter().find(|path| Path::new(path).exists()) else {
        eprintln!("SKIPPED: modulecmd.tcl is not installed (Debian: environment-modules)");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let modules = folder.path().join("dipole");
    fs::create_dir(&modules).expect("a folder");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/modulefile/dipole");
    for version in ["0.1.0", "0.2.0"] {
        fs::copy(&file, modules.join(version)).expect("a copy");
    }
    let load = |version: &str, loaded: &str| {
        let mut command = Command::new(modulecmd);
        command.args(["bash", "load", &format!("dipole/{version}")]);
        command
            .env("MODULEPATH", folder.path())
            .env("HOME", "/users/one");
        if !loaded.is_empty() {
            command.env("LOADEDMODULES", loaded);
            command.env("_LMFILES_", modules.join("0.1.0"));
            command.env("__MODULES_LMCONFLICT", format!("{loaded}&dipole"));
        }
        let output = command.output().expect("modulecmd runs");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).into_owned()
    };
    let lines = load("0.2.0", "");
    for wanted in [
        "PATH=/users/one/dipole/0.2.0/bin",
        "LD_LIBRARY_PATH=/users/one/dipole/0.2.0/lib",
        "CPATH=/users/one/dipole/0.2.0/include",
        "PKG_CONFIG_PATH=/users/one/dipole/0.2.0/lib/pkgconfig",
    ] {
        assert!(lines.contains(wanted), "{wanted}: {lines}");
    }
    let second = load("0.2.0", "dipole/0.1.0");
    assert!(!second.contains("/users/one/dipole/0.2.0/bin"), "{second}");
}

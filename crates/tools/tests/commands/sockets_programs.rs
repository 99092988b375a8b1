//! `dipole sockets` with programs that cannot use its library, and with those that can.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dipole_testbed::isolated_command;

/// Builds the library that `dipole sockets` finds next to itself.
fn build_library() {
    let library = dipole_testbed::built::libraries().join("libdipole_sockets.so");
    assert!(library.exists());
}

/// Prints `LD_PRELOAD` as a program sees it.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int main(void)
{
    const char *preload = getenv("LD_PRELOAD");
    puts(preload ? preload : "none");
    return 7;
}
"#;

/// Builds the program; `None` with the reason if this machine cannot.
fn built(folder: &Path, compiler: &str, options: &[&str]) -> Option<PathBuf> {
    let source = folder.join("program.c");
    std::fs::write(&source, SOURCE).expect("a file");
    let program = folder.join("program");
    let done = Command::new(compiler)
        .args(options)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output();
    match done {
        Ok(done) if done.status.success() => Some(program),
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr).into_owned();
            eprintln!("SKIPPED: {compiler} {options:?}: {said}");
            None
        }
        Err(cause) => {
            eprintln!("SKIPPED: {compiler}: {cause}");
            None
        }
    }
}

fn run(program: &Path, preload: Option<&str>) -> (Output, String, String) {
    let mut command = isolated_command(env!("CARGO_BIN_EXE_dipole"));
    command.arg("sockets").arg(program);
    if let Some(preload) = preload {
        command.env("LD_PRELOAD", preload);
    }
    let done = command.output().expect("it starts");
    let [out, said] =
        [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (done, out, said)
}

#[test]
fn programs_that_cannot_use_the_library_run_over_plain_tcp_and_are_named() {
    build_library();
    let folder = tempfile::tempdir().expect("a folder");
    for (compiler, options, reason, is_fatal) in [
        ("musl-gcc", &[][..], "uses musl", true),
        ("musl-gcc", &["-static"][..], "is statically linked", false),
        ("gcc", &["-static"][..], "is statically linked", false),
        ("gcc", &["-static-pie"][..], "is statically linked", false),
        ("gcc", &["-fsanitize=address"][..], "AddressSanitizer", true),
    ] {
        let Some(program) = built(folder.path(), compiler, options) else {
            continue;
        };
        let (done, out, said) = run(&program, None);
        assert_eq!(
            done.status.code(),
            Some(7),
            "{compiler} {options:?}: {said}"
        );
        assert!(said.contains(reason), "{said}");
        assert!(said.contains("it runs over plain TCP"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(out == "none\n", is_fatal, "{out}");
    }
}

#[test]
fn other_programs_get_the_library_without_a_word() {
    build_library();
    let folder = tempfile::tempdir().expect("a folder");
    for options in [
        &[][..],
        &["-fsanitize=thread"][..],
        &["-fsanitize=undefined"][..],
        &["-fsanitize=address", "-static-libasan"][..],
    ] {
        let Some(program) = built(folder.path(), "gcc", options) else {
            continue;
        };
        let (done, out, said) = run(&program, None);
        assert_eq!((done.status.code(), &*said), (Some(7), ""), "{options:?}");
        assert!(out.ends_with("libdipole_sockets.so\n"), "{out}");
    }
}

#[test]
fn a_script_is_as_able_as_its_interpreter() {
    build_library();
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = built(folder.path(), "gcc", &["-static"]) else {
        return;
    };
    let script = folder.path().join("script");
    std::fs::write(&script, format!("#!{}\n", program.display())).expect("a file");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&script, mode).expect("our own");
    let (done, _, said) = run(&script, None);
    assert_eq!(done.status.code(), Some(7), "{said}");
    assert!(said.contains("script is statically linked"), "{said}");
}

#[test]
fn the_sanitizer_of_the_user_comes_first() {
    build_library();
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = built(folder.path(), "gcc", &["-fsanitize=address"]) else {
        return;
    };
    let (_, _, said) = run(&program, None);
    let preload = said.trim().rsplit('=').next().expect("a name").to_owned();
    // This process is loaded with it, too; it keeps some memory when it becomes the program.
    let (done, out, said) = run(&program, Some(&preload));
    assert_eq!(done.status.code(), Some(7), "{said}");
    assert!(out.starts_with(&format!("{preload}:")), "{out}");
    assert!(out.ends_with("libdipole_sockets.so\n"), "{out}");
}

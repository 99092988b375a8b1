//! Tests an installation with a C program outside the tree, and removes it.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{run, said};

const PREFIX: &str = "/opt/dipole-test";

const PROGRAM: &str = r#"
#include <dipole.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    char *address;
    int out = dp_open(8), in = dp_open(7);
    if (out < 0 || in < 0 || dp_target(out, 1, 7) < 0) {
        fprintf(stderr, "%s\n", dp_error());
        return 1;
    }
    if (dp_write(out, "outside", 8) != 8 || dp_read(in, &address) != 8) {
        fprintf(stderr, "%s\n", dp_error());
        return 1;
    }
    printf("%s\n", address);
    return dp_fsync(in, 1) < 0 || dp_close(in) < 0 || dp_close(out) < 0;
}
"#;

/// A BSP program: every rank sends its number to the next.
const IN_SUPERSTEPS: &str = r#"
#include <bsp.h>

int main(void)
{
    int left = -1;
    bsp_begin(bsp_nprocs());
    int me = bsp_pid(), p = bsp_nprocs();
    bsp_push_reg(&left, sizeof left);
    bsp_sync();
    bsp_put((me + 1) % p, &me, &left, 0, sizeof left);
    bsp_sync();
    if (left != (me + p - 1) % p || p == 2)
        bsp_abort("%d is to the left of %d", left, me);
    if (bsp_sumI(1) == p && me == 0)
        printf("round of %d\n", p);
    bsp_end();
    return 0;
}
"#;

const IN_FORTRAN: &str = "program round
  use bsp
  implicit none
  integer :: all
  call bsp_begin(bsp_nprocs())
  all = bsp_sum(1)
  if (bsp_pid() == 0) print '(a, i0)', 'round of ', all
  call bsp_end()
end program
";

fn xtask(task: &str, destdir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command
        .args([task, "--prefix", PREFIX])
        .env("DESTDIR", destdir);
    command
}

/// Every file below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
fn a_c_program_needs_only_what_is_installed_and_nothing_stays_when_it_is_removed() {
    let testbed = tempfile::tempdir().expect("a directory");
    let destdir = testbed.path().join("image");
    // Twice: an installation replaces an older one.
    for _ in 0..2 {
        run(xtask("install", &destdir).args(["--profile", "dev"]));
    }
    let installed = destdir.join(PREFIX.trim_start_matches('/'));
    for (file, mode) in [
        ("bin/dipole", 0o755),
        ("sbin/dipole-broker", 0o755),
        ("bin/bspcc", 0o755),
        ("bin/bsprun", 0o755),
        ("include/dipole.h", 0o644),
        ("include/bsp.h", 0o644),
        ("include/bsp_level1.h", 0o644),
        ("include/mcbsp.h", 0o644),
        ("include/bsp.f90", 0o644),
        ("lib/libbsp.a", 0o644),
        ("lib/libbsp.so", 0o755),
        ("lib/libbsp.so.0", 0o755),
        ("lib/pkgconfig/bsp.pc", 0o644),
        ("lib/libfabric/libdipole-fi.so", 0o755),
        ("lib/libdipole-sockets.so", 0o755),
        ("lib/libdipole.a", 0o644),
        ("lib/libdipole.so", 0o755),
        ("lib/libdipole.so.0", 0o755),
        ("lib/pkgconfig/dipole.pc", 0o644),
        ("share/man/man1/dipole-bench.1", 0o644),
        ("share/man/man1/bspcc.1", 0o644),
        ("share/man/man3/bsp_put.3", 0o644),
        ("share/man/man3/dp_open.3", 0o644),
        ("share/man/man7/bsp.7", 0o644),
        ("share/man/man7/dipole.7", 0o644),
        ("share/man/man8/dipole-broker.8", 0o644),
        ("share/bash-completion/completions/dipole", 0o644),
        ("share/zsh/site-functions/_dipole", 0o644),
        ("share/fish/vendor_completions.d/dipole.fish", 0o644),
        ("lib/systemd/user/dipole-agent.service", 0o644),
        ("lib/systemd/system/dipole-broker.service", 0o644),
    ] {
        let found =
            fs::metadata(installed.join(file)).unwrap_or_else(|cause| panic!("{file}: {cause}"));
        assert_eq!(found.permissions().mode() & 0o777, mode, "{file}");
    }
    let version = run(Command::new(installed.join("bin/dipole")).arg("--version"));
    assert!(version.starts_with("dipole "), "{version}");

    // Outside the tree, as a user would, with the paths of pkg-config.
    fs::write(testbed.path().join("outside.c"), PROGRAM).expect("a file");
    let pkg_config = |package: &str, what: &[&str]| -> Option<Vec<String>> {
        let mut command = Command::new("pkg-config");
        command
            .args(what)
            .arg(package)
            .env("PKG_CONFIG_PATH", installed.join("lib/pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", &destdir);
        let output = command.output().ok()?;
        assert!(output.status.success(), "{command:?}: {}", said(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text.split_whitespace().map(str::to_owned).collect())
    };
    let words = |package: &str| match (
        pkg_config(package, &["--cflags", "--libs"]),
        pkg_config(package, &["--cflags", "--libs", "--static"]),
    ) {
        (Some(dynamic), Some(fixed)) => (dynamic, fixed),
        _ => {
            eprintln!("pkg-config is missing (package pkg-config): SKIPPED, paths given by hand");
            let include = format!("-I{}", installed.join("include").display());
            let folder = format!("-L{}", installed.join("lib").display());
            let library = format!("-l{package}");
            let words = |more: &[&str]| -> Vec<String> {
                let first = [&include, &folder, &library].map(String::as_str);
                first.iter().chain(more).map(ToString::to_string).collect()
            };
            (words(&[]), words(&["-lpthread", "-lm", "-ldl"]))
        }
    };
    let compile = |name: &str, source: &str, words: &[String]| {
        run(Command::new("cc")
            .current_dir(testbed.path())
            .args(["-Wall", "-Wextra", "-Werror", "-o", name, source])
            .args(words));
    };
    // The static library by its path, because -l would use the shared one.
    let archived = |package: &str, words: Vec<String>| -> Vec<String> {
        let archive = installed.join(format!("lib/lib{package}.a"));
        let shared = format!("-l{package}");
        let replaced = words.into_iter().map(|word| match word == shared {
            true => archive.display().to_string(),
            false => word,
        });
        replaced.collect()
    };
    let (dynamic, fixed) = words("dipole");
    compile("dynamic", "outside.c", &dynamic);
    compile("fixed", "outside.c", &archived("dipole", fixed));
    for (name, library_path) in [("dynamic", Some(installed.join("lib"))), ("fixed", None)] {
        let mut program = Command::new(testbed.path().join(name));
        program
            .env_clear()
            .env("DIPOLE_RUNTIME_DIR", testbed.path().join("runtime"))
            .envs(library_path.map(|path| ("LD_LIBRARY_PATH", path)));
        assert_eq!(run(&mut program), "outside\n", "{name}");
    }

    fs::write(testbed.path().join("supersteps.c"), IN_SUPERSTEPS).expect("a file");
    fs::write(testbed.path().join("supersteps.f90"), IN_FORTRAN).expect("a file");
    let (dynamic, fixed) = words("bsp");
    compile("bsp-dynamic", "supersteps.c", &dynamic);
    compile("bsp-fixed", "supersteps.c", &archived("bsp", fixed));
    let bspcc = |name: &str, words: &[&str]| {
        run(Command::new(installed.join("bin/bspcc"))
            .current_dir(testbed.path())
            .args(["-Wall", "-Wextra", "-Werror", "-o", name])
            .args(words));
    };
    bspcc("bsp-cc", &["supersteps.c"]);
    bspcc(
        "bsp-large",
        &[
            "--mcbsp",
            "-Wno-format",
            "-Wno-sign-compare",
            "supersteps.c",
        ],
    );
    let mut programs = vec!["bsp-dynamic", "bsp-fixed", "bsp-cc", "bsp-large"];
    if Command::new("gfortran").arg("--version").output().is_ok() {
        bspcc("bsp-fortran", &["supersteps.f90"]);
        programs.push("bsp-fortran");
    } else {
        eprintln!("SKIPPED: gfortran is not installed (package gfortran)");
    }
    for name in programs {
        // Programs linked with pkg-config's flags need the path of the library.
        let library_path = (name == "bsp-dynamic").then(|| installed.join("lib"));
        let mut command = Command::new(installed.join("bin/bsprun"));
        command
            .args(["-npes", "3"])
            .arg(testbed.path().join(name))
            .env_remove("LD_LIBRARY_PATH")
            .envs(library_path.map(|path| ("LD_LIBRARY_PATH", path)));
        assert_eq!(run(&mut command), "round of 3\n", "{name}");
    }

    // An error of one rank ends all ranks.
    let mut failing = Command::new(installed.join("bin/bsprun"));
    failing
        .args(["-npes", "2", "-splitio"])
        .arg(testbed.path().join("bsp-cc"));
    let output = failing.output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let message = "superstep 2: bsp_abort at supersteps.c:14: ";
    assert!(said(&output).contains(message), "{}", said(&output));

    run(&mut xtask("uninstall", &destdir));
    assert_eq!(files(&destdir), Vec::<PathBuf>::new());
    let again = xtask("uninstall", &destdir).output().expect("it starts");
    assert!(
        !again.status.success() && said(&again).contains("nothing to uninstall"),
        "{}",
        said(&again)
    );
}

#[test]
fn a_relative_prefix_is_refused() {
    let testbed = tempfile::tempdir().expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["install", "--prefix", "somewhere"])
        .env("DESTDIR", testbed.path())
        .output()
        .expect("it starts");
    assert!(!output.status.success());
    assert!(said(&output).contains("not absolute"), "{}", said(&output));
    assert_eq!(files(testbed.path()), Vec::<PathBuf>::new());
}

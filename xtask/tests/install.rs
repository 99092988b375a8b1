//! Tests an installation with a C program outside the tree, and removes it.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{run, said};
use tempfile::TempDir;

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

/// Installed files and their modes.
const INSTALLED: [(&str, u32); 32] = [
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
    ("lib/dipole/libdipole-sockets.so", 0o755),
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
    ("lib/systemd/system/dipole-agent@.service", 0o644),
    ("lib/systemd/system/dipole-broker.service", 0o644),
];

/// Flags for the compiler to link a program with a library.
struct Flags {
    shared: Vec<String>,
    /// With the static library by its path, because `-l` would use the shared one.
    archived: Vec<String>,
}

/// An installation below a temporary directory.
struct Installation {
    testbed: TempDir,
    destdir: PathBuf,
    /// The prefix in the temporary directory.
    prefix: PathBuf,
}

impl Installation {
    fn new() -> Installation {
        let testbed = tempfile::tempdir().expect("a directory");
        let destdir = testbed.path().join("image");
        // Install twice: an installation replaces an older one.
        for _ in 0..2 {
            run(xtask("install", &destdir).args(["--profile", "dev"]));
        }
        let prefix = destdir.join(PREFIX.trim_start_matches('/'));
        Installation {
            testbed,
            destdir,
            prefix,
        }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.testbed.path().join(name), text).expect("a file");
    }

    /// The output of `pkg-config`; `None` if that is not installed.
    fn pkg_config(&self, package: &str, options: &[&str]) -> Option<Vec<String>> {
        let mut command = Command::new("pkg-config");
        command
            .args(options)
            .arg(package)
            .env("PKG_CONFIG_PATH", self.prefix.join("lib/pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", &self.destdir);
        let output = command.output().ok()?;
        assert!(output.status.success(), "{command:?}: {}", said(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text.split_whitespace().map(str::to_owned).collect())
    }

    fn flags(&self, package: &str) -> Flags {
        let shared = self.pkg_config(package, &["--cflags", "--libs"]);
        let fixed = self.pkg_config(package, &["--cflags", "--libs", "--static"]);
        let (shared, fixed) = shared.zip(fixed).unwrap_or_else(|| {
            eprintln!("pkg-config is missing (package pkg-config): SKIPPED, paths given by hand");
            let shared = vec![
                format!("-I{}", self.prefix.join("include").display()),
                format!("-L{}", self.prefix.join("lib").display()),
                format!("-l{package}"),
            ];
            let system = ["-lgcc_eh", "-lpthread", "-lm", "-ldl"].map(str::to_owned);
            (shared.clone(), [shared, system.to_vec()].concat())
        });
        let archive = self.prefix.join(format!("lib/lib{package}.a"));
        let library = format!("-l{package}");
        let archived = fixed.into_iter().map(|flag| match flag == library {
            true => archive.display().to_string(),
            false => flag,
        });
        Flags {
            shared,
            archived: archived.collect(),
        }
    }

    /// Runs a compiler in the temporary directory.
    fn compile(&self, compiler: &Path, name: &str, flags: &[impl AsRef<OsStr>]) {
        run(Command::new(compiler)
            .current_dir(self.testbed.path())
            .args(["-Wall", "-Wextra", "-Werror", "-o", name])
            .args(flags));
    }

    /// Compiles a C program with each kind of library.
    fn compile_c(&self, package: &str, source: &str, names: [&str; 2]) {
        let Flags { shared, archived } = self.flags(package);
        let wholly = [vec!["-static".to_owned()], archived.clone()].concat();
        let without_libraries = format!("{}-wholly", names[1]);
        let all = [names[0], names[1], &without_libraries];
        for (name, flags) in all.into_iter().zip([shared, archived, wholly]) {
            let flags = [vec![source.to_owned()], flags].concat();
            self.compile(Path::new("cc"), name, &flags);
        }
        // Other libraries in Rust may be linked to the same program.
        let archive = self.prefix.join(format!("lib/lib{package}.a"));
        let names = run(Command::new("nm")
            .args(["-g", "--defined-only"])
            .arg(&archive));
        let own = |name: &&str| !name.starts_with("_ZN") && !name.starts_with("rust_");
        let names: Vec<&str> = names
            .lines()
            .filter_map(|line| line.split(' ').nth(2))
            .collect();
        assert!(names.len() > 20 && names.iter().all(own), "{names:?}");
        // A section for each function would double its size.
        let headers = run(Command::new("objdump").arg("-h").arg(&archive));
        let sections = headers
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1));
        let code: Vec<&str> = sections.filter(|name| name.starts_with(".text")).collect();
        assert_eq!(code, [".text"], "sections of {package}");
    }

    fn bsprun(&self, options: &[&str], program: &str) -> Command {
        let mut command = Command::new(self.prefix.join("bin/bsprun"));
        command
            .args(options)
            .arg(self.testbed.path().join(program))
            .env_remove("LD_LIBRARY_PATH");
        command
    }

    fn check_files(&self) {
        for (file, mode) in INSTALLED {
            let found = fs::metadata(self.prefix.join(file))
                .unwrap_or_else(|cause| panic!("{file}: {cause}"));
            assert_eq!(found.permissions().mode() & 0o777, mode, "{file}");
        }
        let version = run(Command::new(self.prefix.join("bin/dipole")).arg("--version"));
        assert!(version.starts_with("dipole "), "{version}");
    }

    /// Compiles and runs a C program outside the tree, with the paths of pkg-config.
    fn check_pipes(&self) {
        self.write("outside.c", PROGRAM);
        self.compile_c("dipole", "outside.c", ["dynamic", "fixed"]);
        for (name, library_path) in [("dynamic", Some(self.prefix.join("lib"))), ("fixed", None)] {
            let mut program = Command::new(self.testbed.path().join(name));
            program
                .env_clear()
                .env("DIPOLE_RUNTIME_DIR", self.testbed.path().join("runtime"))
                .envs(library_path.map(|path| ("LD_LIBRARY_PATH", path)));
            assert_eq!(run(&mut program), "outside\n", "{name}");
        }
    }

    /// Compiles and runs BSP programs, in all ways in which they can be linked.
    fn check_supersteps(&self) {
        self.write("supersteps.c", IN_SUPERSTEPS);
        self.write("supersteps.f90", IN_FORTRAN);
        self.compile_c("bsp", "supersteps.c", ["bsp-dynamic", "bsp-fixed"]);
        let bspcc = self.prefix.join("bin/bspcc");
        self.compile(&bspcc, "bsp-cc", &["supersteps.c"]);
        let large = [
            "--mcbsp",
            "-Wno-format",
            "-Wno-sign-compare",
            "supersteps.c",
        ];
        self.compile(&bspcc, "bsp-large", &large);
        let mut programs = vec!["bsp-dynamic", "bsp-fixed", "bsp-cc", "bsp-large"];
        if Command::new("gfortran").arg("--version").output().is_ok() {
            self.compile(&bspcc, "bsp-fortran", &["supersteps.f90"]);
            programs.push("bsp-fortran");
        } else {
            eprintln!("SKIPPED: gfortran is not installed (package gfortran)");
        }
        for name in programs {
            // Programs linked with pkg-config's flags need the path of the library.
            let library_path = (name == "bsp-dynamic").then(|| self.prefix.join("lib"));
            let mut command = self.bsprun(&["-npes", "3"], name);
            command.envs(library_path.map(|path| ("LD_LIBRARY_PATH", path)));
            assert_eq!(run(&mut command), "round of 3\n", "{name}");
        }
        // An error of one rank ends all ranks.
        let mut failing = self.bsprun(&["-npes", "2", "-splitio"], "bsp-cc");
        let output = failing.output().expect("it starts");
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let message = "superstep 2: bsp_abort at supersteps.c:14: ";
        assert!(said(&output).contains(message), "{}", said(&output));
    }

    fn check_uninstall(&self) {
        run(&mut xtask("uninstall", &self.destdir));
        assert_eq!(files(&self.destdir), Vec::<PathBuf>::new());
        let again = xtask("uninstall", &self.destdir)
            .output()
            .expect("it starts");
        assert!(
            !again.status.success() && said(&again).contains("nothing to uninstall"),
            "{}",
            said(&again)
        );
    }
}

#[test]
fn installed_programs_and_libraries_work_and_are_removed_completely() {
    let installation = Installation::new();
    installation.check_files();
    installation.check_pipes();
    installation.check_supersteps();
    installation.check_uninstall();
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

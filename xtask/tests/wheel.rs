//! The wheel in a fresh virtual environment without network: module, program, libraries.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::run;
use dipole_testbed::isolated_command;

const MODULE: &str = "
import dipole, sys
with dipole.Endpoint(7) as inbox, dipole.Endpoint() as outbox:
    outbox.send({'wheel': 1}, to=inbox.address)
    assert inbox.recv(timeout=60) == {'wheel': 1}
assert dipole.__file__.startswith(sys.prefix)
";
const DASK: &str = "
from distributed import Client, LocalCluster
if __name__ == '__main__':
    options = dict(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with LocalCluster(protocol='dipole', **options) as cluster, Client(cluster) as client:
        assert cluster.scheduler_address.startswith('dipole://'), cluster.scheduler_address
        assert client.submit(sum, client.map(abs, range(-10, 0))).result() == 55
        print('workers:', *sorted(client.scheduler_info()['workers']))
";
const C_PROGRAM: &str = "
#include <dipole.h>
#include <stdio.h>
int main(void) { return puts(dp_version()) < 0; }
";
const BSP_PROGRAM: &str = "
#include <bsp.h>
int main(void) { bsp_begin(bsp_nprocs()); bsp_end(); return 0; }
";

/// Builds a wheel into a folder.
fn wheel(folder: &Path) -> PathBuf {
    let mut build = Command::new(env!("CARGO_BIN_EXE_xtask"));
    build.args(["wheel", "--profile", "dev", "--output"]);
    let said = run(build.arg(folder));
    PathBuf::from(said.lines().last().expect("its path"))
}

/// A Python that can make environments; `None` with a message if this machine has none.
fn python() -> Option<&'static str> {
    let able = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))";
    let found = ["/usr/bin/python3", "python3"].into_iter().find(|name| {
        let tried = Command::new(name).args(["-c", able]).output();
        tried.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        eprintln!("SKIPPED: Python 3.11 with ensurepip (package python3-venv) is not installed");
    }
    found
}

#[test]
fn a_wheel_is_all_that_a_user_needs() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let first = wheel(&at("one"));
    let second = wheel(&at("two"));
    assert_eq!(first.file_name(), second.file_name());
    let same = fs::read(&first).expect("a wheel") == fs::read(&second).expect("a wheel");
    assert!(same, "two wheels of the same build differ");

    let inside = |program: &str| {
        let mut command = isolated_command(at("env/bin").join(program));
        command.env("DIPOLE_NID", "1").current_dir(folder.path());
        command
    };
    run(Command::new(python).args(["-m", "venv"]).arg(at("env")));
    let install = ["install", "--no-index", "--no-cache-dir"];
    run(inside("pip").args(install).arg(&first));
    run(inside("python").args(["-c", MODULE]));
    let version = run(inside("dipole").arg("--version"));
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    let variables = run(inside("dipole").args(["mpi-env", "openmpi"]));
    let provider = at("env/lib/libfabric");
    assert!(variables.contains(&format!("FI_PROVIDER_PATH={}", provider.display())));
    assert!(provider.join("libdipole-fi.so").is_file());
    assert!(at("env/share/man/man1/dipole-run.1").is_file());

    // Dask comes from the package index.
    let mut dask = inside("pip");
    dask.args(["install", "--quiet", "--retries", "0", "distributed"]);
    let has_dask = dask.output().is_ok_and(|output| output.status.success());
    if has_dask {
        fs::write(at("dask_program.py"), DASK).expect("a file");
        let workers = run(inside("python").arg("dask_program.py"));
        assert_eq!(workers.matches("dipole://1:").count(), 2, "{workers}");
    } else {
        eprintln!("SKIPPED: Dask: the package `distributed` cannot be installed");
    }

    fs::write(at("c.c"), C_PROGRAM).expect("a file");
    let mut options = Command::new("pkg-config");
    options.args(["--cflags", "--libs", "dipole"]);
    let options = run(options.env("PKG_CONFIG_PATH", at("env/lib/pkgconfig")));
    let mut compile = Command::new("cc");
    compile.arg("-o").arg(at("c")).arg(at("c.c"));
    run(compile.args(options.split_whitespace()));
    let mut program = isolated_command(at("c"));
    run(program.env("LD_LIBRARY_PATH", at("env/lib")));
    fs::write(at("b.c"), BSP_PROGRAM).expect("a file");
    run(inside("bspcc").args(["-o", "b", "b.c"]));
    run(inside("bsprun").args(["-npes", "2", "./b"]));

    run(inside("pip").args(["uninstall", "--yes", "dipole"]));
    for left in ["bin/dipole", "lib/libdipole.so.0", "include/dipole.h"] {
        assert!(!at("env").join(left).exists(), "{left} is left");
    }
}

//! Tests packages: a Debian package in a clean system, and crates for a registry.

#![allow(missing_docs, reason = "tests")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use common::run;

fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace")
}

/// Runs in a copy of a system without the source tree. Changes are written to memory that is freed
/// with the namespace.
const IN_A_CLEAN_ROOT: &str = r##"
set -e
mount -t tmpfs none "$1"
mkdir "$1/new" "$1/work" "$1/system"
mount -t overlay none -o "lowerdir=$4,upperdir=$1/new,workdir=$1/work" "$1/system"
if [ -d "$1/system$2" ]; then mount -t tmpfs none "$1/system$2"; fi
mount -t tmpfs none "$1/system/tmp"
mount --rbind /dev "$1/system/dev"
mount -t proc none "$1/system/proc"
cp "$3"/*.deb "$3/program.c" "$1/system/tmp"
exec chroot "$1/system" /bin/sh -exc '
    cd /tmp
    PATH=/usr/sbin:/usr/bin:/sbin:/bin
    # The index of all pages of the system takes long and is not ours.
    rm -f /var/lib/man-db/auto-update
    dpkg --install *.deb
    dpkg --verify dipole libdipole0 libdipole-dev
    dipole --version
    DIPOLE_RUNTIME_DIR=/tmp/runtime dipole doctor
    DIPOLE_RUNTIME_DIR=/tmp/runtime dipole recv 7 --out copy & dipole_recv=$!
    DIPOLE_RUNTIME_DIR=/tmp/runtime dipole send 1:7 program.c
    wait $dipole_recv
    cmp copy program.c
    man=$(dpkg --listfiles dipole | grep "/dipole-bench\.1\.gz$")
    gzip --test "$man"
    cc -Wall -Wextra -Werror -o program program.c -ldipole
    DIPOLE_RUNTIME_DIR=/tmp/runtime ./program
    echo "#include <bsp.h>
int main(void) { bsp_begin(bsp_nprocs()); bsp_end(); return 0; }" >bsp.c
    bspcc -o bsp bsp.c && ldd ./bsp | grep libbsp && bsprun -npes 2 ./bsp
    dipole mpi-env openmpi | grep FI_PROVIDER_PATH
    dpkg --remove dipole libdipole-dev libdipole0
    ! [ -e /usr/bin/dipole ] && ! [ -e /usr/include/dipole.h ] && echo nothing is left
'
"##;

const PROGRAM: &str = r#"
#include <dipole.h>
#include <stdio.h>

int main(void)
{
    char *address;
    int out = dp_open(8), in = dp_open(7);
    if (out < 0 || in < 0 || dp_target(out, 1, 7) < 0
        || dp_write(out, "packed", 7) != 7 || dp_read(in, &address) != 7) {
        fprintf(stderr, "%s\n", dp_error());
        return 1;
    }
    puts(address);
    return 0;
}
"#;

/// A new system with a compiler, created once; `None`, with a message, where that is not possible.
fn clean_root() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("debian");
    if root.exists() {
        return Some(root);
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let codename = release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))?;
    let unfinished = root.with_extension("new");
    let _of_one_that_was_interrupted = fs::remove_dir_all(&unfinished);
    let made = Command::new("debootstrap")
        .args(["--variant=minbase", "--include=gcc,libc6-dev", codename])
        .arg(&unfinished)
        .stdin(Stdio::null())
        .output();
    match made {
        Ok(output) if output.status.success() => {
            fs::rename(&unfinished, &root).expect("the name is free");
            return Some(root);
        }
        Ok(output) => eprintln!("{}", String::from_utf8_lossy(&output.stdout)),
        Err(cause) => eprintln!("debootstrap cannot be started: {cause}"),
    }
    eprintln!("there is no new system, so the package goes into a copy of this one");
    None
}

/// Why no package can be installed here.
fn why_not() -> Option<&'static str> {
    let works = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    };
    if !works("dpkg-deb", &["--version"]) || !works("dpkg-shlibdeps", &["--version"]) {
        Some("dpkg-deb or dpkg-shlibdeps is missing (package dpkg-dev)")
    } else if !works("unshare", &["--mount", "true"]) {
        Some("it needs root and unshare")
    } else if !fs::read_to_string("/proc/filesystems").is_ok_and(|all| all.contains("\toverlay")) {
        Some("the kernel has no overlay file system")
    } else {
        None
    }
}

/// Each package has its files, with modes for all users, and names the packages that it needs.
fn check_packages(packages: &[PathBuf]) {
    let package = |name: &str| {
        let is_it = |file: &&PathBuf| file.to_string_lossy().contains(&format!("/{name}_"));
        packages.iter().find(is_it).expect("it was built")
    };
    let fields = |name| run(Command::new("dpkg-deb").arg("--field").arg(package(name)));
    for (name, needs) in [
        ("dipole", "libc6 (>= "),
        ("libdipole0", "libc6 (>= "),
        ("libdipole-dev", "libdipole0 (= "),
    ] {
        let fields = fields(name);
        let depends = fields.lines().find(|line| line.starts_with("Depends:"));
        assert!(depends.is_some_and(|line| line.contains(needs)), "{fields}");
    }
    for (name, files) in [
        (
            "dipole",
            &[
                "./usr/bin/dipole",
                "./usr/sbin/dipole-broker",
                "./usr/lib/dipole/libdipole-sockets.so",
                "./usr/lib/systemd/user/dipole-agent.service",
                "./usr/lib/systemd/system/dipole-agent@.service",
                "./usr/lib/systemd/system/dipole-broker.service",
                "./usr/share/doc/dipole/copyright",
            ][..],
        ),
        (
            "libdipole0",
            &[
                "./usr/lib/libdipole.so.0 -> libdipole.so.",
                "./usr/lib/libbsp.so.0 -> libbsp.so.",
                "./usr/lib/libfabric/libdipole-fi.so",
            ],
        ),
        (
            "libdipole-dev",
            &[
                "./usr/include/dipole.h",
                "./usr/lib/libdipole.a",
                "./usr/lib/libdipole.so -> libdipole.so.0",
                "./usr/share/man/man3/dp_open.3.gz",
            ],
        ),
    ] {
        let contents = run(Command::new("dpkg-deb")
            .arg("--contents")
            .arg(package(name)));
        for file in files {
            assert!(contents.contains(file), "{name} {file}: {contents}");
        }
        for line in contents.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(words[1], "root/root", "{line}");
            let is_link = words[0].starts_with('l');
            assert!(is_link || words[0].as_bytes()[5] == b'-', "{line}");
        }
    }
}

/// Debian's checker finds no errors.
fn check_with_lintian(packages: &[PathBuf]) {
    let found = Command::new("lintian")
        .args([
            "--allow-root",
            "--fail-on",
            "error",
            "--tag-display-limit",
            "0",
        ])
        .args(packages)
        .output();
    match found {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}");
        }
        Err(cause) => eprintln!("SKIPPED: lintian cannot be started: {cause} (package lintian)"),
    }
}

#[test]
fn the_package_is_installed_used_and_removed_in_a_clean_root() {
    if let Some(reason) = why_not() {
        eprintln!("SKIPPED: {reason}");
        return;
    }
    // Both take long, and one waits for the network.
    let system = thread::spawn(clean_root);
    let place = tempfile::tempdir().expect("a directory");
    run(Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["package", "--profile", "dev", "--output"])
        .arg(place.path()));
    let packages: Vec<PathBuf> = fs::read_dir(place.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert_eq!(packages.len(), 3, "{packages:?}");
    check_packages(&packages);
    check_with_lintian(&packages);

    fs::write(place.path().join("program.c"), PROGRAM).expect("a file");
    let mount = tempfile::tempdir().expect("a directory");
    let system = system.join().expect("no panic");
    let system = system.unwrap_or_else(|| PathBuf::from("/"));
    let said = run(Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--"])
        .args(["sh", "-c", IN_A_CLEAN_ROOT, "sh"])
        .args([mount.path(), root(), place.path(), &system])
        .env_remove("LD_LIBRARY_PATH"));
    let version = format!("\ndipole {}", env!("CARGO_PKG_VERSION"));
    for line in [
        &*version,
        "\npacked\n",
        "FI_PROVIDER_PATH=/usr/lib/libfabric",
        "libbsp.so.0 => ",
        "nothing is left",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

/// The crates of the workspace by name, from cargo metadata.
fn crates() -> BTreeMap<String, serde_json::Value> {
    let facts = run(dipole_testbed::built::cargo()
        .current_dir(root())
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .args(["--offline", "--locked"]));
    let facts: serde_json::Value = serde_json::from_str(&facts).expect("JSON");
    let packages = facts["packages"].as_array().expect("packages");
    let named = |package: &serde_json::Value| package["name"].as_str().map(str::to_owned);
    packages
        .iter()
        .map(|package| (named(package).expect("a name"), package.clone()))
        .collect()
}

#[test]
fn what_rust_programs_depend_on_can_be_published() {
    let crates = crates();
    let mut needed = vec!["dipole-group".to_owned()];
    let mut seen = BTreeSet::new();
    while let Some(name) = needed.pop() {
        if !seen.insert(name.clone()) {
            continue;
        }
        let package = &crates[&name];
        assert!(package["publish"].is_null(), "{name} may be published");
        for field in ["description", "license"] {
            let text = package[field].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{name} has no {field}");
        }
        for dependency in package["dependencies"].as_array().expect("a list") {
            // A registry takes no path dependencies; dev-dependencies without a version are
            // dropped.
            if dependency["path"].is_null() || dependency["kind"] == "dev" {
                continue;
            }
            let on = dependency["name"].as_str().expect("a name");
            let version = format!("^{}", env!("CARGO_PKG_VERSION"));
            assert_eq!(dependency["req"], *version, "{name} needs {on}");
            needed.push(on.to_owned());
        }
    }
    assert!(seen.contains("dipole-proto"), "{seen:?}");
    let place = tempfile::tempdir().expect("a directory");
    let packages = seen.iter().flat_map(|name| ["--package", name]);
    run(dipole_testbed::built::cargo()
        .current_dir(root())
        .args(["package", "--offline", "--locked", "--allow-dirty"])
        .args(["--no-verify", "--target-dir"])
        .arg(place.path())
        .args(packages));
}

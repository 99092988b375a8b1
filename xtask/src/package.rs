//! Debian packages of the files that `install` installs below `/usr`, without debugging symbols, with
//! their dependencies: the programs (`dipole`), the libraries (`libdipole0`), and the headers and
//! static libraries (`libdipole-dev`).
//!
//! The libraries are in `/usr/lib`, where compilers, pkg-config and the dynamic linker look on
//! every such system. libfabric does not look in `/usr/lib/libfabric`, so only programs with
//! FI_PROVIDER_PATH load the provider.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::command::{Failure, at, describe, output_of, root, run};
use crate::install;
use crate::target::Target;

const PREFIX: &str = "/usr";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const WHAT: &str = " Directed-point messaging between processes of one machine and of several, by
 shared memory, UDP and rings that the kernel fills.";

/// A package and the files that belong to it.
struct Package {
    name: &'static str,
    section: &'static str,
    summary: &'static str,
    text: &'static str,
    /// Relations besides the libraries that the files need.
    relations: &'static str,
    owns: fn(&Path) -> bool,
}

/// The packages. A file belongs to the first one that claims it.
const PACKAGES: [Package; 3] = [
    Package {
        name: "libdipole-dev",
        section: "libdevel",
        summary: "low-latency messages over ordinary networks (development files)",
        text: " Headers, static libraries and manual pages for C, and the compiler script of\n BSPlib.",
        relations: "Depends: libdipole0 (= VERSION)\nSuggests: gcc, libc6-dev, pkg-config\n",
        owns: is_for_development,
    },
    Package {
        name: "libdipole0",
        section: "libs",
        summary: "low-latency messages over ordinary networks (shared libraries)",
        text: " The libraries dipole and BSPlib, and a provider of libfabric for MPI.",
        relations: "Depends: LIBRARIES\nSuggests: libfabric1\n",
        owns: is_library,
    },
    Package {
        name: "dipole",
        section: "net",
        summary: "low-latency messages over ordinary networks (programs)",
        text: " The program dipole, its manual pages, and systemd units of the agent and the\n broker, \
               of which none is started.",
        relations: "Depends: LIBRARIES\nSuggests: libdipole0, openssh-client, iproute2\n",
        owns: |_| true,
    },
];

fn is_for_development(file: &Path) -> bool {
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    let is_link = matches!(name, "libdipole.so" | "libbsp.so");
    let is_script = file.starts_with("bin") && name != "dipole" && name != "bsprun";
    ["include", "lib/pkgconfig", "share/man/man3"]
        .iter()
        .any(|folder| file.starts_with(folder))
        || is_link
        || is_script
        || file.extension().is_some_and(|extension| extension == "a")
}

/// True for the libraries of programs. The preloaded one belongs to `dipole sockets`.
fn is_library(file: &Path) -> bool {
    let name = file
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or("");
    name.contains(".so") && name != "libdipole-sockets.so"
}

/// Options of `package` and `wheel`.
#[derive(Args)]
pub(crate) struct Options {
    /// Directory for the package
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) output: PathBuf,
    /// Cargo profile
    #[arg(long, default_value = "dist")]
    pub(crate) profile: String,
}

/// Builds the packages.
pub(crate) fn package(arguments: &Options) -> Result<(), Failure> {
    let architecture =
        output_of(Command::new("dpkg").arg("--print-architecture")).ok_or_else(|| {
            Failure::Text(
                "dpkg is missing: build the package on Debian or one of its relatives, or in a \
             container (examples/container)"
                    .to_owned(),
            )
        })?;
    let built = install::build(&arguments.profile, Target::default(), &[])?;
    let place = tempfile::tempdir().map_err(at(&std::env::temp_dir()))?;
    let whole = place.path().join("usr");
    let mut files = install::put_all(&built, Path::new(PREFIX), &whole)?;
    fs::create_dir_all(&arguments.output).map_err(at(&arguments.output))?;
    for package in &PACKAGES {
        let (own, others) = files.into_iter().partition(|file| (package.owns)(file));
        files = others;
        // The mode of the image's root becomes that of the system's root when it is unpacked.
        let image = place.path().join(package.name);
        take(&own, &whole, &image.join("usr"))?;
        documents(package, &image, &own)?;
        let depends = match package.relations.contains("LIBRARIES") {
            true => depends(place.path(), &image, &own)?,
            false => String::new(),
        };
        control(package, &image, architecture.trim(), &depends)?;
        for folder in folders(&image)? {
            mode(&folder, 0o755)?;
        }
        pack(package, &image, architecture.trim(), arguments)?;
    }
    Ok(())
}

/// Moves files from the folder of all files to that of a package.
fn take(files: &[PathBuf], from: &Path, to: &Path) -> Result<(), Failure> {
    for file in files {
        let target = to.join(file);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        fs::rename(from.join(file), &target).map_err(at(&target))?;
        // The dynamic linker does not execute libraries.
        if is_linked(&target) && target.to_string_lossy().contains(".so") {
            mode(&target, 0o644)?;
        }
    }
    Ok(())
}

/// Writes the package of an image.
fn pack(
    package: &Package,
    image: &Path,
    architecture: &str,
    arguments: &Options,
) -> Result<(), Failure> {
    let name = format!("{}_{VERSION}_{architecture}.deb", package.name);
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "--build"]);
    if arguments.profile == "dev" {
        pack.args(["-Zxz", "-z0"]);
    }
    // Files get the time of the commit, so that two packages of one commit are identical.
    if let Some(time) = commit_time() {
        pack.env("SOURCE_DATE_EPOCH", time);
    }
    run(pack.arg(image).arg(arguments.output.join(name)))
}

fn commit_time() -> Option<String> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["log", "-1", "--format=%ct"]);
    Some(output_of(&mut git)?.trim().to_owned())
}

/// Adds licences and changelog, and compresses manual pages, as Debian requires.
fn documents(package: &Package, image: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let folder = image.join("usr/share/doc").join(package.name);
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let from = root().join("LICENSE-MIT");
    let mit = fs::read_to_string(&from).map_err(at(&from))?;
    // The text of the Apache license is on every Debian system.
    let licences = format!(
        "Dipole is licensed under Apache-2.0 OR MIT, as you choose.\n\nThe Apache License, Version \
         2.0, is in /usr/share/common-licenses/Apache-2.0.\n\n{mit}"
    );
    let changes = folder.join("changelog");
    let from = root().join("CHANGELOG.md");
    fs::copy(&from, &changes).map_err(at(&from))?;
    let of_package = folder.join("changelog.Debian");
    let changed = format!(
        "dipole ({VERSION}) unstable; urgency=medium\n\n  * Release {VERSION}.\n\n -- {}  {}\n",
        maintainer(),
        commit_date()
    );
    fs::write(&of_package, changed).map_err(at(&of_package))?;
    let copyright = folder.join("copyright");
    fs::write(&copyright, licences).map_err(at(&copyright))?;
    for file in [&changes, &of_package, &copyright] {
        mode(file, 0o644)?;
    }
    let pages = files.iter().filter(|file| file.starts_with("share/man"));
    let pages = pages.map(|page| image.join("usr").join(page));
    let all = pages.chain([changes, of_package]);
    run(Command::new("gzip").arg("-9n").args(all))
}

/// The variables of Debian's development tools name the maintainer.
fn maintainer() -> String {
    let name = |variable, usual: &str| std::env::var(variable).unwrap_or(usual.to_owned());
    let own = name("DEBFULLNAME", "The Dipole contributors");
    format!("{own} <{}>", name("DEBEMAIL", "dipole@example.org"))
}

/// The time of the commit as Debian writes it.
fn commit_date() -> String {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["log", "-1", "--format=%cD"]);
    let date = output_of(&mut git).map(|date| date.trim().to_owned());
    date.filter(|date| !date.is_empty())
        .unwrap_or_else(|| "Thu, 01 Jan 1970 00:00:00 +0000".to_owned())
}

/// The packages of the libraries that the programs need, with versions.
fn depends(place: &Path, image: &Path, files: &[PathBuf]) -> Result<String, Failure> {
    // dpkg-shlibdeps requires a control file but reads only the package's name.
    let folder = place.join("debian");
    let source = folder.join("control");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    fs::write(
        &source,
        "Source: dipole\n\nPackage: dipole\nArchitecture: any\n",
    )
    .map_err(at(&source))?;
    let linked = files
        .iter()
        .map(|file| image.join("usr").join(file))
        .filter(|file| is_linked(file));
    let mut tool = Command::new("dpkg-shlibdeps");
    tool.current_dir(place).arg("-O").args(linked);
    let output = tool.output().map_err(|cause| {
        Failure::Text(format!(
            "cannot start dpkg-shlibdeps (package dpkg-dev): {cause}"
        ))
    })?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let command = describe(&tool);
        return Err(Failure::Text(format!("{command}: {}", errors.trim())));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let depends = text.trim().strip_prefix("shlibs:Depends=");
    depends
        .map(str::to_owned)
        .ok_or_else(|| Failure::Text(format!("dpkg-shlibdeps printed `{}`", text.trim())))
}

/// True for programs and shared libraries.
fn is_linked(file: &Path) -> bool {
    let is_link = file.is_symlink();
    !is_link && fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"))
}

fn control(
    package: &Package,
    image: &Path,
    architecture: &str,
    depends: &str,
) -> Result<(), Failure> {
    let mut kib = 0;
    for folder in folders(image)? {
        for entry in fs::read_dir(&folder).map_err(at(&folder))?.flatten() {
            let facts = entry.metadata().map_err(at(&entry.path()))?;
            kib += facts.len().div_ceil(1024);
        }
    }
    let folder = image.join("DEBIAN");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let Package {
        name,
        section,
        summary,
        text,
        relations,
        ..
    } = package;
    let relations = relations
        .replace("VERSION", VERSION)
        .replace("LIBRARIES", depends);
    let text = format!(
        "Package: {name}\nSource: dipole\nVersion: {VERSION}\nArchitecture: {architecture}\n\
         Maintainer: {}\nInstalled-Size: {kib}\n{relations}Section: {section}\nPriority: optional\n\
         Description: {summary}\n{WHAT}\n{text}\n",
        maintainer()
    );
    let mut all = vec![("control", text)];
    if *name == "libdipole0" {
        // Updates the cache of the dynamic linker.
        all.push(("triggers", "activate-noawait ldconfig\n".to_owned()));
        let lines = ["libdipole", "libbsp"].map(|library| format!("{library} 0 {name}\n"));
        all.push(("shlibs", lines.concat()));
    }
    for (name, text) in all {
        let file = folder.join(name);
        fs::write(&file, text).map_err(at(&file))?;
        mode(&file, 0o644)?;
    }
    Ok(())
}

/// A folder and all folders below it.
fn folders(top: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut found = vec![top.to_owned()];
    let mut at_folder = 0;
    while let Some(folder) = found.get(at_folder).cloned() {
        at_folder += 1;
        for entry in fs::read_dir(&folder).map_err(at(&folder))? {
            let entry = entry.map_err(at(&folder))?;
            if entry.file_type().map_err(at(&folder))?.is_dir() {
                found.push(entry.path());
            }
        }
    }
    Ok(found)
}

fn mode(path: &Path, mode: u32) -> Result<(), Failure> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(at(path))
}

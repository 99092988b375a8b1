//! A Debian package of the files that `install` installs below `/usr`, without debugging symbols,
//! with its dependencies.
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

const PREFIX: &str = "/usr";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const DESCRIPTION: &str = "low-latency messages over ordinary networks
 Directed-point messaging between processes of one machine and of several, by
 shared memory, UDP and rings that the kernel fills. With the program dipole,
 libraries and headers for C (dipole, BSPlib), a provider of libfabric for MPI,
 manual pages, and systemd units of the agent, of which none is started.";

/// Options of `package` and `wheel`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Directory for the package
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) output: PathBuf,
    /// Cargo profile
    #[arg(long, default_value = "dist")]
    pub(crate) profile: String,
}

/// Builds the package and prints its path.
pub(crate) fn package(arguments: &Arguments) -> Result<(), Failure> {
    let architecture =
        output_of(Command::new("dpkg").arg("--print-architecture")).ok_or_else(|| {
            Failure::Text(
                "dpkg is missing: build the package on Debian or one of its relatives, or in a \
             container (examples/container)"
                    .to_owned(),
            )
        })?;
    let built = install::build(&arguments.profile, &[])?;
    let place = tempfile::tempdir().map_err(at(&std::env::temp_dir()))?;
    // The mode of the image's root becomes that of the system's root when it is unpacked.
    let image = place.path().join("image");
    let files = install::put_all(&built, Path::new(PREFIX), &image.join("usr"))?;
    documents(&image, &files)?;
    let depends = depends(place.path(), &image, &files)?;
    control(&image, architecture.trim(), &depends)?;
    for folder in folders(&image)? {
        mode(&folder, 0o755)?;
    }
    fs::create_dir_all(&arguments.output).map_err(at(&arguments.output))?;
    let package = arguments
        .output
        .join(format!("dipole_{VERSION}_{}.deb", architecture.trim()));
    let mut pack = Command::new("dpkg-deb");
    pack.args(["--root-owner-group", "--build"]);
    if arguments.profile == "dev" {
        pack.arg("-Znone");
    }
    // Files get the time of the commit, so that two packages of one commit are identical.
    if let Some(time) = commit_time() {
        pack.env("SOURCE_DATE_EPOCH", time);
    }
    run(pack.arg(&image).arg(&package))
}

fn commit_time() -> Option<String> {
    let mut git = Command::new("git");
    git.current_dir(root()).args(["log", "-1", "--format=%ct"]);
    Some(output_of(&mut git)?.trim().to_owned())
}

/// Adds licences and changelog, and compresses manual pages, as Debian requires.
fn documents(image: &Path, files: &[PathBuf]) -> Result<(), Failure> {
    let folder = image.join("usr/share/doc/dipole");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let mut licences = "Dipole is licensed under Apache-2.0 OR MIT, as you choose.\n".to_owned();
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let from = root().join(name);
        licences += &format!("\n{}", fs::read_to_string(&from).map_err(at(&from))?);
    }
    let changes = folder.join("changelog");
    let from = root().join("CHANGELOG.md");
    fs::copy(&from, &changes).map_err(at(&from))?;
    let copyright = folder.join("copyright");
    fs::write(&copyright, licences).map_err(at(&copyright))?;
    mode(&changes, 0o644)?;
    mode(&copyright, 0o644)?;
    let pages = files.iter().filter(|file| file.starts_with("share/man"));
    let pages = pages.map(|page| image.join("usr").join(page));
    run(Command::new("gzip").arg("-9n").args(pages.chain([changes])))
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

fn control(image: &Path, architecture: &str, depends: &str) -> Result<(), Failure> {
    let name = |variable, usual: &str| std::env::var(variable).unwrap_or(usual.to_owned());
    // The variables of Debian's development tools.
    let maintainer = name("DEBFULLNAME", "The Dipole contributors");
    let address = name("DEBEMAIL", "dipole@localhost");
    let mut kib = 0;
    for folder in folders(image)? {
        for entry in fs::read_dir(&folder).map_err(at(&folder))?.flatten() {
            let facts = entry.metadata().map_err(at(&entry.path()))?;
            kib += facts.len().div_ceil(1024);
        }
    }
    let folder = image.join("DEBIAN");
    fs::create_dir_all(&folder).map_err(at(&folder))?;
    let text = format!(
        "Package: dipole\nVersion: {VERSION}\nArchitecture: {architecture}\n\
         Maintainer: {maintainer} <{address}>\nInstalled-Size: {kib}\n\
         Depends: {depends}\nSuggests: gcc, libc6-dev, pkg-config, libfabric1, openssh-client, iproute2\n\
         Section: net\nPriority: optional\nDescription: {DESCRIPTION}\n"
    );
    for (name, text) in [
        ("control", &*text),
        // Updates the cache of the dynamic linker.
        ("triggers", "activate-noawait ldconfig\n"),
    ] {
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

//! A Python wheel with the module and the files that `install` installs, so that `pip install` is all
//! that a user needs.
//!
//! Files other than the module are in the wheel's data directory, which becomes the prefix of the
//! (virtual) environment: `bin/dipole`, `lib/libdipole.so.0`, `include/dipole.h`. A wheel holds no
//! symbolic links, so the names for linkers are linker scripts.

mod archive;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::command::{Failure, at, output_of, root};
use crate::install;
use crate::package;
use crate::target::Target;
use archive::Archive;

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The oldest Python whose stable ABI has the buffer protocol, as in `crates/python`.
const PYTHON: &str = "cp311-abi3";
/// Modules that other packages find: Dask's backend for `dipole://`.
const ENTRY_POINTS: &str = "[distributed.comm.backends]\ndipole = dipole._dask:Backend\n";
/// Files that have no place in a user's environment: static libraries, services, the privileged
/// broker.
const LEFT_OUT: [&str; 3] = ["lib/systemd", "sbin", "share/dipole"];

/// Options of `wheel`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    package: package::Options,
    #[command(flatten)]
    target: Target,
}

/// Builds the wheel and prints its path.
pub(crate) fn wheel(arguments: &Arguments) -> Result<(), Failure> {
    let package::Options { output, profile } = &arguments.package;
    let built = install::build(profile, arguments.target.clone(), &["dipole-python"])?;
    let place = tempfile::tempdir().map_err(at(&std::env::temp_dir()))?;
    let prefix = place.path().join("prefix");
    // pkg-config fills in the folder of its file, wherever the environment is.
    let mut files = install::put_all(&built, Path::new("${pcfiledir}/../.."), &prefix)?;
    files.retain(|file| {
        let is_static = file.extension().is_some_and(|extension| extension == "a");
        !is_static && !LEFT_OUT.iter().any(|folder| file.starts_with(folder))
    });
    let module = prefix.join("_dipole.abi3.so");
    fs::copy(built.path("lib_dipole.so"), &module).map_err(at(&module))?;
    let target = &built.target;
    install::strip(target, std::slice::from_ref(&module), "--strip-unneeded");
    let linked = files.iter().map(|file| prefix.join(file));
    let linked: Vec<PathBuf> = linked
        .chain([module.clone()])
        .filter(|file| is_elf(file))
        .collect();
    let tag = format!("{PYTHON}-{}", platform(target, &linked)?);

    fs::create_dir_all(output).map_err(at(output))?;
    let path = output.join(format!("dipole-{VERSION}-{tag}.whl"));
    let mut archive = Archive::create(&path, profile != "dev")?;
    add_package(&mut archive, &module)?;
    for file in &files {
        add_data(&mut archive, &prefix, file)?;
    }
    let info = format!("dipole-{VERSION}.dist-info");
    archive.add(&format!("{info}/METADATA"), metadata()?.as_bytes(), false)?;
    let entries = format!("{info}/entry_points.txt");
    archive.add(&entries, ENTRY_POINTS.as_bytes(), false)?;
    let facts = format!(
        "Wheel-Version: 1.0\nGenerator: dipole-xtask {VERSION}\nRoot-Is-Purelib: false\nTag: {tag}\n"
    );
    archive.add(&format!("{info}/WHEEL"), facts.as_bytes(), false)?;
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let text = fs::read(root().join(name)).map_err(at(&root().join(name)))?;
        archive.add(&format!("{info}/licenses/{name}"), &text, false)?;
    }
    let bill = sbom::bill_of_materials(target)?;
    archive.add(
        &format!("{info}/sboms/dipole.cdx.json"),
        bill.as_bytes(),
        false,
    )?;
    archive.finish(&format!("{info}/RECORD"))?;
    println!("{}", path.display());
    Ok(())
}

/// The Python package, and its module.
fn add_package(archive: &mut Archive, module: &Path) -> Result<(), Failure> {
    let folder = root().join("crates/python/dipole");
    let entries = fs::read_dir(&folder).map_err(at(&folder))?;
    let mut sources: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    sources.retain(|path| path.is_file());
    sources.sort();
    for path in sources {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let bytes = fs::read(&path).map_err(at(&path))?;
        archive.add(&format!("dipole/{name}"), &bytes, false)?;
    }
    let bytes = fs::read(module).map_err(at(module))?;
    archive.add("dipole/_dipole.abi3.so", &bytes, true)
}

/// A file of the installation.
fn add_data(archive: &mut Archive, prefix: &Path, file: &Path) -> Result<(), Failure> {
    let from = prefix.join(file);
    let to = format!("dipole-{VERSION}.data/data/{}", file.display());
    let Ok(target) = fs::read_link(&from) else {
        // The file with the whole version is reached only through links.
        let is_linked_to = file.to_string_lossy().ends_with(&format!(".so.{VERSION}"));
        if is_linked_to {
            return Ok(());
        }
        let bytes = fs::read(&from).map_err(at(&from))?;
        return archive.add(&to, &bytes, is_executable(&from));
    };
    // `libdipole.so` leads to `libdipole.so.0`, which leads to the library.
    if file.extension().is_some_and(|extension| extension == "so") {
        let script = format!("INPUT({})\n", target.display());
        return archive.add(&to, script.as_bytes(), false);
    }
    let bytes = fs::read(&from).map_err(at(&from))?;
    archive.add(&to, &bytes, true)
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|facts| facts.permissions().mode() & 0o111 != 0)
}

fn is_elf(file: &Path) -> bool {
    !file.is_symlink() && fs::read(file).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF"))
}

/// The platform tag: the newest version of the C library that a file needs.
fn platform(target: &Target, files: &[PathBuf]) -> Result<String, Failure> {
    let symbols = output_of(target.tool("objdump").arg("-T").args(files)).ok_or_else(|| {
        Failure::Text("objdump failed or is missing (package binutils)".to_owned())
    })?;
    let minor_version = |text: &str| -> Option<u32> {
        let rest = text.trim_matches(['(', ')']).strip_prefix("GLIBC_2.")?;
        rest.split('.').next()?.parse().ok()
    };
    let newest = symbols.split_whitespace().filter_map(minor_version).max();
    let minor = newest.ok_or_else(|| {
        Failure::Text("the files need no GNU C library: build on glibc".to_owned())
    })?;
    Ok(format!("manylinux_2_{minor}_{}", target.processor()))
}

fn metadata() -> Result<String, Failure> {
    let readme = root().join("docs/guide/python.md");
    let readme = fs::read_to_string(&readme).map_err(at(&readme))?;
    Ok(format!(
        "Metadata-Version: 2.4\nName: dipole\nVersion: {VERSION}\n\
         Summary: Messaging with the latency of a supercomputer, on ordinary Linux machines\n\
         License-Expression: Apache-2.0 OR MIT\nLicense-File: LICENSE-MIT\n\
         License-File: LICENSE-APACHE\nRequires-Python: >=3.11\n\
         Keywords: messaging,HPC,MPI,BSP,UDP,shared memory\n\
         Classifier: Operating System :: POSIX :: Linux\n\
         Classifier: Programming Language :: Python :: 3\n\
         Classifier: Programming Language :: Rust\nClassifier: Typing :: Typed\n\
         Description-Content-Type: text/markdown\n\n{readme}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_is_the_newest_that_a_file_needs() {
        let own = std::env::current_exe().unwrap();
        let target = Target::default();
        let tag = platform(&target, &[own]).unwrap();
        assert!(tag.starts_with("manylinux_2_"), "{tag}");
        assert!(platform(&target, &[PathBuf::from("/dev/null")]).is_err());
    }
}

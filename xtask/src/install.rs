//! Installs what has been built, and uninstalls it with the list of installed files.
//!
//! All files are written below `DESTDIR` + `PREFIX`. Paths inside files (such as the pkg-config
//! file) contain only `PREFIX`, as packagers expect.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::command::{Failure, at, cargo, output_of, root, run};
use crate::target::Target;

/// List of installed files, below the prefix.
const LIST: &str = "share/dipole/installed";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Version of the binary interface: the number in the library's soname.
const INTERFACE: &str = "0";
/// Packages to build.
pub(crate) const INSTALLED: [&str; 6] = [
    "dipole-tools",
    "dipole-broker",
    "dipole-capi",
    "dipole-bsp-capi",
    "dipole-fabric",
    "dipole-sockets",
];
/// Libraries for C, shared and static.
const LIBRARIES: [&str; 2] = ["dipole", "bsp"];
/// Sections of static libraries that contain those of all functions and variables.
const MERGED: [&str; 8] = [
    ".text",
    ".rodata",
    ".gcc_except_table",
    ".data.rel.ro",
    ".data",
    ".bss",
    ".tdata",
    ".tbss",
];
/// Headers for C and Fortran.
const HEADERS: [&str; 6] = [
    "dipole.h",
    "bsp.h",
    "bsp_level1.h",
    "bsp_reshuffle.h",
    "mcbsp.h",
    "bsp.f90",
];
/// Directory in which libfabric of the same prefix looks for providers.
const PROVIDER: &str = "lib/libfabric/libdipole-fi.so";
const PROGRAM: u32 = 0o755;
const DATA: u32 = 0o644;
const SHELLS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/dipole"),
    ("zsh", "share/zsh/site-functions/_dipole"),
    ("fish", "share/fish/vendor_completions.d/dipole.fish"),
];

/// Destination of an installation.
#[derive(Args)]
pub(crate) struct Place {
    /// Directory of the installation; absolute
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Directory to write to, in front of the prefix
    #[arg(long, value_name = "DIR", env = "DESTDIR")]
    destdir: Option<PathBuf>,
}

impl Place {
    /// The prefix below DESTDIR.
    fn root(&self) -> Result<PathBuf, Failure> {
        let Ok(inner) = self.prefix.strip_prefix("/") else {
            let prefix = self.prefix.display();
            return Err(Failure::Text(format!(
                "--prefix {prefix} is not absolute; give a path that begins with /"
            )));
        };
        Ok(match &self.destdir {
            Some(destdir) if !destdir.as_os_str().is_empty() => destdir.join(inner),
            _ => self.prefix.clone(),
        })
    }
}

/// Options of `install`.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: Place,
    /// Cargo profile
    #[arg(long, default_value = "release")]
    profile: String,
}

enum Content {
    /// Compiled file, which is stripped.
    Built(PathBuf),
    Copy(PathBuf),
    Text(Vec<u8>),
    Link(String),
}

struct Item {
    /// Path below the prefix.
    to: PathBuf,
    content: Content,
    mode: u32,
}

impl Item {
    fn new(to: impl Into<PathBuf>, content: Content, mode: u32) -> Item {
        Item {
            to: to.into(),
            content,
            mode,
        }
    }
}

/// Builds the programs and installs them.
pub(crate) fn install(arguments: &Arguments) -> Result<(), Failure> {
    let prefix = arguments.place.root()?;
    let built = build(&arguments.profile, Target::default(), &[])?;
    let mut listed = String::new();
    for path in put_all(&built, &arguments.place.prefix, &prefix)? {
        listed += &format!("{}\n", path.display());
        println!("{}", prefix.join(&path).display());
    }
    let list = Item::new(LIST, Content::Text(listed.into_bytes()), DATA);
    put(&prefix, &list)?;
    let folder = arguments.place.prefix.join(PROVIDER);
    let folder = folder.parent().unwrap_or(Path::new("/"));
    println!(
        "MPI uses Dipole with FI_PROVIDER_PATH={} and the variables that `dipole mpi-env` prints",
        folder.display()
    );
    Ok(())
}

/// The results of a build.
pub(crate) struct Built {
    /// The directory with the results.
    folder: PathBuf,
    pub(crate) target: Target,
}

impl Built {
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The output of the built `dipole`.
    fn output_of_program(&self, arguments: &[&str]) -> Result<String, Failure> {
        let mut program = self.target.program(&self.path("dipole"));
        output_of(program.args(arguments)).ok_or_else(|| {
            let program = program.get_program().to_string_lossy().into_owned();
            Failure::Text(format!("dipole {}: {program} failed", arguments.join(" ")))
        })
    }
}

/// Builds what is installed, and `more` packages.
pub(crate) fn build(profile: &str, target: Target, more: &[&str]) -> Result<Built, Failure> {
    let mut build = cargo();
    build.args(["build", "--locked", "--profile", profile]);
    target.add_to(&mut build);
    match profile {
        // With the same features as the tests, so that nothing is built twice. Fuzzers are only checked.
        "dev" => build
            .args(["--workspace", "--exclude", "dipole-fuzz"])
            .args(["--lib", "--bins", "--tests"]),
        _ => {
            let packages = INSTALLED.iter().chain(more);
            build.args(packages.flat_map(|package| ["-p", *package]))
        }
    };
    run(&mut build)?;
    let profile = if profile == "dev" { "debug" } else { profile };
    let folder = target_directory()?.join(target.folder()).join(profile);
    Ok(Built { folder, target })
}

/// Writes the built files, without debugging symbols, to a folder `to`, for a later location of
/// `prefix`; returns their paths below it.
pub(crate) fn put_all(built: &Built, prefix: &Path, to: &Path) -> Result<Vec<PathBuf>, Failure> {
    let items = items(built, prefix)?;
    for item in &items {
        put(to, item)?;
    }
    for name in LIBRARIES {
        let library = built.path(&format!("lib{name}.so"));
        let archive = to.join(format!("lib/lib{name}.a"));
        if let Err(failure) = keep_interface(&built.target, &library, &archive) {
            eprintln!("xtask: {} stays large: {failure}", archive.display());
        }
    }
    // Static libraries keep the symbols for linking.
    for (mode, what) in [(PROGRAM, "--strip-unneeded"), (DATA, "--strip-debug")] {
        let files = items
            .iter()
            .filter(|item| item.mode == mode && matches!(item.content, Content::Built(_)));
        let files: Vec<PathBuf> = files.map(|item| to.join(&item.to)).collect();
        strip(&built.target, &files, what);
    }
    Ok(items.into_iter().map(|item| item.to).collect())
}

/// Replaces the objects of a static library by one with the code that the functions of the shared
/// library need. Its other symbols become local, so that they clash with no other library.
fn keep_interface(target: &Target, library: &Path, archive: &Path) -> Result<(), Failure> {
    let place = tempfile::tempdir().map_err(at(&std::env::temp_dir()))?;
    let mut names = target.tool("nm");
    names.args(["--dynamic", "--defined-only", "--format=posix"]);
    let names = output_of(names.arg(library))
        .ok_or_else(|| Failure::Text("nm failed or is missing (package binutils)".to_owned()))?;
    let names = names
        .lines()
        .filter_map(|line| line.split(['@', ' ']).next());
    let names: Vec<&str> = names.filter(|name| !name.starts_with('_')).collect();
    let (list, object) = (place.path().join("names"), place.path().join("all.o"));
    fs::write(&list, names.join("\n")).map_err(at(&list))?;
    let mut link = target.tool("ld");
    link.args(["-r", "--gc-sections"]);
    link.args(names.iter().flat_map(|name| ["-u", *name]));
    run(link.arg(archive).arg("-o").arg(&object))?;
    let mut hide = target.tool("objcopy");
    hide.arg("--keep-global-symbols").arg(&list);
    // Code for link-time optimisation, which no other compiler reads.
    hide.args([
        "--remove-section",
        ".llvmbc",
        "--remove-section",
        ".llvmcmd",
    ]);
    run(hide.arg(&object))?;
    // A section for each function takes as much room for names and headers as for code.
    let (script, merged) = (place.path().join("merge"), place.path().join("merged.o"));
    let merge = MERGED.map(|name| format!("{name} 0 : {{ *({name} {name}.*) }}\n"));
    let text = format!("SECTIONS {{\n{}}}\n", merge.concat());
    fs::write(&script, text).map_err(at(&script))?;
    let mut link = target.tool("ld");
    link.args(["-r", "-T"]).arg(&script).arg(&object);
    run(link.arg("-o").arg(&merged))?;
    fs::rename(&merged, &object).map_err(at(&object))?;
    run(target.tool("strip").arg("--strip-unneeded").arg(&object))?;
    fs::remove_file(archive).map_err(at(archive))?;
    run(target.tool("ar").arg("rcsD").arg(archive).arg(&object))
}

/// Removes symbols from files. They stay as they are, with a message, if that fails.
pub(crate) fn strip(target: &Target, files: &[PathBuf], what: &str) {
    let stripped = target.tool("strip").arg(what).args(files).status();
    if !stripped.is_ok_and(|status| status.success()) {
        eprintln!("xtask: cannot strip: strip failed or is missing (package binutils)");
    }
}

/// Removes the files of an installation.
pub(crate) fn uninstall(place: &Place) -> Result<(), Failure> {
    let prefix = place.root()?;
    let list = prefix.join(LIST);
    let listed = fs::read_to_string(&list).map_err(|cause| {
        Failure::Text(format!(
            "nothing to uninstall: {}: {cause}; give the --prefix and DESTDIR of the installation",
            list.display()
        ))
    })?;
    let mut folders = BTreeSet::new();
    let lines = listed.lines().chain([LIST]);
    for line in lines.filter(|line| !line.is_empty()) {
        let path = prefix.join(line);
        match fs::remove_file(&path) {
            Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                return Err(at(&path)(cause));
            }
            _ => println!("removed {}", path.display()),
        }
        let above = Path::new(line).ancestors().skip(1);
        folders.extend(
            above
                .filter(|folder| !folder.as_os_str().is_empty())
                .map(Path::to_owned),
        );
    }
    // Deepest first. Folders that are not empty stay.
    for folder in folders.iter().rev() {
        let _ = fs::remove_dir(prefix.join(folder));
    }
    Ok(())
}

fn items(built: &Built, prefix: &Path) -> Result<Vec<Item>, Failure> {
    let copy = |from: &Path| Content::Copy(from.to_owned());
    let program = Content::Built(built.path("dipole"));
    let mut items = vec![Item::new("bin/dipole", program, PROGRAM)];
    let broker = built.path("dipole-broker");
    items.push(Item::new(
        "sbin/dipole-broker",
        Content::Built(broker),
        PROGRAM,
    ));
    for name in LIBRARIES {
        items.extend(library(built, name));
    }
    let provider = built.path("libdipole_fi.so");
    items.push(Item::new(PROVIDER, Content::Built(provider), PROGRAM));
    let preloaded = Content::Built(built.path("libdipole_sockets.so"));
    items.push(Item::new(
        "lib/dipole/libdipole-sockets.so",
        preloaded,
        PROGRAM,
    ));
    for script in ["bspcc", "bsprun"] {
        let from = root().join("crates/bsp-capi/bin").join(script);
        items.push(Item::new(format!("bin/{script}"), copy(&from), PROGRAM));
    }
    let same = Content::Link("bspcc".to_owned());
    items.push(Item::new("bin/bspf77", same, PROGRAM));
    for header in HEADERS {
        let from = root().join("include").join(header);
        items.push(Item::new(format!("include/{header}"), copy(&from), DATA));
    }
    items.extend([
        Item::new(
            "lib/pkgconfig/dipole.pc",
            Content::Text(filled("crates/capi/dipole.pc.in", prefix)?),
            DATA,
        ),
        Item::new(
            "lib/pkgconfig/bsp.pc",
            Content::Text(filled("crates/bsp-capi/bsp.pc.in", prefix)?),
            DATA,
        ),
        Item::new(
            "lib/systemd/user/dipole-agent.service",
            Content::Text(filled("examples/systemd/dipole-agent.service.in", prefix)?),
            DATA,
        ),
        Item::new(
            "lib/systemd/system/dipole-agent@.service",
            Content::Text(filled("examples/systemd/dipole-agent@.service.in", prefix)?),
            DATA,
        ),
        Item::new(
            "lib/systemd/system/dipole-broker.service",
            Content::Text(filled("examples/systemd/dipole-broker.service.in", prefix)?),
            DATA,
        ),
    ]);
    items.extend(manual(built)?);
    for (shell, to) in SHELLS {
        let text = built.output_of_program(&["completions", shell])?;
        items.push(Item::new(to, Content::Text(text.into_bytes()), DATA));
    }
    Ok(items)
}

/// A library: shared, with the names for programs and linkers, and static.
fn library(built: &Built, name: &str) -> [Item; 4] {
    let shared = format!("lib{name}.so");
    let versioned = format!("{shared}.{VERSION}");
    let interface = format!("{shared}.{INTERFACE}");
    let copy = |file: &str| Content::Built(built.path(file));
    [
        Item::new(format!("lib/{versioned}"), copy(&shared), PROGRAM),
        Item::new(
            format!("lib/{interface}"),
            Content::Link(versioned),
            PROGRAM,
        ),
        Item::new(format!("lib/{shared}"), Content::Link(interface), PROGRAM),
        Item::new(
            format!("lib/lib{name}.a"),
            copy(&format!("lib{name}.a")),
            DATA,
        ),
    ]
}

/// Fills in the paths of a template.
fn filled(template: &str, prefix: &Path) -> Result<Vec<u8>, Failure> {
    let template = root().join(template);
    let text = fs::read_to_string(&template).map_err(at(&template))?;
    let prefix = prefix.display().to_string();
    let text = text
        .replace("@PREFIX@", &prefix)
        .replace("@LIBDIR@", "${prefix}/lib")
        .replace("@INCLUDEDIR@", "${prefix}/include")
        .replace("@VERSION@", VERSION);
    Ok(text.into_bytes())
}

/// Manual pages: those of the C API from the tree, those of the program from the program.
fn manual(built: &Built) -> Result<Vec<Item>, Failure> {
    let page = |name: &str, content| {
        let section = name.rsplit('.').next().unwrap_or("7");
        Item::new(format!("share/man/man{section}/{name}"), content, DATA)
    };
    let mut items = Vec::new();
    let folder = root().join("docs/man");
    for entry in fs::read_dir(&folder).map_err(at(&folder))? {
        let path = entry.map_err(at(&folder))?.path();
        if let Some(name) = path.file_name().and_then(|name| name.to_str()) {
            items.push(page(name, Content::Copy(path.clone())));
        }
    }
    items.sort_by(|one, other| one.to.cmp(&other.to));
    let pages = built.output_of_program(&["manual"])?;
    // Each page begins with a line for its name.
    for part in pages.split("\u{1}").filter(|part| !part.is_empty()) {
        let (name, text) = part.split_once('\n').unwrap_or((part, ""));
        items.push(page(name, Content::Text(text.as_bytes().to_vec())));
    }
    Ok(items)
}

fn put(prefix: &Path, item: &Item) -> Result<(), Failure> {
    let to = prefix.join(&item.to);
    let failed = |cause: std::io::Error| {
        Failure::Text(format!(
            "cannot write {}: {cause}; choose another --prefix, or run this as the owner of that folder",
            to.display()
        ))
    };
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    // A running program keeps the old file.
    match fs::remove_file(&to) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => return Err(failed(cause)),
        _ => {}
    }
    match &item.content {
        Content::Link(target) => return symlink(target, &to).map_err(failed),
        Content::Built(from) | Content::Copy(from) => {
            fs::copy(from, &to).map_err(|cause| {
                Failure::Text(format!(
                    "cannot copy {} to {}: {cause}",
                    from.display(),
                    to.display()
                ))
            })?;
        }
        Content::Text(text) => fs::write(&to, text).map_err(failed)?,
    }
    fs::set_permissions(&to, fs::Permissions::from_mode(item.mode)).map_err(failed)
}

fn target_directory() -> Result<PathBuf, Failure> {
    let text = output_of(cargo().args([
        "metadata",
        "--format-version",
        "1",
        "--no-deps",
        "--offline",
    ]))
    .ok_or_else(|| Failure::Text("cargo metadata failed".to_owned()))?;
    let facts: serde_json::Value =
        serde_json::from_str(&text).map_err(|cause| Failure::Text(cause.to_string()))?;
    match facts["target_directory"].as_str() {
        Some(path) => Ok(path.into()),
        None => Err(Failure::Text(
            "cargo metadata names no target directory".to_owned(),
        )),
    }
}

//! Installs what has been built, and takes it away again by the list it left.
//!
//! Everything lies below `DESTDIR` + `PREFIX`; what is written into files (the
//! pkg-config file) names `PREFIX` alone, as packagers expect.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::command::{Failure, ask, at, cargo, root, run};

/// Where the list of installed files lies, below the prefix.
const LIST: &str = "share/dipole/installed";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Version of the binary interface: the number in the library's soname.
const INTERFACE: &str = "0";
/// What installed files are built from.
const INSTALLED: [&str; 6] = [
    "dipole-tools",
    "dipole-broker",
    "dipole-capi",
    "dipole-bsp-capi",
    "dipole-fabric",
    "dipole-sockets",
];
/// For programs in C and Fortran.
const HEADERS: [&str; 6] = [
    "dipole.h",
    "bsp.h",
    "bsp_level1.h",
    "bsp_reshuffle.h",
    "mcbsp.h",
    "bsp.f90",
];
/// Where the libfabric of the same prefix looks for providers.
const PROVIDER: &str = "lib/libfabric/libdipole-fi.so";
const PROGRAM: u32 = 0o755;
const DATA: u32 = 0o644;
const SHELLS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/dipole"),
    ("zsh", "share/zsh/site-functions/_dipole"),
    ("fish", "share/fish/vendor_completions.d/dipole.fish"),
];

/// Where to.
#[derive(Args)]
pub(crate) struct Place {
    /// Where programs will find it; absolute
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Where the files go for now, in front of the prefix
    #[arg(long, value_name = "DIR", env = "DESTDIR")]
    destdir: Option<PathBuf>,
}

impl Place {
    /// The prefix as it is on disk now.
    fn root(&self) -> Result<PathBuf, Failure> {
        let Ok(inner) = self.prefix.strip_prefix("/") else {
            let prefix = self.prefix.display();
            return Err(Failure::Told(format!(
                "--prefix {prefix} is not absolute; give a path that begins with /"
            )));
        };
        Ok(match &self.destdir {
            Some(destdir) if !destdir.as_os_str().is_empty() => destdir.join(inner),
            _ => self.prefix.clone(),
        })
    }
}

/// What and where to.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    place: Place,
    /// What to build it as
    #[arg(long, default_value = "release")]
    profile: String,
}

enum Content {
    /// What the compiler has made.
    Built(PathBuf),
    Copy(PathBuf),
    Text(Vec<u8>),
    Link(String),
}

struct Item {
    /// Below the prefix.
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

/// Builds and installs.
pub(crate) fn install(arguments: &Arguments) -> Result<(), Failure> {
    let prefix = arguments.place.root()?;
    let built = build(&arguments.profile)?;
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
        "MPI uses Dipole with FI_PROVIDER_PATH={} and what `dipole mpi-env` says",
        folder.display()
    );
    Ok(())
}

/// Builds what is installed; where it lies then.
pub(crate) fn build(profile: &str) -> Result<PathBuf, Failure> {
    let mut build = cargo();
    build.args(["build", "--locked", "--profile", profile]);
    match profile {
        // With the features that the tests add to dependencies: what they have built is not
        // built again.
        "dev" => build.args(["--workspace", "--lib", "--bins", "--tests"]),
        _ => build.args(INSTALLED.map(|package| ["-p", package]).as_flattened()),
    };
    run(&mut build)?;
    Ok(target_directory()?.join(match profile {
        "dev" => "debug",
        other => other,
    }))
}

/// Writes what was built to a folder `to`, which programs will find as `prefix`, without what only
/// debuggers read; the files' paths below it.
pub(crate) fn put_all(built: &Path, prefix: &Path, to: &Path) -> Result<Vec<PathBuf>, Failure> {
    let items = items(built, prefix)?;
    for item in &items {
        put(to, item)?;
    }
    // Archives keep the symbols by which they are linked.
    for (mode, what) in [(PROGRAM, "--strip-unneeded"), (DATA, "--strip-debug")] {
        let built = items
            .iter()
            .filter(|item| item.mode == mode && matches!(item.content, Content::Built(_)));
        let stripped = Command::new("strip")
            .arg(what)
            .args(built.map(|item| to.join(&item.to)))
            .status();
        if !stripped.is_ok_and(|status| status.success()) {
            eprintln!("xtask: not stripped: strip failed or is missing (package binutils)");
        }
    }
    Ok(items.into_iter().map(|item| item.to).collect())
}

/// Removes what an installation left there.
pub(crate) fn uninstall(place: &Place) -> Result<(), Failure> {
    let prefix = place.root()?;
    let list = prefix.join(LIST);
    let listed = fs::read_to_string(&list).map_err(|cause| {
        Failure::Told(format!(
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
    // Deepest first; those that others use are not empty and stay.
    for folder in folders.iter().rev() {
        let _ = fs::remove_dir(prefix.join(folder));
    }
    Ok(())
}

fn items(built: &Path, prefix: &Path) -> Result<Vec<Item>, Failure> {
    let copy = |from: &Path| Content::Copy(from.to_owned());
    let program = built.join("dipole");
    let mut items = vec![Item::new(
        "bin/dipole",
        Content::Built(program.clone()),
        PROGRAM,
    )];
    let broker = built.join("dipole-broker");
    items.push(Item::new(
        "sbin/dipole-broker",
        Content::Built(broker),
        PROGRAM,
    ));
    for name in ["dipole", "bsp"] {
        items.extend(library(built, name));
    }
    let provider = built.join("libdipole_fi.so");
    items.push(Item::new(PROVIDER, Content::Built(provider), PROGRAM));
    let preloaded = Content::Built(built.join("libdipole_sockets.so"));
    items.push(Item::new("lib/libdipole-sockets.so", preloaded, PROGRAM));
    for script in ["bspcc", "bsprun"] {
        let from = root().join("crates/bsp-capi/bin").join(script);
        items.push(Item::new(format!("bin/{script}"), copy(&from), PROGRAM));
    }
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
            "lib/systemd/system/dipole-broker.service",
            Content::Text(filled("examples/systemd/dipole-broker.service.in", prefix)?),
            DATA,
        ),
    ]);
    items.extend(manual(&program)?);
    for (shell, to) in SHELLS {
        let text = ask(Command::new(&program).args(["completions", shell]))
            .ok_or_else(|| Failure::Told(format!("dipole completions {shell} failed")))?;
        items.push(Item::new(to, Content::Text(text.into_bytes()), DATA));
    }
    Ok(items)
}

/// A library, shared under the names that programs and linkers ask for, and static.
fn library(built: &Path, name: &str) -> [Item; 4] {
    let shared = format!("lib{name}.so");
    let versioned = format!("{shared}.{VERSION}");
    let interface = format!("{shared}.{INTERFACE}");
    let copy = |file: &str| Content::Built(built.join(file));
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

/// A file that tells where things are installed.
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

/// Pages for C from the tree, pages for the program from the program.
fn manual(program: &Path) -> Result<Vec<Item>, Failure> {
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
    let pages = ask(Command::new(program).arg("manual"))
        .ok_or_else(|| Failure::Told("dipole manual failed".to_owned()))?;
    // Each page is announced by a line of its own.
    for part in pages.split("\u{1}").filter(|part| !part.is_empty()) {
        let (name, text) = part.split_once('\n').unwrap_or((part, ""));
        items.push(page(name, Content::Text(text.as_bytes().to_vec())));
    }
    Ok(items)
}

fn put(prefix: &Path, item: &Item) -> Result<(), Failure> {
    let to = prefix.join(&item.to);
    let told = |cause: std::io::Error| {
        Failure::Told(format!(
            "cannot write {}: {cause}; choose another --prefix, or do it as the owner of that folder",
            to.display()
        ))
    };
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(told)?;
    }
    // A running program keeps the old file; a new one takes its name.
    match fs::remove_file(&to) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => return Err(told(cause)),
        _ => {}
    }
    match &item.content {
        Content::Link(target) => return symlink(target, &to).map_err(told),
        Content::Built(from) | Content::Copy(from) => {
            fs::copy(from, &to).map_err(|cause| {
                Failure::Told(format!(
                    "cannot copy {} to {}: {cause}",
                    from.display(),
                    to.display()
                ))
            })?;
        }
        Content::Text(text) => fs::write(&to, text).map_err(told)?,
    }
    fs::set_permissions(&to, fs::Permissions::from_mode(item.mode)).map_err(told)
}

fn target_directory() -> Result<PathBuf, Failure> {
    let text = ask(cargo().args([
        "metadata",
        "--format-version",
        "1",
        "--no-deps",
        "--offline",
    ]))
    .ok_or_else(|| Failure::Told("cargo metadata failed".to_owned()))?;
    let facts: serde_json::Value =
        serde_json::from_str(&text).map_err(|cause| Failure::Told(cause.to_string()))?;
    match facts["target_directory"].as_str() {
        Some(path) => Ok(path.into()),
        None => Err(Failure::Told(
            "cargo metadata names no target directory".to_owned(),
        )),
    }
}

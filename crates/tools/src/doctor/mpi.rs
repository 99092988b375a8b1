//! Checks whether this machine's MPI libraries would run over Dipole.

use std::path::Path;
use std::process::{Command, Stdio};

use super::finding::Finding;
use crate::mpi::{self, FOLDER, Library};

const NAME: &str = "mpi";

/// Facts about an MPI library.
struct Seen {
    library: Library,
    version: String,
    /// It was built with libfabric.
    by_libfabric: bool,
}

/// One finding for each library on the path.
pub(super) fn examine() -> Vec<Finding> {
    let variable = |name: &str| std::env::var(name).ok();
    let provider = mpi::provider();
    let seen = [open_mpi(), mpich()].into_iter().flatten();
    seen.map(|seen| judge(&seen, provider.as_deref(), &variable))
        .collect()
}

fn open_mpi() -> Option<Seen> {
    let said = ["mpirun.openmpi", "mpirun"].iter().find_map(|program| {
        let said = ask(program, "--version")?;
        said.contains("(Open MPI)").then_some(said)
    })?;
    let parts = ["ompi_info.openmpi", "ompi_info"].iter();
    let parts = parts
        .copied()
        .find_map(|program| ask(program, "--parsable"));
    Some(Seen {
        library: Library::Openmpi,
        version: said.lines().next()?.split_whitespace().last()?.to_owned(),
        by_libfabric: parts.is_some_and(|parts| parts.contains("mtl:ofi:")),
    })
}

fn mpich() -> Option<Seen> {
    let said = ["mpichversion.mpich", "mpichversion"].iter();
    let said = said.copied().find_map(|program| ask(program, ""))?;
    let line = |begin: &str| {
        let found = said.lines().find_map(|line| line.strip_prefix(begin));
        found.unwrap_or_default().trim().to_owned()
    };
    Some(Seen {
        library: Library::Mpich,
        version: line("MPICH Version:"),
        by_libfabric: line("MPICH Device:").contains("ofi"),
    })
}

/// The output of a program; `None` if it cannot be started.
fn ask(program: &str, argument: &str) -> Option<String> {
    let mut command = Command::new(program);
    if !argument.is_empty() {
        command.arg(argument);
    }
    let output = command.stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn judge(
    seen: &Seen,
    provider: Option<&Path>,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Finding {
    let name = format!("{} {}", seen.library.name(), seen.version);
    if !seen.by_libfabric {
        let advice = match seen.library {
            Library::Openmpi => "one with the mtl component ofi is needed",
            Library::Mpich => "one built with --with-device=ch4:ofi is needed",
        };
        return without(format!("{name} was not built for libfabric"), advice);
    }
    let Some(provider) = provider else {
        return without(
            format!("{name} would not use Dipole: its libfabric provider is not installed"),
            "cargo xtask install installs it next to this program",
        );
    };
    let folders = variable(FOLDER).unwrap_or_default();
    let is_found = std::env::split_paths(&folders).any(|folder| {
        let entry = provider.file_name().map(|name| folder.join(name));
        entry.is_some_and(|entry| entry.exists())
    });
    let missing = if is_found {
        let mut needed = seen.library.needed().iter();
        (needed)
            .find(|(name, value)| variable(name).as_deref() != Some(value))
            .map(|(name, value)| format!("{name} is not {value}"))
    } else {
        Some(format!("{FOLDER} does not lead to {}", provider.display()))
    };
    match missing {
        None => Finding::good(NAME, format!("{name} uses {}", provider.display())),
        Some(why) => {
            let argument = match seen.library {
                Library::Openmpi => "openmpi",
                Library::Mpich => "mpich",
            };
            let advice = format!("eval \"$(dipole mpi-env {argument})\" if it shall");
            without(format!("{name} would not use Dipole: {why}"), &advice)
        }
    }
}

/// A finding about MPI without Dipole, which is not an error: programs may not want it.
fn without(fact: String, advice: &str) -> Finding {
    Finding::good(NAME, fact).advise(advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_uses_dipole_if_it_is_built_for_libfabric_and_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let provider = folder.path().join("libdipole-fi.so");
        std::fs::write(&provider, "").unwrap();
        let mut seen = Seen {
            library: Library::Openmpi,
            version: "4.1.4".into(),
            by_libfabric: true,
        };
        let told = mpi::environment(Library::Openmpi, false, folder.path());
        let variable = |name: &str| {
            let found = told.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.clone())
        };
        let found = judge(&seen, Some(&provider), &variable);
        assert!(found.fact.starts_with("Open MPI 4.1.4 uses /"), "{found:?}");
        assert_eq!(found.advice, "");

        let untold = judge(&seen, Some(&provider), &|_| None);
        assert!(untold.fact.contains("FI_PROVIDER_PATH"), "{untold:?}");
        assert!(untold.advice.contains("mpi-env openmpi"), "{untold:?}");
        let half = |name: &str| variable(name).filter(|_| name != "OMPI_MCA_mtl");
        let half = judge(&seen, Some(&provider), &half);
        assert!(half.fact.ends_with("OMPI_MCA_mtl is not ofi"), "{half:?}");
        let absent = judge(&seen, None, &variable);
        assert!(absent.fact.contains("not installed"), "{absent:?}");
        seen.by_libfabric = false;
        let other = judge(&seen, Some(&provider), &variable);
        assert!(other.fact.contains("not built for libfabric"), "{other:?}");
    }
}

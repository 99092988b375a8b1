//! `dipole mpi-env`: variables that make an MPI library use Dipole's libfabric provider.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use crate::output::Failure;

/// Print the variables that make an MPI library use Dipole
///
/// As shell commands: eval "$(dipole mpi-env openmpi)", then mpirun as usual. Without a library, the
/// variables of both are printed.
#[derive(Args, Debug)]
pub(crate) struct MpiEnvArgs {
    /// MPI library of the program
    library: Option<Library>,
    /// For ranks that go on after others have died (ULFM, Open MPI 5); also give mpirun the options
    /// --with-ft ulfm
    #[arg(long)]
    ulfm: bool,
}

/// An MPI library that runs over libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Library {
    /// Open MPI, from 4.1
    Openmpi,
    /// MPICH built for libfabric (ch4:ofi), from 4.1
    Mpich,
}

/// Replace what Open MPI [needs](Library::needed) if ranks survive the death of others: only this
/// transport of messages does, and only with messages.
const ULFM: [(&str, &str); 3] = [
    ("OMPI_MCA_pml", "ob1"),
    ("OMPI_MCA_btl", "self,sm,ofi"),
    ("OMPI_MCA_btl_ofi_mode", "1"),
];

/// Where libfabric looks for providers; by default only in its own installation.
pub(crate) const FOLDER: &str = "FI_PROVIDER_PATH";

impl Library {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Library::Openmpi => "Open MPI",
            Library::Mpich => "MPICH",
        }
    }

    /// Further variables that a library needs.
    pub(crate) fn needed(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Library::Openmpi => &[
                ("OMPI_MCA_pml", "cm"),
                ("OMPI_MCA_mtl", "ofi"),
                ("OMPI_MCA_mtl_ofi_provider_include", "dipole"),
            ],
            Library::Mpich => &[("FI_PROVIDER", "dipole"), ("MPIR_CVAR_CH4_NETMOD", "ofi")],
        }
    }

    /// Recommended environment variables, which the user may override.
    fn advised(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Library::Openmpi => &[
                // Otherwise windows may use another provider (`btl ofi`), where accumulate is wrong.
                ("OMPI_MCA_btl_ofi_provider_include", "dipole"),
                // Debian disables one-sided communication over messages.
                ("OMPI_MCA_osc", "^ucx"),
            ],
            // Ranks of a node use MPICH's own shared memory, which is faster for whole programs.
            Library::Mpich => &[],
        }
    }
}

/// The provider that belongs to this program: installed with it, or built next to it.
pub(crate) fn provider() -> Option<PathBuf> {
    dipole_launch::installed_provider().or_else(|| {
        let program = std::env::current_exe().ok()?.canonicalize().ok()?;
        program
            .with_file_name("libdipole_fi.so")
            .canonicalize()
            .ok()
    })
}

/// All variables of a library, with the provider's folder.
pub(crate) fn environment(
    library: Library,
    ulfm: bool,
    folder: &Path,
) -> Vec<(&'static str, String)> {
    let needed = if ulfm { &ULFM } else { library.needed() };
    let others = needed
        .iter()
        .copied()
        .chain(library.advised().iter().copied());
    let others = others.map(|(name, value)| (name, value.to_owned()));
    let folder = (FOLDER, folder.display().to_string());
    std::iter::once(folder).chain(others).collect()
}

pub(crate) fn execute(
    args: &MpiEnvArgs,
    json: bool,
    out: &mut dyn Write,
) -> Result<ExitCode, Failure> {
    let provider = provider().ok_or_else(|| {
        Failure::from(
            "libdipole-fi.so is not installed with this program; `cargo xtask install` does",
        )
    })?;
    let folder = provider.parent().unwrap_or(Path::new("/"));
    let libraries = match args.library {
        Some(Library::Mpich) if args.ulfm => {
            let text = "--ulfm is for Open MPI: MPICH's launcher ends the job when a rank dies";
            return Err(Failure::with_status(2, text));
        }
        Some(library) => vec![library],
        None if args.ulfm => vec![Library::Openmpi],
        None => vec![Library::Openmpi, Library::Mpich],
    };
    for library in libraries {
        let variables = environment(library, args.ulfm, folder);
        if json {
            let variables = variables
                .into_iter()
                .map(|(name, value)| (name, value.into()));
            let object = serde_json::Map::from_iter(
                variables.map(|(name, value): (&str, serde_json::Value)| (name.to_owned(), value)),
            );
            let line = serde_json::json!({"library": library.name(), "variables": object});
            writeln!(out, "{line}")?;
        } else {
            write!(out, "{}", text(library, &variables))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn text(library: Library, variables: &[(&str, String)]) -> String {
    let mut text = format!("# {}\n", library.name());
    for (name, value) in variables {
        let _infallible = writeln!(text, "export {name}={}", quoted(value));
    }
    text
}

/// Quotes a value for a shell.
fn quoted(value: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+,:".contains(&byte);
    match value.bytes().all(plain) {
        true => value.to_owned(),
        false => format!("'{}'", value.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_shell_that_evaluates_the_text_has_the_variables_whatever_the_folder_is_called() {
        let folder = Path::new("/opt/it's $HOME/lib");
        let choices = [
            (Library::Openmpi, false),
            (Library::Openmpi, true),
            (Library::Mpich, false),
        ];
        for (library, ulfm) in choices {
            let variables = environment(library, ulfm, folder);
            let script = text(library, &variables) + "env";
            let shell = Command::new("sh").arg("-c").arg(script).output().unwrap();
            let said = String::from_utf8(shell.stdout).unwrap();
            for (name, value) in variables {
                let line = format!("{name}={value}");
                assert!(said.lines().any(|said| said == line), "{line}: {said}");
            }
        }
    }
}

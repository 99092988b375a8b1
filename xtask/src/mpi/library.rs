//! An MPI library, and the settings with which its launcher uses the provider of this build.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

use super::prepare;
use crate::command::{Failure, at, cargo, root, run};

/// Variables of the launcher of this task, which its jobs must not inherit.
const FOREIGN: [&str; 5] = ["DIPOLE_", "OMPI_", "PMIX_", "FI_", "MPIR_"];

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Library {
    /// Open MPI 4, from Debian's packages
    Openmpi4,
    /// Open MPI 5, from its Python wheel
    Openmpi5,
    /// MPICH, from its Python wheel
    Mpich,
}

/// The transport of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Dipole,
    /// The library's own TCP transport, also within a node.
    Tcp,
}

impl Library {
    pub(super) fn name(self) -> &'static str {
        match self {
            Library::Openmpi4 => "Open MPI 4 (Debian)",
            Library::Openmpi5 => "Open MPI 5 (wheel)",
            Library::Mpich => "MPICH (wheel)",
        }
    }

    fn folder(self) -> PathBuf {
        match self {
            Library::Openmpi4 => "/usr".into(),
            Library::Openmpi5 => prepare::folder().join("openmpi"),
            Library::Mpich => prepare::folder().join("mpich"),
        }
    }

    fn program(self, name: &str) -> PathBuf {
        let name = match self {
            Library::Openmpi4 => format!("{name}.openmpi"),
            Library::Openmpi5 | Library::Mpich => name.to_owned(),
        };
        self.folder().join("bin").join(name)
    }

    pub(super) fn compiler(self) -> Command {
        clean(&self.program("mpicc"))
    }

    /// The Python interpreter whose mpi4py uses this library, and a variable that it needs for that.
    pub(super) fn python(self) -> (PathBuf, Option<(&'static str, &'static str)>) {
        match self {
            // The module does not contain a library: it loads the one that this variable names.
            Library::Openmpi4 => (
                prepare::folder().join("openmpi/bin/python"),
                Some(("MPI4PY_LIBMPI", "libmpi.so.40")),
            ),
            _ => (self.folder().join("bin/python"), None),
        }
    }

    /// Variables for tests of ranks that survive the death of others, as `dipole mpi-env --ulfm`
    /// prints them.
    pub(super) fn ulfm(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Library::Openmpi5 => &[
                ("OMPI_MCA_pml", "ob1"),
                ("OMPI_MCA_btl", "self,sm,ofi"),
                ("OMPI_MCA_btl_ofi_mode", "1"),
            ],
            _ => &[],
        }
    }

    /// Its launcher, with the options for a transport. The number of ranks and the program have to be
    /// added.
    pub(super) fn launcher(self, transport: Transport, provider: &Path) -> Command {
        let launcher = match self {
            Library::Mpich => "mpiexec",
            _ => "mpirun",
        };
        let mut command = clean(&self.program(launcher));
        command.env("FI_PROVIDER_PATH", provider);
        command.env("DIPOLE_RUNTIME_DIR", provider.join("run"));
        if self != Library::Mpich {
            let words = [
                "--allow-run-as-root",
                "--oversubscribe",
                "--bind-to",
                "none",
            ];
            command.args(words);
        }
        let variables: &[(&str, &str)] = match (self, transport) {
            (Library::Mpich, Transport::Dipole) => &[
                ("FI_PROVIDER", "dipole"),
                ("MPIR_CVAR_CH4_NETMOD", "ofi"),
                ("MPIR_CVAR_NOLOCAL", "1"),
            ],
            // Without the netmod the wheel uses UCX, which shares memory inside a node.
            (Library::Mpich, Transport::Tcp) => &[
                ("FI_PROVIDER", "tcp"),
                ("MPIR_CVAR_CH4_NETMOD", "ofi"),
                ("MPIR_CVAR_NOLOCAL", "1"),
            ],
            (_, Transport::Dipole) => &[
                ("OMPI_MCA_pml", "cm"),
                ("OMPI_MCA_mtl", "ofi"),
                ("OMPI_MCA_mtl_ofi_provider_include", "dipole"),
                ("OMPI_MCA_btl_ofi_provider_include", "dipole"),
                ("OMPI_MCA_osc", "^ucx"),
            ],
            (_, Transport::Tcp) => &[("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "tcp,self")],
        };
        command.envs(variables.iter().copied());
        command
    }
}

fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text != "DIPOLE_LINK" && FOREIGN.iter().any(|begin| text.starts_with(begin)) {
            command.env_remove(&name);
        }
    }
    command
}

/// A folder with the provider under the name that libfabric looks for: an installed one, or a new build.
pub(super) fn provider(installed: Option<&Path>) -> Result<PathBuf, Failure> {
    let library = match installed {
        Some(installed) => fs::canonicalize(installed).map_err(at(installed))?,
        None => {
            run(cargo().args(["build", "--release", "--locked", "-p", "dipole-fabric"]))?;
            root().join("target/release/libdipole_fi.so")
        }
    };
    let folder = prepare::folder().join("provider");
    let link = folder.join("libdipole-fi.so");
    fs::create_dir_all(folder.join("run")).map_err(at(&folder))?;
    let _was_there = fs::remove_file(&link);
    symlink(library, &link).map_err(at(&link))?;
    Ok(folder)
}

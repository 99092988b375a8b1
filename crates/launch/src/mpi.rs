//! Variables with which MPICH uses Dipole, as `dipole mpi-env mpich` prints them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

const FOLDER: &str = "FI_PROVIDER_PATH";
const PROVIDER: &str = "FI_PROVIDER";

/// The variables, if the provider is installed with this program and the user has chosen nothing else.
pub(super) fn variables() -> Vec<(&'static str, OsString)> {
    let is_chosen = [FOLDER, PROVIDER]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    let provider = installed_provider().filter(|_| !is_chosen);
    match provider.as_deref().and_then(Path::parent) {
        Some(folder) => vec![(FOLDER, folder.into()), (PROVIDER, "dipole".into())],
        None => Vec::new(),
    }
}

/// The libfabric provider that is installed with this program.
#[must_use]
pub fn installed_provider() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    let provider = program.parent()?.join("../lib/libfabric/libdipole-fi.so");
    provider.canonicalize().ok()
}

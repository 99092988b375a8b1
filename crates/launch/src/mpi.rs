//! Variables with which MPICH uses Dipole, as `dipole mpi-env mpich` prints them.

use std::ffi::OsString;

const FOLDER: &str = "FI_PROVIDER_PATH";
const PROVIDER: &str = "FI_PROVIDER";

/// The variables, if the provider is installed with this program and the user has chosen nothing else.
pub(super) fn variables() -> Vec<(&'static str, OsString)> {
    let is_chosen = [FOLDER, PROVIDER]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    let program = std::env::current_exe().and_then(|path| path.canonicalize());
    let folder = program
        .ok()
        .and_then(|program| Some(program.parent()?.join("../lib/libfabric")))
        .filter(|folder| !is_chosen && folder.join("libdipole-fi.so").exists());
    match folder {
        Some(folder) => vec![
            (FOLDER, folder.into_os_string()),
            (PROVIDER, "dipole".into()),
        ],
        None => Vec::new(),
    }
}

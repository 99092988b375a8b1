//! The files of the workspace.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that hold build output and fuzzing corpora.
const SKIPPED: [&str; 5] = ["target", "corpus", "artifacts", "coverage", ".git"];

/// Root of the workspace.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .expect("xtask lies in the workspace")
        .to_owned()
}

/// Paths of all files of the workspace, relative to its root, in order.
pub(crate) fn files() -> Vec<PathBuf> {
    let (root, mut found) = (root(), Vec::new());
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            let name = path.file_name().expect("an entry has a name");
            if SKIPPED.contains(&&*name.to_string_lossy()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(&root).expect("below the root").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// Paths of all files with one of these extensions.
pub(crate) fn with_extensions(extensions: &[&str]) -> Vec<PathBuf> {
    let mut files = files();
    files.retain(|path| {
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        extensions.contains(&&*extension)
    });
    files
}

/// Text of a file named by its path from the root.
pub(crate) fn read(path: &Path) -> String {
    let bytes = fs::read(root().join(path)).expect("a readable file");
    String::from_utf8_lossy(&bytes).into_owned()
}

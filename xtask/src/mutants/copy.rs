//! A copy of the workspace that contains all bugs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::list::Mutant;
use super::switch;
use crate::command::{Failure, at, output_of, root};

/// The copy below `target/mutants`, with a target directory of its own: tests start the programs
/// that were built with them, which another build must not replace meanwhile.
pub(super) struct Copy {
    pub(super) sources: PathBuf,
    pub(super) target: PathBuf,
}

impl Copy {
    /// Makes the copy equal to the workspace apart from the bugs: all files that git tracks or
    /// would track. Only files that differ are written, so that little has to be rebuilt.
    pub(super) fn with(mutants: &[&Mutant]) -> Result<Copy, Failure> {
        let home = root().join("target").join("mutants");
        let copy = Copy {
            sources: home.join("work"),
            target: home.join("target"),
        };
        let mut git = Command::new("git");
        git.current_dir(root()).args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        let listed = output_of(&mut git).ok_or_else(|| {
            Failure::Text("mutants need a git checkout of the workspace".to_owned())
        })?;
        let wanted: BTreeSet<PathBuf> = listed
            .split('\0')
            .filter(|name| !name.is_empty())
            .map(PathBuf::from)
            // A tracked file may have been removed since.
            .filter(|name| root().join(name).is_file())
            .collect();
        let read = |path: &Path| {
            fs::read_to_string(root().join(path)).map_err(|cause| format!("{path:?}: {cause}"))
        };
        let switched = switch::switched(mutants, read).map_err(Failure::Text)?;
        for name in &wanted {
            copy.write(name, &switched)?;
        }
        remove_others(&copy.sources, &copy.sources, &wanted)?;
        Ok(copy)
    }

    fn write(&self, name: &Path, switched: &BTreeMap<PathBuf, String>) -> Result<(), Failure> {
        let (from, to) = (root().join(name), self.sources.join(name));
        let content = match switched.get(name) {
            Some(text) => text.as_bytes().to_vec(),
            None => fs::read(&from).map_err(at(&from))?,
        };
        if fs::read(&to).is_ok_and(|there| there == content) {
            return Ok(());
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        fs::write(&to, content).map_err(at(&to))?;
        let permissions = fs::metadata(&from).map_err(at(&from))?.permissions();
        fs::set_permissions(&to, permissions).map_err(at(&to))
    }
}

fn remove_others(top: &Path, folder: &Path, wanted: &BTreeSet<PathBuf>) -> Result<(), Failure> {
    for entry in fs::read_dir(folder).map_err(at(folder))? {
        let path = entry.map_err(at(folder))?.path();
        if path.is_dir() {
            remove_others(top, &path, wanted)?;
        } else if path
            .strip_prefix(top)
            .is_ok_and(|name| !wanted.contains(name))
        {
            fs::remove_file(&path).map_err(at(&path))?;
        }
    }
    Ok(())
}

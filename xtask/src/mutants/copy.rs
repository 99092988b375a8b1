//! A copy of the workspace for injecting bugs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::list::Mutant;
use crate::command::{Failure, at, output_of, root};

/// The copy below `target/mutants`. It shares the build of external crates with the workspace. Our
/// crates have another version in it, so that cargo does not confuse their builds.
pub(crate) struct Copy {
    sources: PathBuf,
    target: PathBuf,
    /// Copies of test programs.
    kept: PathBuf,
}

impl Copy {
    /// Makes the copy equal to the workspace: all files that git tracks or would track. Only files
    /// that differ are written, so that little has to be rebuilt.
    pub(crate) fn fresh() -> Result<Copy, Failure> {
        let home = root().join("target").join("mutants");
        let copy = Copy {
            sources: home.join("work"),
            target: root().join("target"),
            kept: home.join("kept"),
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
        for name in &wanted {
            copy.write(name)?;
        }
        remove_others(&copy.sources, &copy.sources, &wanted)?;
        Ok(copy)
    }

    fn write(&self, name: &Path) -> Result<(), Failure> {
        let (from, to) = (root().join(name), self.sources.join(name));
        let mut content = fs::read(&from).map_err(at(&from))?;
        if name == Path::new("Cargo.toml") {
            content = with_other_version(&content)?;
        }
        if fs::read(&to).is_ok_and(|there| there == content) {
            return Ok(());
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(at(folder))?;
        }
        fs::write(&to, content).map_err(at(&to))
    }

    /// Injects the bug into the copy of the sources.
    pub(crate) fn apply(&self, mutant: &Mutant) -> Result<(), Failure> {
        let path = self.sources.join(mutant.file);
        let source = fs::read_to_string(&path).map_err(at(&path))?;
        let mutated = mutant.mutate(&source).map_err(Failure::Text)?;
        fs::write(&path, mutated).map_err(at(&path))
    }

    /// Copies a program, so that no build overwrites it.
    pub(crate) fn keep(&self, program: &Path, name: &str) -> Result<PathBuf, Failure> {
        fs::create_dir_all(&self.kept).map_err(at(&self.kept))?;
        let kept = self.kept.join(name);
        fs::copy(program, &kept).map_err(at(&kept))?;
        Ok(kept)
    }

    pub(crate) fn sources(&self) -> &Path {
        &self.sources
    }

    pub(crate) fn target(&self) -> &Path {
        &self.target
    }
}

/// The workspace's manifest with the version of the copy.
fn with_other_version(manifest: &[u8]) -> Result<Vec<u8>, Failure> {
    let manifest = String::from_utf8_lossy(manifest);
    let version = env!("CARGO_PKG_VERSION");
    let (line, other) = (
        format!("\nversion = \"{version}\"\n"),
        format!("\nversion = \"{version}+mutant\"\n"),
    );
    match manifest.matches(&line).count() {
        1 => Ok(manifest.replace(&line, &other).into_bytes()),
        found => Err(Failure::Text(format!(
            "Cargo.toml has {found} lines with the version {version} instead of one"
        ))),
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

//! Every environment variable that programs and libraries read is documented in dipole(7) and in
//! docs/reference/environment.md, and no others are.

#![allow(missing_docs, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Variables that only tests read.
const TESTS_ALONE: [&str; 4] = [
    "DIPOLE_MEMBERS",
    "DIPOLE_MODEL_BOUND",
    "DIPOLE_ROUNDS",
    "DIPOLE_TEST_CHILD_DIR",
];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the workspace").into()
}

/// Sources of all crates.
fn sources() -> Vec<PathBuf> {
    let crates = fs::read_dir(root().join("crates")).expect("crates");
    let mut folders: Vec<PathBuf> = crates
        .map(|one| one.expect("an entry").path().join("src"))
        .collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            match path.extension() {
                _ if path.is_dir() => folders.push(path),
                Some(end) if end == "rs" => found.push(path),
                _ => {}
            }
        }
    }
    found
}

/// Names of variables in a text, as whole words.
fn variables(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(move |c| !is_part(c));
    words.filter(|word| word.starts_with("DIPOLE_") && word.len() > "DIPOLE_".len())
}

#[test]
fn every_variable_that_is_read_is_documented_and_the_other_way_round() {
    let mut read = BTreeSet::new();
    for path in sources() {
        let text = fs::read_to_string(&path).expect("text");
        // A variable that is read occurs as a string literal.
        let literals = text.split('"').filter(|part| part.starts_with("DIPOLE_"));
        let whole = literals.filter(|part| variables(part).next() == Some(*part));
        read.extend(whole.map(str::to_owned));
    }
    for name in TESTS_ALONE {
        assert!(read.remove(name), "{name} is not read any more");
    }
    assert!(read.len() > 30, "{read:?}");
    for document in ["docs/man/dipole.7", "docs/reference/environment.md"] {
        let text = fs::read_to_string(root().join(document)).expect("text");
        let told: BTreeSet<&str> = variables(&text).collect();
        let missing: Vec<&String> = read
            .iter()
            .filter(|name| !told.contains(&***name))
            .collect();
        assert!(
            missing.is_empty(),
            "{document} does not tell of {missing:?}"
        );
        let unknown = told.iter().filter(|name| !read.contains(**name));
        // Variables that other documents set for tests, and similar words of C and CMake.
        let unknown: Vec<_> = unknown.filter(|name| !OTHERS.contains(name)).collect();
        assert!(
            unknown.is_empty(),
            "{document} mentions {unknown:?}, which nothing reads"
        );
    }
}

/// Documented for tests.
const OTHERS: [&str; 2] = ["DIPOLE_CLUSTER_S", "DIPOLE_MEMBERS"];

//! Every test that SECURITY.md names exists.

#![allow(missing_docs, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Shorter names in backticks are those of options, variables and calls.
const SHORTEST_NAME: usize = 20;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|extension| extension == "rs") => {
                found.push(path);
            }
            false => {}
        }
    }
}

/// Names of functions that are tests.
fn tests(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[test]").skip(1).filter_map(|after| {
        let (_, name) = after.split_once("fn ")?;
        name.split_once('(').map(|(name, _)| name)
    })
}

/// What looks like the name of a test, between backticks.
fn named(text: &str) -> BTreeSet<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let is_name = |word: &&str| {
        word.len() >= SHORTEST_NAME
            && word.contains('_')
            && (word.chars()).all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    quoted.filter(is_name).collect()
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = fs::read_to_string(root.join("SECURITY.md")).expect("text");
    let named = named(&text);
    assert!(named.len() > 30, "{named:?}");
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    let sources: Vec<String> = files
        .iter()
        .map(|file| fs::read_to_string(file).expect("text"))
        .collect();
    let known: BTreeSet<&str> = sources.iter().flat_map(|text| tests(text)).collect();
    let missing: Vec<_> = named.difference(&known).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

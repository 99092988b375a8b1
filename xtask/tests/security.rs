//! Every test that the threat model names exists, and every row of its tables of tests names one.

#![allow(missing_docs, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Shorter names in backticks are options, variables and calls.
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

/// Names of test functions.
fn tests(text: &str) -> impl Iterator<Item = &str> {
    text.split("#[test]").skip(1).filter_map(|after| {
        let (_, name) = after.split_once("fn ")?;
        name.split_once('(').map(|(name, _)| name)
    })
}

/// Words in backticks that look like names of tests.
fn named(text: &str) -> BTreeSet<&str> {
    let quoted = text.split('`').skip(1).step_by(2);
    let is_name = |word: &&str| {
        word.len() >= SHORTEST_NAME
            && word.contains('_')
            && (word.chars()).all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    quoted.filter(is_name).collect()
}

/// Rows of tables whose last column lists tests.
fn rows(text: &str) -> Vec<&str> {
    let mut rows = Vec::new();
    let mut is_about_tests = None;
    for line in text.lines() {
        let Some(row) = line.strip_prefix('|') else {
            is_about_tests = None;
            continue;
        };
        match is_about_tests {
            None => {
                let head = row.trim_end_matches('|').rsplit('|').next();
                let head = head.unwrap_or_default().trim();
                is_about_tests = Some(head == "Tested by" || head == "Test");
            }
            Some(true) if !row.starts_with("---") => rows.push(row),
            Some(_) => {}
        }
    }
    rows
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn threat_model() -> String {
    ["docs/admin/security.md", "docs/design/attacks.md"]
        .map(|path| fs::read_to_string(root().join(path)).expect("text"))
        .join("\n")
}

#[test]
fn every_line_of_the_threat_model_names_its_test() {
    let text = threat_model();
    let rows = rows(&text);
    assert!(rows.len() > 40, "{} rows", rows.len());
    // Nothing protects against root.
    let without: Vec<_> = (rows.iter())
        .filter(|row| !row.starts_with(" root of a node |"))
        .filter(|row| {
            let last = row.trim_end_matches([' ', '|']).rsplit('|').next();
            named(last.unwrap_or_default()).is_empty()
        })
        .collect();
    assert!(without.is_empty(), "no test: {without:#?}");
}

#[test]
fn every_test_that_the_threat_model_names_exists() {
    let text = threat_model();
    let named = named(&text);
    assert!(named.len() > 30, "{named:?}");
    let mut files = Vec::new();
    sources(&root().join("crates"), &mut files);
    let sources: Vec<String> = files
        .iter()
        .map(|file| fs::read_to_string(file).expect("text"))
        .collect();
    let known: BTreeSet<&str> = sources.iter().flat_map(|text| tests(text)).collect();
    let missing: Vec<_> = named.difference(&known).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

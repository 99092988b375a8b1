//! Documents are true where a machine can tell: links lead to files and headings that exist, files
//! that are named exist, documents keep to their length, and ARCHITECTURE.md has the table of
//! layers.

#![allow(missing_docs, reason = "tests")]

#[path = "common/sources.rs"]
mod sources;

use std::collections::BTreeSet;
use std::path::Path;

use sources::{files, read, root, with_extensions};

/// Documents whose length is bounded, in lines.
const LENGTHS: [(&str, usize); 4] = [
    ("README.md", 90),
    ("ARCHITECTURE.md", 120),
    ("CHANGELOG.md", 50),
    ("docs/performance.md", 200),
];

/// Lines of a document outside fenced blocks.
fn prose(markdown: &str) -> impl Iterator<Item = &str> {
    let mut is_fenced = false;
    markdown.lines().filter(move |line| {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
            return false;
        }
        !is_fenced
    })
}

/// Returns the targets of links `[text](target)`.
fn links(markdown: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(markdown) {
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            found.extend(rest.split_once(')').map(|(target, _)| target.to_owned()));
        }
    }
    found
}

/// The anchors that headings get, as forges make them.
fn anchors(markdown: &str) -> BTreeSet<String> {
    let headings = prose(markdown).filter(|line| line.starts_with('#'));
    let text = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
    text.map(|text| {
        let kept = text
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
    .collect()
}

#[test]
fn relative_links_lead_to_files_and_headings_that_exist() {
    let documents = with_extensions(&["md"]);
    assert!(!documents.is_empty());
    for path in documents {
        for link in links(&read(&path)) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (target, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = path.parent().expect("a file lies in a folder");
            let there = match target {
                "" => path.clone(),
                _ => folder.join(target),
            };
            let place = root().join(&there);
            assert!(place.exists(), "{}: {link} leads nowhere", path.display());
            if !anchor.is_empty() && target.ends_with(".md") {
                let text = std::fs::read_to_string(place).expect("text");
                let known = anchors(&text);
                assert!(
                    known.contains(anchor),
                    "{}: {link}: no such heading among {known:?}",
                    path.display()
                );
            }
        }
    }
}

/// Paths of files between backticks: those with a folder and a known ending.
fn paths(markdown: &str) -> Vec<String> {
    const ENDINGS: [&str; 8] = [".rs", ".c", ".h", ".py", ".md", ".toml", ".f90", "/"];
    let mut found = Vec::new();
    for line in prose(markdown) {
        for quoted in line.split('`').skip(1).step_by(2) {
            let is_path = quoted.contains('/')
                && !quoted.contains([' ', '*', '$', '~', '<', '{', ':', '='])
                && !quoted.starts_with(['/', '.', '-'])
                && ENDINGS.iter().any(|ending| quoted.ends_with(ending));
            if is_path {
                found.push(quoted.to_owned());
            }
        }
    }
    found
}

#[test]
fn files_that_documents_name_exist() {
    let known = files();
    let is_known = |path: &Path| root().join(path).exists();
    let mut missing = Vec::new();
    for document in with_extensions(&["md"]) {
        for named in paths(&read(&document)) {
            let folder = document.parent().expect("a file lies in a folder");
            // A path is relative to the root, the crates or the document, or is the end of a path.
            let found = [Path::new(""), Path::new("crates"), folder]
                .iter()
                .any(|base| is_known(&base.join(&named)))
                || known.iter().any(|path| path.ends_with(&named));
            if !found {
                missing.push(format!("{}: {named}", document.display()));
            }
        }
    }
    assert!(missing.is_empty(), "no such files: {missing:#?}");
}

#[test]
fn documents_keep_to_their_length() {
    for (path, most) in LENGTHS {
        let lines = read(Path::new(path)).lines().count();
        assert!(lines <= most, "{path} has {lines} lines, at most {most}");
    }
}

#[test]
fn the_architecture_has_the_table_of_layers() {
    let layers = read(Path::new("xtask/tests/layering.rs"));
    let start = layers.find("const MAY_USE").expect("the table");
    let table = &layers[start..layers[start..].find("];").expect("its end") + start];
    // Each row is a name and a list of names, all of them between quotes.
    let mut rows = Vec::new();
    for row in table
        .split("(\"")
        .skip(1)
        .chain(table.split("(\n        \"").skip(1))
    {
        let row = row.split(']').next().unwrap_or_default();
        let name = row.split('"').next().unwrap_or_default();
        let used: BTreeSet<&str> = row.split('"').skip(2).step_by(2).collect();
        rows.push((name, used));
    }
    assert!(rows.len() > 15, "{rows:?}");
    let text = read(Path::new("ARCHITECTURE.md"));
    for (name, used) in rows {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("| `{name}` |")))
            .unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {name}"));
        let cell = line.split('|').nth(2).unwrap_or_default();
        let told: BTreeSet<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert_eq!(told, used, "{name}");
    }
}

#[test]
fn links_anchors_and_paths_are_found_outside_code_only() {
    let text = "# One: Two\nsee [a](b.md#c) and [d](e), `x/y.rs`, `z`\n```\n[f](g) `q/r.rs`\n```\n";
    assert_eq!(links(text), ["b.md#c", "e"]);
    assert_eq!(paths(text), ["x/y.rs"]);
    assert_eq!(anchors(text), BTreeSet::from(["one-two".to_owned()]));
}

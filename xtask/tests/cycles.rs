//! Files of a crate do not depend on each other in cycles.
//!
//! Among the modules below each module there must be no cycle. A module is considered together with
//! all modules below it. A parent and its children may use each other.

#![allow(missing_docs, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module, as the names from the root of its crate.
type Module = Vec<String>;

/// Modules of a crate, with their text.
fn modules(source: &Path) -> BTreeMap<Module, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![source.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a readable folder") {
            let path = entry.expect("a readable entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let below = path.strip_prefix(source).expect("below the source");
                let mut module: Module = below
                    .with_extension("")
                    .iter()
                    .map(|part| part.to_string_lossy().into_owned())
                    .collect();
                let is_root = ["lib", "main"]
                    .map(|root| vec![root.to_owned()])
                    .contains(&module);
                if is_root || module.last().is_some_and(|last| last == "mod") {
                    module.pop();
                }
                // Tests may use any module.
                if !module.iter().any(|part| part.contains("tests")) {
                    let text = without_tests(&fs::read_to_string(&path).expect("text"));
                    // A crate may have two roots: a library and a program.
                    found
                        .entry(module)
                        .or_insert_with(String::new)
                        .push_str(&text);
                }
            }
        }
    }
    found
}

/// The code of a file up to its unit tests, without comments.
fn without_tests(text: &str) -> String {
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..end].lines();
    let code = lines.map(|line| line.split("//").next().unwrap_or_default());
    code.collect::<Vec<_>>().join("\n")
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// All paths that begin with `crate` or `super`, with lists in braces expanded.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for first in ["crate", "super"] {
        for (at, _) in text.match_indices(&format!("{first}::")) {
            let before = text[..at].chars().next_back();
            if before.is_none_or(|c| !is_name(c) && c != ':' && c != '$') {
                follow(&text[at..], &[], &mut found);
            }
        }
    }
    found
}

/// All imported paths of a module.
fn imports(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, word) in text.match_indices("use ") {
        let before = text[..at].chars().next_back();
        if before.is_none_or(char::is_whitespace) {
            follow(&text[at + word.len()..], &[], &mut found);
        }
    }
    found
}

/// Follows a path that continues after `path`; returns the text after it.
fn follow<'a>(text: &'a str, path: &[String], found: &mut Vec<Vec<String>>) -> &'a str {
    let mut text = text.trim_start();
    if let Some(list) = text.strip_prefix('{') {
        text = list.trim_start();
        while !text.is_empty() && !text.starts_with('}') {
            let rest = follow(text, path, found).trim_start();
            // This is not a list of names.
            if !rest.starts_with([',', '}']) {
                return rest;
            }
            text = rest.trim_start_matches(',').trim_start();
        }
        return text.trim_start_matches('}');
    }
    let end = text.find(|c| !is_name(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let path = [path, &[name.to_owned()]].concat();
    match rest.strip_prefix("::") {
        Some(rest) if rest.starts_with(|c| is_name(c) || c == '{') => follow(rest, &path, found),
        _ => {
            found.push(path);
            match rest.strip_prefix(" as ") {
                Some(rest) => rest.trim_start_matches(is_name),
                None => rest.trim_start_matches("::*"),
            }
        }
    }
}

/// The module in which the item of a path is defined, as seen from a module. Follows imports of the
/// modules on the path.
fn home(modules: &BTreeMap<Module, String>, from: &[String], path: &[String], deep: u32) -> Module {
    let mut at = from.to_vec();
    for (index, name) in path.iter().enumerate() {
        let below = [&at[..], std::slice::from_ref(name)].concat();
        if name == "crate" {
            at.clear();
        } else if name == "super" {
            at.pop();
        } else if modules.contains_key(&below) {
            at = below;
        } else {
            let text = modules.get(&at).map_or("", String::as_str);
            let mut imported = imports(text).into_iter();
            let import = imported.find(|import| import.last() == Some(name) && import.len() > 1);
            return match import {
                Some(import) if deep > 0 && is_own(modules, &at, &import[0]) => {
                    let path = [&import[..], &path[index + 1..]].concat();
                    home(modules, &at, &path, deep - 1)
                }
                _ => at,
            };
        }
    }
    at
}

/// True if the first name of a path refers to the same crate.
fn is_own(modules: &BTreeMap<Module, String>, at: &[String], first: &String) -> bool {
    let below = [at, std::slice::from_ref(first)].concat();
    ["crate", "super"].contains(&&**first) || modules.contains_key(&below)
}

/// Uses among the modules below each module, with the path of each use.
type Uses = BTreeMap<Module, BTreeMap<String, BTreeMap<String, String>>>;

fn uses(modules: &BTreeMap<Module, String>) -> Uses {
    let mut uses = Uses::new();
    for (from, text) in modules {
        for path in paths(text) {
            let to = home(modules, from, &path, 8);
            let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(user), Some(used)) = (from.get(shared), to.get(shared)) {
                let below = uses.entry(from[..shared].to_vec()).or_default();
                let by = format!("{}: {}", from.join("/"), path.join("::"));
                let used = (used.clone(), by);
                below
                    .entry(user.clone())
                    .or_default()
                    .entry(used.0)
                    .or_insert(used.1);
            }
        }
    }
    uses
}

/// A cycle, as the paths of its uses, if there is one.
fn circle(edges: &BTreeMap<String, BTreeMap<String, String>>) -> Option<Vec<String>> {
    edges.keys().find_map(|start| {
        // The shortest cycle, by breadth-first search.
        let mut seen = BTreeSet::new();
        let mut open = vec![(start, Vec::new())];
        while !open.is_empty() {
            let mut next = Vec::new();
            for (at, ways) in open {
                for (to, by) in edges.get(at).into_iter().flatten() {
                    let ways = [&ways[..], std::slice::from_ref(by)].concat();
                    if to == start {
                        return Some(ways);
                    }
                    if seen.insert(to) {
                        next.push((to, ways));
                    }
                }
            }
            open = next;
        }
        None
    })
}

/// One cycle for each module below which there are some.
fn circles(modules: &BTreeMap<Module, String>) -> Vec<String> {
    let uses = uses(modules);
    let below = uses.values().filter_map(circle);
    below.map(|ways| ways.join("\n    ")).collect()
}

#[test]
fn no_module_depends_on_itself() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut wrong = Vec::new();
    for entry in fs::read_dir(crates).expect("crates exist") {
        let entry = entry.expect("a readable entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        let found = circles(&modules(&entry.path().join("src")));
        let found = found.into_iter();
        wrong.extend(found.map(|ways| format!("crates/{name}:\n    {ways}")));
    }
    assert!(wrong.is_empty(), "circles:\n{}", wrong.join("\n"));
}

#[test]
fn circles_are_found_through_lists_and_imports_of_a_parent() {
    let of = |files: &[(&str, &str)]| -> BTreeMap<Module, String> {
        let module = |name: &str| -> Module {
            let parts = name.split('/').filter(|part| !part.is_empty());
            parts.map(str::to_owned).collect()
        };
        let files = files.iter();
        files
            .map(|(name, text)| (module(name), (*text).to_owned()))
            .collect()
    };
    let root = ("", "mod a;\nmod b;\npub use b::{Other, Thing as Named};\n");
    let straight = of(&[
        root,
        ("a", "use crate::{b::Other};"),
        ("b", "struct Other;"),
    ]);
    assert_eq!(circles(&straight), [""; 0]);
    let facade = of(&[
        root,
        ("a", "use super::Other;"),
        ("b", "fn f(x: crate::a::A) {}"),
    ]);
    assert_eq!(circles(&facade), ["a: super::Other\n    b: crate::a::A"]);
    let parent = of(&[
        ("", ""),
        ("a", "use inner::X;"),
        ("a/inner", "use super::Y;"),
    ]);
    assert_eq!(circles(&parent), [""; 0]);
    let deep = of(&[
        ("", ""),
        ("a", ""),
        ("a/inner", "use crate::{\n    b::{self, Z},\n};"),
        ("b", "use crate::a::inner;"),
    ]);
    assert_eq!(circles(&deep).len(), 1);
}

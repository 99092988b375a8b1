//! The rules of ARCHITECTURE.md that can be checked: dependencies between crates, crates with
//! `unsafe` code, and forbidden texts.

#![allow(missing_docs, reason = "tests")]

#[path = "common/sources.rs"]
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use sources::{files, read, root, with_extensions};

/// Folders below `crates/`, and our crates that each may depend on. Every crate needs a row.
const MAY_USE: [(&str, &[&str]); 29] = [
    ("proto", &[]),
    ("link", &[]),
    ("record", &["proto", "link"]),
    ("bpf", &["link"]),
    ("naming", &["link"]),
    ("model", &["naming"]),
    ("driver", &["proto", "link"]),
    (
        "engine",
        &[
            "proto", "link", "record", "bpf", "naming", "model", "driver",
        ],
    ),
    (
        "node",
        &[
            "proto", "link", "record", "bpf", "naming", "model", "driver", "engine", "trace",
        ],
    ),
    ("group", &["proto", "node"]),
    ("trace", &["link"]),
    ("checkpoint", &["link"]),
    ("bsp", &["checkpoint", "link", "model", "node", "trace"]),
    ("bsp-capi", &["bsp", "model", "reshuffle"]),
    ("reshuffle", &["bsp"]),
    ("capi", &["naming", "node", "group", "streams"]),
    ("python", &["node", "group", "bsp", "reshuffle"]),
    ("fabric", &["link", "node", "trace"]),
    ("sockets", &["link"]),
    ("streams", &["node"]),
    ("launch", &["checkpoint", "naming", "node"]),
    ("agent", &["launch", "naming", "node", "bpf"]),
    ("broker", &["bpf"]),
    ("page", &[]),
    (
        "bench",
        &[
            "naming", "model", "node", "bpf", "link", "testbed", "bsp", "proto", "page",
        ],
    ),
    (
        "tools",
        &[
            "launch",
            "agent",
            "bench",
            "chaos",
            "checkpoint",
            "proto",
            "link",
            "bpf",
            "naming",
            "model",
            "node",
            "group",
            "bsp",
            "page",
            "record",
            "trace",
            "streams",
        ],
    ),
    (
        "lab",
        &[
            "bench", "bsp", "engine", "launch", "link", "model", "node", "page", "proto", "testbed",
        ],
    ),
    ("testbed", &["link"]),
    ("chaos", &["naming", "testbed"]),
];

/// Crates that may have unsafe blocks.
const MAY_BE_UNSAFE: [&str; 10] = [
    "crates/link",
    "crates/checkpoint",
    "crates/bpf",
    "crates/capi",
    "crates/python",
    "crates/bsp",
    "crates/bsp-capi",
    "crates/reshuffle",
    "crates/fabric",
    "crates/sockets",
];

/// Folder name and manifest of each package.
fn manifests() -> BTreeMap<String, toml::Table> {
    let folders = fs::read_dir(root().join("crates")).expect("crates exist");
    folders
        .map(|entry| entry.expect("a readable entry").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .map(|name| {
            let text = read(&Path::new("crates").join(&name).join("Cargo.toml"));
            (name, text.parse().expect("a manifest is TOML"))
        })
        .collect()
}

/// Our crates among the dependencies of a table, by folder name.
fn ours(table: &toml::Table, kinds: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for kind in kinds {
        let Some(dependencies) = table.get(*kind).and_then(toml::Value::as_table) else {
            continue;
        };
        for (key, value) in dependencies {
            let renamed = value.get("package").and_then(toml::Value::as_str);
            let package = renamed.unwrap_or(key);
            found.extend(package.strip_prefix("dipole-").map(str::to_owned));
        }
    }
    let targets = table.get("target").and_then(toml::Value::as_table);
    for target in targets.into_iter().flat_map(toml::Table::values) {
        found.extend(ours(target.as_table().expect("a target is a table"), kinds));
    }
    found
}

#[test]
fn every_crate_depends_only_on_those_below_it() {
    let manifests = manifests();
    assert!(manifests.len() >= 4, "{:?}", manifests.keys());
    for (name, manifest) in &manifests {
        let (_, allowed) = (MAY_USE.iter().find(|(folder, _)| folder == name))
            .unwrap_or_else(|| panic!("crates/{name} has no row in the table of layers"));
        for used in ours(manifest, &["dependencies", "build-dependencies"]) {
            assert!(
                allowed.contains(&&*used),
                "crates/{name} may not use {used}"
            );
        }
        // Only tests use the testbed, a benchmark of a shaped network, and `dipole chaos`.
        assert!(
            ["bench", "chaos", "lab"].contains(&&**name)
                || !ours(manifest, &["dependencies", "build-dependencies"]).contains("testbed"),
            "crates/{name} uses the testbed outside its tests"
        );
        let everywhere = ["dependencies", "build-dependencies", "dev-dependencies"];
        assert!(
            !ours(manifest, &everywhere).contains("tools"),
            "crates/{name} uses the tools"
        );
    }
}

#[test]
fn the_protocol_has_no_std_no_unsafe_and_no_logging() {
    let source = read(Path::new("crates/proto/src/lib.rs"));
    assert!(source.contains("#![no_std]"));
    assert!(source.contains("#![forbid(unsafe_code)]"));
    let manifest = &manifests()["proto"];
    let dependencies = manifest["dependencies"].as_table().expect("a table");
    for refused in ["tracing", "log", "libc", "rustix", "tokio"] {
        assert!(!dependencies.contains_key(refused), "proto uses {refused}");
    }
}

#[test]
fn unsafe_code_stands_only_where_it_may() {
    let mut seen = false;
    for path in with_extensions(&["rs"]) {
        let allowed = MAY_BE_UNSAFE.iter().any(|folder| path.starts_with(folder));
        for (index, line) in read(&path).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if is_unsafe(code) {
                seen = true;
                assert!(allowed, "{}:{}: {line}", path.display(), index + 1);
            }
        }
    }
    assert!(seen, "the link calls the kernel");
}

/// True if the keyword begins a block or an item; not within a longer word or a string.
fn is_unsafe(code: &str) -> bool {
    let keyword = "unsafe";
    code.match_indices(keyword).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let rest = code[at + keyword.len()..].trim_start();
        let opens = ["{", "fn ", "impl", "extern", "trait ", "("];
        before.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '"')
            && opens.iter().any(|opening| rest.starts_with(opening))
    })
}

#[test]
fn the_keyword_is_distinguished_from_words_that_contain_it() {
    // The keyword is filled in, so that this file does not contain such code.
    let found = |code: &str| is_unsafe(&code.replace('%', "unsafe"));
    assert!(found("    let x = % { y };"));
    assert!(found("% impl Send for X {}"));
    assert!(found("pub % fn f() {}"));
    assert!(found("#[%(no_mangle)]"));
    assert!(!found("#![forbid(%_code)]"));
    assert!(!found("%_op_in_%_fn = \"deny\""));
    assert!(!found("no % here"));
}

#[test]
fn no_file_names_a_private_machine_or_defers_work() {
    // Assembled here, so that this file does not contain them.
    let folders = ["home", "Users", "root"].map(|folder| format!("/{folder}/"));
    let marks = [["TO", "DO"], ["FIX", "ME"]].map(|[a, b]| format!("{a}{b}"));
    let ignored = ["#[", "ignore"].concat();
    for path in files() {
        let text = read(&path);
        for forbidden in folders.iter().chain(&marks).chain([&ignored]) {
            let line = text
                .lines()
                .position(|line| line.contains(forbidden.as_str()));
            assert!(
                line.is_none(),
                "{}:{}: {forbidden}",
                path.display(),
                line.map_or(0, |line| line + 1)
            );
        }
    }
}

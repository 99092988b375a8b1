//! The reference of error numbers lists those of dp_error(3).

#![allow(missing_docs, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(path)).expect("a readable file")
}

#[test]
fn the_reference_lists_every_error_number_of_the_manual() {
    let manual = read("docs/man/dp_error.3");
    let manual: BTreeSet<&str> = (manual.lines())
        .filter_map(|line| line.strip_prefix(".It Bq Er "))
        .collect();
    assert!(manual.len() > 20, "{manual:?}");
    let reference = read("docs/reference/errors.md");
    let reference: BTreeSet<&str> = (reference.lines())
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(reference, manual);
}

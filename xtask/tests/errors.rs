//! The reference of error numbers lists those of dp_error(3).

#![allow(missing_docs, reason = "tests")]

#[path = "common/sources.rs"]
mod sources;

use std::collections::BTreeSet;
use std::path::Path;

use sources::read;

#[test]
fn the_reference_lists_every_error_number_of_the_manual() {
    let manual = read(Path::new("docs/man/dp_error.3"));
    let manual: BTreeSet<&str> = (manual.lines())
        .filter_map(|line| line.strip_prefix(".It Bq Er "))
        .collect();
    assert!(manual.len() > 20, "{manual:?}");
    let reference = read(Path::new("docs/reference/errors.md"));
    let reference: BTreeSet<&str> = (reference.lines())
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    assert_eq!(reference, manual);
}

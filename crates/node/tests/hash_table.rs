//! The example `hash_table`, whose processes are this program started again: so this file has one
//! test only.

#![allow(missing_docs, reason = "tests")]

#[path = "../examples/hash_table.rs"]
mod hash_table;

#[test]
fn a_distributed_hash_table_equals_a_plain_one_and_survives_an_owner() {
    hash_table::main().expect("it ends well");
}

//! Nodes in network namespaces of the test. Needs root; skipped with a message otherwise.

#![allow(missing_docs, reason = "tests")]

mod links;
mod moved;
mod nat;

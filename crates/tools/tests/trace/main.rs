//! `dipole trace` of real runs: what was done to them on purpose is found and named, and the page and the
//! timeline show it. Parts need root, a C compiler, a browser or tmux, and are skipped aloud without.

#![allow(missing_docs, reason = "tests")]

#[path = "../browser/mod.rs"]
mod browser;
mod causes;
mod jobs;
mod pictures;
mod terminal;
mod waits;

//! `dipole trace` of real runs: deliberate disturbances are found and reported, and the page and the timeline
//! show them. Parts need root, a C compiler, a browser or tmux, and are skipped with a message otherwise.

#![allow(missing_docs, reason = "tests")]

#[path = "../browser/mod.rs"]
mod browser;
mod causes;
mod jobs;
mod messages;
mod pictures;
mod planted;
mod terminal;
mod virtual_processes;
mod waits;

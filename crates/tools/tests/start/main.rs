//! Work started by agents: who may request it, the owner's rules, and whole jobs between nodes.

#![allow(missing_docs, reason = "tests")]

mod calls;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod process;
mod rotation;
mod rules;
mod service;

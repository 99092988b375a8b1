//! Work that agents start: who may ask, what the owner's rules say, whole jobs between nodes.

#![allow(missing_docs, reason = "tests")]

mod calls;
mod cluster;
#[path = "../common/mod.rs"]
mod common;
mod process;
mod rotation;
mod rules;
mod service;

//! Work started by agents: who may request it, the owner's rules, and whole jobs between nodes.

#![allow(missing_docs, reason = "tests")]

mod calls;
mod cluster;
mod process;
mod rotation;
mod rules;
mod service;
mod shortages;

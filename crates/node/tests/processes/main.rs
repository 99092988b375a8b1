//! Several processes, some of which are stopped or killed: this program, started again.

#![allow(missing_docs, reason = "tests")]

mod echo;
mod ports_killed;
mod silence;

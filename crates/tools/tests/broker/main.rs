//! The broker grants rings and sockets for raw frames to other users: permissions, limits, attacks,
//! and what remains when a process dies. Needs root and namespaces.

#![allow(missing_docs, reason = "tests")]

mod doctor;
mod lives;
mod scene;
mod strangers;
mod stream;
mod users;

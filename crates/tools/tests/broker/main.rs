//! An agent that grants rings and raw-frame sockets to other users: who gets what, what they can do
//! with it, and what is left when a process dies. Needs root and network namespaces.

#![allow(missing_docs, reason = "tests")]

mod doctor;
mod lives;
mod scene;
mod strangers;
mod stream;
mod users;

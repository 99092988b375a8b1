//! An agent that grants rings and sockets for raw frames to other users: who gets what, what
//! they can do with it, and what is left when anybody dies. Needs root and namespaces.

#![allow(missing_docs, reason = "tests")]

mod doctor;
mod lives;
mod scene;
mod strangers;
mod stream;
mod users;

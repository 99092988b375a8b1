//! `libdipole-sockets.so`, preloaded by `dipole sockets`: connections of TCP between processes of
//! a node, whose large writes go through shared memory. `docs/design/sockets.md` says how, and what
//! happens with whatever a program may do to its descriptors.
//!
//! `calls/` are the calls of the C library that are replaced; `table.rs` knows which descriptors
//! are connections, `connection.rs` is one of them, `directory.rs` finds the other end,
//! `switch.rs` is the protocol between the two, `area.rs` their memory, `kernel.rs` the socket.

pub mod area;
#[cfg(feature = "preload")]
mod calls;
mod connection;
mod counter;
mod directory;
mod kernel;
mod spin;
pub mod switch;
mod table;

//! `libdipole-sockets.so`, preloaded by `dipole sockets`: moves large writes on TCP connections
//! between processes of one node through shared memory. `docs/design/sockets.md` describes the protocol
//! and what happens for each call on a descriptor.
//!
//! `calls/` replaces the C library's functions; `table.rs` knows which descriptors are
//! connections, `connection.rs` is one connection, `directory.rs` finds the peer, `mux.rs` is the
//! protocol between both ends, `area.rs` their shared memory, `headroom.rs` decides whether there is
//! enough of it, `kernel.rs` the kernel's socket, `account.rs` counts the bytes of both ways.

mod account;
pub mod area;
#[cfg(feature = "preload")]
mod calls;
mod connection;
mod counter;
mod directory;
mod headroom;
mod kernel;
pub mod mux;
mod pointer;
mod signals;
mod spin;
mod table;

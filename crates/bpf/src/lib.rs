//! Small packets around the socket: the kernel deposits them in a ring of the process,
//! and what the process sends leaves as raw frames.
//!
//! On the wire nothing differs from the udp link, and a process that has the one talks
//! to processes that have the other, packet by packet.

mod borrow;
pub mod headers;
pub mod hook;
mod inlet;
pub mod layout;
mod link;
pub mod loan;
mod mapping;
pub mod neighbours;
mod netlink;
mod open;
mod outlet;
mod program;
pub mod raw;
mod ring;
mod sys;
pub mod xsk;

pub use inlet::Inlet;
pub use link::{Bpf, BpfStats};
pub use open::{
    BpfError, BpfOptions, DEFAULT_RAW_RUN_FRAMES, DEFAULT_RING_BYTES, RING_BYTES, RxMode,
    Shortcuts, TxMode, card_of, is_permitted,
};
pub use outlet::Outlet;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardId {
    /// Its number in its network namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
}

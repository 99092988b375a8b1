//! Small packets around the socket: the kernel deposits them in a ring of the process.

pub mod headers;
pub mod layout;
pub mod loan;
pub mod neighbours;
mod netlink;
pub mod raw;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardId {
    /// Its number in its network namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
}

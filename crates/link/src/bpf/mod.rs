//! Small packets around the socket: the kernel deposits them in a ring of the process.

pub mod headers;
pub mod hook;
pub mod layout;
pub mod loan;
pub mod neighbours;
mod netlink;
mod program;
pub mod raw;
mod sys;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardId {
    /// Its number in its network namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
}

//! Small packets around the socket: the kernel deposits them in a ring of the process.

pub mod layout;
pub mod loan;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardId {
    /// Its number in its network namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
}

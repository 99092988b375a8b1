//! The links of a process: which of them it opens, and why.

mod choice;
mod follow;
mod open;

pub(crate) use choice::LinkChoice;
pub(crate) use follow::AddressFollower;
pub(crate) use open::open_link;

//! The links of a process: which of them it opens, and why.

mod choice;
mod follow;
mod open;

pub(crate) use choice::LinkChoice;
pub(crate) use follow::{AddressFollower, AddressPublisher};
pub(crate) use open::open_link;

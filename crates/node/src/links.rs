//! The links of a process: which of them it opens, and why.

mod choice;
mod open;

pub(crate) use choice::LinkChoice;
pub(crate) use open::open_link;

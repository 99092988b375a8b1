//! BSPlib on Dipole: programs that compute, communicate and synchronise in supersteps.
//!
//! # Source
//! Hill et al., "BSPlib: The BSP programming library" (1998); its runtime in
//! `bsp-protocols-thesis`, ch. 3-5.

pub mod area;
mod call;
pub mod carrier;
mod failure;
mod local;
pub mod misuse;
mod process;
mod program;
mod record_buffer;
mod slow_wait;
pub mod superstep;
pub mod trace;

pub use call::Call;
pub use dipole_link::shm::pull::PullRange;
pub use dipole_node::log;
pub use failure::Failure;
pub use misuse::Misuse;
pub use process::{Decision, Process, Standby, check_max_ranks, rank_and_size};
pub use program::{Area, Element, Program, ReceivedMessage};

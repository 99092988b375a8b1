//! Moves arrays of any number of dimensions from one block-cyclic distribution over processes to another.
//!
//! A [`Distribution`] defines which process holds which element, and where. A [`Plan`] defines what one
//! process does to get from one distribution to another: what it packs for which process, in which order,
//! and where the data belong that it receives. Every element that moves is sent once, in one message for
//! each pair of processes, and in each round a process sends at most one message and receives at most one.
//! Planning costs no more than the blocks in one period of both distributions, whatever the size of the
//! array. An [`Exchange`] carries the messages; [`Bsp`] is one over supersteps,
//! and a [`Registered`] plan runs on memory of programs in other languages.
//!
//! ```
//! use dipole_reshuffle::{Distribution, Plan};
//!
//! # fn main() -> Result<(), dipole_reshuffle::ReshuffleError> {
//! // 1000 elements over four processes: in blocks of 10 in turn, and in four long parts.
//! let cyclic = Distribution::new(&[1000], &[4], &[10])?;
//! let blocks = Distribution::new(&[1000], &[4], &[250])?;
//! let plan = Plan::new(&cyclic, &blocks, 1)?;
//! assert_eq!((plan.source_elements(), plan.target_elements()), (250, 250));
//! assert_eq!(plan.rounds(), 3);
//! # Ok(())
//! # }
//! ```
//!
//! # Source
//! The reshuffling of Gigabit Nectar §5.2 (Bornstein and Steenkiste).

#![deny(unsafe_code)]

mod bsp;
mod distribution;
mod error;
mod message;
mod piece;
mod plan;
#[allow(unsafe_code, reason = "runs on memory of the program")]
mod registered;
mod rounds;
mod runs;

pub use bsp::{Bsp, BspError};
pub use distribution::{Dimension, Distribution};
pub use error::ReshuffleError;
pub use message::{Message, Transfer};
pub use plan::{Exchange, Plan};
pub use registered::Registered;

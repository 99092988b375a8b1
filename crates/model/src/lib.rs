//! The cost model: parameters of messages and supersteps, predictions from them, and the profile
//! files that keep them.
//!
//! [`PointToPoint`] predicts one message between two processes, [`Machine`] predicts supersteps of
//! many, [`Forecast`] is the time of a whole program, and [`Collectives`] chooses algorithms by the latter. [`Profile`] is the file that
//! `dipole calibrate` writes; [`Choices`] is the part of it that a node reads.

#![forbid(unsafe_code)]

mod choices;
mod collectives;
mod file;
mod forecast;
mod interval;
mod point_to_point;
mod profile;
mod slots;
mod superstep;
mod wire;

pub use choices::Choices;
pub use collectives::Collectives;
pub use file::ProfileError;
pub use forecast::{Forecast, Sums, half_width};
pub use interval::MedianInterval;
pub use point_to_point::{Long, PointToPoint, Prediction, Regime, Short};
pub use profile::{CopyCost, Pacing, Profile};
pub use slots::{Medium, Slots};
pub use superstep::{Basis, Contention, Cost, Machine, Parameters, Pattern};
pub use wire::Wire;

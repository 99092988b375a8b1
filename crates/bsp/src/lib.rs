//! BSPlib on Dipole: programs that compute, communicate and synchronise in supersteps.
//!
//! # Source
//! Donaldson, Hill, Skillicorn: BSPlib, and its runtime in `bsp-protocols-thesis`, ch. 3-5.

pub mod profile;
pub mod superstep;

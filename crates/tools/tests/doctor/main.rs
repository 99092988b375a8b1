//! `dipole doctor` with real processes: healthy and each fault that can be made here.

#![allow(missing_docs, reason = "tests")]

mod calibration;
mod here;
mod peers;
mod testbed;
mod version;

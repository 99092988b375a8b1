//! `dipole doctor` with real processes: healthy and each fault that can be made here.

#![allow(missing_docs, reason = "tests")]

mod here;
mod peers;
mod testbed;
mod version;

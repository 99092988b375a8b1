//! `dipole doctor` with real processes: a healthy machine, and each fault that can be produced here.

#![allow(missing_docs, reason = "tests")]

mod here;
mod peers;
mod testbed;
mod version;

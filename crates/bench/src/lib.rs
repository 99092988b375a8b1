//! `dipole bench` and the measurements of `dipole calibrate`: Dipole compared with plain sockets and
//! plain memory in the same run.
//!
//! Every figure comes from two processes (this program, started again), each pinned to its own core.
//! Each subject takes its turn in every round, because machines drift: only figures of the same table
//! may be compared. The laboratory (`dipole-lab`) builds its own measurements on these modules.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    reason = "shared with the laboratory only, never published"
)]

pub mod bsp;
pub mod calibrate;
pub mod channel;
mod command;
pub mod conditions;
pub mod control;
pub mod dipole;
mod efficiency;
pub mod estimate;
pub mod failure;
mod flow;
pub mod launch;
pub mod machine;
mod memory;
mod mixed;
pub mod output;
pub mod page;
pub mod peers;
pub mod pingpong;
pub mod plan;
mod port;
pub mod remote;
pub mod results;
pub mod run;
mod setup;
pub mod side;
pub mod soak;
pub mod statistics;
pub mod stdio;
pub mod subject;
pub mod testbed;
pub mod traffic;
pub mod work;

pub use bsp::{RankArgs, SuperstepsArgs, calibrate as calibrate_supersteps, rank};
pub use calibrate::sockets::{MIN_BYTES_VARIABLE as SOCKETS_MIN_BYTES, library as sockets_library};
pub use calibrate::{MessagesArgs, calibrate as calibrate_messages};
pub use command::{BenchArgs, execute, size};
pub use setup::SetupArgs;

//! A UDP link with a fast path for small packets: a BPF program at the interface's ingress puts
//! them into a ring that the process maps, and the process sends them as raw frames.
//!
//! On the wire nothing differs from plain UDP, so a process with this link communicates with processes
//! without it, packet by packet. `docs/design/bpf.md` describes the parts and their cost.

mod error;
mod fast_path;
pub mod grant;
pub mod headers;
pub mod hook;
mod interface;
pub mod layout;
mod link;
mod mapping;
pub mod neighbours;
mod netlink;
mod options;
mod program;
pub mod raw;
mod ring;
mod rx_path;
mod sys;
mod tx_path;

pub use error::BpfError;
pub use fast_path::FastPath;
pub use interface::{InterfaceId, has_capabilities, interface_of};
pub use link::{Bpf, BpfStats};
pub use options::{BpfOptions, DEFAULT_RAW_RUN_FRAMES, DEFAULT_RING_BYTES, RING_BYTES};

//! The C interface of BSPlib: `libbsp`.
//!
//! A thin layer over `dipole_bsp`: it keeps the one process of the program, turns the argument types of both dialects
//! into one, checks pointers and signs, and ends the job when a call fails. The interface is described where its users
//! read it, in `include/bsp.h` and the manual pages; a test compares the header with the functions here.
//!
//! `section.rs` is the way into every call. `life.rs` begins and ends, `text.rs` is `bsp_abort`, `memory.rs` has registration, put and get,
//! `messages.rs` sends and receives, `collectives.rs` has the algorithms and `level1.rs` the functions of the collectives, `number.rs` the arguments of both dialects.

mod collectives;
mod level1;
mod life;
mod memory;
mod messages;
mod number;
mod section;
mod text;

pub use level1::*;
pub use life::*;
pub use memory::*;
pub use messages::*;
pub use section::bsp_call_site;
pub use text::{bsp_abort, bsp_abort_text, bsp_abort_va, bsp_vabort};

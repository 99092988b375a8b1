//! The C interface of BSPlib: `libbsp`.
//!
//! A thin layer over `dipole_bsp`: it keeps the one process of the program, turns the argument types of both dialects
//! into one, checks pointers and signs, and ends the job when a call fails. The interface is described where its users
//! read it, in `include/bsp.h` and the manual pages; a test compares the header with the functions here.
//!
//! `section.rs` is the way into every call. `life.rs` begins and ends, `text.rs` is `bsp_abort`, `memory.rs` has registration, put and get,
//! `messages.rs` sends and receives, `collectives.rs` has the algorithms and `level1.rs` the functions of the collectives, `scratch.rs` memory for them, `number.rs` the arguments of both dialects.
//! `reshuffle.rs` and `plan.rs` get arrays from one distribution to another. `oxford.rs` and `checkpoint.rs` are calls that other libraries have.

mod checkpoint;
mod collectives;
mod level1;
mod life;
mod memory;
mod messages;
mod number;
mod oxford;
mod plan;
mod reshuffle;
mod scratch;
mod section;
mod text;

pub use checkpoint::{
    mcbsp_checkpoint, mcbsp_disable_checkpoints, mcbsp_enable_checkpoints,
    mcbsp_get_checkpoint_frequency, mcbsp_get_safe_checkpoint_frequency,
    mcbsp_set_checkpoint_frequency, mcbsp_set_safe_checkpoint_frequency,
};
pub use level1::*;
pub use life::*;
pub use memory::*;
pub use messages::*;
pub use oxford::*;
pub use reshuffle::{
    Reshuffle, bsp_distribution_elements, bsp_reshuffle_execute, bsp_reshuffle_in_place,
    bsp_reshuffle_plan_create, bsp_reshuffle_plan_destroy,
};
pub use section::bsp_call_site;
pub use text::{bsp_abort, bsp_abort_text, bsp_abort_va, bsp_vabort};

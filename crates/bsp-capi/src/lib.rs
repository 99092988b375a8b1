//! The C interface of BSPlib: `libbsp`.
//!
//! A thin layer over `dipole_bsp`. It holds the one process of the program, converts the argument types
//! of both dialects, checks pointers and signs, and ends the job when a call fails. Users find the
//! interface in `include/bsp.h` and in the manual pages; a test compares the header with the functions
//! here. Every call enters through `section.rs`.

mod checkpoint;
mod collectives;
mod fortran77;
mod level1;
mod life;
mod memory;
mod messages;
mod number;
mod output;
mod oxford;
mod parameters;
mod reshuffle;
mod scratch;
mod section;
mod sections;
mod text;

pub use checkpoint::{
    bsp_checkpoint, mcbsp_checkpoint, mcbsp_disable_checkpoints, mcbsp_enable_checkpoints,
    mcbsp_get_checkpoint_frequency, mcbsp_get_safe_checkpoint_frequency,
    mcbsp_set_checkpoint_frequency, mcbsp_set_safe_checkpoint_frequency,
};
pub use fortran77::*;
pub use level1::*;
pub use life::*;
pub use memory::*;
pub use messages::*;
pub use oxford::*;
pub use parameters::*;
pub use reshuffle::{
    bsp_distribution_elements, bsp_reshuffle_execute, bsp_reshuffle_in_place,
    bsp_reshuffle_plan_create, bsp_reshuffle_plan_destroy,
};
pub use section::bsp_call_site;
pub use text::{bsp_abort, bsp_abort_text, bsp_abort_va, bsp_vabort};

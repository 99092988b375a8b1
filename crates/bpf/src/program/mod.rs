//! BPF programs for the kernel, assembled here so that a build needs no other compiler. They know
//! packets, not files or descriptors.

pub(super) mod assembler;
pub(super) mod dispatch;
pub(super) mod guard;
#[cfg(test)]
mod interpreter;
pub(super) mod maps;
#[cfg(test)]
pub(super) mod model;
mod packet;
#[cfg(test)]
mod tests;

//! Call stacks in a trace file, and the program and libraries whose code they refer to.

use serde::{Deserialize, Serialize};

use crate::bytes::{printable, take_value, take32};

/// Longest stack that is recorded. Of longer ones the innermost calls are recorded.
pub(super) const MAX_FRAMES: usize = 64;
/// Longest path that is recorded.
pub(super) const MAX_PATH_BYTES: usize = 4096;

/// A file with code of the program: the executable or a library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Module {
    /// Path of the module's file.
    pub path: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// When it was last modified, in seconds since 1970.
    pub written_s: i64,
}

/// A call on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    /// Index of the module in the trace; `u32::MAX` if the code is in no file.
    pub module: u32,
    /// Offset in the file of a byte of the call instruction.
    pub offset: u64,
}

/// An entry of the section of stacks.
#[derive(Serialize, Deserialize)]
pub(super) enum Entry {
    Module(Module),
    Stack(Vec<Frame>),
}

/// Decodes the section at [`STACKS_AT`](crate::STACKS_AT): its length, then modules and stacks in
/// the order in which they were added.
#[must_use]
pub fn decode(mut bytes: &[u8]) -> Option<(Vec<Module>, Vec<Vec<Frame>>)> {
    let used = take32(&mut bytes)? as usize;
    let mut bytes = bytes.get(..used)?;
    let at = &mut bytes;
    let (mut modules, mut stacks) = (Vec::new(), Vec::new());
    while !at.is_empty() {
        match take_value(at)? {
            Entry::Module(module) => modules.push(Module {
                path: printable(module.path.as_bytes())?,
                ..module
            }),
            Entry::Stack(frames) if frames.len() <= MAX_FRAMES => stacks.push(frames),
            Entry::Stack(_) => return None,
        }
    }
    Some((modules, stacks))
}

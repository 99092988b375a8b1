//! Stacks of calls and the files that their code is in, as a trace keeps them.

use crate::bytes::{front, narrow, put32, put64, take32, take64, text};

/// The deepest stack that is kept; of deeper ones the innermost calls.
pub(super) const MOST_FRAMES: usize = 64;
const MODULE: u32 = 0;
pub(super) const STACK: u32 = 1;

/// A file with code of the program: itself, or a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Where it was.
    pub path: String,
    /// How long it was.
    pub bytes: u64,
    /// When it was last written, in seconds since 1970.
    pub written_s: i64,
}

/// A call on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// In which of the trace's modules; `u32::MAX` if in none.
    pub module: u32,
    /// Within its file, a byte of the instruction that calls.
    pub offset: u64,
}

impl Module {
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        put32(into, MODULE);
        put64(into, self.bytes);
        put64(into, self.written_s.cast_unsigned());
        let path = front(&self.path, 4096);
        put32(into, narrow(path.len()));
        into.extend_from_slice(path.as_bytes());
    }
}

/// What lies at [`STACKS_AT`](crate::STACKS_AT) of a file: how many bytes are used, then modules and stacks in the order in which they were seen.
#[must_use]
pub fn decode(mut bytes: &[u8]) -> Option<(Vec<Module>, Vec<Vec<Frame>>)> {
    let used = take32(&mut bytes)? as usize;
    let mut bytes = bytes.get(..used)?;
    let at = &mut bytes;
    let (mut modules, mut stacks) = (Vec::new(), Vec::new());
    while !at.is_empty() {
        match take32(at)? {
            MODULE => {
                let (length, written) = (take64(at)?, take64(at)?);
                let path_bytes = take32(at)? as usize;
                let (path, rest) = at.split_at_checked(path_bytes)?;
                *at = rest;
                modules.push(Module {
                    path: text(path)?,
                    bytes: length,
                    written_s: written.cast_signed(),
                });
            }
            STACK => {
                let count = take32(at)? as usize;
                if count > MOST_FRAMES {
                    return None;
                }
                let mut frames = Vec::with_capacity(count);
                for _ in 0..count {
                    frames.push(Frame {
                        module: take32(at)?,
                        offset: take64(at)?,
                    });
                }
                stacks.push(frames);
            }
            _ => return None,
        }
    }
    Some((modules, stacks))
}

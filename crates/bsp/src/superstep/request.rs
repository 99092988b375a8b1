//! Requests of a rank that all ranks fulfil at the end of a superstep.

/// A request, which travels with what ranks exchange anyway. If ranks request different things, the
/// greatest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Request {
    /// Nothing.
    #[default]
    None,
    /// All ranks take an image of their process.
    Checkpoint,
    /// The same, and ranks move to other nodes.
    Migration,
    /// All ranks take an image of their process, and end.
    Preemption,
}

impl Request {
    /// Number of bits of the encoded request.
    const BITS: u32 = 0b11;

    /// The request as a number of two bits.
    #[must_use]
    #[inline]
    pub fn bits(self) -> u32 {
        self as u32
    }

    /// The request that the two lowest bits encode.
    #[must_use]
    #[inline]
    pub fn from_bits(bits: u32) -> Request {
        match bits & Request::BITS {
            0 => Request::None,
            1 => Request::Checkpoint,
            2 => Request::Migration,
            _ => Request::Preemption,
        }
    }
}

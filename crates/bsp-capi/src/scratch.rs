//! Memory of this library that other processes put into, for collectives.
//!
//! All processes register it together, and again when they need more.

use dipole_bsp::Failure;
use dipole_bsp::carrier::AnyCarrier;

/// A rank over any kind of link.
pub(crate) type Process = dipole_bsp::Process<AnyCarrier>;
/// A rank between parallel sections.
pub(crate) type Standby = dipole_bsp::Standby<AnyCarrier>;

/// A unit of memory, aligned for values of any type.
pub(crate) type Cell = u128;

/// Memory for `bytes` bytes, aligned for values of any type.
pub(crate) fn cells(bytes: usize) -> Vec<Cell> {
    vec![0; bytes.div_ceil(size_of::<Cell>())]
}

/// A number of bytes in memory as `usize`.
pub(crate) fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Memory that other processes put into, in two halves that are used in turn: while one process still
/// reads what arrived in the last superstep, others may already write the next half.
#[derive(Default)]
pub(crate) struct Scratch {
    memory: Vec<Cell>,
    half: u64,
    second: bool,
}

impl Scratch {
    /// The registered address, and the offset of the half that others may put `bytes` bytes into in this
    /// superstep.
    pub(crate) fn next_half(
        &mut self,
        process: &mut Process,
        bytes: u64,
    ) -> Result<(*mut u8, u64), Failure> {
        self.reserve(process, bytes)?;
        let base = if self.second { self.half } else { 0 };
        self.second = !self.second;
        Ok((self.handle(), base))
    }

    fn handle(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr().cast()
    }

    /// Makes halves of at least `bytes` bytes, on all processes together.
    fn reserve(&mut self, process: &mut Process, bytes: u64) -> Result<(), Failure> {
        if bytes <= self.half {
            return Ok(());
        }
        let half = bytes.next_power_of_two().max(1 << 10);
        let mut larger = cells(in_memory(2 * half));
        // SAFETY: the memory lives until it is popped, and is only accessed through pointers.
        unsafe { process.push_registration(larger.as_mut_ptr().cast(), 2 * half) }?;
        if self.half > 0 {
            process.pop_registration(self.handle().cast_const().cast())?;
        }
        process.sync()?;
        self.memory = larger;
        self.half = half;
        Ok(())
    }
}

//! Memory of the library's own that other processes put into, for collectives.
//!
//! Registered once, and again when more is needed, on all processes alike.

use dipole_bsp::Failure;
use dipole_bsp::carrier::AnyCarrier;

/// A rank over whatever link there is.
pub(crate) type Process = dipole_bsp::Process<AnyCarrier>;

/// A value of any type: aligned for all of them.
pub(crate) type Cell = u128;

/// So many bytes, aligned for values of any type.
pub(crate) fn cells(bytes: usize) -> Vec<Cell> {
    vec![0; bytes.div_ceil(size_of::<Cell>())]
}

/// An amount that lies in memory, and so has an address.
pub(crate) fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Memory that others put into, in two halves that take turns: while one process still reads what came in the last
/// superstep, others are writing already what comes in this one.
#[derive(Default)]
pub(crate) struct Scratch {
    memory: Vec<Cell>,
    half: u64,
    second: bool,
}

impl Scratch {
    /// The registered address, and the offset behind it of a half that so many bytes may be put into in this superstep.
    pub(crate) fn turn(
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

    /// Makes halves of at least so many bytes, on all processes alike.
    fn reserve(&mut self, process: &mut Process, bytes: u64) -> Result<(), Failure> {
        if bytes <= self.half {
            return Ok(());
        }
        let half = bytes.next_power_of_two().max(1 << 10);
        let mut larger = cells(in_memory(2 * half));
        // SAFETY: the memory stays until it is popped, and is reached by pointers only.
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

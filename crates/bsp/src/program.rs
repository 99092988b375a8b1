//! The Rust interface. A program owns the memory that ranks put and get, and lends it out between
//! synchronisations.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut, Range};
use std::panic::Location;
use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::call::Call;
use crate::carrier::AnyCarrier;
use crate::failure::Failure;
use crate::misuse::Misuse;
use crate::process::Process;

/// Types of which areas can consist: numbers, and structures of numbers without padding.
pub trait Element:
    Copy + Default + Debug + Send + FromBytes + IntoBytes + Immutable + 'static
{
}

impl<T> Element for T where
    T: Copy + Default + Debug + Send + FromBytes + IntoBytes + Immutable + 'static
{
}

/// A rank of a program. Areas are read and written through it, so that no reference to their memory
/// can outlive a [`sync`](Self::sync), which changes it:
///
/// ```
/// # fn main() -> Result<(), dipole_bsp::Failure> {
/// # let Some(mut program) = dipole_bsp::Program::begin()? else { return Ok(()) };
/// let sums = program.register(vec![0_u64; program.size() as usize]);
/// program.sync()?;
/// let own = u64::from(program.rank()) + 1;
/// for rank in 0..program.size() {
///     program.put(rank, &[own], sums, program.rank() as usize)?;
/// }
/// program.sync()?;
/// let p = u64::from(program.size());
/// assert_eq!(program[sums].iter().sum::<u64>(), p * (p + 1) / 2);
/// program.end()
/// # }
/// ```
///
/// ```compile_fail
/// # fn main() -> Result<(), dipole_bsp::Failure> {
/// # let Some(mut program) = dipole_bsp::Program::begin()? else { return Ok(()) };
/// let area = program.register(vec![0_u64; 8]);
/// let memory = &program[area];
/// program.sync()?; // other ranks may write there now
/// println!("{}", memory[0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Program {
    process: Process<AnyCarrier>,
    /// By number; `None` if an area has been unregistered.
    areas: Vec<Option<Memory>>,
    /// Unregistered in this superstep. Other ranks may put there until it ends.
    unregistered: Vec<Memory>,
}

/// The memory of an area. It has at least one element, so that its address is unique.
type Memory = Box<dyn Bytes>;

/// Elements of some type, as bytes.
trait Bytes: Debug + Send {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

#[derive(Debug)]
struct Elements<T> {
    elements: Vec<T>,
    /// Without the element that makes an empty area's address unique.
    length: usize,
}

impl<T: Element> Bytes for Elements<T> {
    fn bytes(&self) -> &[u8] {
        self.elements[..self.length].as_bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.elements[..self.length].as_mut_bytes()
    }
}

/// An area: a part of memory on every rank, with elements of one type.
#[derive(Debug)]
pub struct Area<T> {
    number: usize,
    elements: PhantomData<fn() -> T>,
}

impl<T> Clone for Area<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Area<T> {}

/// A message from the previous superstep.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedMessage<'a> {
    /// Tag of the message.
    pub tag: &'a [u8],
    /// Payload of the message.
    pub payload: &'a [u8],
}

impl<'a> ReceivedMessage<'a> {
    /// The payload as elements, if its length is a multiple of their size.
    #[must_use]
    pub fn elements<T: Element>(&self) -> Option<&'a [T]> {
        // The queue aligns payloads to 16 bytes.
        <[T]>::ref_from_bytes(self.payload).ok()
    }
}

impl Program {
    /// Begins with all processes of the job, or alone. Returns `None` on a surplus process.
    ///
    /// # Errors
    /// A rank does not start.
    pub fn begin() -> Result<Option<Program>, Failure> {
        Program::begin_at_most(u32::MAX)
    }

    /// Begins the program with at most `max_ranks` ranks; rank 0's value counts.
    ///
    /// # Errors
    /// A rank does not start.
    pub fn begin_at_most(max_ranks: u32) -> Result<Option<Program>, Failure> {
        let process = Process::begin(Some(max_ranks))?;
        Ok(process.map(|process| Program {
            process,
            areas: Vec::new(),
            unregistered: Vec::new(),
        }))
    }

    /// Returns the rank of this process.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.process.rank()
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.process.size()
    }

    /// Time since the program began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.process.elapsed()
    }

    /// Registers memory as this rank's part of an area. All ranks register the same areas in the same
    /// order; the parts may differ in length. Other ranks reach it from the next superstep on.
    pub fn register<T: Element>(&mut self, memory: Vec<T>) -> Area<T> {
        let length = memory.len();
        let mut elements = memory;
        if size_of_val(&elements[..]) == 0 {
            elements.push(T::default());
        }
        let mut memory: Memory = Box::new(Elements { elements, length });
        let bytes = memory.bytes_mut();
        let (address, bytes) = (bytes.as_mut_ptr().cast(), bytes.len() as u64);
        // SAFETY: the memory stays in `self.areas` or `self.unregistered` until the superstep in
        // which it is unregistered has ended, and a box does not move its contents. `sync` borrows
        // `self` mutably, so no reference to the memory exists then.
        let pushed = unsafe { self.process.push_registration(address, bytes) };
        // Only NULL with a size is refused, and a box is not NULL.
        debug_assert!(pushed.is_ok());
        self.areas.push(Some(memory));
        Area {
            number: self.areas.len() - 1,
            elements: PhantomData,
        }
    }

    /// Unregisters an area, as all ranks must in the same order, and returns this rank's part. Puts of
    /// this superstep no longer reach the returned copy.
    ///
    /// # Errors
    /// The area is not registered.
    pub fn unregister<T: Element>(&mut self, area: Area<T>) -> Result<Vec<T>, Failure> {
        let memory = self.areas.get_mut(area.number).and_then(Option::take);
        let mut memory = memory.ok_or(Misuse::NeverPushed { address: 0 })?;
        let copy = elements::<T>(memory.bytes()).to_vec();
        let address = memory.bytes_mut().as_ptr();
        self.process.pop_registration(address.cast())?;
        self.unregistered.push(memory);
        Ok(copy)
    }

    fn address<T>(&self, area: Area<T>) -> Result<*const u8, Misuse> {
        let memory = self.areas.get(area.number).and_then(Option::as_ref);
        let memory = memory.ok_or(Misuse::NotRegistered { address: 0 })?;
        Ok(memory.bytes().as_ptr())
    }

    /// Puts elements into a rank's part of an area at the end of the superstep. Copies them before it
    /// returns.
    ///
    /// # Errors
    /// The rank does not exist, or the elements exceed its part.
    pub fn put<T: Element>(
        &mut self,
        to: u32,
        from: &[T],
        area: Area<T>,
        at: usize,
    ) -> Result<(), Failure> {
        let handle = self.address(area)?;
        let (offset, bytes) = (at * size_of::<T>(), size_of_val(from));
        let from = from.as_ptr().cast();
        // SAFETY: `from` and `bytes` are those of a slice.
        unsafe { (self.process).put(to, from, handle.cast(), offset as u64, bytes as u64) }
    }

    /// Puts elements of this rank's part of an area into a rank's part of another. They are read at any
    /// time until the superstep ends, without a copy where possible, so neither part may change until
    /// then.
    ///
    /// # Errors
    /// The rank does not exist, or the elements exceed a part.
    pub fn put_unbuffered<T: Element>(
        &mut self,
        to: u32,
        (own, range): (Area<T>, Range<usize>),
        area: Area<T>,
        at: usize,
    ) -> Result<(), Failure> {
        let from = self.part(own, range)?;
        let (start, bytes) = (from.start, from.end - from.start);
        let from = self.address(own)?.wrapping_add(start);
        let handle = self.address(area)?;
        let offset = (at * size_of::<T>()) as u64;
        // SAFETY: `part` has checked that the range is inside an area. Its memory stays until the
        // superstep ends, and is read in `sync` only, when no reference to it exists.
        unsafe { (self.process).put_unbuffered(to, from, handle.cast(), offset, bytes as u64) }
    }

    /// Gets elements of a rank's part of an area, as they are at the end of the superstep before any
    /// put takes effect, into a range of this rank's part of an area.
    ///
    /// # Errors
    /// The rank does not exist, or the elements exceed a part.
    pub fn get<T: Element>(
        &mut self,
        of: u32,
        area: Area<T>,
        at: usize,
        (own, range): (Area<T>, Range<usize>),
    ) -> Result<(), Failure> {
        let (handle, into, bytes) = self.destination(area, own, range)?;
        let offset = (at * size_of::<T>()) as u64;
        // SAFETY: `destination` has checked that the range is inside an area. Its memory stays until
        // the superstep ends, and is written in `sync` only, when no reference to it exists.
        unsafe { (self.process).get(of, handle.cast(), offset, into, bytes) }
    }

    /// Like [`get`](Self::get), but avoids an intermediate copy where possible. Neither part may change
    /// in the superstep.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get).
    pub fn get_unbuffered<T: Element>(
        &mut self,
        of: u32,
        area: Area<T>,
        at: usize,
        (own, range): (Area<T>, Range<usize>),
    ) -> Result<(), Failure> {
        let (handle, into, bytes) = self.destination(area, own, range)?;
        let offset = (at * size_of::<T>()) as u64;
        // SAFETY: `destination` has checked that the range is inside an area. Its memory stays until
        // the superstep ends, and is written in `sync` only, when no reference to it exists.
        unsafe { (self.process).get_unbuffered(of, handle.cast(), offset, into, bytes) }
    }

    /// True if [`direct_get`](Self::direct_get) reaches a rank's memory.
    #[must_use]
    pub fn can_direct_get(&self, of: u32) -> bool {
        self.process.can_direct_get(of)
    }

    /// Copies elements of the part of a rank of this node before it returns. Changes that the owner
    /// makes in this superstep may or may not be seen.
    ///
    /// # Errors
    /// The rank does not exist, its memory cannot be read, or the elements exceed its part.
    pub fn direct_get<T: Element>(
        &mut self,
        of: u32,
        area: Area<T>,
        at: usize,
        into: &mut [T],
    ) -> Result<(), Failure> {
        let handle = self.address(area)?;
        let (offset, bytes) = (at * size_of::<T>(), size_of_val(into));
        let into = into.as_mut_ptr().cast();
        // SAFETY: `into` and `bytes` are those of a slice that is borrowed mutably. This call borrows
        // all areas mutably, so no reference to them exists.
        unsafe { (self.process).direct_get(of, handle.cast(), offset as u64, into, bytes as u64) }
    }

    fn destination<T: Element>(
        &mut self,
        area: Area<T>,
        own: Area<T>,
        range: Range<usize>,
    ) -> Result<(*const u8, *mut u8, u64), Failure> {
        let handle = self.address(area)?;
        let part = self.part(own, range)?;
        let bytes = (part.end - part.start) as u64;
        let memory = self.areas[own.number].as_mut();
        let memory = memory.ok_or(Misuse::NotRegistered { address: 0 })?;
        let into = memory.bytes_mut()[part].as_mut_ptr();
        Ok((handle, into, bytes))
    }

    /// The bytes of a range of this rank's part of an area.
    fn part<T: Element>(&self, own: Area<T>, range: Range<usize>) -> Result<Range<usize>, Misuse> {
        let memory = self.areas.get(own.number).and_then(Option::as_ref);
        let registered = memory.map_or(0, |memory| memory.bytes().len());
        let size = size_of::<T>();
        let bytes = range.start.saturating_mul(size)..range.end.saturating_mul(size);
        if bytes.start <= bytes.end && bytes.end <= registered {
            return Ok(bytes);
        }
        Err(Misuse::OutOfBounds {
            rank: self.rank(),
            offset: bytes.start as u64,
            bytes: bytes.end.saturating_sub(bytes.start) as u64,
            registered: registered as u64,
        })
    }

    /// Sets the tag size from the next superstep on, as all ranks must. Returns the size set before.
    pub fn set_tag_size(&mut self, bytes: usize) -> usize {
        let before = self.process.set_tag_size(bytes as u64);
        usize::try_from(before).unwrap_or(usize::MAX)
    }

    /// Sends a message, which its rank receives in the next superstep.
    ///
    /// # Errors
    /// The rank does not exist, or the length of the tag is not the tag size.
    pub fn send<T: Element>(&mut self, to: u32, tag: &[u8], payload: &[T]) -> Result<(), Failure> {
        let set = self.process.tag_size();
        if tag.len() as u64 != set {
            let given = tag.len() as u64;
            return Err(Misuse::TagSize { given, set }.into());
        }
        let bytes = size_of_val(payload) as u64;
        // SAFETY: the lengths are those of slices; that of the tag has been checked.
        unsafe { (self.process).send(to, tag.as_ptr(), payload.as_ptr().cast(), bytes) }
    }

    /// The number of messages that have not been received, and the bytes of their payloads.
    #[must_use]
    pub fn messages(&self) -> (u64, u64) {
        self.process.queue_size()
    }

    /// The next message from the previous superstep. Messages have no order.
    pub fn receive(&mut self) -> Option<ReceivedMessage<'_>> {
        let message = self.process.take_message()?;
        Some(ReceivedMessage {
            tag: message.tag,
            payload: message.payload,
        })
    }

    /// Ends the superstep. Returns when all ranks have ended it and all data have arrived.
    ///
    /// # Errors
    /// The ranks made different collective calls, or a rank has ended. The program must end then.
    #[track_caller]
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.process.set_call(here("sync"));
        self.process.sync()?;
        self.unregistered.clear();
        Ok(())
    }

    /// Ends the program, as all ranks must.
    ///
    /// # Errors
    /// The errors of [`sync`](Self::sync).
    #[track_caller]
    pub fn end(mut self) -> Result<(), Failure> {
        self.process.set_call(here("end"));
        self.process.end()
    }

    /// Ends the program on all ranks, because of an error on this one.
    pub fn abort(mut self) {
        self.process.abort();
    }
}

/// The call at the position of its caller.
#[track_caller]
fn here(name: &'static str) -> Call {
    let place = Location::caller();
    Call {
        name,
        place: Some((place.file(), place.line())),
    }
}

fn elements<T: Element>(bytes: &[u8]) -> &[T] {
    // The memory was registered as a vector of such elements, so its size and alignment fit.
    <[T]>::ref_from_bytes(bytes).unwrap_or(&[])
}

impl<T: Element> Index<Area<T>> for Program {
    type Output = [T];

    /// This rank's part of an area.
    ///
    /// # Panics
    /// If the area has been unregistered.
    fn index(&self, area: Area<T>) -> &[T] {
        match &self.areas[area.number] {
            Some(memory) => elements(memory.bytes()),
            None => panic!("the area has been unregistered"),
        }
    }
}

impl<T: Element> IndexMut<Area<T>> for Program {
    fn index_mut(&mut self, area: Area<T>) -> &mut [T] {
        match &mut self.areas[area.number] {
            Some(memory) => <[T]>::mut_from_bytes(memory.bytes_mut()).unwrap_or(&mut []),
            None => panic!("the area has been unregistered"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone() -> Program {
        Program::begin_at_most(1)
            .expect("one rank suffices")
            .expect("it takes part")
    }

    #[test]
    fn a_single_rank_puts_gets_and_sends_to_itself() {
        let mut program = alone();
        let area = program.register((0..10_u32).collect());
        let empty = program.register(Vec::<u32>::new());
        assert_eq!(program.set_tag_size(2), 0);
        program.sync().expect("alone");
        program.put(0, &[7, 8], area, 3).expect("inside");
        program.get(0, area, 3, (area, 0..2)).expect("inside");
        program
            .get_unbuffered(0, area, 9, (area, 5..6))
            .expect("inside");
        program
            .put_unbuffered(0, (area, 8..9), area, 6)
            .expect("inside");
        program.send(0, b"ab", &[1.5_f64, 2.5]).expect("a message");
        assert!(program.put(0, &[1], empty, 0).is_err());
        program.sync().expect("alone");
        assert_eq!(program[area], [3, 4, 2, 7, 8, 9, 8, 7, 8, 9]);
        let message = program.receive().expect("it was sent");
        assert_eq!(message.tag, b"ab");
        assert_eq!(message.elements::<f64>(), Some(&[1.5, 2.5][..]));
        program[area][0] = 42;
        assert_eq!(program.unregister(area).expect("there")[0], 42);
        assert!(program.unregister(area).is_err());
        program.end().expect("alone");
    }

    #[test]
    fn misuse_that_the_compiler_cannot_detect_is_an_error() {
        let mut program = alone();
        let area = program.register(vec![0_u64; 4]);
        assert!(program.put(0, &[1], area, 0).is_err(), "not yet");
        program.sync().expect("alone");
        assert!(program.put(1, &[1], area, 0).is_err());
        assert!(program.put(0, &[1, 2], area, 3).is_err());
        assert!(program.get(0, area, 0, (area, 3..5)).is_err());
        assert!(program.put_unbuffered(0, (area, 5..7), area, 0).is_err());
        assert!(program.send(0, b"tag", &[0_u8]).is_err());
        program.end().expect("alone");
    }
}

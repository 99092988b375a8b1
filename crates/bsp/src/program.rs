//! The interface for Rust: a program owns the memory that ranks put and get, and lends it between
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

/// What areas can be made of: numbers, and structures of numbers without padding.
pub trait Element:
    Copy + Default + Debug + Send + FromBytes + IntoBytes + Immutable + 'static
{
}

impl<T> Element for T where
    T: Copy + Default + Debug + Send + FromBytes + IntoBytes + Immutable + 'static
{
}

/// A rank of a program. Its areas are read and written through it, so nobody holds on to their memory
/// over [`sync`](Self::sync), which changes it:
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
/// program.sync()?; // others may write there now
/// println!("{}", memory[0]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Program {
    process: Process<AnyCarrier>,
    /// By number; none where an area was taken back.
    areas: Vec<Option<Memory>>,
    /// Taken back in this superstep: others may still put there until it ends.
    leaving: Vec<Memory>,
}

/// The memory of an area, at least one element long: its address is its name.
type Memory = Box<dyn Bytes>;

/// Memory of some type.
trait Bytes: Debug + Send {
    fn bytes(&self) -> &[u8];
    fn bytes_mut(&mut self) -> &mut [u8];
}

#[derive(Debug)]
struct Elements<T> {
    elements: Vec<T>,
    /// Without the one that stands for none.
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

/// A part of memory on every rank, of elements of one type.
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

/// A message from the superstep before.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Its tag.
    pub tag: &'a [u8],
    /// Its payload.
    pub payload: &'a [u8],
}

impl<'a> Received<'a> {
    /// The payload as elements, if it is a whole number of them.
    #[must_use]
    pub fn elements<T: Element>(&self) -> Option<&'a [T]> {
        // It lies at a multiple of 16 bytes.
        <[T]>::ref_from_bytes(self.payload).ok()
    }
}

impl Program {
    /// Begins with all processes of the job, or alone. `None` for a process that is too many.
    ///
    /// # Errors
    /// A rank does not come.
    pub fn begin() -> Result<Option<Program>, Failure> {
        Program::begin_at_most(u32::MAX)
    }

    /// The same with at most so many ranks, as rank 0 says.
    ///
    /// # Errors
    /// A rank does not come.
    pub fn begin_at_most(ranks: u32) -> Result<Option<Program>, Failure> {
        let process = Process::begin(Some(ranks))?;
        Ok(process.map(|process| Program {
            process,
            areas: Vec::new(),
            leaving: Vec::new(),
        }))
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.process.rank()
    }

    /// How many there are.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.process.size()
    }

    /// Time since the program began.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.process.elapsed()
    }

    /// Makes memory this rank's part of an area that all ranks register in the same order, each as
    /// long as it wants. Ranks reach it from the next superstep on.
    pub fn register<T: Element>(&mut self, memory: Vec<T>) -> Area<T> {
        let length = memory.len();
        let mut elements = memory;
        if size_of_val(&elements[..]) == 0 {
            elements.push(T::default());
        }
        let mut memory: Memory = Box::new(Elements { elements, length });
        let bytes = memory.bytes_mut();
        let (address, bytes) = (bytes.as_mut_ptr().cast(), bytes.len() as u64);
        // SAFETY: the memory stays where it is until the superstep in which it is taken back has
        // ended, and is lent to nobody during `sync`, which borrows this mutably.
        let pushed = unsafe { self.process.push_registration(address, bytes) };
        // Only NULL with a size is refused.
        debug_assert!(pushed.is_ok());
        self.areas.push(Some(memory));
        Area {
            number: self.areas.len() - 1,
            elements: PhantomData,
        }
    }

    /// Takes an area back, as all ranks must in the same order, and returns this rank's part. Puts
    /// of this superstep still count, elsewhere.
    ///
    /// # Errors
    /// It was taken back before.
    pub fn unregister<T: Element>(&mut self, area: Area<T>) -> Result<Vec<T>, Failure> {
        let memory = self.areas.get_mut(area.number).and_then(Option::take);
        let mut memory = memory.ok_or(Misuse::NeverPushed { address: 0 })?;
        let copy = elements::<T>(memory.bytes()).to_vec();
        let address = memory.bytes_mut().as_ptr();
        self.process.pop_registration(address.cast())?;
        self.leaving.push(memory);
        Ok(copy)
    }

    fn address<T>(&self, area: Area<T>) -> Result<*const u8, Misuse> {
        let memory = self.areas.get(area.number).and_then(Option::as_ref);
        let memory = memory.ok_or(Misuse::NotRegistered { address: 0 })?;
        Ok(memory.bytes().as_ptr())
    }

    /// Puts elements into a rank's part of an area at the end of the superstep; they are copied
    /// now.
    ///
    /// # Errors
    /// There is no such rank, or they reach beyond its part.
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
        // SAFETY: as many bytes as the slice has.
        unsafe { (self.process).put(to, from, handle.cast(), offset as u64, bytes as u64) }
    }

    /// Puts elements of this rank's part of an area into a rank's part of another, as they are at the
    /// end of the superstep or before: neither may change until then. Nothing is copied on the way
    /// where that is possible.
    ///
    /// # Errors
    /// There is no such rank, or they reach beyond a part.
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
        // SAFETY: inside of an area, which stays until the superstep has ended; it is read in
        // `sync` only, when nobody borrows it.
        unsafe { (self.process).put_unbuffered(to, from, handle.cast(), offset, bytes as u64) }
    }

    /// Gets elements of a rank's part of an area, as they are at the end of the superstep before
    /// anything is put, into a range of this rank's part of an area.
    ///
    /// # Errors
    /// There is no such rank, or they reach beyond a part.
    pub fn get<T: Element>(
        &mut self,
        of: u32,
        area: Area<T>,
        at: usize,
        (own, range): (Area<T>, Range<usize>),
    ) -> Result<(), Failure> {
        let (handle, into, bytes) = self.destination(area, own, range)?;
        let offset = (at * size_of::<T>()) as u64;
        // SAFETY: inside of an area, which stays until the superstep has ended; it is written in
        // `sync` only, when nobody borrows it.
        unsafe { (self.process).get(of, handle.cast(), offset, into, bytes) }
    }

    /// The same without a copy on the way where that is possible; neither part may change in the
    /// superstep.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn get_unbuffered<T: Element>(
        &mut self,
        of: u32,
        area: Area<T>,
        at: usize,
        (own, range): (Area<T>, Range<usize>),
    ) -> Result<(), Failure> {
        let (handle, into, bytes) = self.destination(area, own, range)?;
        let offset = (at * size_of::<T>()) as u64;
        // SAFETY: as above.
        unsafe { (self.process).get_unbuffered(of, handle.cast(), offset, into, bytes) }
    }

    /// True if [`get_at_once`](Self::get_at_once) reaches a rank's memory.
    #[must_use]
    pub fn can_get_at_once(&self, of: u32) -> bool {
        self.process.can_get_at_once(of)
    }

    /// Copies elements of a rank's part of an area, as they are at this moment, from a rank of this node. What its
    /// owner changes in this superstep may or may not be there.
    ///
    /// # Errors
    /// There is no such rank, its memory is out of reach, or they reach beyond its part.
    pub fn get_at_once<T: Element>(
        &mut self,
        of: u32,
        area: Area<T>,
        at: usize,
        into: &mut [T],
    ) -> Result<(), Failure> {
        let handle = self.address(area)?;
        let (offset, bytes) = (at * size_of::<T>(), size_of_val(into));
        let into = into.as_mut_ptr().cast();
        // SAFETY: as long as the slice, which is borrowed; areas are lent to nobody during this call, which borrows
        // all of them mutably.
        unsafe { (self.process).get_at_once(of, handle.cast(), offset as u64, into, bytes as u64) }
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

    /// Sets the length of tags from the next superstep on, as all ranks must; what was set before.
    pub fn set_tag_size(&mut self, bytes: usize) -> usize {
        let before = self.process.set_tag_size(bytes as u64);
        usize::try_from(before).unwrap_or(usize::MAX)
    }

    /// Sends a message, which its rank has in the next superstep.
    ///
    /// # Errors
    /// There is no such rank, or the tag has another length than tags have.
    pub fn send<T: Element>(&mut self, to: u32, tag: &[u8], payload: &[T]) -> Result<(), Failure> {
        let set = self.process.tag_size();
        if tag.len() as u64 != set {
            let given = tag.len() as u64;
            return Err(Misuse::TagSize { given, set }.into());
        }
        let bytes = size_of_val(payload) as u64;
        // SAFETY: both are as long as said.
        unsafe { (self.process).send(to, tag.as_ptr(), payload.as_ptr().cast(), bytes) }
    }

    /// Messages that have not been taken, and bytes of their payloads.
    #[must_use]
    pub fn messages(&self) -> (u64, u64) {
        self.process.queue_size()
    }

    /// The next message that came in the superstep before, in no order.
    pub fn receive(&mut self) -> Option<Received<'_>> {
        let message = self.process.take_message()?;
        Some(Received {
            tag: message.tag,
            payload: message.payload,
        })
    }

    /// Ends the superstep: returns when all ranks have ended it and everything is where it belongs.
    ///
    /// # Errors
    /// The ranks did not do the same, or one is gone; the program must end then.
    #[track_caller]
    pub fn sync(&mut self) -> Result<(), Failure> {
        self.process.at(here("sync"));
        self.process.sync()?;
        self.leaving.clear();
        Ok(())
    }

    /// Ends the program, as all ranks must.
    ///
    /// # Errors
    /// Those of [`sync`](Self::sync).
    #[track_caller]
    pub fn end(mut self) -> Result<(), Failure> {
        self.process.at(here("end"));
        self.process.end()
    }

    /// Tells the other ranks that the program ends by an error.
    pub fn abort(mut self) {
        self.process.abort();
    }
}

/// A call where its caller stands.
#[track_caller]
fn here(name: &'static str) -> Call {
    let place = Location::caller();
    Call {
        name,
        place: Some((place.file(), place.line())),
    }
}

fn elements<T: Element>(bytes: &[u8]) -> &[T] {
    // Memory of such elements, whole and aligned.
    <[T]>::ref_from_bytes(bytes).unwrap_or(&[])
}

impl<T: Element> Index<Area<T>> for Program {
    type Output = [T];

    /// This rank's part of an area.
    ///
    /// # Panics
    /// When it has been taken back.
    fn index(&self, area: Area<T>) -> &[T] {
        match &self.areas[area.number] {
            Some(memory) => elements(memory.bytes()),
            None => panic!("the area has been taken back"),
        }
    }
}

impl<T: Element> IndexMut<Area<T>> for Program {
    fn index_mut(&mut self, area: Area<T>) -> &mut [T] {
        match &mut self.areas[area.number] {
            Some(memory) => <[T]>::mut_from_bytes(memory.bytes_mut()).unwrap_or(&mut []),
            None => panic!("the area has been taken back"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alone() -> Program {
        Program::begin_at_most(1)
            .expect("it needs nobody")
            .expect("it takes part")
    }

    #[test]
    fn a_rank_alone_puts_gets_and_sends_to_itself() {
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
    fn misuse_that_the_compiler_cannot_see_is_an_error() {
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

//! Collectives, on top of registration and put.
//!
//! Each of them begins in one superstep of the program and ends in a later one, so that what the program has asked for
//! before happens too. Which algorithm is used follows from the cost of a superstep, h g + l, as it was measured
//! ([`Collectives`]): everyone to everyone directly while that is short, else in more supersteps with fewer bytes.
//!
//! What is short goes to memory of the library's own, registered once ([`crate::scratch`]); what is long goes straight to the
//! caller's, registered for the purpose, which costs a superstep.

use std::ptr;

use dipole_bsp::Failure;
use dipole_model::Collectives;

use crate::scratch::{Cell, Process, cells, in_memory};
use crate::section::Inside;

/// What is longer goes to the caller's memory.
const MOST_SCRATCH: u64 = 64 << 10;

/// Combines the second and the third value, in this order, into the first.
pub(crate) type Combine<'a> = &'a mut dyn FnMut(*mut u8, *mut u8, *mut u8);

/// Where bytes of others shall lie after the next superstep.
struct Arrival {
    into: *mut u8,
    /// How many come here.
    here: u64,
    /// The most that come to any process.
    most: u64,
    /// A block of this process's own: from where, and its offset and length there.
    own: Option<(*const u8, u64, u64)>,
}

/// Puts to the others, at offsets of what they expect.
struct Sender<'a> {
    process: &'a mut Process,
    handle: *mut u8,
    base: u64,
}

impl Sender<'_> {
    /// # Safety
    /// `from` is readable for so many bytes until the superstep ends.
    unsafe fn put(
        &mut self,
        to: u32,
        from: *const u8,
        offset: u64,
        bytes: u64,
    ) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        let handle = self.handle.cast_const().cast();
        // SAFETY: the contract is the same.
        unsafe {
            self.process
                .put_unbuffered(to, from, handle, self.base + offset, bytes)
        }
    }
}

impl Inside {
    /// The same at all processes.
    fn choice(&self) -> Collectives {
        let size = self.process.size();
        Collectives::new(size, self.process.machine().at(size), MOST_SCRATCH)
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, size) = (self.process.rank(), self.process.size());
        // Beginning behind the caller, so that not all begin with the same.
        (1..size).map(move |ahead| (rank + ahead) % size)
    }

    /// Ends a superstep in which all put to each other, `puts` those of this process.
    ///
    /// # Safety
    /// `into` is writable for `here` bytes; its own block is readable and lies elsewhere or in its place.
    unsafe fn deliver(
        &mut self,
        arrival: &Arrival,
        puts: impl FnOnce(&mut Sender<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Arrival {
            into,
            here,
            most,
            own,
        } = *arrival;
        let Inside {
            process, scratch, ..
        } = self;
        if most <= MOST_SCRATCH {
            let (handle, base) = scratch.turn(process, most)?;
            // SAFETY: within the memory, whose halves have `most` bytes and more.
            let ours = unsafe { handle.add(in_memory(base)) };
            if let Some((from, offset, bytes)) = own {
                // SAFETY: within this half, to which nobody else writes this block.
                unsafe { ptr::copy(from, ours.add(in_memory(offset)), in_memory(bytes)) };
            }
            puts(&mut Sender {
                process,
                handle,
                base,
            })?;
            process.sync()?;
            // SAFETY: `into` is the caller's, the other memory the library's.
            unsafe { ptr::copy_nonoverlapping(ours, into, in_memory(here)) };
            return Ok(());
        }
        // An address that stands for nothing, where nothing comes to.
        let dummy = (&raw mut self.lap).cast::<u8>();
        let handle = if here > 0 { into } else { dummy };
        let process = &mut self.process;
        // SAFETY: the caller's memory stays while it waits here.
        unsafe { process.push_registration(handle.cast(), here) }?;
        process.sync()?;
        puts(&mut Sender {
            process,
            handle,
            base: 0,
        })?;
        process.pop_registration(handle.cast_const().cast())?;
        process.sync()?;
        if let Some((from, offset, bytes)) = own {
            // SAFETY: within `into` by contract.
            unsafe { ptr::copy(from, into.add(in_memory(offset)), in_memory(bytes)) };
        }
        Ok(())
    }

    /// The root's bytes, to all.
    ///
    /// # Safety
    /// `src` is readable at the root, `dst` writable everywhere for so many bytes; they may be the same.
    pub(crate) unsafe fn broadcast(
        &mut self,
        root: u32,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let (rank, size) = (self.process.rank(), u64::from(self.process.size()));
        let is_root = rank == root;
        let others = self.others();
        if self.choice().broadcast_directly(bytes) {
            let here = if is_root { 0 } else { bytes };
            let arrival = Arrival {
                into: dst,
                here,
                most: bytes,
                own: None,
            };
            // SAFETY: as this function's contract has it.
            unsafe {
                self.deliver(&arrival, |sender| match is_root {
                    true => others
                        .into_iter()
                        .try_for_each(|to| sender.put(to, src, 0, bytes)),
                    false => Ok(()),
                })
            }?;
        } else {
            let piece = bytes.div_ceil(size);
            let part = |of: u32| {
                let begin = (u64::from(of) * piece).min(bytes);
                (begin, piece.min(bytes - begin))
            };
            let process = &mut self.process;
            // SAFETY: the caller's memory stays while it waits here.
            unsafe { process.push_registration(dst.cast(), bytes) }?;
            process.sync()?;
            let mut sender = Sender {
                process,
                handle: dst,
                base: 0,
            };
            if is_root {
                for to in others {
                    let (begin, length) = part(to);
                    // SAFETY: within `src`.
                    unsafe { sender.put(to, src.add(in_memory(begin)), begin, length) }?;
                }
            }
            self.process.sync()?;
            let (begin, length) = part(rank);
            let from = if is_root { src } else { dst.cast_const() };
            let others = self.others();
            let mut sender = Sender {
                process: &mut self.process,
                handle: dst,
                base: 0,
            };
            for to in others.filter(|to| *to != root) {
                // SAFETY: within `src` or `dst`; this piece is written by nobody in this superstep.
                unsafe { sender.put(to, from.add(in_memory(begin)), begin, length) }?;
            }
            self.process.pop_registration(dst.cast_const().cast())?;
            self.process.sync()?;
        }
        if is_root {
            // SAFETY: both have so many bytes.
            unsafe { ptr::copy(src, dst, in_memory(bytes)) };
        }
        Ok(())
    }

    /// A block of each, to the root, in order of their ranks.
    ///
    /// # Safety
    /// `src` is readable for so many bytes, at the root `dst` writable for all blocks.
    pub(crate) unsafe fn gather(
        &mut self,
        root: u32,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let (rank, size) = (
            u64::from(self.process.rank()),
            u64::from(self.process.size()),
        );
        let is_root = self.process.rank() == root;
        let arrival = Arrival {
            into: dst,
            here: if is_root { bytes * size } else { 0 },
            most: bytes * size,
            own: is_root.then_some((src, rank * bytes, bytes)),
        };
        // SAFETY: as this function's contract has it.
        unsafe {
            self.deliver(&arrival, |sender| match is_root {
                true => Ok(()),
                false => sender.put(root, src, rank * bytes, bytes),
            })
        }
    }

    /// A block of the root's, to each.
    ///
    /// # Safety
    /// At the root `src` is readable for all blocks, `dst` writable everywhere for so many bytes.
    pub(crate) unsafe fn scatter(
        &mut self,
        root: u32,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let is_root = self.process.rank() == root;
        // SAFETY: within the root's blocks.
        let block = |of: u32| unsafe { src.add(in_memory(u64::from(of) * bytes)) };
        let others = self.others();
        let arrival = Arrival {
            into: dst,
            here: bytes,
            most: bytes,
            own: is_root.then(|| (block(root), 0, bytes)),
        };
        // SAFETY: as this function's contract has it.
        unsafe {
            self.deliver(&arrival, |sender| match is_root {
                true => others
                    .into_iter()
                    .try_for_each(|to| sender.put(to, block(to), 0, bytes)),
                false => Ok(()),
            })
        }
    }

    /// A block for each, to each: what came from a process lies at its rank.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for so many blocks as there are processes, and they are apart.
    pub(crate) unsafe fn total_exchange(
        &mut self,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        // SAFETY: within the blocks.
        unsafe { self.exchange(|to| src.add(in_memory(u64::from(to) * bytes)), dst, bytes) }
    }

    /// A block of each, to all, in order of their ranks.
    ///
    /// # Safety
    /// `src` is readable for so many bytes, `dst` writable for all blocks.
    pub(crate) unsafe fn all_gather(
        &mut self,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        // SAFETY: as this function's contract has it.
        unsafe { self.exchange(|_to| src, dst, bytes) }
    }

    /// # Safety
    /// What `block` answers is readable for so many bytes, `dst` writable for a block of each process.
    unsafe fn exchange(
        &mut self,
        block: impl Fn(u32) -> *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let rank = self.process.rank();
        let (at, size) = (u64::from(rank) * bytes, u64::from(self.process.size()));
        let others = self.others();
        let arrival = Arrival {
            into: dst,
            here: bytes * size,
            most: bytes * size,
            own: Some((block(rank), at, bytes)),
        };
        // SAFETY: as this function's contract has it.
        unsafe {
            self.deliver(&arrival, |sender| {
                others
                    .into_iter()
                    .try_for_each(|to| sender.put(to, block(to), at, bytes))
            })
        }
    }

    /// All values combined, at all processes.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for so many bytes; they may be the same.
    pub(crate) unsafe fn fold(
        &mut self,
        combine: Combine<'_>,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        // SAFETY: as this function's contract has it.
        unsafe {
            if self.choice().fold_directly(bytes) {
                return self.prefix_directly(self.process.size(), combine, src, dst, bytes);
            }
            self.reduce_by_tree(combine, src, dst, bytes)?;
            self.broadcast(0, dst, dst, bytes)
        }
    }

    /// All values combined, at the root.
    ///
    /// # Safety
    /// `src` is readable everywhere, at the root `dst` is writable for so many bytes; they may be the same.
    pub(crate) unsafe fn reduce(
        &mut self,
        root: u32,
        combine: Combine<'_>,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let is_root = self.process.rank() == root;
        let size = u64::from(self.process.size());
        if self.choice().reduce_directly(root, bytes) {
            let mut all = cells(in_memory(bytes * size));
            let values = all.as_mut_ptr().cast::<u8>();
            // SAFETY: the memory has room for a value of each.
            unsafe { self.gather(root, src, values, bytes) }?;
            if is_root {
                // SAFETY: the memory holds them all now.
                unsafe { combined(values, size, combine, dst, bytes) };
            }
            return Ok(());
        }
        let mut result = cells(in_memory(bytes));
        let result = result.as_mut_ptr().cast::<u8>();
        let here = if is_root { bytes } else { 0 };
        let is_first = self.process.rank() == 0;
        // SAFETY: as this function's contract has it; the result's memory lives until the end.
        unsafe {
            self.reduce_by_tree(combine, src, result, bytes)?;
            if root == 0 {
                ptr::copy_nonoverlapping(result, dst, in_memory(here));
                return Ok(());
            }
            let arrival = Arrival {
                into: dst,
                here,
                most: bytes,
                own: None,
            };
            self.deliver(&arrival, |sender| match is_first {
                true => sender.put(root, result, 0, bytes),
                false => Ok(()),
            })
        }
    }

    /// The values of all processes up to the caller, combined.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for so many bytes; they may be the same.
    pub(crate) unsafe fn scan(
        &mut self,
        combine: Combine<'_>,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let (rank, size) = (self.process.rank(), self.process.size());
        if self.choice().scan_directly(bytes) {
            // SAFETY: as this function's contract has it.
            return unsafe { self.prefix_directly(rank + 1, combine, src, dst, bytes) };
        }
        let length = in_memory(bytes);
        let (mut sum, mut came, mut result) = (cells(length), cells(length), cells(length));
        let bytes_of = |cells: &mut Vec<Cell>| cells.as_mut_ptr().cast::<u8>();
        // SAFETY: as this function's contract has it.
        unsafe { ptr::copy_nonoverlapping(src, bytes_of(&mut sum), length) };
        // After each round a process has the sum of twice as many.
        let mut distance = 1;
        while distance < size {
            let here = if rank >= distance { bytes } else { 0 };
            let arrival = Arrival {
                into: bytes_of(&mut came),
                here,
                most: bytes,
                own: None,
            };
            let from = bytes_of(&mut sum).cast_const();
            // SAFETY: memory of this function, as long as said.
            unsafe {
                self.deliver(&arrival, |sender| match rank + distance < size {
                    true => sender.put(rank + distance, from, 0, bytes),
                    false => Ok(()),
                })
            }?;
            if here > 0 {
                combine(
                    bytes_of(&mut result),
                    bytes_of(&mut came),
                    bytes_of(&mut sum),
                );
                std::mem::swap(&mut result, &mut sum);
            }
            distance *= 2;
        }
        // SAFETY: as this function's contract has it.
        unsafe { ptr::copy_nonoverlapping(bytes_of(&mut sum), dst, length) };
        Ok(())
    }

    /// The values of the first processes combined, after an exchange of all.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for so many bytes; they may be the same.
    unsafe fn prefix_directly(
        &mut self,
        first: u32,
        combine: Combine<'_>,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let size = u64::from(self.process.size());
        let mut all = cells(in_memory(bytes * size));
        let values = all.as_mut_ptr().cast::<u8>();
        // SAFETY: the memory has room for a value of each, and holds them all afterwards.
        unsafe {
            self.all_gather(src, values, bytes)?;
            combined(values, first.into(), combine, dst, bytes);
        }
        Ok(())
    }

    /// All values combined, at process 0, by a binomial tree; elsewhere `dst` holds anything.
    ///
    /// # Safety
    /// `src` is readable and `dst` writable for so many bytes; they may be the same.
    unsafe fn reduce_by_tree(
        &mut self,
        combine: Combine<'_>,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let (rank, size) = (self.process.rank(), self.process.size());
        let length = in_memory(bytes);
        let mut came = cells(length);
        let mut sum = cells(length);
        let (came, sum) = (
            came.as_mut_ptr().cast::<u8>(),
            sum.as_mut_ptr().cast::<u8>(),
        );
        // SAFETY: as this function's contract has it.
        unsafe { ptr::copy(src, dst, length) };
        let mut distance = 1;
        while distance < size {
            let sends = rank % (2 * distance) == distance;
            let receives = rank.is_multiple_of(2 * distance) && rank + distance < size;
            let here = if receives { bytes } else { 0 };
            let arrival = Arrival {
                into: came,
                here,
                most: bytes,
                own: None,
            };
            // SAFETY: memory of this function, and the caller's, as long as said.
            unsafe {
                self.deliver(&arrival, |sender| match sends {
                    true => sender.put(rank - distance, dst, 0, bytes),
                    false => Ok(()),
                })?;
                if receives {
                    combine(sum, dst, came);
                    ptr::copy_nonoverlapping(sum, dst, length);
                }
            }
            distance *= 2;
        }
        Ok(())
    }
}

/// The first so many of the values, combined from left to right.
///
/// # Safety
/// There are as many of them, of so many bytes each, and `dst` is writable for one.
unsafe fn combined(values: *mut u8, count: u64, combine: Combine<'_>, dst: *mut u8, bytes: u64) {
    let length = in_memory(bytes);
    let (mut sum, mut result) = (cells(length), cells(length));
    // SAFETY: the first value has so many bytes, the others lie behind it, all by contract.
    unsafe {
        ptr::copy_nonoverlapping(values, sum.as_mut_ptr().cast(), length);
        for index in 1..in_memory(count) {
            combine(
                result.as_mut_ptr().cast(),
                sum.as_mut_ptr().cast(),
                values.add(index * length),
            );
            std::mem::swap(&mut result, &mut sum);
        }
        ptr::copy_nonoverlapping(sum.as_ptr().cast::<u8>(), dst, length);
    }
}

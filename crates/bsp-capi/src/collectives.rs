//! Algorithms of the collectives, built on registration and put.
//!
//! Each collective begins in one superstep of the program and ends in a later one, so earlier calls of
//! the program take effect as well. The algorithm follows from the measured cost of a superstep,
//! h g + l ([`Collectives`]): each process to each other one directly while that is fast, otherwise
//! more supersteps with fewer bytes.
//!
//! Short data go to memory of this library that stays registered ([`crate::scratch`]). Long data go
//! straight to the caller's memory, whose registration costs a superstep.

use std::ptr;

use dipole_bsp::Failure;
use dipole_model::Collectives;

use crate::scratch::{Cell, Process, cells, in_memory};
use crate::section::ParallelPart;

/// Longer data go to the caller's memory.
const MAX_SCRATCH: u64 = 64 << 10;

/// Combines the second and the third value, in this order, into the first.
pub(crate) type Combine<'a> = &'a mut dyn FnMut(*mut u8, *mut u8, *mut u8);

/// Data that arrive in the next superstep.
struct Delivery {
    into: *mut u8,
    /// Bytes for this process.
    here: u64,
    /// The largest number of bytes for any process.
    max: u64,
    /// A block of this process's own: its address, and offset and length at the destination.
    own: Option<(*const u8, u64, u64)>,
}

/// Puts data to other processes, at offsets in their deliveries.
struct Sender<'a> {
    process: &'a mut Process,
    handle: *mut u8,
    base: u64,
}

impl Sender<'_> {
    /// # Safety
    /// `from` must be readable for `bytes` bytes until the superstep ends.
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
        // SAFETY: the caller guarantees the same.
        unsafe {
            self.process
                .put_unbuffered(to, from, handle, self.base + offset, bytes)
        }
    }
}

impl ParallelPart {
    /// The choice of algorithms, the same on all processes.
    fn choice(&self) -> Collectives {
        let size = self.process.size();
        Collectives::new(size, self.process.machine().at(size), MAX_SCRATCH)
    }

    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (rank, size) = (self.process.rank(), self.process.size());
        // Each process starts with its successor, so that they do not all send to the same one.
        (1..size).map(move |ahead| (rank + ahead) % size)
    }

    /// Ends a superstep in which processes put to each other; `puts` makes the puts of this process.
    ///
    /// # Safety
    /// `delivery.into` must be writable for `here` bytes. The own block must be readable, and lie outside
    /// of them or at its destination.
    unsafe fn deliver(
        &mut self,
        delivery: &Delivery,
        puts: impl FnOnce(&mut Sender<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Delivery {
            into,
            here,
            max,
            own,
        } = *delivery;
        let ParallelPart {
            process, scratch, ..
        } = self;
        if max <= MAX_SCRATCH {
            let (handle, base) = scratch.next_half(process, max)?;
            // SAFETY: `base` is the offset of a half, which has at least `max` bytes.
            let ours = unsafe { handle.add(in_memory(base)) };
            if let Some((from, offset, bytes)) = own {
                // SAFETY: the block is inside this half, and no other process writes there.
                unsafe { ptr::copy(from, ours.add(in_memory(offset)), in_memory(bytes)) };
            }
            puts(&mut Sender {
                process,
                handle,
                base,
            })?;
            process.sync()?;
            // SAFETY: `into` is memory of the caller, and `ours` memory of this library.
            unsafe { ptr::copy_nonoverlapping(ours, into, in_memory(here)) };
            return Ok(());
        }
        // A unique address is needed even where nothing arrives.
        let dummy = (&raw mut self.lap).cast::<u8>();
        let handle = if here > 0 { into } else { dummy };
        let process = &mut self.process;
        // SAFETY: the caller's memory stays valid while the caller waits here.
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
            // SAFETY: the caller guarantees that `into` has room for the block.
            unsafe { ptr::copy(from, into.add(in_memory(offset)), in_memory(bytes)) };
        }
        Ok(())
    }

    /// Copies bytes from the root to all processes.
    ///
    /// # Safety
    /// `src` must be readable on the root, `dst` writable on all, for `bytes` bytes. They may be the same.
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
            let delivery = Delivery {
                into: dst,
                here,
                max: bytes,
                own: None,
            };
            // SAFETY: the caller guarantees that `dst` is writable, and `src` readable on the root.
            unsafe {
                self.deliver(&delivery, |sender| match is_root {
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
            // SAFETY: the caller's memory stays valid while the caller waits here.
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
                    // SAFETY: the part is inside `src`.
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
                // SAFETY: the part is inside `src` or `dst`. No process writes it in this superstep.
                unsafe { sender.put(to, from.add(in_memory(begin)), begin, length) }?;
            }
            self.process.pop_registration(dst.cast_const().cast())?;
            self.process.sync()?;
        }
        if is_root {
            // SAFETY: the caller guarantees that both have `bytes` bytes.
            unsafe { ptr::copy(src, dst, in_memory(bytes)) };
        }
        Ok(())
    }

    /// Copies a block from each process to the root, in the order of ranks.
    ///
    /// # Safety
    /// `src` must be readable for `bytes` bytes; on the root, `dst` writable for all blocks.
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
        let delivery = Delivery {
            into: dst,
            here: if is_root { bytes * size } else { 0 },
            max: bytes * size,
            own: is_root.then_some((src, rank * bytes, bytes)),
        };
        // SAFETY: the caller guarantees that `src` is readable, and `dst` writable on the root.
        unsafe {
            self.deliver(&delivery, |sender| match is_root {
                true => Ok(()),
                false => sender.put(root, src, rank * bytes, bytes),
            })
        }
    }

    /// Copies a block from the root to each process.
    ///
    /// # Safety
    /// On the root, `src` must be readable for all blocks; `dst` must be writable for `bytes` bytes.
    pub(crate) unsafe fn scatter(
        &mut self,
        root: u32,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let is_root = self.process.rank() == root;
        // SAFETY: the block is inside `src`.
        let block = |of: u32| unsafe { src.add(in_memory(u64::from(of) * bytes)) };
        let others = self.others();
        let delivery = Delivery {
            into: dst,
            here: bytes,
            max: bytes,
            own: is_root.then(|| (block(root), 0, bytes)),
        };
        // SAFETY: the caller guarantees that `dst` is writable, and `src` readable on the root.
        unsafe {
            self.deliver(&delivery, |sender| match is_root {
                true => others
                    .into_iter()
                    .try_for_each(|to| sender.put(to, block(to), 0, bytes)),
                false => Ok(()),
            })
        }
    }

    /// Copies a block from each process to each other one. Blocks are in the order of ranks.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for a block of each process. They must not overlap.
    pub(crate) unsafe fn total_exchange(
        &mut self,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        // SAFETY: the blocks are inside `src`.
        unsafe { self.exchange(|to| src.add(in_memory(u64::from(to) * bytes)), dst, bytes) }
    }

    /// Copies a block from each process to all, in the order of ranks.
    ///
    /// # Safety
    /// `src` must be readable for `bytes` bytes, `dst` writable for all blocks.
    pub(crate) unsafe fn all_gather(
        &mut self,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        // SAFETY: the caller guarantees the same.
        unsafe { self.exchange(|_to| src, dst, bytes) }
    }

    /// # Safety
    /// The memory that `block` returns must be readable for `bytes` bytes, and `dst` writable for a block of each
    /// process.
    unsafe fn exchange(
        &mut self,
        block: impl Fn(u32) -> *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let rank = self.process.rank();
        let (at, size) = (u64::from(rank) * bytes, u64::from(self.process.size()));
        let others = self.others();
        let delivery = Delivery {
            into: dst,
            here: bytes * size,
            max: bytes * size,
            own: Some((block(rank), at, bytes)),
        };
        // SAFETY: the caller guarantees that the blocks are readable, and `dst` is writable.
        unsafe {
            self.deliver(&delivery, |sender| {
                others
                    .into_iter()
                    .try_for_each(|to| sender.put(to, block(to), at, bytes))
            })
        }
    }

    /// Combines the values of all processes on all.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `bytes` bytes. They may be the same.
    pub(crate) unsafe fn fold(
        &mut self,
        combine: Combine<'_>,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        // SAFETY: the caller guarantees the same.
        unsafe {
            if self.choice().fold_directly(bytes) {
                return self.prefix_directly(self.process.size(), combine, src, dst, bytes);
            }
            self.reduce_with_tree(combine, src, dst, bytes)?;
            self.broadcast(0, dst, dst, bytes)
        }
    }

    /// Combines the values of all processes on the root.
    ///
    /// # Safety
    /// `src` must be readable on all, and `dst` writable on the root, for `bytes` bytes. They may be the
    /// same.
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
            // SAFETY: `all` has room for a value of each process.
            unsafe { self.gather(root, src, values, bytes) }?;
            if is_root {
                // SAFETY: `all` now holds the values of all processes.
                unsafe { combine_all(values, size, combine, dst, bytes) };
            }
            return Ok(());
        }
        let mut result = cells(in_memory(bytes));
        let result = result.as_mut_ptr().cast::<u8>();
        let here = if is_root { bytes } else { 0 };
        let is_first = self.process.rank() == 0;
        // SAFETY: the caller guarantees that `src` is readable, and `dst` writable on the root. The memory
        // of `result` lives until the function returns.
        unsafe {
            self.reduce_with_tree(combine, src, result, bytes)?;
            if root == 0 {
                ptr::copy_nonoverlapping(result, dst, in_memory(here));
                return Ok(());
            }
            let delivery = Delivery {
                into: dst,
                here,
                max: bytes,
                own: None,
            };
            self.deliver(&delivery, |sender| match is_first {
                true => sender.put(root, result, 0, bytes),
                false => Ok(()),
            })
        }
    }

    /// Combines the values of all processes up to this one.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `bytes` bytes. They may be the same.
    pub(crate) unsafe fn scan(
        &mut self,
        combine: Combine<'_>,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let (rank, size) = (self.process.rank(), self.process.size());
        if self.choice().scan_directly(bytes) {
            // SAFETY: the caller guarantees the same.
            return unsafe { self.prefix_directly(rank + 1, combine, src, dst, bytes) };
        }
        let length = in_memory(bytes);
        let (mut sum, mut received, mut result) = (cells(length), cells(length), cells(length));
        let bytes_of = |cells: &mut Vec<Cell>| cells.as_mut_ptr().cast::<u8>();
        // SAFETY: the caller guarantees that `src` has `bytes` bytes, and so does `sum`.
        unsafe { ptr::copy_nonoverlapping(src, bytes_of(&mut sum), length) };
        // Each round doubles the number of values in the sum.
        let mut distance = 1;
        while distance < size {
            let here = if rank >= distance { bytes } else { 0 };
            let delivery = Delivery {
                into: bytes_of(&mut received),
                here,
                max: bytes,
                own: None,
            };
            let from = bytes_of(&mut sum).cast_const();
            // SAFETY: both are buffers of this function with `bytes` bytes.
            unsafe {
                self.deliver(&delivery, |sender| match rank + distance < size {
                    true => sender.put(rank + distance, from, 0, bytes),
                    false => Ok(()),
                })
            }?;
            if here > 0 {
                combine(
                    bytes_of(&mut result),
                    bytes_of(&mut received),
                    bytes_of(&mut sum),
                );
                std::mem::swap(&mut result, &mut sum);
            }
            distance *= 2;
        }
        // SAFETY: the caller guarantees that `dst` has `bytes` bytes, and so does `sum`.
        unsafe { ptr::copy_nonoverlapping(bytes_of(&mut sum), dst, length) };
        Ok(())
    }

    /// Combines the values of the first processes, after all have exchanged theirs.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `bytes` bytes. They may be the same.
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
        // SAFETY: `all` has room for a value of each process, and holds them after the exchange.
        unsafe {
            self.all_gather(src, values, bytes)?;
            combine_all(values, first.into(), combine, dst, bytes);
        }
        Ok(())
    }

    /// Combines the values of all processes on process 0, with a binomial tree. On the others, the contents
    /// of `dst` are undefined.
    ///
    /// # Safety
    /// `src` must be readable and `dst` writable for `bytes` bytes. They may be the same.
    unsafe fn reduce_with_tree(
        &mut self,
        combine: Combine<'_>,
        src: *const u8,
        dst: *mut u8,
        bytes: u64,
    ) -> Result<(), Failure> {
        let (rank, size) = (self.process.rank(), self.process.size());
        let length = in_memory(bytes);
        let mut received = cells(length);
        let mut sum = cells(length);
        let (received, sum) = (
            received.as_mut_ptr().cast::<u8>(),
            sum.as_mut_ptr().cast::<u8>(),
        );
        // SAFETY: the caller guarantees that both have `bytes` bytes.
        unsafe { ptr::copy(src, dst, length) };
        let mut distance = 1;
        while distance < size {
            let sends = rank % (2 * distance) == distance;
            let receives = rank.is_multiple_of(2 * distance) && rank + distance < size;
            let here = if receives { bytes } else { 0 };
            let delivery = Delivery {
                into: received,
                here,
                max: bytes,
                own: None,
            };
            // SAFETY: `received` and `sum` are buffers of this function with `bytes` bytes, and the caller
            // guarantees the same of `dst`.
            unsafe {
                self.deliver(&delivery, |sender| match sends {
                    true => sender.put(rank - distance, dst, 0, bytes),
                    false => Ok(()),
                })?;
                if receives {
                    combine(sum, dst, received);
                    ptr::copy_nonoverlapping(sum, dst, length);
                }
            }
            distance *= 2;
        }
        Ok(())
    }
}

/// Combines the first `count` values from left to right.
///
/// # Safety
/// `values` must hold `count` values of `bytes` bytes, and `dst` must be writable for one.
unsafe fn combine_all(values: *mut u8, count: u64, combine: Combine<'_>, dst: *mut u8, bytes: u64) {
    let length = in_memory(bytes);
    let (mut sum, mut result) = (cells(length), cells(length));
    // SAFETY: the caller guarantees that `count` values lie next to each other. The other memory belongs to
    // this function.
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

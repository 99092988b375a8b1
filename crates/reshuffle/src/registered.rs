//! A plan with registered memory for its messages, and how a process executes its part of it on memory
//! of the program. Interfaces for other languages use it.
//!
//! In one superstep each process packs what it sends, and puts it to processes of other nodes. Processes
//! of this node fetch their data in the next superstep: packed, in pieces, or if runs are long, straight
//! from the source array to their destination, which needs one copy only.

use std::ffi::c_void;
use std::slice;

use dipole_bsp::carrier::Carrier;
use dipole_bsp::misuse::Misuse;
use dipole_bsp::{Failure, Process, PullRange};

use crate::distribution::Distribution;
use crate::error::ReshuffleError;
use crate::message::Message;
use crate::plan::Plan;

/// Runs that are at least this long on average are fetched straight from the source array.
const DIRECT_RUN_BYTES: usize = 2 << 10;
/// Packed elements are fetched in pieces of this size, which stay in the cache.
const FETCH_BYTES: usize = 64 << 10;
/// Runs fetched by one call.
const RUNS_PER_CALL: usize = 1023;

/// How a message moves to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transport {
    /// The sender puts it into the receiver's memory for messages.
    Put = 0,
    /// The receiver fetches it from the sender's memory for messages.
    Fetch = 1,
    /// The receiver fetches it from the sender's array.
    FetchDirect = 2,
}

impl Transport {
    fn from_word(word: u64) -> Transport {
        match word & 3 {
            1 => Transport::Fetch,
            2 => Transport::FetchDirect,
            _ => Transport::Put,
        }
    }
}

/// A sender puts this to each of its receivers: a word with the number of earlier runs of this plan,
/// whether it runs in place, and the transport; and the offset of the message in its memory for
/// messages. While the plan is made, processes exchange a hash of it, and which transports they use.
type Notice = [u64; 2];

/// A unit of memory, aligned for elements of any type.
type Cell = u128;

/// A plan with its memory, which may be run any number of times.
#[derive(Debug)]
pub struct Registered {
    plan: Plan,
    /// Size of the plan's elements in bytes: 1, 2, 4, 8 or 16.
    unit: usize,
    outgoing: Vec<Cell>,
    incoming: Vec<Cell>,
    /// Notices of the other processes, by rank.
    notices: Vec<Notice>,
    /// Some process has a message that is fetched directly, or is fetched at all.
    has_direct: bool,
    has_fetch: bool,
    runs: u64,
    buffer: Vec<u8>,
    staying: Vec<u8>,
    ranges: Vec<PullRange>,
}

// SAFETY: only the addresses in `ranges` are not `Send` by themselves. A call fills the list before it uses
// it, and no later call reads what an earlier one has left.
unsafe impl Send for Registered {}

fn rule(text: impl Into<String>) -> Failure {
    Misuse::Rule(text.into()).into()
}

/// An invalid argument as a failure of the program.
impl From<ReshuffleError> for Failure {
    fn from(error: ReshuffleError) -> Failure {
        rule(error.to_string())
    }
}

/// The size of the largest unit that elements consist of, and the number of units per element.
fn units(size: usize) -> Result<(usize, usize), Failure> {
    let unit = [16, 8, 4, 2, 1]
        .into_iter()
        .find(|unit| size.is_multiple_of(*unit));
    match (size, unit) {
        (0, _) | (_, None) => Err(rule("elements must have at least 1 byte")),
        (_, Some(unit)) => Ok((unit, size / unit)),
    }
}

/// A hash of both distributions.
fn fingerprint(sides: &[Distribution; 2], unit: usize) -> u64 {
    let text = format!("{sides:?} {unit}");
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Memory that has a unique address even if it is empty.
fn memory(bytes: usize) -> Vec<Cell> {
    vec![0; bytes.div_ceil(size_of::<Cell>()).max(1)]
}

impl Registered {
    /// Plans to move arrays with elements of `element_bytes` bytes from one distribution to another, and
    /// registers memory for the messages. All processes call it together. Takes two supersteps.
    ///
    /// The memory is registered until [`close`](Self::close) has been called and that superstep has ended.
    /// Until then, the value must not be dropped, unless the process is.
    ///
    /// # Errors
    /// An argument is invalid, ranks plan different reshuffles, or a superstep failed.
    pub fn new<C: Carrier>(
        process: &mut Process<C>,
        from: &Distribution,
        to: &Distribution,
        element_bytes: usize,
    ) -> Result<Registered, Failure> {
        let (unit, units) = units(element_bytes)?;
        let sides = [from.of_units(units)?, to.of_units(units)?];
        let (rank, size) = (process.rank(), process.size());
        let plan = Plan::new(&sides[0], &sides[1], rank)?;
        if plan.ranks() > size {
            let (wanted, found) = (plan.ranks(), size);
            return Err(ReshuffleError::Processes { wanted, found }.into());
        }
        let bytes = |elements: usize| {
            let bytes = elements.checked_mul(unit);
            let bytes = bytes.filter(|bytes| isize::try_from(*bytes).is_ok());
            bytes.ok_or(ReshuffleError::TooLarge)
        };
        bytes(plan.source_elements())?;
        bytes(plan.target_elements())?;
        let mut it = Registered {
            outgoing: memory(bytes(plan.outgoing_elements())?),
            incoming: memory(bytes(plan.incoming_elements())?),
            notices: vec![[0; 2]; size as usize],
            plan,
            unit,
            has_direct: false,
            has_fetch: false,
            runs: 0,
            buffer: vec![0; FETCH_BYTES],
            staying: Vec::new(),
            ranges: Vec::new(),
        };
        if let Err(failure) = it.register(process, fingerprint(&sides, unit)) {
            // Other processes may have gone further, and still access the memory.
            std::mem::forget(it);
            return Err(failure);
        }
        Ok(it)
    }

    fn register<C: Carrier>(
        &mut self,
        process: &mut Process<C>,
        fingerprint: u64,
    ) -> Result<(), Failure> {
        for (address, bytes) in self.parts() {
            // SAFETY: the memory stays in place until the value is dropped, which is after it has been
            // popped and that superstep has ended, or never.
            unsafe { process.push_registration(address, bytes as u64) }?;
        }
        process.sync()?;
        self.agree(process, fingerprint)
    }

    /// Address and bytes of the memory that is registered.
    fn parts(&mut self) -> [(*mut c_void, usize); 3] {
        let cells = |cells: &mut Vec<Cell>| {
            let bytes = cells.len() * size_of::<Cell>();
            (cells.as_mut_ptr().cast(), bytes)
        };
        let bytes = self.notices.len() * size_of::<Notice>();
        let notices = (self.notices.as_mut_ptr().cast(), bytes);
        [
            cells(&mut self.outgoing),
            cells(&mut self.incoming),
            notices,
        ]
    }

    /// Checks that the plans of all processes agree, and finds out which transports are in use.
    fn agree<C: Carrier>(
        &mut self,
        process: &mut Process<C>,
        fingerprint: u64,
    ) -> Result<(), Failure> {
        let transports = (self.plan.outgoing().iter())
            .map(|message| self.transport(process, message, false))
            .fold(0, |all, transport| all | 1_u64 << transport as u64);
        let own: Notice = [fingerprint, transports];
        let length = size_of::<Notice>() as u64;
        let (rank, area) = (process.rank(), self.notices.as_ptr().cast::<c_void>());
        for to in 0..process.size() {
            let at = u64::from(rank) * length;
            // SAFETY: `own` is readable during the call.
            unsafe { process.put(to, (&raw const own).cast(), area, at, length) }?;
        }
        process.sync()?;
        let mut all = 0;
        for (other, notice) in self.notices.iter_mut().enumerate() {
            if notice[0] != fingerprint {
                return Err(rule(format!(
                    "rank {other} plans another reshuffle: all ranks must plan the same array and \
                     distributions"
                )));
            }
            all |= notice[1];
            // The next one comes in a later superstep.
            *notice = [0; 2];
        }
        self.has_direct = all & 1 << Transport::FetchDirect as u64 != 0;
        self.has_fetch = self.has_direct || all & 1 << Transport::Fetch as u64 != 0;
        Ok(())
    }

    /// Unregisters the memory. All processes call it together. Other processes may access the memory
    /// until the superstep has ended.
    ///
    /// # Errors
    /// It was registered with another process.
    pub fn close<C: Carrier>(&mut self, process: &mut Process<C>) -> Result<(), Failure> {
        for (address, _) in self.parts() {
            process.pop_registration(address.cast_const())?;
        }
        Ok(())
    }

    /// Bytes of this process's parts before and after.
    #[must_use]
    pub fn bytes(&self) -> (usize, usize) {
        let bytes = |elements: usize| elements * self.unit;
        (
            bytes(self.plan.source_elements()),
            bytes(self.plan.target_elements()),
        )
    }

    fn transport<C: Carrier>(
        &self,
        process: &Process<C>,
        message: &Message,
        in_place: bool,
    ) -> Transport {
        let is_long = message.elements() * self.unit >= message.runs() * DIRECT_RUN_BYTES;
        match process.can_direct_get(message.transfer().peer) {
            true if is_long && !in_place => Transport::FetchDirect,
            true => Transport::Fetch,
            false => Transport::Put,
        }
    }

    /// Reshuffles from this process's part at `source` to the one at `target`. All processes call it
    /// together. Takes one or two supersteps.
    ///
    /// # Errors
    /// The memories overlap, ranks make different calls, or a superstep failed.
    ///
    /// # Safety
    /// `source` must be readable and `target` writable for the numbers of bytes in [`bytes`](Self::bytes).
    /// Other threads do not access them meanwhile.
    pub unsafe fn execute<C: Carrier>(
        &mut self,
        process: &mut Process<C>,
        source: *const u8,
        target: *mut u8,
    ) -> Result<(), Failure> {
        let (before, after) = self.bytes();
        let (from, to) = (source.addr(), target.addr());
        if before > 0 && source.is_null() {
            return Err(Misuse::Null("the source").into());
        }
        if after > 0 && target.is_null() {
            return Err(Misuse::Null("the destination").into());
        }
        if before > 0 && after > 0 && from < to + after && to < from + before {
            return Err(rule(
                "source and destination overlap: use bsp_reshuffle_in_place for a single memory",
            ));
        }
        // SAFETY: the caller guarantees that both are accessible, and they do not overlap.
        unsafe { self.dispatch(process, source, target, false) }
    }

    /// Reshuffles within one memory, for the larger one of this process's parts. All processes call it
    /// together. Takes one or two supersteps.
    ///
    /// # Errors
    /// Those of [`execute`](Self::execute).
    ///
    /// # Safety
    /// `memory` must be readable and writable for the larger number of bytes in [`bytes`](Self::bytes).
    /// Other threads do not access it meanwhile.
    pub unsafe fn execute_in_place<C: Carrier>(
        &mut self,
        process: &mut Process<C>,
        memory: *mut u8,
    ) -> Result<(), Failure> {
        let (before, after) = self.bytes();
        if before.max(after) > 0 && memory.is_null() {
            return Err(Misuse::Null("the memory").into());
        }
        // SAFETY: the caller guarantees that the memory is accessible.
        unsafe { self.dispatch(process, memory, memory, true) }
    }

    /// # Safety
    /// The same as for [`run`](Self::run).
    unsafe fn dispatch<C: Carrier>(
        &mut self,
        process: &mut Process<C>,
        source: *const u8,
        target: *mut u8,
        in_place: bool,
    ) -> Result<(), Failure> {
        // SAFETY: the caller guarantees the same. Arrays of bytes need no alignment.
        unsafe {
            match self.unit {
                1 => self.run::<C, 1>(process, source.cast(), target.cast(), in_place),
                2 => self.run::<C, 2>(process, source.cast(), target.cast(), in_place),
                4 => self.run::<C, 4>(process, source.cast(), target.cast(), in_place),
                8 => self.run::<C, 8>(process, source.cast(), target.cast(), in_place),
                _ => self.run::<C, 16>(process, source.cast(), target.cast(), in_place),
            }
        }
    }

    /// # Safety
    /// `source` must be readable and `target` writable for this process's parts. They must be the same if
    /// `in_place`, and must not overlap otherwise.
    unsafe fn run<C: Carrier, const UNIT: usize>(
        &mut self,
        process: &mut Process<C>,
        source: *const [u8; UNIT],
        target: *mut [u8; UNIT],
        in_place: bool,
    ) -> Result<(), Failure> {
        let (before, after) = (self.plan.source_elements(), self.plan.target_elements());
        let mut nothing: [u8; UNIT] = [0; UNIT];
        // All processes register their source if any of them fetches directly. An empty source needs a
        // unique address, too.
        let handle: *const c_void = match before {
            0 => (&raw const nothing).cast(),
            _ => source.cast(),
        };
        {
            let source: &[[u8; UNIT]] = match before {
                0 => &[],
                // SAFETY: the caller guarantees that the source is readable for its part. Nothing writes
                // there before this borrow ends.
                _ => unsafe { slice::from_raw_parts(source, before) },
            };
            self.send(process, source, in_place)?;
            if in_place {
                let staying = self.plan.staying_elements();
                self.staying.resize(staying * UNIT, 0);
                self.plan
                    .pack_staying(source, self.staying.as_chunks_mut().0);
            }
        }
        let registers = self.has_direct && !in_place;
        if registers {
            // SAFETY: the source stays valid until it is popped, and other processes only read it.
            unsafe { process.push_registration(handle.cast_mut(), (before * UNIT) as u64) }?;
        }
        let local: &mut [[u8; UNIT]] = match after {
            0 => slice::from_mut(&mut nothing),
            // SAFETY: the caller guarantees that the target is writable for its part. The source, which
            // may be the same memory, is no longer borrowed.
            _ => unsafe { slice::from_raw_parts_mut(target, after) },
        };
        if in_place {
            self.plan.unpack_staying(self.staying.as_chunks().0, local);
        } else if before > 0 {
            // SAFETY: the caller guarantees that source and target do not overlap.
            let source = unsafe { slice::from_raw_parts(source, before) };
            self.plan.copy_staying(source, local);
        }
        process.sync()?;
        self.receive(process, handle, local, in_place)?;
        if registers {
            process.pop_registration(handle)?;
        }
        if self.has_fetch {
            // Afterwards no process reads memory that another one may write.
            process.sync()?;
        }
        self.runs += 1;
        Ok(())
    }

    fn word(&self, transport: Transport, in_place: bool) -> u64 {
        // Never 0, which is the initial value of a notice.
        (self.runs + 1) << 3 | u64::from(in_place) << 2 | transport as u64
    }

    fn send<C: Carrier, const UNIT: usize>(
        &mut self,
        process: &mut Process<C>,
        source: &[[u8; UNIT]],
        in_place: bool,
    ) -> Result<(), Failure> {
        let rank = u64::from(process.rank());
        let notices = self.notices.as_ptr().cast::<c_void>();
        let into = self.incoming.as_ptr().cast::<c_void>();
        let packed = self.outgoing.as_mut_ptr().cast::<[u8; UNIT]>();
        for message in self.plan.outgoing() {
            let transfer = message.transfer();
            let transport = self.transport(process, message, in_place);
            let (to, start) = (transfer.peer, transfer.range.start);
            // SAFETY: the message is inside the memory for all outgoing messages.
            let start_there = unsafe { packed.add(start) };
            let mut from = start_there.cast_const();
            let mut whole = None;
            if transport == Transport::Put && !in_place && message.runs() == 1 {
                message.each_run(|own, _, _| whole = Some(own));
            }
            match whole {
                // A message in one run leaves from the source array.
                Some(own) => from = source[own..].as_ptr(),
                None if transport == Transport::FetchDirect => {}
                None => {
                    // SAFETY: the memory has room for the message, and no process reads it in this
                    // superstep.
                    let packed =
                        unsafe { slice::from_raw_parts_mut(start_there, message.elements()) };
                    message.pack(source, packed);
                }
            }
            let notice: Notice = [self.word(transport, in_place), (start * UNIT) as u64];
            let length = size_of::<Notice>() as u64;
            let (at, bytes) = (transfer.at * UNIT, message.elements() * UNIT);
            // SAFETY: both sources have the given lengths. The notice is copied at once; the message
            // stays unchanged until the superstep has ended.
            unsafe {
                process.put(
                    to,
                    (&raw const notice).cast(),
                    notices,
                    rank * length,
                    length,
                )?;
                if transport == Transport::Put {
                    process.put_unbuffered(to, from.cast(), into, at as u64, bytes as u64)?;
                }
            }
        }
        Ok(())
    }

    fn receive<C: Carrier, const UNIT: usize>(
        &mut self,
        process: &mut Process<C>,
        handle: *const c_void,
        target: &mut [[u8; UNIT]],
        in_place: bool,
    ) -> Result<(), Failure> {
        let outgoing = self.outgoing.as_ptr().cast::<c_void>();
        for message in self.plan.incoming() {
            let from = message.transfer().peer;
            let notice = self.notices[from as usize];
            let transport = Transport::from_word(notice[0]);
            let expected = self.word(transport, in_place);
            if notice[0] != expected {
                return Err(mismatch(from, notice[0], expected));
            }
            match transport {
                Transport::Put => {
                    // SAFETY: the message is inside the memory for all incoming messages, which is
                    // written in `sync` only.
                    let packed = unsafe {
                        let all = self.incoming.as_ptr().cast::<[u8; UNIT]>();
                        slice::from_raw_parts(
                            all.add(message.transfer().range.start),
                            message.elements(),
                        )
                    };
                    message.unpack(packed, target);
                }
                Transport::Fetch => {
                    let buffer = self.buffer.as_chunks_mut().0;
                    message.unpack_parts(target, buffer, |at, into| {
                        let (offset, bytes) =
                            (notice[1] + (at * UNIT) as u64, size_of_val(into) as u64);
                        let into = into.as_mut_ptr().cast();
                        // SAFETY: `into` and `bytes` are those of a slice of this process.
                        unsafe { process.direct_get(from, outgoing, offset, into, bytes) }
                    })?;
                }
                Transport::FetchDirect => {
                    let start = target.as_mut_ptr();
                    let ranges = &mut self.ranges;
                    let mut outcome = Ok(());
                    ranges.clear();
                    message.each_run(|own, other, length| {
                        ranges.push(PullRange {
                            from: (other * UNIT) as u64,
                            // Plan::new ensures that runs are inside the target.
                            into: target[own..own + length].as_mut_ptr().cast(),
                            length: length * UNIT,
                        });
                        if ranges.len() == RUNS_PER_CALL && outcome.is_ok() {
                            // SAFETY: the ranges are inside the target, and do not overlap.
                            outcome = unsafe { process.direct_get_ranges(from, handle, ranges) };
                            ranges.clear();
                        }
                    });
                    outcome?;
                    debug_assert_eq!(start, target.as_mut_ptr());
                    // SAFETY: the ranges are inside the target, and do not overlap.
                    unsafe { process.direct_get_ranges(from, handle, ranges) }?;
                }
            }
        }
        Ok(())
    }
}

/// The error of a notice from rank `from` that is not the expected one.
fn mismatch(from: u32, found: u64, expected: u64) -> Failure {
    let mode = |word: u64| match word >> 2 & 1 {
        1 => "in place",
        _ => "between two memories",
    };
    let rule_text = "all ranks must make the same call with the same plan";
    match found >> 3 == expected >> 3 {
        true => rule(format!(
            "rank {from} reshuffles {}, this rank {}: {rule_text}",
            mode(found),
            mode(expected)
        )),
        false => rule(format!(
            "rank {from} has not reshuffled with this plan in this superstep: {rule_text}"
        )),
    }
}

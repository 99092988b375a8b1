//! Arrays from one block-cyclic distribution to another: `include/bsp_reshuffle.h`.
//!
//! A plan keeps memory for messages, registered once. In its superstep each process packs what it sends. Processes of other
//! nodes are put to; those of this node fetch what they get, in the superstep after: packed, some at a time, or if runs are
//! long straight from the other's array to where it belongs, which is one copy in all.

use std::ffi::{c_int, c_void};
use std::slice;

use dipole_bsp::misuse::Misuse;
use dipole_bsp::{Failure, Piece};
use dipole_reshuffle::{Distribution, Message, Plan, ReshuffleError};

use crate::number::Size;
use crate::scratch::{Cell, Process, cells};
use crate::section::{Inside, Site, call, call_and_wait, refuse};

/// Runs of as many bytes and more on average are fetched straight from the other's array.
const DIRECT_RUN_BYTES: usize = 2 << 10;
/// Packed elements are fetched so many bytes at a time, which stay in the cache.
const FETCHED_BYTES: usize = 64 << 10;
/// Runs that are fetched by one call.
const RUNS_OF_A_CALL: usize = 1023;

/// How a message comes to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Put into its memory for messages.
    Put = 0,
    /// Fetched from the sender's memory for messages.
    Fetched = 1,
    /// Fetched from the sender's array.
    Direct = 2,
}

impl Way {
    fn of(number: u64) -> Way {
        match number & 3 {
            1 => Way::Fetched,
            2 => Way::Direct,
            _ => Way::Put,
        }
    }
}

/// What a sender tells each of its receivers: how often this plan was run before, in place or not and by which way,
/// and where the message begins in its memory for messages.
type Told = [u64; 2];

/// A plan, as programs have it by its address.
pub struct Reshuffle {
    plan: Plan,
    /// Bytes of what the plan counts as an element: 1, 2, 4, 8 or 16.
    unit: usize,
    outgoing: Vec<Cell>,
    incoming: Vec<Cell>,
    told: Vec<Told>,
    /// Some process has a message that goes by that way, or by any but being put.
    has_direct: bool,
    has_fetched: bool,
    runs: u64,
    buffer: Vec<u8>,
    staying: Vec<u8>,
    pieces: Vec<Piece>,
}

fn wrong(error: &ReshuffleError) -> Failure {
    Misuse::Rule(error.to_string()).into()
}

fn rule(text: impl Into<String>) -> Failure {
    Misuse::Rule(text.into()).into()
}

/// The arguments of a distribution, which all of `count` dimensions have.
///
/// # Safety
/// What is not null has so many values.
unsafe fn list<'a, A>(
    what: &'static str,
    start: *const A,
    count: usize,
) -> Result<&'a [A], Failure> {
    match (count, start.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Misuse::Null(what).into()),
        // SAFETY: so many values by contract.
        _ => Ok(unsafe { slice::from_raw_parts(start, count) }),
    }
}

/// A distribution of elements of `size` bytes, as units of that many bytes.
fn distribution(
    extents: &[usize],
    procs: &[c_int],
    blocks: &[usize],
    units: usize,
) -> Result<Distribution, Failure> {
    let mut processes = Vec::new();
    for number in procs {
        let number = number.number("the number of processes of a dimension")?;
        processes.push(u32::try_from(number).unwrap_or(u32::MAX));
    }
    let (extents, blocks) = ([extents, &[units]].concat(), [blocks, &[units]].concat());
    processes.push(1);
    Distribution::new(&extents, &processes, &blocks).map_err(|error| wrong(&error))
}

/// Bytes of the largest unit of which elements are made, and how many they are.
fn units(size: usize) -> Result<(usize, usize), Failure> {
    let unit = [16, 8, 4, 2, 1]
        .into_iter()
        .find(|unit| size.is_multiple_of(*unit));
    match (size, unit) {
        (0, _) | (_, None) => Err(rule("elements must have at least 1 byte")),
        (_, Some(unit)) => Ok((unit, size / unit)),
    }
}

/// Elements that process `pid` has of an array.
///
/// # Safety
/// The lists have a value for each dimension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_distribution_elements(
    ndims: c_int,
    extents: *const usize,
    procs: *const c_int,
    blocks: *const usize,
    pid: c_int,
) -> usize {
    let site = Site::of("bsp_distribution_elements");
    let count = || -> Result<usize, Failure> {
        let ndims = usize::try_from(ndims.number("the number of dimensions")?).unwrap_or(0);
        let pid = u32::try_from(pid.number("the process")?).unwrap_or(u32::MAX);
        // SAFETY: so many values by contract.
        let (extents, procs, blocks) = unsafe {
            (
                list("the list of extents", extents, ndims)?,
                list("the list of processes", procs, ndims)?,
                list("the list of blocks", blocks, ndims)?,
            )
        };
        Ok(distribution(extents, procs, blocks, 1)?.elements(pid))
    };
    count().unwrap_or_else(|failure| refuse(site, &failure.to_string()))
}

/// Plans to get arrays from one distribution to another; all processes call it.
///
/// # Safety
/// The lists have a value for each dimension.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_reshuffle_plan_create(
    ndims: c_int,
    extents: *const usize,
    element_size: usize,
    from_procs: *const c_int,
    from_blocks: *const usize,
    to_procs: *const c_int,
    to_blocks: *const usize,
) -> *mut Reshuffle {
    call_and_wait("bsp_reshuffle_plan_create", |inside| {
        let ndims = usize::try_from(ndims.number("the number of dimensions")?).unwrap_or(0);
        // SAFETY: so many values by contract.
        let (extents, from, to) = unsafe {
            (
                list("the list of extents", extents, ndims)?,
                (
                    list("the list of processes before", from_procs, ndims)?,
                    list("the list of blocks before", from_blocks, ndims)?,
                ),
                (
                    list("the list of processes afterwards", to_procs, ndims)?,
                    list("the list of blocks afterwards", to_blocks, ndims)?,
                ),
            )
        };
        let (unit, units) = units(element_size)?;
        let sides = [
            distribution(extents, from.0, from.1, units)?,
            distribution(extents, to.0, to.1, units)?,
        ];
        let mut made = Box::new(Reshuffle::new(inside, &sides, unit)?);
        let address: *mut Reshuffle = &raw mut *made;
        inside.plans.push(made);
        Ok(address)
    })
}

/// Reshuffles from one memory to another; all processes call it.
///
/// # Safety
/// The source is readable and the destination writable for this process's parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_reshuffle_execute(
    plan: *mut Reshuffle,
    src: *const c_void,
    dst: *mut c_void,
) {
    call_and_wait("bsp_reshuffle_execute", |inside| {
        with(inside, plan, |it, process| {
            let (before, after) = it.bytes();
            let (from, to) = (src.addr(), dst.addr());
            if before > 0 && src.is_null() {
                return Err(Misuse::Null("the source").into());
            }
            if after > 0 && dst.is_null() {
                return Err(Misuse::Null("the destination").into());
            }
            if before > 0 && after > 0 && from < to + after && to < from + before {
                return Err(rule(
                    "source and destination overlap: use bsp_reshuffle_in_place for one memory",
                ));
            }
            // SAFETY: the contract is the same.
            unsafe { it.dispatch(process, src.cast(), dst.cast(), false) }
        })
    });
}

/// Reshuffles within one memory; all processes call it.
///
/// # Safety
/// The memory is readable and writable for this process's larger part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_reshuffle_in_place(plan: *mut Reshuffle, memory: *mut c_void) {
    call_and_wait("bsp_reshuffle_in_place", |inside| {
        with(inside, plan, |it, process| {
            let (before, after) = it.bytes();
            if before.max(after) > 0 && memory.is_null() {
                return Err(Misuse::Null("the memory").into());
            }
            let memory = memory.cast::<u8>();
            // SAFETY: the contract is the same.
            unsafe { it.dispatch(process, memory, memory, true) }
        })
    });
}

/// Gives a plan's memory back; all processes call it.
///
/// # Safety
/// None: what is no plan is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_reshuffle_plan_destroy(plan: *mut Reshuffle) {
    call("bsp_reshuffle_plan_destroy", |inside| {
        let at = find(inside, plan)?;
        // Others still read its memory, and are known not to once they are in a later superstep.
        let gone = inside.plans.remove(at);
        for address in [
            gone.outgoing.as_ptr().cast::<c_void>(),
            gone.incoming.as_ptr().cast(),
            gone.told.as_ptr().cast(),
        ] {
            inside.process.pop_registration(address)?;
        }
        inside.leaving.push((inside.process.superstep(), gone));
        Ok(())
    });
}

fn find(inside: &Inside, plan: *const Reshuffle) -> Result<usize, Failure> {
    let mut plans = inside.plans.iter();
    let found = plans.position(|it| std::ptr::eq(&raw const **it, plan));
    found.ok_or_else(|| rule("the plan is none: it was not created, or has been destroyed"))
}

fn with(
    inside: &mut Inside,
    plan: *const Reshuffle,
    body: impl FnOnce(&mut Reshuffle, &mut Process) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let at = find(inside, plan)?;
    let now = inside.process.superstep();
    inside.leaving.retain(|(since, _)| *since == now);
    body(&mut inside.plans[at], &mut inside.process)
}

/// A number that differs where distributions do.
fn fingerprint(sides: &[Distribution; 2], unit: usize) -> u64 {
    let text = format!("{sides:?} {unit}");
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Memory that has an address, also if it is for nothing.
fn memory(bytes: usize) -> Vec<Cell> {
    cells(bytes.max(1))
}

impl Reshuffle {
    fn new(
        inside: &mut Inside,
        sides: &[Distribution; 2],
        unit: usize,
    ) -> Result<Reshuffle, Failure> {
        let [from, to] = sides;
        let (rank, size) = (inside.process.rank(), inside.process.size());
        let plan = Plan::new(from, to, rank).map_err(|error| wrong(&error))?;
        if plan.ranks() > size {
            let (wanted, found) = (plan.ranks(), size);
            return Err(wrong(&ReshuffleError::Processes { wanted, found }));
        }
        let bytes = |elements: usize| {
            let bytes = elements
                .checked_mul(unit)
                .filter(|bytes| isize::try_from(*bytes).is_ok());
            bytes.ok_or_else(|| wrong(&ReshuffleError::TooLarge))
        };
        bytes(plan.source_elements())?;
        bytes(plan.target_elements())?;
        let mut it = Reshuffle {
            outgoing: memory(bytes(plan.outgoing_elements())?),
            incoming: memory(bytes(plan.incoming_elements())?),
            told: vec![[0; 2]; size as usize],
            plan,
            unit,
            has_direct: false,
            has_fetched: false,
            runs: 0,
            buffer: vec![0; FETCHED_BYTES],
            staying: Vec::new(),
            pieces: Vec::new(),
        };
        // All find out that they want the same, and which ways there are.
        let ways = it
            .plan
            .outgoing()
            .iter()
            .map(|message| it.way(&inside.process, message, false));
        let ways = ways.fold(0, |all, way| all | 1_u64 << way as u64);
        let own: Told = [fingerprint(sides, unit), ways];
        let mut all = vec![own; size as usize];
        let length = size_of::<Told>() as u64;
        // SAFETY: both are as long as said: a value, and one of each process.
        unsafe { inside.all_gather((&raw const own).cast(), all.as_mut_ptr().cast(), length) }?;
        if let Some(other) = all.iter().position(|told| told[0] != own[0]) {
            return Err(rule(format!(
                "rank {other} plans to reshuffle another array, or by other distributions: all ranks must plan the same"
            )));
        }
        let ways = all.iter().fold(0, |all, told| all | told[1]);
        it.has_direct = ways & 1 << Way::Direct as u64 != 0;
        it.has_fetched = it.has_direct || ways & 1 << Way::Fetched as u64 != 0;
        let told = it.told.len() * size_of::<Told>();
        let parts = [
            (
                it.outgoing.as_mut_ptr().cast(),
                it.outgoing.len() * size_of::<Cell>(),
            ),
            (
                it.incoming.as_mut_ptr().cast(),
                it.incoming.len() * size_of::<Cell>(),
            ),
            (it.told.as_mut_ptr().cast(), told),
        ];
        for (address, bytes) in parts {
            // SAFETY: they stay where they are until they have been popped and that superstep has ended.
            unsafe { inside.process.push_registration(address, bytes as u64) }?;
        }
        inside.process.sync()?;
        Ok(it)
    }

    /// Bytes of this process's parts before and afterwards.
    fn bytes(&self) -> (usize, usize) {
        let bytes = |elements: usize| elements * self.unit;
        (
            bytes(self.plan.source_elements()),
            bytes(self.plan.target_elements()),
        )
    }

    fn way(&self, process: &Process, message: &Message, in_place: bool) -> Way {
        let is_long = message.elements() * self.unit >= message.runs() * DIRECT_RUN_BYTES;
        match process.can_get_at_once(message.transfer().peer) {
            true if is_long && !in_place => Way::Direct,
            true => Way::Fetched,
            false => Way::Put,
        }
    }

    /// # Safety
    /// That of the call.
    unsafe fn dispatch(
        &mut self,
        process: &mut Process,
        source: *const u8,
        target: *mut u8,
        in_place: bool,
    ) -> Result<(), Failure> {
        // SAFETY: that of the call; units of bytes need no alignment.
        unsafe {
            match self.unit {
                1 => self.run::<1>(process, source.cast(), target.cast(), in_place),
                2 => self.run::<2>(process, source.cast(), target.cast(), in_place),
                4 => self.run::<4>(process, source.cast(), target.cast(), in_place),
                8 => self.run::<8>(process, source.cast(), target.cast(), in_place),
                _ => self.run::<16>(process, source.cast(), target.cast(), in_place),
            }
        }
    }

    /// # Safety
    /// The source is readable and the target writable for this process's parts; they are one if `in_place`, else apart.
    unsafe fn run<const UNIT: usize>(
        &mut self,
        process: &mut Process,
        source: *const [u8; UNIT],
        target: *mut [u8; UNIT],
        in_place: bool,
    ) -> Result<(), Failure> {
        let (before, after) = (self.plan.source_elements(), self.plan.target_elements());
        let mut nothing: [u8; UNIT] = [0; UNIT];
        // Registered by all where some fetch from it; what has no elements needs an address all the same.
        let handle: *const c_void = match before {
            0 => (&raw const nothing).cast(),
            _ => source.cast(),
        };
        {
            let source: &[[u8; UNIT]] = match before {
                0 => &[],
                // SAFETY: by contract; nobody writes there before this borrow ends.
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
            // SAFETY: it stays until it is popped, and others read it only.
            unsafe { process.push_registration(handle.cast_mut(), (before * UNIT) as u64) }?;
        }
        let local: &mut [[u8; UNIT]] = match after {
            0 => slice::from_mut(&mut nothing),
            // SAFETY: by contract; the source is not borrowed any more.
            _ => unsafe { slice::from_raw_parts_mut(target, after) },
        };
        if in_place {
            self.plan.unpack_staying(self.staying.as_chunks().0, local);
        } else if before > 0 {
            // SAFETY: apart from the target by contract.
            let source = unsafe { slice::from_raw_parts(source, before) };
            self.plan.copy_staying(source, local);
        }
        process.sync()?;
        self.receive(process, handle, local, in_place)?;
        if registers {
            process.pop_registration(handle)?;
        }
        if self.has_fetched {
            // Nobody reads what others may write now.
            process.sync()?;
        }
        self.runs += 1;
        Ok(())
    }

    fn word(&self, way: Way, in_place: bool) -> u64 {
        // Never 0, which is what the table begins with.
        (self.runs + 1) << 3 | u64::from(in_place) << 2 | way as u64
    }

    fn send<const UNIT: usize>(
        &mut self,
        process: &mut Process,
        source: &[[u8; UNIT]],
        in_place: bool,
    ) -> Result<(), Failure> {
        let rank = u64::from(process.rank());
        let told = self.told.as_ptr().cast::<c_void>();
        let into = self.incoming.as_ptr().cast::<c_void>();
        let packed = self.outgoing.as_mut_ptr().cast::<[u8; UNIT]>();
        for message in self.plan.outgoing() {
            let (transfer, way) = (message.transfer(), self.way(process, message, in_place));
            let (to, start) = (transfer.peer, transfer.range.start);
            // SAFETY: the message's place in the memory for all of them.
            let start_there = unsafe { packed.add(start) };
            let mut from = start_there.cast_const();
            let mut whole = None;
            if way == Way::Put && !in_place && message.runs() == 1 {
                message.each_run(|own, _, _| whole = Some(own));
            }
            match whole {
                // It leaves from where it lies.
                Some(own) => from = source[own..].as_ptr(),
                None if way == Way::Direct => {}
                None => {
                    // SAFETY: as long as the message, and nobody reads it in this superstep.
                    let packed =
                        unsafe { slice::from_raw_parts_mut(start_there, message.elements()) };
                    message.pack(source, packed);
                }
            }
            let word: Told = [self.word(way, in_place), (start * UNIT) as u64];
            let length = size_of::<Told>() as u64;
            let (at, bytes) = (transfer.at * UNIT, message.elements() * UNIT);
            // SAFETY: both are as long as said; what is not copied at once stays until the superstep has ended.
            unsafe {
                process.put(to, (&raw const word).cast(), told, rank * length, length)?;
                if way == Way::Put {
                    process.put_unbuffered(to, from.cast(), into, at as u64, bytes as u64)?;
                }
            }
        }
        Ok(())
    }

    fn receive<const UNIT: usize>(
        &mut self,
        process: &mut Process,
        handle: *const c_void,
        target: &mut [[u8; UNIT]],
        in_place: bool,
    ) -> Result<(), Failure> {
        let outgoing = self.outgoing.as_ptr().cast::<c_void>();
        for message in self.plan.incoming() {
            let of = message.transfer().peer;
            let told = self.told[of as usize];
            let way = Way::of(told[0]);
            if told[0] != self.word(way, in_place) {
                return Err(differs(of, told[0], self.word(way, in_place)));
            }
            match way {
                Way::Put => {
                    // SAFETY: the memory is ours, as long as all messages, and written in `sync` only.
                    let packed = unsafe {
                        let all = self.incoming.as_ptr().cast::<[u8; UNIT]>();
                        slice::from_raw_parts(
                            all.add(message.transfer().range.start),
                            message.elements(),
                        )
                    };
                    message.unpack(packed, target);
                }
                Way::Fetched => {
                    let buffer = self.buffer.as_chunks_mut().0;
                    message.unpack_parts(target, buffer, |at, into| {
                        let (offset, bytes) =
                            (told[1] + (at * UNIT) as u64, size_of_val(into) as u64);
                        let into = into.as_mut_ptr().cast();
                        // SAFETY: a slice of ours.
                        unsafe { process.get_at_once(of, outgoing, offset, into, bytes) }
                    })?;
                }
                Way::Direct => {
                    let start = target.as_mut_ptr();
                    let pieces = &mut self.pieces;
                    let mut outcome = Ok(());
                    pieces.clear();
                    message.each_run(|own, other, length| {
                        pieces.push(Piece {
                            from: (other * UNIT) as u64,
                            // Within the target: the plan has seen to that.
                            into: target[own..own + length].as_mut_ptr().cast(),
                            length: length * UNIT,
                        });
                        if pieces.len() == RUNS_OF_A_CALL && outcome.is_ok() {
                            // SAFETY: runs lie in the target, and apart.
                            outcome = unsafe { process.get_pieces_at_once(of, handle, pieces) };
                            pieces.clear();
                        }
                    });
                    outcome?;
                    debug_assert_eq!(start, target.as_mut_ptr());
                    // SAFETY: as above.
                    unsafe { process.get_pieces_at_once(of, handle, pieces) }?;
                }
            }
        }
        Ok(())
    }
}

fn differs(of: u32, found: u64, wanted: u64) -> Failure {
    let place = |word: u64| match word >> 2 & 1 {
        1 => "in place",
        _ => "from one memory to another",
    };
    let all = "all ranks must call the same, by the same plan";
    match found >> 3 == wanted >> 3 {
        true => rule(format!(
            "rank {of} reshuffles {}, this rank {}: {all}",
            place(found),
            place(wanted)
        )),
        false => rule(format!(
            "rank {of} has not reshuffled by this plan in this superstep: {all}"
        )),
    }
}

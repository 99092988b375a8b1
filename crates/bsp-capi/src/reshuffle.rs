//! Arrays from one block-cyclic distribution to another: `include/bsp_reshuffle.h`. `plan.rs` does it.

use std::ffi::{c_int, c_void};
use std::slice;

use dipole_bsp::Failure;
use dipole_bsp::misuse::Misuse;
use dipole_reshuffle::{Distribution, Plan, ReshuffleError};

use crate::number::Size;
use crate::plan::{FETCHED_BYTES, Told, Way, rule};
use crate::scratch::{Cell, Process, cells};
use crate::section::{Inside, Site, call, call_and_wait, refuse};

pub use crate::plan::Reshuffle;

fn wrong(error: &ReshuffleError) -> Failure {
    Misuse::Rule(error.to_string()).into()
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
        let mut made = Box::new(create(inside, &sides, unit)?);
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

/// Made by all processes together.
fn create(
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

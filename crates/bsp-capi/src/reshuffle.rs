//! Reshuffles arrays between block-cyclic distributions: `include/bsp_reshuffle.h`. `plan.rs` executes
//! the plans.

use std::ffi::{c_int, c_void};
use std::slice;

use dipole_bsp::Failure;
use dipole_bsp::misuse::Misuse;
use dipole_reshuffle::{Distribution, Plan, ReshuffleError};

use crate::number::Size;
use crate::plan::{FETCH_BYTES, Notice, Transport, rule};
use crate::scratch::{Cell, Process, cells};
use crate::section::{ParallelPart, Site, call, call_and_wait, refuse};

pub use crate::plan::Reshuffle;

fn failure(error: &ReshuffleError) -> Failure {
    Misuse::Rule(error.to_string()).into()
}

/// An argument of a distribution: a list with a value for each dimension.
///
/// # Safety
/// `start` must be null or point to `count` values.
unsafe fn list<'a, A>(
    what: &'static str,
    start: *const A,
    count: usize,
) -> Result<&'a [A], Failure> {
    match (count, start.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Misuse::Null(what).into()),
        // SAFETY: `start` is not null, so it points to `count` values, as the caller guarantees.
        _ => Ok(unsafe { slice::from_raw_parts(start, count) }),
    }
}

/// A distribution in which each element consists of `units` units.
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
    Distribution::new(&extents, &processes, &blocks).map_err(|error| failure(&error))
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

/// The number of elements of an array on process `pid`.
///
/// # Safety
/// The lists must have a value for each dimension.
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
        // SAFETY: the caller guarantees that each list has `ndims` values.
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

/// Creates a plan to move arrays from one distribution to another. All processes call it.
///
/// # Safety
/// The lists must have a value for each dimension.
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
    call_and_wait("bsp_reshuffle_plan_create", |part| {
        let ndims = usize::try_from(ndims.number("the number of dimensions")?).unwrap_or(0);
        // SAFETY: the caller guarantees that each list has `ndims` values.
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
        let mut plan = Box::new(create(part, &sides, unit)?);
        let address: *mut Reshuffle = &raw mut *plan;
        part.plans.push(plan);
        Ok(address)
    })
}

/// Reshuffles from one memory to another. All processes call it.
///
/// # Safety
/// `src` must be readable and `dst` writable for this process's parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_reshuffle_execute(
    plan: *mut Reshuffle,
    src: *const c_void,
    dst: *mut c_void,
) {
    call_and_wait("bsp_reshuffle_execute", |part| {
        with(part, plan, |it, process| {
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
                    "source and destination overlap: use bsp_reshuffle_in_place for a single memory",
                ));
            }
            // SAFETY: the caller guarantees that both are accessible, and they do not overlap.
            unsafe { it.dispatch(process, src.cast(), dst.cast(), false) }
        })
    });
}

/// Reshuffles within one memory. All processes call it.
///
/// # Safety
/// `memory` must be readable and writable for the larger one of this process's parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_reshuffle_in_place(plan: *mut Reshuffle, memory: *mut c_void) {
    call_and_wait("bsp_reshuffle_in_place", |part| {
        with(part, plan, |it, process| {
            let (before, after) = it.bytes();
            if before.max(after) > 0 && memory.is_null() {
                return Err(Misuse::Null("the memory").into());
            }
            let memory = memory.cast::<u8>();
            // SAFETY: the caller guarantees that the memory is accessible.
            unsafe { it.dispatch(process, memory, memory, true) }
        })
    });
}

/// Frees a plan. All processes call it.
///
/// # Safety
/// None: invalid plans are refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_reshuffle_plan_destroy(plan: *mut Reshuffle) {
    call("bsp_reshuffle_plan_destroy", |part| {
        let at = find(part, plan)?;
        // Other processes may still read its memory. They no longer do in a later superstep.
        let destroyed = part.plans.remove(at);
        for address in [
            destroyed.outgoing.as_ptr().cast::<c_void>(),
            destroyed.incoming.as_ptr().cast(),
            destroyed.notices.as_ptr().cast(),
        ] {
            part.process.pop_registration(address)?;
        }
        part.destroyed.push((part.process.superstep(), destroyed));
        Ok(())
    });
}

fn find(part: &ParallelPart, plan: *const Reshuffle) -> Result<usize, Failure> {
    let mut plans = part.plans.iter();
    let found = plans.position(|it| std::ptr::eq(&raw const **it, plan));
    found.ok_or_else(|| rule("the plan is not valid: it was not created, or has been destroyed"))
}

fn with(
    part: &mut ParallelPart,
    plan: *const Reshuffle,
    body: impl FnOnce(&mut Reshuffle, &mut Process) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let at = find(part, plan)?;
    let now = part.process.superstep();
    part.destroyed.retain(|(since, _)| *since == now);
    body(&mut part.plans[at], &mut part.process)
}

/// A hash of both distributions.
fn fingerprint(sides: &[Distribution; 2], unit: usize) -> u64 {
    let text = format!("{sides:?} {unit}");
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Memory that has a unique address even if it is empty.
fn memory(bytes: usize) -> Vec<Cell> {
    cells(bytes.max(1))
}

/// Creates a plan on all processes together.
fn create(
    part: &mut ParallelPart,
    sides: &[Distribution; 2],
    unit: usize,
) -> Result<Reshuffle, Failure> {
    let [from, to] = sides;
    let (rank, size) = (part.process.rank(), part.process.size());
    let plan = Plan::new(from, to, rank).map_err(|error| failure(&error))?;
    if plan.ranks() > size {
        let (wanted, found) = (plan.ranks(), size);
        return Err(failure(&ReshuffleError::Processes { wanted, found }));
    }
    let bytes = |elements: usize| {
        let bytes = elements
            .checked_mul(unit)
            .filter(|bytes| isize::try_from(*bytes).is_ok());
        bytes.ok_or_else(|| failure(&ReshuffleError::TooLarge))
    };
    bytes(plan.source_elements())?;
    bytes(plan.target_elements())?;
    let mut plan = Reshuffle {
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
    // All processes check that their plans agree, and find out which transports are in use.
    let transports = plan
        .plan
        .outgoing()
        .iter()
        .map(|message| plan.transport(&part.process, message, false));
    let transports = transports.fold(0, |all, transport| all | 1_u64 << transport as u64);
    let own: Notice = [fingerprint(sides, unit), transports];
    let mut all = vec![own; size as usize];
    let length = size_of::<Notice>() as u64;
    // SAFETY: `own` is one notice, and `all` has room for one of each process.
    unsafe { part.all_gather((&raw const own).cast(), all.as_mut_ptr().cast(), length) }?;
    if let Some(other) = all.iter().position(|notice| notice[0] != own[0]) {
        return Err(rule(format!(
            "rank {other} plans another reshuffle: all ranks must plan the same array and distributions"
        )));
    }
    let transports = all.iter().fold(0, |all, notice| all | notice[1]);
    plan.has_direct = transports & 1 << Transport::FetchDirect as u64 != 0;
    plan.has_fetch = plan.has_direct || transports & 1 << Transport::Fetch as u64 != 0;
    let notice_bytes = plan.notices.len() * size_of::<Notice>();
    let parts = [
        (
            plan.outgoing.as_mut_ptr().cast(),
            plan.outgoing.len() * size_of::<Cell>(),
        ),
        (
            plan.incoming.as_mut_ptr().cast(),
            plan.incoming.len() * size_of::<Cell>(),
        ),
        (plan.notices.as_mut_ptr().cast(), notice_bytes),
    ];
    for (address, bytes) in parts {
        // SAFETY: the memory stays valid until it has been popped and that superstep has ended.
        unsafe { part.process.push_registration(address, bytes as u64) }?;
    }
    part.process.sync()?;
    Ok(plan)
}

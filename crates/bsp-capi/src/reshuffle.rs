//! Reshuffles arrays between block-cyclic distributions: `include/bsp_reshuffle.h`.

use std::ffi::{c_int, c_void};
use std::slice;

use dipole_bsp::Failure;
use dipole_bsp::misuse::Misuse;
use dipole_reshuffle::{Distribution, Registered};

use crate::number::Size;
use crate::scratch::Process;
use crate::section::{ParallelPart, Site, call, call_and_wait, refuse};

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

fn distribution(
    extents: &[usize],
    procs: &[c_int],
    blocks: &[usize],
) -> Result<Distribution, Failure> {
    let mut processes = Vec::new();
    for number in procs {
        let number = number.number("the number of processes of a dimension")?;
        processes.push(u32::try_from(number).unwrap_or(u32::MAX));
    }
    Ok(Distribution::new(extents, &processes, blocks)?)
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
        Ok(distribution(extents, procs, blocks)?.elements(pid))
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
) -> *mut Registered {
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
        let from = distribution(extents, from.0, from.1)?;
        let to = distribution(extents, to.0, to.1)?;
        let plan = Registered::new(&mut part.process, &from, &to, element_size)?;
        let mut plan = Box::new(plan);
        let address: *mut Registered = &raw mut *plan;
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
    plan: *mut Registered,
    src: *const c_void,
    dst: *mut c_void,
) {
    call_and_wait("bsp_reshuffle_execute", |part| {
        with(part, plan, |it, process| {
            // SAFETY: the caller guarantees that both are accessible.
            unsafe { it.execute(process, src.cast(), dst.cast()) }
        })
    });
}

/// Reshuffles within one memory. All processes call it.
///
/// # Safety
/// `memory` must be readable and writable for the larger one of this process's parts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_reshuffle_in_place(plan: *mut Registered, memory: *mut c_void) {
    call_and_wait("bsp_reshuffle_in_place", |part| {
        with(part, plan, |it, process| {
            // SAFETY: the caller guarantees that the memory is accessible.
            unsafe { it.execute_in_place(process, memory.cast()) }
        })
    });
}

/// Frees a plan. All processes call it.
///
/// # Safety
/// None: invalid plans are refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_reshuffle_plan_destroy(plan: *mut Registered) {
    call("bsp_reshuffle_plan_destroy", |part| {
        let at = find(part, plan)?;
        // Other processes may still read its memory. They no longer do in a later superstep.
        let mut destroyed = part.plans.remove(at);
        destroyed.close(&mut part.process)?;
        part.destroyed.push((part.process.superstep(), destroyed));
        Ok(())
    });
}

fn find(part: &ParallelPart, plan: *const Registered) -> Result<usize, Failure> {
    let mut plans = part.plans.iter();
    let found = plans.position(|it| std::ptr::eq(&raw const **it, plan));
    found.ok_or_else(|| {
        let text = "the plan is not valid: it was not created, or has been destroyed";
        Misuse::Rule(text.to_owned()).into()
    })
}

fn with(
    part: &mut ParallelPart,
    plan: *const Registered,
    body: impl FnOnce(&mut Registered, &mut Process) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let at = find(part, plan)?;
    let now = part.process.superstep();
    part.destroyed.retain(|(since, _)| *since == now);
    body(&mut part.plans[at], &mut part.process)
}

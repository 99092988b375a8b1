//! Programs with several parallel sections in sequence, as MulticoreBSP allows: `bsp_init` names the
//! function of each.
//!
//! Rank 0 runs the program; the others run only these functions. After `bsp_end` they wait there until
//! rank 0 begins the next section, call its function and never return from it.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, Ordering};

use dipole_bsp::{Decision, Failure};

use crate::scratch::{Process, Standby};
use crate::section::{self, Site, refuse};

/// The function that contains the parallel section.
pub(crate) type Function = unsafe extern "C" fn();

/// The function that `bsp_init` has named last.
static NAMED: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// The ranks between two sections.
static STANDBY: Mutex<Option<Standby>> = Mutex::new(None);
/// The process of a section whose function has been called, but has not called `bsp_begin` yet.
static BEGUN: Mutex<Option<Process>> = Mutex::new(None);

/// File and start of the program or library that contains an address.
fn module(address: *const c_void) -> Option<(Vec<u8>, usize)> {
    let mut found = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: `found` is a local variable. The address is only compared.
    let is_found = unsafe { libc::dladdr(address, &raw mut found) } != 0;
    if !is_found || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of a module that is not unloaded, since it contains the program.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    Some((name.to_bytes().to_vec(), found.dli_fbase.addr()))
}

/// The last part of a path.
fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Remembers the function of the next section.
pub(crate) fn name(function: Function) {
    NAMED.store(function as *mut c_void, Ordering::Relaxed);
}

/// True if `bsp_init` has named a function, so that there may be several sections.
pub(crate) fn are_named() -> bool {
    !NAMED.load(Ordering::Relaxed).is_null()
}

/// The place of the named function in its program, whose address may differ between processes: the
/// offset in 8 bytes, then the file.
fn encoded() -> Vec<u8> {
    let function = NAMED.load(Ordering::Relaxed);
    let found = module(function);
    let place = found.map(|(file, start)| {
        let offset = function.addr().wrapping_sub(start) as u64;
        [&offset.to_le_bytes()[..], &file].concat()
    });
    place.unwrap_or_default()
}

/// The function that rank 0 has named.
fn decoded(section: &[u8]) -> Result<Function, String> {
    let (offset, wanted) = (section.split_first_chunk::<8>())
        .ok_or("the function that rank 0 has named is in no program")?;
    let own = NAMED.load(Ordering::Relaxed);
    let (file, start) = module(own).ok_or("the function of the first section is in no program")?;
    let offset = usize::try_from(u64::from_le_bytes(*offset)).unwrap_or(usize::MAX);
    let function = own.with_addr(start.wrapping_add(offset));
    let is_inside = module(function).is_some_and(|(_, found)| found == start);
    if file_name(wanted) != file_name(&file) || !is_inside {
        return Err(format!(
            "the function of this section is in {} on rank 0, and that of the first one in {} here: \
             both must be in one program",
            String::from_utf8_lossy(wanted),
            String::from_utf8_lossy(&file)
        ));
    }
    // SAFETY: rank 0 runs the same program, in which a function lies at this offset.
    Ok(unsafe { std::mem::transmute::<*mut c_void, Function>(function) })
}

/// Begins a section on rank 0.
pub(crate) fn begin(max_ranks: Option<u32>) -> Result<Process, Failure> {
    let standby = match take(&STANDBY) {
        Some(standby) => standby,
        None => Standby::open()?,
    };
    standby.begin(max_ranks, encoded())
}

/// Begins a section on another rank, in the function that it has called.
pub(crate) fn join() -> Result<Process, Failure> {
    if let Some(process) = take(&BEGUN) {
        return Ok(process);
    }
    match Standby::open()?.wait()? {
        Decision::Section(process, section) if is_named(&section) => Ok(*process),
        Decision::Section(process, section) => run(*process, &section),
        Decision::End => section::leave(),
    }
}

fn is_named(section: &[u8]) -> bool {
    decoded(section).is_ok_and(|function| function as *mut c_void == NAMED.load(Ordering::Relaxed))
}

/// Calls the function of a section in which this rank takes part.
fn run(process: Process, section: &[u8]) -> ! {
    let function = decoded(section).unwrap_or_else(|why| refuse(Site::of("bsp_init"), &why));
    put(&BEGUN, process);
    section::set_initialised();
    // SAFETY: it is the function that rank 0 has named, without arguments.
    unsafe { function() };
    refuse(
        Site::of("bsp_init"),
        "the function returned without bsp_begin and bsp_end",
    )
}

/// Waits for further sections on a rank that has ended one.
pub(crate) fn wait(standby: Standby) -> ! {
    match standby.wait() {
        Ok(Decision::Section(process, section)) => run(*process, &section),
        Ok(Decision::End) => section::leave(),
        Err(failure) => section::fail_to_begin(Site::of("bsp_begin"), &failure),
    }
}

/// Keeps rank 0 ready for further sections.
pub(crate) fn keep(standby: Standby) {
    put(&STANDBY, standby);
}

/// True if rank 0 can begin another section.
pub(crate) fn can_continue() -> bool {
    STANDBY.lock().is_ok_and(|standby| standby.is_some())
}

/// Lets the other ranks end, because rank 0 does.
pub(crate) fn dismiss() {
    if let Some(standby) = take(&STANDBY) {
        standby.dismiss();
    }
}

fn take<T>(place: &Mutex<Option<T>>) -> Option<T> {
    place.lock().ok()?.take()
}

fn put<T>(place: &Mutex<Option<T>>, value: T) {
    if let Ok(mut place) = place.lock() {
        *place = Some(value);
    }
}

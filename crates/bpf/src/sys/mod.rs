//! Safe wrappers for `bpf(2)`, and their common parts.
//!
//! Structures follow `linux/bpf.h` as far as they are used here. If a structure is shorter than
//! the kernel's, the kernel treats the rest as zero.

mod map;
mod program;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub(crate) use map::{Map, MapKind, MapShape, create_map, map_facts};
pub(crate) use program::{AttachKind, attach, attached, detach, load, program_name};
#[cfg(test)]
pub(crate) use program::{TestRun, test_run};

const OBJECT_INFO: libc::c_int = 15;

fn pointer<T: ?Sized>(to: *const T) -> u64 {
    to.cast::<()>() as u64
}

fn length<T>(of: &[T]) -> u32 {
    u32::try_from(of.len()).expect("what is given to the kernel here is short")
}

fn raw(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// Makes one `bpf` call. `A` is a structure of `union bpf_attr`.
///
/// # Safety
/// Every pointer in `attributes` must refer to memory that the command may read or write, for as
/// many bytes as the command accesses.
unsafe fn call<A>(command: libc::c_int, attributes: &mut A) -> io::Result<libc::c_int> {
    // SAFETY: pointer and length describe `attributes`, which the kernel reads and for some
    // commands writes; the memory it refers to is the caller's responsibility.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<A>(),
        )
    };
    match libc::c_int::try_from(result) {
        Ok(value) if value >= 0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Wraps a descriptor that a call has just returned.
fn own(descriptor: libc::c_int) -> OwnedFd {
    // SAFETY: called only with the result of a command that creates a descriptor: it is open, and
    // owned by no one else.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn name_of(text: &str) -> [u8; 16] {
    let mut name = [0; 16];
    // The last byte stays zero.
    for (place, byte) in name[..15].iter_mut().zip(text.bytes()) {
        *place = byte;
    }
    name
}

/// The type of a BPF object, which `BPF_OBJ_GET_INFO_BY_FD` does not report.
fn is_bpf(descriptor: BorrowedFd<'_>, kind: &str) -> io::Result<bool> {
    let place = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let target = std::fs::read_link(place)?;
    Ok(target.to_string_lossy() == format!("anon_inode:{kind}"))
}

/// Checks that a descriptor is a BPF link.
pub(crate) fn check_link(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    match is_bpf(descriptor, "bpf_link")? {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// # Safety
/// `F` consists of integers and has the kernel's layout for this object.
unsafe fn object_info<F>(object: BorrowedFd<'_>, facts: &mut F) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        object: u32,
        length: u32,
        info: u64,
    }
    let mut attributes = Attributes {
        object: raw(object),
        length: u32::try_from(size_of::<F>()).expect("facts are few"),
        info: pointer(std::ptr::from_mut(facts).cast_const()),
    };
    // SAFETY: the kernel writes at most `length` bytes to `facts`, for which any bit pattern is
    // valid, as the caller guarantees.
    unsafe { call(OBJECT_INFO, &mut attributes) }.map(drop)
}

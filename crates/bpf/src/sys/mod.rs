//! Safe wrappers over `bpf(2)`, and what they share.
//!
//! Structures are those of `linux/bpf.h`, as far as they are used here. The kernel takes
//! a shorter one than its own as if the rest were zero.

mod map;
mod program;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub(crate) use map::{Map, MapKind, MapShape, create_map, map_facts};
pub(crate) use program::{
    AttachKind, ProgramKind, attach, attached, detach, load, program_name,
};
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

/// One call. `A` is a structure of `union bpf_attr`.
///
/// # Safety
/// Every pointer in `attributes` must point to memory that the command may read, or
/// write if it does, for as many bytes as the command takes from it.
unsafe fn call<A>(command: libc::c_int, attributes: &mut A) -> io::Result<libc::c_int> {
    // SAFETY: the pointer and the length describe `attributes`, which the kernel reads
    // and for some commands writes; what it points to is the caller's promise.
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

/// Takes a descriptor that a call has just returned.
fn own(descriptor: libc::c_int) -> OwnedFd {
    // SAFETY: called only with what bpf(2) returned for a command that makes a
    // descriptor: it is open, and nobody else knows it.
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

/// What kind of BPF object a descriptor is: the call for facts does not say.
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
/// `F` is plain data of which any bytes are valid, laid out as the kernel's for this object.
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
    // SAFETY: the kernel writes at most `length` bytes to `facts`, of which any are
    // valid by the caller's promise.
    unsafe { call(OBJECT_INFO, &mut attributes) }.map(drop)
}

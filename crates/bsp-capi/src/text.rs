//! `bsp_abort`, with arguments like those of printf.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::section::{Site, refuse};

/// Longer messages are truncated.
const MAX_MESSAGE: usize = 4096;

unsafe extern "C" {
    /// A `va_list` is passed as a pointer on each platform below.
    fn vsnprintf(
        into: *mut c_char,
        size: usize,
        format: *const c_char,
        arguments: *mut c_void,
    ) -> c_int;
}

/// Ends the job with a message that is formatted as by printf.
///
/// Stable Rust cannot define variadic functions. So this one stores the registers that may contain
/// arguments, as in the System V ABI, and calls [`bsp_vabort`].
///
/// # Safety
/// `format` must be null or a string, followed by the arguments that it needs.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn bsp_abort(format: *const c_char) -> ! {
    core::arch::naked_asm!(
        // 176 bytes for registers, 24 for the list, and 16 that align the stack.
        "sub rsp, 216",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "test al, al",
        "je 2f",
        "movaps [rsp + 48], xmm0",
        "movaps [rsp + 64], xmm1",
        "movaps [rsp + 80], xmm2",
        "movaps [rsp + 96], xmm3",
        "movaps [rsp + 112], xmm4",
        "movaps [rsp + 128], xmm5",
        "movaps [rsp + 144], xmm6",
        "movaps [rsp + 160], xmm7",
        "2:",
        // One general register has been used, and none of the others.
        "mov dword ptr [rsp + 176], 8",
        "mov dword ptr [rsp + 180], 48",
        "lea rax, [rsp + 224]",
        "mov [rsp + 184], rax",
        "mov [rsp + 192], rsp",
        "lea rsi, [rsp + 176]",
        "call {next}",
        "ud2",
        next = sym bsp_vabort,
    )
}

/// Variant for the procedure call standard of this architecture.
///
/// # Safety
/// `format` must be null or a string, followed by the arguments that it needs.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn bsp_abort(format: *const c_char) -> ! {
    core::arch::naked_asm!(
        // 128 bytes for vector registers, 64 for general ones, 32 for the list.
        "sub sp, sp, #224",
        "stp q0, q1, [sp]",
        "stp q2, q3, [sp, #32]",
        "stp q4, q5, [sp, #64]",
        "stp q6, q7, [sp, #96]",
        "stp x0, x1, [sp, #128]",
        "stp x2, x3, [sp, #144]",
        "stp x4, x5, [sp, #160]",
        "stp x6, x7, [sp, #176]",
        "add x9, sp, #224",
        "str x9, [sp, #192]",
        "add x9, sp, #192",
        "str x9, [sp, #200]",
        "add x9, sp, #128",
        "str x9, [sp, #208]",
        // One general register has been used, and no vector register.
        "mov w9, #-56",
        "str w9, [sp, #216]",
        "mov w9, #-128",
        "str w9, [sp, #220]",
        "add x1, sp, #192",
        "bl {next}",
        "brk #1",
        next = sym bsp_vabort,
    )
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("bsp_abort(3) is not implemented for the calling convention of this architecture");

/// Like `bsp_abort`, with a list of arguments.
///
/// # Safety
/// `format` must be null or a string, and `arguments` the address of a `va_list` with what it needs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_vabort(format: *const c_char, arguments: *mut c_void) -> ! {
    let mut text = [0_u8; MAX_MESSAGE];
    if !format.is_null() {
        // SAFETY: writes at most `text.len()` bytes, the last of which is 0. The caller guarantees that
        // `format` and `arguments` fit together.
        unsafe { vsnprintf(text.as_mut_ptr().cast(), text.len(), format, arguments) };
    }
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    end_with(&text.to_string_lossy())
}

/// An alias of [`bsp_vabort`].
///
/// # Safety
/// The same as for [`bsp_vabort`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_abort_va(format: *const c_char, arguments: *mut c_void) -> ! {
    // SAFETY: the caller guarantees the same.
    unsafe { bsp_vabort(format, arguments) }
}

/// Like `bsp_abort`, with a plain text.
///
/// # Safety
/// `text` must be null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_abort_text(text: *const c_char) -> ! {
    let text = match text.is_null() {
        true => c"",
        // SAFETY: `text` is not null, so it is a string, as the caller guarantees.
        false => unsafe { CStr::from_ptr(text) },
    };
    end_with(&text.to_string_lossy())
}

pub(crate) fn end_with(text: &str) -> ! {
    refuse(Site::of("bsp_abort"), text.trim_end())
}

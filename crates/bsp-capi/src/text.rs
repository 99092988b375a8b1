//! `bsp_abort`, whose arguments are printf's.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::section::{Site, refuse};

/// Longer messages are cut off.
const LONGEST_MESSAGE: usize = 4096;

unsafe extern "C" {
    /// A `va_list` is handed over as a pointer on every platform named below.
    fn vsnprintf(
        into: *mut c_char,
        size: usize,
        format: *const c_char,
        arguments: *mut c_void,
    ) -> c_int;
}

/// Ends the job with a message, made as by printf.
///
/// Variadic functions cannot be written in stable Rust: this one spills the registers that arguments may lie in, as the
/// System V ABI has it, and goes on with [`bsp_vabort`].
///
/// # Safety
/// `format` is null or a string, followed by arguments of what it asks for.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn bsp_abort(format: *const c_char) -> ! {
    core::arch::naked_asm!(
        // 176 bytes of registers, 24 of the list, and 16 that align the stack.
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
        // One general register has been used, none of the others.
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

/// The same, as the procedure call standard for this architecture has it.
///
/// # Safety
/// `format` is null or a string, followed by arguments of what it asks for.
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn bsp_abort(format: *const c_char) -> ! {
    core::arch::naked_asm!(
        // 128 bytes of vector registers, 64 of general ones, 32 of the list.
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
        // One general register has been used, no vector register.
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
compile_error!("bsp_abort(3) needs to be told how this architecture passes variable arguments");

/// The same with a list of arguments.
///
/// # Safety
/// `format` is null or a string, and `arguments` the address of a `va_list` of what it asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_vabort(format: *const c_char, arguments: *mut c_void) -> ! {
    let mut text = [0_u8; LONGEST_MESSAGE];
    if !format.is_null() {
        // SAFETY: writes at most as many bytes as there are, the last a zero; format and arguments fit by contract.
        unsafe { vsnprintf(text.as_mut_ptr().cast(), text.len(), format, arguments) };
    }
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    end_with(&text.to_string_lossy())
}

/// As [`bsp_vabort`].
///
/// # Safety
/// That of [`bsp_vabort`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_abort_va(format: *const c_char, arguments: *mut c_void) -> ! {
    // SAFETY: the contract is the same.
    unsafe { bsp_vabort(format, arguments) }
}

/// The same with a text as it stands.
///
/// # Safety
/// `text` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bsp_abort_text(text: *const c_char) -> ! {
    let text = match text.is_null() {
        true => c"",
        // SAFETY: not null, so a string by contract.
        false => unsafe { CStr::from_ptr(text) },
    };
    end_with(&text.to_string_lossy())
}

fn end_with(text: &str) -> ! {
    refuse(Site::of("bsp_abort"), text.trim_end())
}

//! Saved registers of a call, and the code that continues there in another process.

use std::arch::naked_asm;

/// Calls `callback(stack, resume, argument)`. The function returns 0 after the callback has. A
/// process whose memory is a copy made during the callback can continue after it, too: set the stack
/// pointer to `stack`, jump to `resume`, and this function returns what is in `rax`.
///
/// # Safety
/// `callback` must return normally.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_with_context(
    callback: extern "C" fn(u64, u64, *mut libc::c_void),
    argument: *mut libc::c_void,
) -> u64 {
    // The registers that a function must preserve are pushed, with the modes of the two
    // floating-point units.
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov rax, rdi",
        "mov rdx, rsi",
        "mov rdi, rsp",
        "lea rsi, [rip + 2f]",
        "call rax",
        "xor eax, eax",
        "2:",
        "ldmxcsr [rsp]",
        "fldcw [rsp + 4]",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Makes the system calls of a table ([`Step`]), then sets the stack pointer to `stack` and jumps to
/// `resume` with `handover` in `rax`. It uses no memory but the table, and can be copied anywhere.
///
/// # Safety
/// The table must end with [`Step::END`]; its calls must leave this code, the table and the memory
/// at `stack` and `resume` in place.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn run_steps(
    table: *const Step,
    stack: u64,
    resume: u64,
    handover: u64,
) -> ! {
    naked_asm!(
        "mov r12, rdi",
        "mov r13, rsi",
        "mov r14, rdx",
        "mov r15, rcx",
        "2:",
        "mov rax, [r12]",
        "cmp rax, -1",
        "je 4f",
        "mov rdi, [r12 + 8]",
        "mov rsi, [r12 + 16]",
        "mov rdx, [r12 + 24]",
        "mov r10, [r12 + 32]",
        "mov r8, [r12 + 40]",
        "mov r9, [r12 + 48]",
        "syscall",
        "cmp rax, -4095",
        "jb 3f",
        // Error: write the message of the step, and exit.
        "mov rsi, [r12 + 56]",
        "test rsi, rsi",
        "jz 3f",
        "mov rdx, [rsi]",
        "add rsi, 8",
        "mov edi, 2",
        "mov eax, 1",
        "syscall",
        "mov edi, 125",
        "mov eax, 231",
        "syscall",
        "ud2",
        "3:",
        "add r12, 64",
        "jmp 2b",
        "4:",
        "mov rsp, r13",
        "mov rax, r15",
        "jmp r14",
        // Marks the end of the code for the copy.
        ".byte 0x0f, 0x0b, 0x0f, 0x0b",
    )
}

/// Number of bytes to copy for [`run_steps`].
pub(crate) fn code_bytes() -> usize {
    const MARK: [u8; 4] = [0x0f, 0x0b, 0x0f, 0x0b];
    const MOST: usize = 512;
    let start = run_steps as *const u8;
    // SAFETY: the code of the function is readable up to its end, which the mark shows; the search
    // stops there.
    let found = (0..MOST).find(|at| unsafe { start.add(*at).cast::<[u8; 4]>().read() } == MARK);
    found.map_or(MOST, |at| at + MARK.len())
}

/// A system call of [`run_steps`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Step {
    pub(crate) number: u64,
    pub(crate) arguments: [u64; 6],
    /// Address of the message for an error: its length (8 bytes), then its bytes. 0 if errors are
    /// ignored.
    pub(crate) message: u64,
}

impl Step {
    pub(crate) const END: Step = Step {
        number: u64::MAX,
        arguments: [0; 6],
        message: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn store(stack: u64, resume: u64, argument: *mut libc::c_void) {
        // SAFETY: the test passes a pair that outlives the call.
        unsafe { argument.cast::<(u64, u64)>().write((stack, resume)) };
    }

    #[test]
    fn the_context_is_that_of_the_call() {
        let mut context = (0_u64, 0_u64);
        // SAFETY: the callback returns, and `context` outlives the call.
        let returned = unsafe { call_with_context(store, (&raw mut context).cast()) };
        assert_eq!(returned, 0);
        let here = std::hint::black_box(0_u8);
        let distance = ((&raw const here).addr() as u64).abs_diff(context.0);
        assert!(distance < 1 << 16, "{distance}");
        assert_eq!(context.0 % 16, 0);
        assert!(code_bytes() < 256, "{}", code_bytes());
    }
}

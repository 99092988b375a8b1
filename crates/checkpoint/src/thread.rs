//! State of the only thread of a process that is not in its memory.

use std::ffi::c_void;

use crate::image::{SignalAction, Thread};

/// Signature that the kernel demands of code that restartable sequences jump to, on x86-64.
pub(crate) const RSEQ_SIGNATURE: u32 = 0x5305_3053;
/// Number of the last signal.
pub(crate) const SIGNALS: i32 = 64;

/// The state of this thread; it continues with this stack at `resume`.
pub(crate) fn thread(stack: u64, resume: u64) -> Thread {
    let (mut list, mut length) = (0_u64, 0_u64);
    let mut signal_stack = libc::stack_t {
        ss_sp: std::ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: the first call writes two words; the second changes nothing and fills the structure.
    unsafe {
        libc::syscall(libc::SYS_get_robust_list, 0, &raw mut list, &raw mut length);
        libc::sigaltstack(std::ptr::null(), &raw mut signal_stack);
    }
    Thread {
        stack,
        resume,
        local_data: local_data(),
        robust_list: (list, length),
        rseq: rseq_area().map(|area| (area, RSEQ_SIGNATURE)),
        id_address: thread_id_address().unwrap_or(0) as u64,
        signal_stack: (
            signal_stack.ss_sp.addr() as u64,
            u64::from(signal_stack.ss_flags.unsigned_abs()),
            signal_stack.ss_size as u64,
        ),
    }
}

/// The action for a signal.
pub(crate) fn signal_action(signal: i32) -> SignalAction {
    let mut action = [0; 4];
    // SAFETY: with a null pointer the call changes nothing; it writes one action of the kernel's
    // layout, which has four words. Signals without action are refused and stay 0.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            std::ptr::null::<c_void>(),
            action.as_mut_ptr(),
            size_of::<u64>(),
        );
    }
    action
}

/// Updates the thread's number where the C library keeps it.
pub(crate) fn set_thread_id() {
    if let Some(address) = thread_id_address() {
        let id = rustix::thread::gettid().as_raw_nonzero().get();
        // SAFETY: the kernel returns the address that the C library has registered for the number of
        // its only thread.
        unsafe { std::ptr::with_exposed_provenance_mut::<i32>(address).write(id) };
    }
}

/// Where the C library keeps the number of this thread, which the kernel clears at its end.
fn thread_id_address() -> Option<usize> {
    let mut address: usize = 0;
    // SAFETY: the call writes one word.
    let found = unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut address) };
    (found == 0 && address != 0).then_some(address)
}

/// Where the C library has registered this thread's restartable sequences, if it has.
pub(crate) fn rseq_area() -> Option<u64> {
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: looks a name up among the loaded libraries.
        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!address.is_null()).then_some(address)
    };
    let (offset, size) = (symbol(c"__rseq_offset")?, symbol(c"__rseq_size")?);
    // SAFETY: the C library exports these constants with these types; they never change.
    let (offset, size) = unsafe { (offset.cast::<isize>().read(), size.cast::<u32>().read()) };
    let start = local_data().wrapping_add_signed(offset as i64);
    (size > 0).then_some(start)
}

/// Address of this thread's local data.
pub(crate) fn local_data() -> u64 {
    /// As in the kernel's `asm/prctl.h`.
    const GET_FS: i32 = 0x1003;
    let mut address: u64 = 0;
    // SAFETY: the call writes one word.
    unsafe { libc::syscall(libc::SYS_arch_prctl, GET_FS, &raw mut address) };
    address
}

/// Blocks all signals. Returns the former mask.
pub(crate) fn block_signals() -> libc::sigset_t {
    let mut former = std::mem::MaybeUninit::uninit();
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: both sets are local; the first call fills one, the second one reads it and fills the
    // other.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), former.as_mut_ptr());
        former.assume_init()
    }
}

/// Sets a mask of signals.
pub(crate) fn unblock_signals(former: &libc::sigset_t) {
    // SAFETY: the set is valid, and the former one is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, former, std::ptr::null_mut()) };
}

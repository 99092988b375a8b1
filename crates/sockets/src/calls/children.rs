//! Child processes and exec, where shared memory would be lost: connections return to TCP before.

use std::os::fd::RawFd;
use std::sync::Once;

use libc::{c_char, c_int, c_void};
use rustix::io::FdFlags;

use super::{borrowed, errno, leaves, real, set_errno};
use crate::account::{self, Reason};
use crate::{directory, mux, spin, table};

/// Runs when the library is loaded.
extern "C" fn loaded() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: both handlers only change words of the table.
        unsafe { libc::pthread_atfork(Some(before_fork), None, Some(in_child)) };
        // While the environment is still the program's original one.
        let _kept = (
            directory::runtime_directory(),
            mux::min_shm_bytes(),
            spin::max_spin(),
            account::is_enabled(),
        );
    });
}

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = loaded;

/// Runs when the program exits.
extern "C" fn unloaded() {
    if account::is_enabled() {
        for fd in table::listed_descriptors() {
            table::count(fd, true);
        }
        account::print();
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = unloaded;

unsafe extern "C" fn before_fork() {
    leave_all();
}

unsafe extern "C" fn in_child() {
    table::clear_owner();
    if account::is_enabled() {
        table::count_from_here();
    }
}

/// Stops records on all connections. Parent and child can both read what has arrived.
extern "C" fn leave_all() {
    let before = errno();
    for (_, connection) in table::all_connections() {
        let _both_read_what_has_come = connection.fall_back_to_tcp(Reason::of_call("fork"));
    }
    set_errno(before);
}

fn is_inherited(fd: RawFd) -> bool {
    let flags = borrowed(fd).map(rustix::io::fcntl_getfd);
    matches!(flags, Some(Ok(flags)) if !flags.contains(FdFlags::CLOEXEC))
}

/// Prepares for exec: returns 0 if it may proceed.
extern "C" fn leave_for_exec() -> c_int {
    leave_all();
    for (fd, connection) in table::all_connections() {
        // A child inherits more than it uses; its parent reads the rest.
        if (fd > 2 && !connection.is_of_this_process()) || !connection.has_unread() {
            continue;
        }
        drop(connection);
        if is_inherited(fd) && !leaves(fd, "exec") {
            return -1;
        }
    }
    0
}

type Words = *const *const c_char;

macro_rules! becoming {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            if leave_for_exec() != 0 {
                return -1;
            }
            // SAFETY: the caller's arguments are passed on unchanged.
            unsafe { real!($name: fn($($type),*) -> c_int)($($argument),*) }
        }
    )*};
}
becoming! {
    execve(path: *const c_char, arguments: Words, environment: Words);
    execv(path: *const c_char, arguments: Words);
    execvp(file: *const c_char, arguments: Words);
    execvpe(file: *const c_char, arguments: Words, environment: Words);
    fexecve(fd: c_int, arguments: Words, environment: Words);
    execveat(folder: c_int, path: *const c_char, arguments: Words, environment: Words, flags: c_int);
}

macro_rules! starting {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            leave_all();
            // SAFETY: the caller's arguments are passed on unchanged.
            unsafe { real!($name: fn($($type),*) -> $result)($($argument),*) }
        }
    )*};
}
starting! {
    posix_spawn(pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Words, environment: Words) -> c_int;
    posix_spawnp(pid: *mut c_int, file: *const c_char, actions: *const c_void, attributes: *const c_void, arguments: Words, environment: Words) -> c_int;
    system(command: *const c_char) -> c_int;
    popen(command: *const c_char, mode: *const c_char) -> *mut c_void;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut c_void,
    fd: c_int,
    new: c_int,
) -> c_int {
    // The child makes the copy without a call that is intercepted.
    if !leaves(fd, "posix_spawn_file_actions_adddup2") {
        return libc::ENOMEM;
    }
    let real = real!(posix_spawn_file_actions_adddup2: fn(*mut c_void, c_int, c_int) -> c_int);
    // SAFETY: the caller's arguments are passed on unchanged.
    unsafe { real(actions, fd, new) }
}

/// Functions with variable arguments, and `vfork`, which returns twice: registers and stack must
/// be as the caller left them when the C library's function is entered.
#[cfg(target_arch = "x86_64")]
mod entered {
    use std::arch::naked_asm;
    use std::sync::atomic::AtomicUsize;

    use super::{c_int, leave_all, leave_for_exec, table};
    use crate::calls::address;

    macro_rules! enter {
        ($($name:ident, $before:ident, $find:ident, $text:literal;)*) => {$(
            extern "C" fn $find() -> usize {
                static FOUND: AtomicUsize = AtomicUsize::new(0);
                address(&FOUND, $text)
            }

            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() -> c_int {
                naked_asm!(
                    "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                    "call {before}",
                    "test eax, eax",
                    "jne 2f",
                    "call {find}",
                    "mov r11, rax",
                    "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                    "jmp r11",
                    "2:",
                    "add rsp, 56",
                    "mov eax, -1",
                    "ret",
                    before = sym $before,
                    find = sym $find,
                )
            }
        )*};
    }

    extern "C" fn leave_for_child() -> c_int {
        leave_all();
        table::guard_against_vfork();
        0
    }

    enter! {
        execl, leave_for_exec, find_execl, c"execl";
        execlp, leave_for_exec, find_execlp, c"execlp";
        execle, leave_for_exec, find_execle, c"execle";
        vfork, leave_for_child, find_vfork, c"vfork";
    }
}

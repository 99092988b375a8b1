//! Paths in `/dev/dipole`: opening one opens an endpoint. `docs/design/sockets.md` §5.
//!
//! The program gets one end of a unix socket pair, an ordinary descriptor that it may poll,
//! duplicate, and pass to other programs. The other end belongs to a separate process that owns
//! the endpoint (`dipole endpoint-file`).

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::ptr;

use libc::{FILE, c_char, c_int, c_long, mode_t};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair, sockopt};

use super::{borrowed, detached, guarded, real, set_errno};

const FOLDER: &[u8] = b"/dev/dipole/";
/// Environment variable with the program that serves the paths, set by `dipole sockets`.
const PROGRAM: &str = "DIPOLE_PROGRAM";
/// Requested maximum size of a single write.
const LONGEST_WRITE: usize = 1 << 20;

/// The part of a path after the directory.
///
/// # Safety
/// `path` is null or NUL-terminated.
unsafe fn endpoint_path<'a>(path: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller's guarantee; the C library would read it next.
    let path = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })?;
    path.to_bytes().strip_prefix(FOLDER)
}

fn report(place: &[u8], text: &str) {
    let place = String::from_utf8_lossy(place);
    let text = format!("dipole-sockets: /dev/dipole/{place}: {text}\n");
    if let Some(stderr) = borrowed(libc::STDERR_FILENO) {
        let _ = rustix::io::write(stderr, text.as_bytes());
    }
}

/// Opens an endpoint; returns -1 and sets `errno` as `open` does.
fn open_endpoint(place: &[u8], flags: c_int) -> c_int {
    match guarded(|| start(place, flags)) {
        Ok(fd) => fd.into_raw_fd(),
        Err(error) => {
            set_errno(error.raw_os_error());
            -1
        }
    }
}

fn start(place: &[u8], flags: c_int) -> Result<OwnedFd, Errno> {
    let sends = place.contains(&b':');
    let (wanted, what) = match sends {
        true => (libc::O_WRONLY, "it is write-only: NID:DPID sends"),
        false => (libc::O_RDONLY, "it is read-only: DPID alone receives"),
    };
    if flags & libc::O_ACCMODE != wanted {
        report(place, what);
        return Err(Errno::ACCESS);
    }
    let Some(program) = std::env::var_os(PROGRAM).filter(|program| !program.is_empty()) else {
        report(
            place,
            "DIPOLE_PROGRAM is not set; start the program with `dipole sockets`",
        );
        return Err(Errno::NXIO);
    };
    let program = CString::new(program.into_vec()).map_err(|_| Errno::INVAL)?;
    let argument = CString::new(place).map_err(|_| Errno::INVAL)?;
    let kind = match sends {
        true => SocketType::SEQPACKET,
        false => SocketType::STREAM,
    };
    let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    if sends {
        let forced = sockopt::set_socket_send_buffer_size_force(&ours, LONGEST_WRITE);
        if forced.is_err() {
            let _less = sockopt::set_socket_send_buffer_size(&ours, LONGEST_WRITE);
        }
    } else {
        // Acknowledges a clean end, see `dipole endpoint-file`.
        rustix::net::send(&ours, &[0], SendFlags::NOSIGNAL)?;
    }
    run(&program, &argument, &theirs)?;
    drop(theirs);
    let mut answer = [0; 4];
    let told = rustix::io::retry_on_intr(|| rustix::io::read(&ours, &mut answer))?;
    match i32::from_ne_bytes(answer) {
        _ if told < answer.len() => {
            let program = program.to_string_lossy();
            report(place, &format!("{program} did not start ({PROGRAM})"));
            return Err(Errno::NXIO);
        }
        0 => {}
        error => return Err(Errno::from_raw_os_error(error)),
    }
    if flags & libc::O_CLOEXEC == 0 {
        rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::empty())?;
    }
    if flags & libc::O_NONBLOCK != 0 {
        rustix::io::ioctl_fionbio(&ours, true)?;
    }
    Ok(ours)
}

/// Runs `PROGRAM endpoint-file PLACE` with a socket as standard input, detached from this
/// process, so that the program's own `wait` calls do not find it.
fn run(program: &CStr, place: &CStr, socket: &OwnedFd) -> Result<(), Errno> {
    let words = [program, c"endpoint-file", place];
    let mut arguments: Vec<*const c_char> = words.map(CStr::as_ptr).to_vec();
    arguments.push(ptr::null());
    let environment: Vec<CString> = std::env::vars_os()
        .filter(|(name, _)| name != "LD_PRELOAD")
        .filter_map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            CString::new(name.into_vec()).ok()
        })
        .collect();
    let mut variables: Vec<*const c_char> = environment.iter().map(|one| one.as_ptr()).collect();
    variables.push(ptr::null());
    let socket = socket.as_raw_fd();
    // SAFETY: it makes only system calls on memory prepared before.
    unsafe { detached::spawn(|| become_server(socket, &arguments, &variables)) }
}

/// # Safety
/// The process is a copy that runs nothing else; both lists end with a null pointer.
unsafe fn become_server(socket: c_int, arguments: &[*const c_char], variables: &[*const c_char]) {
    const FIRST: c_long = 3;
    let none = 0_u64;
    // SAFETY: system calls with memory that lives as long as the process.
    unsafe {
        let how = libc::SIG_SETMASK;
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const none,
            0,
            size_of::<u64>(),
        );
        let null = libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/dev/null".as_ptr(),
            libc::O_RDWR,
        );
        libc::syscall(libc::SYS_dup3, socket, 0, 0);
        libc::syscall(libc::SYS_dup3, null, 1, 0);
        libc::syscall(libc::SYS_close_range, FIRST, c_long::from(u32::MAX), 0);
        let (arguments_at, variables_at) = (arguments.as_ptr(), variables.as_ptr());
        libc::syscall(libc::SYS_execve, arguments[0], arguments_at, variables_at);
        libc::syscall(libc::SYS_exit_group, 127);
    }
}

/// Functions that open a path. Their mode, if any, is passed on: in C it is a variadic argument.
macro_rules! opening {
    ($($name:ident($($before:ident: $type:ty)?; $flags:ident $(, $mode:ident)?);)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            $($before: $type,)? path: *const c_char, $flags: c_int $(, $mode: mode_t)?
        ) -> c_int {
            // SAFETY: the caller's arguments are passed on unchanged.
            unsafe {
                if let Some(place) = endpoint_path(path) {
                    return open_endpoint(place, $flags);
                }
                real!($name: fn($($type,)? *const c_char, c_int $(, opening!(@ $mode))?) -> c_int)(
                    $($before,)? path, $flags $(, $mode)?
                )
            }
        }
    )*};
    (@ $mode:ident) => { mode_t };
}
opening! {
    open(; flags, mode);
    open64(; flags, mode);
    __open_2(; flags);
    __open64_2(; flags);
    openat(folder: c_int; flags, mode);
    openat64(folder: c_int; flags, mode);
    __openat_2(folder: c_int; flags);
    __openat64_2(folder: c_int; flags);
}

macro_rules! streams {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            // SAFETY: the caller's arguments, passed on; `mode` ends with a zero.
            unsafe {
                let Some(place) = endpoint_path(path).filter(|_| !mode.is_null()) else {
                    return real!($name: fn(*const c_char, *const c_char) -> *mut FILE)(path, mode);
                };
                let words = CStr::from_ptr(mode).to_bytes();
                let access = match (words.contains(&b'+'), words.first()) {
                    (true, _) => libc::O_RDWR,
                    (_, Some(b'r')) => libc::O_RDONLY,
                    _ => libc::O_WRONLY,
                };
                let on_exec = if words.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
                let fd = open_endpoint(place, access | on_exec);
                if fd < 0 {
                    return ptr::null_mut();
                }
                real!(fdopen: fn(c_int, *const c_char) -> *mut FILE)(fd, mode)
            }
        }
    )*};
}
streams! { fopen fopen64 }

/// Both names are the same function on 64-bit machines.
macro_rules! creating {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, mode: mode_t) -> c_int {
            // SAFETY: the caller's arguments are passed on unchanged.
            unsafe {
                match endpoint_path(path) {
                    Some(place) => open_endpoint(place, libc::O_WRONLY),
                    None => real!($name: fn(*const c_char, mode_t) -> c_int)(path, mode),
                }
            }
        }
    )*};
}
creating! { creat creat64 }

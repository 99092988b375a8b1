//! `dipole sockets`: runs a program whose large writes inside this node use shared memory.

mod program;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use dipole_bench::SOCKETS_MIN_BYTES;
use dipole_model::Choices;

use crate::output::Failure;
use program::Obstacle;

/// Run a program whose TCP connections within this node send large writes through shared memory
///
/// Both ends must run this way, as the same user; all other connections are ordinary TCP. The program is
/// not changed: it replaces this process, with libdipole-sockets.so in LD_PRELOAD. Programs that cannot
/// use the library (static, musl, Go, AddressSanitizer) run over plain TCP, after a line on standard error.
#[derive(Args, Debug)]
pub(crate) struct SocketsArgs {
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    command: Vec<OsString>,
}

const PRELOAD: &str = "LD_PRELOAD";

/// Libraries to preload: this one before those of the user, or after them if the sanitizer is among them.
fn preload(library: &Path) -> Result<OsString, Failure> {
    // The loader accepts a list, with both characters as separators.
    if library.to_string_lossy().contains([' ', ':']) {
        let library = library.display();
        return Err(Failure::from(format!(
            "{library} cannot be preloaded: its path has a space or a colon; install it elsewhere"
        )));
    }
    let own = library.as_os_str();
    let others = std::env::var_os(PRELOAD).filter(|others| !others.is_empty());
    let parts = match &others {
        None => return Ok(own.to_owned()),
        Some(others) if names_sanitizer(others) => [others, own],
        Some(others) => [own, others],
    };
    Ok(parts.join(OsStr::new(":")))
}

fn names_sanitizer(libraries: &OsStr) -> bool {
    libraries.to_string_lossy().contains("asan")
}

/// Reports why a program will not use the library; true if it would not even start with it.
fn report(program: &OsStr) -> bool {
    let Some(obstacle) = program::obstacle(program) else {
        return false;
    };
    let preloaded = std::env::var_os(PRELOAD).unwrap_or_default();
    let hint = match &obstacle {
        Obstacle::AddressSanitizer { .. } if names_sanitizer(&preloaded) => return false,
        Obstacle::AddressSanitizer { library } => {
            format!("; to use the library anyway, set LD_PRELOAD={library}")
        }
        _ => String::new(),
    };
    let program = program.to_string_lossy();
    eprintln!("dipole sockets: {program} {obstacle}; it runs over plain TCP{hint}");
    obstacle.is_fatal()
}

/// The shortest write through shared memory that `dipole calibrate` has found, unless the user has
/// set another.
fn calibrated_bytes() -> Option<usize> {
    if std::env::var_os(SOCKETS_MIN_BYTES).is_some() {
        return None;
    }
    let directory = dipole_node::profile_dir()?;
    match Choices::load(&directory, "shm") {
        Ok(choices) => choices.socket_bytes,
        Err(error) => {
            eprintln!("dipole sockets: {error}; using default settings");
            None
        }
    }
}

pub(crate) fn execute(args: &SocketsArgs) -> Result<ExitCode, Failure> {
    let library = dipole_bench::sockets_library().ok_or_else(|| {
        Failure::from(
            "libdipole-sockets.so is not installed with this program; `cargo xtask install` does",
        )
    })?;
    let (program, arguments) = args.command.split_first().ok_or("no program is given")?;
    let own = std::env::current_exe()
        .map_err(|cause| Failure::from(format!("this program's own path: {cause}")))?;
    let mut command = std::process::Command::new(program);
    command.args(arguments).env("DIPOLE_PROGRAM", own);
    if let Some(bytes) = calibrated_bytes() {
        command.env(SOCKETS_MIN_BYTES, bytes.to_string());
    }
    let preload = preload(&library)?;
    if !report(program) {
        command.env(PRELOAD, preload);
    }
    let cause = command.exec();
    let program = program.to_string_lossy();
    Err(Failure::with_status(
        127,
        format!("cannot run {program}: {cause}; give a program of PATH or its path"),
    ))
}

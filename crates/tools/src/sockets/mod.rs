//! `dipole sockets`: runs a program whose large writes inside this node use shared memory.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::output::Failure;

/// Run a program whose TCP connections within this node send large writes through shared memory
///
/// Both ends must run this way, as the same user; all other connections are ordinary TCP. The program is
/// not changed: it replaces this process, with libdipole-sockets.so in LD_PRELOAD.
#[derive(Args, Debug)]
pub(crate) struct SocketsArgs {
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_names = ["PROGRAM", "ARGS"])]
    command: Vec<OsString>,
}

/// The library that belongs to this program: installed with it, or built next to it.
fn library() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.canonicalize().ok()?;
    let folder = program.parent()?;
    let installed = folder.join("../lib/libdipole-sockets.so");
    let built = folder.join("libdipole_sockets.so");
    [installed, built]
        .into_iter()
        .find_map(|path| path.canonicalize().ok())
}

pub(crate) fn execute(args: &SocketsArgs) -> Result<ExitCode, Failure> {
    let library = library().ok_or_else(|| {
        Failure::from(
            "libdipole-sockets.so is not installed with this program; `cargo xtask install` does",
        )
    })?;
    let mut preload = library.clone().into_os_string();
    // The loader accepts a list, with both characters as separators.
    if preload.to_string_lossy().contains([' ', ':']) {
        let library = library.display();
        return Err(Failure::from(format!(
            "{library} cannot be preloaded: its path has a space or a colon; install it elsewhere"
        )));
    }
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let (program, arguments) = args.command.split_first().ok_or("no program is given")?;
    let own = std::env::current_exe()
        .map_err(|cause| Failure::from(format!("this program's own path: {cause}")))?;
    let cause = std::process::Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", preload)
        .env("DIPOLE_PROGRAM", own)
        .exec();
    let program = program.to_string_lossy();
    Err(Failure::with_status(
        127,
        format!("cannot run {program}: {cause}; give a program of PATH or its path"),
    ))
}

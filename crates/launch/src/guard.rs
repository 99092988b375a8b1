//! Two small programs that ensure that no process is left behind.
//!
//! `guard` is the parent of a host's shim (or of the remote shell that reaches it). When that ends
//! in any way, or the guard's own parent ends, it kills everything below. The shim does the same
//! when its guard dies, so a `kill -9` of any of them leaves nothing. `rank-exec` becomes a rank's
//! program after setting its parent death signal, so that the kernel kills the rank with the shim.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;
use dipole_checkpoint::{Chain, restore};
use dipole_naming::environment;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getppid, pidfd_open, set_parent_process_death_signal,
    waitpid,
};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::descendants;
use super::message::Ending;

/// How long the shim may clean up by itself after the launcher has died.
const LAST_WORK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Arguments of the hidden subcommand `guard`.
#[derive(Args, Debug)]
pub struct GuardArgs {
    /// Process that started this one; absent where process ids are not shared.
    #[arg(long)]
    parent: Option<u32>,
    /// Number of ranks that the shim may start.
    #[arg(long)]
    max_ranks: Option<u32>,
    /// Command to run; the shim if absent.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Arguments of the hidden subcommand `rank-exec`.
#[derive(Args, Debug)]
pub struct RankExecArgs {
    /// Process that started this one.
    #[arg(long)]
    parent: u32,
    /// Rank of this process.
    #[arg(long)]
    rank: u32,
    /// Cores that it may run on; all if empty.
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Image that it continues from, instead of starting the program.
    #[arg(long)]
    image: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

/// Runs a command and kills all processes that it leaves.
pub fn guard(args: GuardArgs) -> ExitCode {
    match try_guard(args) {
        Ok(status) => ExitCode::from(status),
        Err(cause) => {
            eprintln!("dipole guard: {cause}");
            descendants::end_all();
            ExitCode::FAILURE
        }
    }
}

fn try_guard(args: GuardArgs) -> std::io::Result<u8> {
    descendants::adopt_orphans()?;
    let parent = watch_parent(args.parent)?;
    let mut command = match args.command.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments);
            command
        }
        None => {
            let mut command = Command::new(std::env::current_exe()?);
            command
                .arg("shim")
                .arg("--parent")
                .arg(std::process::id().to_string());
            if let Some(max) = args.max_ranks {
                command.args(["--max-ranks", &max.to_string()]);
            }
            command
        }
    };
    let child = command.spawn().map_err(|cause| {
        let program = command.get_program().display();
        std::io::Error::other(format!("cannot start `{program}`: {cause}"))
    })?;
    drop(command);
    let pid = Pid::from_child(&child);
    let ended = pidfd_open(pid, PidfdFlags::empty())?;
    let mut watched = vec![PollFd::new(&ended, PollFlags::IN)];
    watched.extend(parent.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
    while let Err(error) = poll(&mut watched, None) {
        if error != rustix::io::Errno::INTR {
            return Err(error.into());
        }
    }
    let status = match waitpid(Some(pid), WaitOptions::NOHANG)? {
        Some((_, status)) => Ending::from(status).status(),
        // Our parent died first. The shim notices this, too, and removes images from memory.
        None => {
            let _ended = poll(&mut watched[..1], Some(&LAST_WORK));
            128 + 9
        }
    };
    descendants::end_all();
    Ok(status)
}

/// A descriptor that becomes readable when our parent dies; `None` if it is in another pid
/// namespace.
pub(super) fn watch_parent(expected: Option<u32>) -> std::io::Result<Option<OwnedFd>> {
    let Some(parent) = getppid() else {
        return Ok(None);
    };
    // If the parent has already died, the kernel has assigned another.
    if expected.is_some_and(|pid| parent.as_raw_nonzero().get().cast_unsigned() != pid) {
        return Err(std::io::Error::other(
            "the process that started this is gone",
        ));
    }
    Ok(pidfd_open(parent, PidfdFlags::empty()).ok())
}

/// Becomes the process in an image.
fn continue_from(rank: u32, image: &Path) -> ExitCode {
    let ours = |(name, value): (OsString, OsString)| {
        let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
        name.starts_with("DIPOLE_").then_some((name, value))
    };
    let environment: Vec<_> = std::env::vars_os().filter_map(ours).collect();
    let error = match Chain::open(image) {
        Ok(images) => match restore(images, &environment) {
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    };
    eprintln!("dipole run: rank {rank} cannot continue from its image: {error}");
    ExitCode::from(NOT_RESTORED)
}

/// Variable with the folder of the job's checkpoints, for the ranks.
pub(crate) const FOLDER: &str = "DIPOLE_CHECKPOINT_DIR";
/// Exit status of a rank that cannot continue from its image.
pub(crate) const NOT_RESTORED: u8 = 125;

/// Becomes the program of a rank.
pub fn rank_exec(args: &RankExecArgs) -> ExitCode {
    let orphaned = set_parent_process_death_signal(Some(Signal::KILL)).is_err()
        || watch_parent(Some(args.parent)).is_err();
    if orphaned {
        return ExitCode::FAILURE;
    }
    if !args.cores.is_empty() {
        let mut set = CpuSet::new();
        for core in args.cores.iter().filter(|core| **core < CpuSet::MAX_CPU) {
            set.set(*core);
        }
        if let Err(cause) = sched_setaffinity(None, &set) {
            eprintln!(
                "dipole run: rank {} is not bound to its cores: {cause}",
                args.rank
            );
        }
    }
    if let Some(image) = &args.image {
        return continue_from(args.rank, image);
    }
    if environment::variable(FOLDER).is_some() {
        let connection = environment::variable("PMI_FD");
        dipole_checkpoint::close_inherited(connection.and_then(|number| number.parse().ok()));
    }
    let (program, arguments) = args
        .command
        .split_first()
        .expect("the argument parser requires a program");
    let cause = Command::new(program)
        .args(arguments)
        .stdin(Stdio::inherit())
        .exec();
    eprintln!(
        "dipole run: cannot start `{}` as rank {}: {cause}; is it there, and executable?",
        program.display(),
        args.rank
    );
    // The exit codes that shells use.
    ExitCode::from(if cause.kind() == std::io::ErrorKind::NotFound {
        127
    } else {
        126
    })
}

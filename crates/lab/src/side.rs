//! One process of a crowd or an incast: this program, started again.

use std::io;
use std::process::ExitCode;

use dipole_bench::control::Verdict;
use dipole_bench::stdio::{recv, send};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::task::Task;
use crate::{crowd, incast};

/// Reads a task from standard input and executes it.
pub(crate) fn run() -> ExitCode {
    match execute().or_else(|error| send(&Verdict::Failed(error.to_string()))) {
        Ok(()) => ExitCode::SUCCESS,
        // The parent has exited, so the error cannot be reported.
        Err(_) => ExitCode::FAILURE,
    }
}

fn execute() -> io::Result<()> {
    // If the parent dies, this process must, too.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match recv()? {
        Task::Crowd(job) => crowd::process::take_part(&job),
        Task::Incast(job) => incast::process::take_part(&job),
    }
}

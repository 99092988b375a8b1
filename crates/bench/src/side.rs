//! One of the two processes of a measurement: this program, started again.

use std::io;
use std::process::ExitCode;
use std::thread;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::channel::{Channel, broken};
use crate::control::{Job, Outcome, Task, Verdict};
use crate::machine::{CpuTimes, enter_namespace};
use crate::peers::frames::Frames;
use crate::peers::readv::Readv;
use crate::peers::shm::Shm;
use crate::peers::udp::Udp;
use crate::peers::udp_gso::UdpGso;
use crate::peers::{pipe, tcp, unix};
use crate::soak;
use crate::stdio::{meet, recv, send};
use crate::subject::Subject;
use crate::work::{Kind, Role};
use crate::{calibrate, dipole, flow, machine, memory, mixed, pingpong, port};

/// Reads a job from standard input, executes it, and sends the result.
pub fn run() -> ExitCode {
    let told = measure().or_else(|error| send(&Verdict::Failed(error.to_string())));
    match told {
        Ok(()) => ExitCode::SUCCESS,
        // The parent has exited, so the error cannot be reported.
        Err(_) => ExitCode::FAILURE,
    }
}

fn measure() -> io::Result<()> {
    // If the parent dies, this side must, too.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match recv()? {
        Task::Side(job) => send(&Verdict::Done(measure_side(&job)?)),
        Task::Soak(core) => soak::run(core),
        Task::Calibrate(job, part) => calibrate::side::take_part(&job, &part, meet),
    }
}

fn measure_side(job: &Job) -> io::Result<Outcome> {
    if let Some(path) = &job.namespace {
        enter_namespace(path)?;
    }
    machine::pin(job.core)?;
    match job.subject {
        Subject::Dipole if job.work.kind == Kind::Mixed => {
            mixed::drive(dipole::open_two(job, meet)?, job)
        }
        Subject::BareTcpBlock if job.work.kind == Kind::Mixed => {
            mixed::drive(tcp::open_two(job, meet)?, job)
        }
        Subject::Dipole => drive(dipole::open(job, meet)?, job, job.role),
        Subject::DipolePort | Subject::DipolePorts => port::measure(job, meet),
        Subject::DipolePut | Subject::DipoleGet | Subject::DipoleAtomic => {
            memory::measure(job, meet)
        }
        Subject::BareUdpSpin | Subject::BareUdpBlock => drive(Udp::open(job, meet)?, job, job.role),
        Subject::BareUdpGso | Subject::BareUdpGsoCrc => {
            drive(UdpGso::open(job, meet)?, job, job.role)
        }
        Subject::BareBpf => drive(Frames::open(job, meet)?, job, job.role),
        Subject::BareTcpSpin | Subject::BareTcpBlock => drive(tcp::open(job, meet)?, job, job.role),
        Subject::BareUnixSpin | Subject::BareUnixBlock => {
            drive(unix::open(job, meet)?, job, job.role)
        }
        Subject::BarePipeSpin | Subject::BarePipeBlock => {
            drive(pipe::open(job, meet)?, job, job.role)
        }
        Subject::BareShm => {
            meet(Vec::new())?;
            drive_threads(job, Shm::pair(&job.work))
        }
        Subject::BareReadv => {
            meet(Vec::new())?;
            drive_threads(job, Readv::pair(&job.work))
        }
        Subject::External(external) => Err(broken(format!(
            "{} is not measured by this program",
            external.name
        ))),
    }
}

fn drive(mut channel: impl Channel + Send, job: &Job, role: Role) -> io::Result<Outcome> {
    let work = &job.work;
    let before = CpuTimes::own();
    let mut outcome = match (work.kind, role) {
        (Kind::Pingpong, Role::Lead) => pingpong::lead(&mut channel, work)?,
        (Kind::Pingpong, Role::Follow) => pingpong::follow(&mut channel, work)?,
        (_, Role::Lead) => flow::lead(&mut channel, work)?,
        (_, Role::Follow) => flow::follow(&mut channel, work)?,
    };
    channel.finish(&mut outcome)?;
    outcome.cpu = CpuTimes::own().since(before);
    Ok(outcome)
}

/// Runs both sides as threads of this process and adds their CPU times.
fn drive_threads<C: Channel + Send>(job: &Job, (lead, follow): (C, C)) -> io::Result<Outcome> {
    thread::scope(|scope| {
        let second = scope.spawn(move || {
            machine::pin(job.other_core)?;
            drive(follow, job, Role::Follow)
        });
        let first = drive(lead, job, Role::Lead);
        let second = second
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (mut first, second) = (first?, second?);
        first.cpu_ns_per_message += second.cpu_ns_per_message;
        Ok(first)
    })
}

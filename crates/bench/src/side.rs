//! One of the two processes of a measurement: the tool itself, started again.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::thread;

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::channel::{Channel, broken};
use super::control::{Job, Kind, Outcome, Ready, Role, Task, Verdict, name_of};
use super::peers::frames::Frames;
use super::peers::readv::Readv;
use super::peers::shm::Shm;
use super::peers::udp::Udp;
use super::peers::udp_gso::UdpGso;
use super::peers::{pipe, tcp, unix};
use super::subject::Subject;
use super::{calibrate, crowd, dipole, flow, incast, machine, memory, mixed, pingpong, port};

/// Reads a job from standard input, does it, and tells how it went.
pub(crate) fn run() -> ExitCode {
    let told = measure().or_else(|error| send(&Verdict::Failed(error.to_string())));
    match told {
        Ok(()) => ExitCode::SUCCESS,
        // The parent is gone; there is nobody left to tell.
        Err(_) => ExitCode::FAILURE,
    }
}

fn measure() -> io::Result<()> {
    // Whatever ends the parent ends this side too.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    match recv()? {
        Task::Side(job) => send(&Verdict::Done(measure_side(&job)?)),
        Task::Crowd(job) => crowd::process::take_part(&job),
        Task::Incast(job) => incast::process::take_part(&job),
        Task::Calibrate(job, lengths) => calibrate::side::take_part(&job, lengths.as_deref(), meet),
    }
}

fn measure_side(job: &Job) -> io::Result<Outcome> {
    if let Some(path) = &job.namespace {
        enter(path)?;
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
        Subject::BareUdpGso => drive(UdpGso::open(job, meet)?, job, job.role),
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
        installed => Err(broken(format!(
            "{} is measured by programs of its own",
            name_of(installed)
        ))),
    }
}

/// Enters a network namespace by its file.
pub(super) fn enter(path: &Path) -> io::Result<()> {
    let entered = File::open(path).and_then(|file| {
        let network = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(file.as_fd(), network)?)
    });
    entered.map_err(|error| {
        let name = path.display();
        let told = format!("cannot enter the namespace {name}: {error}");
        io::Error::new(error.kind(), told)
    })
}

fn drive(mut channel: impl Channel + Send, job: &Job, role: Role) -> io::Result<Outcome> {
    let work = &job.work;
    let mut outcome = match (work.kind, role) {
        (Kind::Pingpong, Role::Lead) => pingpong::lead(&mut channel, work)?,
        (Kind::Pingpong, Role::Follow) => pingpong::follow(&mut channel, work)?,
        (_, Role::Lead) => flow::lead(&mut channel, work)?,
        (_, Role::Follow) => flow::follow(&mut channel, work)?,
    };
    channel.finish(&mut outcome)?;
    Ok(outcome)
}

/// Both sides as threads of this process; their CPU times are added up.
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

/// Tells the parent this side's ports and waits for those of the other.
fn meet(ports: Vec<u16>) -> io::Result<Vec<u16>> {
    send(&Ready { ports })?;
    Ok(recv::<Ready>()?.ports)
}

pub(super) fn send(message: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, message)?;
    out.write_all(b"\n")?;
    out.flush()
}

pub(super) fn recv<T: DeserializeOwned>() -> io::Result<T> {
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line)? == 0 {
        return Err(broken(
            "the parent closed its end before it said what to do".to_owned(),
        ));
    }
    serde_json::from_str(&line)
        .map_err(|error| broken(format!("the parent said {:?}: {error}", line.trim_end())))
}

//! Starts the two sides of a program or tool and collects their output.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::process::{Pid, Signal, kill_process};

use crate::mpi::{Library, Network, Start};
use crate::peers::{Found, Peer, output};
use dipole_bench::control::Outcome;
use dipole_bench::failure::RunError;
use dipole_bench::launch::{Entry, SLACK};
use dipole_bench::machine::Cores;
use dipole_bench::statistics::as_float;
use dipole_bench::testbed::Testbed;
use dipole_bench::work::{Kind, Placement, Role, name_of};
use dipole_testbed::Pair;

/// Ports of following sides in a namespace. Each side uses new ones, because a used port cannot be
/// reused immediately.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
static USED: AtomicU16 = AtomicU16::new(0);
/// Messages of a trial, which determines the number for a measurement.
const TRIAL: u32 = 500;
const MOST_MESSAGES: f64 = 2e6;
/// Interval between checks for the result of a measurement.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Time for the following side to exit after the leading one, or after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// Runs one measurement of a peer.
pub(super) fn measure(
    found: &Found,
    entry: &Entry,
    testbed: &Testbed,
    cores: Cores,
) -> Result<Outcome, RunError> {
    let port = match testbed.namespace(entry.place, Role::Follow) {
        Some(_) => {
            let before = USED.fetch_add(2, Ordering::Relaxed);
            PORTS.start + before % (PORTS.end - PORTS.start)
        }
        None => free_port().map_err(|cause| failed("a free port", cause))?,
    };
    let scene = Scene {
        found,
        entry,
        testbed,
        cores,
        port,
        name: entry.subject.name(),
    };
    let size_bytes = as_float(entry.work.size_bytes as u64);
    let is_stream = entry.work.kind == Kind::Stream;
    match found.peer {
        Peer::Mpi(library) => scene.ranks(library),
        Peer::BspOnMpi => scene.ranks(found.library.unwrap_or(Library::OpenMpi)),
        Peer::ZeroMq => scene.zeromq(),
        Peer::Aeron => scene.aeron(),
        Peer::Libfabric => scene.counted(2.0, |scene, count| scene.fi_pingpong(count)),
        Peer::Ucx if is_stream => scene.counted(1.0, |scene, count| scene.ucx(count)),
        Peer::Ucx => scene.counted(2.0, |scene, count| scene.ucx(count)),
        Peer::Iperf3 => {
            let (text, _) = scene.iperf3()?;
            scene.understood(output::iperf3(&text, size_bytes), &text)
        }
        Peer::Sockperf => {
            let (text, cpu_ns) = scene.sockperf()?;
            let told = match is_stream {
                true => output::sockperf_stream(&text, size_bytes),
                false => output::sockperf_pingpong(&text),
            };
            let (mut outcome, messages) = scene.understood(told, &text)?;
            outcome.cpu_ns_per_message = cpu_ns / messages.max(1.0);
            Ok(outcome)
        }
    }
}

/// One measurement and its parameters.
struct Scene<'a> {
    found: &'a Found,
    entry: &'a Entry,
    testbed: &'a Testbed,
    cores: Cores,
    port: u16,
    name: String,
}

/// Result of a tool that sends a given number of messages.
struct Counted {
    outcome: Outcome,
    cpu_ns: f64,
    /// Time per message, including stalls.
    each_ns: f64,
}

/// When the leading side may start, and how the following side ends.
#[derive(Clone, Copy)]
enum Meeting {
    /// Immediately: the sides wait for each other, and both exit.
    Together,
    /// When the following side listens at this port. Both sides exit.
    Listening(u16),
    /// When the following side listens at this port, until it is terminated.
    Serving(u16),
}

impl Scene<'_> {
    /// Returns a command of one side: on its core, in its namespace, terminated with this process.
    fn command(&self, role: Role, program: &OsStr) -> Command {
        let mut command = ended_with_us("KILL");
        if let Some(namespace) = self.namespace(role) {
            command.args(["ip", "netns", "exec"]).arg(namespace);
        }
        let (core, _) = role.own_and_other(self.cores.lead, self.cores.follow);
        command
            .args(["taskset", "-c", &core.to_string()])
            .arg(program);
        command
    }

    fn namespace(&self, role: Role) -> Option<OsString> {
        let path = self.testbed.namespace(self.entry.place, role)?;
        path.file_name().map(OsStr::to_owned)
    }

    fn is_local(&self) -> bool {
        self.entry.place == Placement::OneNode
    }

    /// Returns the address of the following side.
    fn address(&self) -> String {
        let (_, other) = self.testbed.addresses(self.entry.place, Role::Lead);
        other.to_string()
    }

    fn own_address(&self) -> String {
        let (own, _) = self.testbed.addresses(self.entry.place, Role::Lead);
        own.to_string()
    }

    fn size(&self) -> String {
        self.entry.work.size_bytes.to_string()
    }

    /// Returns whole seconds, for tools that accept no fractions.
    fn whole_seconds(&self) -> String {
        self.entry
            .work
            .duration
            .as_secs_f64()
            .ceil()
            .max(1.0)
            .to_string()
    }

    /// Returns the arguments of our own programs: kind, length, seconds and cores.
    fn work(&self) -> [OsString; 5] {
        let Cores { lead, follow } = self.cores;
        [
            name_of(self.entry.work.kind).into(),
            self.size().into(),
            self.entry.work.duration.as_secs_f64().to_string().into(),
            lead.to_string().into(),
            follow.to_string().into(),
        ]
    }

    fn ranks(&self, library: Library) -> Result<Outcome, RunError> {
        let namespaces = [Role::Lead, Role::Follow].map(|role| self.namespace(role));
        let network = match namespaces {
            [Some(lead), Some(follow)] => Some(Network {
                namespaces: vec![lead, follow],
                subnet: Pair::SUBNET,
                interface: Pair::INTERFACE,
            }),
            _ => None,
        };
        let start = Start {
            ranks: 2,
            is_local: self.is_local(),
            gives_way: self.cores.are_one(),
            network,
        };
        let mut work = vec![self.found.program.clone().into_os_string()];
        work.extend(self.work());
        let (words, environment) = library.command(&start, &work);
        // The launcher terminates its ranks itself if it receives a signal that it can handle.
        let mut command = ended_with_us("TERM");
        if let Some(namespace) = self.namespace(Role::Lead) {
            command.args(["ip", "netns", "exec"]).arg(namespace);
        }
        command.args(words).envs(environment);
        let mut launcher = self.start(Role::Lead, command)?;
        let text = self.finished(&mut launcher)?;
        self.understood(output::program(&text), &text)
    }

    fn zeromq(&self) -> Result<Outcome, RunError> {
        let address = match self.is_local() {
            true => format!("ipc://{}", self.testbed.folder().join("zeromq").display()),
            false => format!("tcp://{}:{}", self.address(), self.port),
        };
        let side = |role: Role| {
            let (who, _) = role.own_and_other("lead", "follow");
            let mut command = self.command(role, self.found.program.as_os_str());
            command.args([who, &*address]).args(self.work());
            command
        };
        let (text, _) = self.both(side(Role::Follow), side(Role::Lead), Meeting::Together)?;
        self.understood(output::program(&text), &text)
    }

    fn aeron(&self) -> Result<Outcome, RunError> {
        // Its logs are memory that both sides map.
        let folders = ["lead", "follow"].map(|side| {
            let process = std::process::id();
            PathBuf::from(format!("/dev/shm/dipole-bench-{process}-aeron-{side}"))
        });
        let side = |role: Role| {
            let (who, _) = role.own_and_other("lead", "follow");
            let (folder, own, other) = match (self.is_local(), role) {
                (true, _) => (&folders[1], "aeron:ipc".to_owned(), "aeron:ipc".to_owned()),
                (false, Role::Lead) => (&folders[0], self.channel(false), self.channel(true)),
                (false, Role::Follow) => (&folders[1], self.channel(true), self.channel(false)),
            };
            let mut command = self.command(role, self.found.program.as_os_str());
            command
                .arg(who)
                .arg(folder)
                .args([own, other])
                .args(self.work());
            command
        };
        let told = self.both(side(Role::Follow), side(Role::Lead), Meeting::Together);
        for folder in &folders {
            let _may_be_gone = std::fs::remove_dir_all(folder);
        }
        let (text, _) = told?;
        self.understood(output::program(&text), &text)
    }

    /// Returns Aeron's channel of a side.
    fn channel(&self, is_follow: bool) -> String {
        let (address, port) = match is_follow {
            true => (self.address(), self.port),
            false => (self.own_address(), self.port.wrapping_add(1)),
        };
        format!("aeron:udp?endpoint={address}:{port}")
    }

    fn fi_pingpong(&self, count: u32) -> Result<Counted, RunError> {
        let provider = if self.is_local() { "shm" } else { "tcp" };
        let (count, size, port) = (count.to_string(), self.size(), self.port.to_string());
        let side = |role: Role| {
            let mut command = self.command(role, self.found.program.as_os_str());
            command.args(["-p", provider, "-e", "rdm", "-I", &*count, "-S", &*size]);
            match role {
                Role::Follow => command.args(["-B", &*port]),
                Role::Lead => command.args(["-P", &*port, &*self.address()]),
            };
            command
        };
        let meeting = Meeting::Listening(self.port);
        let (text, cpu_ns) = self.both(side(Role::Follow), side(Role::Lead), meeting)?;
        let outcome = self.understood(output::fi_pingpong(&text), &text)?;
        Ok(Counted {
            // The value is a mean, not a median.
            each_ns: outcome.one_way.map_or(0.0, |one_way| 2.0 * one_way.p50_ns),
            outcome,
            cpu_ns,
        })
    }

    fn ucx(&self, count: u32) -> Result<Counted, RunError> {
        let is_stream = self.entry.work.kind == Kind::Stream;
        let test = if is_stream { "tag_bw" } else { "tag_lat" };
        let (transports, device) = match (self.is_local(), self.namespace(Role::Lead)) {
            (true, _) => ("sm,self", "all"),
            (false, Some(_)) => ("tcp,self", Pair::INTERFACE),
            (false, None) => ("tcp,self", "lo"),
        };
        let (count, size, port) = (count.to_string(), self.size(), self.port.to_string());
        let side = |role: Role| {
            let mut command = self.command(role, self.found.program.as_os_str());
            command.env("UCX_TLS", transports);
            if device != "all" {
                command.env("UCX_NET_DEVICES", device);
            }
            command.args([
                "-t", test, "-s", &*size, "-n", &*count, "-w", "100", "-f", "-v",
            ]);
            command.args(["-p", &*port]);
            if role == Role::Lead {
                command.arg(self.address());
            }
            command
        };
        let meeting = Meeting::Listening(self.port);
        let (text, cpu_ns) = self.both(side(Role::Follow), side(Role::Lead), meeting)?;
        let told = match is_stream {
            true => output::ucx_stream(&text, as_float(self.entry.work.size_bytes as u64)).map(
                |outcome| {
                    (
                        1e9 / outcome.messages_per_s.unwrap_or(1.0).max(1.0),
                        outcome,
                    )
                },
            ),
            false => output::ucx_latency(&text).map(|(outcome, mean_ns)| (2.0 * mean_ns, outcome)),
        };
        let (each_ns, outcome) = self.understood(told, &text)?;
        Ok(Counted {
            outcome,
            cpu_ns,
            each_ns,
        })
    }

    /// Runs a tool that sends a given number of messages. A short trial shows how many fit the duration
    /// and the cost of starting, so that CPU time is that of each further message.
    fn counted(
        &self,
        messages_each: f64,
        run: impl Fn(&Self, u32) -> Result<Counted, RunError>,
    ) -> Result<Outcome, RunError> {
        let trial = run(self, TRIAL)?;
        let fitting = self.entry.work.duration.as_secs_f64() * 1e9 / trial.each_ns.max(1.0);
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it lies between two small numbers"
        )]
        let count = fitting.clamp(f64::from(2 * TRIAL), MOST_MESSAGES) as u32;
        let Counted {
            mut outcome,
            cpu_ns,
            ..
        } = run(self, count)?;
        let further = f64::from(count - TRIAL) * messages_each;
        // Below the resolution of CPU times the cost of starting cannot be separated.
        outcome.cpu_ns_per_message = match cpu_ns > trial.cpu_ns {
            true => (cpu_ns - trial.cpu_ns) / further,
            false => cpu_ns / (f64::from(count) * messages_each),
        };
        Ok(outcome)
    }

    fn iperf3(&self) -> Result<(String, f64), RunError> {
        let (address, port) = (self.address(), self.port.to_string());
        let mut follow = self.command(Role::Follow, self.found.program.as_os_str());
        follow.args(["-s", "-1", "-p", &*port, "-B", &*address]);
        let mut lead = self.command(Role::Lead, self.found.program.as_os_str());
        lead.args(["-c", &*address, "-p", &*port, "-l", &*self.size()]);
        lead.args(["-t", &*self.whole_seconds(), "-N", "-J"]);
        self.both(follow, lead, Meeting::Listening(self.port))
    }

    fn sockperf(&self) -> Result<(String, f64), RunError> {
        let (address, port) = (self.address(), self.port.to_string());
        let side = |role: Role, mode: &str| {
            let mut command = self.command(role, self.found.program.as_os_str());
            command.args([mode, "--tcp", "-i", &*address, "-p", &*port]);
            if !self.entry.work.block {
                command.arg("--nonblocked");
            }
            command
        };
        let mode = match self.entry.work.kind {
            Kind::Stream => "throughput",
            _ => "ping-pong",
        };
        let mut lead = side(Role::Lead, mode);
        lead.args(["-t", &*self.whole_seconds(), "-m", &*self.size()]);
        self.both(
            side(Role::Follow, "server"),
            lead,
            Meeting::Serving(self.port),
        )
    }

    /// Runs both sides to their end. Returns the output of the leading side and the CPU time of both.
    fn both(
        &self,
        follow: Command,
        lead: Command,
        meeting: Meeting,
    ) -> Result<(String, f64), RunError> {
        let before_ns = children_cpu_ns();
        let mut follow = self.start(Role::Follow, follow)?;
        if let Meeting::Listening(port) | Meeting::Serving(port) = meeting {
            self.await_listening(&mut follow, port)?;
        }
        let mut lead = self.start(Role::Lead, lead)?;
        let text = self.finished(&mut lead).map_err(|error| {
            // The side that failed first knows the reason.
            match follow.child.try_wait() {
                Ok(Some(status)) if !status.success() => follow.ended(&self.name),
                _ => error,
            }
        })?;
        match meeting {
            Meeting::Serving(_) => follow.end(),
            _ if follow.wait(GRACE) => {}
            _ => {
                let cause = format!("it was not done {} s after the other side", GRACE.as_secs());
                return Err(follow.failed(&self.name, &cause));
            }
        }
        Ok((text, children_cpu_ns() - before_ns))
    }

    fn start(&self, role: Role, command: Command) -> Result<Running, RunError> {
        Running::start(role, command).map_err(|cause| failed(&self.name, cause))
    }

    fn await_listening(&self, follow: &mut Running, port: u16) -> Result<(), RunError> {
        let begun = Instant::now();
        while !is_listening(follow.child.id(), port) {
            if !matches!(follow.child.try_wait(), Ok(None)) {
                return Err(follow.ended(&self.name));
            }
            if begun.elapsed() > SLACK {
                let cause = format!("it does not listen at port {port}");
                return Err(follow.failed(&self.name, &cause));
            }
            thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    /// Returns the output of a side, after it has exited successfully.
    fn finished(&self, side: &mut Running) -> Result<String, RunError> {
        let limit = self.entry.work.duration + SLACK;
        if !side.wait(limit) {
            let who = format!("{} of {}", side.who, self.name);
            return Err(RunError::Silent { who, waited: limit });
        }
        match side.child.wait() {
            Ok(status) if status.success() => Ok(text_of(&mut side.output)),
            _ => Err(side.ended(&self.name)),
        }
    }

    /// Returns a parsed result, or an error with the output.
    fn understood<T>(&self, told: Option<T>, text: &str) -> Result<T, RunError> {
        told.ok_or_else(|| {
            let last = text.lines().rev().find(|line| !line.trim().is_empty());
            let last = last.unwrap_or("nothing");
            failed(
                &self.name,
                format!("its figures were not found in what it printed, at last: {last}"),
            )
        })
    }
}

fn failed(who: &str, cause: impl ToString) -> RunError {
    RunError::Failed {
        who: who.to_owned(),
        cause: cause.to_string(),
    }
}

/// A running side; dropping it kills it.
struct Running {
    who: &'static str,
    child: Child,
    output: File,
    errors: File,
}

impl Running {
    fn start(role: Role, mut command: Command) -> io::Result<Running> {
        let (output, errors) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(errors.try_clone()?)
            .spawn();
        let (who, _) = role.own_and_other("leading side", "following side");
        Ok(Running {
            who,
            child: child.map_err(|cause| {
                io::Error::new(cause.kind(), format!("cannot start {program}: {cause}"))
            })?,
            output,
            errors,
        })
    }

    /// Waits for its exit for a limited time; true if it has exited.
    fn wait(&mut self, limit: Duration) -> bool {
        let begun = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begun.elapsed() > limit {
                return false;
            }
            thread::sleep(LOOK_EVERY);
        }
        true
    }

    /// Sends SIGTERM, and SIGKILL after a timeout.
    fn end(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Some(pid), Ok(None)) = (pid, self.child.try_wait()) {
            let _it_may_be_gone = kill_process(pid, Signal::TERM);
        }
        if !self.wait(GRACE) {
            let _it_may_be_gone = self.child.kill();
        }
        let _reaped = self.child.wait();
    }

    fn ended(&mut self, name: &str) -> RunError {
        let status = match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        self.failed(name, &format!("it ended with {status}"))
    }

    /// Returns an error with its last output, or the last error.
    fn failed(&mut self, name: &str, cause: &str) -> RunError {
        let words = [text_of(&mut self.errors), text_of(&mut self.output)];
        let said = || words.iter().flat_map(|text| text.lines().rev());
        let last = said()
            .find(|line| line.to_ascii_lowercase().contains("error"))
            .or_else(|| said().find(|line| !line.trim().is_empty()));
        let last = last.map_or_else(String::new, |last| format!(": {}", last.trim()));
        failed(&format!("{} of {name}", self.who), format!("{cause}{last}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns a command whose process gets this signal when our process dies.
fn ended_with_us(signal: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", signal, "--"]);
    command
}

fn text_of(file: &mut File) -> String {
    let mut text = Vec::new();
    match file.rewind().and_then(|()| file.read_to_end(&mut text)) {
        Ok(_) => String::from_utf8_lossy(&text).into_owned(),
        Err(error) => error.to_string(),
    }
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// True if a process listens at a TCP port in the network namespace of a process.
fn is_listening(process: u32, port: u16) -> bool {
    ["tcp", "tcp6"].into_iter().any(|kind| {
        let text = std::fs::read_to_string(format!("/proc/{process}/net/{kind}"));
        text.is_ok_and(|text| lists_listener(&text, port))
    })
}

/// Parses a line of /proc/net/tcp: number, own address, other address, state, where `0A` is LISTEN.
fn lists_listener(text: &str, port: u16) -> bool {
    let own = format!(":{port:04X}");
    text.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|address| address.ends_with(&own)) && words.nth(1) == Some("0A")
    })
}

/// Returns the CPU time of all exited children and their children.
fn children_cpu_ns() -> f64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0.0, |usage| {
        let used = usage.user_time() + usage.system_time();
        used.num_microseconds() as f64 * 1e3
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_told_from_a_connection_and_from_other_ports() {
        let text = "  sl  local_address rem_address   st tx_queue rx_queue tr\n   \
                    0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00\n   \
                    1: 0100007F:71AC 0100007F:0050 01 00000000:00000000 00\n";
        assert!(lists_listener(text, 0x1f90));
        assert!(!lists_listener(text, 0x71ac), "that is a connection");
        assert!(!lists_listener(text, 0x0050));
    }

    #[test]
    fn this_process_listens_where_it_says() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        assert!(is_listening(std::process::id(), port));
        drop(listener);
        // A child of another test has the socket until it starts its program.
        let begun = Instant::now();
        while is_listening(std::process::id(), port) {
            assert!(begun.elapsed() < Duration::from_secs(30), "it is closed");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_a_side_said_last_is_told_when_it_fails() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo first >&2; echo second >&2; exit 3"]);
        let mut side = Running::start(Role::Lead, command).expect("sh");
        assert!(side.wait(Duration::from_secs(30)));
        let error = side.ended("a tool").to_string();
        assert!(
            error.contains("leading side of a tool") && error.ends_with(": second"),
            "{error}"
        );
    }
}

//! `dipole-broker` grants BPF rings, and sockets for raw frames, to unprivileged processes, as far
//! as the administrator's file allows (`policy`).
//!
//! It needs CAP_BPF (programs and maps), CAP_NET_ADMIN (attaching programs to interfaces) and
//! CAP_NET_RAW (raw sockets), and writes no files except its two sockets. It checks:
//! - the client's user and groups, as the kernel reports them, against the policy (`grants`);
//! - that the client's UDP socket is the only owner of its address and port, in this network
//!   namespace and on an interface of the policy; this is checked again every second (`grants`);
//! - the size of a ring, and how many rings a user has, in whatever process they are (`live`);
//! - that a raw socket sends only from the client's own MAC address, address and port: a BPF
//!   program drops everything else (`programs`);
//! - the length and every field of a request, the rate of requests and the number of idle
//!   connections per user (`server`, `quota`).
//!
//! `fd_store` passes programs to the next broker through the service manager. The wire format and
//! the proof of ownership are in `dipole_bpf::grant`, which clients use, too.

#![forbid(unsafe_code)]

mod addresses;
mod fd_store;
mod grants;
mod live;
mod policy;
mod programs;
mod quota;
mod server;

use std::fs::Permissions;
use std::io::{self, IsTerminal};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use dipole_bpf::grant::{DEFAULT_PATH, channel, status};
use rustix::thread::CapabilitySet;
use signal_hook::consts::{SIGINT, SIGTERM};
use tracing::Level;

use grants::GrantTable;
use policy::{Policy, PolicyError};
use programs::InheritedPrograms;
use server::Server;

/// The policy, unless the command line names another file.
const DEFAULT_POLICY: &str = "/etc/dipole/interfaces.toml";
const USAGE: &str = "usage: dipole-broker [FILE]

Grants BPF rings, and sockets for raw frames, to unprivileged processes. FILE lists interfaces and
the users who may use them [default: /etc/dipole/interfaces.toml]; see dipole-broker(8).";

/// Why the broker cannot run.
#[derive(Debug, thiserror::Error)]
enum BrokerError {
    #[error("unexpected argument {word:?}\n{USAGE}")]
    Usage { word: String },
    #[error("DIPOLE_LOG is {text:?}; expected error, warn, info, debug or trace")]
    LogLevel { text: String },
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(
        "the broker needs {} to grant rings: run it as root, or as a service with \
         AmbientCapabilities",
        .missing.join(", ")
    )]
    MissingCapabilities { missing: Vec<&'static str> },
    #[error(
        "another broker grants rings at {path}: stop it, or set DIPOLE_BROKER to another path for \
         this broker and its clients"
    )]
    AlreadyRunning { path: PathBuf },
    #[error("{action} {path}: {cause}")]
    System {
        action: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
}

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let file = match words.next() {
        Some(word) if word == "--help" || word == "-h" => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some(word) if word == "--version" => {
            println!("dipole-broker {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        word => word,
    };
    let done = match words.next().or(file.clone().filter(starts_with_dash)) {
        Some(word) => Err(BrokerError::Usage {
            word: word.to_string_lossy().into_owned(),
        }),
        None => run(&file.map_or(DEFAULT_POLICY.into(), PathBuf::from)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dipole-broker: {error}");
            ExitCode::FAILURE
        }
    }
}

fn starts_with_dash(word: &std::ffi::OsString) -> bool {
    word.as_encoded_bytes().starts_with(b"-")
}

/// Grants rings until SIGTERM or SIGINT.
fn run(policy: &Path) -> Result<(), BrokerError> {
    start_log()?;
    let missing = missing_capabilities();
    if !missing.is_empty() {
        return Err(BrokerError::MissingCapabilities { missing });
    }
    let policy = Policy::load(policy)?;
    let path = std::env::var_os("DIPOLE_BROKER").filter(|path| !path.is_empty());
    let path = path.map_or(DEFAULT_PATH.into(), PathBuf::from);
    let sockets = Sockets::open(&path)?;
    let system = |action| {
        let path = path.clone();
        move |cause| BrokerError::System {
            action,
            path,
            cause,
        }
    };
    let inherited = InheritedPrograms::of(fd_store::inherited());
    let server = GrantTable::open(policy, inherited, Instant::now())
        .and_then(|grants| Server::new(&sockets, shutdown_signal()?, grants, &path));
    let server = server.map_err(system("cannot grant rings at"))?;
    tracing::info!(event = "broker-up", path = %path.display(), "broker started");
    fd_store::report_ready();
    let done = server.run();
    tracing::info!(event = "broker-down", path = %path.display(), "broker ends");
    done.map_err(system("cannot go on granting rings at"))
}

/// Log lines go to standard error.
fn start_log() -> Result<(), BrokerError> {
    let text = std::env::var("DIPOLE_LOG").unwrap_or_default();
    let level = match text.is_empty() {
        true => Level::INFO,
        false => text.parse().map_err(|_| BrokerError::LogLevel { text })?,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_target(false)
        .with_ansi(io::stderr().is_terminal())
        .init();
    Ok(())
}

/// Becomes readable after SIGTERM or SIGINT.
fn shutdown_signal() -> io::Result<UnixStream> {
    let (signalled, end) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, end.try_clone()?)?;
    }
    Ok(signalled)
}

/// The sockets of the broker, which are removed when it ends.
struct Sockets {
    path: PathBuf,
    /// Clients request rings here.
    clients: std::os::fd::OwnedFd,
    /// Root and the broker's own user read the status here.
    status: UnixListener,
}

impl Sockets {
    fn open(path: &Path) -> Result<Sockets, BrokerError> {
        let system = |action| {
            move |cause| BrokerError::System {
                action,
                path: path.to_owned(),
                cause,
            }
        };
        let folder = path.parent().unwrap_or(Path::new("/"));
        if !folder.exists() {
            let open_to_all = Permissions::from_mode(0o755);
            std::fs::create_dir_all(folder)
                .and_then(|()| std::fs::set_permissions(folder, open_to_all))
                .map_err(system("cannot create the directory of"))?;
        }
        if channel::connect(path).is_ok() {
            return Err(BrokerError::AlreadyRunning {
                path: path.to_owned(),
            });
        }
        // No process listens there: a broker that was killed left them.
        let status_path = status::socket_path(path);
        let _may_not_exist = std::fs::remove_file(path);
        let _may_not_exist = std::fs::remove_file(&status_path);
        let status = UnixListener::bind(&status_path).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let private = Permissions::from_mode(0o600);
            std::fs::set_permissions(&status_path, private).map(|()| listener)
        });
        let status = status.map_err(system("cannot report the status of"))?;
        Ok(Sockets {
            path: path.to_owned(),
            clients: channel::listen(path).map_err(system("cannot listen at"))?,
            status,
        })
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
        let _gone = std::fs::remove_file(status::socket_path(&self.path));
    }
}

/// Capabilities that are missing to grant anything.
fn missing_capabilities() -> Vec<&'static str> {
    let has =
        rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let needed = [
        ("CAP_BPF", CapabilitySet::BPF | CapabilitySet::SYS_ADMIN),
        ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
        ("CAP_NET_RAW", CapabilitySet::NET_RAW),
    ];
    let missing = needed.iter().filter(|(_, any)| !has.intersects(*any));
    missing.map(|(name, _)| *name).collect()
}

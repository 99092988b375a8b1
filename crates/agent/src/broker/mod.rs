//! The broker: an agent with capabilities grants rings, and sockets for raw frames, to processes
//! without privileges, as far as the administrator's file allows.
//!
//! [`policy`] is that file, [`server`] the thread that serves clients, [`quota`] limits what a user
//! may take, [`grants`] records who has what, [`programs`] is the kernel's part, [`live`] knows what
//! still exists of what was handed out, [`addresses`] which interface has which address.

mod addresses;
mod grants;
mod live;
mod policy;
mod programs;
mod quota;
mod server;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use dipole_bpf::grant::channel;
use dipole_node::variables;
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use grants::GrantTable;
use policy::{Policy, PolicyError};
pub(super) use programs::InheritedPrograms;
use server::Server;

/// Why nothing can be granted.
#[derive(Debug, thiserror::Error)]
pub(super) enum BrokerError {
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(
        "an agent needs {} to grant rings: run it as root or as a service with \
         AmbientCapabilities, or without --interfaces",
        .missing.join(", ")
    )]
    Unable { missing: Vec<&'static str> },
    #[error(
        "another agent grants rings at {path}: stop it, or set {} to another path for \
         this agent and its clients",
        variables::BROKER
    )]
    Taken { path: PathBuf },
    #[error("{doing} {path}: {cause}")]
    System {
        doing: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
}

/// What is granted now, for `dipole agent status`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct BrokerStatus {
    /// Where clients connect.
    pub(super) socket: String,
    pub(super) interfaces: Vec<InterfaceStatus>,
    /// Rings that exist, including those whose grants have ended.
    pub(super) rings: u32,
    /// Requests refused.
    pub(super) refused: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct InterfaceStatus {
    pub(super) name: String,
    /// Where the program is attached, if it is.
    pub(super) attached: Option<String>,
    pub(super) users: Vec<UserStatus>,
    /// Packets for granted rings since the program was attached, by outcome.
    pub(super) counters: BTreeMap<String, u64>,
    /// Frames of granted sockets that were dropped.
    pub(super) refused_frames: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct UserStatus {
    pub(super) uid: u32,
    pub(super) rings: u32,
    pub(super) bytes: u64,
    pub(super) senders: u32,
}

/// Grants rings until it is dropped.
pub(super) struct Broker {
    grants: Arc<Mutex<GrantTable>>,
    path: PathBuf,
    /// Its thread ends when this is closed.
    _shutdown: UnixStream,
}

impl Broker {
    /// Starts if there is a policy file and this process has the capabilities. Without them the
    /// default file is ignored, and a file that was named is an error.
    pub(super) fn start(
        given: Option<&Path>,
        path: &Path,
        kept: InheritedPrograms,
    ) -> Result<Option<Broker>, BrokerError> {
        let Some((file, asked_for)) = policy::locate(given) else {
            kept.forget();
            return Ok(None);
        };
        let missing = missing();
        if !missing.is_empty() && asked_for {
            return Err(BrokerError::Unable { missing });
        }
        if !missing.is_empty() {
            let file = file.display();
            tracing::debug!(%file, "no rings are granted: this agent lacks capabilities");
            return Ok(None);
        }
        let rules = Policy::load(&file)?;
        match Broker::open(path, rules, kept) {
            Err(error @ BrokerError::Taken { .. }) if !asked_for => {
                tracing::warn!("no rings are granted: {error}");
                Ok(None)
            }
            done => done.map(Some),
        }
    }

    fn open(path: &Path, rules: Policy, kept: InheritedPrograms) -> Result<Broker, BrokerError> {
        let system = |doing| {
            move |cause| BrokerError::System {
                doing,
                path: path.to_owned(),
                cause,
            }
        };
        let folder = path.parent().unwrap_or(Path::new("/"));
        if !folder.exists() {
            let open_to_all = Permissions::from_mode(0o755);
            std::fs::create_dir_all(folder)
                .and_then(|()| std::fs::set_permissions(folder, open_to_all))
                .map_err(system("making the directory of"))?;
        }
        if channel::connect(path).is_ok() {
            return Err(BrokerError::Taken {
                path: path.to_owned(),
            });
        }
        // Nobody answers there: a dead agent left it.
        let _may_not_exist = std::fs::remove_file(path);
        let listener = channel::listen(path).map_err(system("listening at"))?;
        let grants =
            GrantTable::open(rules, kept, Instant::now()).map_err(system("granting rings at"))?;
        let grants = Arc::new(Mutex::new(grants));
        let begun = UnixStream::pair().and_then(|(shutdown, seen)| {
            let server = Server::new(listener, seen, Arc::clone(&grants))?;
            let thread = std::thread::Builder::new().name("dipole-broker".to_owned());
            thread.spawn(move || {
                if let Err(cause) = server.run() {
                    tracing::error!(event = "failed", %cause, "the broker failed; no more rings are granted");
                }
            })?;
            Ok(shutdown)
        });
        let shutdown = begun.map_err(system("granting rings at"))?;
        tracing::info!(event = "broker-up", path = %path.display(), "broker started");
        Ok(Broker {
            grants,
            path: path.to_owned(),
            _shutdown: shutdown,
        })
    }

    pub(super) fn status(&self) -> BrokerStatus {
        let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        grants.status(self.path.display().to_string())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

/// Capabilities that are missing to grant anything.
fn missing() -> Vec<&'static str> {
    let has =
        rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    let wanted = [
        ("CAP_BPF", CapabilitySet::BPF | CapabilitySet::SYS_ADMIN),
        ("CAP_NET_ADMIN", CapabilitySet::NET_ADMIN),
        ("CAP_NET_RAW", CapabilitySet::NET_RAW),
    ];
    let lacking = wanted.iter().filter(|(_, any)| !has.intersects(*any));
    lacking.map(|(name, _)| *name).collect()
}

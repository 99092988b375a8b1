//! Which process owns which endpoint of this node, and at which ports: a directory of files, no
//! daemon.
//!
//! `<runtime>/node-<nid>/` holds one file per owner (a process, or one of the
//! nodes opened in it) and one symbolic link per endpoint that names its owner:
//!
//! ```text
//! registry.lock             held for microseconds by a process that changes the directory
//! directory.lock            held by the process that answers other nodes
//! agent.lock                held by the node's agent, if there is one; its pid
//! owner-4711-9f3c...        pid, command, ports, incarnation; locked while its owner lives
//! endpoint-7 -> owner-4711-9f3c...
//! key                       the key of a node without a hosts file
//! shm-1f2e...               socket at which an owner meets others of this node, by incarnation
//! edges-1f2e...             its edges and their traffic, while somebody watches
//! counters-1f2e...          its counters, some hundred milliseconds old
//! links-1f2e...             how it reaches its peers
//! nodes                     the nodes that the agent knows, a hosts file that it keeps
//! ```
//!
//! An owner holds an exclusive `flock` on its file from before the file becomes visible until
//! the process dies, so the kernel tells living owners from dead ones: an entry that names an
//! unlocked owner is stale. `registry.lock` serialises changes, so exactly one process takes over
//! a stale entry; readers take no lock that anybody waits for. `kill -9` at any moment leaves only
//! files that the next process to open the registry removes.
//!
//! **Fork.** A child shares its parent's file descriptions and so its locks. The
//! child owns nothing: every handle remembers the pid it was made in and does
//! nothing in another. If the parent dies while a forked child that never
//! called `exec` lives on, the file stays locked; therefore the owner's pid and
//! start time are recorded and compared too (within one pid namespace).
//!
//! **Trust.** The directories belong to one user; the registry's own is closed to others.
//! A directory is refused if it belongs to another user, if others can write to it, or if others
//! could replace it because they can write to a parent that is not sticky. All files in it are
//! therefore this user's, and are trusted.

mod announcement;
mod answer;
mod count;
mod directory;
mod directory_lock;
mod edge_stats;
mod folder;
mod holder;
mod job_dir;
mod messages;
mod own_key;
mod owner;
mod probe;
mod report;
mod resolve;
mod sweep;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rand::TryRngCore;
use rand::rngs::OsRng;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::address::{Address, EndpointId, NodeId};
use crate::envelope::{Authenticator, Header};
use crate::key::ClusterKey;
use crate::limits::{LimitReached, UserLimits};

pub use announcement::{
    ANNOUNCEMENT_BYTES, Announcement, MAX_NAME_BYTES, NodeFacts, is_announcement, is_name,
};
pub use answer::version;
pub use directory::Directory;
pub use directory_lock::{DirectoryLock, DirectoryLockError};
pub use edge_stats::{EdgeStatsFile, EdgeTraffic, OwnerSurvey};
pub(crate) use job_dir::job_dir;
pub use messages::{Answer, Presence, ProbeLength, QUESTION_BYTES, Question};
pub use probe::{Prober, Reply};
pub use report::{Counters, LinkUse, ProcessReport, ReportFiles, report};
pub use resolve::{KnownBy, ResolveError, resolve};

/// Where a process can be reached, and its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// The address for small packets.
    pub small: SocketAddr,
    /// The address for bulk packets.
    pub bulk: SocketAddr,
    /// A random number drawn when the process registered; another process, or the same program
    /// started again, has another.
    pub incarnation: u64,
}

/// A living owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Its process id.
    pub pid: u32,
    /// Its command line, shortened, as it was at the start.
    pub command: String,
    /// Where to reach it.
    pub ports: Ports,
}

/// Why the registry cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The directory belongs to another user.
    #[error(
        "the runtime directory {path} belongs to uid {uid}, not to uid {expected_uid}; set \
         DIPOLE_RUNTIME_DIR to a directory of your own"
    )]
    ForeignOwner {
        /// The directory.
        path: PathBuf,
        /// Who owns it.
        uid: u32,
        /// Who we are.
        expected_uid: u32,
    },
    /// Others could change what is in the directory.
    #[error(
        "the runtime directory {path} can be changed by others (mode {mode:04o}); \
         `chmod go-w` it, or set DIPOLE_RUNTIME_DIR to another"
    )]
    OpenToOthers {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Others could put another directory in its place.
    #[error(
        "the runtime directory {path} could be replaced by others, who can write to {parent} (mode \
         {mode:04o}); `chmod +t` that, or set DIPOLE_RUNTIME_DIR to a directory elsewhere"
    )]
    LooseParent {
        /// The directory.
        path: PathBuf,
        /// One that it lies in.
        parent: PathBuf,
        /// The permissions of that.
        mode: u32,
    },
    /// The path is a symbolic link or no directory.
    #[error(
        "the runtime directory {path} is a symbolic link or no directory; set \
         DIPOLE_RUNTIME_DIR to a directory of your own"
    )]
    NoDirectory {
        /// The path.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("registry: {doing} {path}: {cause}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// The operating system's error.
        cause: io::Error,
    },
    /// Somebody holds `registry.lock` for far too long: a stopped process, most likely.
    #[error(
        "registry: {path} was held by somebody for {waited_ms} ms; `fuser` names the process, \
         let it go on (SIGCONT) or end it"
    )]
    Stuck {
        /// The lock file.
        path: PathBuf,
        /// How long we waited.
        waited_ms: u64,
    },
    /// The user has as many processes or endpoints here as they may.
    #[error(transparent)]
    Limit(LimitReached),
    /// A file of a living owner cannot be understood.
    #[error("registry: {path} is damaged ({reason}); end its owner and remove it")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// Why an endpoint could not be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process, or another node of this one, has it.
    #[error(
        "endpoint {address} is taken by process {pid} (`{command}`); choose another \
         number or end that process"
    )]
    Taken {
        /// Which endpoint.
        address: Address,
        /// The holder's process id.
        pid: u32,
        /// The holder's command line.
        command: String,
    },
    /// The registration was made by the parent of this process.
    #[error(
        "endpoint {address} cannot be opened here: this node was opened by process \
         {parent_pid} before fork; open a node of your own in the child"
    )]
    Forked {
        /// Which endpoint.
        address: Address,
        /// Who registered.
        parent_pid: u32,
    },
    /// The registry cannot be used.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}

/// The registry of one node, open for look-ups. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Registry {
    node: NodeId,
    folder: Arc<Path>,
    authenticator: Authenticator,
    limits: Arc<Limits>,
}

/// How many there may be.
#[derive(Debug)]
struct Limits {
    user: UserLimits,
    /// Endpoints of one registration.
    endpoints: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            user: UserLimits::default(),
            endpoints: u32::MAX,
        }
    }
}

impl Registry {
    /// Opens the registry of `node`, making its directories if need be, and
    /// sweeps what the dead have left.
    ///
    /// # Errors
    /// The directory cannot be made, is not ours, or is open to others.
    pub fn open(runtime_dir: &Path, node: NodeId) -> Result<Registry, RegistryError> {
        folder::make_private(runtime_dir)?;
        folder::check_way(runtime_dir)?;
        let path = runtime_dir.join(format!("node-{node}"));
        folder::make_own(&path)?;
        let registry = Registry {
            node,
            folder: path.into(),
            authenticator: Authenticator::default(),
            limits: Arc::default(),
        };
        registry.sweep()?;
        Ok(registry)
    }

    /// The same, of a cluster with this key: what other nodes ask it and tell it must prove
    /// that they hold the key.
    #[must_use]
    pub fn with_key(self, key: Option<&ClusterKey>) -> Registry {
        Registry {
            authenticator: Authenticator::new(key),
            ..self
        }
    }

    /// The same, with limits: so many endpoints for each registration, and all processes and endpoints
    /// together may be so many.
    #[must_use]
    pub fn with_limits(self, endpoints: u32, user: UserLimits) -> Registry {
        Registry {
            limits: Arc::new(Limits { user, endpoints }),
            ..self
        }
    }

    /// Seals packets to other nodes and opens theirs.
    #[must_use]
    pub fn authenticator(&self) -> &Authenticator {
        &self.authenticator
    }

    /// The node this is about.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The directory that holds it.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Announces this process, so that it may claim endpoints.
    ///
    /// # Errors
    /// The owner file cannot be written, or the user has as many processes as they may.
    pub fn register(&self, ports: Ports) -> Result<Registration, RegistryError> {
        let _guard = folder::lock(&self.folder)?;
        count::admit_process(&self.folder, &self.limits.user)?;
        let (name, file) = owner::create(&self.folder, &ports)?;
        Ok(Registration {
            inner: Arc::new(Registered {
                registry: self.clone(),
                path: self.folder.join(&name),
                name,
                pid: std::process::id(),
                claims: AtomicU32::new(0),
                _locked: file,
            }),
        })
    }

    /// Who owns `endpoint` now; `None` if nobody living does.
    ///
    /// # Errors
    /// The directory cannot be read, or a living owner's file is damaged.
    pub fn lookup(&self, endpoint: EndpointId) -> Result<Option<Owner>, RegistryError> {
        let link = self.link(endpoint);
        match std::fs::read_link(&link) {
            Ok(name) => owner::read_living(&self.folder, &name),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(folder::failed("reading", &link)(cause)),
        }
    }

    /// True if a living process of this node has this incarnation, whether it steps or not.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn lives(&self, incarnation: u64) -> Result<bool, RegistryError> {
        sweep::lives(&self.folder, incarnation)
    }

    /// The socket file at which a process of this node meets others.
    #[must_use]
    pub fn socket(&self, incarnation: u64) -> PathBuf {
        self.folder
            .join(format!("{SOCKET_PREFIX}{incarnation:016x}"))
    }

    /// The file in which a process shows its edges and their traffic.
    #[must_use]
    pub fn edge_stats_path(&self, incarnation: u64) -> PathBuf {
        self.folder
            .join(format!("{EDGES_PREFIX}{incarnation:016x}"))
    }

    /// The hosts file that the node's agent keeps for its programs.
    #[must_use]
    pub fn nodes_file(&self) -> PathBuf {
        self.folder.join(NODES_FILE)
    }

    /// The packet that announces this node.
    #[must_use]
    pub fn seal_announcement(&self, said: &Announcement) -> Vec<u8> {
        let header = Header {
            from: self.node,
            to: NodeId(0),
            nonce: 0,
        };
        self.authenticator
            .seal_to_length(header, said, ANNOUNCEMENT_BYTES)
    }

    /// The announcement in a packet, if it comes from a member of our cluster.
    #[must_use]
    pub fn open_announcement(&self, packet: &[u8]) -> Option<Announcement> {
        self.authenticator.open(packet).ok()?.read().ok()
    }

    /// Removes what the dead have left.
    ///
    /// # Errors
    /// The directory cannot be read or changed.
    pub fn sweep(&self) -> Result<(), RegistryError> {
        let _guard = folder::lock(&self.folder)?;
        sweep::sweep(&self.folder)
    }

    fn link(&self, endpoint: EndpointId) -> PathBuf {
        self.folder.join(format!("endpoint-{endpoint}"))
    }
}

const SOCKET_PREFIX: &str = "shm-";
const EDGES_PREFIX: &str = "edges-";
const COUNTERS_PREFIX: &str = "counters-";
const LINKS_PREFIX: &str = "links-";
const NODES_FILE: &str = "nodes";

/// Where the agent of a node, if it has one, keeps the nodes that it knows.
#[must_use]
pub fn nodes_file(runtime_dir: &Path, node: NodeId) -> PathBuf {
    runtime_dir.join(format!("node-{node}")).join(NODES_FILE)
}

/// A process that is announced in a registry; ends when it and its claims are dropped.
#[derive(Clone, Debug)]
pub struct Registration {
    inner: Arc<Registered>,
}

#[derive(Debug)]
struct Registered {
    registry: Registry,
    name: String,
    path: PathBuf,
    pid: u32,
    /// Endpoints taken; grows only while the registry is locked.
    claims: AtomicU32,
    /// Closing the last copy of this description frees the lock.
    _locked: File,
}

impl Registration {
    /// Takes an endpoint; of many who try at once exactly one gets it.
    ///
    /// # Errors
    /// - [`ClaimError::Taken`]: names the living holder.
    /// - [`ClaimError::Forked`]: this process is a child of the one that registered.
    /// - [`ClaimError::Registry`]: the directory cannot be changed, or a limit is reached
    ///   ([`RegistryError::Limit`]).
    pub fn claim(&self, endpoint: EndpointId) -> Result<Claim, ClaimError> {
        self.claim_and_open(endpoint, || {})
    }

    /// Like [`claim`](Self::claim); `open` runs once nobody else can take the endpoint and before
    /// anybody finds it, so that whoever does finds it open. It may have run if this fails.
    ///
    /// # Errors
    /// Those of `claim`.
    pub fn claim_and_open(
        &self,
        endpoint: EndpointId,
        open: impl FnOnce(),
    ) -> Result<Claim, ClaimError> {
        let registered = &self.inner;
        let registry = &registered.registry;
        let address = Address {
            node: registry.node,
            endpoint,
        };
        if registered.pid != std::process::id() {
            return Err(ClaimError::Forked {
                address,
                parent_pid: registered.pid,
            });
        }
        let link = registry.link(endpoint);
        let _guard = folder::lock(&registry.folder)?;
        if let Some(holder) = registry.lookup(endpoint)? {
            return Err(ClaimError::Taken {
                address,
                pid: holder.pid,
                command: holder.command,
            });
        }
        let limit = registry.limits.endpoints;
        if registered.claims.load(Ordering::Relaxed) >= limit {
            return Err(RegistryError::Limit(LimitReached::Endpoints { limit }).into());
        }
        folder::remove(&link)?;
        count::admit_endpoint(&registry.folder, &registry.limits.user)?;
        open();
        symlink(&registered.name, &link).map_err(folder::failed("writing", &link))?;
        registered.claims.fetch_add(1, Ordering::Relaxed);
        Ok(Claim {
            registered: Arc::clone(registered),
            link,
            endpoint,
        })
    }

    /// The registry this is in.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // In a forked child the file still belongs to the parent.
        if self.pid == std::process::id() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// An endpoint that is ours until this is dropped.
#[derive(Debug)]
pub struct Claim {
    registered: Arc<Registered>,
    link: PathBuf,
    endpoint: EndpointId,
}

impl Claim {
    /// Which endpoint.
    #[must_use]
    pub fn endpoint(&self) -> EndpointId {
        self.endpoint
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.registered.pid != std::process::id() {
            return;
        }
        // Only ours to remove while we live and it names us; both hold here, as
        // nobody takes over from an owner whose lock is held.
        let _ = std::fs::remove_file(&self.link);
        self.registered.claims.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes a shared lock for a moment; that it is refused shows an exclusive holder.
///
/// Shared, so that several who test at once do not take each other for the owner.
fn is_locked(file: &File) -> io::Result<bool> {
    match folder::flock(file, FlockOperation::NonBlockingLockShared) {
        Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(true),
        locked => locked?,
    }
    folder::flock(file, FlockOperation::Unlock)?;
    Ok(false)
}

/// A random number.
fn random_number() -> io::Result<u64> {
    OsRng.try_next_u64().map_err(io::Error::other)
}

#[cfg(test)]
mod tests;

//! The registry: which process owns which endpoint of this node, and at which ports. It is a
//! directory of files and needs no daemon.
//!
//! `<runtime>/node-<nid>/` holds one file per owner (a process, or one of the nodes opened in it)
//! and one symbolic link from each endpoint to its owner:
//!
//! ```text
//! registry.lock             held by a process that changes the directory
//! directory.lock            held by the process that answers other nodes
//! agent.lock                held by the node's agent, if there is one; its pid
//! owner-4711-9f3c...        pid, command, ports, incarnation; locked while its owner lives
//! endpoint-7 -> owner-4711-9f3c...
//! key                       the key of a node without a hosts file
//! shm-1f2e...               socket for shared memory connections, by incarnation
//! edges-1f2e...             its edges and their traffic, while a watcher requests them
//! counters-1f2e...          its counters, updated every few hundred milliseconds
//! links-1f2e...             its links to peers
//! nodes                     the nodes that the agent knows, as a hosts file
//! ```
//!
//! An owner holds an exclusive `flock` on its file from before the file becomes visible until
//! the process dies, which distinguishes live owners from dead ones: an entry of an unlocked owner
//! is stale. Processes hold `registry.lock` together while they create links, because the kernel
//! lets one of several create a link, and alone while they remove stale entries.
//! Readers take no lock that blocks others. `kill -9` at any moment leaves only files that the next
//! process to open the registry removes.
//!
//! **Fork.** A child shares its parent's file descriptions and so its locks. It owns nothing: every
//! handle remembers the pid in which it was created and does nothing in another process. If the
//! parent dies while a forked child without `exec` lives on, the file stays locked; therefore the
//! owner's pid and start time are recorded and compared too (within one pid namespace).
//!
//! **Trust.** The directories belong to one user, and the registry's own is closed to others. A
//! directory is rejected if it belongs to another user, if others can write to it, or if others
//! could replace it because they can write to a parent that is not sticky. All files in it are
//! therefore written by this user, and are trusted.

mod announcement;
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
mod pause;
mod probe;
mod report;
mod resolve;
mod responder;
mod rewritten;
mod search;
mod sweep;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
pub use directory::Directory;
pub use directory_lock::{DirectoryLock, DirectoryLockError};
pub use edge_stats::{EdgeStatsFile, EdgeTraffic, OwnerSurvey};
pub(crate) use folder::make_private;
pub(crate) use job_dir::{LAUNCHER_PREFIX, job_dir};
pub use messages::{Presence, ProbeLength, QUERY_BYTES, Query, Response};
pub use probe::{ProbeResult, Prober, source_towards};
pub use report::{Counters, LinkUse, ProcessReport, ReportFiles, report};
pub use resolve::{KnownBy, ResolveError};
pub use responder::version;
pub use search::{Found, Search, resolve};

/// Addresses of a process, and its incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// The address for small packets.
    pub small: SocketAddr,
    /// The address for bulk packets.
    pub bulk: SocketAddr,
    /// A random number drawn when the process registered. Another process, or the same program
    /// started again, has a different one.
    pub incarnation: u64,
}

/// Whether a process is alive, and whether it can answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// It is running, or waiting for something.
    Runs,
    /// It is alive, but stopped or frozen; or whether it is cannot be seen from here.
    Stopped,
    /// No living process has the incarnation.
    Ended,
}

/// A running process that owns an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    /// Its command line at the start, truncated.
    pub command: String,
    /// UDP addresses on which it receives packets.
    pub ports: Ports,
}

/// The advice for a directory that others can change. A sticky one, such as /tmp, is meant to be
/// shared.
fn remedy(mode: u32) -> &'static str {
    match mode & 0o1000 {
        0 => "`chmod go-w` it, or set DIPOLE_RUNTIME_DIR to another",
        _ => "set DIPOLE_RUNTIME_DIR to a directory in it that only you can change",
    }
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
        /// Path of the runtime directory.
        path: PathBuf,
        /// User id of the directory's owner.
        uid: u32,
        /// User id of this process.
        expected_uid: u32,
    },
    /// Other users can change the content of the directory.
    #[error(
        "the runtime directory {path} can be changed by others (mode {mode:04o}); {}",
        remedy(*mode)
    )]
    OpenToOthers {
        /// Path of the runtime directory.
        path: PathBuf,
        /// Permission bits of the directory.
        mode: u32,
    },
    /// Other users could replace the directory.
    #[error(
        "the runtime directory {path} could be replaced by others, who can write to {parent} (mode \
         {mode:04o}); `chmod +t` that, or set DIPOLE_RUNTIME_DIR to a directory elsewhere"
    )]
    LooseParent {
        /// Path of the runtime directory.
        path: PathBuf,
        /// The parent directory that others may write.
        parent: PathBuf,
        /// Permission bits of the parent.
        mode: u32,
    },
    /// Another user could replace the directory.
    #[error(
        "the runtime directory {path} could be replaced by uid {uid}, who owns {parent}; set \
         DIPOLE_RUNTIME_DIR to a directory elsewhere"
    )]
    ForeignParent {
        /// Path of the runtime directory.
        path: PathBuf,
        /// The parent directory.
        parent: PathBuf,
        /// User id of the parent's owner.
        uid: u32,
    },
    /// The path is a symbolic link, or not a directory.
    #[error(
        "the runtime directory {path} is a symbolic link or not a directory; set \
         DIPOLE_RUNTIME_DIR to a directory of your own"
    )]
    NoDirectory {
        /// Path of the file or directory.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error("registry: {doing} {path}: {cause}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// The operating system's error.
        cause: io::Error,
    },
    /// Another process holds `registry.lock` for far too long; it is probably stopped.
    #[error(
        "registry: another process holds {path} for {waited_ms} ms; `fuser` names the process, \
         continue it (SIGCONT) or end it"
    )]
    Stuck {
        /// Path of the lock file.
        path: PathBuf,
        /// How long we waited.
        waited_ms: u64,
    },
    /// A limit of the user is reached.
    #[error(transparent)]
    Limit(LimitReached),
    /// A file of a live owner is malformed.
    #[error("registry: {path} is damaged ({reason}); end its owner and remove it")]
    Corrupt {
        /// Path of the invalid file.
        path: PathBuf,
        /// Description of the fault.
        reason: &'static str,
    },
}

impl RegistryError {
    /// True if descriptors, memory or the like were short: a later attempt may succeed.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(self, RegistryError::Io { cause, .. } if is_shortage(cause))
    }
}

/// True if the operating system refused a resource that may be free again a moment later.
#[must_use]
pub fn is_shortage(cause: &io::Error) -> bool {
    use rustix::io::Errno;
    let number = cause.raw_os_error().map(Errno::from_raw_os_error);
    number.is_some_and(|number| {
        [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::NOBUFS,
            Errno::AGAIN,
            Errno::NOSPC,
            Errno::DQUOT,
        ]
        .contains(&number)
    })
}

/// Why an endpoint could not be claimed.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another process, or another node of this process, has it.
    #[error(
        "endpoint {address} is taken by process {pid} (`{command}`); choose another \
         number or end that process"
    )]
    Taken {
        /// Address of the endpoint that is in use.
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
        /// Address of the endpoint.
        address: Address,
        /// The process that registered.
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

/// Limits of a registry.
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
    /// Opens the registry of `node`, creates its directories if necessary, and removes the files
    /// of dead processes.
    ///
    /// # Errors
    /// The directory cannot be created, belongs to another user, or is open to others.
    pub fn open(runtime_dir: &Path, node: NodeId) -> Result<Registry, RegistryError> {
        folder::make_private(runtime_dir)?;
        folder::check_parents(runtime_dir)?;
        let path = runtime_dir.join(format!("node-{node}"));
        folder::make_registry_dir(&path)?;
        let registry = Registry {
            node,
            folder: path.into(),
            authenticator: Authenticator::default(),
            limits: Arc::default(),
        };
        // Another process that has the lock is removing them, or has just done so.
        if let Some(_guard) = folder::try_lock(&registry.folder, folder::Mode::Exclusive)? {
            sweep::sweep(&registry.folder)?;
        }
        Ok(registry)
    }

    /// The same registry for a cluster with this key: other nodes must prove that they hold the
    /// key.
    #[must_use]
    pub fn with_key(self, key: Option<&ClusterKey>) -> Registry {
        Registry {
            authenticator: Authenticator::new(key),
            ..self
        }
    }

    /// The same registry with limits: the endpoints of each registration, and the user's processes
    /// and endpoints.
    #[must_use]
    pub fn with_limits(self, endpoints: u32, user: UserLimits) -> Registry {
        Registry {
            limits: Arc::new(Limits { user, endpoints }),
            ..self
        }
    }

    /// Seals packets to other nodes and opens packets from them.
    #[must_use]
    pub fn authenticator(&self) -> &Authenticator {
        &self.authenticator
    }

    /// The node of this registry.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Path of the registry's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Registers this process, so that it may claim endpoints.
    ///
    /// # Errors
    /// The owner file cannot be written, or the user's limit of processes is reached.
    pub fn register(&self, ports: Ports) -> Result<Registration, RegistryError> {
        let _guard = match self.limits.user.processes {
            Some(_) => Some(folder::lock(&self.folder, folder::Mode::Exclusive)?),
            None => None,
        };
        count::admit_process(&self.folder, &self.limits.user)?;
        let (name, file) = owner::create(&self.folder, &ports)?;
        Ok(Registration {
            inner: Arc::new(Registered {
                registry: self.clone(),
                path: self.folder.join(&name),
                name,
                pid: std::process::id(),
                claims: Mutex::new(0),
                locked: Mutex::new(vec![file]),
            }),
        })
    }

    /// The live owner of `endpoint`, if there is one.
    ///
    /// # Errors
    /// The directory cannot be read, or a live owner's file is damaged.
    pub fn lookup(&self, endpoint: EndpointId) -> Result<Option<Owner>, RegistryError> {
        let link = self.link(endpoint);
        match std::fs::read_link(&link) {
            Ok(name) => owner::read_living(&self.folder, &name),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(cause) => Err(folder::failed("reading", &link)(cause)),
        }
    }

    /// True if a live process of this node has this incarnation, even if it makes no progress.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn is_alive(&self, incarnation: u64) -> Result<bool, RegistryError> {
        Ok(self.liveness(incarnation)? != Liveness::Ended)
    }

    /// State of the process of this node with this incarnation.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn liveness(&self, incarnation: u64) -> Result<Liveness, RegistryError> {
        sweep::liveness(&self.folder, incarnation)
    }

    /// The socket for shared memory connections to a process.
    #[must_use]
    pub fn socket(&self, incarnation: u64) -> PathBuf {
        self.folder
            .join(format!("{SOCKET_PREFIX}{incarnation:016x}"))
    }

    /// The file in which a process reports its edges and their traffic.
    #[must_use]
    pub fn edge_stats_path(&self, incarnation: u64) -> PathBuf {
        self.folder
            .join(format!("{EDGES_PREFIX}{incarnation:016x}"))
    }

    /// The hosts file that the node's agent writes for programs.
    #[must_use]
    pub fn nodes_file(&self) -> PathBuf {
        self.folder.join(NODES_FILE)
    }

    /// The packet that announces this node.
    #[must_use]
    pub fn seal_announcement(&self, announcement: &Announcement) -> Vec<u8> {
        let header = Header {
            from: self.node,
            to: NodeId(0),
            nonce: 0,
        };
        self.authenticator
            .seal_to_length(header, announcement, ANNOUNCEMENT_BYTES)
    }

    /// The announcement in a packet, if it comes from a member of our cluster.
    #[must_use]
    pub fn open_announcement(&self, packet: &[u8]) -> Option<Announcement> {
        self.authenticator.open(packet).ok()?.read().ok()
    }

    /// Removes the files of dead processes.
    ///
    /// # Errors
    /// The directory cannot be read or changed.
    pub fn sweep(&self) -> Result<(), RegistryError> {
        let _guard = folder::lock(&self.folder, folder::Mode::Exclusive)?;
        sweep::sweep(&self.folder)
    }

    /// Fails if a live process has the endpoint.
    fn check_free(&self, address: Address) -> Result<(), ClaimError> {
        match self.lookup(address.endpoint)? {
            None => Ok(()),
            Some(holder) => Err(ClaimError::Taken {
                address,
                pid: holder.pid,
                command: holder.command,
            }),
        }
    }

    /// Locks the registry and removes the link of a dead process to the endpoint, if there is one.
    /// No process can replace the link meanwhile.
    fn clear_stale(&self, address: Address) -> Result<folder::Guard, ClaimError> {
        let guard = folder::lock(&self.folder, folder::Mode::Exclusive)?;
        let link = self.link(address.endpoint);
        if link.is_symlink() {
            self.check_free(address)?;
            folder::remove(&link)?;
        }
        Ok(guard)
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

/// The file in which the agent of a node, if it has one, lists the nodes that it knows.
#[must_use]
pub fn nodes_file(runtime_dir: &Path, node: NodeId) -> PathBuf {
    runtime_dir.join(format!("node-{node}")).join(NODES_FILE)
}

/// Registration of this process; ends when it and its claims are dropped.
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
    /// Number of endpoints claimed.
    claims: Mutex<u32>,
    /// Closing the last copy of a file description releases its lock. Those of former files stay
    /// locked: a process that is reading one must not take it for that of a dead owner.
    locked: Mutex<Vec<File>>,
}

impl Registration {
    /// Claims an endpoint. If many try at once, exactly one succeeds.
    ///
    /// # Errors
    /// - [`ClaimError::Taken`]: names the live owner.
    /// - [`ClaimError::Forked`]: this process is a child of the one that registered.
    /// - [`ClaimError::Registry`]: the directory cannot be changed, or a limit is reached
    ///   ([`RegistryError::Limit`]).
    pub fn claim(&self, endpoint: EndpointId) -> Result<Claim, ClaimError> {
        self.claim_and_open(endpoint, || {})
    }

    /// Like [`claim`](Self::claim), but calls `open` when no other process can claim the endpoint
    /// any more and none can find it yet, so that it is open when it is found. `open` may have been
    /// called if this fails.
    ///
    /// # Errors
    /// See [`claim`](Self::claim).
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
        // One thread at a time, so that `open` is not called for an endpoint of this registration.
        let mut claims = registered.claims();
        registry.check_free(address)?;
        let limit = registry.limits.endpoints;
        if *claims >= limit {
            return Err(RegistryError::Limit(LimitReached::Endpoints { limit }).into());
        }
        let is_counted = registry.limits.user.endpoints.is_some();
        let mut guard = match is_counted || link.is_symlink() {
            true => registry.clear_stale(address)?,
            false => folder::lock(&registry.folder, folder::Mode::Shared)?,
        };
        count::admit_endpoint(&registry.folder, &registry.limits.user)?;
        open();
        // Of the processes that try this at once, one succeeds.
        while let Err(cause) = symlink(&registered.name, &link) {
            if cause.kind() != io::ErrorKind::AlreadyExists {
                return Err(folder::failed("writing", &link)(cause).into());
            }
            drop(guard);
            guard = registry.clear_stale(address)?;
        }
        *claims += 1;
        Ok(Claim {
            registered: Arc::clone(registered),
            link,
            endpoint,
        })
    }

    /// The process has other addresses from now on. Its endpoints and incarnation stay.
    ///
    /// # Errors
    /// The owner file cannot be written; the former one stays.
    pub fn set_ports(&self, ports: Ports) -> Result<(), RegistryError> {
        let registered = &self.inner;
        let file = owner::replace(&registered.registry.folder, &registered.name, &ports)?;
        let mut locked = registered
            .locked
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        locked.push(file);
        Ok(())
    }

    /// Returns the registry that has this entry.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }
}

impl Registered {
    fn claims(&self) -> MutexGuard<'_, u32> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
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

/// A claimed endpoint, released when this is dropped.
#[derive(Debug)]
pub struct Claim {
    registered: Arc<Registered>,
    link: PathBuf,
    endpoint: EndpointId,
}

impl Claim {
    /// Returns the id of the registered endpoint.
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
        // The link is ours as long as we are alive and it names us: no process takes over from an
        // owner whose lock is held.
        let _ = std::fs::remove_file(&self.link);
        *self.registered.claims() -= 1;
    }
}

/// True if another process holds an exclusive lock. Tries a shared lock, so that several processes
/// that test at once do not take each other for the owner.
fn is_locked(file: &File) -> io::Result<bool> {
    match folder::flock(file, FlockOperation::NonBlockingLockShared) {
        Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => return Ok(true),
        locked => locked?,
    }
    folder::flock(file, FlockOperation::Unlock)?;
    Ok(false)
}

/// A number from the kernel's random generator.
fn random_number() -> io::Result<u64> {
    OsRng.try_next_u64().map_err(io::Error::other)
}

#[cfg(test)]
mod tests;

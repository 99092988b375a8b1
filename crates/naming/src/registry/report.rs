//! Reports of each process for operators: its counters, and its links to peers.
//!
//! A process rewrites both files regularly. They are named after its incarnation and encoded with
//! postcard. [`report`] reads them and changes nothing, so it also works for a process that hangs,
//! and for one that has died, until the next process that opens the registry removes its files.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::folder::{failed, names};
use super::{COUNTERS_PREFIX, LINKS_PREFIX, Owner, Registry, RegistryError, owner, rewritten};
use crate::address::{EndpointId, NodeId};

/// Link of a process to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkUse {
    /// Node of the peer.
    pub node: NodeId,
    /// Incarnation of the peer.
    pub incarnation: u64,
    /// Link of small messages: `shm`, `bpf` or `udp`.
    pub link: String,
    /// Pairs of addresses and their use; empty for shared memory.
    pub paths: String,
    /// How packets are checked: `crc32c`, `kernel`, `auth` or `encrypt`; empty for shared memory.
    pub check: String,
    /// Why no better link is used; empty if it is the best.
    pub why: String,
}

/// Counters of a process, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Process id of the owner.
    pub pid: u32,
    /// Counts so far, and current values.
    pub values: Vec<(String, u64)>,
}

/// Report of one process.
#[derive(Clone, Debug)]
pub struct ProcessReport {
    /// Incarnation of the process.
    pub incarnation: u64,
    /// The process; `None` if it has died and its files are left.
    pub owner: Option<Owner>,
    /// Its open endpoints, sorted.
    pub endpoints: Vec<EndpointId>,
    /// Its counters, if it has written any that can be read.
    pub counters: Option<Counters>,
    /// Its links to peers.
    pub links: Vec<LinkUse>,
}

/// Reports of the processes of a node: live ones first, then by process id.
///
/// # Errors
/// The directory cannot be read, or a live owner's file is damaged.
pub fn report(runtime_dir: &Path, node: NodeId) -> Result<Vec<ProcessReport>, RegistryError> {
    let folder = runtime_dir.join(format!("node-{node}"));
    let mut reports: Vec<ProcessReport> = Vec::new();
    let (mut owners, mut endpoints, mut incarnations) = (Vec::new(), Vec::new(), Vec::new());
    for name in names(&folder)? {
        if let Some(number) = name.strip_prefix("endpoint-")
            && let Ok(endpoint) = number.parse()
            && let Ok(owner) = std::fs::read_link(folder.join(&name))
        {
            endpoints.push((owner, EndpointId(endpoint)));
        } else if let Some(incarnation) = name.strip_prefix(COUNTERS_PREFIX) {
            incarnations.extend(u64::from_str_radix(incarnation, 16));
        } else if name.starts_with("owner-") {
            match owner::read_living(&folder, Path::new(&name)) {
                Ok(owner) => owners.extend(owner.map(|owner| (name, owner))),
                // The other processes can be reported.
                Err(error @ RegistryError::Corrupt { .. }) => tracing::warn!("{error}"),
                Err(error) => return Err(error),
            }
        }
    }
    for (name, owner) in owners {
        let held = endpoints.iter().filter(|(held, _)| *held == *name);
        let mut held: Vec<EndpointId> = held.map(|(_, endpoint)| *endpoint).collect();
        held.sort_unstable();
        let incarnation = owner.ports.incarnation;
        reports.push(ProcessReport::read(&folder, incarnation, Some(owner), held));
    }
    for incarnation in incarnations {
        if !reports.iter().any(|known| known.incarnation == incarnation) {
            reports.push(ProcessReport::read(&folder, incarnation, None, Vec::new()));
        }
    }
    reports.sort_by_key(|report| (report.owner.is_none(), report.pid()));
    Ok(reports)
}

impl ProcessReport {
    fn read(
        folder: &Path,
        incarnation: u64,
        owner: Option<Owner>,
        endpoints: Vec<EndpointId>,
    ) -> ProcessReport {
        let file = |prefix| folder.join(format!("{prefix}{incarnation:016x}"));
        let mut report = ProcessReport {
            incarnation,
            owner,
            endpoints,
            counters: read(&file(COUNTERS_PREFIX)),
            links: read(&file(LINKS_PREFIX)).unwrap_or_default(),
        };
        report.clean();
        report
    }

    /// Removes control characters: root prints what other users have written.
    fn clean(&mut self) {
        let values = self.counters.iter_mut().flat_map(|it| &mut it.values);
        let names = values.map(|(name, _)| name);
        let links = self.links.iter_mut();
        let links = links.flat_map(|it| [&mut it.link, &mut it.paths, &mut it.why]);
        let commands = self.owner.iter_mut().map(|owner| &mut owner.command);
        for text in names.chain(links).chain(commands) {
            text.retain(|c| !c.is_control());
        }
    }

    /// Its process id, if known.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        let counted = self.counters.as_ref().map(|counters| counters.pid);
        self.owner.as_ref().map(|owner| owner.pid).or(counted)
    }
}

/// Reads a report file; `None` if it does not exist or is malformed.
fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Option<T> {
    postcard::from_bytes(&rewritten::read(path)?).ok()
}

/// The report files of a process, which are removed when this is dropped.
#[derive(Debug)]
pub struct ReportFiles {
    counters: PathBuf,
    links: PathBuf,
    pid: u32,
}

impl ReportFiles {
    /// The files of the process with this incarnation.
    #[must_use]
    pub fn new(registry: &Registry, incarnation: u64) -> ReportFiles {
        let file = |prefix| registry.folder.join(format!("{prefix}{incarnation:016x}"));
        ReportFiles {
            counters: file(COUNTERS_PREFIX),
            links: file(LINKS_PREFIX),
            pid: std::process::id(),
        }
    }

    /// Writes the counters.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_counters(&self, values: Vec<(String, u64)>) -> Result<(), RegistryError> {
        let pid = self.pid;
        self.write(&self.counters, &Counters { pid, values })
    }

    /// Writes the links to peers.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_links(&self, links: &[LinkUse]) -> Result<(), RegistryError> {
        self.write(&self.links, links)
    }

    fn write(&self, path: &Path, what: &(impl Serialize + ?Sized)) -> Result<(), RegistryError> {
        postcard::to_allocvec(what)
            .map_err(io::Error::other)
            .and_then(|bytes| rewritten::write(path, &bytes))
            .map_err(failed("writing", path))
    }
}

impl Drop for ReportFiles {
    fn drop(&mut self) {
        if self.pid == std::process::id() {
            for path in [&self.counters, &self.links] {
                // It may never have been written, or its directory is gone.
                let _missing = std::fs::remove_file(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    use crate::registry::Ports;

    fn link() -> LinkUse {
        LinkUse {
            node: NodeId(2),
            incarnation: 9,
            link: "udp".to_owned(),
            paths: "10.0.0.1 <-> 10.0.0.2 small and bulk".to_owned(),
            check: "crc32c".to_owned(),
            why: "because".to_owned(),
        }
    }

    #[test]
    fn a_process_is_listed_with_its_reports_and_a_dead_one_until_its_files_are_swept() {
        let directory = tempfile::tempdir().unwrap();
        let runtime = directory.path().join("dipole");
        let registry = Registry::open(&runtime, NodeId(3)).unwrap();
        let address = "127.0.0.1:9".parse().unwrap();
        let registration = registry
            .register(Ports {
                small: address,
                bulk: address,
                incarnation: 77,
            })
            .unwrap();
        let claims = [5, 4].map(|id| registration.claim(EndpointId(id)).unwrap());
        let read_reports = || report(&runtime, NodeId(3)).unwrap();
        assert_eq!(read_reports()[0].counters, None, "not shown yet");
        let (files, dead) = (
            ReportFiles::new(&registry, 77),
            ReportFiles::new(&registry, 78),
        );
        let values = vec![("packets sent".to_owned(), 12)];
        files
            .write_counters(vec![("\u{7}packets sent\u{1b}".to_owned(), 12)])
            .unwrap();
        files.write_links(&[link()]).unwrap();
        dead.write_counters(Vec::new()).unwrap();
        let pid = std::process::id();
        let reports = read_reports();
        assert_eq!(reports.len(), 2);
        assert_eq!(reports[0].endpoints, [EndpointId(4), EndpointId(5)]);
        assert_eq!(reports[0].counters, Some(Counters { pid, values }));
        assert_eq!(reports[0].links, [link()]);
        assert!(reports[1].owner.is_none() && reports[1].pid() == Some(pid));
        let mode = std::fs::metadata(&files.counters).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);

        std::fs::write(&files.links, [200, 200]).unwrap();
        assert!(read_reports()[0].links.is_empty(), "malformed");
        registry.sweep().unwrap();
        assert_eq!(read_reports().len(), 1, "the dead one's file is swept");
        drop((files, claims, registration));
        assert!(read_reports().is_empty());
    }

    #[test]
    fn neither_a_link_nor_a_pipe_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        rewritten::write(&file, &postcard::to_allocvec(&[link()]).unwrap()).unwrap();
        assert_eq!(read::<[LinkUse; 1]>(&file), Some([link()]));
        let symlink = directory.path().join("symlink");
        std::os::unix::fs::symlink(&file, &symlink).unwrap();
        let pipe = directory.path().join("pipe");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        for path in [symlink, pipe] {
            assert_eq!(read::<[LinkUse; 1]>(&path), None);
        }
    }
}

//! Statistics of the edges of each process, on request of a watcher.
//!
//! A watcher touches the file `watched` regularly. Processes check its age a few times per second
//! and, while it is fresh, write their edges and traffic to `edges-<incarnation>`, encoded with
//! postcard. Without a watcher nothing is written.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::folder::{failed, names};
use super::{Owner, Registry, RegistryError, rewritten};
use crate::address::{Address, EndpointId};

/// A watcher that has not touched the file for this time is gone.
const STALE: Duration = Duration::from_secs(5);
const WATCHED: &str = "watched";

/// An edge of a process and its traffic since it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeTraffic {
    /// Endpoint at which it begins.
    pub source: EndpointId,
    /// Endpoint at which it ends.
    pub target: Address,
    /// True if it uses shared memory.
    pub local: bool,
    /// Number of messages sent.
    pub messages: u64,
    /// Number of payload bytes sent.
    pub bytes: u64,
}

/// Registry entries of one process.
#[derive(Clone, Debug)]
pub struct OwnerSurvey {
    /// Process that owns these entries.
    pub owner: Owner,
    /// Its open endpoints, sorted.
    pub endpoints: Vec<EndpointId>,
    /// Its edges, as last written.
    pub edges: Vec<EdgeTraffic>,
}

impl Registry {
    /// Requests edge statistics from the processes of this node for the next seconds.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn watch(&self) -> Result<(), RegistryError> {
        let path = self.folder.join(WATCHED);
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("making", &path))?;
        file.set_modified(SystemTime::now())
            .map_err(failed("touching", &path))
    }

    /// Withdraws the request to write edge counters.
    pub fn unwatch(&self) {
        let _ = std::fs::remove_file(self.folder.join(WATCHED));
    }

    /// All live processes of this node with their endpoints and edges.
    ///
    /// # Errors
    /// The directory cannot be read, or a live owner's file is damaged.
    pub fn survey(&self) -> Result<Vec<OwnerSurvey>, RegistryError> {
        let mut found: Vec<(String, OwnerSurvey)> = Vec::new();
        let mut links = Vec::new();
        let folder = &self.folder;
        for name in names(folder)? {
            if let Some(number) = name.strip_prefix("endpoint-")
                && let Ok(endpoint) = number.parse()
                && let Ok(owner) = std::fs::read_link(folder.join(&name))
            {
                links.push((owner, EndpointId(endpoint)));
            } else if name.starts_with("owner-")
                && let Some(owner) = super::owner::read_living(folder, Path::new(&name))?
            {
                let edges = read(&self.edge_stats_path(owner.ports.incarnation));
                let survey = OwnerSurvey {
                    owner,
                    endpoints: Vec::new(),
                    edges,
                };
                found.push((name, survey));
            }
        }
        for (owner, endpoint) in links {
            if let Some((_, survey)) = found
                .iter_mut()
                .find(|(name, _)| owner.as_os_str() == &**name)
            {
                survey.endpoints.push(endpoint);
            }
        }
        let mut surveys: Vec<OwnerSurvey> = found.into_iter().map(|(_, survey)| survey).collect();
        for survey in &mut surveys {
            survey.endpoints.sort_unstable();
        }
        surveys.sort_by_key(|survey| (survey.endpoints.first().copied(), survey.owner.pid));
        Ok(surveys)
    }
}

/// The file in which a process writes its edges.
#[derive(Debug)]
pub struct EdgeStatsFile {
    path: PathBuf,
    watched: PathBuf,
    pid: u32,
    written: bool,
}

impl EdgeStatsFile {
    /// The file of the process with this incarnation.
    #[must_use]
    pub fn new(registry: &Registry, incarnation: u64) -> EdgeStatsFile {
        EdgeStatsFile {
            path: registry.edge_stats_path(incarnation),
            watched: registry.folder.join(WATCHED),
            pid: std::process::id(),
            written: false,
        }
    }

    /// True if a watcher requests statistics.
    pub fn is_watched(&self) -> bool {
        let touched = std::fs::metadata(&self.watched).and_then(|found| found.modified());
        touched.is_ok_and(|at| at.elapsed().is_ok_and(|age| age < STALE))
    }

    /// Writes the edges to the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self, edges: impl Iterator<Item = EdgeTraffic>) -> io::Result<()> {
        let edges: Vec<EdgeTraffic> = edges.collect();
        let bytes = postcard::to_allocvec(&edges).map_err(io::Error::other)?;
        rewritten::write(&self.path, &bytes)?;
        self.written = true;
        Ok(())
    }
}

impl Drop for EdgeStatsFile {
    fn drop(&mut self) {
        if self.written && self.pid == std::process::id() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Edges in a statistics file; none if it does not exist or is malformed.
fn read(path: &Path) -> Vec<EdgeTraffic> {
    let bytes = rewritten::read(path).unwrap_or_default();
    postcard::from_bytes(&bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::NodeId;
    use crate::registry::Ports;

    #[test]
    fn a_survey_shows_living_processes_their_endpoints_and_edges() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::open(&directory.path().join("dipole"), NodeId(3)).unwrap();
        let address = "127.0.0.1:9".parse().unwrap();
        let ports = Ports {
            small: address,
            bulk: address,
            incarnation: 77,
        };
        let registration = registry.register(ports).unwrap();
        let claims = [5, 4].map(|id| registration.claim(EndpointId(id)).unwrap());
        let mut stats = EdgeStatsFile::new(&registry, 77);
        assert!(!stats.is_watched());
        registry.watch().unwrap();
        assert!(stats.is_watched());
        let edge = EdgeTraffic {
            source: EndpointId(4),
            target: Address::new(3, 9),
            local: true,
            messages: 12,
            bytes: 3400,
        };
        stats.write([edge].into_iter()).unwrap();
        let survey = registry.survey().unwrap();
        assert_eq!(survey.len(), 1);
        assert_eq!(survey[0].owner.pid, std::process::id());
        assert_eq!(survey[0].endpoints, [EndpointId(4), EndpointId(5)]);
        assert_eq!(survey[0].edges, [edge]);
        std::fs::write(registry.edge_stats_path(77), [1, 2]).unwrap();
        assert!(registry.survey().unwrap()[0].edges.is_empty(), "malformed");
        drop((stats, claims, registration));
        assert!(registry.survey().unwrap().is_empty());
        registry.unwatch();
    }
}

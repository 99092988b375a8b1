//! All nodes from the hosts file and the membership (the NART of the papers), and the file in which
//! the agent lists them for programs of this node.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dipole_node::hosts::Host;

use super::member::Member;

/// Minimum time between two writes.
const WRITE_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Nodes {
    file: PathBuf,
    /// This node and the nodes of the hosts file.
    fixed: BTreeMap<u32, Host>,
    has_changed: bool,
    written: Option<Instant>,
}

impl Nodes {
    pub(super) fn new(file: PathBuf, own: Host, from_hosts_file: &[Host]) -> Nodes {
        let all = from_hosts_file.iter().cloned().chain([own]);
        Nodes {
            file,
            fixed: all.map(|host| (host.node.0, host)).collect(),
            has_changed: true,
            written: None,
        }
    }

    /// Notes that a node has joined, left or changed.
    pub(super) fn change(&mut self) {
        self.has_changed = true;
    }

    /// When [`write`](Self::write) must be called.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let next = self
            .written
            .map_or_else(Instant::now, |last| last + WRITE_EVERY);
        self.has_changed.then_some(next)
    }

    /// Replaces the file if something has changed.
    pub(super) fn write<'a>(&mut self, members: impl Iterator<Item = &'a Member>) {
        if self.next_deadline().is_none_or(|due| due > Instant::now()) {
            return;
        }
        self.has_changed = false;
        self.written = Some(Instant::now());
        let found = members.filter_map(|member| Some((member.node, member.host()?)));
        let mut all: BTreeMap<u32, Host> = found.collect();
        // The hosts file takes precedence over the membership.
        all.extend(self.fixed.clone());
        let mut text = String::from("# kept by dipole agent\n");
        let mut directories = std::collections::HashSet::new();
        for host in all.values() {
            // Two nodes with one address would make the whole file invalid.
            if directories.insert(host.directory()) {
                let _infallible = writeln!(text, "{}", host.line());
            }
        }
        if let Err(cause) = replace(&self.file, &text) {
            let file = self.file.display();
            tracing::warn!(%file, %cause, "programs of this node do not receive changes");
        }
    }
}

fn replace(file: &Path, text: &str) -> io::Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::NodeId;
    use dipole_node::hosts::Hosts;

    fn member(node: u32, last: u8) -> Member {
        let hosts = Hosts::parse(&format!("{node} 10.0.0.{last}")).unwrap();
        Member::of_host(hosts.iter().next().unwrap())
    }

    #[test]
    fn the_file_has_what_was_written_down_and_what_was_found_and_can_always_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nodes");
        let hosts = Hosts::parse("2 10.0.0.2 interfaces=10.1.0.2 slots=3 name=two").unwrap();
        let own = Hosts::parse("1 10.0.0.1").unwrap();
        let own = own.get(NodeId(1)).unwrap().clone();
        let written: Vec<Host> = hosts.iter().cloned().collect();
        let mut nodes = Nodes::new(file.clone(), own, &written);
        // Node 2 is also in the hosts file; node 4 announces the address of node 3.
        let found = [member(2, 9), member(3, 3), member(4, 3)];
        nodes.write(found.iter());
        let read = Hosts::load(&file).unwrap();
        let all: Vec<u32> = read.iter().map(|host| host.node.0).collect();
        assert_eq!(all, [1, 2, 3]);
        assert_eq!(read.get(NodeId(2)), hosts.get(NodeId(2)));
        assert_eq!(nodes.next_deadline(), None);
        nodes.change();
        assert!(nodes.next_deadline() > Some(Instant::now() - WRITE_EVERY));
    }
}

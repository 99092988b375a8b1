//! The hosts file: the nodes of a cluster and how to reach them.
//!
//! One line per node, `#` begins a comment:
//!
//! ```text
//! # NID ADDRESS [port=P] [interfaces=ADDRESS,...] [control=ADDRESS] [slots=N] [ssh=DEST] [runtime=DIR] [name=TEXT]
//! 1 10.0.0.1 slots=4
//! 2 10.0.0.2 slots=4 ssh=user@second runtime=/run/user/1000/dipole
//! 3 fd00::3  port=7500 name=third
//! 4 fourth.example
//! ```
//!
//! An error in any line rejects the whole file. A name in place of an address is resolved when the
//! file is read. A link-local address has a scope, the interface of the machine that reads the file:
//! `fe80::1%eth0`.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};
use std::path::{Path, PathBuf};

mod addresses;

use crate::address::NodeId;
use crate::lines::{self, Fault, FileError, Line, Word};
use addresses::{ADDRESS, address_of, interface_index, parse_address};

/// The UDP port on which a node answers look-ups of its endpoints, unless `port=` is given.
pub const DEFAULT_DIRECTORY_PORT: u16 = 7411;
/// Maximum number of interfaces of a node.
pub const MAX_INTERFACES: usize = 4;
/// Maximum of `slots=`; a larger number is taken for a mistake.
pub const MAX_SLOTS: u32 = 65_536;
/// Name of the file in error messages.
const WHAT: &str = "hosts file";

/// One node of the hosts file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Node id, at least 1.
    pub node: NodeId,
    /// Its IP address, which its processes bind.
    pub address: IpAddr,
    /// Addresses of its other interfaces.
    pub interfaces: Vec<IpAddr>,
    /// Its address on a separate network for look-ups and membership; not one of its interfaces.
    pub control: Option<IpAddr>,
    /// For each of these addresses that is link-local, the interface of this machine that leads there.
    pub scopes: Vec<(IpAddr, Word)>,
    /// The directory's UDP port.
    pub port: u16,
    /// Number of ranks that the launcher places here before it uses the next node.
    pub slots: u32,
    /// Destination for `ssh`; the address if absent, `local` for this machine.
    pub ssh: Option<Word>,
    /// The runtime directory on that host, if not the default.
    pub runtime_dir: Option<Word>,
    /// Optional name, only for display.
    pub name: Option<Word>,
}

impl Host {
    /// A node with the defaults of all options.
    #[must_use]
    pub fn at(node: NodeId, address: IpAddr) -> Host {
        Host {
            node,
            address,
            interfaces: Vec::new(),
            control: None,
            scopes: Vec::new(),
            port: DEFAULT_DIRECTORY_PORT,
            slots: 1,
            ssh: None,
            runtime_dir: None,
            name: None,
        }
    }

    /// Address of this node's directory.
    #[must_use]
    pub fn directory(&self) -> SocketAddr {
        self.socket_address(self.address, self.port)
    }

    /// A port at one of its addresses, with the scope that a link-local one needs.
    #[must_use]
    pub fn socket_address(&self, address: IpAddr, port: u16) -> SocketAddr {
        let index = self.scope(address).and_then(interface_index);
        match (address, index) {
            (IpAddr::V6(v6), Some(index)) => SocketAddrV6::new(v6, port, 0, index).into(),
            _ => SocketAddr::new(address, port),
        }
    }

    fn scope(&self, address: IpAddr) -> Option<&str> {
        let scoped = self.scopes.iter().find(|(ip, _)| *ip == address);
        scoped.map(|(_, name)| &**name)
    }

    /// One of its addresses as the hosts file writes it.
    #[must_use]
    pub fn text_of(&self, address: IpAddr) -> String {
        match self.scope(address) {
            Some(name) => format!("{address}%{name}"),
            None => address.to_string(),
        }
    }

    /// Addresses of its directory, in the order in which they are tried: on the control network if
    /// there is one, then on each interface.
    #[must_use]
    pub fn directories(&self) -> Vec<SocketAddr> {
        let addresses = self.control.into_iter().chain(self.addresses());
        addresses
            .map(|address| self.socket_address(address, self.port))
            .collect()
    }

    /// Its address and those of its further interfaces, without the control network.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        std::iter::once(self.address).chain(self.interfaces.iter().copied())
    }

    /// The line of a hosts file that describes this node.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = format!("{} {}", self.node, self.text_of(self.address));
        let mut add = |key: &str, value: Option<String>| {
            line.extend(value.map(|value| format!(" {key}={value}")));
        };
        let interfaces = self.interfaces.iter().map(|ip| self.text_of(*ip));
        let interfaces: Vec<String> = interfaces.collect();
        add("port", Some(self.port.to_string()));
        add(
            "interfaces",
            Some(interfaces.join(",")).filter(|interfaces| !interfaces.is_empty()),
        );
        add("control", self.control.map(|ip| self.text_of(ip)));
        add("slots", Some(self.slots.to_string()));
        add("ssh", self.ssh.as_ref().map(Word::to_string));
        add("runtime", self.runtime_dir.as_ref().map(Word::to_string));
        add("name", self.name.as_ref().map(Word::to_string));
        line
    }
}

impl fmt::Display for Host {
    /// The node as messages name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.text_of(self.address);
        match &self.name {
            Some(name) => write!(f, "node {} ({name}, {address})", self.node),
            None => write!(f, "node {} ({address})", self.node),
        }
    }
}

/// All nodes, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    entries: Vec<Host>,
    is_alone: bool,
    source: Option<Source>,
}

/// A file that may gain nodes while a program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    file: PathBuf,
    /// The agent writes it: a missing node may appear soon.
    is_from_agent: bool,
}

impl Hosts {
    /// Without a hosts file: only this node, on the loopback address.
    #[must_use]
    pub fn local_only(node: NodeId) -> Hosts {
        Hosts {
            is_alone: true,
            ..Hosts::of(vec![Host::at(node, Ipv4Addr::LOCALHOST.into())])
        }
    }

    /// Reads a hosts file.
    ///
    /// # Errors
    /// The file cannot be read, is too long, or has an invalid line.
    pub fn load(path: &Path) -> Result<Hosts, FileError> {
        let text = lines::read(WHAT, path)?;
        Hosts::parse_as(&text, path)
    }

    /// Reads a hosts file, and again when a node is missing from it.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_followed(path: &Path) -> Result<Hosts, FileError> {
        Hosts::from_source(Source {
            file: path.to_owned(),
            is_from_agent: false,
        })
    }

    /// Reads the file of nodes that the agent of this node writes, if there is one. Look-ups wait
    /// for nodes that are missing from it.
    ///
    /// # Errors
    /// The file exists but cannot be read, or a line is wrong.
    pub fn load_agents(path: &Path) -> Result<Option<Hosts>, FileError> {
        if !path.exists() {
            return Ok(None);
        }
        let file = path.to_owned();
        let is_from_agent = true;
        Hosts::from_source(Source {
            file,
            is_from_agent,
        })
        .map(Some)
    }

    fn from_source(source: Source) -> Result<Hosts, FileError> {
        Ok(Hosts {
            entries: Hosts::load(&source.file)?.entries,
            is_alone: false,
            source: Some(source),
        })
    }

    /// The file as it is now, if it can be read and is one of those that are followed.
    #[must_use]
    pub fn reload(&self) -> Option<Hosts> {
        Hosts::from_source(self.source.clone()?)
            .inspect_err(|error| tracing::debug!(%error, "a hosts file cannot be read again"))
            .ok()
    }

    /// True if the nodes come from a file that is read again when a node cannot be found.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.source.is_some()
    }

    /// True if the agent writes the file.
    #[must_use]
    pub fn is_from_agent(&self) -> bool {
        self.source
            .as_ref()
            .is_some_and(|source| source.is_from_agent)
    }

    /// Parses a hosts file without names in place of addresses.
    ///
    /// # Errors
    /// A line is wrong.
    pub fn parse(text: &str) -> Result<Hosts, FileError> {
        let unknown = |name: &str| Err(Fault::new(name, ADDRESS));
        Hosts::parse_with(text, Path::new("hosts"), &unknown)
    }

    /// Parses a hosts file and resolves names in place of addresses. `file` is its name in errors.
    ///
    /// # Errors
    /// A line is wrong.
    pub fn parse_as(text: &str, file: &Path) -> Result<Hosts, FileError> {
        Hosts::parse_with(text, file, &|name| {
            let found = (name, 0).to_socket_addrs();
            address_of(name, found.map(|all| all.map(|one| one.ip()).collect()))
        })
    }

    fn parse_with(text: &str, file: &Path, resolve: Resolve<'_>) -> Result<Hosts, FileError> {
        let mut entries: Vec<Host> = Vec::new();
        // Line numbers of the first description.
        let mut nodes: HashMap<NodeId, usize> = HashMap::new();
        let mut directories: HashMap<SocketAddr, usize> = HashMap::new();
        for line in lines::lines(text, file) {
            let host = parse_line(line, resolve).map_err(|fault| line.error(fault))?;
            if let Some(first) = nodes.insert(host.node, line.number) {
                return Err(line.error(Fault::because(format!(
                    "found node {} again, expected each node once (first in line {first})",
                    host.node
                ))));
            }
            // Look-ups would reach the wrong one of two. Packets name no scope.
            let directory = SocketAddr::new(host.address, host.port);
            if let Some(first) = directories.insert(directory, line.number) {
                return Err(line.error(Fault::because(format!(
                    "found directory {directory} again, expected one per node (first in line \
                     {first}); give one of them another `port=`"
                ))));
            }
            entries.push(host);
        }
        if entries.is_empty() {
            return Err(FileError::Empty {
                file: file.to_owned(),
                expected: "NID ADDRESS",
            });
        }
        Ok(Hosts::of(entries))
    }

    /// The nodes that a launcher has listed.
    pub(crate) fn of(entries: Vec<Host>) -> Hosts {
        Hosts {
            entries,
            is_alone: false,
            source: None,
        }
    }

    /// Addresses at which `from` queries a node's directory: its interfaces, without addresses that
    /// `from` has itself (such as those of container bridges), which would lead back.
    #[must_use]
    pub fn directories_as_seen_from(&self, from: NodeId, host: &Host) -> Vec<SocketAddr> {
        let own = self.get(from);
        let is_own = |ip: IpAddr| {
            own.is_some_and(|own| own.address == ip || own.interfaces.contains(&ip))
                && ip != host.address
                && host.control != Some(ip)
        };
        let mut all = host.directories();
        all.retain(|directory| !is_own(directory.ip()));
        all
    }

    /// The entry for a node.
    #[must_use]
    pub fn get(&self, node: NodeId) -> Option<&Host> {
        self.entries.iter().find(|host| host.node == node)
    }

    /// All nodes in the order of the file.
    pub fn iter(&self) -> std::slice::Iter<'_, Host> {
        self.entries.iter()
    }

    /// True without a hosts file or a launcher that lists nodes.
    #[must_use]
    pub fn is_local_only(&self) -> bool {
        self.is_alone
    }

    /// Number of nodes; never 0.
    #[must_use]
    pub fn count(&self) -> usize {
        self.entries.len()
    }
}

impl<'a> IntoIterator for &'a Hosts {
    type Item = &'a Host;
    type IntoIter = std::slice::Iter<'a, Host>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Resolves a name to an address.
type Resolve<'a> = &'a dyn Fn(&str) -> Result<IpAddr, Fault>;

fn parse_line(mut line: Line<'_>, resolve: Resolve<'_>) -> Result<Host, Fault> {
    const OPTION: &str = "port=P, interfaces=ADDRESS[,ADDRESS], control=ADDRESS, slots=N, ssh=DEST, runtime=DIR or name=TEXT";
    const INTERFACES: &str =
        "interfaces=ADDRESS[,ADDRESS[,ADDRESS]], each once, without the first one";
    let node = line.next("a node number from 1 to 4294967295")?;
    let text = line.next::<String>("an IP address or a name after the node number")?;
    let is_name =
        text.starts_with(|first: char| first.is_ascii_alphabetic()) && !text.contains(':');
    let mut scopes = Vec::new();
    let mut scoped = |text: &str| {
        let (address, scope) = parse_address(text)?;
        scopes.extend(scope.map(|name| (address, name)));
        Ok(address)
    };
    let address = match is_name {
        true => resolve(&text)?,
        false => scoped(&text)?,
    };
    let mut host = Host::at(node, address);
    host.name = Word::new(&text).filter(|_| is_name);
    for option in line.options(OPTION)? {
        match option.key {
            "port" => host.port = option.number(1..=u16::MAX)?,
            "interfaces" => {
                let interfaces = option.value.split(',').map(&mut scoped);
                host.interfaces = interfaces.collect::<Result<_, _>>()?;
                let mut all: HashSet<IpAddr> = host.interfaces.iter().copied().collect();
                all.insert(address);
                if all.len() != host.interfaces.len() + 1 || all.len() > MAX_INTERFACES {
                    return Err(option.fault(INTERFACES));
                }
            }
            "control" => host.control = Some(scoped(option.value)?),
            "slots" => host.slots = option.number(1..=MAX_SLOTS)?,
            "ssh" => {
                const SSH: &str = "ssh=DEST, a destination that ssh understands";
                // A destination that begins with a dash would be an option of ssh.
                if option.value.starts_with('-') {
                    return Err(option.fault(SSH));
                }
                host.ssh = Some(option.text(SSH)?);
            }
            "runtime" if option.value.starts_with('/') => {
                host.runtime_dir = Word::new(option.value);
            }
            "runtime" => return Err(option.fault("runtime=DIR with an absolute path")),
            "name" => host.name = Some(option.text("name=TEXT with a text")?),
            _ => return Err(option.fault(OPTION)),
        }
    }
    if let Some(control) = host.control
        && (control == host.address || host.interfaces.contains(&control))
    {
        let found = format!("control={control}");
        return Err(Fault::new(
            &found,
            "control=ADDRESS, not one of the node's interfaces",
        ));
    }
    let is_link_local = |ip: &IpAddr| scopes.iter().any(|(scoped, _)| scoped == ip);
    if host.addresses().filter(is_link_local).count() > 1 {
        return Err(Fault::because(format!(
            "found several link-local addresses of node {node}, expected at most one: packets to \
             them could use any interface"
        )));
    }
    host.scopes = scopes;
    Ok(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_line_gives_every_field_and_a_short_one_the_defaults() {
        let hosts = Hosts::parse(
            "# cluster\n\n1 10.0.0.1 # first\n 2\tfd00::2 port=99 slots=4 ssh=me@b runtime=/r name=b\n",
        )
        .unwrap();
        let short = hosts.get(NodeId(1)).unwrap();
        assert_eq!(short.directory().to_string(), "10.0.0.1:7411");
        assert_eq!((short.slots, &short.ssh), (1, &None));
        let full = hosts.get(NodeId(2)).unwrap();
        assert_eq!(full.directory().to_string(), "[fd00::2]:99");
        assert_eq!(full.slots, 4);
        assert_eq!(full.ssh.as_deref(), Some("me@b"));
        assert_eq!(full.runtime_dir.as_deref(), Some("/r"));
        assert_eq!(full.name.as_deref(), Some("b"));
        assert_eq!(hosts.count(), 2);
        assert!(!hosts.is_local_only());
        assert!(hosts.get(NodeId(3)).is_none());
    }

    #[test]
    fn without_a_file_the_node_is_alone_on_loopback() {
        let hosts = Hosts::local_only(NodeId(9));
        assert!(hosts.is_local_only());
        assert!(hosts.get(NodeId(9)).unwrap().address.is_loopback());
    }

    #[test]
    fn a_broken_line_is_named_with_what_was_found_and_what_was_expected() {
        for (text, wanted) in [
            (
                "1 10.0.0.1\n0 10.0.0.2",
                "hosts:2: found `0`, expected a node number from 1",
            ),
            ("x 10.0.0.2", "hosts:1: found `x`, expected a node number"),
            ("4294967296 10.0.0.2", "expected a node number"),
            (
                "\n\n7",
                "hosts:3: found the end of the line, expected an IP address",
            ),
            ("7 # 10.0.0.1", "found the end of the line"),
            (
                "1 10.0.0",
                "found `10.0.0`, expected an IPv4 or IPv6 address",
            ),
            ("1 0.0.0.0", "expected the address of one host"),
            ("1 ff02::1", "expected the address of one host"),
            ("1 fe80::1", "expected `fe80::1%INTERFACE`"),
            (
                "1 fe80::1%none",
                "an interface of this machine after `%`; it has ",
            ),
            ("1 fd00::1%lo", "only link-local addresses"),
            (
                "1 10.0.0.1 port=0",
                "found `port=0`, expected port=N with N from 1 to 65535",
            ),
            ("1 10.0.0.1 port=65536", "expected port=N"),
            ("1 10.0.0.1 slots=0", "expected slots=N"),
            ("1 10.0.0.1 slots=-1", "expected slots=N"),
            ("1 10.0.0.1 slots=65537", "expected slots=N"),
            ("1 10.0.0.1 ssh=", "expected ssh=DEST"),
            ("1 10.0.0.1 ssh=-oProxyCommand=x", "expected ssh=DEST"),
            ("1 10.0.0.1 runtime=tmp", "absolute path"),
            ("1 10.0.0.1 name=", "expected name=TEXT"),
            (
                "1 10.0.0.1 colour=red",
                "found `colour=red`, expected port=P, interfaces=ADDRESS",
            ),
            (
                "1 10.0.0.1 interfaces=10.1.0.1,",
                "expected an IPv4 or IPv6",
            ),
            (
                "1 10.0.0.1 interfaces=10.0.0.1",
                "expected interfaces=ADDRESS",
            ),
            ("1 10.0.0.1 interfaces=10.1.0.1,10.1.0.1", "each once"),
            (
                "1 10.0.0.1 interfaces=10.1.0.1,10.2.0.1,10.3.0.1,10.4.0.1",
                "expected interfaces=ADDRESS",
            ),
            ("1 10.0.0.1 7411", "found `7411`, expected port=P"),
            (
                "1 10.0.0.1 port=1 port=2",
                "found `port=2`, expected `port=` only once",
            ),
            (
                "1 10.0.0.1\n1 10.0.0.2",
                "hosts:2: found node 1 again, expected each node once (first in line 1)",
            ),
            (
                "1 10.0.0.1\n\n2 10.0.0.1",
                "hosts:3: found directory 10.0.0.1:7411 again",
            ),
            ("# nothing\n", "hosts: found no line"),
        ] {
            let error = Hosts::parse(text).unwrap_err().to_string();
            assert!(error.contains(wanted), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_interface_that_both_nodes_have_is_no_way_between_them() {
        let text =
            "1 10.0.0.1 interfaces=172.17.0.1,10.1.0.1\n2 10.0.0.2 interfaces=172.17.0.1,10.1.0.2";
        let hosts = Hosts::parse(text).unwrap();
        let second = hosts.get(NodeId(2)).unwrap();
        let directories = |from| -> Vec<String> {
            let directories = hosts.directories_as_seen_from(NodeId(from), second);
            directories.iter().map(|to| to.ip().to_string()).collect()
        };
        assert_eq!(directories(1), ["10.0.0.2", "10.1.0.2"]);
        assert_eq!(directories(3), ["10.0.0.2", "172.17.0.1", "10.1.0.2"]);
        // Nodes of one machine have the same address and different ports.
        let hosts = Hosts::parse("1 127.0.0.1\n2 127.0.0.1 port=7412").unwrap();
        let second = hosts.get(NodeId(2)).unwrap();
        assert_eq!(hosts.directories_as_seen_from(NodeId(1), second).len(), 1);
    }

    #[test]
    fn a_node_is_queried_on_its_control_network_first_then_on_each_interface_and_its_line_reads_back()
     {
        let text = "1 10.0.0.1 port=9 interfaces=10.1.0.1,fd00::1 control=10.9.0.1 slots=2 ssh=a@b runtime=/r name=n";
        let hosts = Hosts::parse(text).unwrap();
        let host = hosts.get(NodeId(1)).unwrap();
        assert_eq!(host.line(), text);
        let directories = host.directories();
        let directories: Vec<String> = directories.iter().map(ToString::to_string).collect();
        assert_eq!(
            directories,
            ["10.9.0.1:9", "10.0.0.1:9", "10.1.0.1:9", "[fd00::1]:9"]
        );
        for same in [
            "1 10.0.0.1 control=10.0.0.1",
            "1 10.0.0.1 control=10.1.0.1 interfaces=10.1.0.1",
        ] {
            let error = Hosts::parse(same).unwrap_err().to_string();
            assert!(
                error.contains("not one of the node's interfaces"),
                "{error}"
            );
        }
    }

    #[test]
    fn followed_files_give_their_present_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nodes");
        assert!(Hosts::load_agents(&file).unwrap().is_none());
        std::fs::write(&file, "1 10.0.0.1\n").unwrap();
        let of_agent = Hosts::load_agents(&file).unwrap().unwrap();
        let followed = Hosts::load_followed(&file).unwrap();
        assert!(of_agent.is_from_agent() && !followed.is_from_agent());
        assert!(Hosts::load(&file).unwrap().reload().is_none());
        std::fs::write(&file, "1 10.0.0.1\n2 10.0.0.2\n").unwrap();
        for hosts in [of_agent, followed] {
            let now = hosts.reload().unwrap();
            assert_eq!(
                (now.count(), now.is_from_agent()),
                (2, hosts.is_from_agent())
            );
            assert_eq!(now.reload().unwrap(), now);
        }
        std::fs::write(&file, "nonsense").unwrap();
        assert!(Hosts::load_followed(&file).is_err());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let error = Hosts::load(Path::new("/nowhere/hosts")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/hosts"), "{error}");
    }
}

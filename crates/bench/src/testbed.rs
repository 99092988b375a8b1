//! Places where the two sides run: two network namespaces on a veth cable, loopback, one node
//! without a network, or two hosts.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum;
use dipole_model::Wire;
use dipole_testbed::{Faults, Folder, Pair, Testbed as Cluster, TestbedError as NetworkError};

use crate::remote::Remote;
use crate::work::{Carrier, Placement, Role, name_of};

/// Folder of named network namespaces.
const NAMESPACES: &str = "/run/netns";
const LOOPBACK: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];

/// The testbed to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum On {
    /// Namespaces and a veth pair with enough privileges, else loopback
    Auto,
    /// Two network namespaces on a veth pair (needs root)
    Veth,
    /// Two nodes on the loopback interface: 127.0.0.1 and 127.0.0.2.
    Loopback,
    /// One node with both sides
    Node,
}

/// A path between two network namespaces that takes time of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowPath {
    /// Every frame is held this long on its way.
    pub delay: Option<Duration>,
    /// Rate of both interfaces in Mbit/s.
    pub rate_mbit: Option<u64>,
}

/// MTU of a slow path.
const MTU_BYTES: u32 = 1500;

/// Reason why a testbed cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum TestbedError {
    #[error("{0}; run as root or use --on loopback")]
    Network(#[from] NetworkError),
    #[error("cannot use the folder {path}: {cause}; set TMPDIR to one that can be written")]
    Folder { path: PathBuf, cause: io::Error },
}

/// The network between the two sides.
enum Network {
    Veth(Pair),
    Path(SlowPath, Box<Cluster>),
    Loopback(Folder),
    Hosts(Folder, Box<Remote>),
}

/// A testbed; dropping it removes its namespaces and files.
pub struct Testbed {
    network: Network,
    /// Why `--on auto` has not created a veth pair.
    remark: Option<String>,
}

impl Testbed {
    /// Creates a testbed for two nodes; one node needs only a folder.
    ///
    /// # Errors
    /// [`TestbedError`].
    pub fn create(on: On) -> Result<Self, TestbedError> {
        let (network, remark) = match on {
            On::Loopback | On::Node => (Network::Loopback(Folder::create()?), None),
            On::Veth => (Network::Veth(Pair::create()?), None),
            On::Auto => match Pair::create() {
                Ok(pair) => (Network::Veth(pair), None),
                Err(error) => (
                    Network::Loopback(Folder::create()?),
                    Some(error.to_string()),
                ),
            },
        };
        let testbed = Self { network, remark };
        testbed.write_hosts_file()?;
        Ok(testbed)
    }

    /// Creates a testbed whose two nodes are joined by a slow path: through a bridge whose interfaces
    /// are shaped, or with a delay through a switch in user space, because not every kernel has netem.
    ///
    /// # Errors
    /// [`TestbedError`].
    pub fn on_path(path: SlowPath) -> Result<Self, TestbedError> {
        let mut builder = Cluster::builder().nodes(2).mtu(MTU_BYTES);
        if let Some(rate) = path.rate_mbit {
            builder = builder.rate_mbit(rate);
        }
        if let Some(delay) = path.delay {
            builder = builder.faults(Faults {
                delay: 1.0,
                delay_time: delay,
                ..Faults::default()
            });
        }
        Ok(Self {
            network: Network::Path(path, Box::new(builder.build()?)),
            remark: None,
        })
    }

    /// Returns the network between two nodes, if its speed is known.
    pub fn wire(&self, place: Placement) -> Option<Wire> {
        match (place, &self.network) {
            (Placement::TwoNodes, Network::Path(path, _)) => Some(Wire {
                mbit: path.rate_mbit?,
                mtu_bytes: MTU_BYTES as usize,
                delay_ns: path.delay.map_or(0.0, |delay| delay.as_secs_f64() * 1e9),
            }),
            _ => None,
        }
    }

    /// Creates a testbed of this host and another one.
    ///
    /// # Errors
    /// [`TestbedError`].
    pub fn of_hosts(remote: Remote) -> Result<Self, TestbedError> {
        Ok(Self {
            network: Network::Hosts(Folder::create()?, Box::new(remote)),
            remark: None,
        })
    }

    /// Returns the other host, if there is one.
    pub fn remote(&self) -> Option<&Remote> {
        match &self.network {
            Network::Hosts(_, remote) => Some(remote),
            _ => None,
        }
    }

    /// Returns why `--on auto` has not created a veth pair, if so.
    pub fn remark(&self) -> Option<&str> {
        self.remark.as_deref()
    }

    /// Returns "hosts", "veth", "path", "loopback" or "node".
    pub fn name(&self, place: Placement) -> &'static str {
        match (place, &self.network) {
            (Placement::OneNode, _) => "node",
            (_, Network::Hosts(..)) => "hosts",
            (_, Network::Veth(_)) => "veth",
            (_, Network::Path(..)) => "path",
            (_, Network::Loopback(_)) => "loopback",
        }
    }

    /// Describes the network between two nodes.
    pub fn description(&self) -> String {
        match &self.network {
            Network::Hosts(_, remote) => {
                let ((own, from), (other, to)) = (remote.own, remote.other);
                let machine = &remote.machine.description;
                format!("two hosts, node {own} ({from}) to node {other} ({to}: {machine})")
            }
            Network::Veth(pair) => pair.description(),
            Network::Path(_, cluster) => cluster.description(),
            Network::Loopback(_) => "loopback".to_owned(),
        }
    }

    /// Returns this side's address and the other's.
    pub fn addresses(&self, place: Placement, role: Role) -> (IpAddr, IpAddr) {
        let [lead, follow] = match (place, &self.network) {
            (Placement::TwoNodes, Network::Hosts(_, remote)) => {
                return role.own_and_other(remote.own.1, remote.other.1);
            }
            (Placement::OneNode, _) => [LOOPBACK[0]; 2],
            (Placement::TwoNodes, Network::Veth(_)) => Pair::ADDRESSES,
            (Placement::TwoNodes, Network::Path(_, cluster)) => {
                [1, 2].map(|node| cluster.node(node).addresses[0])
            }
            (Placement::TwoNodes, Network::Loopback(_)) => LOOPBACK,
        };
        role.own_and_other(lead.into(), follow.into())
    }

    /// Returns the network namespace of a side, as a path.
    pub fn namespace(&self, place: Placement, role: Role) -> Option<PathBuf> {
        let [lead, follow] = match &self.network {
            Network::Veth(pair) => pair.namespaces().each_ref(),
            Network::Path(_, cluster) => [1, 2].map(|node| &cluster.node(node).namespace),
            _ => return None,
        };
        let (name, _) = role.own_and_other(lead, follow);
        (place == Placement::TwoNodes).then(|| Path::new(NAMESPACES).join(name))
    }

    /// Returns the folder for files of this run.
    pub fn folder(&self) -> &Path {
        match &self.network {
            Network::Veth(pair) => pair.folder(),
            Network::Path(_, cluster) => cluster.folder(),
            Network::Loopback(folder) | Network::Hosts(folder, _) => folder.path(),
        }
    }

    /// Returns the prefix of the paths of sockets and pipes.
    pub fn socket_prefix(&self) -> PathBuf {
        self.folder().join("meet")
    }

    /// Returns the environment variables of a Dipole node on this testbed.
    pub fn environment(
        &self,
        place: Placement,
        role: Role,
        carrier: Carrier,
    ) -> Vec<(&'static str, OsString)> {
        let link = ("DIPOLE_LINK", name_of(carrier).into());
        if let (Placement::TwoNodes, Some(remote)) = (place, self.remote()) {
            let mut environment = remote.environment.clone();
            environment.push(link);
            return environment;
        }
        let (hosts, registry) = match place {
            // An empty value counts as absent and hides the user's hosts file.
            Placement::OneNode => (OsString::new(), "one-node"),
            Placement::TwoNodes => (self.hosts_file().into(), "registry"),
        };
        vec![
            ("DIPOLE_NID", self.node(place, role).to_string().into()),
            ("DIPOLE_HOSTS", hosts),
            ("DIPOLE_RUNTIME_DIR", self.folder().join(registry).into()),
            link,
        ]
    }

    /// Returns the id of a side's node.
    pub fn node(&self, place: Placement, role: Role) -> u32 {
        match (place, role, self.remote()) {
            (Placement::TwoNodes, Role::Lead, Some(remote)) => remote.own.0.0,
            (Placement::TwoNodes, Role::Follow, Some(remote)) => remote.other.0.0,
            (Placement::TwoNodes, Role::Follow, None) => 2,
            _ => 1,
        }
    }

    fn hosts_file(&self) -> PathBuf {
        self.folder().join("hosts")
    }

    fn write_hosts_file(&self) -> Result<(), TestbedError> {
        let failed = |cause| TestbedError::Folder {
            path: self.folder().to_owned(),
            cause,
        };
        let (one, two) = self.addresses(Placement::TwoNodes, Role::Lead);
        let mut text = String::new();
        for (node, address) in [(1, one), (2, two)] {
            // In a namespace of its own the default port is free; on loopback it may not be.
            let port = match &self.network {
                Network::Veth(_) => String::new(),
                _ => {
                    let port = UdpSocket::bind((address, 0)).and_then(|socket| socket.local_addr());
                    format!(" port={}", port.map_err(failed)?.port())
                }
            };
            text += &format!("{node} {address}{port}\n");
        }
        fs::write(self.hosts_file(), text).map_err(failed)
    }
}

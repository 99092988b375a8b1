//! A made testbed: where its nodes are, and what can be done with them.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::belongings;
use crate::builder::Builder;
use crate::error::TestbedError;
use crate::fault::FaultCounters;
use crate::names;
use crate::namespace::{self, ip};
use crate::network::{self, Interface, PortCounters};
use crate::switch::Switch;

/// The port of a node's directory; in a namespace of its own the usual one is free.
const DIRECTORY_PORT: u16 = 7411;

/// Called as `remote-shell DEST COMMAND-LINE`, like ssh.
const REMOTE_SHELL: &str = "#!/bin/sh\ndest=$1\nshift\nexec ip netns exec \"$dest\" sh -c \"$*\"\n";

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// The name of its network namespace, also its `ssh=` in the hosts file.
    pub namespace: String,
    /// Its address on each network.
    pub addresses: Vec<Ipv4Addr>,
    /// Its runtime directory.
    pub runtime_dir: PathBuf,
}

/// A cluster in network namespaces. Dropping it takes it away, with all processes in it.
pub struct Testbed {
    number: u32,
    settings: Builder,
    folder: PathBuf,
    nodes: Vec<NodePlace>,
    switches: Vec<Switch>,
    offloads: &'static str,
}

impl Testbed {
    /// Says what testbed is wanted.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Why no testbed can be made here, if so; for tests that skip aloud.
    #[must_use]
    pub fn why_not() -> Option<String> {
        let user = rustix::process::geteuid();
        if !user.is_root() {
            let user = user.as_raw();
            return Some(format!("network namespaces need root, not user {user}"));
        }
        for program in ["ip", "tc", "bridge"] {
            let mut command = Command::new(program);
            command
                .arg("-V")
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if let Err(error) = command.status() {
                return Some(format!("cannot run {program} (install iproute2): {error}"));
            }
        }
        let name = names::probe();
        let tried = ip(&format!("netns add {name}"));
        // Taken away even if half made: `ip` may have left the name.
        let deleted = ip(&format!("netns delete {name}"));
        let failed = tried.and(deleted).err()?;
        Some(format!("no namespace can be made: {failed}"))
    }

    pub(crate) fn make(settings: Builder) -> Result<Self, TestbedError> {
        if let Some(why) = Self::why_not() {
            return Err(TestbedError::NotHere { why });
        }
        belongings::sweep();
        let number = belongings::register()?;
        // From here on, failing drops it, and dropping removes what there is.
        let mut testbed = Self {
            number,
            settings,
            folder: PathBuf::new(),
            nodes: Vec::new(),
            switches: Vec::new(),
            offloads: "",
        };
        testbed.folder = belongings::make_folder(number)?;
        for node in 1..=testbed.settings.nodes {
            testbed.make_node(node)?;
        }
        testbed.join_nodes()?;
        testbed.write_files()?;
        Ok(testbed)
    }

    /// How many nodes there are; they are counted from 1.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.settings.nodes
    }

    /// Where a node is.
    ///
    /// # Panics
    /// If there is none of this number.
    #[must_use]
    pub fn node(&self, node: u32) -> &NodePlace {
        let index = usize::try_from(node)
            .ok()
            .and_then(|node| node.checked_sub(1));
        index
            .and_then(|index| self.nodes.get(index))
            .unwrap_or_else(|| panic!("node {node}: there are 1 to {}", self.nodes.len()))
    }

    /// A program inside a node, which finds itself in its environment. What the
    /// caller's environment says about Dipole is hidden from it.
    #[must_use]
    pub fn command(&self, node: u32, program: impl AsRef<OsStr>) -> Command {
        let place = self.node(node);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &place.namespace]);
        command.arg(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("DIPOLE_") {
                command.env_remove(name);
            }
        }
        command.envs(self.environment(node));
        command
    }

    /// What [`command`](Self::command) sets.
    #[must_use]
    pub fn environment(&self, node: u32) -> [(&'static str, String); 3] {
        [
            ("DIPOLE_NID", node.to_string()),
            ("DIPOLE_HOSTS", self.hosts_file().display().to_string()),
            (
                "DIPOLE_RUNTIME_DIR",
                self.node(node).runtime_dir.display().to_string(),
            ),
        ]
    }

    /// Runs a function on a thread inside a node. A socket made there stays there.
    ///
    /// # Errors
    /// When the namespace cannot be entered.
    pub fn inside<T: Send>(&self, node: u32, function: impl FnOnce() -> T + Send) -> io::Result<T> {
        namespace::inside(&self.node(node).namespace, function)
    }

    /// The hosts file: all nodes with their addresses, those on further networks as `interfaces=`.
    #[must_use]
    pub fn hosts_file(&self) -> PathBuf {
        self.folder.join("hosts")
    }

    /// A stand-in for ssh that understands the hosts file: `--rsh` of `dipole run`.
    #[must_use]
    pub fn remote_shell(&self) -> PathBuf {
        self.folder.join("remote-shell")
    }

    /// A folder that goes with the testbed.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes a node's interface off a network, or puts it back; returns when the bridge knows.
    ///
    /// # Errors
    /// - [`TestbedError::Command`]: `ip` failed; so it does for a network that there is not.
    pub fn set_interface(&self, node: u32, network: u32, up: bool) -> Result<(), TestbedError> {
        let (namespace, device) = (&self.node(node).namespace, names::interface(network));
        let state = if up { "up" } else { "down" };
        ip(&format!("-n {namespace} link set {device} {state}"))?;
        if self.settings.faults.is_some() {
            return Ok(());
        }
        network::wait_for_port(&names::hub(self.number), node, network, up)
    }

    /// Ends every process in a node with SIGKILL; says how many there were.
    ///
    /// # Errors
    /// - [`TestbedError::Namespace`]: some do not end.
    pub fn kill_node(&self, node: u32) -> Result<usize, TestbedError> {
        let name = &self.node(node).namespace;
        namespace::kill_all(name).map_err(|cause| TestbedError::Namespace {
            namespace: name.clone(),
            doing: "ending all processes",
            cause,
        })
    }

    /// What the switches of all networks together have done; zeros on a testbed without faults.
    #[must_use]
    pub fn fault_counters(&self) -> FaultCounters {
        let all = self.switches.iter().map(Switch::counters);
        all.fold(FaultCounters::default(), FaultCounters::plus)
    }

    /// What the switch port of a node has done, on a testbed with a rate.
    ///
    /// # Errors
    /// - [`TestbedError::Command`]: `tc` failed; so it does where nothing is shaped.
    pub fn port_counters(&self, node: u32, network: u32) -> Result<PortCounters, TestbedError> {
        network::port_counters(&names::hub(self.number), node, network)
    }

    /// What a shaped interface or port may send at once, beyond its rate.
    #[must_use]
    pub fn burst_bytes(&self) -> u64 {
        let burst = |rate| network::burst_bytes(rate, self.settings.mtu);
        self.settings.rate_mbit.map_or(0, burst)
    }

    /// One line: what this testbed is and how its interfaces were set.
    #[must_use]
    pub fn description(&self) -> String {
        let settings = &self.settings;
        let mut text = format!(
            "{} nodes, {} network(s), MTU {}",
            settings.nodes, settings.networks, settings.mtu
        );
        if let Some(rate) = settings.rate_mbit {
            let burst = network::burst_bytes(rate, settings.mtu);
            let _infallible = write!(text, ", {rate} Mbit/s in bursts of {burst} bytes");
            if settings.faults.is_none() {
                let queue = settings.queue_in_force();
                let _infallible = write!(text, ", {queue} bytes queued per switch port");
            }
        }
        if let Some(faults) = &settings.faults {
            let _infallible = write!(
                text,
                ", a switch in user space with drop={} repeat={} reorder={} delay={}:{:?} \
                 corrupt={} seed={}",
                faults.drop,
                faults.repeat,
                faults.reorder,
                faults.delay,
                faults.delay_time,
                faults.corrupt,
                faults.seed
            );
        }
        let _infallible = write!(text, "; {}", self.offloads);
        text
    }

    fn make_node(&mut self, node: u32) -> Result<(), TestbedError> {
        let name = names::node(self.number, node);
        belongings::make_namespace(self.number, &name)?;
        ip(&format!("-n {name} link set lo up"))?;
        let runtime_dir = self.folder.join(format!("run-{node}"));
        fs::create_dir(&runtime_dir).map_err(|cause| TestbedError::Folder {
            path: runtime_dir.clone(),
            cause,
        })?;
        let addresses = (0..self.settings.networks).map(|network| address(network, node));
        self.nodes.push(NodePlace {
            namespace: name,
            addresses: addresses.collect(),
            runtime_dir,
        });
        Ok(())
    }

    fn join_nodes(&mut self) -> Result<(), TestbedError> {
        let hub = names::hub(self.number);
        if self.settings.faults.is_none() {
            belongings::make_namespace(self.number, &hub)?;
        }
        for network in 0..self.settings.networks {
            let interfaces: Vec<Interface<'_>> = (1..)
                .zip(&self.nodes)
                .map(|(node, place)| Interface {
                    node,
                    namespace: &place.namespace,
                    address: address(network, node),
                })
                .collect();
            if let Some(faults) = self.settings.faults {
                let switch = network::switch(&self.settings, faults, network, &interfaces)?;
                self.offloads = "TAP devices, which have no offloads";
                self.switches.push(switch);
            } else {
                self.offloads = network::bridge(&self.settings, network, &hub, &interfaces)?;
            }
        }
        Ok(())
    }

    fn write_files(&self) -> Result<(), TestbedError> {
        let mut hosts = String::new();
        for (node, place) in (1..).zip(&self.nodes) {
            let further: Vec<String> = place.addresses[1..]
                .iter()
                .map(ToString::to_string)
                .collect();
            let interfaces = match further.is_empty() {
                true => String::new(),
                false => format!(" interfaces={}", further.join(",")),
            };
            let _infallible = writeln!(
                hosts,
                "{node} {}{interfaces} port={DIRECTORY_PORT} slots={} runtime={} ssh={}",
                address(0, node),
                self.settings.slots,
                place.runtime_dir.display(),
                place.namespace
            );
        }
        let (file, shell) = (self.hosts_file(), self.remote_shell());
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |cause| TestbedError::Folder { path, cause }
        };
        fs::write(&file, hosts).map_err(failed(&file))?;
        fs::write(&shell, REMOTE_SHELL).map_err(failed(&shell))?;
        fs::set_permissions(&shell, fs::Permissions::from_mode(0o755)).map_err(failed(&shell))
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // First those who hold the interfaces: a device goes with its namespace only when nobody does.
        self.switches.clear();
        belongings::remove(self.number);
    }
}

/// `10.<network>.0.<node>`.
fn address(network: u32, node: u32) -> Ipv4Addr {
    let byte = |number: u32| u8::try_from(number).expect("the builder has checked");
    Ipv4Addr::new(10, byte(network), 0, byte(node))
}

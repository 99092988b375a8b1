//! A testbed: creation, its nodes, and operations on them.

use std::ffi::OsStr;
use std::fmt::Write;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cleanup;
use crate::error::TestbedError;
use crate::fault::{FaultCounters, Faults};
use crate::names;
use crate::namespace::{self, ip};
use crate::network::{self, Interface, PortCounters};
use crate::settings::Settings;
use crate::switch::Switch;

/// The port of a node's directory. In a namespace of its own the default is free.
const DIRECTORY_PORT: u16 = 7411;

/// Invoked as `remote-shell DEST COMMAND-LINE`, like ssh.
const REMOTE_SHELL: &str = "#!/bin/sh\ndest=$1\nshift\nexec ip netns exec \"$dest\" sh -c \"$*\"\n";

/// Namespace, addresses and folder of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Name of the network namespace, which is also `ssh=` in the hosts file.
    pub namespace: String,
    /// Address on each network.
    pub addresses: Vec<Ipv4Addr>,
    /// Runtime directory of the node.
    pub runtime_dir: PathBuf,
}

/// A cluster in network namespaces. Dropping it removes it and kills all processes in it.
pub struct Testbed {
    number: u32,
    settings: Settings,
    folder: PathBuf,
    nodes: Vec<NodePlace>,
    switches: Vec<Switch>,
    offloads: &'static str,
}

impl Testbed {
    /// Returns why testbeds cannot be created here, if so. Tests print it and skip.
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
        // Delete it even after an error, because `ip` may have left the name.
        let deleted = ip(&format!("netns delete {name}"));
        let failed = tried.and(deleted).err()?;
        Some(format!("cannot create network namespaces: {failed}"))
    }

    pub(crate) fn create(settings: Settings) -> Result<Self, TestbedError> {
        if let Some(why) = Self::why_not() {
            return Err(TestbedError::NotHere { why });
        }
        let number = match &settings.enclosure {
            Some(_) => cleanup::register(false)?,
            None => {
                cleanup::sweep();
                cleanup::register(true)?
            }
        };
        // After an error from here on, dropping removes what exists.
        let mut testbed = Self {
            number,
            settings,
            folder: PathBuf::new(),
            nodes: Vec::new(),
            switches: Vec::new(),
            offloads: "",
        };
        let parent = testbed.settings.enclosure.clone();
        testbed.folder = cleanup::create_folder(number, parent)?;
        for node in 1..=testbed.settings.nodes {
            testbed.create_node(node)?;
        }
        testbed.join_nodes()?;
        testbed.write_files()?;
        Ok(testbed)
    }

    /// Returns the number of nodes, which are counted from 1.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.settings.nodes
    }

    /// Returns the place of a node.
    ///
    /// # Panics
    /// If the node does not exist.
    #[must_use]
    pub fn node(&self, node: u32) -> &NodePlace {
        let index = usize::try_from(node)
            .ok()
            .and_then(|node| node.checked_sub(1));
        index
            .and_then(|index| self.nodes.get(index))
            .unwrap_or_else(|| {
                panic!(
                    "node {node} does not exist: there are 1 to {}",
                    self.nodes.len()
                )
            })
    }

    /// Returns a command that runs a program inside a node, with the variables of the node and
    /// without the Dipole variables of the caller.
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
        // The user's profiles and keys do not belong to this cluster.
        command.env("XDG_CONFIG_HOME", self.folder.join("config"));
        command.envs(self.environment(node));
        command
    }

    /// Returns the variables that [`command`](Self::command) sets.
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

    /// Runs a function on a thread inside a node. Sockets created there stay there.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn inside<T: Send>(&self, node: u32, function: impl FnOnce() -> T + Send) -> io::Result<T> {
        namespace::inside(&self.node(node).namespace, function)
    }

    /// Returns the hosts file, with all nodes and their addresses; those on further networks are in
    /// `interfaces=`.
    #[must_use]
    pub fn hosts_file(&self) -> PathBuf {
        self.folder.join("hosts")
    }

    /// Returns a substitute for ssh, for the option `--rsh` of `dipole run`.
    #[must_use]
    pub fn remote_shell(&self) -> PathBuf {
        self.folder.join("remote-shell")
    }

    /// Returns a folder that is removed with the testbed.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes an interface of a node down or up, and returns when the bridge has noticed it.
    ///
    /// # Errors
    /// - [`TestbedError::Command`]: `ip` failed, for example because the network does not exist.
    pub fn set_interface(&self, node: u32, network: u32, up: bool) -> Result<(), TestbedError> {
        let (namespace, device) = (&self.node(node).namespace, names::interface(network));
        let state = if up { "up" } else { "down" };
        ip(&format!("-n {namespace} link set {device} {state}"))?;
        if self.settings.faults.is_some() {
            return Ok(());
        }
        network::wait_for_port(&names::hub(self.number), node, network, up)
    }

    /// Replaces the probabilities of faults. Works only on a testbed that was built with faults, which
    /// may be zero.
    ///
    /// # Errors
    /// - [`TestbedError::Refused`]: a probability is invalid, or the testbed has no switch.
    pub fn set_faults(&self, faults: Faults) -> Result<(), TestbedError> {
        faults.check()?;
        self.check_switch()?;
        for switch in &self.switches {
            switch.set_faults(faults);
        }
        Ok(())
    }

    /// Cuts a node off a network, or connects it again. Its interface stays up, and all its frames
    /// are lost. Works only on a testbed that was built with faults, which may be zero.
    ///
    /// # Errors
    /// - [`TestbedError::Refused`]: the testbed has no switch, or no such network or node.
    pub fn set_cut(&self, node: u32, network: u32, cut: bool) -> Result<(), TestbedError> {
        self.check_switch()?;
        let index = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let switch = self.switches.get(index(network));
        let Some(switch) = switch.filter(|_| (1..=self.nodes()).contains(&node)) else {
            let why = format!("node {node} or network {network} does not exist");
            return Err(TestbedError::Refused { why });
        };
        switch.set_cut(index(node - 1), cut);
        Ok(())
    }

    fn check_switch(&self) -> Result<(), TestbedError> {
        match self.switches.is_empty() {
            true => Err(TestbedError::Refused {
                why: "a testbed that was built without faults cannot have any; give the builder \
                      Faults::default()"
                    .into(),
            }),
            false => Ok(()),
        }
    }

    /// Kills every process in a node with SIGKILL and returns their number.
    ///
    /// # Errors
    /// - [`TestbedError::Namespace`]: some processes do not exit.
    pub fn kill_node(&self, node: u32) -> Result<usize, TestbedError> {
        let name = &self.node(node).namespace;
        namespace::kill_all(name).map_err(|cause| TestbedError::Namespace {
            namespace: name.clone(),
            doing: "ending all processes",
            cause,
        })
    }

    /// Returns the sum of the counters of all switches; zeros on a testbed without faults.
    #[must_use]
    pub fn fault_counters(&self) -> FaultCounters {
        let all = self.switches.iter().map(Switch::counters);
        all.fold(FaultCounters::default(), FaultCounters::plus)
    }

    /// Returns the counters of the switch port of a node, on a testbed with a limited rate.
    ///
    /// # Errors
    /// - [`TestbedError::Command`]: `tc` failed, for example because the rate is not limited.
    pub fn port_counters(&self, node: u32, network: u32) -> Result<PortCounters, TestbedError> {
        network::port_counters(&names::hub(self.number), node, network)
    }

    /// Returns how many bytes a shaped interface or port may send at once.
    #[must_use]
    pub fn burst_bytes(&self) -> u64 {
        let burst = |rate| network::burst_bytes(rate, self.settings.mtu);
        self.settings.rate_mbit.map_or(0, burst)
    }

    /// Describes the testbed and the settings of its interfaces in one line.
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
                let queue = settings.effective_queue_bytes();
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

    fn create_node(&mut self, node: u32) -> Result<(), TestbedError> {
        let name = names::node(self.number, node);
        cleanup::create_namespace(self.number, &name)?;
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
            cleanup::create_namespace(self.number, &hub)?;
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
        // Stop the switches first: their devices are removed only when nothing holds them open.
        self.switches.clear();
        cleanup::remove(self.number);
    }
}

/// `10.<network>.0.<node>`.
fn address(network: u32, node: u32) -> Ipv4Addr {
    let byte = |number: u32| u8::try_from(number).expect("the builder has checked");
    Ipv4Addr::new(10, byte(network), 0, byte(node))
}

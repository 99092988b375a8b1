//! Where the two sides run: two network namespaces of our own on a veth pair, loopback, or one node
//! without a network. Everything made here is removed however the program ends; the next run removes
//! what a killed one left.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use clap::ValueEnum;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use super::control::{Carrier, Placement, Role, name_of};
use super::remote::Remote;

/// Where `ip netns` keeps its names.
const NAMESPACES: &str = "/run/netns";
/// What our names begin with; the process id and `a` or `b` follow.
const PREFIX: &str = "dpb";
/// What our folders in the temporary directory begin with; the process id follows.
const FOLDER_PREFIX: &str = "dipole-bench-";
const MTU_BYTES: u32 = 1500;
/// The interface in each namespace, and the subnet of both.
pub(crate) const INTERFACE: &str = "veth0";
pub(crate) const SUBNET: &str = "10.97.0.0/24";
const VETH: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 97, 0, 1), Ipv4Addr::new(10, 97, 0, 2)];
const LOOPBACK: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];

/// The testbed to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum On {
    /// Namespaces and a veth pair with enough privileges, else loopback
    Auto,
    /// Two network namespaces of our own on a veth pair (needs root)
    Veth,
    /// 127.0.0.1 and 127.0.0.2
    Loopback,
    /// One node with both sides
    Node,
}

/// Why there is no testbed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TestbedError {
    #[error("cannot make network namespaces as user {user}; run as root or use --on loopback")]
    NotRoot { user: u32 },
    #[error(
        "cannot make a veth testbed: `{command}` failed: {cause}; install iproute2 and run \
         with CAP_NET_ADMIN and CAP_SYS_ADMIN, or use --on loopback"
    )]
    Ip { command: String, cause: String },
    #[error("cannot use the folder {path}: {cause}; set TMPDIR to one that can be written")]
    Folder { path: PathBuf, cause: io::Error },
    /// Signals cannot be watched, so nothing would be cleaned up.
    #[error("cannot watch for signals: {0}")]
    Signals(io::Error),
}

/// What has been made and must be removed.
#[derive(Debug, Default)]
struct Belongings {
    namespaces: Vec<String>,
    folder: Option<PathBuf>,
}

impl Belongings {
    fn remove(&mut self) {
        for name in self.namespaces.drain(..) {
            delete_namespace(&name);
        }
        if let Some(folder) = self.folder.take() {
            let _may_be_gone = fs::remove_dir_all(folder);
        }
    }
}

/// A testbed; dropping it removes it.
pub(crate) struct Testbed {
    belongings: Arc<Mutex<Belongings>>,
    signals: Handle,
    folder: PathBuf,
    veth: bool,
    /// The two hosts, if that is what it is.
    remote: Option<Remote>,
    /// Why it is not a veth pair, if that was left open.
    pub(crate) remark: Option<String>,
}

impl Testbed {
    /// Makes a testbed for two nodes; one node needs only a folder.
    pub(crate) fn make(on: On) -> Result<Self, TestbedError> {
        sweep();
        let belongings = Arc::new(Mutex::new(Belongings::default()));
        let signals =
            clean_up_on_signals(Arc::clone(&belongings)).map_err(TestbedError::Signals)?;
        let folder = std::env::temp_dir().join(format!("{FOLDER_PREFIX}{}", std::process::id()));
        let mut testbed = Self {
            belongings,
            signals,
            folder,
            veth: false,
            remote: None,
            remark: None,
        };
        match on {
            On::Loopback | On::Node => {}
            On::Veth => {
                testbed.make_namespaces()?;
                testbed.veth = true;
            }
            On::Auto => match testbed.make_namespaces() {
                Ok(()) => testbed.veth = true,
                Err(error) => testbed.remark = Some(error.to_string()),
            },
        }
        testbed.make_folder()?;
        Ok(testbed)
    }

    /// This host and another one.
    pub(crate) fn of_hosts(remote: Remote) -> Result<Self, TestbedError> {
        let mut testbed = Self::make(On::Node)?;
        testbed.remote = Some(remote);
        Ok(testbed)
    }

    /// The other host, if there is one.
    pub(crate) fn remote(&self) -> Option<&Remote> {
        self.remote.as_ref()
    }

    /// "hosts", "veth", "loopback" or "node".
    pub(crate) fn name(&self, place: Placement) -> &'static str {
        match place {
            Placement::OneNode => "node",
            Placement::TwoNodes if self.remote.is_some() => "hosts",
            Placement::TwoNodes if self.veth => "veth",
            Placement::TwoNodes => "loopback",
        }
    }

    /// One line about where things that lie apart lie.
    pub(crate) fn description(&self) -> String {
        if let Some(remote) = &self.remote {
            let ((own, from), (other, to)) = (remote.own, remote.other);
            let there = &remote.machine.description;
            format!("two hosts, node {own} ({from}) to node {other} ({to}: {there})")
        } else if self.veth {
            let [a, b] = namespace_names(std::process::id());
            format!("veth pair between the namespaces {a} and {b}, MTU {MTU_BYTES}")
        } else {
            "loopback".to_owned()
        }
    }

    /// This side's address and the other's.
    pub(crate) fn addresses(&self, place: Placement, role: Role) -> (IpAddr, IpAddr) {
        if let (Placement::TwoNodes, Some(remote)) = (place, &self.remote) {
            return role.own_and_other(remote.own.1, remote.other.1);
        }
        let [lead, follow] = match place {
            Placement::OneNode => [LOOPBACK[0]; 2],
            Placement::TwoNodes if self.veth => VETH,
            Placement::TwoNodes => LOOPBACK,
        };
        role.own_and_other(lead.into(), follow.into())
    }

    pub(crate) fn namespace(&self, place: Placement, role: Role) -> Option<PathBuf> {
        let [lead, follow] = namespace_names(std::process::id());
        let (name, _) = role.own_and_other(lead, follow);
        (self.veth && place == Placement::TwoNodes).then(|| Path::new(NAMESPACES).join(name))
    }

    /// For files of this run.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What names of sockets and pipes begin with.
    pub(crate) fn meeting(&self) -> PathBuf {
        self.folder.join("meet")
    }

    /// What a Dipole node on this testbed finds in its environment.
    pub(crate) fn environment(
        &self,
        place: Placement,
        role: Role,
        carrier: Carrier,
    ) -> Vec<(&'static str, OsString)> {
        let link = ("DIPOLE_LINK", name_of(carrier).into());
        if let (Placement::TwoNodes, Some(remote)) = (place, &self.remote) {
            let mut environment = remote.environment.clone();
            environment.push(link);
            return environment;
        }
        let (hosts, registry) = match place {
            // Empty is as good as absent, and hides what the user may have set.
            Placement::OneNode => (OsString::new(), "one-node"),
            Placement::TwoNodes => (self.hosts_file().into(), "registry"),
        };
        vec![
            ("DIPOLE_NID", self.node(place, role).to_string().into()),
            ("DIPOLE_HOSTS", hosts),
            ("DIPOLE_RUNTIME_DIR", self.folder.join(registry).into()),
            link,
        ]
    }

    /// The id of a side's node.
    pub(crate) fn node(&self, place: Placement, role: Role) -> u32 {
        match (place, role, &self.remote) {
            (Placement::TwoNodes, Role::Lead, Some(remote)) => remote.own.0.0,
            (Placement::TwoNodes, Role::Follow, Some(remote)) => remote.other.0.0,
            (Placement::TwoNodes, Role::Follow, None) => 2,
            _ => 1,
        }
    }

    fn hosts_file(&self) -> PathBuf {
        self.folder.join("hosts")
    }

    fn make_folder(&self) -> Result<(), TestbedError> {
        let failed = |cause| TestbedError::Folder {
            path: self.folder.clone(),
            cause,
        };
        let mut belongings = lock(&self.belongings);
        // One of our own process id can only be a dead program's.
        let _may_not_exist = fs::remove_dir_all(&self.folder);
        fs::create_dir(&self.folder).map_err(failed)?;
        belongings.folder = Some(self.folder.clone());
        let (one, two) = self.addresses(Placement::TwoNodes, Role::Lead);
        let mut text = String::new();
        for (node, address) in [(1, one), (2, two)] {
            // In a namespace of its own the usual port is free; on loopback others may be there.
            let port = if self.veth {
                String::new()
            } else {
                let port = UdpSocket::bind((address, 0)).and_then(|socket| socket.local_addr());
                format!(" port={}", port.map_err(failed)?.port())
            };
            text += &format!("{node} {address}{port}\n");
        }
        fs::write(self.hosts_file(), text).map_err(failed)
    }

    fn make_namespaces(&self) -> Result<(), TestbedError> {
        let user = rustix::process::geteuid();
        if !user.is_root() {
            return Err(TestbedError::NotRoot {
                user: user.as_raw(),
            });
        }
        // Held throughout: a signal waits until it can remove the whole.
        let mut belongings = lock(&self.belongings);
        let made = make_namespaces(&mut belongings);
        if made.is_err() {
            belongings.remove();
        }
        made
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        lock(&self.belongings).remove();
        self.signals.close();
    }
}

fn make_namespaces(belongings: &mut Belongings) -> Result<(), TestbedError> {
    let [a, b] = namespace_names(std::process::id());
    for name in [&a, &b] {
        // One of our own process id can only be a dead program's.
        delete_namespace(name);
        ip(&["netns", "add", name])?;
        belongings.namespaces.push(name.clone());
    }
    let mtu = MTU_BYTES.to_string();
    ip(&[
        "-n", &a, "link", "add", INTERFACE, "mtu", &mtu, "type", "veth", "peer", "name", INTERFACE,
        "mtu", &mtu, "netns", &b,
    ])?;
    for (name, address) in [(&a, VETH[0]), (&b, VETH[1])] {
        ip(&[
            "-n",
            name,
            "address",
            "add",
            &format!("{address}/24"),
            "dev",
            INTERFACE,
        ])?;
        ip(&["-n", name, "link", "set", "lo", "up"])?;
        ip(&["-n", name, "link", "set", INTERFACE, "up"])?;
    }
    Ok(())
}

fn namespace_names(process: u32) -> [String; 2] {
    ["a", "b"].map(|side| format!("{PREFIX}{process}{side}"))
}

fn ip(arguments: &[&str]) -> Result<(), TestbedError> {
    let failed = |cause: String| TestbedError::Ip {
        command: format!("ip {}", arguments.join(" ")),
        cause,
    };
    let output = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(
        String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    ))
}

fn delete_namespace(name: &str) {
    if Path::new(NAMESPACES).join(name).exists()
        && let Err(error) = ip(&["netns", "delete", name])
    {
        eprintln!("dipole bench: the namespace {name} stays: {error}");
    }
}

/// Removes on SIGINT, SIGTERM and SIGHUP, then ends the program; the sides end with it.
fn clean_up_on_signals(belongings: Arc<Mutex<Belongings>>) -> io::Result<Handle> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let handle = signals.handle();
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            // Kept locked to the end, so that nothing is made anew meanwhile.
            let mut belongings = lock(&belongings);
            belongings.remove();
            std::process::exit(128 + signal);
        }
    });
    Ok(handle)
}

fn lock(belongings: &Mutex<Belongings>) -> std::sync::MutexGuard<'_, Belongings> {
    belongings.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what killed programs of this kind have left.
fn sweep() {
    for name in names_in(Path::new(NAMESPACES)) {
        if namespace_owner(&name).is_some_and(is_dead) {
            delete_namespace(&name);
        }
    }
    let folder = std::env::temp_dir();
    for name in names_in(&folder) {
        let owner = name
            .strip_prefix(FOLDER_PREFIX)
            .and_then(|rest| rest.parse().ok());
        if owner.is_some_and(is_dead) {
            // Another user's is not ours to remove, and not in our way.
            let _may_not_be_ours = fs::remove_dir_all(folder.join(name));
        }
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

fn namespace_owner(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(PREFIX)?;
    rest.strip_suffix(['a', 'b'])?.parse().ok()
}

fn is_dead(process: u32) -> bool {
    !Path::new("/proc").join(process.to_string()).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_name_tells_its_owner_and_foreign_names_tell_none() {
        for name in namespace_names(4_194_304) {
            assert_eq!(namespace_owner(&name), Some(4_194_304));
        }
        for foreign in ["dpb", "dpba", "dpb12", "dpb12c", "dpbx1a", "mine", "dpb-1a"] {
            assert_eq!(namespace_owner(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn this_process_is_not_dead() {
        assert!(!is_dead(std::process::id()));
        assert!(is_dead(u32::MAX));
    }
}

//! The identity of this machine, and its addresses.

use std::fs;
use std::path::Path;

use dipole_link::source_address;
use dipole_link::sys::{InterfaceAddress, interface_addresses};

use super::business_card::Candidate;
use super::{directory_number, hashed};
use crate::bind::{EXPECTED, bind_address};
use crate::environment::variables;
use crate::job::{JobError, Lookup};
use crate::registry;

/// Documentation addresses, used to look up the default route. Nothing is sent there.
const REMOTE_PROBES: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// This machine, as far as other ranks have to know it.
pub(super) struct Identity {
    pub(super) node: u64,
    pub(super) machine: u64,
    pub(super) name: String,
    pub(super) addresses: Vec<Candidate>,
}

impl Identity {
    pub(super) fn of(registry_dir: &Path, get: Lookup<'_>) -> Result<Identity, JobError> {
        let directory = |cause: String| JobError::Directory { cause };
        registry::make_private(registry_dir).map_err(|error| directory(error.to_string()))?;
        let number = directory_number(registry_dir).map_err(|cause| {
            directory(format!(
                "checking {} failed: {cause}",
                registry_dir.display()
            ))
        })?;
        let boot = boot_id();
        // Processes in containers may share a machine but not its network.
        let network = fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let network = network.to_string_lossy();
        let host = rustix::system::uname();
        let name = host.nodename().to_string_lossy().into_owned();
        let machine = match boot.is_empty() {
            true => hashed(&[&name, &network]),
            false => hashed(&[&boot, &network]),
        };
        Ok(Identity {
            node: hashed(&[&machine.to_string(), &number]),
            machine,
            name,
            addresses: addresses(get)?,
        })
    }
}

/// A number that the kernel has chosen when the machine was started; empty if it is unknown.
pub(super) fn boot_id() -> String {
    let read = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    read.map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// The addresses at which other machines may reach this one; only that of `DIPOLE_BIND` if it is
/// set.
fn addresses(get: Lookup<'_>) -> Result<Vec<Candidate>, JobError> {
    let own = interface_addresses().map_err(|cause| JobError::Directory {
        cause: format!("listing the addresses of this machine failed: {cause}"),
    })?;
    let routed = REMOTE_PROBES.map(|there| source_address(there.parse().ok()?).ok());
    let candidate = |one: &InterfaceAddress| Candidate {
        ip: one.ip,
        prefix_bits: one.prefix_bits,
        speed_mbit: speed_mbit(&one.name),
        is_routed: routed.contains(&Some(one.ip)),
    };
    if let Some(value) = get(variables::BIND) {
        let found = bind_address(&value);
        let found = found.and_then(|ip| own.iter().find(|one| one.ip == ip));
        let found = found.ok_or_else(|| JobError::Bad {
            variable: variables::BIND,
            found: value,
            expected: EXPECTED.to_owned(),
        })?;
        return Ok(vec![candidate(found)]);
    }
    let mut found: Vec<Candidate> = own
        .iter()
        .filter(|one| one.up && !is_local(one) && !is_internal_interface(&one.name))
        .map(candidate)
        .collect();
    // Stable: of equally good addresses the first one.
    found.sort_by_key(|one| (!one.is_routed, one.ip.is_ipv6()));
    Ok(found)
}

/// True for addresses that have no meaning on other machines.
fn is_local(one: &InterfaceAddress) -> bool {
    let is_link_local = match one.ip {
        std::net::IpAddr::V4(ip) => ip.is_link_local(),
        std::net::IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    one.ip.is_loopback() || is_link_local || one.scope_id != 0
}

/// True for a bridge between containers or guests of this machine, such as docker0: none of its ports
/// is a network card. Other machines often have the same address on theirs.
#[must_use]
pub fn is_internal_interface(interface: &str) -> bool {
    let class = Path::new("/sys/class/net");
    let Ok(ports) = class.join(interface).join("brif").read_dir() else {
        return false;
    };
    let is_card = |port: std::ffi::OsString| class.join(port).join("device").exists();
    !ports.flatten().any(|port| is_card(port.file_name()))
}

/// Speed of an interface; 0 if the driver does not know it, as for most virtual ones.
fn speed_mbit(interface: &str) -> u32 {
    let file = Path::new("/sys/class/net").join(interface).join("speed");
    let read = fs::read_to_string(file).ok();
    read.and_then(|speed| speed.trim().parse().ok())
        .unwrap_or(0)
}

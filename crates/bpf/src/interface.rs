//! Network interfaces, and what this process may do with them.

use std::io;
use std::net::IpAddr;

use dipole_link::sys;
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

/// Identifies a network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceId {
    /// Its index in its network namespace.
    pub index: u32,
    /// Name of the interface, for example `eth0`.
    pub name: String,
}

impl InterfaceId {
    /// An error that names the interface and the failed action.
    pub(super) fn cannot(&self, what: &str, cause: &io::Error) -> io::Error {
        let InterfaceId { index, name } = self;
        let text = format!("cannot {what} interface {name} (number {index}): {cause}");
        io::Error::new(cause.kind(), text)
    }
}

/// The interface that has an address, and the scope of a link-local one.
///
/// # Errors
/// No interface has the address, or the interfaces cannot be listed.
pub fn interface_of(ip: IpAddr) -> io::Result<(InterfaceId, u32)> {
    let mut all = sys::interface_addresses()?.into_iter();
    let found = all.find(|address| address.ip == ip);
    let none = || {
        io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            "no interface has this address",
        )
    };
    let found = found.ok_or_else(none)?;
    let name = found.name;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    let index = rustix::net::netdevice::name_to_index(&socket, &name)?;
    Ok((InterfaceId { index, name }, found.scope_id))
}

/// True if this process has the capabilities that the bpf link needs: CAP_NET_ADMIN,
/// CAP_NET_RAW, and CAP_BPF or CAP_SYS_ADMIN.
#[must_use]
pub fn has_capabilities() -> bool {
    let needed = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW;
    rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective.contains(needed)
            && (sets.effective).intersects(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN)
    })
}

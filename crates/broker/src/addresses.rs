//! IP addresses and MAC addresses of the interfaces.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use dipole_bpf::InterfaceId;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_nametoindex;

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) ip: IpAddr,
    pub(super) interface: InterfaceId,
    /// `None` for loopback.
    pub(super) mac: Option<[u8; 6]>,
}

/// All addresses in this network namespace.
pub(super) fn addresses() -> io::Result<Vec<Address>> {
    let mut macs: BTreeMap<String, [u8; 6]> = BTreeMap::new();
    let mut ips: Vec<(String, IpAddr)> = Vec::new();
    for one in getifaddrs()? {
        let Some(storage) = one.address else { continue };
        if let Some(mac) = storage.as_link_addr().and_then(|link| link.addr()) {
            macs.insert(one.interface_name, mac);
        } else if let Some(v4) = storage.as_sockaddr_in() {
            ips.push((one.interface_name, v4.ip().into()));
        } else if let Some(v6) = storage.as_sockaddr_in6() {
            ips.push((one.interface_name, v6.ip().into()));
        }
    }
    let found = ips.into_iter().filter_map(|(name, ip)| {
        // An alias such as eth0:1 belongs to eth0. The interface may have been removed meanwhile.
        let name = name.split(':').next().unwrap_or_default().to_owned();
        let index = if_nametoindex(name.as_str()).ok()?;
        Some(Address {
            ip,
            mac: macs.get(&name).copied(),
            interface: InterfaceId { index, name },
        })
    });
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_on_the_first_interface() {
        let all = addresses().unwrap();
        let wanted: IpAddr = [127, 0, 0, 1].into();
        let found = all.iter().find(|one| one.ip == wanted).unwrap();
        assert_eq!((found.interface.index, &*found.interface.name), (1, "lo"));
    }
}

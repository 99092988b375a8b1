//! The address that a process binds, as `DIPOLE_BIND` names it.

use std::net::IpAddr;

use dipole_link::sys::{InterfaceAddress, interface_addresses};
use ipnet::IpNet;

/// Valid values of `DIPOLE_BIND`, for messages.
pub const EXPECTED: &str =
    "an IP address, a subnet (10.0.0.0/24) or an interface (eth0) of this machine";

/// The address of this machine that a value of `DIPOLE_BIND` names: an IP address, or the first one
/// in a subnet or on an interface, so that one value serves all machines of a job. `None` if this
/// machine has no such address; an IP address itself is not checked.
#[must_use]
pub fn bind_address(value: &str) -> Option<IpAddr> {
    if let Ok(address) = value.parse() {
        return Some(address);
    }
    named(value, &interface_addresses().ok()?)
}

fn named(value: &str, own: &[InterfaceAddress]) -> Option<IpAddr> {
    let usable = own.iter().filter(|one| one.up && one.scope_id == 0);
    let mut found: Vec<IpAddr> = match value.parse::<IpNet>() {
        Ok(subnet) => usable
            .map(|one| one.ip)
            .filter(|ip| subnet.contains(ip))
            .collect(),
        Err(_) => (usable.filter(|one| one.name == value))
            .map(|one| one.ip)
            .collect(),
    };
    // Stable, so the first IPv4 address.
    found.sort_by_key(IpAddr::is_ipv6);
    found.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str, ip: &str, up: bool) -> InterfaceAddress {
        InterfaceAddress {
            name: name.into(),
            ip: ip.parse().unwrap(),
            prefix_bits: 24,
            scope_id: u32::from(ip.starts_with("fe80")),
            up,
            running: up,
            loopback: name == "lo",
        }
    }

    #[test]
    fn a_subnet_or_an_interface_names_the_address_on_it() {
        let own = [
            address("lo", "127.0.0.1", true),
            address("docker0", "172.17.0.1", true),
            address("ib0", "10.91.0.9", false),
            address("eth1", "fe80::1", true),
            address("eth1", "fd00::7", true),
            address("eth1", "10.91.0.7", true),
            address("eth1", "10.92.0.7", true),
        ];
        let named = |value| named(value, &own).map(|ip| ip.to_string());
        assert_eq!(named("10.91.0.0/24").as_deref(), Some("10.91.0.7"));
        assert_eq!(named("fd00::/16").as_deref(), Some("fd00::7"));
        assert_eq!(named("eth1").as_deref(), Some("10.91.0.7"));
        assert_eq!(named("docker0").as_deref(), Some("172.17.0.1"));
        assert_eq!(named("10.93.0.0/24"), None);
        assert_eq!(named("ib0"), None, "it is down");
        assert_eq!(named("10.91.0.0/33"), None);
    }

    #[test]
    fn an_address_is_taken_as_it_is() {
        let address = bind_address("192.0.2.9").map(|ip| ip.to_string());
        assert_eq!(address.as_deref(), Some("192.0.2.9"));
        assert_eq!(bind_address("no-such-interface"), None);
    }
}

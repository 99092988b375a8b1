//! Socket addresses in the protocol's wire format.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use dipole_proto::wire::Address;

/// Converts to wire format: IPv4 is mapped into IPv6, and an unspecified IP is all zero.
#[must_use]
pub(crate) fn to_wire(address: SocketAddr) -> Address {
    let ip = match address.ip() {
        ip if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED,
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    Address {
        ip: ip.octets(),
        port: address.port(),
    }
}

/// Converts from wire format.
#[must_use]
pub(crate) fn from_wire(address: Address) -> SocketAddr {
    let ip = Ipv6Addr::from(address.ip);
    let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
    SocketAddr::new(ip, address.port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_conversion_to_wire_format() {
        for text in ["10.0.0.1:80", "[2001:db8::7]:9", "[::1]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(from_wire(to_wire(address)), address);
        }
    }
}

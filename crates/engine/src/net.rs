//! Socket addresses as the protocol's packets carry them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use dipole_proto::wire::Address;

/// As the wire has it: IPv4 mapped into IPv6, an unspecified IP as all zero.
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

/// Back to what sockets take.
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
    fn addresses_survive_the_wire() {
        for text in ["10.0.0.1:80", "[2001:db8::7]:9", "[::1]:1"] {
            let address: SocketAddr = text.parse().expect("an address");
            assert_eq!(from_wire(to_wire(address)), address);
        }
    }
}

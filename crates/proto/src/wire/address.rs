//! Address of a lane: an IP address and a UDP port.

use core::fmt;
use serde::{Deserialize, Serialize};

use super::cursor::{put, u16_at};

/// An IPv6 or v4-mapped address and a port, as sent in handshakes. Spec §3.1.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Address {
    /// IPv6, or IPv4 as `::ffff:a.b.c.d`. All zero stands for the source of the packet.
    pub ip: [u8; 16],
    /// UDP port.
    pub port: u16,
}

impl Address {
    /// Bytes on the wire.
    pub const BYTES: usize = 18;

    /// True if the IP address is left open.
    #[must_use]
    pub fn is_unspecified(&self) -> bool {
        self.ip == [0; 16]
    }

    pub(super) fn parse(bytes: &[u8]) -> Address {
        let mut ip = [0; 16];
        ip.copy_from_slice(&bytes[..16]);
        Address {
            ip,
            port: u16_at(bytes, 16),
        }
    }

    pub(super) fn emit(&self, bytes: &mut [u8]) {
        put(bytes, 0, &self.ip);
        put(bytes, 16, &self.port.to_le_bytes());
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ip = core::net::Ipv6Addr::from(self.ip);
        match ip.to_ipv4_mapped() {
            Some(v4) => write!(f, "{v4}:{}", self.port),
            None => write!(f, "[{ip}]:{}", self.port),
        }
    }
}

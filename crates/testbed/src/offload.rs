//! Which offloads the interfaces of a testbed have. A veth carries packets of up to
//! 64 KiB that no real wire carries; shaping and losing them would say nothing.

use crate::error::TestbedError;
use crate::namespace::{inside, ip};
use crate::netlink;

/// What an interface may join and leave to others to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offloads {
    /// Every packet crosses the wire by itself and arrives by itself.
    Off,
    /// As the kernel makes a veth: long packets cross in one piece.
    On,
    /// Every packet crosses by itself; the receiving interface joins them (GRO).
    GroOnly,
}

/// Features that join packets, by their names in the kernel.
const JOINING: [&str; 6] = [
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-generic-segmentation",
    "tx-udp-segmentation",
];
const GRO: &str = "rx-gro";

/// Sets the offloads of one veth; says how it was done.
pub(crate) fn set(
    namespace: &str,
    device: &str,
    mtu: u32,
    offloads: Offloads,
) -> Result<&'static str, TestbedError> {
    let gro = match offloads {
        Offloads::On => return Ok("offloads as the kernel makes them"),
        Offloads::Off => false,
        Offloads::GroOnly => true,
    };
    let mut wanted: Vec<(&str, bool)> = JOINING.iter().map(|name| (*name, false)).collect();
    wanted.push((GRO, gro));
    let asked = inside(namespace, || netlink::set_features(device, &wanted)).flatten();
    match asked {
        Ok(()) if gro => Ok("segmentation offloads off, GRO on"),
        Ok(()) => Ok("segmentation offloads and GRO off"),
        // The limits do the same for what is sent, but cannot switch GRO on.
        Err(_) if !gro => {
            ip(&format!(
                "-n {namespace} link set dev {device} gso_max_segs 1 gso_max_size {mtu} \
                 gro_max_size {mtu}"
            ))?;
            Ok("segments limited to one (ethtool's netlink family refused)")
        }
        Err(cause) => Err(TestbedError::Namespace {
            namespace: namespace.to_owned(),
            doing: "switching GRO on",
            cause,
        }),
    }
}

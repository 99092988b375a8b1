//! Offloads of the interfaces of a testbed. By default a veth carries packets of up to 64 KiB, which
//! no real wire does, so shaping and loss would be unrealistic.

use crate::error::TestbedError;
use crate::namespace::{inside, ip};
use crate::netlink;

/// Packets that an interface may join or segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offloads {
    /// Every packet crosses the wire and arrives separately.
    Off,
    /// The kernel's default for a veth: long packets cross in one piece.
    On,
    /// Every packet crosses separately; the receiving interface joins them (GRO).
    GroOnly,
}

/// Features that join packets, by their kernel names.
const JOINING: [&str; 6] = [
    "tx-tcp-segmentation",
    "tx-tcp6-segmentation",
    "tx-tcp-ecn-segmentation",
    "tx-tcp-mangleid-segmentation",
    "tx-generic-segmentation",
    "tx-udp-segmentation",
];
const GRO: &str = "rx-gro";

/// Sets the offloads of one veth and returns a description.
pub(crate) fn set(
    namespace: &str,
    device: &str,
    mtu: u32,
    offloads: Offloads,
) -> Result<&'static str, TestbedError> {
    let gro = match offloads {
        Offloads::On => return Ok("offloads at the kernel's defaults"),
        Offloads::Off => false,
        Offloads::GroOnly => true,
    };
    let mut wanted: Vec<(&str, bool)> = JOINING.iter().map(|name| (*name, false)).collect();
    wanted.push((GRO, gro));
    let set = inside(namespace, || netlink::set_features(device, &wanted)).flatten();
    match set {
        Ok(()) if gro => Ok("segmentation offloads off, GRO on"),
        Ok(()) => Ok("segmentation offloads and GRO off"),
        // These limits have the same effect on sent packets, but cannot enable GRO.
        Err(_) if !gro => {
            ip(&format!(
                "-n {namespace} link set dev {device} gso_max_segs 1 gso_max_size {mtu} \
                 gro_max_size {mtu}"
            ))?;
            Ok("segments limited to one (ethtool's netlink family is not available)")
        }
        Err(cause) => Err(TestbedError::Namespace {
            namespace: namespace.to_owned(),
            doing: "enabling GRO",
            cause,
        }),
    }
}

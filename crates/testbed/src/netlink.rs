//! Sets features of network devices, like `ethtool -K`, through the kernel's generic netlink family
//! `ethtool`.
//!
//! Source: Linux, Documentation/networking/ethtool-netlink.rst (FEATURES_SET) and
//! include/uapi/linux/ethtool_netlink.h.

use std::io;

use dipole_link::netlink::Socket;
use netlink_packet_core::{DefaultNla, Emitable, NLA_F_NESTED};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlMessage};
use rustix::net::netlink;

const FEATURES_SET: u8 = 12;
const FEATURES_HEADER: u16 = 1;
const FEATURES_WANTED: u16 = 3;
const DEVICE_NAME: u16 = 2;
const DEVICE_FLAGS: u16 = 3;
const OMIT_REPLY: u32 = 2;
const BITSET_BITS: u16 = 3;
const BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;

/// A FEATURES_SET request.
#[derive(Debug)]
struct SetFeatures([DefaultNla; 2]);

impl GenlFamily for SetFeatures {
    fn family_name() -> &'static str {
        "ethtool"
    }

    fn command(&self) -> u8 {
        FEATURES_SET
    }

    fn version(&self) -> u8 {
        1
    }
}

impl Emitable for SetFeatures {
    fn buffer_len(&self) -> usize {
        self.0.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.0.as_slice().emit(buffer);
    }
}

/// Enables or disables features of a device in the namespace of the calling thread.
pub(crate) fn set_features(device: &str, wanted: &[(&str, bool)]) -> io::Result<()> {
    let mut socket = Socket::open(Some(netlink::GENERIC), 0)?;
    let name = SetFeatures::family_name().to_owned();
    let query = GenlMessage::from_payload(GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![GenlCtrlAttrs::FamilyName(name)],
    });
    let reply: Option<GenlMessage<GenlCtrl>> = socket.request(query, true)?;
    let attributes = reply.map_or(Vec::new(), |reply| reply.payload.nlas);
    let family = attributes.iter().find_map(|one| match one {
        GenlCtrlAttrs::FamilyId(family) => Some(*family),
        _ => None,
    });
    let family = family.ok_or_else(|| {
        io::Error::other("the kernel did not return the id of the family ethtool")
    })?;
    let mut request = GenlMessage::from_payload(features(device, wanted));
    request.set_resolved_family_id(family);
    let _reply: Option<GenlMessage<GenlCtrl>> = socket.request(request, true)?;
    Ok(())
}

fn features(device: &str, wanted: &[(&str, bool)]) -> SetFeatures {
    let device = [
        DefaultNla::new(DEVICE_NAME, terminated(device)),
        DefaultNla::new(DEVICE_FLAGS, OMIT_REPLY.to_ne_bytes().to_vec()),
    ];
    let bits = wanted.iter().map(|(name, on)| {
        let mut bit = vec![DefaultNla::new(BIT_NAME, terminated(name))];
        bit.extend(on.then(|| DefaultNla::new(BIT_VALUE, Vec::new())));
        nested(BIT, &bit)
    });
    let bits = nested(BITSET_BITS, &bits.collect::<Vec<_>>());
    SetFeatures([
        nested(FEATURES_HEADER, &device),
        nested(FEATURES_WANTED, &[bits]),
    ])
}

fn nested(kind: u16, inside: &[DefaultNla]) -> DefaultNla {
    let mut bytes = vec![0; inside.buffer_len()];
    inside.emit(&mut bytes);
    DefaultNla::new(kind | NLA_F_NESTED, bytes)
}

fn terminated(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

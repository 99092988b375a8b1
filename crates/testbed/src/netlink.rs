//! Sets features of network devices, like `ethtool -K`, through the kernel's generic netlink family
//! `ethtool`.
//!
//! Source: Linux, Documentation/networking/ethtool-netlink.rst (FEATURES_SET) and
//! include/uapi/linux/ethtool_netlink.h.

use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{
    DefaultNla, Emitable, NLA_F_NESTED, NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_generic::ctrl::nlas::GenlCtrlAttrs;
use netlink_packet_generic::ctrl::{GenlCtrl, GenlCtrlCmd};
use netlink_packet_generic::{GenlFamily, GenlMessage};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{netlink, recv, sendto, socket_with};

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
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::GENERIC),
    )?;
    let name = SetFeatures::family_name().to_owned();
    let question = GenlMessage::from_payload(GenlCtrl {
        cmd: GenlCtrlCmd::GetFamily,
        nlas: vec![GenlCtrlAttrs::FamilyName(name)],
    });
    let family = ask(&socket, question)?.iter().find_map(|one| match one {
        GenlCtrlAttrs::FamilyId(family) => Some(*family),
        _ => None,
    });
    let family = family.ok_or_else(|| {
        io::Error::other("the kernel did not return the id of the family ethtool")
    })?;
    let mut request = GenlMessage::from_payload(features(device, wanted));
    request.set_resolved_family_id(family);
    ask(&socket, request).map(drop)
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

/// Sends a request and returns the attributes of a family, if the reply contains any.
fn ask<F: GenlFamily + Emitable + Debug>(
    socket: &OwnedFd,
    request: GenlMessage<F>,
) -> io::Result<Vec<GenlCtrlAttrs>> {
    let mut message = NetlinkMessage::from(request);
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let kernel = netlink::SocketAddrNetlink::new(0, 0);
    sendto(socket, &bytes, SendFlags::empty(), &kernel)?;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 32 << 10];
    loop {
        // Only dumps combine several messages in one datagram.
        let (received, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let message = NetlinkMessage::<GenlMessage<GenlCtrl>>::deserialize(&buffer[..received]);
        match message.map_err(io::Error::other)?.payload {
            NetlinkPayload::Error(error) if error.code.is_none() => return Ok(answer),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(message) => answer = message.payload.nlas,
            _ => {}
        }
    }
}

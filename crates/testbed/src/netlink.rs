//! What `ethtool -K` does, without the program: a device's features through the
//! kernel's generic netlink family `ethtool`.
//!
//! Source: Linux, Documentation/networking/ethtool-netlink.rst (FEATURES_SET) and
//! include/uapi/linux/{netlink,genetlink,ethtool_netlink}.h.

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{netlink, recv, sendto, socket_with};

const HEADER_BYTES: usize = 16;
const GENERIC_HEADER_BYTES: usize = 4;
const REQUEST_ACK: u16 = 1 | 4;
const NESTED: u16 = 0x8000;
const MESSAGE_ERROR: u16 = 2;

const CONTROL_FAMILY: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_FAMILY_ID: u16 = 1;
const CONTROL_FAMILY_NAME: u16 = 2;

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

/// Switches features of a device of the calling thread's namespace on or off.
pub(crate) fn set_features(device: &str, wanted: &[(&str, bool)]) -> io::Result<()> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::GENERIC),
    )?;
    let name = attribute(CONTROL_FAMILY_NAME, b"ethtool\0");
    let answer = ask(&socket, CONTROL_FAMILY, CONTROL_GET_FAMILY, &name)?;
    let family = find_u16(&answer, CONTROL_FAMILY_ID)
        .ok_or_else(|| io::Error::other("the kernel does not say which family ethtool is"))?;
    ask(&socket, family, FEATURES_SET, &features(device, wanted)).map(drop)
}

fn features(device: &str, wanted: &[(&str, bool)]) -> Vec<u8> {
    let mut header = attribute(DEVICE_NAME, &terminated(device));
    header.extend(attribute(DEVICE_FLAGS, &OMIT_REPLY.to_ne_bytes()));
    let mut bits = Vec::new();
    for (name, on) in wanted {
        let mut bit = attribute(BIT_NAME, &terminated(name));
        if *on {
            bit.extend(attribute(BIT_VALUE, &[]));
        }
        bits.extend(attribute(BIT | NESTED, &bit));
    }
    let bits = attribute(BITSET_BITS | NESTED, &bits);
    let mut body = attribute(FEATURES_HEADER | NESTED, &header);
    body.extend(attribute(FEATURES_WANTED | NESTED, &bits));
    body
}

/// Sends one request; the attributes of the answer, if there is one beside the acknowledgement.
fn ask(socket: &OwnedFd, family: u16, command: u8, body: &[u8]) -> io::Result<Vec<u8>> {
    let length = HEADER_BYTES + GENERIC_HEADER_BYTES + body.len();
    let length = u32::try_from(length).expect("a request is short");
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST_ACK.to_ne_bytes());
    // Sequence number and port: one question at a time on a socket of its own.
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(body);
    let kernel = netlink::SocketAddrNetlink::new(0, 0);
    sendto(socket, &message, SendFlags::empty(), &kernel)?;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 32 << 10];
    loop {
        let (received, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..received];
        while let Some((kind, content, after)) = split_message(rest) {
            if kind == MESSAGE_ERROR {
                return acknowledged(content).map(|()| answer);
            }
            answer = content.get(GENERIC_HEADER_BYTES..).unwrap_or(&[]).to_vec();
            rest = after;
        }
    }
}

fn acknowledged(content: &[u8]) -> io::Result<()> {
    let code = content.first_chunk().map(|code| i32::from_ne_bytes(*code));
    match code {
        Some(0) => Ok(()),
        Some(negative) => Err(io::Error::from_raw_os_error(negative.wrapping_neg())),
        None => Err(io::Error::other("the kernel's answer is cut off")),
    }
}

/// Kind and content of the first message, and what follows it.
fn split_message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(u32::from_ne_bytes(*bytes.first_chunk()?)).ok()?;
    let kind = u16::from_ne_bytes(*bytes.get(4..)?.first_chunk()?);
    let content = bytes.get(HEADER_BYTES..length)?;
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Some((kind, content, after))
}

fn find_u16(mut attributes: &[u8], wanted: u16) -> Option<u16> {
    loop {
        let length = usize::from(u16::from_ne_bytes(*attributes.first_chunk()?));
        let kind = u16::from_ne_bytes(*attributes.get(2..)?.first_chunk()?);
        if kind == wanted {
            let value = attributes.get(4..length)?;
            return value.first_chunk().map(|value| u16::from_ne_bytes(*value));
        }
        // A length of nothing would be found forever.
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).expect("an attribute is short");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn terminated(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_found_again() {
        let mut bytes = attribute(CONTROL_FAMILY_NAME, b"ethtool\0x");
        assert_eq!(bytes.len(), 16);
        bytes.extend(attribute(CONTROL_FAMILY_ID, &21_u16.to_ne_bytes()));
        assert_eq!(find_u16(&bytes, CONTROL_FAMILY_ID), Some(21));
        assert_eq!(find_u16(&bytes, 9), None);
        assert_eq!(find_u16(&bytes[..3], 9), None);
        assert_eq!(find_u16(&[0; 64], 9), None);
    }
}

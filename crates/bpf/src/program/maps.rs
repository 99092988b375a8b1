//! Contents of the maps that the programs share with this process.

use std::net::IpAddr;

/// Numbers of the ingress program's maps: rings by [`key`], counters by [`Reason`], and counts of
/// full rings by [`key`].
pub(crate) const RINGS: i32 = 0;
pub(crate) const COUNTERS: i32 = 1;
pub(crate) const FULL: i32 = 2;

/// Outcome of a packet to one of our ports: deposited, or passed on for this reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Deposited = 0,
    /// The ring had no room.
    Full = 1,
    Fragment = 2,
    /// It has IP options.
    Options = 3,
    TooLong = 4,
    /// Lengths that do not agree, or no payload.
    Length = 5,
    /// Not addressed to this interface's MAC address.
    OtherHost = 6,
    /// The frame is shorter than its lengths say.
    Unreadable = 7,
}

impl Reason {
    /// All reasons in the order of their numbers.
    pub(crate) const ALL: [Self; 8] = [
        Self::Deposited,
        Self::Full,
        Self::Fragment,
        Self::Options,
        Self::TooLong,
        Self::Length,
        Self::OtherHost,
        Self::Unreadable,
    ];
}

/// Size of a ring's key.
pub(crate) const KEY_BYTES: usize = 24;

/// 0..16 destination address (IPv4: the first four bytes), 16..20 interface index, 20..22 port in
/// network order, 22..24 IP version, so that no IPv4 key equals an IPv6 key.
pub(crate) fn key(address: IpAddr, interface: u32, port: u16) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    let version = put_address(&mut key[..16], address);
    key[16..20].copy_from_slice(&interface.to_ne_bytes());
    key[20..22].copy_from_slice(&port.to_be_bytes());
    key[22..].copy_from_slice(&version.to_ne_bytes());
    key
}

/// Address and port of a [`key`].
pub(crate) fn of_key(key: &[u8]) -> Option<(IpAddr, u16)> {
    let port = u16::from_be_bytes(*key.get(20..)?.first_chunk()?);
    let version = u16::from_ne_bytes(*key.get(22..)?.first_chunk()?);
    let address = match version {
        4 => IpAddr::from(*key.first_chunk::<4>()?),
        6 => IpAddr::from(*key.first_chunk::<16>()?),
        _ => return None,
    };
    Some((address, port))
}

/// Numbers of the egress program's maps: [`allowed`] sources by socket cookie, and one counter of
/// dropped frames.
pub(crate) const COOKIES: i32 = 0;
pub(crate) const REFUSED: i32 = 1;

/// Size of an allowed source.
pub(crate) const ALLOWED_BYTES: usize = 32;
/// Offsets of the fields in the entry.
pub(crate) const ALLOWED_VERSION: i16 = 6;
pub(crate) const ALLOWED_ADDRESS: i16 = 8;
pub(crate) const ALLOWED_PORTS: [i16; 2] = [24, 26];

/// 0..6 source MAC address, 6..8 IP version, 8..24 source address (IPv4: the first four bytes),
/// 24..26 and 26..28 source ports in network order. All zero: nothing is allowed.
pub(crate) fn allowed(mac: [u8; 6], address: IpAddr, ports: [u16; 2]) -> [u8; ALLOWED_BYTES] {
    let mut value = [0; ALLOWED_BYTES];
    value[..6].copy_from_slice(&mac);
    let version = put_address(&mut value[8..24], address);
    value[6..8].copy_from_slice(&version.to_ne_bytes());
    value[24..26].copy_from_slice(&ports[0].to_be_bytes());
    value[26..28].copy_from_slice(&ports[1].to_be_bytes());
    value
}

/// Writes an address to the start of 16 zero bytes; returns its IP version.
fn put_address(to: &mut [u8], address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(v4) => {
            to[..4].copy_from_slice(&v4.octets());
            4
        }
        IpAddr::V6(v6) => {
            to.copy_from_slice(&v6.octets());
            6
        }
    }
}

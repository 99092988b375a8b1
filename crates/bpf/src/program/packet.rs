//! Packet layout as the programs use it: offsets in frames and in the context.

/// Offsets in `struct __sk_buff`.
pub(super) mod skb {
    pub(crate) const LEN: i16 = 0;
    pub(crate) const PKT_TYPE: i16 = 4;
    pub(crate) const VLAN_PRESENT: i16 = 20;
    pub(crate) const IFINDEX: i16 = 40;
    pub(crate) const DATA: i16 = 76;
    pub(crate) const DATA_END: i16 = 80;
    pub(crate) const GSO_SIZE: i16 = 176;
}

pub(super) const ETHERNET_BYTES: i16 = 14;
pub(super) const ETHERTYPE: i16 = 12;
pub(super) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u16 = 0x86dd;
pub(super) const UDP: i32 = 17;
pub(super) const UDP_BYTES: i16 = 8;
/// "More fragments", and the offset.
pub(super) const FRAGMENT: u16 = 0x3fff;
pub(super) const FRAGMENT_OFFSET: u16 = 0x1fff;

/// An IP version; offsets from the start of the frame.
#[derive(Clone, Copy)]
pub(super) struct Ip {
    pub(super) version: u16,
    pub(super) ethertype: u16,
    /// Length of the IP header.
    pub(super) header: i16,
    pub(super) protocol: i16,
    /// Offset of the length field, and how much of the IP header it includes.
    pub(super) length: i16,
    pub(super) counted: i16,
    pub(super) source: i16,
    pub(super) destination: i16,
}

impl Ip {
    pub(super) const V4: Self = Self {
        version: 4,
        ethertype: ETHERTYPE_IPV4,
        header: 20,
        protocol: 23,
        length: 16,
        counted: 20,
        source: 26,
        destination: 30,
    };
    pub(super) const V6: Self = Self {
        version: 6,
        ethertype: ETHERTYPE_IPV6,
        header: 40,
        protocol: 20,
        length: 18,
        counted: 0,
        source: 22,
        destination: 38,
    };

    /// Offset of IPv4's fragment bits.
    pub(super) const FRAGMENT: i16 = 20;

    pub(super) const fn udp(self) -> i16 {
        ETHERNET_BYTES + self.header
    }

    pub(super) const fn payload(self) -> i16 {
        self.udp() + UDP_BYTES
    }
}

/// A constant that equals a 16-bit field as loaded from a packet.
pub(super) fn network_16(value: u16) -> i32 {
    i32::from(value.to_be())
}

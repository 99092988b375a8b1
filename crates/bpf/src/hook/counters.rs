//! Counters of packets to the ports that a hook serves.

/// Counters of one interface since its hook was attached. They count packets to one of the entered
/// addresses and ports, not other traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Put into a ring. All others passed on to the socket.
    pub deposited: u64,
    /// The ring had no room.
    pub full: u64,
    /// First fragments; later ones have no port and are not counted.
    pub fragments: u64,
    /// IPv4 packets with options.
    pub options: u64,
    /// Longer than the longest record.
    pub too_long: u64,
    /// Lengths that do not agree, or no payload.
    pub lengths: u64,
    /// Packets to another host's MAC address, or to several hosts.
    pub other_hosts: u64,
    /// The frame could not be read.
    pub unreadable: u64,
}

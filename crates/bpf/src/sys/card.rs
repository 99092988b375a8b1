//! What a card is.

use std::io;
use std::os::fd::AsRawFd;

/// What kind of card it is (`ARPHRD_...`), and its address if that has six bytes.
pub(crate) fn hardware(name: &str) -> io::Result<(u16, [u8; 6])> {
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: `ifreq` is plain C data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    // SAFETY: SIOCGIFHWADDR reads the name, which is NUL-terminated since it is shorter
    // than its zeroed field, and writes inside `request`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFHWADDR, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the kernel filled the `hwaddr` member, plain data.
    let address = unsafe { request.ifr_ifru.ifru_hwaddr };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(address.sa_data) {
        *to = from.to_ne_bytes()[0];
    }
    Ok((address.sa_family, mac))
}

/// What drives a card; empty if nobody says.
pub(crate) fn driver(name: &str) -> String {
    const GET_DRIVER: u32 = 3;
    /// `struct ethtool_drvinfo`.
    #[repr(C)]
    struct Driver {
        command: u32,
        name: [u8; 32],
        rest: [u8; 160],
    }
    let mut driver = Driver {
        command: GET_DRIVER,
        name: [0; 32],
        rest: [0; 160],
    };
    // SAFETY: the kernel writes a `struct ethtool_drvinfo`, of 196 bytes, which `Driver` has.
    let asked = unsafe { ethtool(name, &mut driver) };
    let end = driver.name.iter().position(|byte| *byte == 0).unwrap_or(32);
    match asked {
        Ok(()) => String::from_utf8_lossy(&driver.name[..end]).into_owned(),
        Err(_) => String::new(),
    }
}

/// How many queues a card uses, for one direction; `None` if nobody says.
pub(crate) fn queues(name: &str) -> Option<u32> {
    const GET_CHANNELS: u32 = 0x3c;
    /// `struct ethtool_channels`.
    #[repr(C)]
    #[derive(Default)]
    struct Channels {
        command: u32,
        most: [u32; 4],
        receive: u32,
        transmit: u32,
        other: u32,
        combined: u32,
    }
    let mut channels = Channels {
        command: GET_CHANNELS,
        ..Channels::default()
    };
    // SAFETY: the kernel writes a `struct ethtool_channels`, laid out alike.
    unsafe { ethtool(name, &mut channels) }.ok()?;
    let count = channels.receive.max(channels.transmit);
    count
        .checked_add(channels.combined)
        .filter(|count| *count > 0)
}

/// Asks a card's driver.
///
/// # Safety
/// `question` is laid out, and at least as long, as what the kernel writes for its command.
unsafe fn ethtool<T>(name: &str, question: &mut T) -> io::Result<()> {
    const ETHTOOL: libc::c_ulong = 0x8946;
    let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    // SAFETY: `ifreq` is plain C data for which all zeros is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = libc::c_char::from_ne_bytes([byte]);
    }
    request.ifr_ifru.ifru_data = std::ptr::from_mut(question).cast();
    // SAFETY: the name is NUL-terminated as it is shorter than its zeroed field; where the
    // data lies, and that it is long enough, is the caller's promise.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), ETHTOOL as _, &raw mut request) };
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

//! What an interface is.

use std::io;
use std::os::fd::AsRawFd;

/// What kind of interface it is (`ARPHRD_...`), and its address if that has six bytes.
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

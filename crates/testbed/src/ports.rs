//! Ports of loopback addresses, for programs that a test starts later.

use std::net::{IpAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that the kernel gives to sockets which ask for any.
const FIRST: u32 = 12_000;
const COUNT: u32 = 18_000;

/// A port of an address that no socket has, neither of UDP nor of TCP. Sockets that bind to no
/// particular port do not take it afterwards.
///
/// # Panics
/// If all are taken.
#[must_use]
pub fn free_port(address: &str) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let address: IpAddr = address.parse().expect("an address");
    let start = std::process::id().wrapping_mul(101);
    for _ in 0..COUNT {
        let at = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + at).expect("below 65536");
        let is_free = UdpSocket::bind((address, port)).is_ok();
        if is_free && TcpListener::bind((address, port)).is_ok() {
            return port;
        }
    }
    panic!("no port of {address} is free");
}

//! The user whose process has bound a UDP port of this machine, from /proc/net.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The holder of this port, in brackets for an error message; empty if unknown.
pub(super) fn suffix(address: SocketAddr) -> String {
    match user_of(address) {
        None => String::new(),
        Some(uid) if uid == rustix::process::geteuid().as_raw() => {
            " (another process of this user has it)".to_owned()
        }
        Some(uid) => format!(" (a process of user {uid} has it)"),
    }
}

/// The user whose process has bound this port, if known.
fn user_of(address: SocketAddr) -> Option<u32> {
    ["/proc/net/udp", "/proc/net/udp6"]
        .into_iter()
        .filter_map(|table| std::fs::read_to_string(table).ok())
        .find_map(|table| holder(&table, address))
}

/// Finds the uid in a table whose lines have the fields: number, local address, remote address,
/// state, queues, timer, retransmits, uid.
fn holder(table: &str, address: SocketAddr) -> Option<u32> {
    table.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let (ip, port) = fields.nth(1)?.split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let ip = local_ip(ip)?;
        let meets = ip.is_unspecified() || ip == address.ip() || address.ip().is_unspecified();
        (port == address.port() && meets).then(|| fields.nth(5)?.parse().ok())?
    })
}

/// Parses an address written as hexadecimal words in this machine's byte order.
fn local_ip(digits: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let text = digits.get(8 * at..8 * at + 8)?;
        Some(u32::from_str_radix(text, 16).ok()?.to_ne_bytes())
    };
    match digits.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.as_flattened().try_into().ok()?;
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn the_user_of_a_port_is_found() {
        let own_uid = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"] {
            let Ok(socket) = UdpSocket::bind(address) else {
                println!("SKIPPED: no socket at {address}");
                continue;
            };
            let bound = socket.local_addr().unwrap();
            assert_eq!(user_of(bound), Some(own_uid));
            assert!(suffix(bound).contains("another process of this user"));
        }
    }

    #[test]
    fn lines_are_read_and_what_makes_no_sense_is_passed_over() {
        let word = |bytes: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(bytes));
        let line = |ip: String, port: u16, uid: u32| {
            format!(" 7: {ip}:{port:04X} 00000000:0000 07 0:0 00:0 0 {uid} 0 123 2 0 0\n")
        };
        let table = [
            "  sl  local_address rem_address   st\n".to_owned(),
            line("zz".into(), 7411, 4),
        ]
        .concat()
            + &line(word([127, 0, 0, 1]), 7411, 5)
            + &line(word([0; 4]), 7412, 6);
        let holder = |text: &str| holder(&table, text.parse().unwrap());
        assert_eq!(holder("127.0.0.1:7411"), Some(5));
        assert_eq!(holder("127.0.0.2:7411"), None);
        assert_eq!(holder("127.0.0.2:7412"), Some(6));
        assert_eq!(holder("127.0.0.2:7413"), None);
    }
}

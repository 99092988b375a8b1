//! Limits that the kernel sets for processes: socket buffers, segmentation, memory, descriptors.

use dipole_page::byte_size;
use std::io;
use std::net::UdpSocket;

use dipole_link::udp::UdpOptions;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{UdpGroSegment, UdpGsoSegment};
use rustix::net::sockopt;
use rustix::process::{Resource, getrlimit};

use super::finding::Finding;
use super::kernel::read;

pub(super) fn examine() -> Vec<Finding> {
    let limit = |resource| getrlimit(resource).current;
    let mut findings = match UdpSocket::bind(("127.0.0.1", 0)) {
        Ok(socket) => of_socket(&socket),
        Err(cause) => vec![Finding::broken(
            "sockets",
            format!("a UDP socket cannot be opened on the loopback address: {cause}"),
            "`ip link set lo up`; check the limits of this process",
        )],
    };
    findings.push(locked_memory(limit(Resource::Memlock)));
    findings.push(open_files(limit(Resource::Nofile)));
    findings
}

fn of_socket(socket: &UdpSocket) -> Vec<Finding> {
    let wanted = UdpOptions::default().buffer_bytes;
    let most = |name| read(format!("/proc/sys/net/core/{name}_max"));
    let gso = setsockopt(socket, UdpGsoSegment, &1400).is_ok();
    let gro = setsockopt(socket, UdpGroSegment, &true).is_ok();
    vec![
        offload(gso, gro),
        queue(
            "receive queue",
            "rmem",
            granted_receive(socket, wanted),
            wanted,
            most("rmem"),
        ),
        queue(
            "send queue",
            "wmem",
            granted_send(socket, wanted),
            wanted,
            most("wmem"),
        ),
    ]
}

fn offload(gso: bool, gro: bool) -> Finding {
    const NAME: &str = "segmentation";
    let fact = match (gso, gro) {
        (true, true) => {
            return Finding::good(NAME, "runs of packets leave and come as one (UDP GSO, GRO)");
        }
        (true, false) => "no UDP GRO: packets of a run come one by one",
        (false, true) => "no UDP GSO: packets of a run leave one by one",
        (false, false) => "neither UDP GSO nor GRO: packets of a run leave and come one by one",
    };
    Finding::slow(
        NAME,
        fact,
        "Linux 4.18 has GSO, 5.0 GRO; streams are several times faster with both",
    )
}

/// Requests a receive buffer like the link does, and returns its size; the kernel reports twice that.
fn granted_receive(socket: &UdpSocket, wanted: usize) -> io::Result<usize> {
    if sockopt::set_socket_recv_buffer_size_force(socket, wanted).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, wanted)?;
    }
    Ok(sockopt::socket_recv_buffer_size(socket)? / 2)
}

fn granted_send(socket: &UdpSocket, wanted: usize) -> io::Result<usize> {
    if sockopt::set_socket_send_buffer_size_force(socket, wanted).is_err() {
        sockopt::set_socket_send_buffer_size(socket, wanted)?;
    }
    Ok(sockopt::socket_send_buffer_size(socket)? / 2)
}

fn queue(
    name: &'static str,
    which: &str,
    granted: io::Result<usize>,
    wanted: usize,
    most: Option<String>,
) -> Finding {
    let limit = match most {
        Some(most) => format!("net.core.{which}_max is {most}"),
        None => format!("net.core.{which}_max cannot be seen here"),
    };
    match granted {
        Err(cause) => Finding::unknown(name, format!("the kernel refuses a length: {cause}"), ""),
        Ok(granted) if granted >= wanted => Finding::good(
            name,
            format!("{} per socket are granted ({limit})", byte_size(wanted)),
        ),
        Ok(granted) => Finding::slow(
            name,
            format!(
                "{} per socket, {} requested ({limit}): shorter windows, slower streams",
                byte_size(granted),
                byte_size(wanted)
            ),
            format!("`sysctl -w net.core.{which}_max={}`", 2 * wanted),
        ),
    }
}

fn locked_memory(limit: Option<u64>) -> Finding {
    const NAME: &str = "locked memory";
    /// The default limit since Linux 5.16.
    const USUAL_BYTES: u64 = 8 << 20;
    match limit {
        None => Finding::good(NAME, "may be locked without limit; Dipole locks none"),
        Some(bytes) if bytes >= USUAL_BYTES => Finding::good(
            NAME,
            format!("{} may be locked; Dipole locks none", byte_size(bytes)),
        ),
        Some(bytes) => Finding::good(
            NAME,
            format!(
                "only {} may be locked (RLIMIT_MEMLOCK); Dipole locks none",
                byte_size(bytes)
            ),
        )
        .advise(
            "nothing for Dipole; programs that register buffers with io_uring or XDP want \
             `ulimit -l unlimited` (/etc/security/limits.conf: memlock)",
        ),
    }
}

fn open_files(limit: Option<u64>) -> Finding {
    const NAME: &str = "open files";
    /// Enough for a few hundred peers and endpoints.
    const USUAL: u64 = 1024;
    /// Fewer are not enough for a node with one peer and one endpoint.
    const LEAST: u64 = 32;
    const ADVICE: &str = "`ulimit -n 65536` (/etc/security/limits.conf: nofile); a peer of this \
                          node takes one, an endpoint opened from C two";
    match limit {
        None => Finding::good(NAME, "without limit"),
        Some(files) if files < LEAST => Finding::broken(
            NAME,
            format!("{files} descriptors a process (RLIMIT_NOFILE) are too few to open a node"),
            ADVICE,
        ),
        Some(files) if files < USUAL => Finding::slow(
            NAME,
            format!(
                "{files} descriptors a process (RLIMIT_NOFILE): some peers will be reached by \
                 packets, or not at all"
            ),
            ADVICE,
        ),
        Some(files) => Finding::good(NAME, format!("{files} descriptors a process")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Broken, Good, Slow, Unknown};
    use super::*;

    #[test]
    fn a_queue_shorter_than_asked_for_is_slow_and_names_the_limit() {
        let most = || Some("212992".to_owned());
        let found = queue("receive queue", "rmem", Ok(212_992), 4 << 20, most());
        assert_eq!(found.verdict, Slow);
        assert!(
            found.fact.contains("net.core.rmem_max is 212992"),
            "{}",
            found.fact
        );
        assert_eq!(found.advice, "`sysctl -w net.core.rmem_max=8388608`");
        let found = queue("send queue", "wmem", Ok(4 << 20), 4 << 20, None);
        assert_eq!(found.verdict, Good);
        let refused = Err(io::ErrorKind::PermissionDenied.into());
        assert_eq!(
            queue("send queue", "wmem", refused, 1, most()).verdict,
            Unknown
        );
    }

    #[test]
    fn missing_offload_is_named() {
        assert_eq!(offload(true, true).verdict, Good);
        assert!(offload(true, false).fact.contains("no UDP GRO"));
        assert!(offload(false, true).fact.contains("no UDP GSO"));
        assert_eq!(offload(false, false).verdict, Slow);
    }

    #[test]
    fn low_limits_are_said() {
        assert!(locked_memory(Some(65_536)).fact.contains("only 64 KiB"));
        assert_eq!(locked_memory(Some(8 << 20)).advice, "");
        assert_eq!(locked_memory(None).advice, "");
        assert_eq!(open_files(Some(16)).verdict, Broken);
        assert_eq!(open_files(Some(256)).verdict, Slow);
        assert_eq!(open_files(Some(1024)).verdict, Good);
        assert_eq!(open_files(None).verdict, Good);
    }
}

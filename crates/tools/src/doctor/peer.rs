//! Examines another node from here: route, directory, loss, round trip, packet size.
//!
//! [`examine`] probes over the network, and [`verdict`] judges the replies.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use dipole_naming::key::random_bytes;
use dipole_node::hosts::Host;
use dipole_node::registry::{self, Presence, ProbeLength, ProbeResult, Prober};
use dipole_node::{ClusterKey, EndpointId, PortRange};

use super::answer::Answer;
use super::busy_poll;
use super::finding::Finding;
use super::verdict::{self, Size};

/// Number of probes for loss and round trip.
const ROUNDS: u32 = 20;
/// Attempts per length; one is enough on a path without loss.
pub(super) const TRIES: u32 = 3;

/// The kernel's interval between ICMP errors after a burst (`net.ipv4.icmp_ratelimit`).
const REFUSES_AGAIN: Duration = Duration::from_millis(1100);

/// The kernel's default range of ephemeral ports.
const DATA_PORTS: (u16, u16) = (32_768, 60_999);
/// Ports probed at once if the first did not refuse; in a small range, most may be in use.
const PORTS_ASKED: usize = 8;

/// Facts about this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own<'a> {
    /// The cluster key, if probes and replies need a proof.
    pub(super) key: Option<&'a ClusterKey>,
    /// The address that programs bind; `None` if this machine does not have it.
    pub(super) address: Option<IpAddr>,
    /// The device with that address.
    pub(super) device: Option<&'a str>,
    /// The configured port range of all processes, if any.
    pub(super) ports: Option<PortRange>,
    /// How long to wait for a reply.
    pub(super) patience: Duration,
}

pub(super) fn examine(host: &Host, own: Own<'_>) -> Vec<Finding> {
    let subject = |finding: Finding| finding.about(host.to_string());
    let directory = host.directory();
    let routed = Prober::open(None, directory, host.node, own.key);
    let source = routed.as_ref().map_err(copied).and_then(Prober::source);
    let route = verdict::route(&source, own.address, host);
    let prober = match own.address {
        Some(address) => Prober::open(Some(address), directory, host.node, own.key).or(routed),
        None => routed,
    };
    let (Ok(prober), Ok(source)) = (prober, source) else {
        return vec![subject(route)];
    };
    let mut findings = vec![route];
    let mut answer = who(&prober, own.patience);
    if matches!(answer, Answer::Silent) {
        std::thread::sleep(REFUSES_AGAIN);
        answer = who(&prober, own.patience);
    }
    findings.push(verdict::directory(&answer, host, own.key));
    match answer {
        Answer::Right => findings.extend(converse(&prober, host, own, source)),
        // The kernel refuses packets to closed ports, so other ports can still be probed.
        Answer::Refused => {
            let ports = asked_ports(own.address.unwrap_or(source), host, own);
            findings.push(verdict::data_ports(ports, own.ports, host));
        }
        _ => {}
    }
    findings.into_iter().map(subject).collect()
}

/// Looks up some endpoint several times, to find out which node replies.
pub(super) fn who(prober: &Prober, patience: Duration) -> Answer {
    let mut last = Answer::Silent;
    for _ in 0..TRIES {
        last = match prober.look_up(EndpointId(1), patience / TRIES) {
            ProbeResult::Answered(registry::Response::WrongNode, _) => return Answer::Wrong,
            ProbeResult::Answered(..) => return Answer::Right,
            ProbeResult::Stranger(mismatch) => return Answer::Stranger(mismatch),
            ProbeResult::Silent => last,
            // The port is closed. Kernels only refuse a few packets in a row.
            ProbeResult::Refused => return Answer::Refused,
            ProbeResult::TooLong => Answer::Failed(rustix::io::Errno::MSGSIZE.into()),
            ProbeResult::Failed(cause) => Answer::Failed(cause),
        };
    }
    last
}

/// Examines a node that replies.
fn converse(prober: &Prober, host: &Host, own: Own<'_>, source: IpAddr) -> Vec<Finding> {
    let mut presence: Option<Presence> = None;
    let mut times = Vec::new();
    // The first reply determines how long to wait for the others.
    let mut patience = own.patience;
    for _ in 0..ROUNDS {
        if let ProbeResult::Answered(told, took) = prober.probe(ProbeLength::SHORTEST, patience) {
            presence = Some(told);
            patience = patience.min((took * 10).max(Duration::from_millis(50)));
            times.push(took);
        } else if presence.is_none() {
            patience = patience.min(Duration::from_millis(100));
        }
    }
    let Some(presence) = presence else {
        return vec![verdict::old(host)];
    };
    times.sort();
    let from = own.address.unwrap_or(source);
    let ours = dipole_link::udp::longest_frame_bytes(from).unwrap_or(0);
    let size = measure(
        prober,
        ours,
        usize::from(presence.max_packet_bytes),
        patience,
    );
    // This comes last, because it leaves the socket in busy polling.
    let polling = own
        .device
        .map(|device| busy_poll::examine(prober, device, patience));
    let findings = [
        verdict::data_ports(asked_ports(from, host, own), own.ports, host),
        verdict::round_trip(&times, ROUNDS),
        verdict::version(presence.version, dipole_node::registry::version(), host),
        verdict::size(&size, headers(host.address), host),
    ];
    findings.into_iter().chain(polling).collect()
}

/// Checks whether packets reach the ports that processes use: a closed port refuses, unless a firewall drops
/// the packet.
fn asked_ports(from: IpAddr, host: &Host, own: Own<'_>) -> io::Result<bool> {
    let ports = own.ports.or(PortRange::new(DATA_PORTS.0, DATA_PORTS.1));
    let ports = ports.map(|ports| ports.without(host.directory().port()));
    for round in 0..TRIES {
        // Too many at once exhaust the kernel's burst of refusals, so that later probes get none.
        let count = if round == 0 { 1 } else { PORTS_ASKED };
        if round > 0 {
            std::thread::sleep(REFUSES_AGAIN);
        }
        let mut asked = Vec::new();
        let begin = u16::from_le_bytes(random_bytes()?);
        for port in ports.iter().flat_map(|ports| ports.from(begin)).take(count) {
            let there = host.socket_address(host.address, port);
            let socket = UdpSocket::bind(registry::source_towards(from, there))?;
            socket.connect(there)?;
            socket.set_nonblocking(true)?;
            // A packet that cannot be sent is not refused either.
            let _sent = socket.send(&[]);
            asked.push(socket);
        }
        let begun = Instant::now();
        while begun.elapsed() < own.patience / TRIES {
            let refused = |cause: io::Error| cause.kind() == io::ErrorKind::ConnectionRefused;
            if asked
                .iter()
                .any(|socket| socket.recv(&mut [0]).is_err_and(refused))
            {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(false)
}

/// Length of the IP and UDP headers.
pub(super) fn headers(to: IpAddr) -> usize {
    if to.is_ipv4() { 20 + 8 } else { 40 + 8 }
}

/// Finds the longest packet that passes in both directions.
fn measure(prober: &Prober, ours: usize, theirs: usize, patience: Duration) -> Size {
    let full = ProbeLength::nearest(ours).bytes();
    let passes = |length: usize| -> Option<bool> {
        for _ in 0..TRIES {
            match prober.probe(ProbeLength::nearest(length), patience) {
                ProbeResult::Answered(..) => return Some(true),
                ProbeResult::TooLong => return None,
                _ => {}
            }
        }
        Some(false)
    };
    let first = passes(full);
    let mut size = Size {
        ours: full,
        theirs: (theirs != 0).then_some(theirs),
        longest: full,
        known: None,
    };
    if first == Some(true) {
        return size;
    }
    let (mut good, mut bad) = (ProbeLength::SHORTEST.bytes(), full);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match passes(middle) {
            Some(true) => good = middle,
            _ => bad = middle,
        }
    }
    size.longest = good;
    // The value is from the route, or from a router's ICMP error.
    let path = prober.path_mtu_bytes().ok();
    size.known = path.filter(|mtu| first.is_none() || *mtu < full);
    size
}

fn copied(cause: &io::Error) -> io::Error {
    match cause.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => cause.kind().into(),
    }
}

/// Checks whether a process replies at this node's own directory port.
pub(super) fn examine_own(host: &Host, own: Own<'_>) -> Finding {
    let answer = match Prober::open(None, host.directory(), host.node, own.key) {
        Ok(prober) => who(&prober, own.patience),
        Err(cause) => Answer::Failed(cause),
    };
    // The port is tried only if nothing replies.
    let free = match answer {
        Answer::Right | Answer::Wrong | Answer::Stranger(_) => Ok(()),
        _ => UdpSocket::bind(host.directory()).map(drop),
    };
    verdict::own_directory(&answer, free, host).about(host.to_string())
}

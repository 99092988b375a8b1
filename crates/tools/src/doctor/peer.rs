//! Another node, seen from here: route, directory, loss, round trip, packet size.
//!
//! [`examine`] asks over the network, [`verdict`] says what the answers
//! mean.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use dipole_naming::key::random_bytes;
use dipole_node::hosts::Host;
use dipole_node::registry::{self, Presence, ProbeLength, ProbeResult, Prober};
use dipole_node::{ClusterKey, EndpointId, KeyMismatch, PortRange};

use super::busy_poll;
use super::finding::Finding;
use super::verdict::{self, Size};

/// Questions by which loss and round trip are measured.
const ROUNDS: u32 = 20;
/// Tries of each length; one is enough on a path without loss.
pub(super) const TRIES: u32 = 3;

/// A kernel that has refused some packets in a row refuses one a second (`net.ipv4.icmp_ratelimit`).
const REFUSES_AGAIN: Duration = Duration::from_millis(1100);

/// Among these ports the kernel chooses, unless an administrator says otherwise.
const DATA_PORTS: (u16, u16) = (32_768, 60_999);
/// Of these, so many are asked at once if the first did not refuse: of a few that are set apart, processes may have most.
const PORTS_ASKED: usize = 8;

/// What this side knows of itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own<'a> {
    /// What questions and answers must prove, if anything.
    pub(super) key: Option<&'a ClusterKey>,
    /// The address that programs bind; `None` if this machine does not have it.
    pub(super) address: Option<IpAddr>,
    /// The device that has it.
    pub(super) device: Option<&'a str>,
    /// The ports of all processes, if they are set apart.
    pub(super) ports: Option<PortRange>,
    /// How long an answer is waited for.
    pub(super) patience: Duration,
}

/// Who answers at a directory.
#[derive(Debug)]
pub(super) enum Answer {
    /// The node that was asked.
    Right,
    /// Another node.
    Wrong,
    /// Somebody with another cluster key.
    Stranger(KeyMismatch),
    /// Nobody.
    Silent,
    /// The host itself: nobody has the port.
    Refused,
    /// The question did not leave.
    Failed(io::Error),
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
        // Its kernel refuses what comes for closed ports, so the others can be asked all the same.
        Answer::Refused => {
            let ports = asked_ports(own.address.unwrap_or(source), host, own);
            findings.push(verdict::data_ports(ports, own.ports, host));
        }
        _ => {}
    }
    findings.into_iter().map(subject).collect()
}

/// Asks for some endpoint, several times; whoever answers says whether it is the node.
pub(super) fn who(prober: &Prober, patience: Duration) -> Answer {
    let mut last = Answer::Silent;
    for _ in 0..TRIES {
        last = match prober.look_up(EndpointId(1), patience / TRIES) {
            ProbeResult::Answered(registry::Response::WrongNode, _) => return Answer::Wrong,
            ProbeResult::Answered(..) => return Answer::Right,
            ProbeResult::Stranger(mismatch) => return Answer::Stranger(mismatch),
            ProbeResult::Silent => last,
            // Nobody has the port. Kernels refuse a few times in a row only.
            ProbeResult::Refused => return Answer::Refused,
            ProbeResult::TooLong => Answer::Failed(rustix::io::Errno::MSGSIZE.into()),
            ProbeResult::Failed(cause) => Answer::Failed(cause),
        };
    }
    last
}

/// What a node that answers can tell.
fn converse(prober: &Prober, host: &Host, own: Own<'_>, source: IpAddr) -> Vec<Finding> {
    let mut presence: Option<Presence> = None;
    let mut times = Vec::new();
    // The first answer sets how long the others are waited for.
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
    // Last, since it leaves the socket spinning.
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

/// Whether packets reach the ports of a node that processes have: a closed one refuses, which one
/// that a firewall guards does not.
fn asked_ports(from: IpAddr, host: &Host, own: Own<'_>) -> io::Result<bool> {
    let ports = own.ports.or(PortRange::new(DATA_PORTS.0, DATA_PORTS.1));
    let ports = ports.map(|ports| ports.without(host.directory().port()));
    for round in 0..TRIES {
        // Many at once use up what a kernel refuses in a row, so that who asks next hears nothing.
        let count = if round == 0 { 1 } else { PORTS_ASKED };
        if round > 0 {
            std::thread::sleep(REFUSES_AGAIN);
        }
        let mut asked = Vec::new();
        let begin = u16::from_le_bytes(random_bytes()?);
        for port in ports.iter().flat_map(|ports| ports.from(begin)).take(count) {
            let socket = UdpSocket::bind((from, 0))?;
            socket.connect((host.address, port))?;
            socket.set_nonblocking(true)?;
            // What cannot be sent is not refused either.
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

/// Bytes of IP and UDP headers.
pub(super) fn headers(to: IpAddr) -> usize {
    if to.is_ipv4() { 20 + 8 } else { 40 + 8 }
}

/// Finds the longest packet that gets through, there and back.
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
    // What the kernel learnt from the route, or from a router's refusal.
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

/// Whether somebody answers at this node's own directory port.
pub(super) fn examine_own(host: &Host, own: Own<'_>) -> Finding {
    let answer = match Prober::open(None, host.directory(), host.node, own.key) {
        Ok(prober) => who(&prober, own.patience),
        Err(cause) => Answer::Failed(cause),
    };
    // Only when nobody answers may the port be tried.
    let free = match answer {
        Answer::Right | Answer::Wrong | Answer::Stranger(_) => Ok(()),
        _ => UdpSocket::bind(host.directory()).map(drop),
    };
    verdict::own_directory(&answer, free, host).about(host.to_string())
}

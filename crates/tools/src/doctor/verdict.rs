//! Judges the replies of another node. Nothing here sends packets.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use dipole_node::hosts::Host;
use dipole_node::{ClusterKey, KeyMismatch, PortRange};

use super::answer::Answer;
use super::finding::Finding;

/// Lengths of UDP payloads to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// The longest that this node's device can send.
    pub(super) ours: usize,
    /// The longest for the other node's device, if it reports that.
    pub(super) theirs: Option<usize>,
    /// The longest that was echoed.
    pub(super) longest: usize,
    /// The MTU of the path, if the kernel knows of a smaller one.
    pub(super) known: Option<usize>,
}

pub(super) fn route(source: &io::Result<IpAddr>, own: Option<IpAddr>, host: &Host) -> Finding {
    const NAME: &str = "route";
    let shown = format!(
        "`ip route get {}` shows what the kernel thinks",
        host.address
    );
    match source {
        Err(cause) => Finding::broken(
            NAME,
            format!("not found: {cause}"),
            format!("{shown}; correct the address in the hosts file, or add a route"),
        ),
        Ok(source) => match own {
            // All loopback addresses belong to one device.
            Some(own) if own != *source && !(own.is_loopback() && source.is_loopback()) => {
                Finding::slow(
                    NAME,
                    format!(
                        "the kernel would send from {source}, not from {own} of the hosts file: \
                         packets may take another device than meant"
                    ),
                    format!("{shown}; put the addresses of one network into the hosts file"),
                )
            }
            _ => Finding::good(NAME, format!("packets leave from {source}")),
        },
    }
}

/// Name of the finding that a node does not accept this one as a member of its cluster.
const WRONG_KEY: &str = "wrong key";

pub(super) fn directory(answer: &Answer, host: &Host, key: Option<&ClusterKey>) -> Finding {
    const NAME: &str = "directory";
    let (node, at) = (host.node, host.directory());
    let start = format!(
        "to test, start `dipole recv {node}:7 --nid {node} --hosts FILE` there and ask again"
    );
    match answer {
        Answer::Right => Finding::good(
            NAME,
            format!("node {node} answers at {at}: both sides mean the same node"),
        ),
        Answer::Wrong => Finding::broken(
            NAME,
            format!("another node answers at {at}, not node {node}"),
            format!("make the hosts file the same on both; set DIPOLE_NID={node} there"),
        ),
        Answer::Stranger(mismatch) => {
            let ours = key.map(|key| format!("; ours is {}", key.fingerprint()));
            Finding::broken(
                WRONG_KEY,
                format!(
                    "node {node} at {at} refuses us: {mismatch}{}",
                    ours.unwrap_or_default()
                ),
                match mismatch {
                    KeyMismatch::OnlyOurs => "set DIPOLE_KEY there to a copy of our key file",
                    KeyMismatch::OnlyTheirs => "set DIPOLE_KEY to a copy of its key file",
                    KeyMismatch::Different => {
                        "`dipole key show FILE` on both shows which key each has; copy one to the other"
                    }
                },
            )
        }
        Answer::Refused => Finding::unanswered(
            NAME,
            format!(
                "the host is up, but no process of Dipole runs there, or a firewall rejects port {}: \
                 so whether messages get through is unknown",
                host.port
            ),
            format!("{start}; if one runs, let UDP to port {} pass", host.port),
        ),
        Answer::Silent => Finding::broken(
            NAME,
            format!("no answer at all from {at}: a firewall drops UDP, or the machine is down"),
            format!(
                "`ping {}`; let UDP through on both machines, port {} and those that the kernel \
                     chooses; {start}",
                host.text_of(host.address),
                host.port
            ),
        ),
        Answer::Failed(cause) => Finding::broken(
            NAME,
            format!("a packet to {at} cannot be sent: {cause}"),
            format!(
                "`ip route get {}`; a firewall of this machine may refuse it",
                host.address
            ),
        ),
    }
}

pub(super) fn own_directory(answer: &Answer, free: io::Result<()>, host: &Host) -> Finding {
    const NAME: &str = "own directory";
    let at = host.directory();
    let other = |fact: String| {
        Finding::broken(
            NAME,
            fact,
            format!(
                "end that program (`ss -ulpn 'sport = {}'`), or give this node another `port=` in \
                     the hosts file",
                at.port()
            ),
        )
    };
    match (answer, free) {
        (Answer::Right, _) => {
            Finding::good(NAME, format!("a process of this node answers at {at}"))
        }
        (Answer::Wrong, _) => other(format!("another node answers at {at}")),
        (Answer::Stranger(mismatch), _) => Finding::broken(
            WRONG_KEY,
            format!("the process of this node that answers at {at} refuses us: {mismatch}"),
            "give all of this node the same DIPOLE_KEY",
        ),
        (_, Ok(())) => Finding::good(
            NAME,
            format!("{at} is free for the first process to answer at"),
        ),
        (_, Err(cause)) if cause.kind() == io::ErrorKind::AddrInUse => other(format!(
            "{at} is held by another program, which does not answer"
        )),
        (_, Err(cause)) => Finding::broken(
            NAME,
            format!("{at} cannot be bound: {cause}"),
            "correct address and `port=` in the hosts file",
        ),
    }
}

/// Longer round trips are slow. Most of some hundred microseconds is the other side's wake-up time.
const FAR: Duration = Duration::from_millis(2);

/// Judges round trips; `times` are sorted.
pub(super) fn round_trip(times: &[Duration], asked: u32) -> Finding {
    const NAME: &str = "round trip";
    let lost = usize::try_from(asked)
        .unwrap_or(usize::MAX)
        .saturating_sub(times.len());
    let (Some(least), Some(median)) = (times.first(), times.get(times.len() / 2)) else {
        return Finding::unknown(NAME, "nothing was measured", "");
    };
    let fact = format!("{median:.0?}, at best {least:.0?}, of short questions");
    if lost > 0 {
        return Finding::slow(
            NAME,
            format!("{fact}; {lost} of {asked} probes got no reply: packets are lost"),
            "`ip -s link` and `nstat -az UdpRcvbufErrors` on both machines show where",
        );
    }
    if *median > FAR {
        return Finding::slow(
            NAME,
            format!("{fact}: far for machines of a cluster"),
            "look for a detour (`ip route get ADDRESS`), a loaded machine, or sleeping processors",
        );
    }
    Finding::good(NAME, fact)
}

pub(super) fn version(theirs: [u16; 3], ours: [u16; 3], host: &Host) -> Finding {
    const NAME: &str = "version";
    let text = |[major, minor, patch]: [u16; 3]| format!("{major}.{minor}.{patch}");
    if theirs == ours {
        return Finding::good(NAME, format!("{} on both sides", text(ours)));
    }
    Finding::slow(
        NAME,
        format!(
            "{} here, {} on node {}: `dipole run` passes over it, and what only one of the two \
             can is not used",
            text(ours),
            text(theirs),
            host.node
        ),
        "install the same version on all nodes",
    )
}

/// A node that answers look-ups but not probes.
pub(super) fn old(host: &Host) -> Finding {
    Finding::unknown(
        "packet size",
        format!(
            "node {} answers look-ups but no probes: an older Dipole",
            host.node
        ),
        "install the same version there",
    )
}

pub(super) fn size(size: &Size, headers: usize, host: &Host) -> Finding {
    const NAME: &str = "packet size";
    let node = host.node;
    let whole = size.ours + headers;
    let agreed = size.ours.min(size.theirs.unwrap_or(size.ours));
    let (used, longest) = (agreed + headers, size.longest + headers);
    if size.longest >= size.ours {
        if agreed < size.ours {
            return Finding::slow(
                NAME,
                format!(
                    "packets of {used} bytes will be used: those are the longest of node {node}, \
                     here it would be {whole}"
                ),
                "set the same MTU on both",
            );
        }
        return Finding::good(
            NAME,
            format!("packets of {whole} bytes get through and will be used"),
        );
    }
    let fact =
        format!("packets of {whole} bytes do not get through, the longest that do have {longest}");
    if size.longest >= agreed {
        return Finding::slow(
            NAME,
            format!("{fact}: the device of node {node} takes {used}, which both sides will use"),
            format!(
                "set the same MTU on both: `ip link set DEVICE mtu {whole}` on node {node}, or \
                 {used} here"
            ),
        );
    }
    let lower = format!("or lower both ends: `ip link set DEVICE mtu {longest}`");
    match size.known {
        Some(mtu) => Finding::broken(
            NAME,
            format!(
                "{fact}: the path takes {mtu}, says this machine's route or a router, and \
                 messages use {used}"
            ),
            format!(
                "`ip route get {}` shows the route's mtu; raise it, {lower}",
                host.address
            ),
        ),
        None => Finding::broken(
            NAME,
            format!("{fact}, and messages use {used}: the MTU of a device in between is smaller"),
            format!("raise it there (switch, bridge, tunnel), {lower}"),
        ),
    }
}

/// Judges whether a closed port of the node refused a packet.
pub(super) fn data_ports(
    refused: io::Result<bool>,
    ports: Option<PortRange>,
    host: &Host,
) -> Finding {
    const NAME: &str = "data ports";
    let (node, directory) = (host.node, host.directory().port());
    match (refused, ports) {
        (Ok(true), None) => Finding::good(NAME, "packets reach ports that the kernel chooses"),
        (Ok(true), Some(ports)) => Finding::good(NAME, format!("packets reach ports {ports}"))
            .advise(format!(
                "nothing but UDP to these and port {directory} need pass, if all processes of all \
                 nodes have DIPOLE_PORTS={ports}"
            )),
        (Ok(false), None) => Finding::broken(
            NAME,
            format!(
                "port {directory} is reached, but packets to other ports of node {node} vanish: \
                 messages, which go there, will not arrive"
            ),
            "let the firewalls on the way pass all UDP between the nodes, or set DIPOLE_PORTS on all \
             nodes to ports that pass (or, if messages do arrive, let ICMP port-unreachable pass)",
        ),
        (Ok(false), Some(ports)) => Finding::broken(
            NAME,
            format!(
                "port {directory} is reached, but packets to the ports {ports} of node {node} \
                 (DIPOLE_PORTS) vanish, or processes have nearly all of them"
            ),
            format!(
                "let the firewalls on the way pass UDP to the ports {ports} (or, if messages do \
                 arrive, ICMP port-unreachable)"
            ),
        ),
        (Err(cause), _) => Finding::unknown(NAME, format!("they cannot be queried: {cause}"), ""),
    }
}

#[cfg(test)]
mod tests;

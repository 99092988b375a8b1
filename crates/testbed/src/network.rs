//! One network between the nodes: a bridge with a cable to each node, or a switch in user space,
//! with or without a limited rate.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::TestbedError;
use crate::names;
use crate::namespace::{call, ip, tc};
use crate::offload;
use crate::settings::Settings;
use crate::switch::Switch;

/// Frames that an interface queues for sending: the kernel's default.
const INTERFACE_QUEUE_FRAMES: u64 = 1000;
/// Frames that a TAP device queues for the switch, which cannot slow down a sender.
const TAP_QUEUE_FRAMES: u32 = 20_000;
/// A shaper may send this much at once. Smaller bursts are closer to a wire.
const BURST_US: u64 = 200;
const LEAST_BURST_FRAMES: u64 = 4;
/// Time within which the bridge must notice that a cable is connected.
const CARRIER_TIMEOUT: Duration = Duration::from_secs(20);
const ETHERNET_BYTES: u64 = 14;

/// Counters of a port of a shaped switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Bytes sent to the node, including Ethernet headers.
    pub sent_bytes: u64,
    /// Frames for the node that were dropped because the queue was full.
    pub dropped_packets: u64,
}

/// Interface of a node on a network.
pub(crate) struct Interface<'a> {
    pub(crate) node: u32,
    pub(crate) namespace: &'a str,
    pub(crate) address: Ipv4Addr,
}

/// Creates a bridge in the namespace `hub` with a veth cable to each node. Returns how offloads are
/// set.
pub(crate) fn bridge(
    settings: &Settings,
    network: u32,
    hub: &str,
    interfaces: &[Interface<'_>],
) -> Result<&'static str, TestbedError> {
    let (mtu, device) = (settings.mtu, names::interface(network));
    let bridge = format!("br{network}");
    // Without snooping, which sends queries that would disturb measurements.
    ip(&format!(
        "-n {hub} link add {bridge} mtu {mtu} type bridge mcast_snooping 0"
    ))?;
    ip(&format!("-n {hub} link set {bridge} up"))?;
    let queues = format!("numtxqueues {0} numrxqueues {0}", settings.queues);
    let mut how = "";
    for interface in interfaces {
        let (port, namespace) = (names::port(interface.node, network), interface.namespace);
        ip(&format!(
            "-n {hub} link add {port} mtu {mtu} {queues} type veth peer name {device} mtu {mtu} \
             {queues} netns {namespace}"
        ))?;
        ip(&format!("-n {hub} link set {port} master {bridge}"))?;
        for (place, device) in [(hub, &port), (namespace, &device)] {
            // The bridge must not join packets, or long ones would leave it.
            let offloads = match settings.effective_offloads() {
                offload::Offloads::GroOnly if place == hub => offload::Offloads::Off,
                as_asked => as_asked,
            };
            let done = offload::set(place, device, mtu, offloads)?;
            if place == namespace {
                how = done;
            }
        }
        if let Some(rate_mbit) = settings.rate_mbit {
            shape(hub, &port, rate_mbit, settings.effective_queue_bytes(), mtu)?;
            shape(namespace, &device, rate_mbit, interface_queue(mtu), mtu)?;
        }
        ip(&format!("-n {hub} link set {port} up"))?;
        bring_up(interface, &device)?;
    }
    for interface in interfaces {
        wait_for_port(hub, interface.node, network, true)?;
    }
    Ok(how)
}

/// Waits until the bridge has noticed that the interface of a node is up or down.
pub(crate) fn wait_for_port(
    hub: &str,
    node: u32,
    network: u32,
    up: bool,
) -> Result<(), TestbedError> {
    let port = names::port(node, network);
    let words = format!("-n {hub} link show dev {port}");
    let wanted = if up {
        "state forwarding"
    } else {
        "state disabled"
    };
    let deadline = Instant::now() + CARRIER_TIMEOUT;
    // With many ports the kernel notifies a bridge only once per second.
    loop {
        let found = call("bridge", &words)?;
        if found.contains(wanted) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(TestbedError::Command {
                command: format!("bridge {words}"),
                cause: format!("waited for `{wanted}`, found: {}", found.trim()),
            });
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Creates a switch in user space with a TAP device in each node.
pub(crate) fn switch(
    settings: &Settings,
    faults: crate::Faults,
    network: u32,
    interfaces: &[Interface<'_>],
) -> Result<Switch, TestbedError> {
    let (mtu, device) = (settings.mtu, names::interface(network));
    let namespaces: Vec<&str> = interfaces
        .iter()
        .map(|interface| interface.namespace)
        .collect();
    let switch = Switch::start(faults, network, &device, &namespaces)?;
    for interface in interfaces {
        let namespace = interface.namespace;
        ip(&format!(
            "-n {namespace} link set {device} mtu {mtu} txqueuelen {TAP_QUEUE_FRAMES}"
        ))?;
        if let Some(rate_mbit) = settings.rate_mbit {
            shape(namespace, &device, rate_mbit, interface_queue(mtu), mtu)?;
        }
        bring_up(interface, &device)?;
    }
    Ok(switch)
}

fn bring_up(interface: &Interface<'_>, device: &str) -> Result<(), TestbedError> {
    let (namespace, address) = (interface.namespace, interface.address);
    ip(&format!(
        "-n {namespace} address add {address}/24 dev {device}"
    ))?;
    ip(&format!("-n {namespace} link set {device} up"))
}

fn interface_queue(mtu: u32) -> u64 {
    INTERFACE_QUEUE_FRAMES * (u64::from(mtu) + ETHERNET_BYTES)
}

fn shape(
    namespace: &str,
    device: &str,
    rate_mbit: u64,
    queue_bytes: u64,
    mtu: u32,
) -> Result<(), TestbedError> {
    let burst = burst_bytes(rate_mbit, mtu);
    // The limit of tbf includes the burst.
    let limit = queue_bytes + burst;
    tc(&format!(
        "-n {namespace} qdisc add dev {device} root tbf rate {rate_mbit}mbit \
         burst {burst}b limit {limit}b"
    ))
}

/// Reads the counters of a port from the output of `tc`.
pub(crate) fn port_counters(
    hub: &str,
    node: u32,
    network: u32,
) -> Result<PortCounters, TestbedError> {
    let words = format!("-n {hub} -s qdisc show dev {}", names::port(node, network));
    let output = call("tc", &words)?;
    counters(&output).ok_or_else(|| TestbedError::Command {
        command: format!("tc {words}"),
        cause: format!("found no counters of a shaper in: {}", output.trim()),
    })
}

/// Parses `Sent 1514 bytes 1 pkt (dropped 0, ...` of the root qdisc, which comes first.
fn counters(output: &str) -> Option<PortCounters> {
    let number_after = |word: &str| {
        let (_, rest) = output.split_once(word)?;
        let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    Some(PortCounters {
        sent_bytes: number_after("Sent ")?,
        dropped_packets: number_after("(dropped ")?,
    })
}

/// Returns how many bytes a shaped device may send at once.
pub(crate) fn burst_bytes(rate_mbit: u64, mtu: u32) -> u64 {
    let frames = LEAST_BURST_FRAMES * (u64::from(mtu) + ETHERNET_BYTES);
    frames.max(rate_mbit * BURST_US / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_parsed_from_the_output_of_tc() {
        let output = "qdisc tbf 8001: root refcnt 2 rate 1Gbit burst 25000b lat 524us \n Sent \
                    1234 bytes 5 pkt (dropped 67, overlimits 8 requeues 0) \n backlog 0b 0p";
        let expected = PortCounters {
            sent_bytes: 1234,
            dropped_packets: 67,
        };
        assert_eq!(counters(output), Some(expected));
        assert_eq!(counters("qdisc noqueue 0: root refcnt 2"), None);
    }
}

//! Draws the message flows and their rates.

use super::*;

pub(super) fn flows(
    draw: &mut Draw,
    ends: &[Ends],
    nodes: &[NodePlan],
    network: &NetworkConfig,
    calm_at_ns: u64,
) -> Vec<FlowPlan> {
    // Small pools and long paths allow little per round trip.
    let rate = if network.bytes_per_second == 0 {
        u64::MAX
    } else {
        network.bytes_per_second
    };
    let round_ns = 2 * (network.path.latency_ns + network.path.jitter_ns)
        + nodes.iter().map(|node| node.busy_ns).sum::<u64>()
        + MILLISECOND;
    let at_once = nodes.iter().map(|node| {
        let config = &node.config;
        let packets = u64::from(config.frames.min(config.window_packets));
        packets
            .min(config.pool_bytes / config.packet_bytes as u64)
            .max(1)
    });
    let packets = PACKETS.min(5 * SECOND / round_ns * at_once.min().unwrap_or(1));
    let shortest = nodes.iter().map(|node| node.config.packet_bytes).min();
    let each = shortest.unwrap_or(256).min(1472) as u64;
    let budget = (packets * each).min(rate) / ends.len() as u64;
    let limits = FlowLimits {
        budget,
        nodes: nodes.len(),
        calm_at_ns,
    };
    ends.iter()
        .map(|ends| {
            let mut endpoints = nodes[ends.2].endpoints.iter();
            let endpoint = endpoints.find(|endpoint| endpoint.id == ends.3);
            let endpoint = endpoint.expect("drawn from them");
            flow(draw, ends, endpoint, &limits)
        })
        .collect()
}

struct FlowLimits {
    /// Bytes of all of its messages.
    budget: u64,
    /// Processes of the cluster.
    nodes: usize,
    calm_at_ns: u64,
}

fn flow(draw: &mut Draw, ends: &Ends, endpoint: &EndpointPlan, limits: &FlowLimits) -> FlowPlan {
    let (from, source, to, target) = *ends;
    let mut bytes = match draw.below(6) {
        0 => (0, 64),
        1 => (0, 1400),
        2 => (0, 9000),
        3 => (1000, 40_000),
        4 => (0, LONGEST_BYTES),
        _ => {
            let length = draw.node(LONGEST_BYTES);
            (length, length)
        }
    };
    // A single message may use the whole budget.
    let most = usize::try_from(limits.budget)
        .unwrap_or(LONGEST_BYTES)
        .max(64);
    bytes = (bytes.0.min(most), bytes.1.min(most));
    if endpoint.presence != Presence::Always {
        bytes = (bytes.0.max(TAG_BYTES), bytes.1.max(TAG_BYTES));
    }
    let average = (bytes.0 + bytes.1) as u64 / 2 + 100;
    let mut messages = (limits.budget / average).clamp(1, 300);
    if let Reader::Slow { every_ns } = endpoint.reader {
        messages = messages.min((2 * SECOND / every_ns).max(1));
    }
    if limits.nodes > 6 {
        messages = messages.min(20);
    }
    FlowPlan {
        from,
        source,
        to,
        target,
        messages: small(messages),
        bytes,
        unreliable_permille: if draw.chance(70) {
            0
        } else {
            small(draw.below(1000))
        },
        impatient_permille: if draw.chance(85) {
            0
        } else {
            small(draw.below(60))
        },
        more_permille: if draw.chance(60) {
            0
        } else {
            small(draw.below(1000))
        },
        gap_ns: if draw.chance(35) {
            0
        } else {
            draw.below(limits.calm_at_ns.min(20 * SECOND) / messages)
        },
        early: draw.chance(20),
        particular: draw.chance(20),
        edge_messages: 0,
    }
}

//! Generates a scenario from its seed.

mod flows;

use std::collections::BTreeSet;

use dipole_link::sim::{Bursts, NetworkConfig, PathConfig, SharedMemoryConfig};
use dipole_node::{ClusterKey, KEY_BYTES, Security};
use dipole_proto::Config;
use dipole_proto::wire::Trailers;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::interfaces::{hopeless_pairs, interfaces};
use crate::payload::{LONGEST_BYTES, TAG_BYTES};
use crate::scenario::{
    EndpointPlan, FIRST_SOURCE, Fault, FlowPlan, MICROSECOND, MILLISECOND, Narrow, NodePlan, Place,
    Presence, Reader, SECOND, Scenario, Stuck,
};
use flows::flows;

/// Approximate number of packets per seed.
const PACKETS: u64 = 4000;
/// One seed in this many has a cluster key.
const KEY_EVERY: u64 = 3;
/// One seed in this many has a kernel that checks frames.
const CHECK_EVERY: u64 = 5;
/// One seed in this many has regions.
const REGIONS_EVERY: u64 = 4;
/// One seed in this many has a process that gets stuck.
const STUCK_EVERY: u64 = 9;
/// One seed in this many has many nodes.
const CROWD_EVERY: u64 = 50;
/// Selects a second random generator, whose choices do not affect those of the first.
const APART: u64 = 0x0A9A_0000_0000_0000;
/// Generator for changes of the network's packet size.
const NARROW: u64 = 0x0A9B_0000_0000_0000;
const WITHDRAW: u64 = 0x0B9B_0000_0000_0000;
/// Generator for the process that gets stuck.
const STUCK: u64 = 0x0A9C_0000_0000_0000;

pub struct Draw(pub ChaCha8Rng);

impl Draw {
    pub fn chance(&mut self, percent: u32) -> bool {
        self.0.random_range(0..100) < percent
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.random_range(0..bound.max(1))
    }

    pub fn node(&mut self, nodes: usize) -> usize {
        self.0.random_range(0..nodes)
    }

    /// Uniformly distributed over orders of magnitude.
    pub fn scale(&mut self, low: u64, high: u64) -> u64 {
        let (low_log, high_log) = ((low.max(1) as f64).ln(), (high.max(low).max(1) as f64).ln());
        let drawn = (low_log + (high_log - low_log) * self.0.random::<f64>()).exp();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "in range"
        )]
        let drawn = drawn as u64;
        drawn.clamp(low, high)
    }

    /// Draws a probability up to `most`, or 0.
    pub fn share(&mut self, percent: u32, most: f64) -> f64 {
        if self.chance(percent) {
            most * self.0.random::<f64>()
        } else {
            0.0
        }
    }
}

impl Scenario {
    /// Generates the scenario of a seed.
    pub fn draw(seed: u64) -> Scenario {
        let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed));
        let count = count(seed, &mut draw);
        let mut network = network(seed, &mut draw);
        let calm_path = calm(&network.path);
        let mut calm_at_ns = draw.scale(MILLISECOND, 3 * SECOND);
        let mut endpoints: Vec<Vec<EndpointPlan>> = (0..count)
            .map(|_| endpoints(&mut draw, calm_at_ns))
            .collect();
        let ends = ends(&mut draw, &endpoints);
        let (mut interfaces, lost_network) = interfaces(&mut draw, count, calm_at_ns);
        let mut apart = Draw(ChaCha8Rng::seed_from_u64(seed ^ APART));
        let (places, memory) = places(&mut apart, count);
        for (process, place) in places.iter().enumerate() {
            // Processes of a node share its interfaces.
            interfaces[process] = interfaces[process - place.rank].clone();
        }
        let several = places.iter().any(|place| place.rank > 0);
        let nodes: Vec<NodePlan> = (0..count)
            .map(|node| {
                let incoming = ends.iter().filter(|ends| ends.2 == node).count() as u64;
                let endpoints = std::mem::take(&mut endpoints[node]);
                NodePlan {
                    place: places[node],
                    shares_memory: several && apart.chance(85),
                    config: Config {
                        first_number: first_number(seed),
                        trailers: trailers(seed, node),
                        ..config(&mut draw, node, &network, &endpoints, incoming)
                    },
                    busy_ns: busy_ns(&mut draw),
                    interfaces: interfaces[node].clone(),
                    watches: draw.chance(30),
                    closes_unread: apart.chance(50),
                    endpoints,
                }
            })
            .collect();
        hopeless_pairs(
            &mut draw,
            &places,
            &interfaces,
            lost_network.is_some(),
            &mut network,
        );
        let mut faults = faults(&mut draw, &nodes, &mut calm_at_ns);
        lose(lost_network, &mut faults);
        let flows = flows(&mut draw, &ends, &nodes, &network, calm_at_ns);
        let (nodes, mut flows) = number_endpoints(nodes, flows);
        close_edges(&mut apart, &nodes, &mut flows);
        let stuck = match seed % STUCK_EVERY {
            4 => stick(seed, &flows, calm_at_ns, &mut faults),
            _ => None,
        };
        let keeps_peers = network.path.bursts.begin == 0.0
            && faults.iter().all(|(_, fault)| fault.is_harmless(&nodes));
        narrow(seed, network.max_frame_bytes, calm_at_ns, &mut faults);
        if has_key(seed) {
            withdraw(seed, count, calm_at_ns, &mut faults);
        }
        Scenario {
            recording: None,
            seed,
            network,
            calm_path,
            memory,
            nodes,
            flows,
            faults,
            calm_at_ns,
            keeps_peers,
            lost_network,
            keys: keys(seed, count),
            has_regions: seed % REGIONS_EVERY == 3,
            stuck,
        }
    }
}

fn count(seed: u64, draw: &mut Draw) -> usize {
    match seed % CROWD_EVERY {
        49 => 16 + draw.node(49),
        _ => [2, 2, 2, 3, 3, 4, 5, 6][draw.node(8)],
    }
}

fn join(seed: u64) -> f64 {
    match seed % 3 {
        0 => 0.0,
        1 => 0.5,
        _ => 1.0,
    }
}

/// In some seeds, the kernel checks frames.
fn checks_frames(seed: u64) -> bool {
    seed.is_multiple_of(CHECK_EVERY)
}

/// Where the kernel checks frames, two of three nodes want nothing else.
fn trailers(seed: u64, node: usize) -> Trailers {
    match checks_frames(seed) && !(seed / CHECK_EVERY + node as u64).is_multiple_of(3) {
        true => Trailers::KERNEL,
        false => Trailers::CRC32C,
    }
}

/// The path after the last fault.
fn calm(path: &PathConfig) -> PathConfig {
    PathConfig {
        latency_ns: path.latency_ns,
        jitter_ns: path.jitter_ns,
        ..PathConfig::default()
    }
}

/// In half of the seeds, numbers exceed 32 bits at some point.
fn first_number(seed: u64) -> u32 {
    match seed % 4 {
        0 | 1 => 0,
        2 => u32::MAX - 40,
        _ => u32::MAX - 2_000,
    }
}

fn busy_ns(draw: &mut Draw) -> u64 {
    match draw.chance(15) {
        true => draw.scale(10 * MICROSECOND, 3 * MILLISECOND),
        false => 0,
    }
}

/// Adds the loss of a network to the faults, in order of time.
fn lose(lost_network: Option<(u64, u8)>, faults: &mut Vec<(u64, Fault)>) {
    if let Some((at_ns, lost)) = lost_network {
        faults.push((at_ns, Fault::LoseNetwork(lost)));
        faults.sort_by_key(|(at_ns, _)| *at_ns);
    }
}

/// Some flows start a new edge now and then.
fn close_edges(apart: &mut Draw, nodes: &[NodePlan], flows: &mut [FlowPlan]) {
    for flow in flows {
        let mut endpoints = nodes[flow.to].endpoints.iter();
        // Refusals on an edge that was closed cannot be reported.
        let suits = endpoints
            .any(|endpoint| endpoint.id == flow.target && endpoint.presence == Presence::Always);
        if apart.chance(30) && suits {
            flow.edge_messages = small(apart.scale(1, 100));
        }
    }
}

fn has_key(seed: u64) -> bool {
    seed.is_multiple_of(KEY_EVERY)
}

/// The key of each node, if the cluster has one.
fn keys(seed: u64, count: usize) -> Vec<ClusterKey> {
    // Half of them exchange the key, with each security setting.
    let is_exchanged = seed / KEY_EVERY % 6 >= 3;
    let keys = (0..count)
        .filter(|_| has_key(seed))
        .map(|node| match is_exchanged {
            true => exchanged(seed, node),
            false => key(seed),
        });
    keys.collect()
}

/// Draws the node of each process, and the properties of shared memory. Half of
/// the clusters have one process per node.
fn places(draw: &mut Draw, processes: usize) -> (Vec<Place>, SharedMemoryConfig) {
    let mut places = vec![Place::default()];
    let share = [0, 0, 50, 90][draw.node(4)];
    for process in 1..processes {
        let before = places[process - 1];
        places.push(match draw.chance(share) && before.rank < 3 {
            true => Place {
                rank: before.rank + 1,
                ..before
            },
            false => Place {
                node: before.node + 1,
                rank: 0,
            },
        });
    }
    let memory = SharedMemoryConfig {
        ring_slots: usize::try_from(draw.scale(2, 1024)).expect("small"),
        ring_bytes: usize::try_from(draw.scale(1 << 10, 1 << 20)).expect("small"),
        visible_ns: draw.below(2) * draw.scale(1, MILLISECOND),
        socket_ns: draw.scale(MICROSECOND, MILLISECOND),
        short_polls: draw.share(50, 0.5),
        fetches_refused: draw.share(40, 1.0),
        fetches_failing: draw.share(40, 0.3),
    };
    (places, memory)
}

/// Gives the endpoints of a node distinct numbers across its processes.
fn number_endpoints(
    mut nodes: Vec<NodePlan>,
    mut flows: Vec<FlowPlan>,
) -> (Vec<NodePlan>, Vec<FlowPlan>) {
    for flow in &mut flows {
        flow.source += nodes[flow.from].place.endpoints();
        flow.target += nodes[flow.to].place.endpoints();
    }
    for node in &mut nodes {
        let first = node.place.endpoints();
        node.config.node = u32::try_from(node.place.node + 1).expect("small");
        if node.shares_memory {
            // Records in shared memory cannot be refused, so the pool must have room for them.
            let most =
                u64::from(node.config.initial_credit_bytes).max(node.config.edge_window_bytes);
            node.config.pool_bytes += flows.len() as u64 * (most + LONGEST_BYTES as u64 + 64);
        }
        for endpoint in &mut node.endpoints {
            endpoint.id += first;
        }
    }
    (nodes, flows)
}

/// Withdraws keys while messages flow, so that processes must prove their membership again.
fn withdraw(seed: u64, nodes: usize, calm_at_ns: u64, faults: &mut Vec<(u64, Fault)>) {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed ^ WITHDRAW));
    for node in 0..nodes {
        if draw.chance(70) {
            faults.push((draw.below(calm_at_ns), Fault::Withdraw { node }));
        }
    }
    faults.sort_by_key(|(at_ns, _)| *at_ns);
}

/// The key as nodes hold it during its exchange: every other node still uses the old key for its
/// proofs, and all accept both.
pub fn exchanged(number: u64, node: usize) -> ClusterKey {
    let (old, new) = (key(number), key(number ^ 1 << 63));
    let digits = |key: &ClusterKey| key.text()[..2 * KEY_BYTES].to_owned();
    let (own, role, other) = match node % 2 {
        0 => (&old, "next", &new),
        _ => (&new, "old", &old),
    };
    let text = format!(
        "{}\nsecurity={}\n{role}={}",
        digits(own),
        old.security(),
        digits(other)
    );
    ClusterKey::parse(&text).expect("as a file has it")
}

/// The key of a cluster, with one of three security settings.
pub fn key(number: u64) -> ClusterKey {
    let mut bytes = [0; KEY_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let (_, security) = Security::ALL[(number / KEY_EVERY % 3) as usize];
    ClusterKey::new(bytes).with_security(security)
}

fn network(seed: u64, draw: &mut Draw) -> NetworkConfig {
    let latency_ns = draw.scale(MICROSECOND, 10 * MILLISECOND);
    let stormy = draw.chance(85);
    let mut path = PathConfig {
        latency_ns,
        jitter_ns: draw.below(2) * draw.below(latency_ns),
        ..PathConfig::default()
    };
    if stormy {
        path.loss = draw.share(55, 0.2);
        path.duplicate = draw.share(30, 0.1);
        path.reorder = draw.share(35, 0.2);
        path.reorder_ns = draw.scale(MICROSECOND, 20 * latency_ns);
        path.corrupt = draw.share(25, 0.05);
        path.corrupt_bits = 3;
        if draw.chance(20) {
            path.bursts = Bursts {
                begin: 0.02 * draw.0.random::<f64>(),
                end: 0.1 + 0.4 * draw.0.random::<f64>(),
                loss: 0.5 + 0.5 * draw.0.random::<f64>(),
            };
        }
    }
    let max_frame_bytes = [512, 1472, 1472, 1472, 1472, 8972][draw.node(6)];
    NetworkConfig {
        join: join(seed),
        checks_frames: checks_frames(seed),
        max_frame_bytes,
        bytes_per_second: if draw.chance(25) {
            0
        } else {
            draw.scale(4_000_000, 3_000_000_000)
        },
        transmit_queue_bytes: draw.scale(2 << 10, 1 << 20),
        // A few packets at least; with fewer, every burst would lose its tail for ever.
        switch_queue_bytes: draw.scale(6 * max_frame_bytes as u64, 1 << 20),
        receive_queue_frames: usize::try_from(draw.scale(16, 1024)).expect("small"),
        path,
        ..NetworkConfig::default()
    }
}

fn endpoints(draw: &mut Draw, calm_at_ns: u64) -> Vec<EndpointPlan> {
    let count = 1 + u32::try_from(draw.below(3)).expect("small");
    (1..=count)
        .map(|id| EndpointPlan {
            id,
            reader: match draw.below(100) {
                0..65 => Reader::Eager,
                65..80 => Reader::Slow {
                    every_ns: draw.scale(MICROSECOND, 10 * MILLISECOND),
                },
                80..90 => Reader::Never,
                _ => Reader::Stops {
                    after: u32::try_from(draw.below(30)).expect("small"),
                },
            },
            presence: match draw.below(100) {
                0..78 => Presence::Always,
                78..85 => Presence::Never,
                85..93 => Presence::Changing(vec![draw.below(calm_at_ns)]),
                _ => {
                    let count = 1 + draw.below(8);
                    let mut times: Vec<u64> = (0..count).map(|_| draw.below(calm_at_ns)).collect();
                    times.sort_unstable();
                    Presence::Changing(times)
                }
            },
        })
        .collect()
}

/// Sender and its endpoint, receiver and its endpoint.
type Ends = (usize, u32, usize, u32);

fn ends(draw: &mut Draw, endpoints: &[Vec<EndpointPlan>]) -> Vec<Ends> {
    let nodes = endpoints.len();
    let mut chosen = BTreeSet::new();
    let shape = draw.below(3);
    let wanted = if nodes > 6 { nodes } else { 1 + draw.node(12) };
    for index in 0..wanted {
        let (from, to) = match shape {
            // A ring, many to one, or random (sometimes to itself).
            0 => (index % nodes, (index + 1) % nodes),
            1 => (1 + index % (nodes - 1), 0),
            _ => (draw.node(nodes), draw.node(nodes)),
        };
        let target = endpoints[to][draw.node(endpoints[to].len())].id;
        let source = FIRST_SOURCE + u32::try_from(draw.below(3)).expect("small");
        chosen.insert((from, source, to, target));
    }
    chosen.into_iter().collect()
}

fn config(
    draw: &mut Draw,
    node: usize,
    network: &NetworkConfig,
    endpoints: &[EndpointPlan],
    incoming: u64,
) -> Config {
    let most = network.max_frame_bytes;
    let packet_bytes = if draw.chance(75) {
        most
    } else {
        256 + draw.node(most - 255)
    };
    let tiny = draw.chance(15);
    let initial = if tiny {
        draw.scale(200, 4 << 10)
    } else {
        draw.scale(2 << 10, 64 << 10)
    };
    let edge_window_bytes = draw.scale(initial, 1 << 20);
    let idle = endpoints.iter().any(|endpoint| endpoint.reader.is_idle());
    // The reserve holds the longest pooled message and the packet in which it begins.
    let longest = edge_window_bytes.min(LONGEST_BYTES as u64 + 64);
    let reserve = longest + costliest_packet(packet_bytes);
    // Initial credit of idle receivers, and as much again for the others.
    let held = if idle || draw.chance(70) {
        2 * incoming * initial
    } else {
        0
    };
    let spare = held + draw.scale(1, 1 << 20);
    let max_timeout_ns = draw.scale(20 * MILLISECOND, 250 * MILLISECOND);
    Config {
        node: u32::try_from(node + 1).expect("small"),
        packet_bytes,
        frames: small(if draw.chance(20) {
            draw.scale(1, 8)
        } else {
            draw.scale(16, 1024)
        }),
        window_packets: small(draw.scale(4, 1024)),
        pool_bytes: reserve + spare,
        pool_reserve_bytes: reserve,
        initial_credit_bytes: small(initial),
        edge_window_bytes,
        reorder_packets: small(1 + draw.below(6)),
        ack_delay_ns: draw.below(200 * MICROSECOND),
        min_timeout_ns: draw.scale(200 * MICROSECOND, 5 * MILLISECOND),
        max_timeout_ns,
        peer_timeout_ns: draw.scale(30 * max_timeout_ns, 10 * SECOND),
        ..Config::default()
    }
}

/// Pool bytes used by a packet full of empty messages.
fn costliest_packet(packet_bytes: usize) -> u64 {
    (packet_bytes / 16 * 64 + packet_bytes) as u64
}

fn faults(draw: &mut Draw, nodes: &[NodePlan], calm_at_ns: &mut u64) -> Vec<(u64, Fault)> {
    let mut faults = Vec::new();
    let count = if draw.chance(45) {
        0
    } else {
        1 + draw.below(4)
    };
    let mut end_ns = *calm_at_ns;
    let mut busy = BTreeSet::new();
    for _ in 0..count {
        let at_ns = draw.below(*calm_at_ns);
        let for_ns = match draw.below(10) {
            0 => draw.scale(SECOND, 15 * SECOND),
            _ => draw.scale(100 * MICROSECOND, 500 * MILLISECOND),
        };
        let over_ns = at_ns + for_ns;
        let node = draw.node(nodes.len());
        match draw.below(12) {
            0..2 => {
                let group = (0..nodes.len()).filter(|_| draw.chance(50)).collect();
                faults.push((at_ns, Fault::Partition(group)));
                faults.push((over_ns, Fault::Heal));
            }
            2 => {
                let other = draw.node(nodes.len());
                faults.push((at_ns, Fault::Cut(node, other)));
                faults.push((over_ns, Fault::Heal));
            }
            3..5 => faults.push((at_ns, Fault::Pause { node, for_ns })),
            5..9 => {
                // At most one end per node, or a process would start twice.
                if busy.insert(node) {
                    let orderly = draw.chance(30);
                    faults.push((at_ns, Fault::End { node, orderly }));
                    faults.push((over_ns, Fault::Begin { node }));
                }
            }
            9..11 => {
                let interface = draw.node(nodes[node].interfaces.len());
                let interface = |alive| Fault::Interface {
                    node,
                    interface,
                    alive,
                };
                faults.push((at_ns, interface(false)));
                if draw.chance(80) {
                    faults.push((over_ns, interface(true)));
                }
            }
            _ => {
                let by_ns = draw.scale(MILLISECOND, 3600 * SECOND);
                faults.push((at_ns, Fault::Jump { by_ns }));
                end_ns += by_ns;
            }
        }
        end_ns = end_ns.max(over_ns);
    }
    faults.sort_by_key(|(at_ns, _)| *at_ns);
    *calm_at_ns = end_ns;
    faults
}

/// A process gets stuck, its application or all of it, while others send to it and to each other.
fn stick(
    seed: u64,
    flows: &[FlowPlan],
    calm_at_ns: u64,
    faults: &mut Vec<(u64, Fault)>,
) -> Option<Stuck> {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed ^ STUCK));
    let mut targets: Vec<usize> = flows.iter().map(|flow| flow.to).collect();
    targets.retain(|node| {
        let mut others = flows.iter();
        others.any(|flow| flow.from != *node && flow.to != *node)
    });
    if targets.is_empty() {
        return None;
    }
    let node = targets[draw.node(targets.len())];
    let is_stepped = draw.chance(50);
    let stuck = Stuck { node, is_stepped };
    faults.retain(|(_, fault)| {
        !matches!(fault, Fault::End { node: it, .. } | Fault::Begin { node: it } | Fault::Pause { node: it, .. } if *it == node)
    });
    faults.push((draw.below(calm_at_ns), Fault::Stick(stuck)));
    faults.sort_by_key(|(at_ns, _)| *at_ns);
    Some(stuck)
}

/// In some seeds the network temporarily accepts only shorter packets. Small packets pass, so that
/// no peer is lost.
fn narrow(seed: u64, most: usize, calm_at_ns: u64, faults: &mut Vec<(u64, Fault)>) {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(seed ^ NARROW));
    let least = Config::default().base_packet_bytes;
    if most <= least || !draw.chance(25) {
        return;
    }
    for _ in 0..=draw.below(2) {
        let at_ns = draw.below(calm_at_ns);
        let over_ns = at_ns + draw.below(calm_at_ns - at_ns);
        let bytes = least + draw.node(most - least);
        let by = match draw.chance(50) {
            true => Narrow::Interfaces,
            false => Narrow::Switch,
        };
        faults.push((at_ns, Fault::Narrow { bytes, by }));
        faults.push((over_ns, Fault::Narrow { bytes: most, by }));
    }
    faults.sort_by_key(|(at_ns, _)| *at_ns);
}

fn small(value: u64) -> u32 {
    u32::try_from(value).expect("drawn small")
}

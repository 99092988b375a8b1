//! Tables of many nodes under virtual time, and the ages that the thesis computes for them (§8.3).

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::exchange::{Exchange, Message, Timing};
use super::table::{Figures, HOP_MS, Row};

const MAX_BYTES: usize = 1100;
const SEED: u64 = 1998;
/// Mean time between two exchanges, from 180 to 300 s.
const MEAN_PERIOD_S: f64 = 240.0;

fn figures(load: u32) -> Figures {
    Figures {
        load,
        cores: 4,
        speed: 2000,
        memory_mib: 16_000,
        available_mib: 9000,
        users: 1,
        jobs: 0,
    }
}

fn row(node: u32, age_ms: u32, load: u32) -> Row {
    Row {
        node,
        age_ms,
        figures: figures(load),
    }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The exchange of node 1, which knows nodes 2 to `members`.
fn exchange(members: u32, trusts_members: bool) -> Exchange {
    let mut exchange = Exchange::new(1, SEED, trusts_members, MAX_BYTES);
    for node in 2..=members {
        exchange.add_member(Duration::ZERO, node);
    }
    exchange
}

/// Load averages and ages in milliseconds, by node.
fn known(exchange: &Exchange, now: Duration) -> BTreeMap<u32, (u32, u32)> {
    let rows = exchange.table_rows(now).into_iter();
    rows.map(|row| (row.node, (row.figures.load, row.age_ms)))
        .collect()
}

fn bytes(message: &Message) -> Vec<u8> {
    postcard::to_extend(message, Vec::new()).expect("a vector")
}

#[test]
fn the_freshest_row_of_a_node_is_kept_whatever_the_order_of_arrival() {
    let rows = [row(3, 5000, 1), row(3, 2000, 2), row(3, 9000, 3)];
    for first in 0..rows.len() {
        let mut one = exchange(3, true);
        for index in 0..rows.len() {
            let rows = vec![rows[(first + index) % rows.len()]];
            one.on_message(seconds(1), 2, &Message::Response { rows });
        }
        let found = known(&one, seconds(4));
        assert_eq!(found, [(3, (2, 5000 + HOP_MS))].into(), "first {first}");
    }
}

#[test]
fn rows_of_strangers_about_strangers_and_about_this_node_are_refused() {
    let mut one = exchange(3, true);
    one.set_own(seconds(1), figures(7));
    let rows = vec![row(1, 0, 99), row(4, 0, 99), row(3, 0, 5)];
    assert_eq!(
        one.on_message(seconds(1), 4, &Message::Response { rows: rows.clone() }),
        None
    );
    assert_eq!(known(&one, seconds(1)).len(), 1, "node 4 is not a member");
    one.on_message(seconds(1), 2, &Message::Response { rows });
    let found = known(&one, seconds(1));
    assert_eq!(found, [(1, (7, 0)), (3, (5, HOP_MS))].into());
    // A member that leaves takes its row with it.
    one.remove_member(3);
    assert_eq!(known(&one, seconds(1)).len(), 1);
}

#[test]
fn without_a_key_a_member_is_believed_only_about_itself() {
    let mut one = exchange(3, false);
    one.set_own(seconds(1), figures(7));
    let rows = vec![row(2, 0, 5), row(3, 0, 5)];
    let (first, last) = (0, u32::MAX);
    let response = one.on_message(seconds(1), 2, &Message::Request { first, last, rows });
    assert_eq!(
        response,
        Some(Message::Response {
            rows: vec![row(1, 0, 7)]
        })
    );
    assert_eq!(
        known(&one, seconds(1)).into_keys().collect::<Vec<_>>(),
        [1, 2]
    );
    for (_, message) in one.on_timer(seconds(10)) {
        let Message::Request { rows, .. } = message else {
            panic!("a request")
        };
        assert_eq!(rows.iter().map(|row| row.node).collect::<Vec<_>>(), [1]);
    }
}

#[test]
fn rows_out_of_bounds_do_not_decode() {
    let changes: [fn(&mut Row); 6] = [
        |row| row.node = 0,
        |row| row.figures.cores = 0,
        |row| row.figures.cores = u32::MAX,
        |row| row.figures.load = u32::MAX,
        |row| row.figures.speed = 0,
        |row| row.figures.available_mib = row.figures.memory_mib + 1,
    ];
    let decoded = |row: Row| {
        let message = Message::Response { rows: vec![row] };
        postcard::from_bytes::<Message>(&bytes(&message))
    };
    assert!(decoded(row(2, u32::MAX, 0)).is_ok());
    for (index, change) in changes.into_iter().enumerate() {
        let mut bad = row(2, 0, 0);
        change(&mut bad);
        assert!(decoded(bad).is_err(), "change {index}");
    }
}

#[test]
fn a_whole_table_of_a_thousand_nodes_is_split_over_short_packets() {
    let (mut old, mut new) = (exchange(1000, true), Exchange::new(2, 1, true, MAX_BYTES));
    old.set_own(seconds(1), figures(1));
    let all: Vec<Row> = (2..=1000)
        .map(|node| row(node, u32::MAX / 2, node))
        .collect();
    for part in all.chunks(20) {
        let rows = part.to_vec();
        old.on_message(seconds(1), 2, &Message::Response { rows });
    }
    for node in (1..=1000).filter(|node| *node != 2) {
        new.add_member(seconds(1), node);
    }
    new.set_own(seconds(1), figures(2));
    new.set_timing(Timing {
        peers: 1,
        ..Timing::default()
    });
    let requests = new.on_timer(seconds(3));
    for (_, request) in &requests {
        assert!(bytes(request).len() <= MAX_BYTES);
        if let Some(response) = old.on_message(seconds(3), 2, request) {
            assert!(bytes(&response).len() <= MAX_BYTES);
            new.on_message(seconds(3), 1, &response);
        }
    }
    assert!(requests.len() < 64, "{} packets", requests.len());
    assert_eq!(known(&new, seconds(3)).len(), 1000);
    assert_eq!(known(&old, seconds(3)).len(), 1000);
}

#[test]
fn nothing_is_sent_before_the_first_measurement_and_each_peer_once_after_it() {
    let mut one = exchange(9, true);
    assert_eq!(one.next_deadline(), seconds(1));
    assert_eq!(one.on_timer(seconds(1)), []);
    one.set_own(seconds(2), figures(1));
    let sent = one.on_timer(seconds(2));
    let mut peers: Vec<u32> = sent.iter().map(|(peer, _)| *peer).collect();
    peers.sort_unstable();
    peers.dedup();
    assert_eq!((peers.len(), sent.len()), (3, 3));
    let pause = one.next_deadline() - seconds(2);
    assert!((seconds(180)..=seconds(300)).contains(&pause), "{pause:?}");
}

proptest! {
    #[test]
    fn no_messages_enlarge_the_table_or_change_the_own_row_or_cause_long_or_unasked_packets(
        messages in prop::collection::vec(
            (0..6_u32, any::<bool>(), any::<(u32, u32)>(),
             prop::collection::vec((0..8_u32, any::<u32>(), 0..100_u32), 0..40)),
            0..20),
        trusts in any::<bool>(),
    ) {
        let mut one = exchange(4, trusts);
        one.set_own(seconds(1), figures(7));
        let mut ages: BTreeMap<u32, u32> = BTreeMap::new();
        for (from, is_request, (first, last), rows) in messages {
            let rows: Vec<Row> =
                rows.into_iter().map(|(node, age, load)| row(node, age, load)).collect();
            let message = match is_request {
                true => Message::Request { first, last, rows },
                false => Message::Response { rows },
            };
            if let Some(response) = one.on_message(seconds(1), from, &message) {
                prop_assert!(is_request && (2..=4).contains(&from));
                prop_assert!(bytes(&response).len() <= MAX_BYTES);
            }
            let found = known(&one, seconds(1));
            prop_assert!(found.keys().all(|node| (1..=4).contains(node)));
            prop_assert_eq!(found[&1], (7, 0));
            // No row is replaced by an older one.
            for (node, (_, age_ms)) in found {
                let before = ages.insert(node, age_ms);
                prop_assert!(before.is_none_or(|before| age_ms <= before));
            }
        }
    }
}

/// Nodes that exchange tables, with a delay of a millisecond per packet.
struct Cluster {
    nodes: Vec<Exchange>,
    random: StdRng,
    /// Share of packets that is lost, in percent.
    loss: u32,
    /// Messages that were sent, and the bytes in them.
    sent: (u64, u64),
    /// Since when messages are counted.
    observed: Duration,
    now: Duration,
}

/// The index of a node.
fn index(node: u32) -> usize {
    node as usize - 1
}

impl Cluster {
    fn new(nodes: u32, peers: u32, seed: u64) -> Cluster {
        let mut random = StdRng::seed_from_u64(seed);
        let all = (1..=nodes).map(|own| {
            let mut exchange = Exchange::new(own, random.random(), true, MAX_BYTES);
            exchange.set_timing(Timing {
                peers,
                ..Timing::default()
            });
            exchange.set_own(Duration::ZERO, figures(own));
            // Nodes start at different times.
            let start = Duration::from_millis(random.random_range(0..240_000));
            for other in (1..=nodes).filter(|other| *other != own) {
                exchange.add_member(start, other);
            }
            exchange
        });
        Cluster {
            nodes: all.collect(),
            random,
            loss: 0,
            sent: (0, 0),
            observed: Duration::ZERO,
            now: Duration::ZERO,
        }
    }

    /// Sends a message; false if it is lost.
    fn send(&mut self, message: &Message) -> bool {
        self.sent.0 += 1;
        self.sent.1 += bytes(message).len() as u64;
        self.random.random_range(0..100) >= self.loss
    }

    /// Runs until a time. A node measures its own load whenever it sends.
    fn run(&mut self, until: Duration) {
        loop {
            let due = self.nodes.iter().zip(1..);
            let due = due.map(|(one, node)| (one.next_deadline(), node));
            let Some((due, node)) = due.min().filter(|(due, _)| *due <= until) else {
                self.now = until;
                return;
            };
            self.now = due;
            self.nodes[index(node)].set_own(due, figures(node));
            let arrival = due + Duration::from_millis(1);
            for (peer, request) in self.nodes[index(node)].on_timer(due) {
                if !self.send(&request) {
                    continue;
                }
                self.nodes[index(peer)].set_own(arrival, figures(peer));
                let response = self.nodes[index(peer)].on_message(arrival, node, &request);
                if let Some(response) = response
                    && self.send(&response)
                {
                    self.nodes[index(node)].on_message(arrival, peer, &response);
                }
            }
        }
    }

    /// Traffic of a node since counting began, with 70 bytes of headers per packet.
    fn traffic(&self) -> String {
        let (messages, bytes) = self.sent;
        let node_seconds = (self.now - self.observed).as_secs() * self.nodes.len() as u64;
        let bytes_per_s = (bytes + 70 * messages) / node_seconds;
        format!("{messages} messages; a node sends {bytes_per_s} B/s")
    }

    /// Mean age of the rows about other nodes, in mean periods between exchanges.
    fn mean_age(&self) -> f64 {
        let mut ages = Vec::new();
        for (one, node) in self.nodes.iter().zip(1..) {
            let rows = one.table_rows(self.now);
            assert_eq!(rows.len(), self.nodes.len(), "every node is known");
            let others = rows.into_iter().filter(|row| row.node != node);
            ages.extend(others.map(|row| f64::from(row.age_ms) / 1000.0));
        }
        mean(&ages) / MEAN_PERIOD_S
    }
}

fn mean(values: &[f64]) -> f64 {
    let count = u32::try_from(values.len()).expect("few");
    values.iter().sum::<f64>() / f64::from(count)
}

/// Mean age over many times at which the cluster is observed, in periods less one half, as in the
/// thesis: there the ages are those at the beginning of a period.
fn simulated_age(nodes: u32, peers: u32, loss: u32) -> f64 {
    let mut cluster = Cluster::new(nodes, peers, SEED);
    cluster.loss = loss;
    cluster.run(seconds(240 * 30));
    (cluster.sent, cluster.observed) = ((0, 0), cluster.now);
    let ages: Vec<f64> = (0..60)
        .map(|_| {
            let next = cluster.now + seconds(97);
            cluster.run(next);
            cluster.mean_age()
        })
        .collect();
    println!("{}", cluster.traffic());
    mean(&ages) - 0.5
}

/// Mean age in periods by the Markov chain of figure 8.3: in lockstep every node sends its table to
/// k others, which do not respond. The chain is an upper bound for exchanges in both directions.
fn markov_age(nodes: u32, peers: u32) -> f64 {
    let (p, k) = (f64::from(nodes), f64::from(peers));
    let not_direct = (p - 1.0 - k) / (p - 1.0);
    let sends = k / (p - 2.0);
    // Probability that none of the p - 2 others sends a row with a property, by the share of rows
    // without the property.
    let none_sends = |share: f64| (1.0 - sends + sends * share).powf(p - 2.0);
    // `older` is the share of rows that are at least as old as the current age.
    let (mut last, mut older_before) = (k / (p - 1.0), 1.0);
    let mut older = 1.0 - last;
    let mut mean = 0.0;
    while older > 1e-9 {
        mean += older;
        let no_useful = none_sends(older_before);
        let best_is_this = no_useful - none_sends(older);
        last = not_direct * (last * no_useful + older * best_is_this);
        older_before = older;
        older -= last;
    }
    mean
}

/// Mean age in periods in lockstep, with messages in one direction, as the chain assumes.
fn lockstep_age(nodes: usize, peers: usize, random: &mut StdRng) -> f64 {
    let mut ages = vec![vec![0.0_f64; nodes]; nodes];
    let mut means = Vec::new();
    for round in 0..200 {
        let mut next: Vec<Vec<f64>> = ages
            .iter()
            .map(|row| row.iter().map(|age| age + 1.0).collect())
            .collect();
        for (from, sent) in ages.iter().enumerate() {
            let mut others: Vec<usize> = (0..nodes).filter(|other| *other != from).collect();
            for chosen in 0..peers {
                let drawn = random.random_range(chosen..others.len());
                others.swap(chosen, drawn);
                let to = others[chosen];
                for about in (0..nodes).filter(|about| *about != to) {
                    let age = if about == from {
                        0.0
                    } else {
                        sent[about] + 1.0
                    };
                    next[to][about] = next[to][about].min(age);
                }
            }
        }
        ages = next;
        if round >= 100 {
            let all = ages.iter().enumerate().flat_map(|(own, row)| {
                let others = row.iter().enumerate();
                others
                    .filter(move |(about, _)| *about != own)
                    .map(|(_, age)| *age)
            });
            means.push(mean(&all.collect::<Vec<f64>>()));
        }
    }
    mean(&means)
}

#[test]
fn the_chain_of_the_thesis_agrees_with_messages_in_lockstep() {
    println!("seed {SEED}");
    let mut random = StdRng::seed_from_u64(SEED);
    for peers in [1, 3, 6] {
        for nodes in [16, 32, 64] {
            let chain = markov_age(nodes, peers);
            let lockstep = lockstep_age(nodes as usize, peers as usize, &mut random);
            println!("P = {nodes}, k = {peers}: chain {chain:.2}, lockstep {lockstep:.2}");
            assert!(
                (chain - lockstep).abs() < 0.15 * chain + 0.1,
                "{chain} {lockstep}"
            );
        }
    }
}

#[test]
fn the_mean_age_of_rows_grows_with_the_logarithm_of_the_nodes_and_stays_below_the_formula() {
    println!("seed {SEED}; mean ages in periods of 240 s");
    for peers in [1, 3, 6] {
        let mut before: Option<f64> = None;
        let more = std::env::var("DIPOLE_MEMBERS").ok();
        let more = more.map(|text| text.parse().expect("a number"));
        for nodes in [8, 16, 32, 64, 128].into_iter().chain(more) {
            let (formula, age) = (markov_age(nodes, peers), simulated_age(nodes, peers, 0));
            println!("P = {nodes}, k = {peers}: formula {formula:.2}, simulated {age:.2}");
            assert!(
                age <= formula + 0.25,
                "P = {nodes}, k = {peers}: {age} of {formula}"
            );
            // Twice the nodes add a constant: no more than one period with one peer.
            if let Some(before) = before {
                let doublings = f64::from(nodes / 128).log2().max(1.0);
                let limit = doublings * (1.0 / f64::from(peers) + 0.15);
                assert!(
                    age - before < limit,
                    "P = {nodes}, k = {peers}: {before} to {age}"
                );
            }
            before = Some(age);
        }
    }
}

#[test]
fn lost_packets_age_the_rows_only_a_little() {
    println!("seed {SEED}");
    let (without, with) = (simulated_age(32, 3, 0), simulated_age(32, 3, 20));
    println!("P = 32, k = 3: {without:.2} periods, with a fifth of the packets lost {with:.2}");
    assert!(with < without + 0.5, "{without} to {with}");
}

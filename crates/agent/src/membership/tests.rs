//! Many nodes in one process, under virtual time.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use dipole_naming::address::NodeId;
use dipole_naming::envelope::{Authenticator, Header};
use dipole_node::registry::{ANNOUNCEMENT_BYTES, Announcement, NodeFacts};
use rand::RngExt;

use super::auth::{Body, PacketAuth};
use super::*;
use crate::discovery::{Discovery, Response, Taken};

const DELAY: Duration = Duration::from_millis(1);

fn sealed_bytes(announcement: &Announcement) -> u64 {
    let header = Header {
        from: announcement.node,
        to: NodeId(0),
        nonce: 0,
    };
    Authenticator::new(None).seal(header, announcement).len() as u64
}

/// Delivers all packets a millisecond later, except to dead nodes.
struct Cluster {
    nodes: Vec<Option<Membership>>,
    /// Discovery of nodes that announce themselves.
    announcers: Vec<Option<Discovery>>,
    /// Announcements in flight, to one node or to all, by time of arrival.
    announcements: BTreeMap<(Duration, u64), (Announcement, Option<usize>)>,
    /// Number of broadcast announcements.
    announced: u32,
    key: Option<ClusterKey>,
    /// Delay after which every packet is delivered again, if at all.
    again: Option<Duration>,
    /// Packets in flight by time of arrival, then in the order of sending.
    flying: BTreeMap<(Duration, u64), (SocketAddr, SocketAddr, Vec<u8>)>,
    /// Percentage of packets to well-known ports that are lost because of full queues.
    junk: u32,
    /// Recorded packets, if recording is on: sender, receiver, bytes.
    record: bool,
    recorded: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    /// Packets to addresses without a node.
    elsewhere: Vec<(SocketAddr, Vec<u8>)>,
    sent: Vec<u64>,
    count: u64,
    dice: StdRng,
    now: Duration,
}

fn address(node: usize) -> SocketAddr {
    let number = u16::try_from(node + 1).expect("few nodes");
    let [high, low] = number.to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, high, low)), number)
}

/// First of the ports that only members know.
const PRIVATE: u16 = 20_000;

/// Address from which an agent sends.
fn private(node: usize) -> SocketAddr {
    let at = address(node);
    SocketAddr::new(at.ip(), at.port() + PRIVATE)
}

fn number(node: usize) -> u32 {
    u32::try_from(node + 1).expect("few nodes")
}

fn secrets(seed: u64) -> Secrets {
    let mut bytes = [0; dipole_node::KEY_BYTES];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    Secrets {
        run: seed,
        seed,
        tokens: ClusterKey::new(bytes).mac_key("test"),
    }
}

fn member(node: usize, incarnation: u64) -> Member {
    Member {
        node: number(node),
        incarnation,
        facts: NodeFacts {
            addresses: vec![address(node).ip()],
            control: None,
            port: address(node).port(),
            slots: 4,
            name: String::new(),
            version: "0.1.0".to_owned(),
        },
    }
}

impl Cluster {
    fn new(nodes: usize) -> Cluster {
        Cluster::with_key(nodes, None)
    }

    fn with_key(nodes: usize, key: Option<ClusterKey>) -> Cluster {
        let mut cluster = Cluster::empty(nodes, key);
        for node in 0..nodes {
            cluster.start(node, 1);
        }
        cluster
    }

    fn empty(nodes: usize, key: Option<ClusterKey>) -> Cluster {
        Cluster {
            nodes: (0..nodes).map(|_| None).collect(),
            announcers: (0..nodes).map(|_| None).collect(),
            announcements: BTreeMap::new(),
            announced: 0,
            key,
            again: None,
            flying: BTreeMap::new(),
            junk: 0,
            dice: StdRng::seed_from_u64(1),
            record: false,
            recorded: Vec::new(),
            elsewhere: Vec::new(),
            sent: vec![0; nodes],
            count: 0,
            now: Duration::from_secs(1),
        }
    }

    /// Nodes without a hosts file on one segment, all started within a second.
    fn that_find_each_other(nodes: usize) -> Cluster {
        let mut cluster = Cluster::empty(nodes, None);
        for node in 0..nodes {
            cluster.appear(node, 1);
            let every = Duration::from_secs(1) / u32::try_from(nodes).expect("few");
            cluster.run(every);
        }
        cluster
    }

    /// Starts an agent that announces itself.
    fn appear(&mut self, node: usize, incarnation: u64) {
        self.appear_as(number(node), node, incarnation);
    }

    /// Starts an agent of any node at the address of `node`.
    fn appear_as(&mut self, number: u32, node: usize, incarnation: u64) {
        self.count += 1;
        let (mut own, seed) = (member(node, incarnation), node as u64 + 1000 * self.count);
        own.node = number;
        self.announcers[node] = Some(Discovery::new("test", self.now, seed));
        self.nodes[node] = Some(Membership::new(own, Vec::new(), secrets(seed), None));
        self.announce(node);
    }

    fn announce(&mut self, node: usize) {
        if let (Some(announcer), Some(membership)) = (&mut self.announcers[node], &self.nodes[node])
            && let Some(announcement) = announcer.due(self.now, membership)
        {
            self.sent[node] += sealed_bytes(&announcement);
            self.announced += 1;
            self.count += 1;
            self.announcements
                .insert((self.now + DELAY, self.count), (announcement, None));
        }
    }

    fn receive(&mut self, announcement: &Announcement, by: Option<usize>) {
        let all = 0..self.nodes.len();
        for node in all.filter(|node| by.is_none_or(|by| by == *node)) {
            let (Some(announcer), Some(membership)) =
                (&mut self.announcers[node], &mut self.nodes[node])
            else {
                continue;
            };
            let to_all = by.is_none();
            let response = announcer.on_announcement(
                self.now,
                announcement,
                to_all,
                ANNOUNCEMENT_BYTES,
                membership,
            );
            let next = match response {
                Ok(Some(Response::Announce(announcement, to))) => Some((announcement, to)),
                Ok(Some(Response::Forward(to))) => Some((announcement.clone(), to)),
                Ok(None) => None,
                Err(Taken { .. }) => {
                    // Its number belongs to another node.
                    (self.nodes[node], self.announcers[node]) = (None, None);
                    continue;
                }
            };
            if let Some((announcement, to)) = next {
                self.count += 1;
                let to = usize::from(to.port()) - 1;
                let arrival = (self.now + DELAY, self.count);
                self.announcements.insert(arrival, (announcement, Some(to)));
            }
            self.collect(node);
        }
    }

    /// Starts an agent with a hosts file.
    fn start(&mut self, node: usize, incarnation: u64) {
        let others = (0..self.nodes.len()).filter(|other| *other != node);
        let known = others.map(|other| member(other, 0));
        // A different one each time, as in a new process.
        self.count += 1;
        let seed = node as u64 + 1000 * self.count;
        let mut started = Membership::new(
            member(node, incarnation),
            known.collect(),
            secrets(seed),
            self.key.as_ref(),
        );
        started.on_timers(self.now);
        self.nodes[node] = Some(started);
        self.collect(node);
    }

    fn collect(&mut self, node: usize) {
        let Some(membership) = &mut self.nodes[node] else {
            return;
        };
        let targets = |to: &Member, _| to.facts.directories();
        for (to, packet) in membership.take_outgoing(self.now, targets) {
            assert!(packet.len() <= MAX_PACKET_BYTES);
            self.sent[node] += packet.len() as u64;
            let from = private(node);
            if let Some(later) = self.again {
                self.put(later, from, to, packet.clone());
            }
            self.put(DELAY, from, to, packet);
        }
    }

    /// Sends a packet from any address.
    fn put(&mut self, delay: Duration, from: SocketAddr, to: SocketAddr, packet: Vec<u8>) {
        if self.record {
            self.recorded.push((from, to, packet.clone()));
        }
        self.count += 1;
        let arrival = (self.now + delay, self.count);
        self.flying.insert(arrival, (from, to, packet));
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let timer = self.nodes.iter().enumerate();
            let announcers = &self.announcers;
            let timer = timer.filter_map(|(node, one)| {
                let announcer = announcers[node].as_ref();
                let announcer = announcer.map_or(Duration::MAX, Discovery::next_deadline);
                Some((one.as_ref()?.next_deadline().min(announcer), node))
            });
            let timer = timer.min();
            let next_announcement = self.announcements.first_key_value().map(|((at, _), _)| *at);
            let packet = self.flying.first_key_value().map(|((at, _), _)| *at);
            let next = timer
                .map(|(at, _)| at)
                .into_iter()
                .chain(packet)
                .chain(next_announcement);
            let next = next.min();
            let Some(next) = next.filter(|at| *at <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(next);
            if next_announcement == Some(next) {
                if let Some((_, (announcement, to))) = self.announcements.pop_first() {
                    self.receive(&announcement, to);
                }
            } else if packet == Some(next) {
                let Some((_, (from, to, bytes))) = self.flying.pop_first() else {
                    unreachable!("just seen")
                };
                let index = usize::from(to.port() % PRIVATE) - 1;
                if to.port() < PRIVATE && self.dice.random_range(0..100) < self.junk {
                    continue;
                }
                let is_inside = to.ip().is_loopback();
                match self.nodes.get_mut(index).filter(|_| is_inside) {
                    Some(Some(node)) => {
                        node.on_packet(self.now, from, &bytes);
                        self.collect(index);
                    }
                    Some(None) => {}
                    None => self.elsewhere.push((to, bytes)),
                }
            } else if let Some((_, node)) = timer {
                self.announce(node);
                if let Some(membership) = &mut self.nodes[node] {
                    membership.on_timers(self.now);
                }
                self.collect(node);
            }
        }
    }

    /// The nodes that are up, if all live nodes agree on them.
    fn agreed(&self) -> Option<BTreeSet<u32>> {
        let mut views = self.nodes.iter().flatten().map(|one| {
            let others = one.members().map(|one| one.node);
            others.chain([one.own().node]).collect::<BTreeSet<u32>>()
        });
        let first = views.next()?;
        views.all(|view| view == first).then_some(first)
    }

    /// Runs until all agree on this number of nodes; returns the time it took.
    fn until_agreed(&mut self, nodes: usize, limit: Duration) -> Duration {
        let start = self.now;
        while self.now < start + limit {
            self.run(Duration::from_secs(1));
            if self.agreed().is_some_and(|view| view.len() == nodes) {
                return self.now - start;
            }
        }
        let known = self.nodes.iter().flatten().map(|one| one.members().count());
        let (fewest, most) = known.fold((usize::MAX, 0), |(fewest, most), count| {
            (fewest.min(count), most.max(count))
        });
        panic!("no agreement on {nodes} nodes within {limit:?}: {fewest} to {most} others known");
    }

    /// Bytes per second that a node sends, averaged over the next 20 s.
    fn traffic(&mut self) -> f64 {
        let before: u64 = self.sent.iter().sum();
        self.run(Duration::from_secs(20));
        let sent = u32::try_from(self.sent.iter().sum::<u64>() - before).expect("little");
        let alive = self.nodes.iter().flatten().count();
        f64::from(sent) / 20.0 / f64::from(u32::try_from(alive).expect("few"))
    }
}

#[test]
fn a_node_that_dies_is_reported_down_and_one_that_comes_back_up() {
    let mut cluster = Cluster::new(5);
    cluster.until_agreed(5, Duration::from_secs(10));
    cluster.nodes[3] = None;
    let took = cluster.until_agreed(4, Duration::from_secs(30));
    println!("a dead node was known to be down after {took:?}");
    assert!(!cluster.agreed().expect("agreed").contains(&4));
    for membership in cluster.nodes.iter_mut().flatten() {
        let went = |news: &MembershipEvent| matches!(news, MembershipEvent::Down(member) if member.node == 4);
        assert!(membership.take_events().iter().any(went));
    }
    cluster.start(3, 2);
    cluster.until_agreed(5, Duration::from_secs(30));
}

#[test]
fn a_node_that_leaves_is_down_at_once() {
    let mut cluster = Cluster::new(4);
    cluster.until_agreed(4, Duration::from_secs(10));
    let now = cluster.now;
    cluster.nodes[1].as_mut().expect("alive").leave(now);
    cluster.collect(1);
    cluster.nodes[1] = None;
    let took = cluster.until_agreed(3, Duration::from_secs(10));
    assert!(took <= Duration::from_secs(3), "{took:?}");
}

#[test]
fn nonsense_is_ignored() {
    let mut one = Membership::new(member(0, 1), Vec::new(), secrets(1), None);
    let now = Duration::from_secs(1);
    one.on_packet(now, address(1), &[]);
    let mut random = StdRng::seed_from_u64(3);
    let mut stranger = PacketAuth::new(None, 2, 1, 2);
    for length in 0..1000_usize {
        let mut data = vec![0; length];
        rand::Rng::fill_bytes(&mut random, &mut data);
        one.on_packet(now, address(1), &data);
        one.on_packet(now, address(1), &stranger.seal(1, Body::Swim(data)));
    }
    assert_eq!(one.members().count(), 0);
}

#[test]
fn strangers_do_not_become_members_and_are_counted() {
    let key = |byte| Some(ClusterKey::new([byte; dipole_node::KEY_BYTES]));
    let mut cluster = Cluster::with_key(3, key(1));
    cluster.until_agreed(3, Duration::from_secs(10));
    // The second node restarts with another key.
    cluster.key = key(2);
    cluster.start(1, 2);
    cluster.run(Duration::from_secs(60));
    for (index, membership) in cluster.nodes.iter().flatten().enumerate() {
        let others: Vec<u32> = membership.members().map(|member| member.node).collect();
        let expected = [vec![3], vec![], vec![1]];
        assert_eq!(others, expected[index]);
        assert!(membership.dropped().strangers > 0, "node {}", index + 1);
    }
}

#[test]
fn packets_sent_again_change_nothing_in_a_cluster_with_a_key() {
    let key = ClusterKey::new([1; dipole_node::KEY_BYTES]);
    let mut cluster = Cluster::with_key(5, Some(key));
    cluster.again = Some(Duration::from_secs(4));
    cluster.until_agreed(5, Duration::from_secs(10));
    cluster.nodes[3] = None;
    cluster.until_agreed(4, Duration::from_secs(30));
    cluster.start(3, 2);
    cluster.until_agreed(5, Duration::from_secs(30));
    // Packets about the node from its absence arrive again and again.
    for membership in cluster.nodes.iter_mut().flatten() {
        membership.take_events();
    }
    cluster.run(Duration::from_secs(60));
    for membership in cluster.nodes.iter_mut().flatten() {
        assert_eq!(membership.take_events(), []);
        let dropped = membership.dropped();
        assert!(
            dropped.repeated > 0 && dropped.strangers == 0,
            "{dropped:?}"
        );
    }
}

#[test]
fn hundreds_of_nodes_find_each_other_and_announce_themselves_rarely() {
    let nodes = std::env::var("DIPOLE_MEMBERS").map_or(200, |text| text.parse().expect("a number"));
    let mut cluster = Cluster::that_find_each_other(nodes);
    let joined = cluster.until_agreed(nodes, Duration::from_secs(60));
    let at_start = cluster.sent.iter().sum::<u64>() / nodes as u64;
    cluster.run(Duration::from_secs(100));
    let announced = cluster.announced;
    let traffic = cluster.traffic();
    let more = cluster.announced - announced;
    println!(
        "{nodes} nodes found each other {joined:?} after the last was started, with {at_start} \
         bytes each; then {traffic:.0} B/s of a node, and {more} announcements of all in 20 s"
    );
    // One per second, or one per minute and node if there are few nodes, up to 25 % sooner.
    assert!(more <= 20 * 2, "{more} announcements");
    // A node restarts, at once and later.
    for pause in [0, 30] {
        cluster.nodes[1] = None;
        cluster.run(Duration::from_secs(pause));
        cluster.appear(1, 2 + pause);
        cluster.until_agreed(nodes, Duration::from_secs(60));
    }
}

#[test]
fn hundreds_of_nodes_agree_within_seconds_and_send_as_little_as_fifty() {
    let nodes = std::env::var("DIPOLE_MEMBERS").map_or(200, |text| text.parse().expect("a number"));
    let mut few = Cluster::new(50);
    few.until_agreed(50, Duration::from_secs(60));
    few.run(Duration::from_secs(60));
    let of_few = few.traffic();
    let mut many = Cluster::new(nodes);
    let joined = many.until_agreed(nodes, Duration::from_secs(120));
    // Waits for the last updates about joins.
    many.run(Duration::from_secs(60));
    let of_many = many.traffic();
    many.nodes[nodes / 3] = None;
    let gone = many.until_agreed(nodes - 1, Duration::from_secs(120));
    println!(
        "{nodes} nodes: joined in {joined:?}, a death known to all in {gone:?}; {of_many:.0} B/s of \
         a node, {of_few:.0} with 50 nodes"
    );
    assert!(of_many < 1.5 * of_few, "{of_many:.0} B/s, not {of_few:.0}");
}

mod loads;
mod moves;
mod strangers;

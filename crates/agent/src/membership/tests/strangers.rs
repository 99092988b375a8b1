//! Attacks of senders outside the cluster.

use foca::Codec as _;

use super::*;

/// A bystander's address, or an attacker who receives packets there.
fn outside(number: u8) -> SocketAddr {
    SocketAddr::new([10, 9, 9, number].into(), STRANGE_PORT)
}

const STRANGE_PORT: u16 = 9;

const SEEDS: u64 = 40;

/// Seals an attacker's packets.
fn strange(node: u32) -> PacketAuth {
    PacketAuth::new(None, node, 7, STRANGE_PORT)
}

/// A node that an attacker makes up.
fn forged(node: u32, incarnation: u64, at: SocketAddr) -> Member {
    let mut forged = member(0, incarnation);
    forged.node = node;
    (forged.facts.addresses, forged.facts.port) = (vec![at.ip()], at.port());
    forged
}

/// A SWIM packet with updates, as foca would send it.
fn swim(
    src: &Member,
    dst: &Member,
    message: Message<Member>,
    news: &[foca::Member<Member>],
) -> Body {
    let header = foca::Header {
        src: src.clone(),
        src_incarnation: 0,
        dst: dst.clone(),
        message,
    };
    let mut data = Vec::new();
    PostcardCodec
        .encode_header(&header, &mut data)
        .expect("a vector");
    Body::Swim(Swim::encode(&data, news))
}

impl Cluster {
    /// Lets an attacker who receives at `at` respond to challenges there as a node, with its
    /// digest.
    fn answer_as(
        &mut self,
        at: SocketAddr,
        member: &Member,
        auth: &mut PacketAuth,
        time: Duration,
    ) {
        let end = self.now + time;
        while self.now < end {
            self.run(Duration::from_millis(100));
            for (to, packet) in std::mem::take(&mut self.elsewhere) {
                if to != at {
                    self.elsewhere.push((to, packet));
                } else if let Some(received) = auth.open(&packet)
                    && let Body::Challenge { token, .. } = received.body
                {
                    let answer = Body::Response {
                        token,
                        digest: digest(member),
                        min_incarnation: member.incarnation.to_le_bytes(),
                    };
                    let packet = auth.seal(received.from, answer);
                    self.put(DELAY, at, address(received.from as usize - 1), packet);
                }
            }
        }
    }

    fn bytes_at(&self, at: SocketAddr) -> usize {
        let received = self.elsewhere.iter().filter(|(to, _)| *to == at);
        received.map(|(_, packet)| packet.len()).sum()
    }
}

#[test]
fn a_bystander_receives_no_more_than_a_stranger_sends() {
    for with_hosts_file in [true, false] {
        let mut cluster = match with_hosts_file {
            true => Cluster::new(4),
            false => Cluster::that_find_each_other(4),
        };
        cluster.until_agreed(4, Duration::from_secs(20));
        let (bystander, own) = (outside(1), outside(2));
        let mut victim = forged(0, 1, bystander);
        victim.facts.addresses = vec![bystander.ip(); 4];
        let mut stranger = strange(100);
        let mut sent = 0;
        // The source is the bystander's address.
        let named = forged(100, 9, bystander);
        let dst = member(0, 1);
        for body in [
            swim(&named, &dst, Message::Announce, &[]),
            swim(&named, &dst, Message::Gossip, &[]),
            Body::SyncRequest(sync::Digests::default()),
        ] {
            let packet = stranger.seal(1, body);
            sent += packet.len();
            cluster.put(DELAY, bystander, address(0), packet);
        }
        // A sender whose address has responded claims other nodes and more addresses of its own.
        let mut sender = forged(100, 9, own);
        sender.facts.addresses.push(bystander.ip());
        let named: Vec<_> = (200..230)
            .map(|node| {
                foca::Member::alive(Member {
                    node,
                    ..victim.clone()
                })
            })
            .collect();
        for round in 0..3 {
            let packets = [
                stranger.seal(1, swim(&sender, &dst, Message::Gossip, &named[..20])),
                stranger.seal(1, Body::SyncResponse(named.clone())),
                stranger.seal(
                    1,
                    swim(
                        &sender,
                        &dst,
                        Message::PingReq {
                            target: Member {
                                node: 201,
                                ..victim.clone()
                            },
                            probe_number: 1,
                        },
                        &[],
                    ),
                ),
            ];
            for packet in packets {
                sent += packet.len();
                cluster.put(DELAY, own, address(0), packet);
            }
            let time = Duration::from_secs(if round == 2 { 30 } else { 2 });
            cluster.answer_as(own, &sender, &mut stranger, time);
        }
        // The same claim is in a broadcast announcement.
        if !with_hosts_file {
            let announcement = Member {
                node: 300,
                ..victim.clone()
            }
            .announcement("test", 5);
            sent += ANNOUNCEMENT_BYTES;
            let now = cluster.now;
            cluster.announcements.insert((now, 0), (announcement, None));
            cluster.run(Duration::from_secs(30));
        }
        let received = cluster.bytes_at(bystander);
        assert!(received <= sent, "{received} bytes received for {sent}");
        assert!(received > 0, "nothing was tried");
        cluster.until_agreed(4, Duration::from_secs(30));
    }
}

#[test]
fn recorded_packets_do_not_bring_a_dead_node_back_to_an_agent_that_was_restarted() {
    let key = ClusterKey::new([1; dipole_node::KEY_BYTES]);
    let mut cluster = Cluster::with_key(3, Some(key));
    cluster.record = true;
    cluster.until_agreed(3, Duration::from_secs(10));
    cluster.run(Duration::from_secs(20));
    let recorded = std::mem::take(&mut cluster.recorded);
    cluster.record = false;
    // The second node dies, the first is restarted and has no memory of earlier packets.
    cluster.nodes[1] = None;
    cluster.until_agreed(2, Duration::from_secs(30));
    cluster.start(0, 2);
    cluster.until_agreed(2, Duration::from_secs(30));
    for membership in cluster.nodes.iter_mut().flatten() {
        membership.take_events();
    }
    let to_first = [address(0), private(0)];
    let replayed = recorded.iter().filter(|(_, to, _)| to_first.contains(to));
    let replayed: Vec<_> = replayed.cloned().collect();
    assert!(replayed.len() > 20, "{}", replayed.len());
    for (from, to, packet) in replayed {
        cluster.put(DELAY, from, to, packet);
        cluster.run(Duration::from_millis(100));
        assert_eq!(cluster.agreed(), Some(BTreeSet::from([1, 3])));
    }
    cluster.run(Duration::from_secs(10));
    for membership in cluster.nodes.iter_mut().flatten() {
        assert_eq!(membership.take_events(), []);
    }
}

#[test]
fn no_member_is_missed_while_the_ports_that_strangers_know_are_full() {
    let key = ClusterKey::new([1; dipole_node::KEY_BYTES]);
    for key in [None, Some(key)] {
        let mut cluster = Cluster::with_key(5, key);
        cluster.until_agreed(5, Duration::from_secs(10));
        cluster.run(Duration::from_secs(60));
        for membership in cluster.nodes.iter_mut().flatten() {
            membership.take_events();
        }
        cluster.junk = 100;
        cluster.run(Duration::from_secs(60));
        for membership in cluster.nodes.iter_mut().flatten() {
            assert_eq!(membership.take_events(), []);
        }
        cluster.nodes[3] = None;
        cluster.until_agreed(4, Duration::from_secs(30));
    }
}

#[test]
fn clocks_set_back_by_an_hour_or_a_year_do_no_harm_and_are_reported() {
    const HOUR: u64 = 3_600_000_000;
    let key = ClusterKey::new([1; dipole_node::KEY_BYTES]);
    for key in [None, Some(key)] {
        for back in [HOUR, 24 * 365 * HOUR] {
            let start = 400 * 24 * 365 * HOUR;
            let mut cluster = Cluster::empty(4, key.clone());
            for node in 0..4 {
                cluster.start(node, start);
            }
            cluster.until_agreed(4, Duration::from_secs(10));
            // One node restarts with an earlier clock, then the whole cluster one by one.
            for node in [1, 0, 1, 2, 3] {
                cluster.nodes[node] = None;
                let sent: u64 = cluster.sent.iter().sum();
                cluster.start(node, start - back + node as u64);
                cluster.until_agreed(4, Duration::from_secs(10));
                let news = cluster.nodes[node].as_mut().expect("alive").take_events();
                let reported = |news: &&MembershipEvent| matches!(news, MembershipEvent::ClockSetBack(by) if by.as_micros() + 10 > u128::from(back));
                assert_eq!(news.iter().filter(reported).count(), 1, "{news:?}");
                // The traffic stays low.
                cluster.run(Duration::from_secs(5));
                let sent = cluster.sent.iter().sum::<u64>() - sent;
                assert!(sent < 200_000, "{sent} bytes");
            }
        }
    }
}

#[test]
fn an_incarnation_forged_by_a_stranger_does_not_block_a_node_for_ever() {
    for incarnation in [u64::MAX, 1 << 63, (1 << 63) + 1, 1] {
        let mut cluster = Cluster::new(3);
        cluster.until_agreed(3, Duration::from_secs(10));
        // The stranger claims to be node 3, which is down, and answers as that node.
        cluster.nodes[2] = None;
        cluster.until_agreed(2, Duration::from_secs(30));
        let own = outside(2);
        let claim = forged(3, incarnation, own);
        let mut stranger = strange(3);
        for _ in 0..3 {
            for to in 0..2 {
                let body = swim(&claim, &member(to, 1), Message::Announce, &[]);
                let packet = stranger.seal(number(to), body);
                cluster.put(DELAY, own, address(to), packet);
            }
            cluster.answer_as(own, &claim, &mut stranger, Duration::from_secs(1));
        }
        cluster.start(2, 5);
        cluster.until_agreed(3, Duration::from_secs(40));
        for membership in cluster.nodes[..2].iter().flatten() {
            assert_eq!(
                membership.member(3).map(|third| &third.facts),
                Some(&member(2, 0).facts)
            );
        }
    }
}

#[test]
fn a_response_counts_once_from_the_queried_address_and_in_time() {
    let mut one = Membership::new(member(0, 1), Vec::new(), secrets(1), None);
    // An address that was not challenged cannot respond: tokens cannot be guessed or reused.
    let now = Duration::from_secs(1);
    let mut stranger = PacketAuth::new(None, 2, 7, address(1).port());
    let claim = member(1, 9);
    let announce = stranger.seal(1, swim(&claim, &member(0, 1), Message::Announce, &[]));
    one.on_packet(now, address(1), &announce);
    let sent = one.take_outgoing(now, |to, _| to.facts.directories());
    let token = match sent.as_slice() {
        [(to, packet)] if *to == address(1) => match stranger.open(packet).expect("ours").body {
            Body::Challenge { token, .. } => token,
            other => panic!("{other:?}"),
        },
        other => panic!("{} packets", other.len()),
    };
    let mut answer = |one: &mut Membership, now, token, from| {
        let body = Body::Response {
            token,
            digest: digest(&claim),
            min_incarnation: [0; 8],
        };
        let packet = stranger.seal(1, body);
        one.on_packet(now, from, &packet);
        one.on_packet(now, from, &announce);
        one.members().count()
    };
    assert_eq!(answer(&mut one, now, [0; 8], address(1)), 0);
    assert_eq!(answer(&mut one, now, token, outside(2)), 0);
    let late = now + Duration::from_secs(60);
    assert_eq!(answer(&mut one, late, token, address(1)), 0);
    assert_eq!(answer(&mut one, now, token, address(1)), 1);
}

#[test]
fn strangers_fill_no_memory() {
    let mut one = Membership::new(member(0, 1), Vec::new(), secrets(1), None);
    let now = Duration::from_secs(1);
    let mut stranger = strange(2);
    let claim = member(1, 9);
    let mut bytes = 0;
    for round in 0..400_u32 {
        let named = (0..30).map(|index| {
            let number = 100 + round * 30 + index;
            let [_, a, b, c] = number.to_be_bytes();
            forged(
                number,
                1,
                SocketAddr::new([10, a, b, c].into(), STRANGE_PORT),
            )
        });
        let named: Vec<_> = named.map(foca::Member::alive).collect();
        let [.., high, low] = round.to_be_bytes();
        let from = SocketAddr::new([10, 8, high, low].into(), STRANGE_PORT);
        let sender = forged(2, 9, from);
        let mut forge = || {
            let body = swim(&sender, &member(0, 1), Message::Gossip, &named);
            stranger.seal(1, body)
        };
        let (packet, again) = (forge(), forge());
        bytes += packet.len() + again.len();
        one.on_packet(now, from, &packet);
        for (to, packet) in one.take_outgoing(now, |to, _| to.facts.directories()) {
            // It responds from as many addresses as it likes.
            if let Some(received) = stranger.open(&packet)
                && let Body::Challenge { token, .. } = received.body
            {
                let body = Body::Response {
                    token,
                    digest: digest(&claim),
                    min_incarnation: [0; 8],
                };
                one.on_packet(now, to, &stranger.seal(1, body));
            }
        }
        one.on_packet(now, from, &again);
        let challenged = one.take_outgoing(now, |to, _| to.facts.directories());
        // All are challenged while there is room to remember them.
        let [_, _, hints, ..] = one.contacts.counts();
        assert!(
            challenged.len() > 5 || hints == 1 << 12,
            "{}",
            challenged.len()
        );
        for (to, packet) in challenged {
            assert!(to == from || packet.len() < 100);
        }
    }
    assert!(bytes > 500_000, "{bytes}");
    assert_eq!(one.members().count(), 1, "no other node has responded");
    let counts = one.contacts.counts();
    assert!(counts.iter().all(|count| *count <= 1 << 13), "{counts:?}");
}

#[test]
fn members_named_by_strangers_are_bounded_and_displace_no_known_member() {
    let mut one = Membership::new(member(0, 1), vec![member(1, 0)], secrets(1), None);
    let now = Duration::from_secs(1);
    let targets = |to: &Member, _| to.facts.directories();
    let mut join = |number: u32, at: SocketAddr| {
        let claim = forged(number, 9, at);
        let mut stranger = PacketAuth::new(None, number, 7, at.port());
        let mut hello = || stranger.seal(1, swim(&claim, &member(0, 1), Message::Announce, &[]));
        let (first, again) = (hello(), hello());
        one.on_packet(now, at, &first);
        for (to, packet) in one.take_outgoing(now, targets) {
            if let Some(received) = stranger.open(&packet).filter(|_| to == at)
                && let Body::Challenge { token, .. } = received.body
            {
                let body = Body::Response {
                    token,
                    digest: digest(&claim),
                    min_incarnation: [0; 8],
                };
                one.on_packet(now, at, &stranger.seal(1, body));
            }
        }
        one.on_packet(now, at, &again);
        one.take_outgoing(now, targets);
        (one.members().count(), one.member(number).is_some())
    };
    assert_eq!(join(2, address(1)), (1, true));
    let max = u32::try_from(MAX_MEMBERS).expect("few");
    for number in 3..max + 500 {
        let [_, high, middle, low] = number.to_be_bytes();
        let at = SocketAddr::new([10, high, middle, low].into(), STRANGE_PORT);
        let (count, is_there) = join(number, at);
        assert!(count <= MAX_MEMBERS, "{count}");
        assert_eq!(is_there, number <= max + 1, "{number}");
    }
    // The sender has another run number, as after a restart.
    assert_eq!(join(2, address(1)), (MAX_MEMBERS, true));
    let counts = one.contacts.counts();
    assert!(
        counts.iter().all(|count| *count <= MAX_MEMBERS),
        "{counts:?}"
    );
}

#[test]
fn newcomers_get_in_while_strangers_fill_the_known_ports() {
    let key = ClusterKey::new([1; dipole_node::KEY_BYTES]);
    let with_hosts_file = |key: Option<ClusterKey>| {
        let mut cluster = Cluster::empty(5, key);
        for node in 0..4 {
            cluster.start(node, 1);
        }
        cluster
    };
    let on_a_segment = || {
        let mut cluster = Cluster::empty(5, None);
        for node in 0..4 {
            cluster.appear(node, 1);
        }
        cluster
    };
    let variants: [(&str, &dyn Fn() -> Cluster); 3] = [
        ("with a hosts file", &|| with_hosts_file(None)),
        ("with one and a key", &|| with_hosts_file(Some(key.clone()))),
        ("on a segment", &on_a_segment),
    ];
    for (variant, make) in variants {
        // What is lost there is also lost on the way to the new node.
        for junk in [60, 90] {
            let mut times: Vec<Duration> = (0..SEEDS)
                .map(|seed| {
                    let mut cluster = make();
                    cluster.dice = StdRng::seed_from_u64(seed);
                    cluster.until_agreed(4, Duration::from_secs(20));
                    cluster.junk = junk;
                    match cluster.announcers[0] {
                        Some(_) => cluster.appear(4, 1),
                        None => cluster.start(4, 1),
                    }
                    cluster.until_agreed(5, Duration::from_secs(120))
                })
                .collect();
            times.sort();
            let [median, worst] = [times.len() / 2, times.len() - 1].map(|at| times[at]);
            println!(
                "{variant}, {junk} % lost: a newcomer was known to all after {median:?}, {worst:?} at \
                 worst of {SEEDS}"
            );
        }
    }
}

#[test]
fn a_forged_duplicate_nid_report_ends_no_agent_and_starts_no_storm() {
    let mut cluster = Cluster::that_find_each_other(4);
    cluster.until_agreed(4, Duration::from_secs(20));
    cluster.run(Duration::from_secs(15));
    let (before, sent) = (cluster.announced, cluster.count);
    // Forged packets go to each node in the name of each, with the announced incarnation.
    let mut forged = 0;
    for (to, named, whose) in (0..64).map(|at| (at % 4, at / 4 % 4, at / 16)) {
        let claim = Member {
            facts: member(whose, 1).facts,
            ..member(named, 7)
        };
        for taken in [1, 2, u64::MAX] {
            let announcement = Announcement {
                taken,
                ..claim.announcement("test", u64::MAX)
            };
            cluster.count += 1;
            forged += 1;
            let at = (cluster.now + DELAY, cluster.count);
            cluster.announcements.insert(at, (announcement, Some(to)));
        }
    }
    // No node stops (`receive` would fail), and each forged packet causes at most one response.
    cluster.run(Duration::from_secs(15));
    let spoken = cluster.count - sent - forged;
    let swims = 4 * 15 * 40;
    assert!(spoken <= forged + swims, "{spoken} packets");
    assert!(
        cluster.announced - before <= 8,
        "{}",
        cluster.announced - before
    );
    cluster.until_agreed(4, Duration::from_secs(20));
}

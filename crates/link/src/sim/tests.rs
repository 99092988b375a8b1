use super::*;
use std::net::IpAddr;

fn ip(node: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, node])
}

fn addresses(node: u8) -> (SocketAddr, SocketAddr) {
    (
        SocketAddr::new(ip(node), 1000),
        SocketAddr::new(ip(node), 1001),
    )
}

fn attach(network: &Network, node: u8) -> Port {
    let (small, bulk) = addresses(node);
    network.attach(small, bulk).unwrap()
}

fn send(port: &mut Port, now_ns: u64, to: u8, bytes: &[u8]) -> usize {
    let frame = Outgoing::frame(Class::Small, addresses(to).0, bytes);
    port.send(now_ns, &[frame]).unwrap()
}

/// All frames queued for a port.
fn receive(port: &mut Port, now_ns: u64) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    loop {
        let count = port.poll(now_ns, Class::Small).unwrap();
        if count == 0 {
            return all;
        }
        all.extend((0..count).map(|index| port.message(index).bytes.to_vec()));
    }
}

/// Sends numbered frames at once over a network with this path; returns what arrives.
fn through(path: PathConfig, seed: u64, count: u32) -> (Vec<Vec<u8>>, NetworkStats) {
    let config = NetworkConfig {
        path,
        bytes_per_second: 0,
        receive_queue_frames: usize::MAX,
        ..NetworkConfig::default()
    };
    let network = Network::new(seed, config);
    let (mut a, mut b) = (attach(&network, 1), attach(&network, 2));
    for number in 0..count {
        send(&mut a, 0, 2, &number.to_be_bytes());
    }
    (receive(&mut b, u64::MAX / 2), network.stats())
}

fn numbered(count: u32) -> Vec<Vec<u8>> {
    (0..count)
        .map(|number| number.to_be_bytes().to_vec())
        .collect()
}

#[test]
fn a_frame_arrives_after_both_interfaces_and_the_latency() {
    let config = NetworkConfig {
        bytes_per_second: 1_000_000_000,
        path: PathConfig {
            latency_ns: 5_000,
            ..PathConfig::default()
        },
        ..NetworkConfig::default()
    };
    let network = Network::new(1, config);
    let (mut a, mut b) = (attach(&network, 1), attach(&network, 2));
    send(&mut a, 100, 2, &[7; 934]);
    assert_eq!(network.next_event_ns(), Some(6_100));
    assert!(receive(&mut b, 7_099).is_empty());
    assert_eq!(network.next_event_ns(), Some(7_100));
    assert_eq!(receive(&mut b, 7_100), [vec![7; 934]]);
    assert_eq!(network.next_event_ns(), None);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let path = PathConfig {
        latency_ns: 1000,
        jitter_ns: 500,
        loss: 0.05,
        duplicate: 0.05,
        reorder: 0.05,
        reorder_ns: 5000,
        corrupt: 0.05,
        corrupt_bits: 3,
        bursts: Bursts {
            begin: 0.01,
            end: 0.2,
            loss: 0.8,
        },
    };
    assert_eq!(through(path, 3, 2000), through(path, 3, 2000));
    assert_ne!(through(path, 3, 2000).0, through(path, 4, 2000).0);
}

#[test]
fn a_clean_path_with_jitter_keeps_order() {
    let path = PathConfig {
        jitter_ns: 10_000,
        ..PathConfig::default()
    };
    assert_eq!(through(path, 1, 1000).0, numbered(1000));
}

#[test]
fn loss_duplication_reordering_and_corruption_occur() {
    let (got, stats) = through(
        PathConfig {
            loss: 0.1,
            ..PathConfig::default()
        },
        1,
        2000,
    );
    let lost = stats.dropped(DropReason::Loss);
    assert!((120..280).contains(&lost) && got.len() as u64 + lost == 2000);

    let (got, stats) = through(
        PathConfig {
            duplicate: 0.1,
            ..PathConfig::default()
        },
        1,
        2000,
    );
    assert!(stats.duplicated > 100 && got.len() as u64 == 2000 + stats.duplicated);

    let path = PathConfig {
        reorder: 0.1,
        reorder_ns: 9000,
        ..PathConfig::default()
    };
    let (mut got, stats) = through(path, 1, 2000);
    assert!(stats.reordered > 100 && !got.is_sorted());
    got.sort();
    assert_eq!(got, numbered(2000));

    let path = PathConfig {
        corrupt: 1.0,
        corrupt_bits: 1,
        ..PathConfig::default()
    };
    let (got, stats) = through(path, 1, 100);
    assert_eq!((got.len(), stats.corrupted), (100, 100));
    assert!(
        got.iter()
            .zip(numbered(100))
            .all(|(got, sent)| *got != sent && !got.is_empty())
    );
}

#[test]
fn burst_losses_come_in_runs() {
    let bursts = Bursts {
        begin: 0.01,
        end: 0.1,
        loss: 1.0,
    };
    let (got, stats) = through(
        PathConfig {
            bursts,
            ..PathConfig::default()
        },
        1,
        5000,
    );
    let lost = stats.dropped(DropReason::Burst);
    assert_eq!(got.len() as u64 + lost, 5000);
    let number = |bytes: &Vec<u8>| u32::from_be_bytes(bytes[..].try_into().unwrap());
    let gaps = got
        .windows(2)
        .filter(|pair| number(&pair[1]) != number(&pair[0]) + 1)
        .count();
    assert!(
        lost > 100 && (gaps as u64) * 4 < lost,
        "{lost} lost in {gaps} gaps"
    );
}

#[test]
fn incast_overflows_the_switch_and_the_rest_arrives_at_line_rate() {
    let config = NetworkConfig {
        bytes_per_second: 1_000_000_000,
        switch_queue_bytes: 20_000,
        ..NetworkConfig::default()
    };
    let network = Network::new(1, config);
    let mut senders: Vec<_> = (2..10).map(|node| attach(&network, node)).collect();
    let mut target = attach(&network, 1);
    for sender in &mut senders {
        for _ in 0..20 {
            assert_eq!(send(sender, 0, 1, &[1; 934]), 1);
        }
    }
    let got = receive(&mut target, 1_000_000_000).len() as u64;
    let lost = network.stats().dropped(DropReason::SwitchQueue);
    assert!(lost > 50, "{lost}");
    assert_eq!(got + lost, 160);
    let others = DropReason::ALL.map(|reason| network.stats().dropped(reason));
    assert_eq!(others.iter().sum::<u64>(), lost);
}

#[test]
fn a_full_interface_takes_nothing_until_its_deadline() {
    let config = NetworkConfig {
        bytes_per_second: 1_000_000_000,
        transmit_queue_bytes: 5_000,
        ..NetworkConfig::default()
    };
    let network = Network::new(1, config);
    let (mut a, mut b) = (attach(&network, 1), attach(&network, 2));
    let frame = Outgoing::frame(Class::Small, b.local(Class::Small), &[1; 934]);
    assert_eq!(a.send(0, &[frame; 20]).unwrap(), 5);
    let ready_ns = a.next_deadline_ns().unwrap();
    assert_eq!(a.send(ready_ns, &[frame; 20]).unwrap(), 5);
    assert_eq!(receive(&mut b, 1_000_000).len(), 10);
}

#[test]
fn a_cut_works_one_way_and_a_partition_both() {
    let network = Network::new(1, NetworkConfig::default());
    let (mut a, mut b) = (attach(&network, 1), attach(&network, 2));
    network.change(|config| config.cut(ip(1), ip(2)));
    send(&mut a, 0, 2, b"ab");
    send(&mut b, 0, 1, b"ba");
    assert!(receive(&mut b, 100_000).is_empty());
    assert_eq!(receive(&mut a, 100_000), [b"ba"]);
    network.change(|config| {
        config.heal();
        config.partition(&[ip(1)], &[ip(2)]);
    });
    send(&mut b, 100_000, 1, b"ba");
    assert!(receive(&mut a, 200_000).is_empty());
    network.change(NetworkConfig::heal);
    send(&mut a, 200_000, 2, b"ab");
    assert_eq!(receive(&mut b, 300_000), [b"ab"]);
    assert_eq!(network.stats().dropped(DropReason::Cut), 2);
}

#[test]
fn a_dead_interface_loses_frames_in_flight_and_recovers() {
    let network = Network::new(1, NetworkConfig::default());
    let (mut a, mut b) = (attach(&network, 1), attach(&network, 2));
    send(&mut a, 0, 2, b"under way");
    network.change(|config| config.set_interface(ip(2), false));
    assert!(receive(&mut b, 100_000).is_empty());
    assert_eq!(send(&mut b, 100_000, 1, b"out"), 1);
    network.change(|config| config.set_interface(ip(2), true));
    send(&mut a, 100_000, 2, b"back");
    assert_eq!(receive(&mut b, 200_000), [b"back"]);
    assert_eq!(network.stats().dropped(DropReason::DeadInterface), 2);
}

#[test]
fn a_crash_loses_the_queue_and_a_restart_reuses_the_addresses() {
    let network = Network::new(1, NetworkConfig::default());
    let (mut a, b) = (attach(&network, 1), attach(&network, 2));
    send(&mut a, 0, 2, b"queued");
    network.advance(100_000);
    assert_eq!(network.waiting(addresses(2).0), 1);
    let (small, bulk) = addresses(2);
    assert_eq!(
        network.attach(small, bulk).unwrap_err(),
        AttachError::Taken { address: small }
    );
    drop(b);
    assert_eq!(network.stats().dropped(DropReason::Detached), 1);
    send(&mut a, 100_000, 2, b"to no one");
    network.advance(200_000);
    assert_eq!(network.stats().dropped(DropReason::NoSocket), 1);
    let mut b = attach(&network, 2);
    send(&mut a, 200_000, 2, b"hello");
    assert_eq!(receive(&mut b, 300_000), [b"hello"]);
}

#[test]
fn a_port_detached_by_the_network_fails_and_does_not_disturb_its_successor() {
    let network = Network::new(1, NetworkConfig::default());
    let (mut a, mut old) = (attach(&network, 1), attach(&network, 2));
    network.detach(addresses(2).1);
    let mut new = attach(&network, 2);
    let error = old.poll(0, Class::Small).unwrap_err();
    assert!(error.to_string().contains("10.0.0.2:1000"), "{error}");
    drop(old);
    send(&mut a, 0, 2, b"hello");
    assert_eq!(receive(&mut new, 100_000), [b"hello"]);
}

#[test]
fn a_full_socket_drops_the_newest() {
    let config = NetworkConfig {
        receive_queue_frames: 10,
        ..NetworkConfig::default()
    };
    let network = Network::new(1, config);
    let (mut a, mut b) = (attach(&network, 1), attach(&network, 2));
    for number in 0..15_u32 {
        send(&mut a, 0, 2, &number.to_be_bytes());
    }
    assert_eq!(receive(&mut b, 1_000_000), numbered(10));
    assert_eq!(network.stats().dropped(DropReason::ReceiveQueue), 5);
}

#[test]
fn one_path_can_be_slower_than_the_rest() {
    let network = Network::new(
        1,
        NetworkConfig {
            bytes_per_second: 0,
            ..NetworkConfig::default()
        },
    );
    let (mut a, mut b) = (attach(&network, 1), attach(&network, 2));
    network.change(|config| {
        let slow = PathConfig {
            latency_ns: 1_000_000,
            ..config.path
        };
        config.paths.insert((ip(1), ip(2)), slow);
    });
    send(&mut a, 0, 2, b"slow");
    send(&mut b, 0, 1, b"fast");
    assert_eq!(receive(&mut a, 5_000), [b"fast"]);
    assert!(receive(&mut b, 999_999).is_empty());
    assert_eq!(receive(&mut b, 1_000_000), [b"slow"]);
}

#[test]
fn attach_errors_name_the_address_and_a_remedy() {
    let network = Network::new(1, NetworkConfig::default());
    let (small, _) = addresses(1);
    let error = network.attach(small, small).unwrap_err().to_string();
    assert!(
        error.contains("10.0.0.1:1000") && error.contains("port number"),
        "{error}"
    );
    let error = AttachError::Taken { address: small }.to_string();
    assert!(
        error.contains("10.0.0.1:1000") && error.contains("detach"),
        "{error}"
    );
}

/// 10 Mbit/s and a propagation time of 25 us.
fn bus(seed: u64) -> Network {
    let config = NetworkConfig {
        bytes_per_second: 1_250_000,
        bus: Some(BusConfig {
            propagation_ns: 25_000,
        }),
        path: PathConfig::default(),
        ..NetworkConfig::default()
    };
    Network::new(seed, config)
}

#[test]
fn a_bus_carries_one_frame_at_a_time_whichever_station_sends() {
    let network = bus(1);
    let mut ports: Vec<Port> = (1..=4).map(|node| attach(&network, node)).collect();
    // 1000 bytes take 800 us on the wire; the second frame finds the medium busy.
    assert_eq!(send(&mut ports[0], 0, 3, &[1; 934]), 1);
    assert_eq!(send(&mut ports[1], 100_000, 4, &[2; 934]), 1);
    assert!(receive(&mut ports[2], 799_999).is_empty());
    assert_eq!(receive(&mut ports[2], 800_000).len(), 1);
    assert!(receive(&mut ports[3], 1_599_999).is_empty());
    assert_eq!(receive(&mut ports[3], 1_600_000).len(), 1);
    assert_eq!(network.stats().collisions, 0);
}

#[test]
fn stations_that_start_together_collide_and_all_frames_pass_in_the_end() {
    for seed in 0..20 {
        let network = bus(seed);
        let mut ports: Vec<Port> = (1..=8).map(|node| attach(&network, node)).collect();
        for (index, port) in ports.iter_mut().enumerate().skip(1) {
            assert_eq!(send(port, index as u64 * 1_000, 1, &[3; 934]), 1);
        }
        let passed = receive(&mut ports[0], 1_000_000_000);
        assert_eq!(passed.len(), 7, "seed {seed}");
        let stats = network.stats();
        assert!(stats.collisions >= 7, "seed {seed}: {stats:?}");
        assert_eq!(stats.attempts, stats.collisions + 7, "seed {seed}");
        assert_eq!(network.next_event_ns(), None, "seed {seed}");
    }
}

#[test]
fn a_waiting_bus_station_takes_no_more_than_its_queue_holds() {
    let network = bus(1);
    network.change(|config| config.transmit_queue_bytes = 3_000);
    let mut port = attach(&network, 1);
    let taken: usize = (0..10).map(|_| send(&mut port, 0, 2, &[0; 934])).sum();
    assert_eq!(taken, 3);
    let again_ns = port.next_deadline_ns().expect("it is full");
    assert_eq!(send(&mut port, again_ns, 2, &[0; 934]), 1);
}

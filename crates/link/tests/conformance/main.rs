//! Runs the conformance suite on the links of this crate.

#[macro_use]
mod suite;

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use dipole_link::fault::Plan;
use dipole_link::sim::{Network, NetworkConfig, Port};
use dipole_link::udp::{UdpOptions, UdpStats};
use dipole_link::{Capture, Fault, Udp};
use suite::*;

impl Tested for Port {
    fn udp_stats(&self) -> Option<UdpStats> {
        None
    }
}

impl<L: Tested> Tested for Fault<L> {
    fn udp_stats(&self) -> Option<UdpStats> {
        self.inner().udp_stats()
    }
}

impl<L: Tested> Tested for Capture<L> {
    fn udp_stats(&self) -> Option<UdpStats> {
        self.inner().udp_stats()
    }
}

fn sim() -> Option<World> {
    let config = NetworkConfig {
        max_frame_bytes: 8972,
        ..NetworkConfig::default()
    };
    let network = Network::new(1, config);
    let links = (1..4).map(|node| {
        let address = |port| SocketAddr::from(([10, 0, 0, node], port));
        let port = network.attach(address(1000), address(1001)).unwrap();
        Box::new(port) as Box<dyn Tested>
    });
    Some(World {
        links: links.collect(),
        clock: Clock::Virtual(0),
        _held: Box::new(()),
    })
}

fn udp_on<L: Tested + 'static>(ip: &str, wrap: impl Fn(Udp, usize) -> L) -> World {
    let ip: IpAddr = ip.parse().unwrap();
    let open = |index| {
        let udp = Udp::bind(ip, &UdpOptions::default()).unwrap();
        Box::new(wrap(udp, index)) as Box<dyn Tested>
    };
    let clock = Clock::Real(Instant::now());
    World {
        links: (0..3).map(open).collect(),
        clock,
        _held: Box::new(()),
    }
}

fn udp_v4() -> Option<World> {
    Some(udp_on("127.0.0.1", |link, _| link))
}

fn udp_v6() -> Option<World> {
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        eprintln!("SKIPPED: this machine has no ::1");
        return None;
    }
    Some(udp_on("::1", |link, _| link))
}

fn udp_without_segmentation() -> Option<World> {
    let options = UdpOptions {
        segmentation: false,
        ..UdpOptions::default()
    };
    let open = |_| {
        let udp = Udp::bind([127, 0, 0, 1].into(), &options).unwrap();
        Box::new(udp) as Box<dyn Tested>
    };
    let clock = Clock::Real(Instant::now());
    Some(World {
        links: (0..3).map(open).collect(),
        clock,
        _held: Box::new(()),
    })
}

fn fault() -> Option<World> {
    Some(udp_on("127.0.0.1", |link, _| {
        Fault::new(link, Plan::default())
    }))
}

fn capture() -> Option<World> {
    let directory = tempfile::tempdir().unwrap();
    let wrap = |link: Udp, index: usize| {
        let path = directory.path().join(format!("{index}.pcap"));
        Capture::create(link, &path, 0).unwrap()
    };
    let mut world = udp_on("127.0.0.1", wrap);
    world._held = Box::new(directory);
    Some(world)
}

suites!(
    sim,
    udp_v4,
    udp_v6,
    udp_without_segmentation,
    fault,
    capture
);

//! Measures the cost of sending one frame in each available way, over a veth pair whose other end
//! delivers to a UDP socket within the sender's call.
//!
//! ```text
//! cargo build --release -p dipole-bpf --example send_cost
//! chrt -f 20 taskset -c 1 target/release/examples/send_cost [rounds]
//! ```
//!
//! Every round tries all ways one after another, so that all see the same machine. Output is in
//! nanoseconds per frame: the median over the rounds, and the 10th percentile in brackets.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use dipole_bpf::InterfaceId;
use dipole_bpf::headers::Template;
use dipole_bpf::neighbours::{Neighbours, Route};
use dipole_bpf::raw::RawSender;
use dipole_link::udp::{Udp, UdpOptions};
use dipole_link::{Class, Link, Outgoing};
use dipole_testbed::Testbed;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

const ADDRESSES: [[u8; 4]; 2] = [[192, 0, 2, 1], [192, 0, 2, 2]];
/// Fits into the receiving socket.
const FRAMES: usize = 128;
const SEGMENT_BYTES: usize = 1472;

fn main() -> ExitCode {
    if let Some(why) = Testbed::why_not() {
        eprintln!("SKIPPED: {why}");
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("send_cost: {error}");
            ExitCode::FAILURE
        }
    }
}

/// All senders, and the receiver.
struct Scene {
    route: Route,
    from: SocketAddr,
    bypass: RawSender,
    queued: RawSender,
    connected: UdpSocket,
    link: Udp,
    there: Udp,
}

fn run() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(200), |text| text.parse())?;
    let testbed = Testbed::builder().mtu(9000).build()?;
    let mut scene = scene(&testbed)?;
    let mut figures: BTreeMap<(usize, &str), Vec<u64>> = BTreeMap::new();
    for _ in 0..rounds {
        for bytes in [64, 1400, 8900] {
            let payload = vec![0x5a; bytes];
            for (name, way) in ways() {
                let timed = scene.time(&payload, way);
                let frame_ns = timed.map_err(|error| format!("{name}, {bytes} B: {error}"))?;
                figures.entry((bytes, name)).or_default().push(frame_ns);
            }
        }
    }
    println!("{rounds} rounds of {FRAMES} frames, ns per frame: median (10th percentile)");
    for ((bytes, name), all) in &mut figures {
        println!("{bytes:>5} B  {name:<34} {}", summary(all));
    }
    let payload = vec![0x5a; SEGMENT_BYTES];
    let mut runs: BTreeMap<(usize, &str), Vec<u64>> = BTreeMap::new();
    for _ in 0..rounds {
        for length in [1, 2, 4, 8, 44] {
            for (name, way) in run_ways() {
                let run_ns = scene.time_run(&payload, length, way)?;
                runs.entry((length, name)).or_default().push(run_ns);
            }
        }
    }
    println!("runs of frames of {SEGMENT_BYTES} B, ns per run");
    for ((length, name), all) in &mut runs {
        println!("{length:>5} frames  {name:<30} {}", summary(all));
    }
    Ok(())
}

fn summary(all: &mut [u64]) -> String {
    all.sort_unstable();
    let (median, least) = (all[all.len() / 2], all[all.len() / 10]);
    format!("{median:>7} ({least})")
}

/// Connects two interfaces directly, without a bridge.
fn scene(testbed: &Testbed) -> Result<Scene, Box<dyn Error>> {
    let other = &testbed.node(2).namespace;
    let make =
        format!("link add cable0 mtu 9000 type veth peer name cable1 mtu 9000 netns {other}");
    ip(testbed, 1, &make)?;
    for (node, name) in [(1, "cable0"), (2, "cable1")] {
        ip(
            testbed,
            node,
            &format!("address add 192.0.2.{node}/24 dev {name}"),
        )?;
        ip(testbed, node, &format!("link set {name} up"))?;
    }
    let options = UdpOptions {
        buffer_bytes: 16 << 20,
        ..UdpOptions::default()
    };
    let [own, peer] = ADDRESSES.map(IpAddr::from);
    let mut there = testbed.inside(2, || Udp::bind(peer, &options))??;
    let to = there.local(Class::Small);
    let (link, connected, interface) = testbed.inside(1, || {
        let socket = UdpSocket::bind((own, 0))?;
        socket.connect(to)?;
        let index = rustix::net::netdevice::name_to_index(&socket, "cable0")?;
        let name = "cable0".to_owned();
        let link = Udp::bind(own, &options).map_err(std::io::Error::other)?;
        Ok::<_, std::io::Error>((link, socket, InterfaceId { index, name }))
    })??;
    // The first packet makes the kernel resolve the neighbour.
    connected.send(b"?")?;
    let (route, bypass, queued) = testbed.inside(1, || {
        let mut ways = Neighbours::open(&interface, own)?;
        let route = (0..1000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(1));
            ways.forget();
            ways.route(0, peer).copied()
        });
        let route = route.ok_or_else(|| std::io::Error::other("no route"))?;
        Ok::<_, std::io::Error>((
            route,
            RawSender::open(&interface, true)?,
            RawSender::open(&interface, false)?,
        ))
    })??;
    let from = link.local(Class::Small);
    while there.poll(0, Class::Small)? > 0 {}
    Ok(Scene {
        route,
        from,
        bypass,
        queued,
        connected,
        link,
        there,
    })
}

fn ip(testbed: &Testbed, node: u32, words: &str) -> Result<(), Box<dyn Error>> {
    let status = testbed
        .command(node, "ip")
        .args(words.split_whitespace())
        .status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("ip {words} failed").into())
    }
}

/// A frame to send.
#[derive(Clone, Copy)]
struct RawFrame<'a> {
    route: Route,
    from: SocketAddr,
    to: SocketAddr,
    payload: &'a [u8],
}

type Way = fn(&mut Scene, &[RawFrame<'_>]) -> std::io::Result<()>;

/// Ways to send single frames.
fn ways() -> [(&'static str, Way); 5] {
    [
        ("AF_PACKET, bypass", |scene, frames| {
            for one in frames {
                let _full = scene
                    .bypass
                    .send(&one.route, one.from, one.to, one.payload)?;
            }
            Ok(())
        }),
        ("AF_PACKET, bypass, two pieces", |scene, frames| {
            for one in frames {
                let template = Template::new(&one.route.ethernet(), one.from, one.to, 64);
                let template = template.expect("one version");
                let headers = template.finish(0, one.payload);
                let pieces = [&headers[..template.bytes()], one.payload].map(IoSlice::new);
                let mut none = SendAncillaryBuffer::default();
                let _full = sendmsg(&scene.bypass, &pieces, &mut none, SendFlags::DONTWAIT);
            }
            Ok(())
        }),
        ("AF_PACKET, queued", |scene, frames| {
            for one in frames {
                let _full = scene
                    .queued
                    .send(&one.route, one.from, one.to, one.payload)?;
            }
            Ok(())
        }),
        ("UDP socket, connected", |scene, frames| {
            for one in frames {
                let _full = scene.connected.send(one.payload);
            }
            Ok(())
        }),
        ("UDP link, small", |scene, frames| {
            for one in frames {
                let frame = outgoing(Class::Small, one);
                let _full = scene.link.send(0, &[frame])?;
            }
            Ok(())
        }),
    ]
}

/// Ways to send a run of frames.
fn run_ways() -> [(&'static str, Way); 2] {
    [
        ("AF_PACKET, bypass, one by one", ways()[0].1),
        ("UDP link, bulk (GSO)", |scene, frames| {
            let to = scene.there.local(Class::Bulk);
            let run: Vec<_> = frames
                .iter()
                .map(|one| Outgoing {
                    to,
                    ..outgoing(Class::Bulk, one)
                })
                .collect();
            scene.link.send(0, &run).map(drop)
        }),
    ]
}

fn outgoing<'a>(class: Class, one: &RawFrame<'a>) -> Outgoing<'a> {
    Outgoing::frame(class, one.to, one.payload)
}

impl Scene {
    fn frames<'a>(&self, payload: &'a [u8], count: usize) -> Vec<RawFrame<'a>> {
        let frame = RawFrame {
            route: self.route,
            from: self.from,
            to: self.there.local(Class::Small),
            payload,
        };
        vec![frame; count]
    }

    /// Nanoseconds per frame.
    fn time(&mut self, payload: &[u8], way: Way) -> std::io::Result<u64> {
        let frames = self.frames(payload, FRAMES);
        let start = Instant::now();
        way(self, &frames)?;
        let all_ns = start.elapsed().as_nanos();
        self.drain(FRAMES)?;
        Ok(u64::try_from(all_ns).unwrap_or(u64::MAX) / FRAMES as u64)
    }

    /// Nanoseconds per run.
    fn time_run(&mut self, payload: &[u8], length: usize, way: Way) -> std::io::Result<u64> {
        let frames = self.frames(payload, length);
        let runs = FRAMES / length;
        let start = Instant::now();
        for _ in 0..runs {
            way(self, &frames)?;
        }
        let all_ns = start.elapsed().as_nanos();
        self.drain(runs * length)?;
        Ok(u64::try_from(all_ns).unwrap_or(u64::MAX) / runs as u64)
    }

    /// Receives all frames and checks their number, since dropping frames would look fast.
    fn drain(&mut self, wanted: usize) -> std::io::Result<()> {
        let mut arrived = 0;
        for class in [Class::Small, Class::Bulk] {
            loop {
                match self.there.poll(0, class)? {
                    0 => break,
                    count => arrived += count,
                }
            }
        }
        if arrived == wanted {
            return Ok(());
        }
        let text = format!("{arrived} of {wanted} frames arrived");
        Err(std::io::Error::other(text))
    }
}

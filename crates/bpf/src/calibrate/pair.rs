//! Ways to receive, compared on virtual cards in a network namespace that only this process
//! sees and that ends with the thread that made it: nobody's packets are in the way, and nobody
//! is in theirs.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::send::{self, Effort, Measured, Target, figures};
use super::{Figure, Receive, SIZES};
use crate::hook::{Hook, create_ring};
use crate::inlet::Inlet;
use crate::neighbours::Route;
use crate::raw::RawSender;
use crate::xsk::{Xsk, XskHook, XskOptions};
use crate::{CardId, sys};

/// Addresses for documentation: in use nowhere.
const OWN: [u8; 4] = [192, 0, 2, 1];
const OTHER: [u8; 4] = [192, 0, 2, 2];
const PORT: u16 = 9;
const ROUNDS: usize = 48;
/// Packets of one size by one way in a row, one after the other.
const PACKETS: u64 = 16;
const RING_BYTES: u32 = 1 << 16;
/// A packet that has not come after this time is lost, and the way of no use.
const LOST: Duration = Duration::from_millis(20);

/// What was found.
#[derive(Debug, Default)]
pub(super) struct OnPair {
    pub(super) receives: BTreeMap<(Receive, usize), Figure>,
    /// If it was asked for.
    pub(super) sent: Option<Measured>,
}

/// Compares the ways to receive and, if asked to, measures sending.
///
/// # Errors
/// A namespace and cards in it cannot be made: CAP_SYS_ADMIN or `ip` is missing.
pub(super) fn measure(mtu: usize, with_sending: bool) -> io::Result<OnPair> {
    let alone = std::thread::Builder::new().name("dipole-measures".to_owned());
    let thread = alone.spawn(move || {
        // SAFETY: only the network namespace of this thread changes. It ends with this
        // function, and descriptors that it opened are closed by then.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        inside(mtu, with_sending)
    })?;
    let failed = |_| io::Error::other("measuring on a pair of cards failed");
    thread.join().map_err(failed)?
}

fn inside(mtu: usize, with_sending: bool) -> io::Result<OnPair> {
    // Neighbour discovery would come between.
    let _may_not_exist = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    let mut found = OnPair::default();
    let mut ways = Vec::new();
    for receive in Receive::ALL {
        let pair = Pair::make(receive.name(), mtu)?;
        match Way::open(&pair, receive) {
            Ok(way) => ways.push(way),
            Err(cause) => tracing::debug!(way = receive.name(), %cause, "not measured"),
        }
    }
    let mut all: BTreeMap<(Receive, usize), Vec<u64>> = BTreeMap::new();
    for round in 0..ROUNDS {
        for bytes in SIZES {
            let payload = vec![0x5a; bytes];
            let count = ways.len();
            for turn in 0..count {
                let way = &mut ways[(round + turn) % count];
                if let Some(packet_ns) = way.time(&payload) {
                    let key = (way.receive, bytes);
                    all.entry(key).or_default().push(packet_ns);
                }
            }
        }
    }
    found.receives = figures(all);
    if with_sending {
        found.sent = Some(sending(mtu)?);
    }
    Ok(found)
}

/// Sending to the other end, where nobody has the address.
fn sending(mtu: usize) -> io::Result<Measured> {
    let pair = Pair::make("send", mtu)?;
    let own: IpAddr = OWN.into();
    ip(&format!("address add {own}/24 dev {}", pair.near.name))?;
    let mac = pair.route.mac.map(|byte| format!("{byte:02x}")).join(":");
    let other: IpAddr = OTHER.into();
    let near = &pair.near.name;
    ip(&format!("neighbour add {other} lladdr {mac} dev {near}"))?;
    let target = Target {
        route: pair.route,
        raw_to: other,
        socket_to: Some(other),
    };
    send::measure(&pair.near, &target, Effort::ON_A_PAIR)
}

/// Two cards and a cable between.
struct Pair {
    near: CardId,
    far: CardId,
    route: Route,
}

impl Pair {
    fn make(name: &str, mtu: usize) -> io::Result<Pair> {
        // A name has at most 15 bytes.
        let name: String = name.chars().take(12).collect();
        let [near, far] = ["n-", "f-"].map(|end| format!("{end}{name}"));
        ip(&format!(
            "link add {near} mtu {mtu} type veth peer name {far} mtu {mtu}"
        ))?;
        ip(&format!("link set {near} up"))?;
        ip(&format!("link set {far} up"))?;
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        let card = |name: String| -> io::Result<CardId> {
            let index = rustix::net::netdevice::name_to_index(&socket, &name)?;
            Ok(CardId { index, name })
        };
        let (near, far) = (card(near)?, card(far)?);
        let route = Route {
            mac: sys::hardware(&far.name)?.1,
            own_mac: sys::hardware(&near.name)?.1,
            mtu,
            source: OWN.into(),
            hops: 1,
            serial: 1,
        };
        Ok(Pair { near, far, route })
    }
}

/// One way to receive, at the far end.
struct Way {
    receive: Receive,
    route: Route,
    sender: RawSender,
    inlet: Inlet,
}

impl Way {
    fn open(pair: &Pair, receive: Receive) -> io::Result<Way> {
        let other: IpAddr = OTHER.into();
        let inlet = match receive.place() {
            Some(place) => {
                let ring = create_ring(RING_BYTES)?;
                let hook = Hook::attach(&pair.far, place).map_err(io::Error::other)?;
                hook.add(other, PORT, ring.as_fd())
                    .map_err(io::Error::other)?;
                Inlet::own(ring, hook, 0)?
            }
            None => {
                let options = XskOptions {
                    pieces: 64,
                    ..XskOptions::default()
                };
                let xsk = Xsk::open(&pair.far, &options)?;
                let hook = XskHook::attach(&pair.far, &xsk, SocketAddr::new(other, PORT))?;
                Inlet::queue(xsk, hook, 0)
            }
        };
        Ok(Way {
            receive,
            route: pair.route,
            sender: RawSender::open(&pair.near, true)?,
            inlet,
        })
    }

    /// Nanoseconds from sending a packet until it is there; `None` if some did not come.
    fn time(&mut self, payload: &[u8]) -> Option<u64> {
        let [from, to] = [OWN, OTHER].map(|ip| SocketAddr::from((ip, PORT)));
        let start = Instant::now();
        for _ in 0..PACKETS {
            let sent = Instant::now();
            self.sender.send(&self.route, from, to, payload).ok()?;
            while self.inlet.poll().ok()? == 0 {
                if sent.elapsed() > LOST {
                    return None;
                }
            }
        }
        let all_ns = u64::try_from(start.elapsed().as_nanos()).ok()?;
        Some(all_ns / PACKETS)
    }
}

/// Calls `ip` in this thread's network namespace.
fn ip(words: &str) -> io::Result<()> {
    let output = Command::new("ip")
        .args(words.split_whitespace())
        .stdin(Stdio::null())
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("ip {words}: {}", said.trim())))
}

//! What it costs to send by each way, on one card.
//!
//! Raw frames go to the card's own hardware address, with its own IP address and the discard
//! port (9) as destination and a time to live of one: a switch does not carry them further, and the
//! other end of a virtual pair drops them as another host's. The socket's packets go to the
//! discard port of a neighbour. On a network that is, by [`Effort::ON_A_NETWORK`], at most 564
//! raw frames (0.7 MB at MTU 1500, 3.2 MB at 9000) and 372 packets to the neighbour (0.5 MB, 2.4 MB),
//! never more than eight without a pause.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::{CardFacts, Figure, RUNS, SIZES, Send};
use crate::CardId;
use crate::headers::ip_udp_bytes;
use crate::neighbours::{Neighbours, Route};
use crate::raw::{RawFrame, RawSender, Sent};
use crate::xsk::{PIECE_BYTES, Xsk, XskOptions};
use dipole_link::udp::{Udp, UdpOptions};
use dipole_link::{Class, Link, Outgoing};

/// Nobody listens there: what comes is thrown away.
const DISCARD_PORT: u16 = 9;
/// Frames at once, of one size and by one way.
const FRAMES_PER_STEP: usize = 4;
/// Between two of these.
const PAUSE: Duration = Duration::from_micros(200);

/// How often everything is tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    pub(super) rounds: usize,
    pub(super) run_rounds: usize,
}

impl Effort {
    /// Where others have to carry it.
    pub(super) const ON_A_NETWORK: Effort = Effort {
        rounds: 16,
        run_rounds: 12,
    };
    /// Where nobody else is.
    pub(super) const ON_A_PAIR: Effort = Effort {
        rounds: 48,
        run_rounds: 48,
    };
}

/// Where it is sent to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// The way of raw frames, from this card.
    pub(super) route: Route,
    /// Their destination.
    pub(super) raw_to: IpAddr,
    /// The destination of the socket's packets; without one they are left out.
    pub(super) socket_to: Option<IpAddr>,
}

impl Target {
    /// Raw frames to the card itself.
    pub(super) fn to_itself(facts: &CardFacts, own: IpAddr, neighbour: Option<IpAddr>) -> Target {
        Target {
            route: Route {
                mac: facts.mac,
                own_mac: facts.mac,
                mtu: facts.mtu,
                source: own,
                hops: 1,
                serial: 1,
            },
            raw_to: own,
            socket_to: neighbour,
        }
    }
}

/// What was found, as in [`Calibration`](super::Calibration).
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) single: BTreeMap<(Send, usize), Figure>,
    pub(super) runs: BTreeMap<(Send, usize), Figure>,
}

/// A neighbour on this card: one of the peers, else any that the kernel knows.
pub(super) fn neighbour(
    card: &CardId,
    ways: &mut Neighbours,
    own: IpAddr,
    peers: &[IpAddr],
) -> Option<IpAddr> {
    // As this thread's network namespace has it; IPv4 alone is listed there.
    let table = std::fs::read_to_string("/proc/thread-self/net/arp").unwrap_or_default();
    let known = arp_entries(&table, &card.name);
    let mut all = peers.iter().copied().chain(known);
    all.find(|one| {
        let is_local = matches!(one, IpAddr::V6(six) if six.is_unicast_link_local());
        // The first answer about one that is stale is "none", to be asked again.
        let mut leads = || ways.route(0, *one).is_some();
        !is_local && *one != own && (leads() || leads())
    })
}

/// Addresses on a card in the text of the kernel's neighbour table.
fn arp_entries(table: &str, card: &str) -> Vec<IpAddr> {
    let entries = table.lines().skip(1).filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next()?.parse().ok()?;
        (words.next_back()? == card).then_some(address)
    });
    entries.collect()
}

/// Tries all ways in turn.
///
/// # Errors
/// Raw frames cannot be sent at all.
pub(super) fn measure(card: &CardId, target: &Target, effort: Effort) -> io::Result<Measured> {
    let mut bench = Bench::open(card, target)?;
    let longest = target.route.longest_payload();
    let mut sizes = SIZES.to_vec();
    sizes.push(longest);
    sizes.retain(|bytes| *bytes <= longest);
    sizes.dedup();
    let payload = vec![0x5a; longest];
    let mut single: BTreeMap<(Send, usize), Vec<u64>> = BTreeMap::new();
    for round in 0..effort.rounds {
        for bytes in &sizes {
            for turn in 0..Send::ALL.len() {
                // Nobody is always the first.
                let way = Send::ALL[(round + turn) % Send::ALL.len()];
                let Some(step_ns) = bench.step(way, &payload[..*bytes], FRAMES_PER_STEP)? else {
                    continue;
                };
                let all = single.entry((way, *bytes)).or_default();
                all.push(step_ns / FRAMES_PER_STEP as u64);
            }
        }
    }
    let mut runs: BTreeMap<(Send, usize), Vec<u64>> = BTreeMap::new();
    if target.socket_to.is_some() {
        for round in 0..effort.run_rounds {
            for frames in RUNS {
                for turn in 0..2 {
                    let (way, run_ns) = match (round + turn) % 2 {
                        0 => (
                            Send::AfPacket,
                            bench.step(Send::AfPacket, &payload, frames)?,
                        ),
                        _ => (Send::Socket, bench.bulk(&payload, frames)?),
                    };
                    runs.entry((way, frames)).or_default().extend(run_ns);
                }
            }
        }
    }
    Ok(Measured {
        single: figures(single),
        runs: figures(runs),
    })
}

pub(super) fn figures<K: Ord>(all: BTreeMap<K, Vec<u64>>) -> BTreeMap<K, Figure> {
    let figures = all.into_iter();
    figures
        .filter_map(|(key, rounds)| Some((key, Figure::of(rounds)?)))
        .collect()
}

/// Everything that sends.
struct Bench {
    target: Target,
    raw: RawSender,
    xsk: Option<Xsk>,
    udp: Option<Udp>,
    from: SocketAddr,
}

impl Bench {
    fn open(card: &CardId, target: &Target) -> io::Result<Bench> {
        let own = target.route.source;
        let send_only = XskOptions {
            pieces: 64,
            receive: false,
            ..XskOptions::default()
        };
        let udp = match target.socket_to {
            Some(_) => Udp::bind(own, &UdpOptions::default()).ok(),
            None => None,
        };
        Ok(Bench {
            target: *target,
            raw: RawSender::open(card, true)?,
            // Another socket may have the queue.
            xsk: Xsk::open(card, &send_only).ok(),
            udp,
            from: SocketAddr::new(own, DISCARD_PORT),
        })
    }

    /// Sends so many frames one by one, then pauses; nanoseconds for all of them. `None` if
    /// there is no such way.
    fn step(&mut self, way: Send, payload: &[u8], frames: usize) -> io::Result<Option<u64>> {
        let to = SocketAddr::new(self.target.raw_to, DISCARD_PORT);
        let (route, from) = (self.target.route, self.from);
        let start = Instant::now();
        match way {
            Send::AfPacket => {
                for _ in 0..frames {
                    let sent = self.raw.send(&route, from, to, payload)?;
                    if sent == Sent::NotThisWay {
                        return Err(io::ErrorKind::NetworkDown.into());
                    }
                }
            }
            Send::AfXdp => {
                let headers = 14 + ip_udp_bytes(route.source);
                let Some(xsk) = &mut self.xsk else {
                    return Ok(None);
                };
                if headers + payload.len() > PIECE_BYTES {
                    return Ok(None);
                }
                let frame = RawFrame {
                    route,
                    from,
                    to,
                    payload,
                };
                for _ in 0..frames {
                    let _full = xsk.send(&[frame])?;
                }
            }
            Send::Socket => {
                let (Some(udp), Some(to)) = (&mut self.udp, self.target.socket_to) else {
                    return Ok(None);
                };
                for _ in 0..frames {
                    let _full = udp.send(0, &[outgoing(Class::Small, to, payload)])?;
                }
            }
        }
        Ok(Some(since(start)))
    }

    /// Sends a run by the bulk socket, then pauses.
    fn bulk(&mut self, payload: &[u8], frames: usize) -> io::Result<Option<u64>> {
        let (Some(udp), Some(to)) = (&mut self.udp, self.target.socket_to) else {
            return Ok(None);
        };
        let run = vec![outgoing(Class::Bulk, to, payload); frames];
        let start = Instant::now();
        let _full = udp.send(0, &run)?;
        Ok(Some(since(start)))
    }
}

fn outgoing(class: Class, to: IpAddr, bytes: &[u8]) -> Outgoing<'_> {
    Outgoing {
        class,
        to: SocketAddr::new(to, DISCARD_PORT),
        bytes,
        // As frames of a session: by a connected socket, which is faster.
        any_port: true,
    }
}

/// Nanoseconds; then a pause, awake: a core that slept begins slowly.
fn since(start: Instant) -> u64 {
    let end = Instant::now();
    while end.elapsed() < PAUSE {
        std::hint::spin_loop();
    }
    u64::try_from((end - start).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_sent_on_a_network_than_is_said() {
        let Effort { rounds, run_rounds } = Effort::ON_A_NETWORK;
        let runs = run_rounds * RUNS.iter().sum::<usize>();
        let of_a_size = rounds * FRAMES_PER_STEP;
        assert_eq!(6 * of_a_size + runs, 564);
        assert_eq!(3 * of_a_size + runs, 372);
        for (mtu, most_raw, most_socket) in [(1500, 700_000, 500_000), (9000, 3_200_000, 2_400_000)]
        {
            let sizes = |long: usize| 64 + 1400 + 3 * 42 + long;
            let long = mtu + 14;
            assert!(2 * of_a_size * sizes(long) + runs * long <= most_raw);
            assert!(of_a_size * sizes(long) + runs * long <= most_socket);
        }
        let longest = RUNS.into_iter().chain([FRAMES_PER_STEP]).max();
        assert_eq!(longest, Some(8));
    }

    #[test]
    fn neighbours_are_those_of_the_card() {
        let table = "IP address HW type Flags HW address Mask Device\n\
                     10.0.0.1 0x1 0x2 02:00:00:00:00:01 * eth0\n\
                     10.0.1.1 0x1 0x2 02:00:00:00:00:02 * eth1\n\
                     nonsense\n\n";
        let wanted: IpAddr = [10, 0, 1, 1].into();
        assert_eq!(arp_entries(table, "eth1"), [wanted]);
        assert!(arp_entries("", "eth1").is_empty());
    }
}

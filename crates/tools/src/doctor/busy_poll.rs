//! Measures whether polling the network card instead of waiting for interrupts
//! (`DIPOLE_BUSY_POLL`) shortens round trips to another node.

use std::path::Path;
use std::time::Duration;

use dipole_node::registry::{Presence, ProbeLength, ProbeResult, Prober};
use rustix::thread::CapabilitySet;

use super::finding::Finding;
use super::kernel::{may, read};

const NAME: &str = "busy polling";
/// Consecutive probes of one kind before the kinds alternate.
const RUN: u32 = 8;
const TURNS: u32 = 8;

/// How the interface handles interrupts while its queue is polled.
#[derive(Debug)]
struct Interrupts {
    /// `napi_defer_hard_irqs` and `gro_flush_timeout` are set.
    deferred: bool,
    /// This process has the capability to set them.
    allowed: bool,
}

/// Result of the measurement.
#[derive(Debug)]
enum Measured {
    /// Replies arrive on no receive queue that a process could poll.
    NoQueue,
    /// Too few replies arrived, or the kernel does not poll.
    TooLittle,
    /// Medians of round trips.
    RoundTrips {
        waiting: Duration,
        polling: Duration,
    },
}

/// Probes with a socket that has had replies, alternating between interrupts and polling.
pub(super) fn examine(prober: &Prober, device: &str, patience: Duration) -> Finding {
    let set = |name: &str| {
        let file = Path::new("/sys/class/net").join(device).join(name);
        read(file).is_some_and(|value| value != "0")
    };
    let interrupts = Interrupts {
        deferred: set("napi_defer_hard_irqs") && set("gro_flush_timeout"),
        allowed: may(CapabilitySet::NET_ADMIN),
    };
    let measured = match prober.receive_queue() {
        Some(_) => measure(prober, patience).unwrap_or(Measured::TooLittle),
        None => Measured::NoQueue,
    };
    let finding = judge(&measured, &interrupts);
    let advice = finding.advice.replace("DEVICE", device);
    finding.advise(advice)
}

/// Medians of round trips with interrupts and with polling, if enough replies arrived.
fn measure(prober: &Prober, patience: Duration) -> Option<Measured> {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        for (polls, times) in [false, true].into_iter().zip(&mut times) {
            prober.spin(polls).ok()?;
            for _ in 0..RUN {
                let reply: ProbeResult<Presence> = prober.probe(ProbeLength::SHORTEST, patience);
                if let ProbeResult::Answered(_, took) = reply {
                    times.push(took);
                }
            }
        }
    }
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times.get((TURNS * RUN / 2) as usize).copied()
    };
    let [interrupts, polled] = times;
    Some(Measured::RoundTrips {
        waiting: median(interrupts)?,
        polling: median(polled)?,
    })
}

fn judge(measured: &Measured, interrupts: &Interrupts) -> Finding {
    let (waiting, polling) = match *measured {
        Measured::RoundTrips { waiting, polling } => (waiting, polling),
        Measured::TooLittle => {
            return Finding::unknown(
                NAME,
                "too few answers to tell, or this kernel does not poll",
                "",
            );
        }
        Measured::NoQueue => {
            return Finding::good(
                NAME,
                "not to be had: its packets come by no receive queue that a process could poll \
                 (virtual devices, or the other node is on this machine)",
            );
        }
    };
    let fact = format!("round trips take {polling:.0?} when polled, {waiting:.0?} by interrupts");
    // Smaller differences are noise.
    if polling * 10 > waiting * 9 {
        return Finding::good(NAME, format!("of no use: {fact}"));
    }
    let off = "try to keep interrupts off while a process polls: `echo 2 > \
               /sys/class/net/DEVICE/napi_defer_hard_irqs` and `echo 200000 > \
               /sys/class/net/DEVICE/gro_flush_timeout`";
    let switch = "DIPOLE_BUSY_POLL=1 for programs that spin and take UDP sockets";
    Finding::good(NAME, format!("helps: {fact}")).advise(match interrupts {
        Interrupts { deferred: true, .. } => switch.to_owned(),
        Interrupts { allowed: true, .. } => format!("{switch}; an administrator can also {off}"),
        Interrupts { .. } => {
            format!("{switch}; with CAP_NET_ADMIN for them an administrator can also {off}")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict::{Good, Unknown};
    use super::*;

    #[test]
    fn polling_is_advised_where_it_is_clearly_faster() {
        let of = |waiting, polling, deferred, allowed| {
            let [waiting, polling] = [waiting, polling].map(Duration::from_micros);
            let measured = Measured::RoundTrips { waiting, polling };
            judge(&measured, &Interrupts { deferred, allowed })
        };
        let found = of(50, 30, false, false);
        assert!(found.fact.starts_with("helps: round trips take 30µs"));
        assert!(found.advice.starts_with("DIPOLE_BUSY_POLL=1"));
        assert!(found.advice.contains("with CAP_NET_ADMIN"));
        assert!(!of(50, 30, false, true).advice.contains("CAP_NET_ADMIN"));
        assert!(!of(50, 30, true, false).advice.contains("echo"));
        for (waiting, polling) in [(50, 46), (50, 50), (30, 50)] {
            let found = of(waiting, polling, false, true);
            assert!(found.fact.starts_with("of no use"), "{}", found.fact);
            assert_eq!(found.advice, "");
        }
    }

    #[test]
    fn without_a_queue_or_answers_nothing_is_advised() {
        let interrupts = Interrupts {
            deferred: false,
            allowed: true,
        };
        let none = judge(&Measured::NoQueue, &interrupts);
        assert_eq!((none.verdict, &*none.advice), (Good, ""));
        assert_eq!(judge(&Measured::TooLittle, &interrupts).verdict, Unknown);
    }
}

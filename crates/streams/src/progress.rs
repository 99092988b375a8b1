//! The state of a stream on the interface, for status requests: bytes, rates, and who waits for whom.
//!
//! The session's thread updates it, and the interface's thread reads it. Does no I/O; the time is an
//! argument.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dipole_node::Address;
use serde::{Deserialize, Serialize};

/// The time over which rates are measured.
const RATE_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of a stream in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// All bytes so far.
    pub bytes: u64,
    /// Bytes per second, during the last second or longer.
    pub bytes_per_s: u64,
}

/// The party that a stream's next byte depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WaitsFor {
    /// The host that the interface connects to.
    Connection,
    /// A TCP client that calls the interface.
    Caller,
    /// The next call of rank 0.
    Call,
    /// The data of these ranks, which are behind in a write.
    Data(Vec<u32>),
    /// This rank, which has yet to accept its data in a read.
    Reader(u32),
    /// The TCP peer, which does not accept more bytes.
    PeerToRead,
    /// The TCP peer, which sends nothing.
    PeerToWrite,
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitsFor::Connection => f.write_str("the TCP connection"),
            WaitsFor::Caller => f.write_str("a TCP client that connects"),
            WaitsFor::Call => f.write_str("the next call of rank 0"),
            WaitsFor::Data(ranks) => {
                let names: Vec<String> = ranks.iter().map(ToString::to_string).collect();
                write!(f, "data of rank {}", names.join(", "))
            }
            WaitsFor::Reader(rank) => write!(f, "rank {rank} to accept its data"),
            WaitsFor::PeerToRead => f.write_str("the TCP peer to accept bytes"),
            WaitsFor::PeerToWrite => f.write_str("the TCP peer to send bytes"),
        }
    }
}

/// The state of an open stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamStatus {
    /// The stream's endpoint on the interface.
    pub at: Address,
    /// The ranks of the stream.
    pub ranks: Vec<Address>,
    /// The address of the TCP peer; as requested while the stream is not connected.
    pub peer: String,
    /// From the TCP peer to the ranks.
    pub read: Volume,
    /// From the ranks to the TCP peer.
    pub written: Volume,
    /// How long the stream has been open.
    pub open_for: Duration,
    /// The party that the stream waits for.
    pub waits_for: WaitsFor,
    /// How long it has waited for it. A party that is fast is waited for briefly again and again.
    pub waited: Duration,
}

/// Counts bytes and measures their rate.
#[derive(Debug)]
struct Meter {
    bytes: u64,
    /// The start of the present interval, and the bytes until then.
    interval: (Instant, u64),
    /// The rate of the last complete interval.
    rate: Option<u64>,
}

impl Meter {
    fn new(now: Instant) -> Meter {
        Meter {
            bytes: 0,
            interval: (now, 0),
            rate: None,
        }
    }

    /// The rate of the present interval.
    fn present_rate(&self, now: Instant) -> u64 {
        let (since, before) = self.interval;
        let nanoseconds = now.saturating_duration_since(since).as_nanos().max(1);
        let rate = u128::from(self.bytes - before) * 1_000_000_000 / nanoseconds;
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.interval.0) >= RATE_INTERVAL
    }

    fn count(&mut self, bytes: u64, now: Instant) {
        self.bytes += bytes;
        if self.is_over(now) {
            self.rate = Some(self.present_rate(now));
            self.interval = (now, self.bytes);
        }
    }

    fn volume(&self, now: Instant) -> Volume {
        let last = self.rate.filter(|_| !self.is_over(now));
        Volume {
            bytes: self.bytes,
            bytes_per_s: last.unwrap_or_else(|| self.present_rate(now)),
        }
    }
}

#[derive(Debug)]
struct State {
    peer: String,
    read: Meter,
    written: Meter,
    waits_for: WaitsFor,
    waits_since: Instant,
}

/// The state of one stream.
#[derive(Debug)]
pub(crate) struct Progress {
    at: Address,
    ranks: Vec<Address>,
    begun: Instant,
    state: Mutex<State>,
}

impl Progress {
    pub(crate) fn new(
        (at, ranks): (Address, Vec<Address>),
        peer: String,
        waits_for: WaitsFor,
        now: Instant,
    ) -> Progress {
        Progress {
            at,
            ranks,
            begun: now,
            state: Mutex::new(State {
                peer,
                read: Meter::new(now),
                written: Meter::new(now),
                waits_for,
                waits_since: now,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_peer(&self, peer: String) {
        self.state().peer = peer;
    }

    pub(crate) fn count_read(&self, bytes: usize, now: Instant) {
        self.state().read.count(bytes as u64, now);
    }

    pub(crate) fn count_written(&self, bytes: usize, now: Instant) {
        self.state().written.count(bytes as u64, now);
    }

    /// Records the party that the stream waits for from now on.
    pub(crate) fn wait_for(&self, party: WaitsFor, now: Instant) {
        let mut state = self.state();
        if state.waits_for != party {
            (state.waits_for, state.waits_since) = (party, now);
        }
    }

    pub(crate) fn status(&self, now: Instant) -> StreamStatus {
        let state = self.state();
        StreamStatus {
            at: self.at,
            ranks: self.ranks.clone(),
            peer: state.peer.clone(),
            read: state.read.volume(now),
            written: state.written.volume(now),
            open_for: now.saturating_duration_since(self.begun),
            waits_for: state.waits_for.clone(),
            waited: now.saturating_duration_since(state.waits_since),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_last_second_and_fall_when_bytes_stop() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut meter = Meter::new(start);
        for tenth in 1..=10 {
            meter.count(100, after(100 * tenth));
        }
        let steady = Volume {
            bytes: 1000,
            bytes_per_s: 1000,
        };
        assert_eq!(meter.volume(after(1000)), steady);
        meter.count(5000, after(1500));
        assert_eq!(meter.volume(after(1600)).bytes_per_s, 1000);
        assert_eq!(meter.volume(after(2000)).bytes_per_s, 5000);
        assert_eq!(meter.volume(after(6000)).bytes_per_s, 1000);
    }

    #[test]
    fn waiting_for_the_same_party_is_one_wait() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let at = Address::new(1, 501);
        let progress = Progress::new((at, vec![at]), "a:1".into(), WaitsFor::Call, start);
        progress.wait_for(WaitsFor::Data(vec![2]), after(10));
        progress.wait_for(WaitsFor::Data(vec![2]), after(20));
        let status = progress.status(after(50));
        assert_eq!(status.waits_for.to_string(), "data of rank 2");
        assert_eq!(status.waited, Duration::from_millis(40));
        assert_eq!(status.open_for, Duration::from_millis(50));
    }
}

//! What a process notes of the superstep under way.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use dipole_link::clock::monotonic_ns;
use dipole_trace::{Ring, Stacks};
use rustc_hash::FxHashMap;

use super::format::{Header, STATE_AT, Site, State, Step, file_name};
use crate::call::Call;

/// Blocks of a file: 16 MiB, of 100 000 supersteps with few peers.
const BLOCKS: usize = 256;

/// What a rank does at the end of a superstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Pack,
    Barrier,
    Exchange,
    Apply,
}

/// Sums by rank, of which few are not 0.
#[derive(Debug)]
struct ByRank {
    sums: Vec<u64>,
    touched: Vec<u32>,
}

impl ByRank {
    fn new(size: u32) -> ByRank {
        ByRank {
            sums: vec![0; size as usize],
            touched: Vec::new(),
        }
    }

    #[inline]
    fn add(&mut self, rank: u32, value: u64) {
        let Some(sum) = self.sums.get_mut(rank as usize) else {
            return;
        };
        if *sum == 0 && value > 0 {
            self.touched.push(rank);
        }
        *sum += value;
    }

    fn take_into(&mut self, list: &mut Vec<(u32, u64)>) {
        list.clear();
        for rank in self.touched.drain(..) {
            let sum = &mut self.sums[rank as usize];
            list.push((rank, std::mem::take(sum)));
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Tracer {
    ring: Ring,
    step: Step,
    phase: Phase,
    /// When the phase began.
    since_ns: u64,
    put: ByRank,
    got: ByRank,
    waits: ByRank,
    /// Counters of the link as they were: packets repeated, prods.
    counters: (u64, u64),
    /// The call noted last, by the addresses of its texts, and its number.
    last: (Call, u32),
    sites: FxHashMap<Site, u32>,
    stacks: Stacks,
}

/// What a process is, for the head of its file.
#[derive(Debug)]
pub(crate) struct Who {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) nodes: u32,
    pub(crate) leader: u32,
    pub(crate) first: u32,
    pub(crate) run: u32,
    pub(crate) link: &'static str,
}

impl Tracer {
    /// Begins to trace into a directory. If that cannot be, says so, and the program goes on without.
    pub(crate) fn begin(directory: &Path, who: &Who) -> Option<Box<Tracer>> {
        let begun_ns = monotonic_ns();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        let header = Header {
            state: State::Open,
            rank: who.rank,
            size: who.size,
            nodes: who.nodes,
            leader: who.leader,
            first: who.first,
            run: who.run,
            begun_ns,
            begun_unix_ns: unix.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0)),
            link: who.link.to_owned(),
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
        };
        let path = directory.join(file_name(who.rank));
        let made = Ring::create(&path, &header.encode(), BLOCKS);
        let mut ring = match made {
            Ok(ring) => ring,
            Err(cause) => {
                let (rank, directory) = (who.rank, directory.display());
                eprintln!(
                    "bsp: rank {rank}: it is not traced: cannot make a file in {directory} \
                     (DIPOLE_TRACE): {cause}"
                );
                return None;
            }
        };
        // For those for which there is no room.
        let more = Site {
            call: "further calls".to_owned(),
            file: String::new(),
            line: 0,
        };
        ring.add_site(&encoded(&more));
        Some(Box::new(Tracer {
            ring,
            step: Step {
                began_ns: begun_ns,
                ..Step::default()
            },
            phase: Phase::Pack,
            since_ns: begun_ns,
            put: ByRank::new(who.size),
            got: ByRank::new(who.size),
            waits: ByRank::new(who.size),
            counters: (0, 0),
            last: (Call::default(), 0),
            sites: FxHashMap::default(),
            stacks: Stacks::new(begun_ns),
        }))
    }

    /// This rank puts or sends bytes.
    #[inline]
    pub(crate) fn put(&mut self, to: u32, bytes: u64) {
        self.put.add(to, bytes);
    }

    /// This rank gets bytes.
    #[inline]
    pub(crate) fn got(&mut self, of: u32, bytes: u64) {
        self.got.add(of, bytes);
    }

    /// There is no room to send.
    #[inline]
    pub(crate) fn stalled(&mut self) {
        self.step.stalls = self.step.stalls.saturating_add(1);
    }

    /// This rank has waited for another since then.
    #[inline]
    pub(crate) fn waited(&mut self, rank: u32, since_ns: u64) {
        let waited_ns = monotonic_ns().saturating_sub(since_ns);
        self.waits.add(rank, waited_ns);
    }

    /// The program has called for the end of the superstep.
    #[inline]
    pub(crate) fn enter(&mut self) {
        let now_ns = monotonic_ns();
        self.step.entered_ns = now_ns;
        self.since_ns = now_ns;
        self.phase = Phase::Pack;
    }

    /// Something else begins.
    #[inline]
    pub(crate) fn phase(&mut self, next: Phase) {
        let now_ns = monotonic_ns();
        let spent_ns = now_ns.saturating_sub(self.since_ns);
        let step = &mut self.step;
        let sum = match self.phase {
            Phase::Pack => &mut step.pack_ns,
            Phase::Barrier => &mut step.barrier_ns,
            Phase::Exchange => &mut step.exchange_ns,
            Phase::Apply => &mut step.apply_ns,
        };
        *sum += spent_ns;
        self.since_ns = now_ns;
        self.phase = next;
    }

    /// The superstep has ended by a call; counters of the link are such by now.
    pub(crate) fn leave(&mut self, epoch: u32, call: Call, counters: (u64, u64)) {
        self.phase(Phase::Pack);
        self.step.epoch = epoch;
        self.step.site = self.site(call);
        let now_ns = self.since_ns;
        self.step.stack = self.stacks.record(self.step.site, now_ns, &mut self.ring);
        let grown = |now: u64, then: u64| u32::try_from(now - then.min(now)).unwrap_or(u32::MAX);
        self.step.repeats = grown(counters.0, self.counters.0);
        self.step.prods = grown(counters.1, self.counters.1);
        self.counters = counters;
        self.put.take_into(&mut self.step.put);
        self.got.take_into(&mut self.step.got);
        self.waits.take_into(&mut self.step.waits);
        let step = &self.step;
        self.ring.push(|into| step.encode(into));
        let step = &mut self.step;
        let times = [
            &mut step.pack_ns,
            &mut step.barrier_ns,
            &mut step.exchange_ns,
            &mut step.apply_ns,
        ];
        for time in times {
            *time = 0;
        }
        step.stalls = 0;
        // Looking at the stack is no computation of the program's.
        step.began_ns = self.since_ns + self.stacks.walk_ns();
    }

    fn site(&mut self, call: Call) -> u32 {
        if call.is_same(&self.last.0) {
            return self.last.1;
        }
        let (file, line) = call.place.unwrap_or_default();
        let site = Site {
            call: call.name.to_owned(),
            file: file.to_owned(),
            line,
        };
        let known = self.sites.get(&site).copied();
        let number = known.unwrap_or_else(|| {
            let next = u32::try_from(self.sites.len() + 1).unwrap_or(0);
            if !self.ring.add_site(&encoded(&site)) {
                return 0;
            }
            self.sites.insert(site, next);
            next
        });
        self.last = (call, number);
        number
    }

    /// The program ends.
    pub(crate) fn close(&self, state: State) {
        self.ring.set_half_head(STATE_AT, state as u32);
    }
}

fn encoded(site: &Site) -> Vec<u8> {
    let mut bytes = Vec::new();
    site.encode(&mut bytes);
    bytes
}

//! Collects the data of the current superstep.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use dipole_link::clock::monotonic_ns;
use dipole_link::cpu::usable_cores;
use dipole_trace::{Ring, Stacks};
use rustc_hash::FxHashMap;

use super::cpu::CpuMeter;
use super::format::{Header, STATE_AT, Site, State, file_name};
use super::step::Step;
use crate::call::Call;
use crate::carrier::LinkCounters;

/// Blocks in a file: 16 MiB, enough for 100 000 supersteps with few peers.
const BLOCKS: usize = 256;

/// Phases of the end of a superstep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Pack,
    Barrier,
    Exchange,
    Apply,
}

/// Sums by rank, few of which are not 0.
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

/// Times and counters of the current superstep.
#[derive(Debug)]
pub(crate) struct Tracer {
    ring: Ring,
    step: Step,
    phase: Phase,
    /// When the phase began.
    since_ns: u64,
    put: ByRank,
    get: ByRank,
    waits: ByRank,
    /// The link's counters at the last superstep.
    counters: LinkCounters,
    cpu: CpuMeter,
    /// The last call, by the addresses of its strings, and its site.
    last: (Call, u32),
    sites: FxHashMap<Site, u32>,
    stacks: Stacks,
}

/// The process, as described in the header of its file.
#[derive(Debug)]
pub(crate) struct ProcessInfo {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) nodes: u32,
    pub(crate) leader: u32,
    pub(crate) first: u32,
    pub(crate) run: u32,
    pub(crate) link: &'static str,
}

impl Tracer {
    /// Starts a trace in a directory. If that fails, reports the error and runs without a trace.
    pub(crate) fn begin(directory: &Path, info: &ProcessInfo) -> Option<Box<Tracer>> {
        let begun_ns = monotonic_ns();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH);
        let header = Header {
            state: State::Open,
            rank: info.rank,
            size: info.size,
            nodes: info.nodes,
            leader: info.leader,
            first: info.first,
            run: info.run,
            begun_ns,
            begun_unix_ns: unix.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0)),
            link: info.link.to_owned(),
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            cores: (usable_cores().unwrap_or_default().into_iter())
                .filter_map(|core| u32::try_from(core).ok())
                .collect(),
            quota: std::thread::available_parallelism()
                .map_or(0, |count| u32::try_from(count.get()).unwrap_or(u32::MAX)),
        };
        let path = directory.join(file_name(info.rank));
        let created = Ring::create(&path, &header.encode(), BLOCKS);
        let mut ring = match created {
            Ok(ring) => ring,
            Err(cause) => {
                let (rank, directory) = (info.rank, directory.display());
                eprintln!(
                    "bsp: rank {rank} runs without a trace: cannot create a file in {directory} \
                     (DIPOLE_TRACE): {cause}"
                );
                return None;
            }
        };
        // Site 0 stands for calls that do not fit into the list.
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
            put: ByRank::new(info.size),
            get: ByRank::new(info.size),
            waits: ByRank::new(info.size),
            counters: LinkCounters::default(),
            cpu: CpuMeter::default(),
            last: (Call::default(), 0),
            sites: FxHashMap::default(),
            stacks: Stacks::new(begun_ns),
        }))
    }

    /// Counts bytes that this rank puts or sends.
    #[inline]
    pub(crate) fn put(&mut self, to: u32, bytes: u64) {
        self.put.add(to, bytes);
    }

    /// Counts bytes that this rank gets.
    #[inline]
    pub(crate) fn get(&mut self, from: u32, bytes: u64) {
        self.get.add(from, bytes);
    }

    /// Counts a time at which there was no room to send.
    #[inline]
    pub(crate) fn stalled(&mut self) {
        self.step.stalls = self.step.stalls.saturating_add(1);
    }

    /// Counts a wait for another rank that began at `since_ns`.
    #[inline]
    pub(crate) fn waited(&mut self, rank: u32, since_ns: u64) {
        let waited_ns = monotonic_ns().saturating_sub(since_ns);
        self.waits.add(rank, waited_ns);
    }

    /// The program has called a function that ends the superstep.
    #[inline]
    pub(crate) fn enter(&mut self) {
        let now_ns = monotonic_ns();
        self.step.entered_ns = now_ns;
        let used = self.cpu.computed(self.step.began_ns, now_ns);
        self.step.cpu_ns = used.cpu_ns;
        self.step.preemptions = used.preemptions;
        self.step.sleeps = used.sleeps;
        self.since_ns = now_ns;
        self.phase = Phase::Pack;
    }

    /// Ends the current phase and begins another.
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

    /// The superstep has ended. `counters` are the link's present ones.
    pub(crate) fn leave(&mut self, epoch: u32, call: Call, counters: LinkCounters) {
        self.phase(Phase::Pack);
        self.step.epoch = epoch;
        self.step.site = self.site(call);
        let now_ns = self.since_ns;
        self.step.stack = self.stacks.record(self.step.site, now_ns, &mut self.ring);
        let grown = |now: u64, then: u64| u32::try_from(now - then.min(now)).unwrap_or(u32::MAX);
        let before = self.counters;
        self.step.repeats = grown(counters.repeats, before.repeats);
        self.step.duplicates = grown(counters.duplicates, before.duplicates);
        self.step.ack_requests = grown(counters.ack_requests, before.ack_requests);
        self.counters = counters;
        self.put.take_into(&mut self.step.put);
        self.get.take_into(&mut self.step.get);
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
        // Reading the stack does not count as computation of the program.
        step.began_ns = self.since_ns + self.stacks.walk_ns();
        self.cpu.begin(step.began_ns);
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

    /// Records how the program ended.
    pub(crate) fn close(&self, state: State) {
        self.ring.set_half_head(STATE_AT, state as u32);
    }
}

fn encoded(site: &Site) -> Vec<u8> {
    let mut bytes = Vec::new();
    site.encode(&mut bytes);
    bytes
}

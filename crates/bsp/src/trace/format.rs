//! The file of a rank's trace: what its head, its places in the source and its records say. How they
//! lie in it is said by `dipole_trace`. All numbers are little-endian.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use dipole_trace::bytes::{
    len_u32, printable, put_field, put32, put64, take_field, take32, take64, truncated,
};
use dipole_trace::{
    BLOCK_BYTES, BLOCK_HEAD_BYTES, BLOCKS_AT, Frame, HEAD_BYTES, Module, Records, STACKS_AT,
    decode_stacks, total,
};

/// Of files as written here. Others are not read.
pub const VERSION: u32 = 2;
/// Where the head says how the program ended.
pub(super) const STATE_AT: usize = 12;
const MAGIC: [u8; 8] = *b"DPLTRACE";
const TEXT_BYTES: usize = 64;
/// Peers that a record names; the rest are told as one.
const MOST_PEERS: usize = 1024;
/// Stands for the peers that a record does not name.
const OTHERS: u32 = u32::MAX;
/// Bytes of a record without its peers.
const FIXED_BYTES: usize = 3 * 4 + 6 * 8 + 6 * 4;

/// How a rank's program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It runs, or was killed.
    Open,
    /// By `bsp_end`.
    Ended,
    /// By an error.
    Aborted,
}

/// What a file says of its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// How the program ended.
    pub state: State,
    /// The rank.
    pub rank: u32,
    /// How many there were.
    pub size: u32,
    /// On how many nodes.
    pub nodes: u32,
    /// The lowest rank of the same node.
    pub leader: u32,
    /// The number by which records call the program's superstep 0. Those before measure clocks.
    pub first: u32,
    /// The same for all ranks of a run.
    pub run: u32,
    /// When the program began, of the rank's own clock as records have it.
    pub begun_ns: u64,
    /// The same in nanoseconds since 1970.
    pub begun_unix_ns: u64,
    /// What carries messages between nodes: `udp`, `bpf`, `tcp`; `shm` if there is one node.
    pub link: String,
    /// The name of the node.
    pub host: String,
}

/// Where the program ends a superstep.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// The call.
    pub call: String,
    /// The source file, if the program has told it.
    pub file: String,
    /// The line there.
    pub line: u32,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.file.rsplit('/').next() {
            Some(file) if !file.is_empty() => write!(f, "{file}:{}", self.line),
            _ => f.write_str(&self.call),
        }
    }
}

/// What a rank did in one superstep. Times are of the rank's own clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The superstep, as [`Header::first`] counts.
    pub epoch: u32,
    /// Which of the file's sites ended it.
    pub site: u32,
    /// Which of the file's stacks was seen there, counted from 1; 0 if none was.
    pub stack: u32,
    /// When its computation began.
    pub began_ns: u64,
    /// When that ended: the call of `bsp_sync`.
    pub entered_ns: u64,
    /// How long records were packed and handed over.
    pub pack_ns: u64,
    /// How long until all ranks were known to have come.
    pub barrier_ns: u64,
    /// How long messages were awaited and sent.
    pub exchange_ns: u64,
    /// How long they took effect.
    pub apply_ns: u64,
    /// Packets sent again.
    pub repeats: u32,
    /// Packets sent only to ask for an answer.
    pub prods: u32,
    /// How often there was no room to send: credit, or the window.
    pub stalls: u32,
    /// Bytes that this rank put or sent, by rank.
    pub put: Vec<(u32, u64)>,
    /// Bytes that it got, by rank.
    pub got: Vec<(u32, u64)>,
    /// Nanoseconds that it waited, by the rank waited for.
    pub waits: Vec<(u32, u64)>,
}

impl Step {
    /// How long the rank computed.
    #[must_use]
    pub fn compute_ns(&self) -> u64 {
        self.entered_ns.saturating_sub(self.began_ns)
    }

    /// How long it was in the call that ended the superstep.
    #[must_use]
    pub fn sync_ns(&self) -> u64 {
        total([
            self.pack_ns,
            self.barrier_ns,
            self.exchange_ns,
            self.apply_ns,
        ])
    }

    /// When that returned.
    #[must_use]
    pub fn left_ns(&self) -> u64 {
        self.entered_ns.saturating_add(self.sync_ns())
    }

    /// Appends the record with its length in truncated.
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        put32(into, 0);
        put32(into, self.epoch);
        put32(into, self.site);
        put32(into, self.stack);
        for time in [
            self.began_ns,
            self.entered_ns,
            self.pack_ns,
            self.barrier_ns,
            self.exchange_ns,
            self.apply_ns,
        ] {
            put64(into, time);
        }
        for count in [self.repeats, self.prods, self.stalls] {
            put32(into, count);
        }
        let lists = [&self.put, &self.got, &self.waits];
        for list in lists {
            put32(into, len_u32(list.len().min(MOST_PEERS)));
        }
        for list in lists {
            let named = match list.len() > MOST_PEERS {
                true => MOST_PEERS - 1,
                false => list.len(),
            };
            for (rank, value) in &list[..named] {
                put32(into, *rank);
                put64(into, *value);
            }
            if named < list.len() {
                put32(into, OTHERS);
                put64(into, list[named..].iter().map(|(_, value)| value).sum());
            }
        }
        let length = len_u32(into.len() - start - 4);
        into[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn decode(mut bytes: &[u8]) -> Option<Step> {
        let at = &mut bytes;
        let mut step = Step {
            epoch: take32(at)?,
            site: take32(at)?,
            stack: take32(at)?,
            began_ns: take64(at)?,
            entered_ns: take64(at)?,
            pack_ns: take64(at)?,
            barrier_ns: take64(at)?,
            exchange_ns: take64(at)?,
            apply_ns: take64(at)?,
            repeats: take32(at)?,
            prods: take32(at)?,
            stalls: take32(at)?,
            ..Step::default()
        };
        let counts = [take32(at)?, take32(at)?, take32(at)?];
        let lists = [&mut step.put, &mut step.got, &mut step.waits];
        for (count, list) in counts.into_iter().zip(lists) {
            if count as usize > at.len() / 12 {
                return None;
            }
            for _ in 0..count {
                list.push((take32(at)?, take64(at)?));
            }
        }
        at.is_empty().then_some(step)
    }
}

/// Why a file is no trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// It was not written by a traced program.
    #[error("it is no trace of a program in supersteps")]
    Foreign,
    /// Another version wrote it.
    #[error("it has version {found}, known is {VERSION}; use the dipole that wrote it")]
    Version {
        /// Its version.
        found: u32,
    },
    /// It ends before its head or its places in the source do.
    #[error("it is cut short after {bytes} bytes; copy it again")]
    Short {
        /// How many bytes it has.
        bytes: usize,
    },
    /// What it says contradicts itself.
    #[error("{0} is damaged; copy it again")]
    Damaged(&'static str),
}

/// One rank's trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFile {
    /// What it is of.
    pub header: Header,
    /// Where supersteps end, by number.
    pub sites: Vec<Site>,
    /// The files that the program's code was in.
    pub modules: Vec<Module>,
    /// From where supersteps were ended, the innermost call first.
    pub stacks: Vec<Vec<Frame>>,
    /// The supersteps that are kept, oldest first.
    pub steps: Vec<Step>,
    /// True if older ones were overwritten.
    pub is_wrapped: bool,
    /// Blocks that could not be read to their end: the file is cut short, or damaged.
    pub damaged_blocks: usize,
}

impl TraceFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`TraceError`]. Damage to blocks alone loses their supersteps, and is counted.
    pub fn parse(bytes: &[u8]) -> Result<TraceFile, TraceError> {
        let short = TraceError::Short { bytes: bytes.len() };
        if bytes.get(..8) != Some(&MAGIC[..]) {
            return Err(TraceError::Foreign);
        }
        let mut at = &bytes[8..];
        let found = take32(&mut at).ok_or(short.clone())?;
        if found != VERSION {
            return Err(TraceError::Version { found });
        }
        let sites = bytes.get(HEAD_BYTES..STACKS_AT).ok_or(short.clone())?;
        let stacks = bytes.get(STACKS_AT..BLOCKS_AT).ok_or(short)?;
        let header = Header::decode(at).ok_or(TraceError::Damaged("its head"))?;
        let sites = decode_sites(sites).ok_or(TraceError::Damaged("its list of calls"))?;
        let (modules, stacks) =
            decode_stacks(stacks).ok_or(TraceError::Damaged("its list of stacks"))?;
        let blocks = Records::of(&bytes[BLOCKS_AT..], |record| {
            let step = Step::decode(record)?;
            let is_sound =
                (step.site as usize) < sites.len() && step.stack as usize <= stacks.len();
            is_sound.then_some(step)
        });
        let mut steps = blocks.records;
        let count = steps.len();
        steps.dedup_by(|next, last| next.epoch <= last.epoch);
        Ok(TraceFile {
            header,
            sites,
            modules,
            stacks,
            is_wrapped: blocks.is_wrapped,
            damaged_blocks: blocks.damaged_blocks + usize::from(steps.len() < count),
            steps,
        })
    }
}

impl TraceFile {
    /// Reads a file's head and its newest block alone: of a program that runs, what it did last.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn newest(path: &Path) -> Result<TraceFile, ReadError> {
        // Opening what is none may wait for ever.
        if !std::fs::metadata(path)?.is_file() {
            return Err(TraceError::Foreign.into());
        }
        let file = File::open(path)?;
        let mut bytes = vec![0; BLOCKS_AT];
        let mut read = 0;
        while read < bytes.len() {
            match file.read_at(&mut bytes[read..], read as u64)? {
                0 => break,
                count => read += count,
            }
        }
        bytes.truncate(read);
        let mut newest = (0, 0);
        for at in (BLOCKS_AT as u64..file.metadata()?.len()).step_by(BLOCK_BYTES) {
            let mut head = [0; 8];
            file.read_exact_at(&mut head, at)?;
            newest = newest.max((u64::from_le_bytes(head), at));
        }
        if newest.0 > 0 {
            let mut block = vec![0; BLOCK_BYTES];
            file.read_exact_at(&mut block, newest.1)?;
            bytes.extend(block);
        }
        Ok(TraceFile::parse(&bytes)?)
    }
}

/// Why a file's newest block is not known.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    File(#[from] std::io::Error),
    /// It is no trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl Header {
    /// The head of a file, [`HEAD_BYTES`] long.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put32(&mut bytes, VERSION);
        put32(&mut bytes, self.state as u32);
        for number in [
            self.rank,
            self.size,
            self.nodes,
            self.leader,
            self.first,
            self.run,
        ] {
            put32(&mut bytes, number);
        }
        put64(&mut bytes, self.begun_ns);
        put64(&mut bytes, self.begun_unix_ns);
        for text in [&self.link, &self.host] {
            put_field::<TEXT_BYTES>(&mut bytes, text);
        }
        bytes.resize(HEAD_BYTES, 0);
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Option<Header> {
        let at = &mut bytes;
        let state = match take32(at)? {
            0 => State::Open,
            1 => State::Ended,
            2 => State::Aborted,
            _ => return None,
        };
        let header = Header {
            state,
            rank: take32(at)?,
            size: take32(at)?,
            nodes: take32(at)?,
            leader: take32(at)?,
            first: take32(at)?,
            run: take32(at)?,
            begun_ns: take64(at)?,
            begun_unix_ns: take64(at)?,
            link: take_field::<TEXT_BYTES>(at)?,
            host: take_field::<TEXT_BYTES>(at)?,
        };
        let is_sound = header.rank < header.size
            && header.leader <= header.rank
            && (1..=header.size).contains(&header.nodes)
            // It names a file of the cost model.
            && header.link.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_sound.then_some(header)
    }
}

impl Site {
    /// Appends it to a list of sites.
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        put32(into, self.line);
        for text in [&self.call, &self.file] {
            let text = truncated(text, 1024);
            put32(into, len_u32(text.len()));
            into.extend_from_slice(text.as_bytes());
        }
    }
}

/// How many bytes of sites are used, then the sites.
fn decode_sites(mut bytes: &[u8]) -> Option<Vec<Site>> {
    let used = take32(&mut bytes)? as usize;
    let mut bytes = bytes.get(..used)?;
    let at = &mut bytes;
    let field = |at: &mut &[u8]| {
        let length = take32(at)? as usize;
        let (field, rest) = at.split_at_checked(length)?;
        *at = rest;
        printable(field)
    };
    let mut sites = Vec::new();
    while !at.is_empty() {
        sites.push(Site {
            line: take32(at)?,
            call: field(at)?,
            file: field(at)?,
        });
    }
    Some(sites)
}

/// The file of a rank.
#[must_use]
pub fn file_name(rank: u32) -> String {
    format!("rank-{rank}.trace")
}

/// True of the name of a rank's file.
#[must_use]
pub fn is_trace_name(name: &str) -> bool {
    let rank = name
        .strip_prefix("rank-")
        .and_then(|rest| rest.strip_suffix(".trace"));
    rank.is_some_and(|rank| rank.parse::<u32>().is_ok())
}

/// The most bytes that a record takes with its length.
pub(super) const MOST_RECORD_BYTES: usize = 4 + FIXED_BYTES + 3 * 12 * MOST_PEERS;

const _: () = assert!(MOST_RECORD_BYTES + BLOCK_HEAD_BYTES <= BLOCK_BYTES);

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        Header {
            state: State::Open,
            rank: 1,
            size: 3,
            nodes: 2,
            leader: 1,
            first: 9,
            run: 77,
            begun_ns: 5,
            begun_unix_ns: 6,
            link: "udp".into(),
            host: "ä".repeat(40),
        }
    }

    /// A file of whole blocks.
    fn file(blocks: &[(u64, Vec<Step>)]) -> Vec<u8> {
        let mut bytes = header().encode();
        let mut sites = Vec::new();
        let site = Site {
            call: "bsp_sync".into(),
            file: "src/lu.c".into(),
            line: 7,
        };
        site.encode(&mut sites);
        put32(&mut bytes, len_u32(sites.len()));
        bytes.extend(sites);
        bytes.resize(BLOCKS_AT, 0);
        for (sequence, steps) in blocks {
            let start = bytes.len();
            let mut records = Vec::new();
            for step in steps {
                step.encode(&mut records);
            }
            put64(&mut bytes, *sequence);
            put64(&mut bytes, records.len() as u64);
            bytes.extend(records);
            bytes.resize(start + BLOCK_BYTES, 0);
        }
        bytes
    }

    fn peers() -> impl Strategy<Value = Vec<(u32, u64)>> {
        vec((0..9_u32, any::<u64>()), 0..4)
    }

    prop_compose! {
        fn step()(
            times in any::<[u64; 6]>(), counts in any::<[u32; 3]>(),
            put in peers(), got in peers(), waits in peers(),
        ) -> Step {
            let [began_ns, entered_ns, pack_ns, barrier_ns, exchange_ns, apply_ns] = times;
            let [repeats, prods, stalls] = counts;
            Step {
                epoch: 0, site: 0, stack: 0, began_ns, entered_ns, pack_ns, barrier_ns, exchange_ns,
                apply_ns, repeats, prods, stalls, put, got, waits,
            }
        }
    }

    fn numbered(steps: Vec<Step>, from: u32) -> Vec<Step> {
        let numbers = from..;
        let numbered = steps.into_iter().zip(numbers);
        numbered
            .map(|(step, epoch)| Step { epoch, ..step })
            .collect()
    }

    proptest! {
        #[test]
        fn steps_come_back_in_order_whichever_block_is_the_oldest(
            one in vec(step(), 0..5), other in vec(step(), 0..5),
        ) {
            let newer = numbered(other, 100);
            let older = numbered(one, 50);
            let trace = TraceFile::parse(&file(&[(9, newer.clone()), (8, older.clone())]));
            let trace = trace.expect("as written");
            prop_assert_eq!(trace.steps, [older, newer].concat());
            prop_assert!(trace.is_wrapped);
            prop_assert_eq!(trace.damaged_blocks, 0);
            prop_assert_eq!(trace.sites[0].to_string(), "lu.c:7");
        }

        #[test]
        fn damage_loses_no_more_than_it_hits_and_never_panics(
            steps in vec(step(), 1..9), at in 0..BLOCKS_AT + 2000, byte: u8,
            end in 0..BLOCKS_AT + BLOCK_BYTES,
        ) {
            let whole = file(&[(1, numbered(steps.clone(), 0))]);
            let _cut = TraceFile::parse(&whole[..end]);
            let mut spoilt = whole;
            spoilt[at] = byte;
            if let Ok(trace) = TraceFile::parse(&spoilt) {
                prop_assert!(trace.steps.len() <= steps.len());
            }
        }

        #[test]
        fn random_bytes_behind_a_right_head_are_read_without_panic(bytes in vec(any::<u8>(), 0..3000)) {
            let mut spoilt = file(&[]);
            spoilt.extend(bytes);
            let _read = TraceFile::parse(&spoilt);
        }
    }

    #[test]
    fn a_cut_file_keeps_what_came_before_the_cut() {
        let steps = numbered(vec![Step::default(); 20], 0);
        let whole = file(&[(1, steps.clone()), (2, numbered(steps, 20))]);
        let cut = TraceFile::parse(&whole[..whole.len() - BLOCK_BYTES + 500]).expect("a head");
        assert!((20..40).contains(&cut.steps.len()) && cut.damaged_blocks == 1);
        assert_eq!(cut.header.host, "ä".repeat(32));
    }

    #[test]
    fn errors_say_what_the_file_is() {
        let error = |bytes: &[u8]| TraceFile::parse(bytes).expect_err("wrong").to_string();
        assert!(error(b"").contains("no trace") && error(b"hello").contains("no trace"));
        let mut newer = file(&[]);
        newer[8] = 9;
        assert!(error(&newer).contains("has version 9, known is 2"));
        assert!(error(&newer[..9]).contains("cut short"));
        assert!(error(&file(&[])[..5000]).contains("cut short after 5000 bytes"));
    }

    #[test]
    fn more_peers_than_a_record_names_are_told_as_one() {
        let many: Vec<(u32, u64)> = (0..5000).map(|rank| (rank, 2)).collect();
        let step = Step {
            put: many.clone(),
            got: many.clone(),
            waits: many,
            ..Step::default()
        };
        let mut bytes = Vec::new();
        step.encode(&mut bytes);
        assert!(bytes.len() <= MOST_RECORD_BYTES);
        let read = Step::decode(&bytes[4..]).expect("as written");
        assert_eq!(read.put.iter().map(|(_, bytes)| bytes).sum::<u64>(), 10_000);
        assert_eq!(read.put.last().map(|(rank, _)| *rank), Some(OTHERS));
    }
}

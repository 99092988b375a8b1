//! The trace file of a rank: its header, sites and records. `dipole_trace` defines their places in
//! the file. All numbers are little-endian.

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

/// Version of the files written here; other versions are refused.
pub const VERSION: u32 = 2;
/// Offset of the state in the header.
pub(super) const STATE_AT: usize = 12;
const MAGIC: [u8; 8] = *b"DPLTRACE";
const TEXT_BYTES: usize = 64;
/// Peers that a record lists; the rest are added up.
const MAX_PEERS: usize = 1024;
/// Stands for the peers that a record does not list.
const OTHERS: u32 = u32::MAX;
/// Bytes of a record without its peers.
const FIXED_BYTES: usize = 3 * 4 + 6 * 8 + 6 * 4;

/// How a rank's program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It still runs, or was killed.
    Open,
    /// The program called `bsp_end`.
    Ended,
    /// The program failed.
    Aborted,
}

/// The header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// How the program ended.
    pub state: State,
    /// Rank that wrote the file.
    pub rank: u32,
    /// The number of ranks.
    pub size: u32,
    /// The number of nodes.
    pub nodes: u32,
    /// The lowest rank of the same node.
    pub leader: u32,
    /// The epoch of the program's superstep 0. Earlier supersteps measure clocks.
    pub first: u32,
    /// Random number, the same for all ranks of a run.
    pub run: u32,
    /// When the program began, by the rank's own clock, as in records.
    pub begun_ns: u64,
    /// The same instant in nanoseconds since 1970.
    pub begun_unix_ns: u64,
    /// The link between nodes: `udp`, `bpf`, `tcp`; `shm` if there is one node.
    pub link: String,
    /// The host name of the node.
    pub host: String,
}

/// A place at which the program ends a superstep.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// Name of the function that ends the superstep.
    pub call: String,
    /// The source file, if the program gives it.
    pub file: String,
    /// Line in the source file.
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

/// Measurements of one superstep on one rank. Times are of the rank's own clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The superstep, counted as in [`Header::first`].
    pub epoch: u32,
    /// Index of the site that ended it.
    pub site: u32,
    /// Index of the stack there, counted from 1; 0 if it is not known.
    pub stack: u32,
    /// When its computation began.
    pub began_ns: u64,
    /// When its computation ended with the call of `bsp_sync`.
    pub entered_ns: u64,
    /// Time to pack records and hand them over.
    pub pack_ns: u64,
    /// Time until all ranks were known to have arrived.
    pub barrier_ns: u64,
    /// Time to wait for messages and to send them.
    pub exchange_ns: u64,
    /// Time to apply records.
    pub apply_ns: u64,
    /// Number of packets sent again.
    pub repeats: u32,
    /// Packets that only requested an acknowledgement.
    pub ack_requests: u32,
    /// Number of times that nothing could be sent, because credit or window was used up.
    pub stalls: u32,
    /// Bytes that this rank put or sent, by rank.
    pub put: Vec<(u32, u64)>,
    /// Bytes that it got, by rank.
    pub get: Vec<(u32, u64)>,
    /// Nanoseconds that it waited, by the rank waited for.
    pub waits: Vec<(u32, u64)>,
}

impl Step {
    /// Duration of the computation.
    #[must_use]
    pub fn compute_ns(&self) -> u64 {
        self.entered_ns.saturating_sub(self.began_ns)
    }

    /// Duration of the call that ended the superstep.
    #[must_use]
    pub fn sync_ns(&self) -> u64 {
        total([
            self.pack_ns,
            self.barrier_ns,
            self.exchange_ns,
            self.apply_ns,
        ])
    }

    /// When that call returned.
    #[must_use]
    pub fn left_ns(&self) -> u64 {
        self.entered_ns.saturating_add(self.sync_ns())
    }

    /// Appends the record, preceded by its length.
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
        for count in [self.repeats, self.ack_requests, self.stalls] {
            put32(into, count);
        }
        let lists = [&self.put, &self.get, &self.waits];
        for list in lists {
            put32(into, len_u32(list.len().min(MAX_PEERS)));
        }
        for list in lists {
            let listed = match list.len() > MAX_PEERS {
                true => MAX_PEERS - 1,
                false => list.len(),
            };
            for (rank, value) in &list[..listed] {
                put32(into, *rank);
                put64(into, *value);
            }
            if listed < list.len() {
                put32(into, OTHERS);
                put64(into, list[listed..].iter().map(|(_, value)| value).sum());
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
            ack_requests: take32(at)?,
            stalls: take32(at)?,
            ..Step::default()
        };
        let counts = [take32(at)?, take32(at)?, take32(at)?];
        let lists = [&mut step.put, &mut step.get, &mut step.waits];
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

/// Why a file is not a valid trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A traced program did not write it.
    #[error("it is not a trace of a program in supersteps")]
    Foreign,
    /// Another version wrote it.
    #[error(
        "it has version {found}, but this dipole reads version {VERSION}; use the dipole that wrote it"
    )]
    Version {
        /// Version of the file.
        found: u32,
    },
    /// It ends before its header or its sites do.
    #[error("it is cut short after {bytes} bytes; copy it again")]
    Short {
        /// The bytes that it has.
        bytes: usize,
    },
    /// The content is inconsistent.
    #[error("{0} is damaged; copy it again")]
    Damaged(&'static str),
}

/// Contents of one rank's trace file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceFile {
    /// Header of the file.
    pub header: Header,
    /// Call sites, indexed by number.
    pub sites: Vec<Site>,
    /// The executable and its libraries.
    pub modules: Vec<Module>,
    /// Stacks from which supersteps were ended, the innermost call first.
    pub stacks: Vec<Vec<Frame>>,
    /// The supersteps that are kept, oldest first.
    pub steps: Vec<Step>,
    /// True if older supersteps were overwritten.
    pub is_wrapped: bool,
    /// Blocks that could not be read completely, because the file is cut short or damaged.
    pub damaged_blocks: usize,
}

impl TraceFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`TraceError`]. Damaged blocks only lose their supersteps, and are counted.
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
        let header = Header::decode(at).ok_or(TraceError::Damaged("its header"))?;
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
    /// Reads the header and the newest block of a file: what a running program did last.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn read_newest(path: &Path) -> Result<TraceFile, ReadError> {
        // Opening a pipe could block.
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

/// Why the newest block of a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Reading the file failed.
    #[error("it cannot be read: {0}")]
    File(#[from] std::io::Error),
    /// It is not a valid trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

impl Header {
    /// The encoded header, [`HEAD_BYTES`] long.
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
            // The link becomes part of a file name.
            && header.link.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_sound.then_some(header)
    }
}

impl Site {
    /// Appends the encoded site.
    pub(super) fn encode(&self, into: &mut Vec<u8>) {
        put32(into, self.line);
        for text in [&self.call, &self.file] {
            let text = truncated(text, 1024);
            put32(into, len_u32(text.len()));
            into.extend_from_slice(text.as_bytes());
        }
    }
}

/// Decodes the length of the list of sites, then the sites.
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

/// The file name of a rank's trace.
#[must_use]
pub fn file_name(rank: u32) -> String {
    format!("rank-{rank}.trace")
}

/// True if this is the file name of a rank's trace.
#[must_use]
pub fn is_trace_name(name: &str) -> bool {
    let rank = name
        .strip_prefix("rank-")
        .and_then(|rest| rest.strip_suffix(".trace"));
    rank.is_some_and(|rank| rank.parse::<u32>().is_ok())
}

/// The longest record, with its length.
pub(super) const MAX_RECORD_BYTES: usize = 4 + FIXED_BYTES + 3 * 12 * MAX_PEERS;

const _: () = assert!(MAX_RECORD_BYTES + BLOCK_HEAD_BYTES <= BLOCK_BYTES);

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

    /// A file of complete blocks.
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
            put in peers(), get in peers(), waits in peers(),
        ) -> Step {
            let [began_ns, entered_ns, pack_ns, barrier_ns, exchange_ns, apply_ns] = times;
            let [repeats, ack_requests, stalls] = counts;
            Step {
                epoch: 0, site: 0, stack: 0, began_ns, entered_ns, pack_ns, barrier_ns, exchange_ns,
                apply_ns, repeats, ack_requests, stalls, put, get, waits,
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
        fn steps_are_read_in_order_whichever_block_is_the_oldest(
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
        fn damage_loses_no_more_than_the_damaged_part_and_never_panics(
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
        fn arbitrary_bytes_after_a_valid_header_do_not_panic(bytes in vec(any::<u8>(), 0..3000)) {
            let mut spoilt = file(&[]);
            spoilt.extend(bytes);
            let _read = TraceFile::parse(&spoilt);
        }
    }

    #[test]
    fn a_truncated_file_keeps_the_steps_before_the_cut() {
        let steps = numbered(vec![Step::default(); 20], 0);
        let whole = file(&[(1, steps.clone()), (2, numbered(steps, 20))]);
        let cut = TraceFile::parse(&whole[..whole.len() - BLOCK_BYTES + 500]).expect("a head");
        assert!((20..40).contains(&cut.steps.len()) && cut.damaged_blocks == 1);
        assert_eq!(cut.header.host, "ä".repeat(32));
    }

    #[test]
    fn errors_describe_the_file() {
        let error = |bytes: &[u8]| TraceFile::parse(bytes).expect_err("wrong").to_string();
        assert!(error(b"").contains("not a trace") && error(b"hello").contains("not a trace"));
        let mut newer = file(&[]);
        newer[8] = 9;
        assert!(error(&newer).contains("has version 9, but this dipole reads version 2"));
        assert!(error(&newer[..9]).contains("cut short"));
        assert!(error(&file(&[])[..5000]).contains("cut short after 5000 bytes"));
    }

    #[test]
    fn peers_beyond_the_limit_of_a_record_are_added_up() {
        let many: Vec<(u32, u64)> = (0..5000).map(|rank| (rank, 2)).collect();
        let step = Step {
            put: many.clone(),
            get: many.clone(),
            waits: many,
            ..Step::default()
        };
        let mut bytes = Vec::new();
        step.encode(&mut bytes);
        assert!(bytes.len() <= MAX_RECORD_BYTES);
        let read = Step::decode(&bytes[4..]).expect("as written");
        assert_eq!(read.put.iter().map(|(_, bytes)| bytes).sum::<u64>(), 10_000);
        assert_eq!(read.put.last().map(|(rank, _)| *rank), Some(OTHERS));
    }
}

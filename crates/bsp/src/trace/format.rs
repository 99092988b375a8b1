//! The trace file of a rank: its header, sites and records. `dipole_trace` defines their places in
//! the file. All numbers are little-endian.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::step::{MAX_RECORD_BYTES, Step};
use dipole_trace::bytes::{
    len_u32, printable, put_field, put32, put64, take_field, take32, take64, truncated,
};
use dipole_trace::{
    BLOCK_BYTES, BLOCK_HEAD_BYTES, BLOCKS_AT, Frame, HEAD_BYTES, Module, Records, STACKS_AT,
    decode_stacks,
};

/// Version of the files written here; other versions are refused.
pub const VERSION: u32 = 3;
/// Offset of the state in the header.
pub(super) const STATE_AT: usize = 12;
const MAGIC: [u8; 8] = *b"DPLTRACE";
const TEXT_BYTES: usize = 64;
/// Cores that a header can list: those below this number.
const MAX_CORES: u32 = 1024;

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
    /// Cores that the rank may use, in ascending order; empty if they are not known.
    pub cores: Vec<u32>,
    /// Cores' worth of CPU time that the rank may use, which a control group can limit; 0 if not
    /// known.
    pub quota: u32,
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
    /// Encodes the header, sites and steps as a file, without stacks. Programs that make traces of
    /// other sources, and tests, write such files.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header.encode();
        let mut sites = Vec::new();
        for site in &self.sites {
            site.encode(&mut sites);
        }
        put32(&mut bytes, len_u32(sites.len()));
        bytes.extend(sites);
        bytes.resize(BLOCKS_AT, 0);
        let mut block = Vec::new();
        let mut sequence = 1_u64;
        let mut finish = |block: &mut Vec<u8>| {
            let end = bytes.len() + BLOCK_BYTES;
            put64(&mut bytes, sequence);
            put64(&mut bytes, block.len() as u64);
            bytes.append(block);
            bytes.resize(end, 0);
            sequence += 1;
        };
        for step in &self.steps {
            if BLOCK_HEAD_BYTES + block.len() + MAX_RECORD_BYTES > BLOCK_BYTES {
                finish(&mut block);
            }
            step.encode(&mut block);
        }
        finish(&mut block);
        bytes
    }

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
        put32(&mut bytes, self.quota);
        let mut mask = [0_u8; MAX_CORES as usize / 8];
        for core in self.cores.iter().filter(|core| **core < MAX_CORES) {
            mask[*core as usize / 8] |= 1 << (core % 8);
        }
        bytes.extend(mask);
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
            quota: take32(at)?,
            cores: take_cores(at)?,
        };
        let is_sound = header.rank < header.size
            && header.leader <= header.rank
            && (1..=header.size).contains(&header.nodes)
            // The link becomes part of a file name.
            && header.link.bytes().all(|byte| byte.is_ascii_alphanumeric());
        is_sound.then_some(header)
    }
}

/// Takes the mask of cores.
fn take_cores(at: &mut &[u8]) -> Option<Vec<u32>> {
    let (mask, rest) = at.split_at_checked(MAX_CORES as usize / 8)?;
    *at = rest;
    let is_set = |core: &u32| mask[*core as usize / 8] & (1 << (core % 8)) != 0;
    Some((0..MAX_CORES).filter(is_set).collect())
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
            cores: vec![0, 3, 1023],
            quota: 2,
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
            times in any::<[u64; 6]>(), counts in any::<[u32; 6]>(), cpu_ns in any::<Option<u32>>(),
            put in peers(), get in peers(), waits in peers(),
        ) -> Step {
            let [began_ns, entered_ns, pack_ns, barrier_ns, exchange_ns, apply_ns] = times;
            let [preemptions, sleeps, repeats, duplicates, ack_requests, stalls] = counts;
            Step {
                epoch: 0, site: 0, stack: 0, began_ns, entered_ns, pack_ns, barrier_ns, exchange_ns,
                apply_ns, cpu_ns: cpu_ns.map(u64::from), preemptions, sleeps, repeats, duplicates,
                ack_requests, stalls, put, get, waits,
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
        assert_eq!((cut.header.cores, cut.header.quota), (vec![0, 3, 1023], 2));
    }

    #[test]
    fn errors_describe_the_file() {
        let error = |bytes: &[u8]| TraceFile::parse(bytes).expect_err("wrong").to_string();
        assert!(error(b"").contains("not a trace") && error(b"hello").contains("not a trace"));
        let mut newer = file(&[]);
        newer[8] = 9;
        assert!(error(&newer).contains("has version 9, but this dipole reads version 3"));
        assert!(error(&newer[..9]).contains("cut short"));
        assert!(error(&file(&[])[..5000]).contains("cut short after 5000 bytes"));
    }
}

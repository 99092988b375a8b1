//! Trace of the waits of a process that uses endpoints or MPI.
//!
//! A wait of at least [`MIN_WAIT`] is recorded when it ends: its call stack, duration, peer and
//! result. Shorter ones are not recorded. The file has the layout of [`Ring`](crate::Ring); its
//! section of call sites lists the process's endpoints, which identify it in the traces of its
//! peers.

mod recorder;

use std::time::Duration;

pub use recorder::{PollTracker, WaitEnd, WaitRecorder};

use serde::{Deserialize, Serialize};

use crate::bytes::{
    len_u32, printable, put_value, put32, put64, take_value, take32, take64, truncated,
};
use crate::modules::{Frame, Module, decode as decode_stacks};
use crate::ring::{BLOCKS_AT, HEAD_BYTES, Records, STACKS_AT};

/// Version of the file format. Files of other versions are rejected.
pub const VERSION: u32 = 1;
/// Shorter waits are not recorded.
pub const MIN_WAIT: Duration = Duration::from_micros(20);
const MAGIC: [u8; 8] = *b"DPLWAITS";
const MAX_NAME_BYTES: usize = 64;
/// Offsets of the header's state and of the time until which the process is known to have lived.
const STATE_AT: usize = 12;
const LIVED_AT: usize = 16;

/// Address of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EndpointAddress {
    /// Id of the node.
    pub node: u32,
    /// Id of the endpoint on that node.
    pub endpoint: u32,
}

/// Event that a process waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Cause {
    /// A wait for a message.
    Message,
    /// Room to send: credit of the receiver, or room in the window.
    Room,
    /// Completion of an operation of the process: a message that its receiver takes, or an access
    /// to remote memory.
    Completion,
    /// The wait timed out.
    Nothing,
    /// A target: its process has not opened the endpoint yet, or has not answered.
    Target,
}

/// A wait that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// Event that the process waited for.
    pub cause: Cause,
    /// Number of the call stack in the file, from 1; 0 if unknown.
    pub stack: u32,
    /// Start, by the process's monotonic clock.
    pub began_ns: u64,
    /// End, by the same clock.
    pub ended_ns: u64,
    /// The process's endpoint, if the wait was for one.
    pub own: Option<EndpointAddress>,
    /// Sender of the message, the receiver without room, or the target, if known.
    pub peer: Option<EndpointAddress>,
    /// Bytes received, or to be sent.
    pub bytes: u64,
}

/// Header of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// True after a normal exit; false while the process runs, and if it was killed.
    #[serde(skip)]
    pub has_ended: bool,
    /// Last time at which the process is known to have lived.
    #[serde(skip)]
    pub lived_ns: u64,
    /// Id of the process.
    pub pid: u32,
    /// Rank and size of its job, if it belongs to one.
    pub rank: Option<(u32, u32)>,
    /// When it opened its first endpoint, by the same monotonic clock as all times here.
    pub begun_ns: u64,
    /// The same instant in nanoseconds since 1970.
    pub begun_unix_ns: u64,
    /// Name of the host.
    pub host: String,
    /// Name of the program.
    pub program: String,
}

/// The trace of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitFile {
    /// Header of the file.
    pub header: Header,
    /// Endpoints of the process.
    pub endpoints: Vec<EndpointAddress>,
    /// The program and its libraries.
    pub modules: Vec<Module>,
    /// Call stacks, innermost call first.
    pub stacks: Vec<Vec<Frame>>,
    /// Recorded waits, in the order in which they ended.
    pub waits: Records<Wait>,
}

/// Why a file cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// Another program wrote it.
    #[error("not a trace of waits")]
    Foreign,
    /// Another version wrote it.
    #[error("the file has version {found}, expected {VERSION}; use the dipole that wrote it")]
    Version {
        /// Version of the file.
        found: u32,
    },
    /// The file is truncated or corrupt.
    #[error("{0} is damaged or cut short; copy it again")]
    Damaged(&'static str),
}

impl Wait {
    /// Returns the duration in nanoseconds.
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.began_ns)
    }

    /// Appends the wait with its length in front.
    fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        put32(into, 0);
        put_value(into, self);
        let length = len_u32(into.len() - start - 4);
        into[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn decode(mut bytes: &[u8]) -> Option<Wait> {
        let wait = take_value(&mut bytes)?;
        bytes.is_empty().then_some(wait)
    }
}

impl Header {
    /// Two fields that change lie at fixed offsets, the others follow.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put32(&mut bytes, VERSION);
        put32(&mut bytes, self.has_ended.into());
        put64(&mut bytes, self.lived_ns);
        let fixed = Header {
            host: truncated(&self.host, MAX_NAME_BYTES).to_owned(),
            program: truncated(&self.program, MAX_NAME_BYTES).to_owned(),
            ..*self
        };
        put_value(&mut bytes, &fixed);
        bytes.resize(HEAD_BYTES, 0);
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Option<Header> {
        let at = &mut bytes;
        let has_ended = take32(at)? == 1;
        let lived_ns = take64(at)?;
        let fixed: Header = take_value(at)?;
        let is_valid = fixed.rank.is_none_or(|(rank, size)| rank < size);
        is_valid.then_some(Header {
            has_ended,
            lived_ns,
            host: printable(fixed.host.as_bytes())?,
            program: printable(fixed.program.as_bytes())?,
            ..fixed
        })
    }
}

impl WaitFile {
    /// Decodes a file.
    ///
    /// # Errors
    /// [`WaitError`]. Damaged blocks are not an error: their waits are lost, and they are counted.
    pub fn parse(bytes: &[u8]) -> Result<WaitFile, WaitError> {
        if bytes.get(..8) != Some(&MAGIC[..]) {
            return Err(WaitError::Foreign);
        }
        let mut at = &bytes[8..];
        let found = take32(&mut at).ok_or(WaitError::Damaged("its head"))?;
        if found != VERSION {
            return Err(WaitError::Version { found });
        }
        let header = Header::decode(at).ok_or(WaitError::Damaged("its head"))?;
        let endpoints = bytes
            .get(HEAD_BYTES..STACKS_AT)
            .and_then(decode_endpoints)
            .ok_or(WaitError::Damaged("its list of endpoints"))?;
        let (modules, stacks) = bytes
            .get(STACKS_AT..BLOCKS_AT)
            .and_then(decode_stacks)
            .ok_or(WaitError::Damaged("its list of stacks"))?;
        let waits = Records::of(&bytes[BLOCKS_AT..], |record| {
            let wait = Wait::decode(record)?;
            (wait.stack as usize <= stacks.len()).then_some(wait)
        });
        Ok(WaitFile {
            header,
            endpoints,
            modules,
            stacks,
            waits,
        })
    }
}

/// Decodes the section of endpoints: its length, then the endpoints.
fn decode_endpoints(mut bytes: &[u8]) -> Option<Vec<EndpointAddress>> {
    let used = take32(&mut bytes)? as usize;
    let mut bytes = bytes.get(..used)?;
    let at = &mut bytes;
    let mut endpoints = Vec::new();
    while !at.is_empty() {
        endpoints.push(take_value(at)?);
    }
    Some(endpoints)
}

/// Name of the trace file of a process.
#[must_use]
pub fn file_name(host: &str, pid: u32) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    let host: String = host.chars().filter(|sign| is_plain(*sign)).collect();
    format!("waits-{host}-{pid}.trace")
}

/// True if a file name is that of a trace of waits.
#[must_use]
pub fn is_wait_name(name: &str) -> bool {
    let middle = name.strip_prefix("waits-");
    let middle = middle.and_then(|rest| rest.strip_suffix(".trace"));
    let pid = middle.and_then(|middle| middle.rsplit_once('-'));
    pid.is_some_and(|(_, pid)| pid.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::ring::BLOCK_BYTES;

    fn header() -> Header {
        Header {
            has_ended: true,
            lived_ns: 90,
            pid: 7,
            rank: Some((1, 3)),
            begun_ns: 5,
            begun_unix_ns: 6,
            host: "ä".repeat(40),
            program: "cg".into(),
        }
    }

    fn file(waits: &[Wait]) -> Vec<u8> {
        let mut bytes = header().encode();
        bytes.resize(BLOCKS_AT, 0);
        let mut records = Vec::new();
        waits.iter().for_each(|wait| wait.encode(&mut records));
        put64(&mut bytes, 1);
        put64(&mut bytes, records.len() as u64);
        bytes.extend(records);
        bytes.resize(BLOCKS_AT + BLOCK_BYTES, 0);
        bytes
    }

    prop_compose! {
        fn wait()(
            cause in prop::sample::select(
                vec![
                    Cause::Message, Cause::Room, Cause::Completion, Cause::Nothing, Cause::Target,
                ]
            ),
            times in any::<[u64; 2]>(), bytes: u64, peer in any::<Option<(u32, u16)>>(),
        ) -> Wait {
            let place = |(node, endpoint): (u32, u16)| EndpointAddress { node, endpoint: endpoint.into() };
            Wait {
                cause, stack: 0, began_ns: times[0], ended_ns: times[1], own: None,
                peer: peer.map(place), bytes,
            }
        }
    }

    proptest! {
        #[test]
        fn waits_come_back(waits in vec(wait(), 0..50)) {
            let read = WaitFile::parse(&file(&waits)).expect("as written");
            prop_assert_eq!(read.waits.records, waits);
            prop_assert_eq!(read.waits.damaged_blocks, 0);
            let expected = Header { host: "ä".repeat(32), ..header() };
            prop_assert_eq!(read.header, expected);
        }

        #[test]
        fn damage_never_panics(
            waits in vec(wait(), 1..9), at in 0..BLOCKS_AT + 500, byte: u8,
            end in 0..BLOCKS_AT + BLOCK_BYTES,
        ) {
            let whole = file(&waits);
            let _cut = WaitFile::parse(&whole[..end]);
            let mut spoilt = whole;
            spoilt[at] = byte;
            if let Ok(read) = WaitFile::parse(&spoilt) {
                prop_assert!(read.waits.records.len() <= waits.len());
            }
        }
    }

    #[test]
    fn a_stack_that_is_not_there_is_damage() {
        let wait = Wait {
            cause: Cause::Room,
            stack: 1,
            began_ns: 1,
            ended_ns: 2,
            own: None,
            peer: None,
            bytes: 0,
        };
        let damaged = WaitFile::parse(&file(&[wait])).expect("a head").waits;
        assert_eq!((damaged.records.len(), damaged.damaged_blocks), (0, 1));
    }

    #[test]
    fn names_are_known_by_their_form_and_lead_out_of_no_folder() {
        assert!(is_wait_name(&file_name("a-b", 12)));
        assert_eq!(file_name("../x/y", 1), "waits-..xy-1.trace");
        for other in ["rank-1.trace", "waits-1.trace", "waits-a-b.trace"] {
            assert!(!is_wait_name(other), "{other}");
        }
    }
}

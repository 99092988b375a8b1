//! What a process that uses endpoints or MPI waited for: its file, and who fills it.
//!
//! A wait is kept when it is over and has lasted for [`LEAST`]: from where it was called, how long, for
//! whom, and what came. Shorter ones cost nothing, and are not kept. The file has the layout of
//! [`Ring`](crate::Ring); its list of places has the process's endpoints, by which others name it.

mod keeper;

use std::time::Duration;

pub use keeper::{Keeper, Over, Polls};

use crate::bytes::{put_field, put32, put64, take_field, take32, take64};
use crate::modules::{Frame, Module, decode as decode_stacks};
use crate::ring::{BLOCKS_AT, HEAD_BYTES, Records, STACKS_AT};

/// Of files as written here. Others are not read.
pub const VERSION: u32 = 1;
/// Shorter waits are not kept.
pub const LEAST: Duration = Duration::from_micros(20);
const MAGIC: [u8; 8] = *b"DPLWAITS";
const TEXT_BYTES: usize = 64;
/// Where the head says how the process ended, and until when it is known to have lived.
const STATE_AT: usize = 12;
const LIVED_AT: usize = 16;
/// Stands for nobody.
const NOBODY: u32 = u32::MAX;

/// An endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Its node's id.
    pub node: u32,
    /// Its number there.
    pub endpoint: u32,
}

/// What was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A message.
    Message,
    /// Room to send: credit of the receiver, or of the window.
    Room,
    /// That something was done which the process had begun: a message of its own that its receiver
    /// takes, or an operation on another's memory.
    Completion,
    /// Something that did not come in the time there was.
    Nothing,
}

/// A wait that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What it was for.
    pub cause: Cause,
    /// Which of the file's stacks called, counted from 1; 0 if none was seen.
    pub stack: u32,
    /// When it began, of the process's own clock.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// The process's endpoint, if it was one.
    pub own: Option<Place>,
    /// Whose message came, or who had no room, if that is known.
    pub peer: Option<Place>,
    /// Bytes that came, or were to be sent.
    pub bytes: u64,
}

/// What a file says of its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// False while it runs, and if it was killed.
    pub has_ended: bool,
    /// The time until which it is known to have lived.
    pub lived_ns: u64,
    /// The process's number on its node.
    pub pid: u32,
    /// Its rank in its job and how many there are, if it belongs to one.
    pub rank: Option<(u32, u32)>,
    /// When it opened its first endpoint, of its own clock, as all times here.
    pub begun_ns: u64,
    /// The same in nanoseconds since 1970.
    pub begun_unix_ns: u64,
    /// The name of the node.
    pub host: String,
    /// The name of the program.
    pub program: String,
}

/// A process's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitFile {
    /// What it is of.
    pub header: Header,
    /// The process's endpoints.
    pub endpoints: Vec<Place>,
    /// The files that the program's code was in.
    pub modules: Vec<Module>,
    /// From where waits were called, the innermost call first.
    pub stacks: Vec<Vec<Frame>>,
    /// The waits that are kept, in the order in which they ended.
    pub waits: Records<Wait>,
}

/// Why a file is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// It was not written by a traced program.
    #[error("it is no trace of waits")]
    Foreign,
    /// Another version wrote it.
    #[error("it has version {found}, known is {VERSION}; use the dipole that wrote it")]
    Version {
        /// Its version.
        found: u32,
    },
    /// It ends before its head and its stacks do, or these contradict themselves.
    #[error("{0} is damaged or cut short; copy it again")]
    Damaged(&'static str),
}

impl Wait {
    /// How long it took.
    #[must_use]
    pub fn ns(&self) -> u64 {
        self.ended_ns.saturating_sub(self.began_ns)
    }

    fn encode(&self, into: &mut Vec<u8>) {
        let start = into.len();
        put32(into, 0);
        put32(into, self.cause as u32);
        put32(into, self.stack);
        put64(into, self.began_ns);
        put64(into, self.ended_ns);
        for place in [self.own, self.peer] {
            put32(into, place.map_or(NOBODY, |place| place.node));
            put32(into, place.map_or(NOBODY, |place| place.endpoint));
        }
        put64(into, self.bytes);
        let length = crate::bytes::narrow(into.len() - start - 4);
        into[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    fn decode(mut bytes: &[u8]) -> Option<Wait> {
        let at = &mut bytes;
        let cause = match take32(at)? {
            0 => Cause::Message,
            1 => Cause::Room,
            2 => Cause::Completion,
            3 => Cause::Nothing,
            _ => return None,
        };
        let place = |at: &mut &[u8]| {
            let (node, endpoint) = (take32(at)?, take32(at)?);
            Some((node != NOBODY || endpoint != NOBODY).then_some(Place { node, endpoint }))
        };
        let wait = Wait {
            cause,
            stack: take32(at)?,
            began_ns: take64(at)?,
            ended_ns: take64(at)?,
            own: place(at)?,
            peer: place(at)?,
            bytes: take64(at)?,
        };
        at.is_empty().then_some(wait)
    }
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        put32(&mut bytes, VERSION);
        put32(&mut bytes, self.has_ended.into());
        put64(&mut bytes, self.lived_ns);
        let (rank, size) = self.rank.unwrap_or((NOBODY, 0));
        for number in [self.pid, rank, size] {
            put32(&mut bytes, number);
        }
        put64(&mut bytes, self.begun_ns);
        put64(&mut bytes, self.begun_unix_ns);
        for text in [&self.host, &self.program] {
            put_field::<TEXT_BYTES>(&mut bytes, text);
        }
        bytes.resize(HEAD_BYTES, 0);
        bytes
    }

    fn decode(mut bytes: &[u8]) -> Option<Header> {
        let at = &mut bytes;
        let has_ended = take32(at)? == 1;
        let lived_ns = take64(at)?;
        let (pid, rank, size) = (take32(at)?, take32(at)?, take32(at)?);
        let rank = match rank {
            NOBODY => None,
            rank if rank < size => Some((rank, size)),
            _ => return None,
        };
        let (begun_ns, begun_unix_ns) = (take64(at)?, take64(at)?);
        Some(Header {
            has_ended,
            lived_ns,
            pid,
            rank,
            begun_ns,
            begun_unix_ns,
            host: take_field::<TEXT_BYTES>(at)?,
            program: take_field::<TEXT_BYTES>(at)?,
        })
    }
}

impl WaitFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`WaitError`]. Damage to blocks alone loses their waits, and is counted.
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

impl Place {
    fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put32(&mut bytes, self.node);
        put32(&mut bytes, self.endpoint);
        bytes
    }
}

/// How many bytes of endpoints are used, then the endpoints.
fn decode_endpoints(mut bytes: &[u8]) -> Option<Vec<Place>> {
    let used = take32(&mut bytes)? as usize;
    let mut bytes = bytes.get(..used)?;
    let at = &mut bytes;
    let mut endpoints = Vec::new();
    while !at.is_empty() {
        let (node, endpoint) = (take32(at)?, take32(at)?);
        endpoints.push(Place { node, endpoint });
    }
    Some(endpoints)
}

/// The file of a process.
#[must_use]
pub fn file_name(host: &str, pid: u32) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    let host: String = host.chars().filter(|sign| is_plain(*sign)).collect();
    format!("waits-{host}-{pid}.trace")
}

/// True of the name of a process's file.
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
                vec![Cause::Message, Cause::Room, Cause::Completion, Cause::Nothing]
            ),
            times in any::<[u64; 2]>(), bytes: u64, peer in any::<Option<(u32, u16)>>(),
        ) -> Wait {
            let place = |(node, endpoint): (u32, u16)| Place { node, endpoint: endpoint.into() };
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

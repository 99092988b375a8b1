//! The steps of a whole recording, file by file.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use dipole_proto::Instant;

use super::{Difference, Observed, Replay};
use crate::files::Recording;
use crate::input::Input;
use crate::reader::{DamagedFile, End, SegmentReader};

/// A step of a replay.
#[derive(Debug)]
pub enum Step {
    /// A file begins.
    File {
        /// Its number.
        segment: u32,
        /// Files before it are missing, or could not be read to their end.
        after_gap: bool,
    },
    /// The core did something.
    Observed(Instant, Observed),
    /// A result differs. The replay goes on with the next file.
    Differs(Difference),
    /// The rest of a file cannot be read. The replay goes on with the next file.
    Damaged(PathBuf, DamagedFile),
    /// The file ends within a block; so many bytes are lost.
    Partial(u64),
}

/// A file that is being replayed.
#[derive(Debug)]
struct Current {
    path: PathBuf,
    reader: SegmentReader<BufReader<File>>,
    segment: u32,
    block: Vec<u8>,
    /// Position in the block.
    at: usize,
    /// Number of inputs so far.
    position: u64,
}

/// Replays a recording. Files that cannot be replayed to their end are reported, and the replay
/// goes on with the next one, which has a state of its own.
#[derive(Debug)]
pub struct Steps {
    files: std::collections::btree_map::IntoIter<u32, PathBuf>,
    current: Option<Current>,
    replay: Option<Replay>,
    /// Number of the file that continues the last one, if that was read to its end.
    expected: Option<u32>,
    /// Inputs of all files.
    inputs: u64,
    /// The replay ends before the first input after this time.
    until: Instant,
    pending: std::collections::VecDeque<(Instant, Observed)>,
}

impl Steps {
    /// The steps of a recording.
    #[must_use]
    pub fn new(recording: Recording) -> Steps {
        Steps {
            files: recording.files.into_iter(),
            current: None,
            replay: None,
            expected: Some(0),
            inputs: 0,
            until: Instant::NEVER,
            pending: std::collections::VecDeque::new(),
        }
    }

    /// The steps up to a time on the clock of the process.
    #[must_use]
    pub fn until(self, until: Instant) -> Steps {
        Steps { until, ..self }
    }

    /// The core after the last step; `None` before the first one.
    #[must_use]
    pub fn replay(&self) -> Option<&Replay> {
        self.replay.as_ref()
    }

    /// Number of recorded calls so far.
    #[must_use]
    pub fn inputs(&self) -> u64 {
        self.inputs
    }

    fn now(&self) -> Instant {
        self.replay.as_ref().map_or(Instant(0), Replay::now)
    }

    /// Opens the next file; `None` after the last one.
    fn next_file(&mut self) -> Option<Step> {
        let (segment, path) = self.files.next()?;
        let after_gap = self.expected != Some(segment);
        self.expected = None;
        let mut reader = match SegmentReader::open(&path) {
            Ok(reader) => reader,
            Err(cause) => return Some(Step::Damaged(path, cause)),
        };
        let (machine, encoded) = match reader.state() {
            Ok(state) => state,
            Err(cause) => return Some(Step::Damaged(path, cause)),
        };
        let begins_at = Instant(reader.header().begins_at);
        let differs = (self.replay.as_ref())
            .filter(|_| !after_gap)
            .and_then(|replay| differs_from(replay, &encoded, segment));
        self.replay = Some(Replay::new(machine, begins_at));
        self.current = Some(Current {
            path,
            reader,
            segment,
            block: Vec::new(),
            at: 0,
            position: 0,
        });
        match differs {
            Some(difference) => Some(Step::Differs(difference)),
            None => Some(Step::File { segment, after_gap }),
        }
    }

    /// Replays the next input of the present file.
    fn next_input(&mut self) -> Option<Step> {
        let current = self.current.as_mut()?;
        if current.at == current.block.len() {
            match current.reader.block() {
                Ok(Some(block)) => (current.block, current.at) = (block, 0),
                Ok(None) => {
                    let end = current.reader.end();
                    let next = current.segment.checked_add(1);
                    self.current = None;
                    if let Some(End::Partial(bytes)) = end {
                        return Some(Step::Partial(bytes));
                    }
                    self.expected = next;
                    return None;
                }
                Err(cause) => {
                    let path = current.path.clone();
                    self.current = None;
                    return Some(Step::Damaged(path, cause));
                }
            }
        }
        let rest = current.block.get(current.at..).unwrap_or_default();
        let Some((input, left)) = Input::decode(rest) else {
            let (at, what) = (current.position, "an input cannot be decoded");
            let path = current.path.clone();
            self.current = None;
            return Some(Step::Damaged(path, DamagedFile::Damaged { at, what }));
        };
        let replay = self.replay.as_mut()?;
        if let Input::Time(advance) = input
            && replay.now().0.wrapping_add_signed(advance) > self.until.0
        {
            (self.current, self.files) = (None, std::collections::BTreeMap::new().into_iter());
            return None;
        }
        current.position += 1;
        self.inputs += 1;
        let mut observed = Vec::new();
        let applied = replay.apply(&input, &mut observed);
        let now = replay.now();
        let difference = applied.err().map(|(recorded, replayed)| Difference {
            segment: current.segment,
            position: current.position,
            at: now,
            call: name_of(&input),
            recorded,
            replayed,
        });
        current.at = current.block.len() - left.len();
        self.pending
            .extend(observed.into_iter().map(|it| (now, it)));
        if difference.is_some() {
            self.current = None;
        }
        difference.map(Step::Differs)
    }
}

impl Iterator for Steps {
    type Item = (Instant, Step);

    fn next(&mut self) -> Option<(Instant, Step)> {
        loop {
            if let Some((at, observed)) = self.pending.pop_front() {
                return Some((at, Step::Observed(at, observed)));
            }
            let step = match self.current {
                Some(_) => self.next_input(),
                None => Some(self.next_file()?),
            };
            if let Some(step) = step {
                return Some((self.now(), step));
            }
        }
    }
}

/// The difference between the state at the end of a file and that at the start of the next one.
fn differs_from(replay: &Replay, recorded: &[u8], segment: u32) -> Option<Difference> {
    let found = postcard::to_allocvec(replay.machine()).unwrap_or_default();
    let at = found
        .iter()
        .zip(recorded)
        .position(|(one, other)| one != other);
    let at = match at {
        Some(at) => at,
        None if found.len() == recorded.len() => return None,
        None => found.len().min(recorded.len()),
    };
    Some(Difference {
        segment,
        position: 0,
        at: replay.now(),
        call: "the state at the start of the file".to_owned(),
        recorded: format!("{} bytes", recorded.len()),
        replayed: format!("{} bytes, different from byte {at} on", found.len()),
    })
}

/// The name of a call, without its arguments.
fn name_of(input: &Input<'_>) -> String {
    let text = format!("{input:?}");
    let end = text.find(|c: char| !c.is_ascii_alphanumeric());
    text.get(..end.unwrap_or(text.len()))
        .unwrap_or(&text)
        .to_owned()
}

//! The frames that the engine lends to the core, observed while packets are written.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use dipole_proto::wire::HEADER_BYTES;
use dipole_proto::{Frame, Frames, Slot, Transmit};
use serde::{Deserialize, Serialize};

use crate::check::{Check, Mixer};

/// Slots that a recording may mention.
const MAX_SLOTS: usize = 1 << 17;

/// An answer of the frame pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FrameAnswer {
    /// The records of a frame end here. Recorded when it was not known.
    End(Slot, u32),
    /// A scratch frame.
    Scratch(Slot),
    /// A frame for notices.
    Allocated(Slot),
    /// A scratch frame with a part of a unit.
    Part(Slot),
    /// No frame is free.
    NoFrame,
}

/// The known ends of frames, and the answers that the present call has received.
#[derive(Debug, Default)]
pub(crate) struct FrameLog {
    /// Where the records of each slot end; zero if unknown.
    ends: Vec<u32>,
    answers: Vec<FrameAnswer>,
    /// Scratch frames of this call: the slot, and the range that the caller wrote.
    copied: Option<(Slot, usize)>,
    notices: Option<Mixer>,
}

impl FrameLog {
    /// Begins a call.
    pub(crate) fn clear(&mut self) {
        self.answers.clear();
        self.copied = None;
        self.notices = None;
    }

    /// Forgets the ends of all frames, because another file begins.
    pub(crate) fn forget(&mut self) {
        self.ends.clear();
        self.clear();
    }

    pub(crate) fn answers(&self) -> &[FrameAnswer] {
        &self.answers
    }

    pub(crate) fn notices(&self) -> Option<Check> {
        self.notices.map(Mixer::check)
    }

    /// Notes where a frame ends; true if that is news.
    fn set_end(&mut self, slot: Slot, end: u32) -> bool {
        let at = slot as usize;
        if at >= MAX_SLOTS {
            return true;
        }
        if self.ends.len() <= at {
            self.ends.resize(at + 1, 0);
        }
        std::mem::replace(&mut self.ends[at], end) != end
    }

    /// Hashes the notices in a frame.
    fn hash_notices(&mut self, frame: &[u8], end: usize) {
        let hasher = self.notices.get_or_insert_default();
        hasher.write(frame.get(HEADER_BYTES..end).unwrap_or_default());
    }

    /// The hash of a packet: its destination and everything that the core has written.
    pub(crate) fn check_packet(&self, transmit: &Transmit, frames: &mut impl Frames) -> Check {
        let mut hasher = Mixer::default();
        transmit.hash(&mut hasher);
        let slot = slot_of(transmit.frame);
        let (bytes, end) = frames.filled(slot);
        let from = match (transmit.frame, self.copied) {
            (Frame::Scratch(_), Some((part, end))) if part == slot => end,
            (Frame::Scratch(_), _) => HEADER_BYTES,
            (Frame::Unit(_) | Frame::Loose(_), _) => end,
        };
        written(bytes, from..transmit.length, &mut hasher);
        hasher.check()
    }

    /// The hash of a train: its first packet and the headers of all.
    pub(crate) fn check_train(
        &self,
        transmit: &Transmit,
        slots: &[Slot],
        frames: &mut impl Frames,
    ) -> Check {
        let mut hasher = Mixer::default();
        transmit.hash(&mut hasher);
        for slot in slots {
            hasher.write_u32(*slot);
            written(frames.filled(*slot).0, 0..0, &mut hasher);
        }
        hasher.check()
    }
}

/// Hashes a header and a range of records.
fn written(bytes: &[u8], records: Range<usize>, hasher: &mut Mixer) {
    hasher.write(bytes.get(..HEADER_BYTES).unwrap_or(bytes));
    hasher.write(bytes.get(records).unwrap_or_default());
}

fn slot_of(frame: Frame) -> Slot {
    match frame {
        Frame::Unit(slot) | Frame::Loose(slot) | Frame::Scratch(slot) => slot,
    }
}

/// Frames whose answers are logged.
#[derive(Debug)]
pub(crate) struct ObservedFrames<'a, F> {
    pub(crate) frames: &'a mut F,
    pub(crate) log: &'a mut FrameLog,
}

impl<F: Frames> Frames for ObservedFrames<'_, F> {
    fn filled(&mut self, slot: Slot) -> (&mut [u8], usize) {
        let (bytes, end) = self.frames.filled(slot);
        let known = u32::try_from(end).unwrap_or(u32::MAX);
        if self.log.set_end(slot, known) {
            self.log.answers.push(FrameAnswer::End(slot, known));
        }
        (bytes, end)
    }

    fn scratch(&mut self) -> Option<(Slot, &mut [u8])> {
        let found = self.frames.scratch();
        let answer = found.as_ref().map(|(slot, _)| FrameAnswer::Scratch(*slot));
        self.log
            .answers
            .push(answer.unwrap_or(FrameAnswer::NoFrame));
        found
    }

    fn allocate(&mut self) -> Option<(Slot, &mut [u8])> {
        let found = self.frames.allocate();
        let answer = found
            .as_ref()
            .map(|(slot, _)| FrameAnswer::Allocated(*slot));
        self.log
            .answers
            .push(answer.unwrap_or(FrameAnswer::NoFrame));
        found
    }

    fn part(&mut self, slot: Slot, bytes: Range<usize>) -> Option<(Slot, &mut [u8])> {
        let end = HEADER_BYTES + bytes.len();
        let found = self.frames.part(slot, bytes);
        let answer = found.as_ref().map(|(slot, _)| FrameAnswer::Part(*slot));
        self.log.copied = found.as_ref().map(|(slot, _)| (*slot, end));
        self.log
            .answers
            .push(answer.unwrap_or(FrameAnswer::NoFrame));
        found
    }

    fn fill(&mut self, slot: Slot, end: usize) {
        self.frames.fill(slot, end);
        self.log
            .set_end(slot, u32::try_from(end).unwrap_or(u32::MAX));
        self.log.hash_notices(self.frames.filled(slot).0, end);
    }
}

/// The frames of a replay, which give the recorded answers.
#[derive(Debug)]
pub(crate) struct ReplayedFrames {
    frames: Vec<Option<Box<[u8]>>>,
    ends: Vec<u32>,
    frame_bytes: usize,
    answers: std::collections::VecDeque<FrameAnswer>,
    /// A question to which the recording has no answer.
    unanswered: Option<&'static str>,
    /// The same hashes as when it was recorded.
    log: FrameLog,
    /// Given out instead of a frame that the recording does not have.
    spare: Box<[u8]>,
}

impl ReplayedFrames {
    pub(crate) fn new(frame_bytes: usize) -> ReplayedFrames {
        ReplayedFrames {
            frames: Vec::new(),
            ends: Vec::new(),
            frame_bytes,
            answers: std::collections::VecDeque::new(),
            unanswered: None,
            log: FrameLog::default(),
            spare: vec![0; frame_bytes].into(),
        }
    }

    /// Begins a call with these answers.
    pub(crate) fn begin(&mut self, answers: &[FrameAnswer]) {
        self.answers.clear();
        self.unanswered = None;
        self.log.clear();
        for answer in answers {
            match *answer {
                FrameAnswer::End(slot, end) => self.set_end(slot, end),
                other => self.answers.push_back(other),
            }
        }
    }

    /// The first request of the core without a recorded answer.
    pub(crate) fn unanswered(&self) -> Option<&'static str> {
        self.unanswered
    }

    /// See [`FrameLog::check_packet`].
    pub(crate) fn check_packet(&mut self, transmit: &Transmit) -> Check {
        let log = std::mem::take(&mut self.log);
        let check = log.check_packet(transmit, self);
        self.log = log;
        check
    }

    /// See [`FrameLog::check_train`].
    pub(crate) fn check_train(&mut self, transmit: &Transmit, slots: &[Slot]) -> Check {
        let log = std::mem::take(&mut self.log);
        let check = log.check_train(transmit, slots, self);
        self.log = log;
        check
    }

    /// See [`FrameLog::notices`].
    pub(crate) fn notices(&self) -> Option<Check> {
        self.log.notices()
    }

    /// The first recorded answer that the core did not request.
    pub(crate) fn leftover(&self) -> Option<FrameAnswer> {
        self.answers.front().copied()
    }

    /// The bytes of a packet.
    pub(crate) fn packet(&mut self, transmit: &Transmit) -> &[u8] {
        let bytes = self.space(slot_of(transmit.frame));
        bytes.get(..transmit.length).unwrap_or(bytes)
    }

    fn set_end(&mut self, slot: Slot, end: u32) {
        let at = slot as usize;
        if at < MAX_SLOTS {
            if self.ends.len() <= at {
                self.ends.resize(at + 1, 0);
            }
            self.ends[at] = end.min(u32::try_from(self.frame_bytes).unwrap_or(u32::MAX));
        }
    }

    fn space(&mut self, slot: Slot) -> &mut [u8] {
        let at = slot as usize;
        if at >= MAX_SLOTS {
            return &mut self.spare;
        }
        if self.frames.len() <= at {
            self.frames.resize_with(at + 1, || None);
        }
        let bytes = self.frame_bytes;
        self.frames[at].get_or_insert_with(|| vec![0; bytes].into())
    }

    fn next(&mut self, question: &'static str) -> Option<FrameAnswer> {
        let answer = self.answers.pop_front();
        if answer.is_none() {
            self.unanswered.get_or_insert(question);
        }
        answer.filter(|answer| *answer != FrameAnswer::NoFrame)
    }
}

impl Frames for ReplayedFrames {
    fn filled(&mut self, slot: Slot) -> (&mut [u8], usize) {
        let end = self.ends.get(slot as usize).copied().unwrap_or(0) as usize;
        (self.space(slot), end)
    }

    fn scratch(&mut self) -> Option<(Slot, &mut [u8])> {
        match self.next("a scratch frame")? {
            FrameAnswer::Scratch(slot) => Some((slot, self.space(slot))),
            _ => None,
        }
    }

    fn allocate(&mut self) -> Option<(Slot, &mut [u8])> {
        match self.next("a frame for notices")? {
            FrameAnswer::Allocated(slot) => Some((slot, self.space(slot))),
            _ => None,
        }
    }

    fn part(&mut self, _: Slot, bytes: Range<usize>) -> Option<(Slot, &mut [u8])> {
        match self.next("a scratch frame for a part")? {
            FrameAnswer::Part(slot) => {
                let space = self.space(slot);
                let end = HEADER_BYTES + bytes.len();
                if let Some(space) = space.get_mut(HEADER_BYTES..end) {
                    space.fill(0);
                }
                self.log.copied = Some((slot, end));
                Some((slot, self.space(slot)))
            }
            _ => None,
        }
    }

    fn fill(&mut self, slot: Slot, end: usize) {
        self.set_end(slot, u32::try_from(end).unwrap_or(u32::MAX));
        let mut log = std::mem::take(&mut self.log);
        log.hash_notices(self.filled(slot).0, end);
        self.log = log;
    }
}

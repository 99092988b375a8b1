//! One recorded process in a replay.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dipole_proto::{Event, Instant, PeerId};
use dipole_record::{Direction, Observed, Recording, SegmentHeader, Step, Steps};

use super::time::Window;

/// Totals of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) packets_in: usize,
    pub(super) packets_out: usize,
    pub(super) retransmissions: usize,
    pub(super) dropped: usize,
    pub(super) delivered: usize,
    pub(super) refused_calls: usize,
}

/// A recorded process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) header: SegmentHeader,
    pub(super) files: usize,
    pub(crate) steps: Steps,
    /// The next step, which was already made.
    next: Option<(Instant, Step)>,
    pub(super) totals: Totals,
    /// The core has panicked in the replay.
    pub(crate) has_panicked: bool,
    /// The first difference from the recording, or why it cannot be read further.
    pub(super) trouble: Option<String>,
    /// Bytes that are missing at the end of a file.
    pub(super) lost_bytes: u64,
}

/// When a recording begins, in nanoseconds since 1970.
pub(super) fn begins_at_ns(recording: &Recording) -> u64 {
    let header = &recording.first;
    header.begins_at.saturating_add(header.since_1970_ns)
}

impl Process {
    pub(crate) fn new(recording: Recording, window: &Window) -> Process {
        let header = recording.first.clone();
        let until = Instant(window.to_ns.saturating_sub(header.since_1970_ns));
        Process {
            files: recording.files.len(),
            steps: Steps::new(recording).until(until),
            header,
            next: None,
            totals: Totals::default(),
            has_panicked: false,
            trouble: None,
            lost_bytes: 0,
        }
    }

    /// Time of the next step in nanoseconds since 1970; `None` at the end.
    pub(crate) fn next_at_ns(&mut self) -> Option<u64> {
        if self.next.is_none() && !self.has_panicked {
            let steps = &mut self.steps;
            match catch_unwind(AssertUnwindSafe(|| steps.next())) {
                Ok(next) => self.next = next,
                Err(_) => self.has_panicked = true,
            }
        }
        let (at, _) = self.next.as_ref()?;
        Some(at.0.saturating_add(self.header.since_1970_ns))
    }

    /// The next step.
    pub(crate) fn take(&mut self) -> Option<Step> {
        self.next_at_ns()?;
        self.next.take().map(|(_, step)| step)
    }

    /// Time of the last step in nanoseconds since 1970.
    pub(super) fn now_ns(&self) -> u64 {
        let now = self.steps.replay().map_or(Instant(0), |it| it.now());
        now.0.saturating_add(self.header.since_1970_ns)
    }

    /// The node of a peer, if its handshake is complete.
    pub(super) fn node_of(&self, peer: PeerId) -> Option<u32> {
        let node = self.steps.replay()?.machine().node(peer)?;
        (node != 0).then_some(node)
    }

    /// Adds a step to the totals.
    pub(super) fn count(&mut self, step: &Step) {
        let totals = &mut self.totals;
        match step {
            Step::Observed(
                _,
                Observed::Packet {
                    direction,
                    count,
                    description,
                    dropped,
                    ..
                },
            ) => {
                totals.dropped += usize::from(dropped.is_some());
                match direction {
                    Direction::In => totals.packets_in += count,
                    Direction::Out => {
                        totals.packets_out += count;
                        let is_repeat = description.as_ref().is_some_and(|it| it.is_repeat);
                        totals.retransmissions += usize::from(is_repeat) * count;
                    }
                }
            }
            Step::Observed(_, Observed::Event(event)) => {
                let is_delivery = matches!(
                    event,
                    Event::Deliver { .. } | Event::DeliverRun { .. } | Event::Complete { .. }
                );
                totals.delivered += usize::from(is_delivery);
            }
            Step::Observed(_, Observed::Call { text, .. }) => {
                totals.refused_calls += usize::from(text.starts_with("cannot send"));
            }
            Step::Differs(difference) => {
                self.trouble.get_or_insert_with(|| difference.to_string());
            }
            Step::Damaged(path, cause) => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let text = format!("{}: {cause}", dipole_naming::lines::printable(&name));
                self.trouble.get_or_insert(text);
            }
            Step::Partial(bytes) => self.lost_bytes += bytes,
            Step::File { .. } => {}
        }
    }
}

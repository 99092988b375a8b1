//! Makes the recorded calls on the recorded state, and compares the results.

mod calls;
mod steps;

use dipole_proto::wire::Address;
use dipole_proto::{EdgeId, Event, Instant, Machine, PeerId, Transmit};

use crate::check::Check;
use crate::describe::{Description, Direction, describe_packet};
use crate::frames::ReplayedFrames;
use crate::input::Input;

pub use steps::{Step, Steps};

/// Something that the core did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// A packet has arrived or leaves.
    Packet {
        /// Its direction.
        direction: Direction,
        /// Address of the peer.
        address: Address,
        /// Its session; `None` for handshake packets.
        peer: Option<PeerId>,
        /// Length with its trailer.
        bytes: usize,
        /// Number of packets of this kind in a row.
        count: usize,
        /// Its contents.
        description: Option<Description>,
        /// Why it was dropped.
        dropped: Option<&'static str>,
    },
    /// The core reports an event.
    Event(Event),
    /// The program, or another part of the process, calls the core.
    Call {
        /// The peer that it concerns.
        peer: Option<PeerId>,
        /// Description of the call.
        text: String,
        /// The message that it concerns.
        message: Option<MessageCall>,
    },
}

/// A call that concerns a message of an edge, with the edge's sending and receiving endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageCall {
    /// The program sends a message of this length.
    Begun(EdgeId, (u32, u32), u64),
    /// The program cannot send its next message yet.
    Blocked(EdgeId),
    /// A message has arrived in memory and is next in order.
    Delivered(EdgeId, (u32, u32)),
    /// A message has arrived in memory, for a thread that takes it at once.
    DeliveredAndTaken(EdgeId, (u32, u32)),
    /// The program has taken a message of this length, or an operation was executed.
    Taken(EdgeId, u64),
}

/// The first result that differs from the recorded one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the replay differs from the recording at input {position} of file {segment}: {call} \
     has returned {recorded} when it was recorded, and {replayed} now"
)]
pub struct Difference {
    /// Number of the file.
    pub segment: u32,
    /// Number of the input in its file.
    pub position: u64,
    /// Time on the clock of the process.
    pub at: Instant,
    /// The call.
    pub call: String,
    /// Its recorded result.
    pub recorded: String,
    /// Its result now.
    pub replayed: String,
}

/// A recorded and a different replayed result.
pub(crate) type Mismatch = (String, String);

/// The core of one process in a replay.
#[derive(Debug)]
pub struct Replay {
    machine: Machine,
    frames: ReplayedFrames,
    now: Instant,
    last_transmit: Option<Transmit>,
    /// The process has ended the recording.
    is_closed: bool,
}

impl Replay {
    /// Begins with a recorded state.
    #[must_use]
    pub fn new(machine: Machine, now: Instant) -> Replay {
        // A damaged state must not exhaust memory.
        let frame_bytes = machine.config().packet_bytes.min(1 << 16);
        Replay {
            frames: ReplayedFrames::new(frame_bytes),
            machine,
            now,
            last_transmit: None,
            is_closed: false,
        }
    }

    /// The core in its present state.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The present time, on the clock of the process.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.now
    }

    /// True if the process has ended its recording, and was not killed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Makes one recorded call. Reports what the core did.
    ///
    /// # Errors
    /// The recorded result and the different one of now.
    pub fn apply(
        &mut self,
        input: &Input<'_>,
        observed: &mut Vec<Observed>,
    ) -> Result<(), (String, String)> {
        match input {
            Input::Time(advance) => {
                self.now = Instant(self.now.0.wrapping_add_signed(*advance));
                Ok(())
            }
            Input::Timers => {
                self.machine.on_timers(self.now);
                Ok(())
            }
            Input::NextDeadline(check) => compare(&self.machine.next_deadline(), *check),
            Input::Event(check) => self.event(*check, observed),
            Input::Released(slot) => same(&self.machine.poll_released(), &Some(*slot)),
            Input::Packet { .. } | Input::Refused { .. } | Input::Train { .. } => {
                self.packet(input, observed)
            }
            Input::PollTransmit(..) | Input::TransmitAlone(..) | Input::TransmitTrain { .. } => {
                self.transmit(input, observed)
            }
            Input::Closed => {
                self.is_closed = true;
                Ok(())
            }
            other => self.call(other, observed),
        }
    }

    fn event(&mut self, check: Check, observed: &mut Vec<Observed>) -> Result<(), Mismatch> {
        match self.machine.poll_event() {
            Some(event) => {
                compare(&event, check)?;
                observed.push(Observed::Event(event));
                Ok(())
            }
            None => Err((format!("an event ({check})"), "no event".to_owned())),
        }
    }

    // ---- packets ------------------------------------------------------------------

    fn packet(&mut self, input: &Input<'_>, observed: &mut Vec<Observed>) -> Result<(), Mismatch> {
        let (Input::Packet { from, packet, .. }
        | Input::Refused { from, packet, .. }
        | Input::Train { from, packet, .. }) = input
        else {
            return Ok(());
        };
        let trailer = match input {
            Input::Packet { trailer, .. } | Input::Train { trailer, .. } => usize::from(*trailer),
            _ => 0,
        };
        let bytes = packet.restore(trailer);
        let bytes = bytes.ok_or_else(|| invalid("a packet that contradicts itself"))?;
        let covered = bytes.get(..packet.length()).unwrap_or(&bytes);
        let mut seen = Observed::Packet {
            direction: Direction::In,
            address: *from,
            peer: None,
            bytes: bytes.len(),
            count: 1,
            description: describe_packet(covered),
            dropped: None,
        };
        let Observed::Packet {
            peer,
            count,
            dropped,
            ..
        } = &mut seen
        else {
            return Ok(());
        };
        let addressed = self.machine.address(self.now, *from, &bytes);
        let mut addressed = match (addressed, input) {
            (Err(reason), Input::Refused { check, .. }) => {
                *dropped = Some(reason.name());
                observed.push(seen);
                return compare(&reason, *check);
            }
            (Ok(_), Input::Refused { check, .. }) => {
                return Err((format!("a refusal ({check})"), "a packet".to_owned()));
            }
            (Err(reason), _) => return Err(("a packet".to_owned(), reason.name().to_owned())),
            (Ok(addressed), _) => addressed,
        };
        *peer = addressed.peer();
        match input {
            Input::Packet { proven, check, .. } => {
                addressed.proven = *proven;
                let taken = self.machine.on_packet(self.now, *from, &addressed);
                *dropped = taken.err().map(|reason| reason.name());
                observed.push(seen);
                compare(&taken, *check)
            }
            Input::Train { flags, .. } => {
                let train = self.machine.begin_train(&addressed);
                let mut train = train.ok_or(("a train".to_owned(), "no train".to_owned()))?;
                for flags in flags.iter() {
                    train.add(dipole_proto::wire::Flags(*flags));
                }
                let (found, wanted) = (train.count() as usize, flags.len() + 1);
                same(&found, &wanted)?;
                *count = found;
                self.machine.on_train(self.now, *from, train);
                observed.push(seen);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn transmit(
        &mut self,
        input: &Input<'_>,
        observed: &mut Vec<Observed>,
    ) -> Result<(), Mismatch> {
        let (now, frames) = (self.now, &mut self.frames);
        match input {
            Input::PollTransmit(sending, check) => {
                frames.begin(&sending.answers);
                let transmit = self.machine.poll_transmit(now, frames);
                self.last_transmit = transmit.or(self.last_transmit);
                self.compare_packet(transmit, *check, observed)?;
                self.compare_notices(sending.notices)
            }
            Input::TransmitAlone(peer, slot, sending, check) => {
                frames.begin(&sending.answers);
                let transmit = self.machine.transmit_alone(now, *peer, *slot, frames);
                self.compare_packet(transmit, *check, observed)
            }
            Input::TransmitTrain {
                like,
                room,
                sending,
                result,
            } => {
                let like = like.or(self.last_transmit);
                let like = like.ok_or_else(|| invalid("a train without a first packet"))?;
                frames.begin(&sending.answers);
                let mut slots = [0; 256];
                let slots = &mut slots[..usize::from(*room)];
                let train = self.machine.transmit_train(now, &like, frames, slots);
                self.last_transmit = train.map(|(first, _)| first).or(Some(like));
                let found = train.map(|(first, count)| {
                    let check = frames.check_train(&first, &slots[..count]);
                    (first, count, check)
                });
                match (found, result) {
                    (None, None) => Ok(()),
                    (Some((first, count, check)), Some((wanted, recorded)))
                        if count == usize::from(*wanted) && check == *recorded =>
                    {
                        self.observe_packet(&first, count, observed);
                        self.all_answers_used()
                    }
                    _ => {
                        let recorded = result.map(|(count, check)| (count, check.to_string()));
                        let found = found.map(|(_, count, check)| (count, check.to_string()));
                        Err((format!("{recorded:?}"), format!("{found:?}")))
                    }
                }
            }
            _ => Ok(()),
        }
    }

    fn compare_packet(
        &mut self,
        transmit: Option<Transmit>,
        recorded: Option<Check>,
        observed: &mut Vec<Observed>,
    ) -> Result<(), Mismatch> {
        let Some(transmit) = transmit else {
            return match recorded {
                None => self.all_answers_used(),
                Some(check) => Err((format!("a packet ({check})"), "no packet".to_owned())),
            };
        };
        let check = self.frames.check_packet(&transmit);
        let known = observed.len();
        self.observe_packet(&transmit, 1, observed);
        if recorded == Some(check) {
            return self.all_answers_used();
        }
        let recorded = match recorded {
            Some(recorded) => format!("a packet ({recorded})"),
            None => "no packet".to_owned(),
        };
        Err((recorded, format!("{:?} ({check})", &observed[known..])))
    }

    fn compare_notices(&self, recorded: Option<Check>) -> Result<(), Mismatch> {
        let found = self.frames.notices();
        if found == recorded {
            return Ok(());
        }
        let text = |check: Option<Check>| format!("notices {:?}", check.map(|it| it.to_string()));
        Err((text(recorded), text(found)))
    }

    /// Checks that the core asked the frame pool for what was recorded.
    fn all_answers_used(&self) -> Result<(), Mismatch> {
        if let Some(question) = self.frames.unanswered() {
            return Err(("no request".to_owned(), format!("a request for {question}")));
        }
        match self.frames.leftover() {
            Some(answer) => Err((format!("{answer:?}"), "no request for a frame".to_owned())),
            None => Ok(()),
        }
    }

    fn observe_packet(&mut self, transmit: &Transmit, count: usize, to: &mut Vec<Observed>) {
        let description = describe_packet(self.frames.packet(transmit));
        to.push(Observed::Packet {
            direction: Direction::Out,
            address: transmit.to,
            peer: transmit.peer,
            bytes: transmit.length + transmit.seal.bytes(),
            count,
            description,
            dropped: None,
        });
    }
}

/// Compares a result with the recorded hash.
pub(crate) fn compare<T: std::hash::Hash + std::fmt::Debug>(
    found: &T,
    recorded: Check,
) -> Result<(), Mismatch> {
    let check = Check::of(found);
    match check == recorded {
        true => Ok(()),
        false => Err((
            format!("another result ({recorded})"),
            format!("{found:?} ({check})"),
        )),
    }
}

/// Compares a result with the recorded one.
pub(crate) fn same<T: PartialEq + std::fmt::Debug>(
    found: &T,
    recorded: &T,
) -> Result<(), Mismatch> {
    match found == recorded {
        true => Ok(()),
        false => Err((format!("{recorded:?}"), format!("{found:?}"))),
    }
}

/// The recording contains something that the core cannot have been given.
fn invalid(what: &str) -> Mismatch {
    (what.to_owned(), "an invalid recording".to_owned())
}

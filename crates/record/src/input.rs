//! The inputs of the core, as they are recorded.

use std::borrow::Cow;

use dipole_proto::wire::{Address, Greeting, LaneAddress, OPERATION_BYTES};
use dipole_proto::{DropReason, EdgeId, GoneReason, MessageStart, PeerId, Slot, Transmit};
use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::frames::FrameAnswer;
use crate::image::Image;

/// An edge and its two ends, as the caller names them.
pub type Ends = (PeerId, u32, u32);

/// One call of the core. Calls that take the time are made at the time of the last
/// [`Input::Time`]. `check` is the hash of the result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Input<'a> {
    /// The time has advanced by this many nanoseconds, or was set back if negative.
    Time(i64),
    /// [`Machine::on_timers`](dipole_proto::Machine::on_timers).
    Timers,
    /// `next_deadline`.
    NextDeadline(Check),
    /// `poll_event` has returned an event.
    Event(Check),
    /// `poll_released` has returned this slot.
    Released(Slot),
    /// `address` and `on_packet`.
    Packet {
        /// Its source.
        from: Address,
        /// The packet without its trailer.
        #[serde(borrow)]
        packet: Image<'a>,
        /// Length of the trailer.
        trailer: u8,
        /// The caller has verified the proof.
        proven: bool,
        /// Hash of the result.
        check: Check,
    },
    /// `address` has refused a packet.
    Refused {
        /// Its source.
        from: Address,
        /// Its header and its length.
        packet: Image<'a>,
        /// Hash of the reason.
        check: Check,
    },
    /// `begin_train` and `on_train`.
    Train {
        /// Source of the packets.
        from: Address,
        /// The first packet, without its trailer.
        packet: Image<'a>,
        /// Length of the trailer.
        trailer: u8,
        /// Flags of the other packets.
        #[serde(with = "serde_bytes")]
        flags: Cow<'a, [u8]>,
    },
    /// `poll_transmit`.
    PollTransmit(Sending<'a>, Option<Check>),
    /// `transmit_alone`.
    TransmitAlone(PeerId, Slot, Sending<'a>, Option<Check>),
    /// `transmit_train`.
    TransmitTrain {
        /// The packet that the train repeats, if it is not the last one.
        like: Option<Transmit>,
        /// Number of packets for which there was room.
        room: u8,
        /// Answers of the frame pool.
        sending: Sending<'a>,
        /// Number of packets, and the hash of their headers.
        result: Option<(u8, Check)>,
    },
    /// `packet_too_long`.
    PacketTooLong(Transmit),
    /// `queue`, with its result.
    Queue(PeerId, Vec<Slot>, bool, bool),
    /// `queue_unreliable`, with its result.
    QueueUnreliable(PeerId, Slot, bool, bool),
    /// `begin`.
    Begin(EdgeId, u64, Check),
    /// `retract`.
    Retract(EdgeId, u64),
    /// `begin_unreliable`.
    BeginUnreliable(EdgeId, Check),
    /// `consumed`.
    Consumed(EdgeId, u64),
    /// `take_assembled` has returned a unit.
    Assembled(Check),
    /// `take_agreement` has returned an agreement.
    Agreement(Check),
    /// `take_ended_session` has returned this.
    Ended(u32, u64),
    /// `count`.
    Count(DropReason),
    /// `connect`.
    Connect(Address, u64, Check),
    /// `disconnect`.
    Disconnect(PeerId),
    /// `renew_proofs`.
    RenewProofs,
    /// `acknowledge`.
    Acknowledge(PeerId),
    /// `watch`.
    Watch(PeerId, bool),
    /// `confirm_alive`: the process runs, or is stopped.
    ConfirmAlive(PeerId, bool),
    /// `give_up`.
    GiveUp(PeerId),
    /// `open_endpoint`.
    OpenEndpoint(u32),
    /// `close_endpoint`.
    CloseEndpoint(u32),
    /// `new_random_key`.
    RandomKey(Check),
    /// `edge`.
    Edge(Ends, Check),
    /// `close_edge`.
    CloseEdge(EdgeId),
    /// `cancel`.
    Cancel(EdgeId),
    /// `clear_refusal`.
    ClearRefusal(EdgeId),
    /// `open_pipe`.
    OpenPipe(Greeting, Check),
    /// `close_pipe`.
    ClosePipe(PeerId, GoneReason),
    /// `begin_whole`.
    BeginWhole(EdgeId, u64, Check),
    /// `on_pipe_message`: peer, number of the edge, length.
    PipeMessage(PeerId, u32, u64, Check),
    /// `on_pipe_message_read` has returned a delivery: peer, number, length, reader.
    PipeMessageRead(PeerId, u32, u64, u32, Check),
    /// `on_pipe_record`.
    PipeRecord {
        /// The peer.
        peer: PeerId,
        /// Its tag, as in the ring.
        tag: u64,
        /// A control record.
        #[serde(with = "serde_bytes")]
        payload: Cow<'a, [u8]>,
        /// Length of its payload.
        length: u64,
        /// Hash of the result.
        check: Check,
    },
    /// `poll_ready_pipe`.
    ReadyPipe(Check),
    /// `poll_record`.
    PollRecord(PeerId, Check),
    /// `pop_record`.
    PopRecord(PeerId),
    /// `offer`: a long message of this length at this address.
    Offer(
        EdgeId,
        MessageStart,
        (u64, u64),
        Option<[u8; OPERATION_BYTES]>,
    ),
    /// `announce`: a long message of this length.
    Announce(EdgeId, MessageStart, u64, Option<[u8; OPERATION_BYTES]>),
    /// `pieces_sent`.
    PiecesSent(EdgeId, u64),
    /// `fetch_completed`.
    FetchCompleted(EdgeId, u32, u64),
    /// `fetch_failed`.
    FetchFailed(EdgeId, u32, u64, u64),
    /// The process has disconnected from all peers and ended the recording.
    Closed,
    /// `set_lanes`: the lanes, and the IP addresses that are reached in another way.
    SetLanes(Vec<LaneAddress>, Vec<[u8; 16]>),
}

impl<'a> Input<'a> {
    /// Decodes the first input of a block. Returns also the bytes after it.
    #[must_use]
    pub fn decode(block: &'a [u8]) -> Option<(Input<'a>, &'a [u8])> {
        postcard::take_from_bytes(block).ok()
    }
}

/// How the frame pool answered during a call that sends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sending<'a> {
    /// Answers in order.
    pub answers: Cow<'a, [FrameAnswer]>,
    /// Hash of the notices that were written into allocated frames.
    pub notices: Option<Check>,
}

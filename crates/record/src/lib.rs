//! Records the inputs of the protocol core and replays them.
//!
//! [`RecordedMachine`] stands between the engine and [`dipole_proto::Machine`]. The machine can be
//! changed only through it, so its methods are the complete set of inputs: packets, calls of the
//! program, times, and the frames that the engine lends. If a [`Recorder`] is attached, each of
//! these calls is written to a file with a hash of its result. [`Replay`] makes the same calls on
//! the same state and compares the results.
//!
//! Payloads are not recorded: they do not affect the core. See `docs/admin/replay.md`.

#![forbid(unsafe_code)]

mod check;
mod describe;
mod files;
mod frames;
mod image;
mod input;
mod machine;
mod reader;
mod recorder;
mod replay;
mod segment;

pub use check::Check;
pub use describe::{Description, Direction, MessagePart, describe_packet};
pub use files::{Recording, RecordingError, Refused, recordings};
pub use frames::FrameAnswer;
pub use image::Image;
pub use input::{Ends, Input, Sending};
pub use machine::{RecordedMachine, RecordedTrain};
pub use reader::{DamagedFile, End, SegmentReader};
pub use recorder::{DEFAULT_BYTES, LEAST_BYTES, Options, Recorder};
pub use replay::{Difference, MessageCall, Observed, Replay, Step, Steps};
pub use segment::{FORMAT_VERSION, SegmentHeader};

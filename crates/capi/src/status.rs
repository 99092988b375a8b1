//! The state of a stream.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use dipole_streams::{Stream, StreamStatus, WaitsFor};

use crate::ffi::{self, Versioned, call};
use crate::stream::with;

/// A stream waits for its TCP connection.
pub const DP_WAITS_CONNECTION: i32 = 1;
/// A stream waits for a TCP client.
pub const DP_WAITS_CALLER: i32 = 2;
/// A stream waits for the next call of rank 0.
pub const DP_WAITS_CALL: i32 = 3;
/// A write waits for the data of ranks.
pub const DP_WAITS_DATA: i32 = 4;
/// A read waits for a rank to accept its data.
pub const DP_WAITS_READER: i32 = 5;
/// A write waits for the TCP peer to accept bytes.
pub const DP_WAITS_PEER_TO_READ: i32 = 6;
/// A read waits for bytes of the TCP peer.
pub const DP_WAITS_PEER_TO_WRITE: i32 = 7;

/// The length of a peer's address, with its final zero.
const PEER_BYTES: usize = 64;

/// `struct dp_stream_status`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StreamState {
    /// The size of the struct.
    pub size: usize,
    /// Bytes from the TCP peer.
    pub read_bytes: u64,
    /// Bytes to the TCP peer.
    pub written_bytes: u64,
    /// Their rate during the last second or longer.
    pub read_bytes_per_s: u64,
    /// Their rate during the last second or longer.
    pub written_bytes_per_s: u64,
    /// How long the stream has been open.
    pub open_ns: u64,
    /// How long it has waited for the present party.
    pub waited_ns: u64,
    /// The party that it waits for: `DP_WAITS_CONNECTION` and so on.
    pub waits_for: i32,
    /// The first rank that it waits for; -1 if none.
    pub rank: i32,
    /// The address of the TCP peer.
    pub peer: [c_char; PEER_BYTES],
}

// SAFETY: repr(C), begins with its size, numbers only.
unsafe impl Versioned for StreamState {
    const NAME: &'static str = "struct dp_stream_status";
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl From<StreamStatus> for StreamState {
    fn from(status: StreamStatus) -> StreamState {
        let (waits_for, rank) = match &status.waits_for {
            WaitsFor::Connection => (DP_WAITS_CONNECTION, None),
            WaitsFor::Caller => (DP_WAITS_CALLER, None),
            WaitsFor::Call => (DP_WAITS_CALL, Some(0)),
            WaitsFor::Data(ranks) => (DP_WAITS_DATA, ranks.first().copied()),
            WaitsFor::Reader(rank) => (DP_WAITS_READER, Some(*rank)),
            WaitsFor::PeerToRead => (DP_WAITS_PEER_TO_READ, None),
            WaitsFor::PeerToWrite => (DP_WAITS_PEER_TO_WRITE, None),
        };
        let mut peer = [0; PEER_BYTES];
        for (to, from) in peer[..PEER_BYTES - 1].iter_mut().zip(status.peer.bytes()) {
            // Signed on x86-64, unsigned on aarch64.
            *to = c_char::from_ne_bytes([from]);
        }
        StreamState {
            size: size_of::<StreamState>(),
            read_bytes: status.read.bytes,
            written_bytes: status.written.bytes,
            read_bytes_per_s: status.read.bytes_per_s,
            written_bytes_per_s: status.written.bytes_per_s,
            open_ns: nanoseconds(status.open_for),
            waited_ns: nanoseconds(status.waited),
            waits_for,
            rank: rank.and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1),
            peer,
        }
    }
}

/// Stores the state of a stream: bytes, rates, and who waits for whom.
///
/// # Safety
/// `status` points to a struct of the size that its first member states.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dp_stream_status(stream: c_int, status: *mut StreamState) -> c_int {
    call("dp_stream_status", || {
        // SAFETY: the caller guarantees this by contract.
        unsafe { ffi::read_struct(status.cast_const()) }?;
        let state = with(stream, Stream::status)?;
        // SAFETY: the caller guarantees this by contract.
        unsafe { ffi::write_struct(status, &state.into()) }?;
        Ok(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use dipole_node::Address;
    use dipole_streams::Volume;
    use std::ffi::CStr;

    #[test]
    fn the_peer_of_a_state_ends_with_zero_and_the_rank_is_the_first_awaited() {
        let status = |waits_for, peer: &str| StreamStatus {
            at: Address::new(1, 501),
            ranks: Vec::new(),
            peer: peer.into(),
            read: Volume::default(),
            written: Volume::default(),
            open_for: Duration::from_secs(1),
            waits_for,
            waited: Duration::ZERO,
        };
        let state = StreamState::from(status(WaitsFor::Data(vec![3, 4]), &"x".repeat(100)));
        assert_eq!((state.waits_for, state.rank), (DP_WAITS_DATA, 3));
        let bytes = state.peer.map(|byte| byte.to_ne_bytes()[0]);
        let peer = CStr::from_bytes_until_nul(&bytes).expect("it ends");
        assert_eq!(peer.to_bytes().len(), PEER_BYTES - 1);
        let state = StreamState::from(status(WaitsFor::PeerToRead, "a:1"));
        assert_eq!((state.waits_for, state.rank), (DP_WAITS_PEER_TO_READ, -1));
    }
}

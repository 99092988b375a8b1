//! The peers: small programs on plain sockets or plain memory that do the same work as Dipole in the
//! same run.
//!
//! For a fair comparison all copy in once (from the sender's message) and out once (to where the
//! receiver reads it), are pinned alike, wait alike and check contents with the same code, and use
//! their interface as well as possible (batches, segmentation, `TCP_NODELAY`, large buffers).

mod buffer;
pub mod bytes;
pub mod datagrams;
pub mod frames;
pub mod pipe;
pub mod readv;
pub mod shm;
pub mod tcp;
pub mod udp;
pub mod udp_gso;
pub mod unix;

use std::io;
use std::time::Duration;

use crate::channel::broken;

/// Sends the ports of this side to the other side and waits for its ports.
pub type Meet = fn(Vec<u16>) -> io::Result<Vec<u16>>;

/// Returns the single port of the other side.
pub fn only_port(ports: &[u16]) -> io::Result<u16> {
    match ports {
        [port] => Ok(*port),
        _ => Err(broken(format!(
            "one port expected from the other side, not {ports:?}"
        ))),
    }
}

/// Time limit of a blocking call that waits for a datagram. Streams have none, because they
/// retransmit.
const PATIENCE: Duration = Duration::from_millis(500);

/// Converts "would block" of a non-blocking socket to `None`, and of a blocking one to a timeout.
fn not_now<T>(spins: bool, doing: &str, result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            if spins {
                Ok(None)
            } else {
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("{doing}: nothing happened; is the other side alive?"),
                ))
            }
        }
        Err(error) => Err(error),
    }
}

//! The peers: small programs on plain sockets or plain memory that do the same
//! work as Dipole in the same run.
//!
//! Fair means: one copy in (from the sender's message) and one copy out (to
//! where the receiver reads it), pinned alike, waiting alike, the contents
//! checked alike by the same workload code, and each used as well as its
//! interface allows (batches, segmentation, `TCP_NODELAY`, large buffers).

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

/// Tells the other side at which ports this one waits, once it does, and waits for its ports.
pub type Meet = fn(Vec<u16>) -> io::Result<Vec<u16>>;

/// The one port that the other side is to wait at.
pub fn only_port(ports: &[u16]) -> io::Result<u16> {
    match ports {
        [port] => Ok(*port),
        _ => Err(broken(format!(
            "one port expected from the other side, not {ports:?}"
        ))),
    }
}

/// How long a blocking call waits for a datagram before it reports silence. A stream waits as
/// long as anything may take: it repeats by itself.
const PATIENCE: Duration = Duration::from_millis(500);

/// "Not now" of a non-blocking socket becomes `None`; of a blocking one it is a time-out.
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

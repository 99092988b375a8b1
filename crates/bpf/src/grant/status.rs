//! The status of a broker, which root and the broker's own user read at a socket of its own.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long a broker may take to send its status.
const TIMEOUT: Duration = Duration::from_secs(2);
const MAX_STATUS_BYTES: u64 = 1 << 24;

/// Current grants of a broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokerStatus {
    /// Path of the socket to which clients connect.
    pub socket: String,
    /// Interfaces of the policy.
    pub interfaces: Vec<InterfaceStatus>,
    /// Rings that exist, including those whose grants have ended.
    pub rings: u32,
    /// Number of requests refused.
    pub refused: u64,
}

/// Current grants on one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceStatus {
    /// Name of the interface.
    pub name: String,
    /// Hook at which the program is attached, if it is.
    pub attached: Option<String>,
    /// Users that have grants.
    pub users: Vec<UserStatus>,
    /// Packets for granted rings since the program was attached, by outcome.
    pub counters: BTreeMap<String, u64>,
    /// Frames of granted raw sockets that were dropped.
    pub refused_frames: u64,
}

/// Current grants of one user on one interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserStatus {
    /// User id.
    pub uid: u32,
    /// Number of rings granted to this user.
    pub rings: u32,
    /// Bytes of all rings.
    pub bytes: u64,
    /// Number of raw sockets.
    pub senders: u32,
}

/// Path of the status socket of the broker at `broker`.
#[must_use]
pub fn socket_path(broker: &Path) -> PathBuf {
    let mut path = broker.as_os_str().to_owned();
    path.push(".status");
    path.into()
}

/// Reads the status of the broker at `broker`.
///
/// # Errors
/// `NotFound` or `ConnectionRefused` if no broker runs, `PermissionDenied` for other users,
/// `InvalidData` if the broker is of another version.
pub fn read_status(broker: &Path) -> io::Result<BrokerStatus> {
    let stream = UnixStream::connect(socket_path(broker))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut bytes = Vec::new();
    stream.take(MAX_STATUS_BYTES).read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl BrokerStatus {
    /// The bytes that [`read_status`] expects.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, Vec::new()).expect("memory takes any bytes")
    }
}

//! Why the fast path of an interface cannot be opened.

use std::fmt;
use std::io;
use std::net::IpAddr;

use super::grant::GrantError;
use super::hook::HookError;
use super::options::RING_BYTES;

/// Why an interface has no fast path.
#[derive(Debug)]
pub enum BpfError {
    /// The address is a loopback address: there is no interface to attach to.
    Loopback {
        /// The address.
        ip: IpAddr,
    },
    /// The interfaces cannot be listed, or none has the address.
    NoInterface {
        /// The address.
        ip: IpAddr,
        /// The kernel's error.
        cause: io::Error,
    },
    /// This process lacks the capabilities, and no broker granted a ring.
    NotGranted(GrantError),
    /// The program cannot be loaded or attached.
    Hook(HookError),
    /// The ring cannot be created or mapped.
    Ring {
        /// The interface.
        interface: String,
        /// The ring's size.
        bytes: u32,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The AF_XDP socket cannot be opened.
    Queue(io::Error),
    /// Raw frames cannot be sent.
    Raw {
        /// The interface.
        interface: String,
        /// The kernel's error.
        cause: io::Error,
    },
}

impl fmt::Display for BpfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BpfError::Loopback { ip } => write!(
                f,
                "cannot open the bpf link on {ip}: loopback has no network interface to attach to; bind the \
                 address of an interface"
            ),
            BpfError::NoInterface { ip, cause } => write!(
                f,
                "cannot open the bpf link on {ip}: no interface found: {cause}; see `ip addr`"
            ),
            BpfError::NotGranted(cause) => write!(
                f,
                "cannot open the bpf link: it needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, or a grant \
                 from a broker: {cause}"
            ),
            BpfError::Hook(error) => error.fmt(f),
            BpfError::Ring {
                interface,
                bytes,
                cause,
            } => write!(
                f,
                "cannot open the bpf link on {interface}: cannot create a ring of {bytes} \
                 bytes: {cause}; choose a power of two from {} to {} (DIPOLE_RING_BYTES), and see the \
                 memory limit of the control group",
                RING_BYTES.start(),
                RING_BYTES.end()
            ),
            BpfError::Queue(cause) => write!(f, "cannot open the bpf link: {cause}"),
            BpfError::Raw { interface, cause } => write!(
                f,
                "cannot open the bpf link on {interface}: sending raw frames is refused: {cause}; it \
                 needs CAP_NET_RAW"
            ),
        }
    }
}

impl std::error::Error for BpfError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BpfError::Loopback { .. } => None,
            BpfError::NoInterface { cause, .. }
            | BpfError::Ring { cause, .. }
            | BpfError::Queue(cause)
            | BpfError::Raw { cause, .. } => Some(cause),
            BpfError::NotGranted(cause) => Some(cause),
            BpfError::Hook(error) => Some(error),
        }
    }
}

//! Errors of opening the fast path of an interface.

use std::io;
use std::net::IpAddr;

use super::grant::GrantError;
use super::hook::HookError;
use super::options::RING_BYTES;

/// Why an interface has no fast path.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// A loopback address, which has no interface to attach to.
    #[error(
        "cannot open the bpf link on {ip}: loopback has no network interface to attach to; bind the \
         address of an interface"
    )]
    Loopback {
        /// Local address of the link.
        ip: IpAddr,
    },
    /// The interfaces cannot be listed, or none of them has the address.
    #[error("cannot open the bpf link on {ip}: no interface found: {cause}; see `ip addr`")]
    NoInterface {
        /// Local address of the link.
        ip: IpAddr,
        /// Error returned by the kernel.
        #[source]
        cause: io::Error,
    },
    /// This process lacks the capabilities, and no broker granted a ring.
    #[error(
        "cannot open the bpf link: it needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, or a grant \
         from a broker: {0}"
    )]
    NotGranted(#[source] GrantError),
    /// The program cannot be loaded or attached.
    #[error(transparent)]
    Hook(HookError),
    /// The ring cannot be created or mapped.
    #[error(
        "cannot open the bpf link on {interface}: cannot create a ring of {bytes} \
         bytes: {cause}; choose a power of two from {} to {} (DIPOLE_RING_BYTES), and see the \
         memory limit of the control group",
        RING_BYTES.start(), RING_BYTES.end()
    )]
    Ring {
        /// Name of the interface.
        interface: String,
        /// Requested size of the ring.
        bytes: u32,
        /// Error returned by the kernel.
        #[source]
        cause: io::Error,
    },
    /// Raw frames cannot be sent.
    #[error(
        "cannot open the bpf link on {interface}: sending raw frames is refused: {cause}; it \
         needs CAP_NET_RAW"
    )]
    Raw {
        /// Name of the interface.
        interface: String,
        /// Error returned by the kernel.
        #[source]
        cause: io::Error,
    },
}

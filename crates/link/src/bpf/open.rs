//! Opening the short ways of a card.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

use super::CardId;
use super::hook::{Hook, HookError, create_ring};
use super::inlet::Inlet;
use super::loan::LoanError;
use super::neighbours::Neighbours;
use super::outlet::Outlet;
use super::raw::RawSender;
use crate::udp::Udp;
use crate::{Class, Link, sys};

/// Bytes of a process's ring on each card, unless it says otherwise.
pub const DEFAULT_RING_BYTES: u32 = 1 << 20;
/// Bytes of the smallest and of the largest ring.
pub const RING_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=256 << 20;

/// How to open the short ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfOptions {
    /// Bytes of the ring: a power of two within [`RING_BYTES`].
    pub ring_bytes: u32,
}

impl Default for BpfOptions {
    fn default() -> Self {
        BpfOptions {
            ring_bytes: DEFAULT_RING_BYTES,
        }
    }
}

/// The short ways of one card.
#[derive(Debug)]
pub struct Shortcuts {
    pub(super) inlet: Inlet,
    pub(super) outlet: Option<Outlet>,
}

/// Why a card has no short ways.
#[derive(Debug)]
pub enum BpfError {
    /// The address is loopback's, which no packet from elsewhere reaches.
    Loopback {
        /// Which.
        ip: IpAddr,
    },
    /// The interfaces cannot be listed, or none has the address.
    NoCard {
        /// Which.
        ip: IpAddr,
        /// What the kernel said.
        cause: io::Error,
    },
    /// This process has not the capabilities, and nobody lends.
    NotLent(LoanError),
    /// The kernel's part cannot be put at the card.
    Hook(HookError),
    /// The ring cannot be had.
    Ring {
        /// At which card.
        card: String,
        /// How large.
        bytes: u32,
        /// What the kernel said.
        cause: io::Error,
    },
    /// Raw frames cannot be sent.
    Raw {
        /// By which card.
        card: String,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl fmt::Display for BpfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BpfError::Loopback { ip } => write!(
                f,
                "there is no bpf link on {ip}: it begins at a card, and loopback has none"
            ),
            BpfError::NoCard { ip, cause } => write!(
                f,
                "cannot open the bpf link on {ip}: its card is not found: {cause}; see `ip addr`"
            ),
            BpfError::NotLent(cause) => write!(
                f,
                "cannot open the bpf link: it needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW, or an \
                 agent that lends: {cause}"
            ),
            BpfError::Hook(error) => error.fmt(f),
            BpfError::Ring { card, bytes, cause } => write!(
                f,
                "cannot open the bpf link on {card}: a ring of {bytes} bytes cannot be had: \
                 {cause}; choose a power of two from {} to {} (DIPOLE_RING_BYTES), and see the \
                 memory limit of the control group",
                RING_BYTES.start(),
                RING_BYTES.end()
            ),
            BpfError::Raw { card, cause } => write!(
                f,
                "cannot open the bpf link on {card}: sending raw frames is refused: {cause}; it \
                 needs CAP_NET_RAW"
            ),
        }
    }
}

impl std::error::Error for BpfError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BpfError::Loopback { .. } => None,
            BpfError::NoCard { cause, .. }
            | BpfError::Ring { cause, .. }
            | BpfError::Raw { cause, .. } => Some(cause),
            BpfError::NotLent(cause) => Some(cause),
            BpfError::Hook(error) => Some(error),
        }
    }
}

impl Shortcuts {
    /// Opens them for a UDP link by this process's own capabilities.
    ///
    /// # Errors
    /// See [`BpfError`]; nothing stays attached.
    pub fn open(udp: &Udp, options: &BpfOptions) -> Result<Shortcuts, BpfError> {
        let small = udp.local(Class::Small);
        let ip = small.ip();
        if ip.is_loopback() {
            return Err(BpfError::Loopback { ip });
        }
        let (card, scope_id) = card_of(ip).map_err(|cause| BpfError::NoCard { ip, cause })?;
        let outlet = own_outlet(&card, ip)?;
        let ring_failed = |cause| BpfError::Ring {
            card: card.name.clone(),
            bytes: options.ring_bytes,
            cause,
        };
        let ring = create_ring(options.ring_bytes).map_err(ring_failed)?;
        let hook = Hook::attach_best(&card).map_err(BpfError::Hook)?;
        hook.add(ip, small.port(), ring.as_fd())
            .map_err(BpfError::Hook)?;
        Ok(Shortcuts {
            inlet: Inlet::own(ring, hook, scope_id).map_err(ring_failed)?,
            outlet: Some(outlet),
        })
    }

    /// Borrows them from the lender that listens there, if there is one, else opens them.
    ///
    /// # Errors
    /// See [`BpfError`]; nothing stays borrowed or attached.
    pub fn find(udp: &Udp, lender: &Path, options: &BpfOptions) -> Result<Shortcuts, BpfError> {
        let ip = udp.local(Class::Small).ip();
        if ip.is_loopback() {
            return Err(BpfError::Loopback { ip });
        }
        match Shortcuts::borrow(udp, lender, options) {
            Ok(mut shortcuts) => {
                // Who may send any frame need not be lent a socket for it.
                if shortcuts.outlet.is_none()
                    && is_permitted()
                    && let Ok((card, _)) = card_of(ip)
                {
                    shortcuts.outlet = own_outlet(&card, ip).ok();
                }
                Ok(shortcuts)
            }
            Err(_) if is_permitted() => Shortcuts::open(udp, options),
            Err(cause) => Err(BpfError::NotLent(cause)),
        }
    }
}

/// Raw frames by a socket of this process.
fn own_outlet(card: &CardId, ip: IpAddr) -> Result<Outlet, BpfError> {
    let raw = |cause| BpfError::Raw {
        card: card.name.clone(),
        cause,
    };
    let neighbours = Neighbours::open(card, ip).map_err(raw)?;
    let sender = RawSender::open(card, true).map_err(raw)?;
    Ok(Outlet::own(neighbours, sender))
}

/// The interface that has an address, and the scope of a link-local one.
///
/// # Errors
/// There is none, or the interfaces cannot be listed.
pub fn card_of(ip: IpAddr) -> io::Result<(CardId, u32)> {
    let all = sys::interface_addresses()?;
    let mut all = all.into_iter();
    let Some(found) = all.find(|address| address.ip == ip) else {
        return Err(io::Error::new(
            io::ErrorKind::AddrNotAvailable,
            "no interface has it",
        ));
    };
    let name = String::from_utf8_lossy(&found.name).into_owned();
    let index = rustix::net::netdevice::name_to_index(&udp_socket()?, &name)?;
    Ok((CardId { index, name }, found.scope_id))
}

fn udp_socket() -> io::Result<std::net::UdpSocket> {
    std::net::UdpSocket::bind((std::net::Ipv4Addr::UNSPECIFIED, 0))
}

/// True if this process has the capabilities that the bpf link needs: CAP_NET_ADMIN,
/// CAP_NET_RAW, and CAP_BPF or CAP_SYS_ADMIN.
#[must_use]
pub fn is_permitted() -> bool {
    const NET_ADMIN: u32 = 12;
    const NET_RAW: u32 = 13;
    const SYS_ADMIN: u32 = 21;
    const BPF: u32 = 39;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let effective = lines.find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| {
        let has = |capability: u32| bits >> capability & 1 == 1;
        has(NET_ADMIN) && has(NET_RAW) && (has(BPF) || has(SYS_ADMIN))
    })
}

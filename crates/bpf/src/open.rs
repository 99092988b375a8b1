//! Opening the short ways of a card.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::CardId;
use super::calibrate::{Calibration, Choices, Receive, Send};
use super::hook::{Hook, HookError, Place, create_ring};
use super::inlet::Inlet;
use super::loan::LoanError;
use super::neighbours::Neighbours;
use super::outlet::Outlet;
use super::raw::RawSender;
use super::xsk::{Xsk, XskHook, XskOptions};
use dipole_link::udp::Udp;
use dipole_link::{Class, Link, sys};

/// Bytes of a process's ring on each card, unless it says otherwise.
pub const DEFAULT_RING_BYTES: u32 = 1 << 20;
/// Bytes of the smallest and of the largest ring.
pub const RING_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=256 << 20;

/// How to open the short ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfOptions {
    /// Bytes of the ring: a power of two within [`RING_BYTES`].
    pub ring_bytes: u32,
    /// Folders in which there may be a [`Calibration`] of the card; the first that has a good
    /// one counts.
    pub calibrations: Vec<PathBuf>,
    /// What is taken whatever a calibration says.
    pub forced: Forced,
}

/// What somebody wants to try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forced {
    /// By what small packets come. AF_XDP takes the card's first queue.
    pub receive: Option<Receive>,
    /// By what small packets leave.
    pub send: Option<Send>,
}

impl Default for BpfOptions {
    fn default() -> Self {
        BpfOptions {
            ring_bytes: DEFAULT_RING_BYTES,
            calibrations: Vec::new(),
            forced: Forced::default(),
        }
    }
}

impl BpfOptions {
    /// What to do on a card: as calibrated, or as usual.
    fn choices(&self, card: &CardId) -> Choices {
        let mut choices = Choices::default();
        for folder in &self.calibrations {
            match Calibration::load(folder, card) {
                Ok(None) => {}
                Ok(Some(found)) => {
                    choices = found.choices();
                    break;
                }
                Err(cause) => tracing::warn!(
                    "a calibration is not used: {cause}; `dipole doctor --calibrate` makes \
                     another"
                ),
            }
        }
        choices.receive = self.forced.receive.unwrap_or(choices.receive);
        choices.send = self.forced.send.unwrap_or(choices.send);
        choices
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
    /// The AF_XDP socket that was asked for cannot be had.
    Queue(io::Error),
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
            BpfError::Queue(cause) => write!(f, "cannot open the bpf link: {cause}"),
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
            | BpfError::Queue(cause)
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
        let choices = options.choices(&card);
        let inlet = own_inlet(&card, udp, options, choices.receive, scope_id)?;
        // The queue goes to one direction.
        let send = match inlet.is_queue() {
            true => Send::AfPacket,
            false => choices.send,
        };
        let outlet = own_outlet(&card, ip, options, Choices { send, ..choices })?;
        Ok(Shortcuts {
            inlet,
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
        // Nobody lends a queue.
        if options.forced.receive == Some(Receive::AfXdp) {
            return Shortcuts::open(udp, options);
        }
        match Shortcuts::borrow(udp, lender, options) {
            Ok(mut shortcuts) => {
                // Who may send any frame need not be lent a socket for it.
                if shortcuts.outlet.is_none()
                    && is_permitted()
                    && let Ok((card, _)) = card_of(ip)
                {
                    let choices = options.choices(&card);
                    shortcuts.outlet = own_outlet(&card, ip, options, choices).ok();
                }
                Ok(shortcuts)
            }
            Err(_) if is_permitted() => Shortcuts::open(udp, options),
            Err(cause) => Err(BpfError::NotLent(cause)),
        }
    }
}

/// What small packets come by, fed by this process's own program.
fn own_inlet(
    card: &CardId,
    udp: &Udp,
    options: &BpfOptions,
    receive: Receive,
    scope_id: u32,
) -> Result<Inlet, BpfError> {
    let small = udp.local(Class::Small);
    if receive == Receive::AfXdp {
        match queue_inlet(card, small, scope_id) {
            Ok(inlet) => return Ok(inlet),
            Err(cause) if options.forced.receive.is_some() => return Err(BpfError::Queue(cause)),
            Err(cause) => tracing::debug!("a ring instead: {cause}"),
        }
    }
    let ring_failed = |cause| BpfError::Ring {
        card: card.name.clone(),
        bytes: options.ring_bytes,
        cause,
    };
    let ring = create_ring(options.ring_bytes).map_err(ring_failed)?;
    let hook = match receive.place() {
        // There is one program at XDP, so somebody else may have the place.
        Some(Place::XdpGeneric) if options.forced.receive.is_some() => {
            Hook::attach(card, Place::XdpGeneric)
        }
        Some(Place::XdpGeneric) => {
            Hook::attach(card, Place::XdpGeneric).or_else(|_| Hook::attach_best(card))
        }
        _ => Hook::attach_best(card),
    };
    let hook = hook.map_err(BpfError::Hook)?;
    hook.add(small.ip(), small.port(), ring.as_fd())
        .map_err(BpfError::Hook)?;
    Inlet::own(ring, hook, scope_id).map_err(ring_failed)
}

/// An AF_XDP socket; the card itself works on its memory if it can.
fn queue_inlet(card: &CardId, small: SocketAddr, scope_id: u32) -> io::Result<Inlet> {
    let options = XskOptions {
        zero_copy: true,
        ..XskOptions::default()
    };
    let xsk = Xsk::open(card, &options)?;
    let hook = XskHook::attach(card, &xsk, small)?;
    Ok(Inlet::queue(xsk, hook, scope_id))
}

/// Raw frames by a socket of this process.
fn own_outlet(
    card: &CardId,
    ip: IpAddr,
    options: &BpfOptions,
    choices: Choices,
) -> Result<Outlet, BpfError> {
    let raw = |cause| BpfError::Raw {
        card: card.name.clone(),
        cause,
    };
    let neighbours = Neighbours::open(card, ip).map_err(raw)?;
    let bulk_frames = choices.raw_run_frames;
    if choices.send == Send::AfXdp {
        let send_only = XskOptions {
            receive: false,
            ..XskOptions::default()
        };
        match Xsk::open(card, &send_only) {
            Ok(xsk) => return Ok(Outlet::queue(neighbours, xsk, bulk_frames)),
            Err(cause) if options.forced.send.is_some() => return Err(BpfError::Queue(cause)),
            Err(cause) => tracing::debug!("AF_PACKET instead: {cause}"),
        }
    }
    let sender = RawSender::open(card, true).map_err(raw)?;
    Ok(Outlet::own(neighbours, sender, bulk_frames))
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

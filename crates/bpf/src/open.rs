//! Opening the short ways of a card.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;

use super::CardId;
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

/// Longest run of full bulk frames to one destination that is cheaper as raw frames than as one
/// message of the socket. (`docs/bpf.md`: one raw frame 2.5 us, by the socket 3.6; two 5.1 and 4.1.)
pub const DEFAULT_RAW_RUN_FRAMES: usize = 1;

/// How small packets are received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxMode {
    /// A ring that is filled at TCX, or at generic XDP where the kernel has no TCX.
    #[default]
    Ring,
    /// A ring that is filled at generic XDP.
    XdpRing,
    /// An AF_XDP socket, which takes the interface's first queue.
    AfXdp,
}

/// How raw frames are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxMode {
    /// AF_PACKET, bypassing the queueing discipline.
    #[default]
    AfPacket,
    /// An AF_XDP socket, copied, which takes the interface's first queue.
    AfXdp,
}

/// The word for it in configurations.
impl std::str::FromStr for RxMode {
    type Err = ();

    fn from_str(text: &str) -> Result<RxMode, ()> {
        match text {
            "ring" => Ok(RxMode::Ring),
            "xdp-ring" => Ok(RxMode::XdpRing),
            "af-xdp" => Ok(RxMode::AfXdp),
            _ => Err(()),
        }
    }
}

/// The word for it in configurations.
impl std::str::FromStr for TxMode {
    type Err = ();

    fn from_str(text: &str) -> Result<TxMode, ()> {
        match text {
            "af-packet" => Ok(TxMode::AfPacket),
            "af-xdp" => Ok(TxMode::AfXdp),
            _ => Err(()),
        }
    }
}

/// How to open the short ways. The defaults are the fastest on every machine measured so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BpfOptions {
    /// Bytes of the ring: a power of two within [`RING_BYTES`].
    pub ring_bytes: u32,
    /// How small packets are received.
    pub receive: RxMode,
    /// How raw frames are sent.
    pub send: TxMode,
    /// The longest run of bulk frames to one destination that leaves as raw frames.
    pub raw_run_frames: usize,
}

impl Default for BpfOptions {
    fn default() -> Self {
        BpfOptions {
            ring_bytes: DEFAULT_RING_BYTES,
            receive: RxMode::default(),
            send: TxMode::default(),
            raw_run_frames: DEFAULT_RAW_RUN_FRAMES,
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
        let inlet = own_inlet(&card, udp, options, scope_id)?;
        let outlet = own_outlet(&card, ip, options)?;
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
        if options.receive == RxMode::AfXdp || options.send == TxMode::AfXdp {
            return Shortcuts::open(udp, options);
        }
        match Shortcuts::borrow(udp, lender, options) {
            Ok(mut shortcuts) => {
                // Who may send any frame need not be lent a socket for it.
                if shortcuts.outlet.is_none()
                    && is_permitted()
                    && let Ok((card, _)) = card_of(ip)
                {
                    shortcuts.outlet = own_outlet(&card, ip, options).ok();
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
    scope_id: u32,
) -> Result<Inlet, BpfError> {
    let small = udp.local(Class::Small);
    if options.receive == RxMode::AfXdp {
        return queue_inlet(card, small, scope_id).map_err(BpfError::Queue);
    }
    let ring_failed = |cause| BpfError::Ring {
        card: card.name.clone(),
        bytes: options.ring_bytes,
        cause,
    };
    let ring = create_ring(options.ring_bytes).map_err(ring_failed)?;
    let hook = match options.receive {
        RxMode::XdpRing => Hook::attach(card, Place::XdpGeneric),
        RxMode::Ring | RxMode::AfXdp => Hook::attach_best(card),
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
fn own_outlet(card: &CardId, ip: IpAddr, options: &BpfOptions) -> Result<Outlet, BpfError> {
    let raw = |cause| BpfError::Raw {
        card: card.name.clone(),
        cause,
    };
    let neighbours = Neighbours::open(card, ip).map_err(raw)?;
    let bulk_frames = options.raw_run_frames;
    match options.send {
        TxMode::AfPacket => {
            let sender = RawSender::open(card, true).map_err(raw)?;
            Ok(Outlet::own(neighbours, sender, bulk_frames))
        }
        TxMode::AfXdp => {
            let send_only = XskOptions {
                receive: false,
                ..XskOptions::default()
            };
            let xsk = Xsk::open(card, &send_only).map_err(BpfError::Queue)?;
            Ok(Outlet::queue(neighbours, xsk, bulk_frames))
        }
    }
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

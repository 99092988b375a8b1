//! What the ways around the socket cost on a card, measured, and which of them to take.
//!
//! [`calibrate`] measures in well under two seconds; `send` says what it sends, and to whom.
//! A [`Calibration`] is kept in a file per card ([`Calibration::save`], [`Calibration::load`]).
//! Opening a link never measures: it reads the file, or takes the defaults.

mod choice;
mod facts;
mod figure;
mod file;
mod pair;
mod send;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

pub use choice::{Choices, DEFAULT_RAW_RUN_FRAMES};
pub use facts::CardFacts;
pub use figure::Figure;
pub use file::{FOLDER, FileError};

use super::CardId;
use super::hook::Place;
use super::neighbours::Neighbours;
use send::{Effort, Target};

/// Bytes of payload of the shorter packets that are measured; the longest fills the MTU.
pub const SIZES: [usize; 2] = [64, 1400];
/// Runs of full frames that are measured.
pub const RUNS: [usize; 4] = [1, 2, 4, 8];

const VETH: &str = "veth";

/// By what small packets come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Receive {
    /// A ring, filled at TCX.
    Tcx,
    /// A ring, filled at generic XDP.
    XdpGeneric,
    /// An AF_XDP socket, to which one queue of the card belongs.
    AfXdp,
}

impl Receive {
    /// In the order in which they are taken where nothing was measured.
    pub const ALL: [Receive; 3] = [Receive::Tcx, Receive::XdpGeneric, Receive::AfXdp];

    /// Where the program that fills the ring runs; `None` if there is no ring.
    #[must_use]
    pub fn place(self) -> Option<Place> {
        match self {
            Receive::Tcx => Some(Place::Tcx),
            Receive::XdpGeneric => Some(Place::XdpGeneric),
            Receive::AfXdp => None,
        }
    }

    /// How files and people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Receive::Tcx => "tcx",
            Receive::XdpGeneric => "xdp-generic",
            Receive::AfXdp => "af-xdp",
        }
    }
}

/// By what a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Send {
    /// A raw frame by AF_PACKET, past the kernel's queueing.
    AfPacket,
    /// A raw frame by AF_XDP, copied.
    AfXdp,
    /// The UDP socket.
    Socket,
}

impl Send {
    /// All of them.
    pub const ALL: [Send; 3] = [Send::AfPacket, Send::AfXdp, Send::Socket];

    /// How files and people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Send::AfPacket => "af-packet",
            Send::AfXdp => "af-xdp",
            Send::Socket => "socket",
        }
    }
}

/// Where the figures of the UDP socket come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketBy {
    /// Packets to the discard port of a neighbour.
    Neighbour,
    /// A private pair of virtual cards.
    Pair,
    /// Not measured.
    Nobody,
}

impl SocketBy {
    const ALL: [SocketBy; 3] = [SocketBy::Neighbour, SocketBy::Pair, SocketBy::Nobody];

    /// How files and people call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SocketBy::Neighbour => "neighbour",
            SocketBy::Pair => "private pair",
            SocketBy::Nobody => "nobody",
        }
    }
}

/// What was measured on a card. What follows from it: [`Calibration::choices`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// What it holds for.
    pub facts: CardFacts,
    /// When it was made, in seconds since 1970.
    pub made_s: u64,
    /// Where the figures of the UDP socket come from.
    pub socket_by: SocketBy,
    /// To send one packet, by way and bytes of payload.
    pub sends: BTreeMap<(Send, usize), Figure>,
    /// To send a run of so many full frames to one destination: one by one as raw frames
    /// (AF_PACKET), or by the socket as one message. On a private pair of virtual cards where there
    /// is no neighbour, or the card is a veth, where the other end's work is part of sending.
    pub runs: BTreeMap<(Send, usize), Figure>,
    /// From sending a packet until it can be read, by place and bytes of payload, on a private
    /// pair of virtual cards; empty if none could be made.
    pub receives: BTreeMap<(Receive, usize), Figure>,
}

impl Calibration {
    /// True if some figure spreads so much that the machine was too busy.
    #[must_use]
    pub fn is_noisy(&self) -> bool {
        let sent = self.sends.values().chain(self.runs.values());
        sent.chain(self.receives.values()).any(Figure::is_noisy)
    }
}

/// Why a card cannot be calibrated.
#[derive(Debug)]
pub enum CalibrateError {
    /// It is none, or carries no Ethernet.
    Card {
        /// Which.
        card: String,
        /// What the kernel said.
        cause: io::Error,
    },
    /// Nothing can be sent by it.
    Send {
        /// Which.
        card: String,
        /// What the kernel said.
        cause: io::Error,
    },
}

impl fmt::Display for CalibrateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CalibrateError::Card { card, cause } => {
                write!(f, "{card} cannot be calibrated: {cause}")
            }
            CalibrateError::Send { card, cause } => write!(
                f,
                "{card} cannot be calibrated: raw frames cannot be sent: {cause}; it needs \
                 CAP_NET_RAW, and a card that is up"
            ),
        }
    }
}

impl std::error::Error for CalibrateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            CalibrateError::Card { cause, .. } | CalibrateError::Send { cause, .. } => Some(cause),
        }
    }
}

/// Measures on the card that has the address. The socket's packets go to the first of the peers
/// that is a neighbour on this card, or to any other neighbour that the kernel knows. With
/// CAP_SYS_ADMIN ways to receive are compared on virtual cards in a network namespace that only
/// this process sees.
///
/// # Errors
/// See [`CalibrateError`].
pub fn calibrate(
    card: &CardId,
    own: IpAddr,
    peers: &[IpAddr],
) -> Result<Calibration, CalibrateError> {
    let tell = |cause| CalibrateError::Card {
        card: card.name.clone(),
        cause,
    };
    let facts = CardFacts::of(card).map_err(tell)?;
    let mut ways = Neighbours::open(card, own).map_err(tell)?;
    let neighbour = send::neighbour(card, &mut ways, own, peers);
    let target = Target::to_itself(&facts, own, neighbour);
    let measured = send::measure(card, &target, Effort::ON_A_NETWORK);
    let mut sent = measured.map_err(|cause| CalibrateError::Send {
        card: card.name.clone(),
        cause,
    })?;
    let mut socket_by = match neighbour {
        Some(_) => SocketBy::Neighbour,
        None => SocketBy::Nobody,
    };
    let mut receives = BTreeMap::new();
    match pair::measure(facts.mtu, neighbour.is_none() || facts.driver == VETH) {
        Ok(found) => {
            receives = found.receives;
            if let Some(instead) = found.sent {
                // Both ways to the same place, since they are compared.
                sent.runs = instead.runs;
                if neighbour.is_none() {
                    let socket = |((way, _), _): &((Send, usize), Figure)| *way == Send::Socket;
                    let single = instead.single.into_iter();
                    sent.single.extend(single.filter(socket));
                    socket_by = SocketBy::Pair;
                }
            }
        }
        Err(cause) => {
            tracing::debug!(card = %card.name, %cause, "no private pair of cards to measure on");
        }
    }
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(Calibration {
        facts,
        made_s: since_1970.map_or(0, |since| since.as_secs()),
        socket_by,
        sends: sent.single,
        runs: sent.runs,
        receives,
    })
}

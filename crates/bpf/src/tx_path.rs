//! The send path: raw frames to every destination that this interface has a route to.

use std::io;
use std::net::SocketAddr;

use super::neighbours::{Neighbours, Route};
use super::raw::{RawFrame, RawSender, Sent};
use super::xsk::Xsk;
use dipole_link::Outgoing;

/// See the module.
#[derive(Debug)]
pub(super) struct TxPath {
    neighbours: Neighbours,
    sender: Sender,
    /// Longest run of full bulk frames that leaves here.
    bulk_frames: usize,
}

/// What hands the frames to the interface.
#[derive(Debug)]
enum Sender {
    Packet(RawSender),
    /// A socket that a broker has opened; only small packets may leave by it.
    Delegated(RawSender),
    AfXdp(Box<Xsk>),
}

impl Sender {
    /// Hands a frame over; [`flush`](Self::flush) has to follow.
    #[inline]
    fn put(
        &mut self,
        route: &Route,
        from: SocketAddr,
        to: SocketAddr,
        payload: [&[u8]; 2],
    ) -> io::Result<Sent> {
        match self {
            Sender::Packet(raw) | Sender::Delegated(raw) => raw.send(route, from, to, payload),
            Sender::AfXdp(xsk) => Ok(xsk.put(&RawFrame {
                route: *route,
                from,
                to,
                payload,
            })),
        }
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sender::Packet(_) | Sender::Delegated(_) => Ok(()),
            Sender::AfXdp(xsk) => xsk.flush(),
        }
    }
}

impl TxPath {
    /// By a socket of this process, including bulk runs of at most `bulk_frames` frames.
    pub(super) fn own(neighbours: Neighbours, sender: RawSender, bulk_frames: usize) -> TxPath {
        TxPath {
            neighbours,
            sender: Sender::Packet(sender),
            bulk_frames,
        }
    }

    /// By a socket that a broker has opened.
    pub(super) fn delegated(neighbours: Neighbours, sender: RawSender) -> TxPath {
        TxPath {
            neighbours,
            sender: Sender::Delegated(sender),
            bulk_frames: 0,
        }
    }

    /// By an AF_XDP socket.
    pub(super) fn af_xdp(neighbours: Neighbours, xsk: Xsk, bulk_frames: usize) -> TxPath {
        TxPath {
            neighbours,
            sender: Sender::AfXdp(Box::new(xsk)),
            bulk_frames,
        }
    }

    /// True if it ends with the grant.
    pub(super) fn is_delegated(&self) -> bool {
        matches!(self.sender, Sender::Delegated(_))
    }

    /// True if it is an AF_XDP socket.
    pub(super) fn is_af_xdp(&self) -> bool {
        matches!(self.sender, Sender::AfXdp(_))
    }

    /// Longest run of full bulk frames to one destination that leaves here.
    #[inline]
    pub(super) fn bulk_frames(&self) -> usize {
        self.bulk_frames
    }

    /// Sends the leading frames whose destination has a route here; returns how many. The
    /// next one is for the UDP socket, which can reach every destination and reports errors.
    #[inline]
    pub(super) fn send(&mut self, now_ns: u64, own: SocketAddr, run: &[Outgoing<'_>]) -> usize {
        self.neighbours.follow(now_ns);
        let mut taken = 0;
        for frame in run {
            let Some(route) = self.neighbours.route(now_ns, frame.to.ip()) else {
                break;
            };
            if frame.is_empty() {
                break;
            }
            let payload = [frame.head, frame.payload];
            match self.sender.put(route, own, frame.to, payload) {
                Ok(Sent::Taken) => taken += 1,
                Ok(Sent::Full | Sent::NotThisWay) => break,
                Err(cause) => {
                    tracing::warn!("a raw frame to {} takes the socket: {cause}", frame.to);
                    break;
                }
            }
        }
        if let Err(cause) = self.sender.flush() {
            tracing::warn!("raw frames may be lost: {cause}");
        }
        taken
    }
}

//! The way out: raw frames to whoever a route leads to from this card.

use std::io;
use std::net::SocketAddr;

use super::neighbours::{Neighbours, Route};
use super::raw::{RawFrame, RawSender, Sent};
use super::xsk::Xsk;
use dipole_link::Outgoing;

/// See the module.
#[derive(Debug)]
pub struct Outlet {
    neighbours: Neighbours,
    sender: Sender,
    /// Longest run of full bulk frames that leaves here.
    bulk_frames: usize,
}

/// What hands the frames to the card.
#[derive(Debug)]
enum Sender {
    Packet(RawSender),
    /// A socket that a lender has opened; only small packets may leave by it.
    Borrowed(RawSender),
    /// This process's alone.
    Queue(Box<Xsk>),
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
            Sender::Packet(raw) | Sender::Borrowed(raw) => raw.send(route, from, to, payload),
            Sender::Queue(xsk) => Ok(xsk.put(&RawFrame {
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
            Sender::Packet(_) | Sender::Borrowed(_) => Ok(()),
            Sender::Queue(xsk) => xsk.flush(),
        }
    }
}

impl Outlet {
    /// By a socket of this process, bulk runs of at most so many frames included.
    pub(super) fn own(neighbours: Neighbours, sender: RawSender, bulk_frames: usize) -> Outlet {
        Outlet {
            neighbours,
            sender: Sender::Packet(sender),
            bulk_frames,
        }
    }

    /// By a socket that a lender has opened.
    pub(super) fn borrowed(neighbours: Neighbours, sender: RawSender) -> Outlet {
        Outlet {
            neighbours,
            sender: Sender::Borrowed(sender),
            bulk_frames: 0,
        }
    }

    /// By an AF_XDP socket.
    pub(super) fn queue(neighbours: Neighbours, xsk: Xsk, bulk_frames: usize) -> Outlet {
        Outlet {
            neighbours,
            sender: Sender::Queue(Box::new(xsk)),
            bulk_frames,
        }
    }

    /// True if it is to be given up with the loan.
    pub(super) fn is_borrowed(&self) -> bool {
        matches!(self.sender, Sender::Borrowed(_))
    }

    /// True if it is an AF_XDP socket.
    pub(super) fn is_queue(&self) -> bool {
        matches!(self.sender, Sender::Queue(_))
    }

    /// Longest run of full bulk frames to one destination that leaves here.
    #[inline]
    pub(super) fn bulk_frames(&self) -> usize {
        self.bulk_frames
    }

    /// Sends the first of these frames for which there is a way; returns how many. The
    /// next takes the socket, which knows all ways and tells what is wrong with them.
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

//! The send path: raw frames to every destination that this interface has a route to.

use std::net::SocketAddr;

use super::neighbours::Neighbours;
use super::raw::{RawSender, Sent};
use dipole_link::Outgoing;

/// A socket for raw frames, and the routes of its interface.
#[derive(Debug)]
pub(super) struct TxPath {
    neighbours: Neighbours,
    sender: RawSender,
    /// A broker has opened the socket; only small packets may be sent through it.
    delegated: bool,
    /// Longest run of full bulk frames that is sent here.
    bulk_frames: usize,
}

impl TxPath {
    /// Through a socket of this process, including bulk runs of at most `bulk_frames` frames.
    pub(super) fn own(neighbours: Neighbours, sender: RawSender, bulk_frames: usize) -> TxPath {
        TxPath {
            neighbours,
            sender,
            delegated: false,
            bulk_frames,
        }
    }

    /// Through a socket that a broker has opened.
    pub(super) fn delegated(neighbours: Neighbours, sender: RawSender) -> TxPath {
        TxPath {
            neighbours,
            sender,
            delegated: true,
            bulk_frames: 0,
        }
    }

    /// True if it ends with the grant.
    pub(super) fn is_delegated(&self) -> bool {
        self.delegated
    }

    /// Longest run of full bulk frames to one destination that is sent here.
    #[inline]
    pub(super) fn bulk_frames(&self) -> usize {
        self.bulk_frames
    }

    /// Sends the leading frames whose destination has a route here; returns their number. The
    /// next one is for the UDP socket, which can reach every destination and reports errors.
    #[inline]
    pub(super) fn send<'a>(
        &mut self,
        now_ns: u64,
        own: SocketAddr,
        run: impl Iterator<Item = Outgoing<'a>>,
    ) -> usize {
        self.neighbours.follow(now_ns);
        let mut taken = 0;
        for frame in run {
            let Some(route) = self.neighbours.route(now_ns, frame.to.ip()) else {
                break;
            };
            if frame.bytes.is_empty() {
                break;
            }
            match self.sender.send(route, own, frame.to, frame.bytes) {
                Ok(Sent::Taken) => taken += 1,
                Ok(Sent::Full | Sent::CannotSend) => break,
                Err(cause) => {
                    tracing::warn!(
                        "sending a frame to {} through the socket: {cause}",
                        frame.to
                    );
                    break;
                }
            }
        }
        taken
    }
}

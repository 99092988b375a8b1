//! The way out: raw frames to whoever a route leads to from this card.

use std::net::SocketAddr;

use super::neighbours::Neighbours;
use super::raw::{RawSender, Sent};
use crate::Outgoing;

/// See the module.
#[derive(Debug)]
pub struct Outlet {
    neighbours: Neighbours,
    sender: RawSender,
    is_borrowed: bool,
}

impl Outlet {
    /// By a socket of this process.
    pub(super) fn own(neighbours: Neighbours, sender: RawSender) -> Outlet {
        Outlet {
            neighbours,
            sender,
            is_borrowed: false,
        }
    }

    /// By a socket that a lender has opened.
    pub(super) fn borrowed(neighbours: Neighbours, sender: RawSender) -> Outlet {
        Outlet {
            neighbours,
            sender,
            is_borrowed: true,
        }
    }

    /// True if it is to be given up with the loan.
    pub(super) fn is_borrowed(&self) -> bool {
        self.is_borrowed
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
            if frame.bytes.is_empty() {
                break;
            }
            match self.sender.send(route, own, frame.to, frame.bytes) {
                Ok(Sent::Taken) => taken += 1,
                Ok(Sent::Full | Sent::NotThisWay) => break,
                Err(cause) => {
                    tracing::warn!("a raw frame to {} takes the socket: {cause}", frame.to);
                    break;
                }
            }
        }
        taken
    }
}

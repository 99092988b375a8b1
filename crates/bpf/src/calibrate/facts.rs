//! What a calibration holds for: it is worth nothing on another card or kernel.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;

use crate::{CardId, sys};
use dipole_link::sys::interface_mtu;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardFacts {
    /// The card's name.
    pub name: String,
    /// Its hardware address.
    pub mac: [u8; 6],
    /// Bytes of its longest IP packet.
    pub mtu: usize,
    /// What drives it; empty if the kernel does not say.
    pub driver: String,
    /// Queues that it uses in one direction; `None` if the kernel does not say.
    pub queues: Option<u32>,
    /// The kernel's release.
    pub kernel: String,
}

impl CardFacts {
    /// What the kernel says now of a card.
    ///
    /// # Errors
    /// There is no such card, or it carries no Ethernet.
    pub fn of(card: &CardId) -> io::Result<CardFacts> {
        let (kind, mac) = sys::hardware(&card.name)?;
        if kind != libc::ARPHRD_ETHER {
            let text = format!("{} carries no Ethernet", card.name);
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let uname = rustix::system::uname();
        Ok(CardFacts {
            name: card.name.clone(),
            mac,
            mtu: interface_mtu(socket.as_fd(), card.name.as_bytes())?,
            driver: one_line(&sys::driver(&card.name)),
            queues: sys::queues(&card.name),
            kernel: one_line(&uname.release().to_string_lossy()),
        })
    }

    /// What is different about another, in a word.
    pub(super) fn differs(&self, other: &CardFacts) -> Option<&'static str> {
        let differences = [
            ("name", self.name != other.name),
            ("hardware address", self.mac != other.mac),
            ("MTU", self.mtu != other.mtu),
            ("driver", self.driver != other.driver),
            ("number of queues", self.queues != other.queues),
            ("kernel", self.kernel != other.kernel),
        ];
        let found = differences.into_iter().find(|(_, differs)| *differs);
        found.map(|(what, _)| what)
    }
}

/// As it can stand in a line of the file.
fn one_line(text: &str) -> String {
    let text: String = text.chars().filter(|one| !one.is_control()).collect();
    text.trim().to_owned()
}

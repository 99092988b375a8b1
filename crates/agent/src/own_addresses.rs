//! The addresses of this node while its agent runs. One that is replaced is followed.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use dipole_node::hosts::{Host, Hosts};
use dipole_node::interface_addresses;
use dipole_node::netlink::{ADDRESS_CHANGES, Socket};
use dipole_node::successors::Successors;

/// Follows the addresses of this node.
#[derive(Debug)]
pub(super) struct OwnAddresses {
    changes: Socket,
    successors: Successors,
    /// When to compare the addresses again.
    look_at: Option<Instant>,
}

impl AsFd for OwnAddresses {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }
}

impl OwnAddresses {
    /// Begins to follow.
    ///
    /// # Errors
    /// The kernel refuses a netlink socket.
    pub(super) fn follow() -> io::Result<OwnAddresses> {
        Ok(OwnAddresses {
            changes: Socket::open(None, ADDRESS_CHANGES)?,
            successors: Successors::default(),
            look_at: Some(Instant::now()),
        })
    }

    /// The descriptor is readable: some address of this machine has changed.
    ///
    /// # Errors
    /// The netlink socket is broken.
    pub(super) fn note_change(&mut self) -> io::Result<()> {
        if self.changes.discard()? {
            self.look_at = Some(Instant::now());
        }
        Ok(())
    }

    /// When [`moved`](Self::moved) must be called although nothing has changed.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.look_at
    }

    /// The node with its new addresses, if some were replaced. `hosts` has the addresses that its
    /// owner has written down.
    pub(super) fn moved(&mut self, host: &Host, hosts: &Hosts) -> Option<Host> {
        let now = Instant::now();
        if self.look_at.is_none_or(|due| due > now) {
            return None;
        }
        self.look_at = None;
        let all = interface_addresses().unwrap_or_default();
        let used = addresses_of(host);
        let listed = || {
            let hosts = hosts.reload();
            let own = hosts.as_ref().and_then(|hosts| hosts.get(host.node));
            own.map(addresses_of).unwrap_or_default()
        };
        let found = self.successors.find(&used, &all, listed, now);
        self.look_at = found.again_after.map(|after| now + after);
        if found.moves.is_empty() {
            return None;
        }
        let mut moved = host.clone();
        for (index, to) in found.moves {
            let from = used[index];
            tracing::warn!(event = "address-changed", node = host.node.0, %from, %to, "address has changed");
            let control = moved.control.as_mut();
            let mut addresses = std::iter::once(&mut moved.address)
                .chain(&mut moved.interfaces)
                .chain(control);
            if let Some(address) = addresses.find(|address| **address == from) {
                *address = to;
            }
        }
        Some(moved)
    }
}

/// All addresses of a node.
fn addresses_of(host: &Host) -> Vec<IpAddr> {
    let directories = host.directories().into_iter();
    directories.map(|directory| directory.ip()).collect()
}

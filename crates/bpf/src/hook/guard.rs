//! Checks the frames of delegated sockets at the interface's egress.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::error::{HookError, Step};
use super::{check_ethernet, load};
use crate::InterfaceId;
use crate::program::{guard, maps};
use crate::sys::{self, AttachKind, Map, MapKind, MapShape};

/// Maximum guarded sockets per interface.
const MAX_SOCKETS: u32 = 4096;

const COOKIES: MapShape<'static> = MapShape {
    kind: MapKind::Hash,
    name: "dipole_cookies",
    key_bytes: 8,
    value_bytes: maps::ALLOWED_BYTES,
    entries: MAX_SOCKETS,
};

const REFUSED: MapShape<'static> = MapShape {
    kind: MapKind::PerCpuArray,
    name: "dipole_refused",
    key_bytes: 4,
    value_bytes: 8,
    entries: 1,
};

/// Traffic that a guarded socket may send: UDP over IP without options, from this source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedSource {
    /// Source MAC address.
    pub mac: [u8; 6],
    /// Source IP address.
    pub address: IpAddr,
    /// The two source ports that it may use.
    pub ports: [u16; 2],
}

/// A program at an interface's egress that drops what guarded sockets must not send.
///
/// It stays attached while this, or a copy of its descriptors, is open. It sees packets that pass the
/// interface's queue: a socket with `PACKET_QDISC_BYPASS` bypasses it.
#[derive(Debug)]
pub struct Guard {
    interface: InterfaceId,
    link: OwnedFd,
    cookies: Map,
    refused: Map,
}

impl Guard {
    /// Attaches the program to an interface; no socket is guarded yet.
    ///
    /// # Errors
    /// The kernel refuses (before Linux 6.6 always), or it is not an Ethernet interface.
    pub fn attach(interface: &InterfaceId) -> Result<Self, HookError> {
        check_ethernet(interface)?;
        let failed = |step| move |cause| HookError::refused(&interface.name, step, cause);
        let cookies = Map::create(COOKIES, None).map_err(failed(Step::Map))?;
        let refused = Map::create(REFUSED, None).map_err(failed(Step::Map))?;
        let at = AttachKind::TcxEgress;
        let maps = [&cookies, &refused];
        let program = load(interface, at, "dipole_guard", &guard::program(), &maps)?;
        let link = sys::attach(program.as_fd(), interface.index, at);
        Ok(Self {
            interface: interface.clone(),
            link: link.map_err(failed(Step::TcxEgress))?,
            cookies,
            refused,
        })
    }

    /// Takes over a guard from descriptors returned by [`descriptors`](Self::descriptors).
    ///
    /// # Errors
    /// They belong to something else.
    pub fn from_descriptors(
        interface: &InterfaceId,
        kept: [OwnedFd; 3],
    ) -> Result<Self, HookError> {
        let failed = |cause| HookError::refused(&interface.name, Step::Kept, cause);
        let [link, cookies, refused] = kept;
        sys::check_link(link.as_fd()).map_err(failed)?;
        Ok(Self {
            interface: interface.clone(),
            link,
            cookies: Map::of(cookies, COOKIES).map_err(failed)?,
            refused: Map::of(refused, REFUSED).map_err(failed)?,
        })
    }

    /// The link and its maps, which keep the guard alive over a restart.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [
            self.link.as_fd(),
            self.cookies.as_fd(),
            self.refused.as_fd(),
        ]
    }

    /// Guards the socket with this cookie (`SO_COOKIE`), or changes what it may send.
    ///
    /// # Errors
    /// There are 4096 sockets already, or the kernel refuses.
    pub fn allow(&self, cookie: u64, allowed: &AllowedSource) -> Result<(), HookError> {
        let value = maps::allowed(allowed.mac, allowed.address, allowed.ports);
        let set = self.cookies.set(&cookie.to_ne_bytes(), &value);
        set.map_err(|cause| HookError::refused(&self.interface.name, Step::Entry, cause))
    }

    /// Forbids the socket to send anything.
    ///
    /// # Errors
    /// The errors of [`allow`](Self::allow).
    pub fn forbid(&self, cookie: u64) -> Result<(), HookError> {
        let set = self
            .cookies
            .set(&cookie.to_ne_bytes(), &[0; maps::ALLOWED_BYTES]);
        set.map_err(|cause| HookError::refused(&self.interface.name, Step::Entry, cause))
    }

    /// Stops guarding a socket that no process has open any more; an open one could then send
    /// anything.
    ///
    /// # Errors
    /// The kernel refuses; it is not an error if the socket was not guarded.
    pub fn forget(&self, cookie: u64) -> Result<(), HookError> {
        let removed = self.cookies.remove(&cookie.to_ne_bytes()).map(drop);
        removed.map_err(|cause| HookError::refused(&self.interface.name, Step::Entry, cause))
    }

    /// Number of dropped frames.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn refused(&self) -> std::io::Result<u64> {
        self.refused.sum(0)
    }

    /// Returns the interface of the guard.
    #[must_use]
    pub fn interface(&self) -> &InterfaceId {
        &self.interface
    }
}

//! Checks the frames of delegated sockets at the interface's egress.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::error::{HookError, Step};
use super::{check_ethernet, load};
use crate::InterfaceId;
use crate::program::{guard, maps};
use crate::sys::{self, AttachKind, Map, MapKind, MapShape, ProgramKind};

/// Most sockets that one interface guards.
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

/// What a guarded socket may send: UDP over IP without options, from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Source MAC address.
    pub mac: [u8; 6],
    /// Source IP address.
    pub address: IpAddr,
    /// Source ports: one of these.
    pub ports: [u16; 2],
}

/// A program at an interface's egress that drops what guarded sockets must not send.
///
/// It stays while this, or a copy of its descriptors, is open. It sees what goes by
/// the interface's queue: a socket with `PACKET_QDISC_BYPASS` goes around it.
#[derive(Debug)]
pub struct Guard {
    interface: InterfaceId,
    link: OwnedFd,
    cookies: Map,
    refused: Map,
}

impl Guard {
    /// Guards an interface; nothing is guarded yet.
    ///
    /// # Errors
    /// When the kernel refuses (before Linux 6.6 it always does) or it is no Ethernet interface.
    pub fn attach(interface: &InterfaceId) -> Result<Self, HookError> {
        check_ethernet(interface)?;
        let failed = |step| move |cause| HookError::refused(&interface.name, step, cause);
        let cookies = Map::create(COOKIES, None).map_err(failed(Step::Map))?;
        let refused = Map::create(REFUSED, None).map_err(failed(Step::Map))?;
        let at = AttachKind::TcxEgress;
        let (place, maps) = ((ProgramKind::SchedCls, at), [&cookies, &refused]);
        let program = load(interface, place, "dipole_guard", &guard::program(), &maps)?;
        let link = sys::attach(program.as_fd(), interface.index, at, 0);
        Ok(Self {
            interface: interface.clone(),
            link: link.map_err(failed(Step::TcxEgress))?,
            cookies,
            refused,
        })
    }

    /// Takes over a guard from descriptors that [`descriptors`](Self::descriptors) gave.
    ///
    /// # Errors
    /// When they are something else.
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

    /// What keeps the guard alive over a restart: the link and its maps.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 3] {
        [
            self.link.as_fd(),
            self.cookies.as_fd(),
            self.refused.as_fd(),
        ]
    }

    /// Guards the socket with this cookie (`SO_COOKIE`); replaces what it was allowed.
    ///
    /// # Errors
    /// When there are 4096 already, or the kernel refuses.
    pub fn allow(&self, cookie: u64, allowed: &Allowed) -> Result<(), HookError> {
        let value = maps::allowed(allowed.mac, allowed.address, allowed.ports);
        let set = self.cookies.set(&cookie.to_ne_bytes(), &value);
        set.map_err(|cause| HookError::refused(&self.interface.name, Step::Entry, cause))
    }

    /// From now on the socket may send nothing.
    ///
    /// # Errors
    /// As for [`allow`](Self::allow).
    pub fn forbid(&self, cookie: u64) -> Result<(), HookError> {
        let set = self
            .cookies
            .set(&cookie.to_ne_bytes(), &[0; maps::ALLOWED_BYTES]);
        set.map_err(|cause| HookError::refused(&self.interface.name, Step::Entry, cause))
    }

    /// Removes a socket that no process has open any more; an open one could then send anything.
    ///
    /// # Errors
    /// When the kernel refuses; not when the socket was not guarded.
    pub fn forget(&self, cookie: u64) -> Result<(), HookError> {
        let removed = self.cookies.remove(&cookie.to_ne_bytes()).map(drop);
        removed.map_err(|cause| HookError::refused(&self.interface.name, Step::Entry, cause))
    }

    /// How many frames were dropped.
    ///
    /// # Errors
    /// When the kernel does not say.
    pub fn refused(&self) -> std::io::Result<u64> {
        self.refused.sum(0)
    }

    /// Its interface.
    #[must_use]
    pub fn interface(&self) -> &InterfaceId {
        &self.interface
    }
}

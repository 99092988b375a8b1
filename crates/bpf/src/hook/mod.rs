//! The kernel side of one interface: its programs and maps, and the rings entered there.
//!
//! A [`Hook`] puts packets from the interface's ingress into rings, a [`Guard`] checks frames of
//! delegated sockets. Both are attached by a BPF link, so they go away with its last descriptor,
//! also if their process is killed. See `docs/design/bpf.md`.

#[cfg(test)]
mod agreement;
mod counters;
#[cfg(test)]
pub(crate) mod drain;
mod error;
mod guard;
#[cfg(test)]
mod guard_tests;
#[cfg(test)]
mod interface_tests;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub use counters::Counters;
pub use error::{HookError, Step};
pub use guard::{AllowedSource, Guard};

use super::InterfaceId;
use super::program::assembler::Program;
use super::program::dispatch;
use super::program::maps::{self, Reason};
use dipole_link::sys::interface_hardware;

use super::sys::{self, AttachKind, Map, MapKind, MapShape};

/// Maximum rings per interface.
const MAX_RINGS: u32 = 4096;
/// Size of the template for the map of rings; actual rings may differ.
const PATTERN_RING_BYTES: u32 = 1 << 16;

const RINGS: MapShape<'static> = MapShape {
    kind: MapKind::HashOfMaps,
    name: "dipole_rings",
    key_bytes: maps::KEY_BYTES,
    value_bytes: 4,
    entries: MAX_RINGS,
};

const COUNTERS: MapShape<'static> = MapShape {
    kind: MapKind::PerCpuArray,
    name: "dipole_counters",
    key_bytes: 4,
    value_bytes: 8,
    #[allow(clippy::cast_possible_truncation, reason = "a handful of reasons")]
    entries: Reason::ALL.len() as u32,
};

const FULL: MapShape<'static> = MapShape {
    kind: MapKind::Hash,
    name: "dipole_full",
    key_bytes: maps::KEY_BYTES,
    value_bytes: 8,
    entries: MAX_RINGS,
};

/// Creates a ring; every holder of the descriptor may map it.
///
/// # Errors
/// `bytes` is not a power of two of at least a page, the kernel has no memory, or CAP_BPF is
/// missing.
pub fn create_ring(bytes: u32) -> io::Result<OwnedFd> {
    let shape = MapShape {
        kind: MapKind::Ring,
        name: "dipole_ring",
        key_bytes: 0,
        value_bytes: 0,
        entries: bytes,
    };
    sys::create_map(shape, None)
}

/// The program at one interface's ingress, with the rings that it fills.
///
/// It stays while this, or a copy of its [`descriptors`](Self::descriptors), is open.
#[derive(Debug)]
pub struct Hook {
    interface: InterfaceId,
    link: OwnedFd,
    rings: Map,
    counters: Map,
    full: Map,
}

impl Hook {
    /// Attaches the program to an interface; it takes no packets yet. Programs of others stay and run
    /// first.
    ///
    /// # Errors
    /// - [`HookError::NotEthernet`]: nothing was attempted.
    /// - [`HookError::Refused`]: by the kernel, in this step (TCX needs Linux 6.6); nothing is attached.
    pub fn attach(interface: &InterfaceId) -> Result<Self, HookError> {
        check_ethernet(interface)?;
        let parts = prepare(interface)?;
        let link = sys::attach(
            parts.program.as_fd(),
            interface.index,
            AttachKind::TcxIngress,
        );
        Ok(Self {
            interface: interface.clone(),
            link: link.map_err(|cause| HookError::refused(&interface.name, Step::Tcx, cause))?,
            rings: parts.rings,
            counters: parts.counters,
            full: parts.full,
        })
    }

    /// Takes over a hook from descriptors returned by [`descriptors`](Self::descriptors).
    ///
    /// # Errors
    /// They belong to something else.
    pub fn from_descriptors(
        interface: &InterfaceId,
        kept: [OwnedFd; 4],
    ) -> Result<Self, HookError> {
        let failed = |cause| HookError::refused(&interface.name, Step::Kept, cause);
        let [link, rings, counters, full] = kept;
        sys::check_link(link.as_fd()).map_err(failed)?;
        Ok(Self {
            interface: interface.clone(),
            link,
            rings: Map::of(rings, RINGS).map_err(failed)?,
            counters: Map::of(counters, COUNTERS).map_err(failed)?,
            full: Map::of(full, FULL).map_err(failed)?,
        })
    }

    /// The link and its maps, which keep the hook alive over a restart.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [
            self.link.as_fd(),
            self.rings.as_fd(),
            self.counters.as_fd(),
            self.full.as_fd(),
        ]
    }

    /// Puts packets to this address and port into this ring from now on, replacing an earlier ring,
    /// and resets its counter. Waits some milliseconds: when this returns, nothing more is put into
    /// the earlier ring.
    ///
    /// # Errors
    /// The address is not a single host's, the descriptor is not a ring, there are 4096 rings
    /// already, or the kernel refuses.
    pub fn add(&self, address: IpAddr, port: u16, ring: BorrowedFd<'_>) -> Result<(), HookError> {
        let several = match address {
            IpAddr::V4(v4) => v4.is_broadcast(),
            IpAddr::V6(_) => false,
        };
        if several || address.is_multicast() || address.is_unspecified() {
            return Err(HookError::NotOneHost {
                interface: self.interface.name.clone(),
                address,
            });
        }
        let key = maps::key(address, self.interface.index, port);
        // The counter first, because the program uses it as soon as there is a ring.
        let entered = (self.full.set(&key, &0_u64.to_ne_bytes()))
            .and_then(|()| self.rings.set_map(&key, ring));
        entered.map_err(|cause| HookError::refused(&self.interface.name, Step::Entry, cause))
    }

    /// Lets packets to this address and port go to the socket again. Waits like
    /// [`add`](Self::add).
    ///
    /// # Errors
    /// The kernel refuses; it is not an error if there was no ring.
    pub fn remove(&self, address: IpAddr, port: u16) -> Result<(), HookError> {
        let key = maps::key(address, self.interface.index, port);
        let removed = self.rings.remove(&key).and_then(|_| self.full.remove(&key));
        removed
            .map(drop)
            .map_err(|cause| HookError::refused(&self.interface.name, Step::Entry, cause))
    }

    /// All addresses and ports that have a ring.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn entries(&self) -> Result<Vec<(IpAddr, u16)>, HookError> {
        let keys = self.rings.keys(MAX_RINGS);
        let keys =
            keys.map_err(|cause| HookError::refused(&self.interface.name, Step::Entry, cause))?;
        Ok(keys.iter().filter_map(|key| maps::of_key(key)).collect())
    }

    /// Packet counters, summed over all CPUs.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn counters(&self) -> io::Result<Counters> {
        let count = |reason: Reason| self.counters.sum(reason as u32);
        Ok(Counters {
            deposited: count(Reason::Deposited)?,
            full: count(Reason::Full)?,
            fragments: count(Reason::Fragment)?,
            options: count(Reason::Options)?,
            too_long: count(Reason::TooLong)?,
            lengths: count(Reason::Length)?,
            other_hosts: count(Reason::OtherHost)?,
            unreadable: count(Reason::Unreadable)?,
        })
    }

    /// Number of packets that found the ring of this address and port full; 0 if there is none.
    ///
    /// # Errors
    /// The error that the kernel returns.
    pub fn full(&self, address: IpAddr, port: u16) -> io::Result<u64> {
        let key = maps::key(address, self.interface.index, port);
        let value = self.full.look_up(&key)?;
        let bytes = value.and_then(|value| value.try_into().ok());
        Ok(bytes.map_or(0, u64::from_ne_bytes))
    }

    /// Detaches the program at once, even if other processes hold its descriptors. Otherwise it is
    /// detached a moment after the last of them is closed.
    ///
    /// # Errors
    /// The program is detached already.
    pub fn detach(self) -> io::Result<()> {
        sys::detach(self.link.as_fd())
    }

    /// Returns the interface.
    #[must_use]
    pub fn interface(&self) -> &InterfaceId {
        &self.interface
    }
}

/// A loaded program and its maps.
struct Parts {
    program: OwnedFd,
    rings: Map,
    counters: Map,
    full: Map,
}

/// Loads the program with empty maps.
fn prepare(interface: &InterfaceId) -> Result<Parts, HookError> {
    let failed = |cause| HookError::refused(&interface.name, Step::Map, cause);
    let pattern = create_ring(PATTERN_RING_BYTES).map_err(failed)?;
    let rings = Map::create(RINGS, Some(pattern.as_fd())).map_err(failed)?;
    let counters = Map::create(COUNTERS, None).map_err(failed)?;
    let full = Map::create(FULL, None).map_err(failed)?;
    let code = dispatch::program();
    let maps = [&rings, &counters, &full];
    let program = load(
        interface,
        AttachKind::TcxIngress,
        "dipole_ingress",
        &code,
        &maps,
    )?;
    Ok(Parts {
        program,
        rings,
        counters,
        full,
    })
}

/// Checks that the interface carries Ethernet frames.
fn check_ethernet(interface: &InterfaceId) -> Result<(), HookError> {
    let (kind, _) = interface_hardware(&interface.name)
        .map_err(|cause| HookError::refused(&interface.name, Step::Interface, cause))?;
    match kind {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(()),
        kind => Err(HookError::NotEthernet {
            interface: interface.name.clone(),
            kind,
        }),
    }
}

/// Loads a program with its maps, ordered by their numbers.
fn load(
    interface: &InterfaceId,
    at: AttachKind,
    name: &str,
    program: &Program,
    maps: &[&Map],
) -> Result<OwnedFd, HookError> {
    let numbers: Vec<i32> = maps.iter().map(|map| map.number()).collect();
    sys::load(at, name, &program.linked(&numbers)).map_err(|rejected| {
        HookError::rejected(&interface.name, Step::Load, rejected.cause, rejected.log)
    })
}

/// A program attached to an interface, of Dipole or another application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedProgram {
    /// Direction of the traffic that it filters.
    pub side: TrafficDirection,
    /// Its id, as shown by `bpftool`.
    pub id: u32,
    /// Its name; `None` if this process may not query it.
    pub name: Option<String>,
}

/// The traffic that a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficDirection {
    /// Incoming packets, at TCX.
    Ingress,
    /// Outgoing packets, at TCX.
    Egress,
}

/// The programs at an interface's TCX hooks, in the order in which they run.
///
/// # Errors
/// The kernel's: CAP_NET_ADMIN is missing, or it has no TCX.
pub fn attached(interface: &InterfaceId) -> io::Result<Vec<AttachedProgram>> {
    let mut found = Vec::new();
    let sides = [
        (TrafficDirection::Ingress, AttachKind::TcxIngress),
        (TrafficDirection::Egress, AttachKind::TcxEgress),
    ];
    for (side, kind) in sides {
        for id in sys::attached(interface.index, kind)? {
            let name = sys::program_name(id).ok();
            found.push(AttachedProgram { side, id, name });
        }
    }
    Ok(found)
}

//! The kernel's part on one interface: its programs and maps, and who owns which ring.
//!
//! A [`Hook`] takes packets at the interface's ingress into rings, a [`Guard`] checks what
//! delegated sockets send. Both are attached by a link of the kernel, so that they go with
//! the last descriptor of it, also when their process is killed. See `docs/design/bpf.md`.

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
pub use guard::{Allowed, Guard};

use super::InterfaceId;
use super::program::assembler::Program;
use super::program::dispatch::{self, Hooked};
use super::program::maps::{self, Reason};
use dipole_link::sys::interface_hardware;

use super::sys::{self, AttachKind, Map, MapKind, MapShape, ProgramKind};

/// Most rings on one interface.
const MAX_RINGS: u32 = 4096;
/// Bytes of the pattern for rings in the map of rings; theirs may differ.
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
    // Few and fixed.
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

/// Where at an interface's ingress the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Before the traffic-control queue; leaves segmentation offload alone. Linux 6.6.
    Tcx,
    /// XDP on packets that the driver has handed over. Linux 5.18.
    XdpGeneric,
    /// XDP in the driver, if it has that.
    XdpNative,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Tcx => "TCX",
            Self::XdpGeneric => "generic XDP",
            Self::XdpNative => "native XDP",
        })
    }
}

/// Creates a ring; every holder of the descriptor may map it.
///
/// # Errors
/// When `bytes` is no power of two of at least a page, the kernel has no memory, or
/// CAP_BPF is missing.
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

/// The program at one interface's ingress, and which rings it fills.
///
/// It stays while this, or a copy of its [`descriptors`](Self::descriptors), is open.
#[derive(Debug)]
pub struct Hook {
    interface: InterfaceId,
    place: Place,
    link: OwnedFd,
    rings: Map,
    counters: Map,
    full: Map,
}

impl Hook {
    /// Attaches the program to an interface; it takes nothing yet. Programs of others that are
    /// there already stay, and run before it at TCX.
    ///
    /// # Errors
    /// - [`HookError::NotEthernet`]: nothing was tried.
    /// - [`HookError::Refused`]: the kernel did, at this step; nothing is attached.
    pub fn attach(interface: &InterfaceId, place: Place) -> Result<Self, HookError> {
        let mac = check_ethernet(interface)?;
        let parts = prepare(interface, place, mac)?;
        let (kind, flags, step) = match place {
            Place::Tcx => (AttachKind::TcxIngress, 0, Step::Tcx),
            Place::XdpGeneric => (AttachKind::Xdp, sys::XDP_GENERIC, Step::Xdp),
            Place::XdpNative => (AttachKind::Xdp, sys::XDP_NATIVE, Step::Xdp),
        };
        let link = sys::attach(parts.program.as_fd(), interface.index, kind, flags);
        Ok(Self {
            interface: interface.clone(),
            place,
            link: link.map_err(|cause| HookError::refused(&interface.name, step, cause))?,
            rings: parts.rings,
            counters: parts.counters,
            full: parts.full,
        })
    }

    /// Attaches at TCX or, where the kernel does not have it, at generic XDP.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach).
    pub fn attach_best(interface: &InterfaceId) -> Result<Self, HookError> {
        match Self::attach(interface, Place::Tcx) {
            Err(error) if error.is_unknown_to_kernel() => {
                Self::attach(interface, Place::XdpGeneric)
            }
            other => other,
        }
    }

    /// Takes over a hook from descriptors that [`descriptors`](Self::descriptors) gave.
    ///
    /// # Errors
    /// When they are something else.
    pub fn from_descriptors(
        interface: &InterfaceId,
        place: Place,
        kept: [OwnedFd; 4],
    ) -> Result<Self, HookError> {
        let failed = |cause| HookError::refused(&interface.name, Step::Kept, cause);
        let [link, rings, counters, full] = kept;
        sys::check_link(link.as_fd()).map_err(failed)?;
        Ok(Self {
            interface: interface.clone(),
            place,
            link,
            rings: Map::of(rings, RINGS).map_err(failed)?,
            counters: Map::of(counters, COUNTERS).map_err(failed)?,
            full: Map::of(full, FULL).map_err(failed)?,
        })
    }

    /// What keeps the hook alive over a restart: the link and its maps.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [
            self.link.as_fd(),
            self.rings.as_fd(),
            self.counters.as_fd(),
            self.full.as_fd(),
        ]
    }

    /// From now on packets to this address and port go into this ring, instead of
    /// another if there was one. They count as full from zero again. Waits some
    /// milliseconds: when this returns, nothing more comes into the former ring.
    ///
    /// # Errors
    /// When the address is no single host's, it is no ring, there are 4096 already, or
    /// the kernel refuses.
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
        // The counter first: the program looks for it as soon as there is a ring.
        let entered = (self.full.set(&key, &0_u64.to_ne_bytes()))
            .and_then(|()| self.rings.set_map(&key, ring));
        entered.map_err(|cause| HookError::refused(&self.interface.name, Step::Entry, cause))
    }

    /// From now on packets to this address and port go to the socket. Waits as
    /// [`add`](Self::add) does.
    ///
    /// # Errors
    /// When the kernel refuses; not when there was no ring.
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
    /// The kernel's.
    pub fn entered(&self) -> Result<Vec<(IpAddr, u16)>, HookError> {
        let keys = self.rings.keys(MAX_RINGS);
        let keys =
            keys.map_err(|cause| HookError::refused(&self.interface.name, Step::Entry, cause))?;
        Ok(keys.iter().filter_map(|key| maps::of_key(key)).collect())
    }

    /// What became of the packets, all CPUs together.
    ///
    /// # Errors
    /// The kernel's.
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

    /// How many packets found the ring of this address and port full; 0 if there is none.
    ///
    /// # Errors
    /// The kernel's.
    pub fn full(&self, address: IpAddr, port: u16) -> io::Result<u64> {
        let key = maps::key(address, self.interface.index, port);
        let value = self.full.look_up(&key)?;
        let bytes = value.and_then(|value| value.try_into().ok());
        Ok(bytes.map_or(0, u64::from_ne_bytes))
    }

    /// Detaches the program now, even if other processes hold its descriptors. Without this
    /// it goes a moment after the last of them is closed.
    ///
    /// # Errors
    /// When the kernel refuses: it is detached already.
    pub fn detach(self) -> io::Result<()> {
        sys::detach(self.link.as_fd())
    }

    /// Its interface.
    #[must_use]
    pub fn interface(&self) -> &InterfaceId {
        &self.interface
    }

    /// Where the program runs.
    #[must_use]
    pub fn place(&self) -> Place {
        self.place
    }
}

/// A program that is loaded, and its maps.
struct Parts {
    program: OwnedFd,
    rings: Map,
    counters: Map,
    full: Map,
}

/// Loads the program for a place, with empty maps.
fn prepare(interface: &InterfaceId, place: Place, mac: [u8; 6]) -> Result<Parts, HookError> {
    let failed = |cause| HookError::refused(&interface.name, Step::Map, cause);
    let pattern = create_ring(PATTERN_RING_BYTES).map_err(failed)?;
    let rings = Map::create(RINGS, Some(pattern.as_fd())).map_err(failed)?;
    let counters = Map::create(COUNTERS, None).map_err(failed)?;
    let full = Map::create(FULL, None).map_err(failed)?;
    let (hooked, kind, at) = match place {
        Place::Tcx => (Hooked::Tcx, ProgramKind::SchedCls, AttachKind::TcxIngress),
        Place::XdpGeneric | Place::XdpNative => {
            (Hooked::Xdp { mac }, ProgramKind::Xdp, AttachKind::Xdp)
        }
    };
    let code = dispatch::program(hooked);
    let maps = [&rings, &counters, &full];
    let program = load(interface, (kind, at), "dipole_ingress", &code, &maps)?;
    Ok(Parts {
        program,
        rings,
        counters,
        full,
    })
}

/// The interface's own MAC address.
fn check_ethernet(interface: &InterfaceId) -> Result<[u8; 6], HookError> {
    let (kind, mac) = interface_hardware(&interface.name)
        .map_err(|cause| HookError::refused(&interface.name, Step::Interface, cause))?;
    match kind {
        libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK => Ok(mac),
        kind => Err(HookError::NotEthernet {
            interface: interface.name.clone(),
            kind,
        }),
    }
}

/// Loads a program with its maps, in the order of their numbers.
fn load(
    interface: &InterfaceId,
    (kind, at): (ProgramKind, AttachKind),
    name: &str,
    program: &Program,
    maps: &[&Map],
) -> Result<OwnedFd, HookError> {
    let numbers: Vec<i32> = maps.iter().map(|map| map.number()).collect();
    sys::load(kind, at, name, &program.linked(&numbers)).map_err(|rejected| {
        HookError::rejected(&interface.name, Step::Load, rejected.cause, rejected.log)
    })
}

/// A program attached to an interface, of Dipole or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Where.
    pub side: Side,
    /// Its number, as `bpftool` shows it.
    pub id: u32,
    /// Its name; none if this process may not ask.
    pub name: Option<String>,
}

/// Which traffic a program sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// What comes in, at TCX.
    Ingress,
    /// What goes out, at TCX.
    Egress,
}

/// The programs at an interface's TCX hooks, in the order in which they run.
///
/// # Errors
/// The kernel's: CAP_NET_ADMIN is missing, or it has no TCX.
pub fn attached(interface: &InterfaceId) -> io::Result<Vec<Attached>> {
    let mut found = Vec::new();
    let sides = [
        (Side::Ingress, AttachKind::TcxIngress),
        (Side::Egress, AttachKind::TcxEgress),
    ];
    for (side, kind) in sides {
        for id in sys::attached(interface.index, kind)? {
            let name = sys::program_name(id).ok();
            found.push(Attached { side, id, name });
        }
    }
    Ok(found)
}

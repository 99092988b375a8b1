//! The program that leads the packets of one UDP port into an AF_XDP socket, on its interface.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use super::{Xsk, longest_received_frame};
use crate::InterfaceId;
use crate::program::queue::{self, Wanted};
use dipole_link::sys::interface_hardware;

use crate::sys::{self, AttachKind, Map, MapKind, MapShape, ProgramKind};

const SOCKETS: MapShape<'static> = MapShape {
    kind: MapKind::Xsk,
    name: "dipole_sockets",
    key_bytes: 4,
    value_bytes: 4,
    entries: 1,
};

const COUNTER: MapShape<'static> = MapShape {
    kind: MapKind::PerCpuArray,
    name: "dipole_queue",
    key_bytes: 4,
    value_bytes: 8,
    entries: 1,
};

/// The program of one socket; dropping it takes it off the interface.
#[derive(Debug)]
pub struct XskHook {
    link: OwnedFd,
    _sockets: Map,
    counter: Map,
    pid: u32,
}

impl XskHook {
    /// Leads what comes on an interface to this address and port into the socket: at generic XDP,
    /// in the driver where the interface itself works on the socket's memory.
    ///
    /// # Errors
    /// Without CAP_BPF and CAP_NET_ADMIN, or when there is another program at this place.
    pub fn attach(interface: &InterfaceId, xsk: &Xsk, to: SocketAddr) -> io::Result<XskHook> {
        let make = || -> io::Result<(OwnedFd, Map, Map)> {
            let (_, mac) = interface_hardware(&interface.name)?;
            let sockets = Map::create(SOCKETS, None)?;
            let counter = Map::create(COUNTER, None)?;
            sockets.set_map(&[0; 4], xsk.as_fd())?;
            let wanted = Wanted {
                mac,
                to,
                queue: xsk.queue(),
                longest: longest_received_frame(),
            };
            let code = queue::program(&wanted).linked(&[&sockets, &counter].map(Map::number));
            let loaded = sys::load(
                ProgramKind::XdpWhole,
                AttachKind::Xdp,
                "dipole_queue",
                &code,
            );
            let program = loaded.map_err(|rejected| match &*rejected.log {
                "" => rejected.cause,
                log => io::Error::new(rejected.cause.kind(), format!("{}: {log}", rejected.cause)),
            })?;
            Ok((program, sockets, counter))
        };
        let (program, sockets, counter) = make().map_err(|cause| {
            interface.cannot("load the program of an AF_XDP socket for", &cause)
        })?;
        let mode = match xsk.is_zero_copy() {
            true => sys::XDP_NATIVE,
            false => sys::XDP_GENERIC,
        };
        let link = sys::attach(program.as_fd(), interface.index, AttachKind::Xdp, mode).map_err(
            |cause| interface.cannot("attach the program of an AF_XDP socket to", &cause),
        )?;
        Ok(XskHook {
            link,
            _sockets: sockets,
            counter,
            pid: std::process::id(),
        })
    }

    /// Packets for this port that came on another queue and were passed to the socket.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn wrong_queue(&self) -> io::Result<u64> {
        self.counter.sum(0)
    }
}

impl Drop for XskHook {
    /// Closing would do it, too, but a moment later: packets of that moment would still
    /// go to the socket.
    fn drop(&mut self) {
        // A forked child only closes its copy.
        if self.pid == std::process::id() {
            let _closing_will_do = sys::detach(self.link.as_fd());
        }
    }
}

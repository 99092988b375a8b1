//! The fast path of one interface: a ring to receive small packets from, and raw frames
//! to send them. Opened with this process's own capabilities, or granted by a broker.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

use dipole_link::udp::Udp;
use dipole_link::{Class, Link};

use super::error::BpfError;
use super::grant::{Grant, GrantError, request};
use super::hook::{Hook, create_ring};
use super::interface::{InterfaceId, interface_of};
use super::neighbours::Neighbours;
use super::options::BpfOptions;
use super::raw::RawSender;
use super::rx_path::RxPath;
use super::tx_path::TxPath;

/// The fast path of one interface, for [`Bpf::new`](super::Bpf::new).
#[derive(Debug)]
pub struct FastPath {
    pub(super) rx: RxPath,
    pub(super) tx: Option<TxPath>,
}

impl FastPath {
    /// Opens it for a UDP link with this process's own capabilities.
    ///
    /// # Errors
    /// See [`BpfError`]; nothing stays attached.
    pub fn open(udp: &Udp, options: &BpfOptions) -> Result<FastPath, BpfError> {
        let (interface, scope_id) = interface_and_scope(udp)?;
        let rx = own_rx(&interface, udp, options, scope_id)?;
        let ip = udp.local(Class::Small).ip();
        let tx = Some(own_tx(&interface, ip, options)?);
        Ok(FastPath { rx, tx })
    }

    /// Requests a ring from the broker that listens at `broker`, and a socket for raw frames if
    /// it grants one. Only the ring size of the options is used.
    ///
    /// # Errors
    /// See [`BpfError`]; nothing stays granted.
    pub fn request(udp: &Udp, broker: &Path, options: &BpfOptions) -> Result<FastPath, BpfError> {
        let (_, scope_id) = interface_and_scope(udp)?;
        let mut grant = request(broker, udp.small_socket(), options.ring_bytes)
            .map_err(BpfError::NotGranted)?;
        let tx = delegated_tx(&mut grant, udp);
        let not_granted = |cause| BpfError::NotGranted(GrantError::Socket(cause));
        let rx = RxPath::delegated(grant, scope_id).map_err(not_granted)?;
        Ok(FastPath { rx, tx })
    }

    /// True if it can send raw frames.
    #[must_use]
    pub fn can_send(&self) -> bool {
        self.tx.is_some()
    }

    /// Opens a socket for raw frames with this process's own capabilities.
    ///
    /// # Errors
    /// See [`BpfError`]; nothing has changed in that case.
    pub fn open_tx(&mut self, udp: &Udp, options: &BpfOptions) -> Result<(), BpfError> {
        let (interface, _) = interface_and_scope(udp)?;
        self.tx = Some(own_tx(&interface, udp.local(Class::Small).ip(), options)?);
        Ok(())
    }
}

/// The interface of a link's address, and the scope of a link-local one.
fn interface_and_scope(udp: &Udp) -> Result<(InterfaceId, u32), BpfError> {
    let ip = udp.local(Class::Small).ip();
    if ip.is_loopback() {
        return Err(BpfError::Loopback { ip });
    }
    interface_of(ip).map_err(|cause| BpfError::NoInterface { ip, cause })
}

/// A receive path fed by this process's own program.
fn own_rx(
    interface: &InterfaceId,
    udp: &Udp,
    options: &BpfOptions,
    scope_id: u32,
) -> Result<RxPath, BpfError> {
    let small = udp.local(Class::Small);
    let ring_failed = |cause| BpfError::Ring {
        interface: interface.name.clone(),
        bytes: options.ring_bytes,
        cause,
    };
    let ring = create_ring(options.ring_bytes).map_err(ring_failed)?;
    let hook = Hook::attach(interface).map_err(BpfError::Hook)?;
    hook.add(small.ip(), small.port(), ring.as_fd())
        .map_err(BpfError::Hook)?;
    RxPath::own(ring, hook, scope_id).map_err(ring_failed)
}

/// A send path through a socket of this process.
fn own_tx(interface: &InterfaceId, ip: IpAddr, options: &BpfOptions) -> Result<TxPath, BpfError> {
    let raw = |cause| BpfError::Raw {
        interface: interface.name.clone(),
        cause,
    };
    let neighbours = Neighbours::open(interface, ip).map_err(raw)?;
    let sender = RawSender::open(interface, true).map_err(raw)?;
    Ok(TxPath::own(neighbours, sender, options.raw_run_frames))
}

/// A send path through the socket received with a grant, if there is one.
pub(super) fn delegated_tx(grant: &mut Grant, udp: &Udp) -> Option<TxPath> {
    let sender = grant.take_sender()?;
    match Neighbours::open(grant.interface(), udp.local(Class::Small).ip()) {
        Ok(neighbours) => Some(TxPath::delegated(
            neighbours,
            RawSender::from_socket(sender),
        )),
        Err(cause) => {
            let interface = &grant.interface().name;
            tracing::warn!(%interface, %cause, "no raw frames: cannot query the neighbour table");
            None
        }
    }
}

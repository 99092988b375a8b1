//! An edge by whatever carries it: packets, or the memory of this node.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dipole_link::shm::{ConnId, Hub, ShmError, ShmOptions, ShmStats};
use dipole_link::sim::SharedMemory;
use dipole_link::{AnyHub, Link};
use dipole_proto::EdgeId;

use super::local::{Local, LocalEdge};
use super::rooms::Room;
use super::{Blocked, Engine};
use crate::address::{Address, EndpointId};
use crate::clock::Reading;
use crate::driver::WaitKey;
use crate::registry::EdgeTraffic;

/// Frames queued with more to come that leave without waiting for it.
const FULL_BURST_FRAMES: usize = 44;

/// What carries an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Packets of a protocol session.
    Net(EdgeId),
    /// Shared memory.
    Local(LocalEdge),
}

impl Way {
    /// What a thread that cannot send, or waits for acknowledgements, waits for.
    pub(crate) fn keys(self) -> [WaitKey; 3] {
        match self {
            Way::Net(edge) => [
                WaitKey::Edge(edge),
                WaitKey::Peer(edge.peer),
                WaitKey::Frame,
            ],
            Way::Local(edge) => [
                WaitKey::Connection(edge.conn),
                WaitKey::AnyPeer,
                WaitKey::RingSpace,
            ],
        }
    }
}

/// Where an endpoint points.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) address: Address,
    pub(crate) way: Way,
    pub(crate) sent: Arc<Sent>,
}

/// What has gone along an edge; counted under the engine's lock.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    messages: AtomicU64,
    bytes: AtomicU64,
}

impl Sent {
    #[inline]
    pub(crate) fn count(&self, bytes: usize) {
        let add = |counter: &AtomicU64, more| {
            counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        };
        add(&self.messages, 1);
        add(&self.bytes, bytes as u64);
    }
}

impl Engine {
    /// Meets processes of this node at a socket file.
    ///
    /// # Errors
    /// The socket or its memory cannot be had.
    pub(crate) fn open_local(&mut self, socket: &Path) -> Result<(), ShmError> {
        self.open_hub(|greeting, options| Ok(Hub::open(socket, greeting, options)?.into()))
    }

    /// Meets processes of this node in simulated memory.
    ///
    /// # Errors
    /// The socket's name is taken.
    pub fn open_simulated(&mut self, memory: &SharedMemory, socket: &Path) -> Result<(), ShmError> {
        self.open_hub(|greeting, options| Ok(memory.open(socket, greeting, options)?.into()))
    }

    fn open_hub(
        &mut self,
        open: impl FnOnce(&[u8], &ShmOptions) -> Result<AnyHub, ShmError>,
    ) -> Result<(), ShmError> {
        let config = self.machine.config();
        self.local = Some(Local::open(self.incarnation, config, open)?);
        Ok(())
    }

    /// What went through shared memory.
    pub(crate) fn local_stats(&self) -> Option<ShmStats> {
        self.local.as_ref().map(Local::stats)
    }

    /// Processes of this node, opening or open.
    pub(crate) fn local_peers(&self) -> usize {
        self.local.as_ref().map_or(0, Local::peers)
    }

    /// Bytes of received messages that wait to be read.
    #[must_use]
    pub fn pool_used(&self) -> u64 {
        self.machine.pool_used() + self.local.as_ref().map_or(0, Local::pool_used)
    }

    /// What becomes readable when [`step`](Self::step) has something to do.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut descriptors = self.link.descriptors();
        descriptors.extend(self.local.iter().filter_map(Local::descriptor));
        descriptors.extend(self.exports_descriptor());
        descriptors
    }

    /// Begins, or finds, the connection with a process of this node.
    pub fn connect_local(
        &mut self,
        socket: &Path,
        incarnation: u64,
    ) -> Option<Result<ConnId, ShmError>> {
        Some(self.local.as_mut()?.connect(socket, incarnation))
    }

    /// Whether the connection is open.
    ///
    /// # Errors
    /// [`Blocked::Gone`].
    pub fn is_local_open(&self, conn: ConnId) -> Result<bool, Blocked> {
        match &self.local {
            Some(local) => local.is_open(conn),
            None => Err(Blocked::Gone(None)),
        }
    }

    /// The edge from `source` to `target`; usable again if the peer once refused it.
    pub fn local_edge(&mut self, conn: ConnId, source: u32, target: u32) -> Option<LocalEdge> {
        self.local.as_mut()?.edge(conn, source, target)
    }

    /// Takes what processes of this node have sent; true if anything came.
    #[inline]
    pub(crate) fn poll_local(&mut self) -> bool {
        self.local.is_some() && self.take_local()
    }

    fn take_local(&mut self) -> bool {
        let mut parts = self.parts();
        let Some(local) = parts.local else {
            return false;
        };
        let came = local.poll(&mut parts.receivers);
        self.came_locally |= came;
        came
    }

    /// Connections that come and go.
    pub(super) fn attend_local(&mut self) -> std::io::Result<()> {
        let mut parts = self.parts();
        match parts.local {
            Some(local) => local.attend(&mut parts.receivers),
            None => Ok(()),
        }
    }

    /// Wakes processes of this node for what was queued with more to come.
    #[inline]
    pub(crate) fn ring_due(&mut self) {
        if let Some(local) = &mut self.local {
            local.ring_due();
        }
    }

    /// True once after a process of this node died without a word.
    pub(crate) fn take_died(&mut self) -> bool {
        self.local.as_mut().is_some_and(Local::take_died)
    }

    /// Where an endpoint points.
    pub(crate) fn targets(&self, endpoint: u32) -> Option<&Arc<[Target]>> {
        self.rooms.get(endpoint)?.targets.as_ref()
    }

    pub(crate) fn set_targets(&mut self, endpoint: u32, targets: Vec<Target>) {
        if let Some(room) = self.rooms.get_mut(endpoint) {
            room.targets = (!targets.is_empty()).then(|| targets.into());
        }
    }

    /// All edges of this process, and what has gone along them.
    pub(crate) fn edges(&self) -> impl Iterator<Item = EdgeTraffic> {
        self.rooms.iter().flat_map(|(endpoint, targets)| {
            targets.iter().map(move |target| EdgeTraffic {
                source: EndpointId(endpoint),
                target: target.address,
                local: matches!(target.way, Way::Local(_)),
                messages: target.sent.messages.load(Ordering::Relaxed),
                bytes: target.sent.bytes.load(Ordering::Relaxed),
            })
        })
    }

    /// Sends at once if the endpoint has one target that takes the message now; else
    /// false, and nothing has been queued.
    ///
    /// # Errors
    /// Only when the link is broken.
    #[inline]
    pub(crate) fn send_fast(
        &mut self,
        endpoint: u32,
        payload: &[u8],
        more: bool,
        clock: &mut Reading<'_>,
    ) -> std::io::Result<bool> {
        let Some([target]) = self.rooms.get(endpoint).and_then(Room::targets) else {
            return Ok(false);
        };
        let sent = match (target.way, &mut self.local) {
            (Way::Local(edge), Some(local)) => {
                payload.len() <= local.whole_limit(edge) && local.send(edge, payload, more).is_ok()
            }
            (Way::Local(_), None) => false,
            (Way::Net(edge), _) => self.send_packet(edge, payload, more, clock)?.is_ok(),
        };
        if sent && let Some([target]) = self.rooms.get(endpoint).and_then(Room::targets) {
            target.sent.count(payload.len());
        }
        Ok(sent)
    }

    /// Sends a message that fits a packet at once, or with `more` to come when they have come.
    ///
    /// # Errors
    /// The outer one only when the link is broken; [`Blocked`] when nothing was queued.
    #[inline]
    pub(crate) fn send_packet(
        &mut self,
        edge: EdgeId,
        payload: &[u8],
        more: bool,
        clock: &mut Reading<'_>,
    ) -> std::io::Result<Result<(), Blocked>> {
        if payload.len() > self.whole_limit(edge.peer) {
            return Ok(Err(Blocked::NoFrame));
        }
        let now = if more { clock.last() } else { clock.now() };
        let sent = self.send_whole(now, edge, payload, more);
        if !more {
            self.transmit(now)?;
        } else if sent.is_err() || self.queued(edge.peer) >= FULL_BURST_FRAMES {
            self.transmit(clock.now())?;
        }
        Ok(sent)
    }

    /// Whether messages can be sent this way; an error if its peer is gone.
    pub(crate) fn is_way_open(&mut self, way: Way) -> Result<bool, Blocked> {
        match way {
            Way::Net(edge) => self.is_open(edge.peer),
            Way::Local(edge) => self.is_local_open(edge.conn),
        }
    }

    /// Whether the process there has everything in its token buffer pools.
    pub(crate) fn is_way_acknowledged(&mut self, way: Way) -> bool {
        match way {
            Way::Net(edge) => self.is_peer_acknowledged(edge.peer),
            Way::Local(edge) => self
                .local
                .as_mut()
                .is_none_or(|local| local.is_acknowledged(edge.conn)),
        }
    }

    /// Whatever was queued with more to come leaves with the next transmit.
    pub(crate) fn flush_way(&mut self, way: Way) {
        match way {
            Way::Net(edge) => self.flush(edge.peer),
            Way::Local(_) => self.ring_due(),
        }
    }

    /// Whether every process has everything.
    pub fn is_all_acknowledged(&mut self) -> bool {
        self.is_acknowledged() && self.local.as_mut().is_none_or(Local::is_all_acknowledged)
    }

    /// Leaves all peers.
    pub fn say_goodbye_to_all(&mut self) {
        self.say_goodbye();
        if let Some(local) = &mut self.local {
            local.say_goodbye();
        }
    }

    /// The part that shares memory.
    ///
    /// # Errors
    /// What `action` says, or [`Blocked::Gone`] if there is none.
    pub fn on_local<R>(
        &mut self,
        action: impl FnOnce(&mut Local) -> Result<R, Blocked>,
    ) -> Result<R, Blocked> {
        match &mut self.local {
            Some(local) => action(local),
            None => Err(Blocked::Gone(None)),
        }
    }
}

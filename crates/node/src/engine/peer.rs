//! What the engine keeps of one peer: its edges, and the frame being filled.

use dipole_proto::{EdgeId, PeerId, Slot};

use crate::GoneReason;
use crate::address::Address;
use crate::inbox::Buffer;

/// A frame that still takes records.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFrame {
    pub(super) slot: Slot,
    /// Where the next record goes.
    pub(super) end: usize,
    /// Some record in it belongs to a stream that uses the bulk lane.
    pub(super) bulk: bool,
}

/// A message of which pieces have arrived.
#[derive(Debug)]
pub(super) struct Assembly {
    pub(super) sequence: u64,
    pub(super) buffer: Buffer,
}

/// An unreliable message of which pieces have arrived.
#[derive(Debug)]
pub(super) struct LooseAssembly {
    pub(super) sequence: u32,
    pub(super) got: u64,
    pub(super) buffer: Buffer,
}

/// An incoming edge.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) source: Address,
    pub(super) target: u32,
    pub(super) assemblies: Vec<Assembly>,
    pub(super) loose: Option<LooseAssembly>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: PeerId,
    pub(super) node: u32,
    pub(super) incarnation: u64,
    /// By [`EdgeId::index`].
    pub(super) incoming: Vec<Incoming>,
    pub(super) open: Option<OpenFrame>,
    /// A long message is on its way into frames.
    pub(super) long_begun: bool,
    /// Edges with records in the open frame.
    pub(super) open_edges: Vec<u32>,
    /// Bulk frames queued and released so far: an edge whose last one has not
    /// been released keeps to the bulk lane, so that it does not overtake itself.
    pub(super) bulk_queued: u64,
    pub(super) bulk_released: u64,
    pub(super) bulk_mark: Vec<u64>,
    pub(super) gone: Option<GoneReason>,
}

impl Peer {
    pub(super) fn new(id: PeerId) -> Peer {
        Peer {
            id,
            node: 0,
            incarnation: 0,
            incoming: Vec::new(),
            open: None,
            long_begun: false,
            open_edges: Vec::new(),
            bulk_queued: 0,
            bulk_released: 0,
            bulk_mark: Vec::new(),
            gone: None,
        }
    }

    /// True if messages of this outgoing edge still fly on the bulk lane.
    pub(super) fn is_streaming(&self, edge: EdgeId) -> bool {
        self.bulk_mark
            .get(edge.index as usize)
            .is_some_and(|mark| *mark > self.bulk_released)
    }

    /// Notes that the open frame holds a record of this edge.
    pub(super) fn note_record(&mut self, edge: EdgeId) {
        if self.open_edges.last() != Some(&edge.index) {
            self.open_edges.push(edge.index);
        }
    }

    /// The open frame is closed, as a bulk frame or not.
    pub(super) fn close_open(&mut self, bulk: bool) {
        if bulk {
            self.bulk_queued += 1;
            for edge in &self.open_edges {
                let index = *edge as usize;
                if self.bulk_mark.len() <= index {
                    self.bulk_mark.resize(index + 1, 0);
                }
                self.bulk_mark[index] = self.bulk_queued;
            }
        }
        self.open_edges.clear();
    }
}

/// The peer with this id, made if it is new.
pub(super) fn peer_entry(peers: &mut Vec<Option<Peer>>, id: PeerId) -> &mut Peer {
    let index = id.index();
    if peers.len() <= index {
        peers.resize_with(index + 1, || None);
    }
    let slot = &mut peers[index];
    if slot.as_ref().is_none_or(|peer| peer.id != id) {
        *slot = Some(Peer::new(id));
    }
    slot.get_or_insert_with(|| Peer::new(id))
}

/// The peer with this id.
#[inline]
pub(super) fn find(peers: &mut [Option<Peer>], id: PeerId) -> Option<&mut Peer> {
    peers
        .get_mut(id.index())?
        .as_mut()
        .filter(|peer| peer.id == id)
}

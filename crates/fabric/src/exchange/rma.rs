//! Reads and writes of the program in the memory of other processes.

use dipole_node::{Bytes, Operation, RegionKey};

use super::waiting::Get;
use super::{Entry, Exchange, failure_of};
use crate::abi::fabric::{FI_READ, FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_RMA, FI_WRITE};
use crate::ffi::{AGAIN, Failure};
use crate::memory::{Pieces, RegisteredMemory};
use crate::name::{Name, number};
use crate::wire::{Head, Kind};

/// Longest piece that one operation reads.
const MAX_READ_BYTES: usize = 16 << 20;

/// A read or write that is not complete.
pub(super) struct PendingRma {
    /// Parts that have not completed.
    parts_left: usize,
    notify: bool,
    failure: Option<Failure>,
    entry: Entry,
    /// The owner that is notified of a write, and the data it gets.
    notification: Option<(Name, u64)>,
    _memory: Vec<RegisteredMemory>,
}

/// A read or write as the program requests it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RmaRequest {
    pub(crate) local: Pieces,
    pub(crate) offset: u64,
    pub(crate) key: u64,
    pub(crate) context: usize,
    /// The program wants a completion even if the operation succeeds.
    pub(crate) notify: bool,
    /// The program may reuse the local buffer as soon as the call returns.
    pub(crate) is_injected: bool,
    /// Data that the owner's completion queue reports after the write.
    pub(crate) data: Option<u64>,
}

impl RmaRequest {
    fn entry(&self, flag: u64) -> Entry {
        Entry {
            context: self.context,
            flags: FI_RMA | flag,
            length: self.local.length(),
            ..Entry::default()
        }
    }
}

impl Exchange {
    /// Writes to a region of another process.
    ///
    /// # Errors
    /// `AGAIN`; the peer is gone.
    pub(crate) fn write(&mut self, to: &Name, request: &RmaRequest) -> Result<(), Failure> {
        let number = self.outstanding.next_number();
        let edge = &self.edge(to.region_endpoint())?.edge;
        let put = Operation::Put {
            key: RegionKey(request.key),
            offset: request.offset,
            notice: None,
        };
        let bytes = match request.is_injected {
            true => {
                let mut bytes = Vec::with_capacity(request.local.length());
                request.local.gather(&mut bytes);
                Bytes::from(bytes)
            }
            false => request.local.shared(),
        };
        let posted = edge.post_bytes(put, bytes, number);
        posted.map_err(|error| failure_of(&error))?;
        self.outstanding.add_posted(1);
        let rma = PendingRma {
            parts_left: 1,
            notify: request.notify,
            failure: None,
            entry: request.entry(FI_WRITE),
            notification: request.data.map(|data| (*to, data)),
            _memory: Vec::new(),
        };
        self.outstanding.insert_rma(number, rma);
        Ok(())
    }

    /// Reads from a region of another process.
    ///
    /// # Errors
    /// `AGAIN` if earlier reads still wait for room; the peer is gone.
    pub(crate) fn read(&mut self, from: &Name, request: &RmaRequest) -> Result<(), Failure> {
        let index = self.edge_index(from.region_endpoint())?;
        if !self.edges.at(index).waiting.is_empty() {
            return Err(AGAIN);
        }
        let parts = (request.local).regions(request.local.length(), MAX_READ_BYTES);
        if parts.is_empty() {
            self.sinks.complete(request.notify, request.entry(FI_READ));
            return Ok(());
        }
        let number = self.outstanding.next_number();
        let gets: Vec<Get> = (parts.iter())
            .map(|(offset, into)| Get {
                number,
                key: RegionKey(request.key),
                offset: request.offset + *offset as u64,
                into: into.memory.clone(),
            })
            .collect();
        let rma = PendingRma {
            parts_left: parts.len(),
            notify: request.notify,
            failure: None,
            entry: request.entry(FI_READ),
            notification: None,
            _memory: parts.into_iter().map(|(_, into)| into).collect(),
        };
        self.outstanding.insert_rma(number, rma);
        self.fetch_parts(index, gets.into_iter());
        Ok(())
    }

    /// Handles the completion of one part.
    pub(super) fn on_rma_part(
        &mut self,
        number: u64,
        mut rma: PendingRma,
        result: Result<(), Failure>,
    ) {
        rma.parts_left -= 1;
        rma.failure = rma.failure.or(result.err());
        if rma.parts_left > 0 {
            self.outstanding.insert_rma(number, rma);
            return;
        }
        if let (None, Some((to, data))) = (rma.failure, rma.notification) {
            rma.failure = self.notify_owner(&to, rma.entry.length, data).err();
        }
        let failure = rma.failure.map(|Failure(number)| (number, 0));
        let entry = Entry {
            failure,
            ..rma.entry
        };
        self.sinks.complete(rma.notify, entry);
    }

    /// Notifies the owner of the memory that `length` bytes have been written there.
    fn notify_owner(&mut self, to: &Name, length: usize, data: u64) -> Result<(), Failure> {
        if to.messages == self.own.messages {
            self.on_remote_write(length as u64, data, number(to.messages));
            return Ok(());
        }
        let head = Head {
            has_data: true,
            ..Head::control(Kind::RemoteWrite, length as u64, data)
        };
        self.send_control(to.message_endpoint(), &head)
    }

    /// Completes a write of another process to memory of this one.
    pub(super) fn on_remote_write(&mut self, length: u64, data: u64, source: u64) {
        let entry = Entry {
            flags: FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA,
            length: usize::try_from(length).unwrap_or(usize::MAX),
            data,
            source,
            ..Entry::default()
        };
        self.sinks.complete(true, entry);
    }
}

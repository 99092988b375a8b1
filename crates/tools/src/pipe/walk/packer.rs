//! Collects records into batches for the sending thread: [`Packer`].

use std::sync::mpsc::{Receiver, SyncSender};

use super::super::frame::{HEADROOM_BYTES, Sum};
use super::super::record::{DATA_HEAD_BYTES, Record, append_data};
use super::Totals;

/// Records of one batch. A single record may exceed it.
const BATCH_BYTES: usize = 256 << 10;
/// Small batches keep both sides busy at the same time.
const BATCH_RECORDS: usize = 256;
/// A batch with less room gets no data if it would not take all of them.
const MIN_DATA_BYTES: usize = 64 << 10;

const PAGE_BYTES: u64 = 4096;

/// Messages from the walking thread to the sending one.
pub(in super::super) enum Step {
    Batch(Batch),
    /// It is alive, but has nothing to send.
    Working,
    End(Totals),
}

/// Encoded records.
pub(in super::super) struct Batch {
    /// Room for the header of a message, and the records.
    pub(in super::super) buffer: Vec<u8>,
    pub(in super::super) crc: u32,
    /// Offers that the receiver answers after this batch.
    pub(in super::super) offers: usize,
}

/// The sending thread has ended.
#[derive(Debug)]
pub(super) struct Stopped;

/// The current batch.
pub(super) struct Packer {
    buffer: Vec<u8>,
    records: usize,
    steps: SyncSender<Step>,
    /// Buffers whose batches have been sent.
    returned: Receiver<Vec<u8>>,
}

impl Packer {
    pub(super) fn new(steps: SyncSender<Step>, returned: Receiver<Vec<u8>>) -> Packer {
        Packer {
            buffer: vec![0; HEADROOM_BYTES],
            records: 0,
            steps,
            returned,
        }
    }

    pub(super) fn push(&mut self, record: &Record<'_>) -> Result<(), Stopped> {
        record.append(&mut self.buffer);
        self.records += 1;
        match self.used_bytes() >= BATCH_BYTES || self.records >= BATCH_RECORDS {
            true => self.flush(0),
            false => Ok(()),
        }
    }

    /// Appends up to `wanted_bytes` of data that `fill` reads in place; returns their number.
    pub(super) fn push_data<E>(
        &mut self,
        offset_bytes: u64,
        wanted_bytes: u64,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<Result<usize, E>, Stopped> {
        let wanted_bytes = usize::try_from(wanted_bytes).unwrap_or(usize::MAX);
        let room =
            |packer: &Packer| BATCH_BYTES.saturating_sub(packer.used_bytes() + DATA_HEAD_BYTES);
        if room(self) < wanted_bytes.min(MIN_DATA_BYTES) {
            self.flush(0)?;
        }
        let mut most_bytes = wanted_bytes.min(room(self));
        if most_bytes < wanted_bytes {
            // The next data begin with a whole page.
            most_bytes -=
                usize::try_from((offset_bytes + most_bytes as u64) % PAGE_BYTES).unwrap_or(0);
        }
        let filled = append_data(&mut self.buffer, offset_bytes, most_bytes, fill);
        self.records += 1;
        if room(self) == 0 {
            self.flush(0)?;
        }
        Ok(filled)
    }

    /// Passes the current batch on.
    pub(super) fn flush(&mut self, offers: usize) -> Result<(), Stopped> {
        if self.used_bytes() == 0 {
            return Ok(());
        }
        let mut sum = Sum::new();
        sum.add(&self.buffer[HEADROOM_BYTES..]);
        let mut next = self.returned.try_recv().unwrap_or_default();
        next.clear();
        next.resize(HEADROOM_BYTES, 0);
        self.records = 0;
        let buffer = std::mem::replace(&mut self.buffer, next);
        self.pass(Step::Batch(Batch {
            buffer,
            crc: sum.crc(),
            offers,
        }))
    }

    pub(super) fn pass(&self, step: Step) -> Result<(), Stopped> {
        self.steps.send(step).map_err(|_| Stopped)
    }

    fn used_bytes(&self) -> usize {
        self.buffer.len() - HEADROOM_BYTES
    }
}

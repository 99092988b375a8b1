//! Applies records to this rank's memory and to its queue.

use bytes::Bytes;
use dipole_link::window::Source;

use super::super::open_memory::program_bytes;
use super::super::pending::PendingGet;
use crate::failure::Failure;
use crate::local::LocalRanks;
use crate::superstep::queue::Queue;
use crate::superstep::record::{Malformed, Record, Records};
use crate::superstep::registrations::Registrations;

/// The state that records change.
pub(super) struct Effects<'a> {
    pub(super) registrations: &'a Registrations,
    pub(super) queue: &'a mut Queue,
    pub(super) tag_bytes: u64,
    pub(super) ranks: Option<&'a LocalRanks>,
}

/// A reply to a get that is written into the requester's memory.
pub(super) struct WrittenReply {
    pub(super) key: u64,
    pub(super) data: Bytes,
    /// The requester's memory may be written at once.
    pub(super) is_ready: bool,
}

impl Effects<'_> {
    /// The address of bytes in this rank's part of an area.
    fn address(&self, slot: u32, offset: u64, bytes: u64) -> Result<*mut u8, Malformed> {
        let address = self.registrations.own(slot, offset, bytes);
        let address = usize::try_from(address.ok_or(Malformed)?).map_err(|_| Malformed)?;
        Ok(std::ptr::with_exposed_provenance_mut(address))
    }

    /// Writes puts and queues messages. Skips gets, which have been replied to before.
    pub(super) fn apply(
        &mut self,
        records: Source<'_>,
        local_rank: Option<usize>,
    ) -> Result<(), Failure> {
        for record in Records::new(records) {
            match record? {
                (
                    Record::Put {
                        slot,
                        offset,
                        length,
                    },
                    data,
                ) => {
                    let into = self.address(slot, offset, length)?;
                    // SAFETY: `address` has checked that the bytes are inside a registered part,
                    // which the program does not use during `sync`.
                    unsafe { data.copy_to(into) };
                }
                (
                    Record::PutByPull {
                        slot,
                        offset,
                        length,
                    },
                    data,
                ) => {
                    let (Some(ranks), Some(local_rank)) = (self.ranks, local_rank) else {
                        return Err(Malformed.into());
                    };
                    let into = self.address(slot, offset, length)?;
                    let length = usize::try_from(length).map_err(|_| Malformed)?;
                    // SAFETY: `address` has checked that the bytes are inside a registered part,
                    // which the program does not use during `sync`.
                    let into = unsafe { std::slice::from_raw_parts_mut(into, length) };
                    ranks.pull(local_rank, data.word(0), into)?;
                }
                (Record::Message { tag, .. }, data) if tag == self.tag_bytes => {
                    let tag = usize::try_from(tag).map_err(|_| Malformed)?;
                    self.queue.push(tag, data);
                }
                (
                    Record::Get { .. } | Record::GetByWrite { .. } | Record::GetSnapshot { .. },
                    _,
                ) => {}
                (Record::Message { .. } | Record::Reply { .. }, _) => {
                    return Err(Malformed.into());
                }
            }
        }
        Ok(())
    }

    /// Reads the bytes of each get, and calls `reply` with its ticket and the bytes.
    pub(super) fn read_gets(
        &self,
        records: Source<'_>,
        mut reply: impl FnMut(u64, Source<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for record in Records::new(records) {
            let (
                Record::Get {
                    slot,
                    offset,
                    length,
                },
                ticket,
            ) = record?
            else {
                continue;
            };
            let start = self.address(slot, offset, length)?;
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            // SAFETY: `address` has checked that the bytes are inside a registered part. Nothing
            // is written there before all gets have been read.
            let data = unsafe { Source::at(start, length) };
            reply(ticket.word(0), data)?;
        }
        Ok(())
    }

    /// Reads the bytes of each get whose reply is written into the requester's memory.
    pub(super) fn read_written_gets(
        &self,
        records: Source<'_>,
    ) -> Result<Vec<WrittenReply>, Failure> {
        let mut replies = Vec::new();
        for record in Records::new(records) {
            let (record, key) = record?;
            let (Record::GetByWrite {
                slot,
                offset,
                length,
            }
            | Record::GetSnapshot {
                slot,
                offset,
                length,
            }) = record
            else {
                continue;
            };
            let start = self.address(slot, offset, length)?;
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            let is_ready = matches!(record, Record::GetByWrite { .. });
            let data = match is_ready {
                // SAFETY: `address` has checked that the bytes are inside a registered part. The
                // program may not change them in a superstep with an unbuffered get, and the
                // superstep does not end before the carrier has dropped the bytes.
                true => unsafe { program_bytes(start, length) },
                // SAFETY: `address` has checked that the bytes are inside a registered part.
                // Nothing is written there before all gets have been read, and they are copied
                // here.
                false => unsafe { Source::at(start, length) }.to_vec().into(),
            };
            replies.push(WrittenReply {
                key: key.word(0),
                data,
                is_ready,
            });
        }
        Ok(replies)
    }
}

/// Writes replies into the destinations of their gets.
pub(super) fn write_records(gets: &[PendingGet], records: Source<'_>) -> Result<(), Failure> {
    for record in Records::new(records) {
        let (
            Record::Reply {
                ticket,
                offset,
                length,
            },
            data,
        ) = record?
        else {
            return Err(Malformed.into());
        };
        let get = usize::try_from(ticket).ok().and_then(|at| gets.get(at));
        let get = get.ok_or(Malformed)?;
        let end = offset.checked_add(length).ok_or(Malformed)?;
        if end > get.bytes {
            return Err(Malformed.into());
        }
        let at = usize::try_from(offset).map_err(|_| Malformed)?;
        // SAFETY: the bytes end at most at `get.bytes`, so they are inside the destination of the
        // get. Its caller promised that the destination is writable and not used otherwise until
        // the superstep ends.
        unsafe { data.copy_to(get.into.add(at)) };
    }
    Ok(())
}

//! What records do to memory and to the queue.

use bytes::Bytes;
use dipole_link::window::Source;

use super::super::Wanted;
use super::super::direct::lend;
use crate::failure::Failure;
use crate::local::Mates;
use crate::superstep::queue::Queue;
use crate::superstep::record::{Malformed, Record, Records};
use crate::superstep::registrations::Registrations;

/// What records take effect on.
pub(super) struct Effects<'a> {
    pub(super) registrations: &'a Registrations,
    pub(super) queue: &'a mut Queue,
    pub(super) tag_bytes: u64,
    pub(super) mates: Option<&'a Mates>,
}

impl Effects<'_> {
    /// Where bytes of this rank's part of an area lie.
    fn place(&self, slot: u32, offset: u64, bytes: u64) -> Result<*mut u8, Malformed> {
        let address = self.registrations.own(slot, offset, bytes);
        let address = usize::try_from(address.ok_or(Malformed)?).map_err(|_| Malformed)?;
        Ok(std::ptr::with_exposed_provenance_mut(address))
    }

    /// Writes puts, and queues messages. Gets were answered before.
    pub(super) fn apply(
        &mut self,
        records: Source<'_>,
        mate: Option<usize>,
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
                    let place = self.place(slot, offset, length)?;
                    // SAFETY: inside a registered part, as just checked, which the program
                    // leaves to this until the superstep has ended.
                    unsafe { data.copy_to(place) };
                }
                (
                    Record::Fetch {
                        slot,
                        offset,
                        length,
                    },
                    data,
                ) => {
                    let (Some(mates), Some(mate)) = (self.mates, mate) else {
                        return Err(Malformed.into());
                    };
                    let place = self.place(slot, offset, length)?;
                    let length = usize::try_from(length).map_err(|_| Malformed)?;
                    // SAFETY: as above.
                    let into = unsafe { std::slice::from_raw_parts_mut(place, length) };
                    mates.pull(mate, data.word(0), into)?;
                }
                (Record::Message { tag, .. }, data) if tag == self.tag_bytes => {
                    let tag = usize::try_from(tag).map_err(|_| Malformed)?;
                    self.queue.push(tag, data);
                }
                (Record::Get { .. } | Record::Bring { .. } | Record::Keep { .. }, _) => {}
                (Record::Message { .. } | Record::Answer { .. }, _) => {
                    return Err(Malformed.into());
                }
            }
        }
        Ok(())
    }

    /// Reads what is asked for, and hands it over with the ticket of each get.
    pub(super) fn answer(
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
            let place = self.place(slot, offset, length)?;
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            // SAFETY: inside a registered part, as just checked; nothing writes there before
            // all gets have been read.
            let data = unsafe { Source::at(place, length) };
            reply(ticket.word(0), data)?;
        }
        Ok(())
    }

    /// What is wanted in memory that has been opened, with its key, and whether that is ready for it.
    pub(super) fn brought(&self, records: Source<'_>) -> Result<Vec<(u64, Bytes, bool)>, Failure> {
        let mut brought = Vec::new();
        for record in Records::new(records) {
            let (record, key) = record?;
            let (Record::Bring {
                slot,
                offset,
                length,
            }
            | Record::Keep {
                slot,
                offset,
                length,
            }) = record
            else {
                continue;
            };
            let place = self.place(slot, offset, length)?;
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            let is_ready = matches!(record, Record::Bring { .. });
            let data = match is_ready {
                // SAFETY: inside a registered part, as just checked, which nobody changes before
                // the superstep has ended; it does not before all is let go of.
                true => unsafe { lend(place, length) },
                // SAFETY: inside a registered part; nothing writes there before all gets have
                // been read.
                false => unsafe { Source::at(place, length) }.to_vec().into(),
            };
            brought.push((key.word(0), data, is_ready));
        }
        Ok(brought)
    }
}

/// Writes what gets have brought.
pub(super) fn take_answers(wanted: &[Wanted], records: Source<'_>) -> Result<(), Failure> {
    for record in Records::new(records) {
        let (
            Record::Answer {
                ticket,
                offset,
                length,
            },
            data,
        ) = record?
        else {
            return Err(Malformed.into());
        };
        let get = usize::try_from(ticket).ok().and_then(|at| wanted.get(at));
        let get = get.ok_or(Malformed)?;
        let end = offset.checked_add(length).ok_or(Malformed)?;
        if end > get.bytes {
            return Err(Malformed.into());
        }
        let at = usize::try_from(offset).map_err(|_| Malformed)?;
        // SAFETY: inside the destination of that get, which its caller leaves to this until
        // the superstep has ended.
        unsafe { data.copy_to(get.into.add(at)) };
    }
    Ok(())
}

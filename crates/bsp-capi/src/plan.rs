//! A reshuffle plan, and how a process executes its part of it.
//!
//! A plan owns memory for messages, which is registered once. In one superstep each process packs what it
//! sends, and puts it to processes of other nodes. Processes of this node fetch their data in the
//! next superstep: packed, in pieces, or if runs are long, straight from the source array to their
//! destination, which needs one copy only.

use std::ffi::c_void;
use std::slice;

use dipole_bsp::misuse::Misuse;
use dipole_bsp::{Failure, PullRange};
use dipole_reshuffle::{Message, Plan};

use crate::scratch::{Cell, Process};

/// Runs that are at least this long on average are fetched straight from the source array.
const DIRECT_RUN_BYTES: usize = 2 << 10;
/// Packed elements are fetched in pieces of this size, which stay in the cache.
pub(crate) const FETCH_BYTES: usize = 64 << 10;
/// Runs fetched by one call.
const RUNS_PER_CALL: usize = 1023;

/// How a message moves to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// The sender puts it into the receiver's memory for messages.
    Put = 0,
    /// The receiver fetches it from the sender's memory for messages.
    Fetch = 1,
    /// The receiver fetches it from the sender's array.
    FetchDirect = 2,
}

impl Transport {
    fn from_word(word: u64) -> Transport {
        match word & 3 {
            1 => Transport::Fetch,
            2 => Transport::FetchDirect,
            _ => Transport::Put,
        }
    }
}

/// A sender puts this to each of its receivers: a word with the number of earlier runs of this plan,
/// whether it runs in place, and the transport; and the offset of the message in its memory for
/// messages.
pub(crate) type Notice = [u64; 2];

/// A plan. Programs hold its address.
pub struct Reshuffle {
    pub(crate) plan: Plan,
    /// Size of the plan's elements in bytes: 1, 2, 4, 8 or 16.
    pub(crate) unit: usize,
    pub(crate) outgoing: Vec<Cell>,
    pub(crate) incoming: Vec<Cell>,
    /// Notices of the other processes, by rank.
    pub(crate) notices: Vec<Notice>,
    /// Some process has a message that is fetched directly, or is fetched at all.
    pub(crate) has_direct: bool,
    pub(crate) has_fetch: bool,
    pub(crate) runs: u64,
    pub(crate) buffer: Vec<u8>,
    pub(crate) staying: Vec<u8>,
    pub(crate) ranges: Vec<PullRange>,
}

pub(crate) fn rule(text: impl Into<String>) -> Failure {
    Misuse::Rule(text.into()).into()
}

impl Reshuffle {
    /// Bytes of this process's parts before and after.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let bytes = |elements: usize| elements * self.unit;
        (
            bytes(self.plan.source_elements()),
            bytes(self.plan.target_elements()),
        )
    }

    pub(crate) fn transport(
        &self,
        process: &Process,
        message: &Message,
        in_place: bool,
    ) -> Transport {
        let is_long = message.elements() * self.unit >= message.runs() * DIRECT_RUN_BYTES;
        match process.can_direct_get(message.transfer().peer) {
            true if is_long && !in_place => Transport::FetchDirect,
            true => Transport::Fetch,
            false => Transport::Put,
        }
    }

    /// # Safety
    /// The same as for [`run`](Self::run).
    pub(crate) unsafe fn dispatch(
        &mut self,
        process: &mut Process,
        source: *const u8,
        target: *mut u8,
        in_place: bool,
    ) -> Result<(), Failure> {
        // SAFETY: the caller guarantees the same. Arrays of bytes need no alignment.
        unsafe {
            match self.unit {
                1 => self.run::<1>(process, source.cast(), target.cast(), in_place),
                2 => self.run::<2>(process, source.cast(), target.cast(), in_place),
                4 => self.run::<4>(process, source.cast(), target.cast(), in_place),
                8 => self.run::<8>(process, source.cast(), target.cast(), in_place),
                _ => self.run::<16>(process, source.cast(), target.cast(), in_place),
            }
        }
    }

    /// # Safety
    /// `source` must be readable and `target` writable for this process's parts. They must be the same if
    /// `in_place`, and must not overlap otherwise.
    unsafe fn run<const UNIT: usize>(
        &mut self,
        process: &mut Process,
        source: *const [u8; UNIT],
        target: *mut [u8; UNIT],
        in_place: bool,
    ) -> Result<(), Failure> {
        let (before, after) = (self.plan.source_elements(), self.plan.target_elements());
        let mut nothing: [u8; UNIT] = [0; UNIT];
        // All processes register their source if any of them fetches directly. An empty source needs a
        // unique address, too.
        let handle: *const c_void = match before {
            0 => (&raw const nothing).cast(),
            _ => source.cast(),
        };
        {
            let source: &[[u8; UNIT]] = match before {
                0 => &[],
                // SAFETY: the caller guarantees that the source is readable for its part. Nothing writes
                // there before this borrow ends.
                _ => unsafe { slice::from_raw_parts(source, before) },
            };
            self.send(process, source, in_place)?;
            if in_place {
                let staying = self.plan.staying_elements();
                self.staying.resize(staying * UNIT, 0);
                self.plan
                    .pack_staying(source, self.staying.as_chunks_mut().0);
            }
        }
        let registers = self.has_direct && !in_place;
        if registers {
            // SAFETY: the source stays valid until it is popped, and other processes only read it.
            unsafe { process.push_registration(handle.cast_mut(), (before * UNIT) as u64) }?;
        }
        let local: &mut [[u8; UNIT]] = match after {
            0 => slice::from_mut(&mut nothing),
            // SAFETY: the caller guarantees that the target is writable for its part. The source, which
            // may be the same memory, is no longer borrowed.
            _ => unsafe { slice::from_raw_parts_mut(target, after) },
        };
        if in_place {
            self.plan.unpack_staying(self.staying.as_chunks().0, local);
        } else if before > 0 {
            // SAFETY: the caller guarantees that source and target do not overlap.
            let source = unsafe { slice::from_raw_parts(source, before) };
            self.plan.copy_staying(source, local);
        }
        process.sync()?;
        self.receive(process, handle, local, in_place)?;
        if registers {
            process.pop_registration(handle)?;
        }
        if self.has_fetch {
            // Afterwards no process reads memory that another one may write.
            process.sync()?;
        }
        self.runs += 1;
        Ok(())
    }

    fn word(&self, transport: Transport, in_place: bool) -> u64 {
        // Never 0, which is the initial value of a notice.
        (self.runs + 1) << 3 | u64::from(in_place) << 2 | transport as u64
    }

    fn send<const UNIT: usize>(
        &mut self,
        process: &mut Process,
        source: &[[u8; UNIT]],
        in_place: bool,
    ) -> Result<(), Failure> {
        let rank = u64::from(process.rank());
        let notices = self.notices.as_ptr().cast::<c_void>();
        let into = self.incoming.as_ptr().cast::<c_void>();
        let packed = self.outgoing.as_mut_ptr().cast::<[u8; UNIT]>();
        for message in self.plan.outgoing() {
            let transfer = message.transfer();
            let transport = self.transport(process, message, in_place);
            let (to, start) = (transfer.peer, transfer.range.start);
            // SAFETY: the message is inside the memory for all outgoing messages.
            let start_there = unsafe { packed.add(start) };
            let mut from = start_there.cast_const();
            let mut whole = None;
            if transport == Transport::Put && !in_place && message.runs() == 1 {
                message.each_run(|own, _, _| whole = Some(own));
            }
            match whole {
                // A message in one run leaves from the source array.
                Some(own) => from = source[own..].as_ptr(),
                None if transport == Transport::FetchDirect => {}
                None => {
                    // SAFETY: the memory has room for the message, and no process reads it in this
                    // superstep.
                    let packed =
                        unsafe { slice::from_raw_parts_mut(start_there, message.elements()) };
                    message.pack(source, packed);
                }
            }
            let notice: Notice = [self.word(transport, in_place), (start * UNIT) as u64];
            let length = size_of::<Notice>() as u64;
            let (at, bytes) = (transfer.at * UNIT, message.elements() * UNIT);
            // SAFETY: both sources have the given lengths. The notice is copied at once; the message
            // stays unchanged until the superstep has ended.
            unsafe {
                process.put(
                    to,
                    (&raw const notice).cast(),
                    notices,
                    rank * length,
                    length,
                )?;
                if transport == Transport::Put {
                    process.put_unbuffered(to, from.cast(), into, at as u64, bytes as u64)?;
                }
            }
        }
        Ok(())
    }

    fn receive<const UNIT: usize>(
        &mut self,
        process: &mut Process,
        handle: *const c_void,
        target: &mut [[u8; UNIT]],
        in_place: bool,
    ) -> Result<(), Failure> {
        let outgoing = self.outgoing.as_ptr().cast::<c_void>();
        for message in self.plan.incoming() {
            let from = message.transfer().peer;
            let notice = self.notices[from as usize];
            let transport = Transport::from_word(notice[0]);
            let expected = self.word(transport, in_place);
            if notice[0] != expected {
                return Err(mismatch(from, notice[0], expected));
            }
            match transport {
                Transport::Put => {
                    // SAFETY: the message is inside the memory for all incoming messages, which is
                    // written in `sync` only.
                    let packed = unsafe {
                        let all = self.incoming.as_ptr().cast::<[u8; UNIT]>();
                        slice::from_raw_parts(
                            all.add(message.transfer().range.start),
                            message.elements(),
                        )
                    };
                    message.unpack(packed, target);
                }
                Transport::Fetch => {
                    let buffer = self.buffer.as_chunks_mut().0;
                    message.unpack_parts(target, buffer, |at, into| {
                        let (offset, bytes) =
                            (notice[1] + (at * UNIT) as u64, size_of_val(into) as u64);
                        let into = into.as_mut_ptr().cast();
                        // SAFETY: `into` and `bytes` are those of a slice of this process.
                        unsafe { process.direct_get(from, outgoing, offset, into, bytes) }
                    })?;
                }
                Transport::FetchDirect => {
                    let start = target.as_mut_ptr();
                    let ranges = &mut self.ranges;
                    let mut outcome = Ok(());
                    ranges.clear();
                    message.each_run(|own, other, length| {
                        ranges.push(PullRange {
                            from: (other * UNIT) as u64,
                            // Plan::new ensures that runs are inside the target.
                            into: target[own..own + length].as_mut_ptr().cast(),
                            length: length * UNIT,
                        });
                        if ranges.len() == RUNS_PER_CALL && outcome.is_ok() {
                            // SAFETY: the ranges are inside the target, and do not overlap.
                            outcome = unsafe { process.direct_get_ranges(from, handle, ranges) };
                            ranges.clear();
                        }
                    });
                    outcome?;
                    debug_assert_eq!(start, target.as_mut_ptr());
                    // SAFETY: the ranges are inside the target, and do not overlap.
                    unsafe { process.direct_get_ranges(from, handle, ranges) }?;
                }
            }
        }
        Ok(())
    }
}

/// The error of a notice from rank `from` that is not the expected one.
fn mismatch(from: u32, found: u64, expected: u64) -> Failure {
    let mode = |word: u64| match word >> 2 & 1 {
        1 => "in place",
        _ => "between two memories",
    };
    let rule_text = "all ranks must make the same call with the same plan";
    match found >> 3 == expected >> 3 {
        true => rule(format!(
            "rank {from} reshuffles {}, this rank {}: {rule_text}",
            mode(found),
            mode(expected)
        )),
        false => rule(format!(
            "rank {from} has not reshuffled with this plan in this superstep: {rule_text}"
        )),
    }
}

//! A plan to reshuffle, and how a process does its part of it.
//!
//! It keeps memory for messages, registered once. In its superstep each process packs what it sends. Processes of other
//! nodes are put to; those of this node fetch what they get, in the superstep after: packed, some at a time, or if runs are
//! long straight from the other's array to where it belongs, which is one copy in all.

use std::ffi::c_void;
use std::slice;

use dipole_bsp::misuse::Misuse;
use dipole_bsp::{Failure, PullRange};
use dipole_reshuffle::{Message, Plan};

use crate::scratch::{Cell, Process};

/// Runs of as many bytes and more on average are fetched straight from the other's array.
const DIRECT_RUN_BYTES: usize = 2 << 10;
/// Packed elements are fetched so many bytes at a time, which stay in the cache.
pub(crate) const FETCHED_BYTES: usize = 64 << 10;
/// Runs that are fetched by one call.
const RUNS_OF_A_CALL: usize = 1023;

/// How a message comes to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Put into its memory for messages.
    Put = 0,
    /// Fetched from the sender's memory for messages.
    Fetched = 1,
    /// Fetched from the sender's array.
    Direct = 2,
}

impl Way {
    fn of(number: u64) -> Way {
        match number & 3 {
            1 => Way::Fetched,
            2 => Way::Direct,
            _ => Way::Put,
        }
    }
}

/// What a sender tells each of its receivers: how often this plan was run before, in place or not and by which way,
/// and where the message begins in its memory for messages.
pub(crate) type Told = [u64; 2];

/// A plan, as programs have it by its address.
pub struct Reshuffle {
    pub(crate) plan: Plan,
    /// Bytes of what the plan counts as an element: 1, 2, 4, 8 or 16.
    pub(crate) unit: usize,
    pub(crate) outgoing: Vec<Cell>,
    pub(crate) incoming: Vec<Cell>,
    pub(crate) told: Vec<Told>,
    /// Some process has a message that goes by that way, or by any but being put.
    pub(crate) has_direct: bool,
    pub(crate) has_fetched: bool,
    pub(crate) runs: u64,
    pub(crate) buffer: Vec<u8>,
    pub(crate) staying: Vec<u8>,
    pub(crate) pieces: Vec<PullRange>,
}

pub(crate) fn rule(text: impl Into<String>) -> Failure {
    Misuse::Rule(text.into()).into()
}

impl Reshuffle {
    /// Bytes of this process's parts before and afterwards.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        let bytes = |elements: usize| elements * self.unit;
        (
            bytes(self.plan.source_elements()),
            bytes(self.plan.target_elements()),
        )
    }

    pub(crate) fn way(&self, process: &Process, message: &Message, in_place: bool) -> Way {
        let is_long = message.elements() * self.unit >= message.runs() * DIRECT_RUN_BYTES;
        match process.can_get_at_once(message.transfer().peer) {
            true if is_long && !in_place => Way::Direct,
            true => Way::Fetched,
            false => Way::Put,
        }
    }

    /// # Safety
    /// That of the call.
    pub(crate) unsafe fn dispatch(
        &mut self,
        process: &mut Process,
        source: *const u8,
        target: *mut u8,
        in_place: bool,
    ) -> Result<(), Failure> {
        // SAFETY: that of the call; units of bytes need no alignment.
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
    /// The source is readable and the target writable for this process's parts; they are one if `in_place`, else apart.
    unsafe fn run<const UNIT: usize>(
        &mut self,
        process: &mut Process,
        source: *const [u8; UNIT],
        target: *mut [u8; UNIT],
        in_place: bool,
    ) -> Result<(), Failure> {
        let (before, after) = (self.plan.source_elements(), self.plan.target_elements());
        let mut nothing: [u8; UNIT] = [0; UNIT];
        // Registered by all where some fetch from it; what has no elements needs an address all the same.
        let handle: *const c_void = match before {
            0 => (&raw const nothing).cast(),
            _ => source.cast(),
        };
        {
            let source: &[[u8; UNIT]] = match before {
                0 => &[],
                // SAFETY: by contract; nobody writes there before this borrow ends.
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
            // SAFETY: it stays until it is popped, and others read it only.
            unsafe { process.push_registration(handle.cast_mut(), (before * UNIT) as u64) }?;
        }
        let local: &mut [[u8; UNIT]] = match after {
            0 => slice::from_mut(&mut nothing),
            // SAFETY: by contract; the source is not borrowed any more.
            _ => unsafe { slice::from_raw_parts_mut(target, after) },
        };
        if in_place {
            self.plan.unpack_staying(self.staying.as_chunks().0, local);
        } else if before > 0 {
            // SAFETY: apart from the target by contract.
            let source = unsafe { slice::from_raw_parts(source, before) };
            self.plan.copy_staying(source, local);
        }
        process.sync()?;
        self.receive(process, handle, local, in_place)?;
        if registers {
            process.pop_registration(handle)?;
        }
        if self.has_fetched {
            // Nobody reads what others may write now.
            process.sync()?;
        }
        self.runs += 1;
        Ok(())
    }

    fn word(&self, way: Way, in_place: bool) -> u64 {
        // Never 0, which is what the table begins with.
        (self.runs + 1) << 3 | u64::from(in_place) << 2 | way as u64
    }

    fn send<const UNIT: usize>(
        &mut self,
        process: &mut Process,
        source: &[[u8; UNIT]],
        in_place: bool,
    ) -> Result<(), Failure> {
        let rank = u64::from(process.rank());
        let told = self.told.as_ptr().cast::<c_void>();
        let into = self.incoming.as_ptr().cast::<c_void>();
        let packed = self.outgoing.as_mut_ptr().cast::<[u8; UNIT]>();
        for message in self.plan.outgoing() {
            let (transfer, way) = (message.transfer(), self.way(process, message, in_place));
            let (to, start) = (transfer.peer, transfer.range.start);
            // SAFETY: the message's place in the memory for all of them.
            let start_there = unsafe { packed.add(start) };
            let mut from = start_there.cast_const();
            let mut whole = None;
            if way == Way::Put && !in_place && message.runs() == 1 {
                message.each_run(|own, _, _| whole = Some(own));
            }
            match whole {
                // It leaves from where it lies.
                Some(own) => from = source[own..].as_ptr(),
                None if way == Way::Direct => {}
                None => {
                    // SAFETY: as long as the message, and nobody reads it in this superstep.
                    let packed =
                        unsafe { slice::from_raw_parts_mut(start_there, message.elements()) };
                    message.pack(source, packed);
                }
            }
            let word: Told = [self.word(way, in_place), (start * UNIT) as u64];
            let length = size_of::<Told>() as u64;
            let (at, bytes) = (transfer.at * UNIT, message.elements() * UNIT);
            // SAFETY: both are as long as said; what is not copied at once stays until the superstep has ended.
            unsafe {
                process.put(to, (&raw const word).cast(), told, rank * length, length)?;
                if way == Way::Put {
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
            let of = message.transfer().peer;
            let told = self.told[of as usize];
            let way = Way::of(told[0]);
            if told[0] != self.word(way, in_place) {
                return Err(differs(of, told[0], self.word(way, in_place)));
            }
            match way {
                Way::Put => {
                    // SAFETY: the memory is ours, as long as all messages, and written in `sync` only.
                    let packed = unsafe {
                        let all = self.incoming.as_ptr().cast::<[u8; UNIT]>();
                        slice::from_raw_parts(
                            all.add(message.transfer().range.start),
                            message.elements(),
                        )
                    };
                    message.unpack(packed, target);
                }
                Way::Fetched => {
                    let buffer = self.buffer.as_chunks_mut().0;
                    message.unpack_parts(target, buffer, |at, into| {
                        let (offset, bytes) =
                            (told[1] + (at * UNIT) as u64, size_of_val(into) as u64);
                        let into = into.as_mut_ptr().cast();
                        // SAFETY: a slice of ours.
                        unsafe { process.get_at_once(of, outgoing, offset, into, bytes) }
                    })?;
                }
                Way::Direct => {
                    let start = target.as_mut_ptr();
                    let pieces = &mut self.pieces;
                    let mut outcome = Ok(());
                    pieces.clear();
                    message.each_run(|own, other, length| {
                        pieces.push(PullRange {
                            from: (other * UNIT) as u64,
                            // Within the target: the plan has seen to that.
                            into: target[own..own + length].as_mut_ptr().cast(),
                            length: length * UNIT,
                        });
                        if pieces.len() == RUNS_OF_A_CALL && outcome.is_ok() {
                            // SAFETY: runs lie in the target, and apart.
                            outcome = unsafe { process.get_pieces_at_once(of, handle, pieces) };
                            pieces.clear();
                        }
                    });
                    outcome?;
                    debug_assert_eq!(start, target.as_mut_ptr());
                    // SAFETY: as above.
                    unsafe { process.get_pieces_at_once(of, handle, pieces) }?;
                }
            }
        }
        Ok(())
    }
}

fn differs(of: u32, found: u64, wanted: u64) -> Failure {
    let place = |word: u64| match word >> 2 & 1 {
        1 => "in place",
        _ => "from one memory to another",
    };
    let all = "all ranks must call the same, by the same plan";
    match found >> 3 == wanted >> 3 {
        true => rule(format!(
            "rank {of} reshuffles {}, this rank {}: {all}",
            place(found),
            place(wanted)
        )),
        false => rule(format!(
            "rank {of} has not reshuffled by this plan in this superstep: {all}"
        )),
    }
}

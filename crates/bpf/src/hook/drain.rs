//! Reads a ring in tests, without regard for speed or hostile content.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use crate::layout::RECORD_HEADER_BYTES;
use crate::mapping::Mapping;
use crate::ring::Memory;

/// A packet in a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deposit {
    pub(crate) source: [u8; 16],
    pub(crate) port: u16,
    pub(crate) version: u8,
    pub(crate) payload: Vec<u8>,
    /// Bytes reserved for it in the ring.
    pub(crate) reserved: usize,
}

/// A ring, mapped.
pub(crate) struct Drain(Mapping);

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

impl Drain {
    pub(crate) fn open(ring: BorrowedFd<'_>) -> Self {
        Self(Mapping::new(ring).expect("a ring can be mapped"))
    }

    /// The packets deposited since the last call.
    pub(crate) fn take(&mut self) -> Vec<Deposit> {
        let memory = &self.0;
        let place = |at: u64| usize::try_from(at).unwrap() % memory.ring_bytes();
        let mut found = Vec::new();
        let mut at = memory.consumer().load(Ordering::Relaxed);
        while at < memory.producer().load(Ordering::Acquire) {
            let head = memory.length(place(at));
            if head & BUSY != 0 {
                break;
            }
            let reserved = usize::try_from(head & !DISCARDED).unwrap();
            let start = memory.data(place(at + 8), reserved);
            // SAFETY: the record follows its header and is contiguous, since the data is mapped
            // twice; the kernel does not overwrite it before the consumer's position is past it.
            let record = unsafe { std::slice::from_raw_parts(start.as_ptr(), reserved) };
            if head & DISCARDED == 0 {
                found.push(read(record));
            }
            at += u64::try_from((reserved + 8).next_multiple_of(8)).unwrap();
            memory.consumer().store(at, Ordering::Release);
        }
        found
    }
}

/// Parses a record in the format of `layout`.
pub(crate) fn read(record: &[u8]) -> Deposit {
    let length = usize::from(u16::from_ne_bytes([record[18], record[19]]));
    assert_eq!(record[21..24], [0; 3]);
    Deposit {
        source: record[..16].try_into().unwrap(),
        port: u16::from_be_bytes([record[16], record[17]]),
        version: record[20],
        payload: record[RECORD_HEADER_BYTES..][..length].to_vec(),
        reserved: record.len(),
    }
}

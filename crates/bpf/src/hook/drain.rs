//! What lies in a ring, for tests: read without care for speed or hostile content.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dipole_link::segment::{MapFlags, ProtFlags, Segment};

use crate::layout::RECORD_HEADER_BYTES;

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

/// Both positions and the bytes of a ring, mapped.
pub(crate) struct Drain {
    consumer: Segment,
    producer: Segment,
    bytes: usize,
}

const PAGE: usize = 4096;
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

impl Drain {
    pub(crate) fn open(ring: BorrowedFd<'_>) -> Self {
        let bytes = usize::try_from(super::ring_bytes(ring).unwrap()).unwrap();
        let map = |offset, length, access| {
            let made = Segment::of_file(ring, offset, length, access, MapFlags::empty());
            made.expect("a ring can be mapped")
        };
        Self {
            consumer: map(0, PAGE, ProtFlags::READ | ProtFlags::WRITE),
            // The kernel maps the data twice in a row, so that no record is cut.
            producer: map(PAGE as u64, PAGE + 2 * bytes, ProtFlags::READ),
            bytes,
        }
    }

    /// What has been deposited since the last call.
    pub(crate) fn take(&mut self) -> Vec<Deposit> {
        // SAFETY: both pages are mapped as long as this value lives, and positions
        // stand at their begin, aligned.
        let (consumer, producer) = unsafe {
            let consumer = self.consumer.at(0, 8).cast::<AtomicU64>();
            let producer = self.producer.at(0, 8).cast::<AtomicU64>();
            (consumer.as_ref(), producer.as_ref())
        };
        let mut found = Vec::new();
        let mut at = consumer.load(Ordering::Relaxed);
        while at < producer.load(Ordering::Acquire) {
            let place = PAGE + usize::try_from(at).unwrap() % self.bytes;
            let head = self.producer.at(place, 4).cast::<AtomicU32>();
            // SAFETY: below the producer's position lies a record's header, inside the mapping.
            let head = unsafe { head.as_ref() };
            let head = head.load(Ordering::Acquire);
            if head & BUSY != 0 {
                break;
            }
            let reserved = usize::try_from(head & !DISCARDED).unwrap();
            let start = self.producer.at(place + 8, reserved);
            // SAFETY: the record follows its header, whole because of the second mapping;
            // the kernel does not write it again before the consumer's position is past it.
            let record = unsafe { std::slice::from_raw_parts(start.as_ptr(), reserved) };
            if head & DISCARDED == 0 {
                found.push(read(record));
            }
            at += u64::try_from((reserved + 8).next_multiple_of(8)).unwrap();
            consumer.store(at, Ordering::Release);
        }
        found
    }
}

/// A record, as `layout` says.
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

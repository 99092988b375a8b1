//! Tests of the reader with a simulated kernel.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use proptest::prelude::*;

use super::super::mapping::Mapping;
use super::*;

const RING_BYTES: usize = 4096;

/// Writes records as the kernel does.
struct Kernel {
    producer: NonNull<u8>,
    data: NonNull<u8>,
    written: u64,
}

impl Kernel {
    fn with_ring() -> (Kernel, Ring<Mapping>) {
        let mapping = Mapping::on_heap(RING_BYTES);
        let (producer, data) = mapping.kernel_side();
        let kernel = Kernel {
            producer,
            data,
            written: 0,
        };
        (kernel, Ring::new(mapping, 3))
    }

    fn producer(&self) -> &AtomicU64 {
        // SAFETY: in the ring's memory, which the test keeps alive.
        unsafe { self.producer.cast().as_ref() }
    }

    fn header(&self, position: u64) -> [&AtomicU32; 2] {
        let at = usize::try_from(position).expect("a short test") % RING_BYTES;
        // SAFETY: as above; records start at multiples of 8. The data is mapped twice.
        [at, at + RING_BYTES].map(|at| unsafe { self.data.add(at).cast().as_ref() })
    }

    /// Reserves a record: its position, or `None` if the ring is full.
    fn reserve(&mut self, ring: &Ring<Mapping>, length: usize) -> Option<u64> {
        let position = self.written;
        let next = position + (length as u64 + 8).next_multiple_of(8);
        let read = ring.memory.consumer().load(Ordering::Acquire);
        if next - read > RING_BYTES as u64 - 1 {
            return None;
        }
        let busy = u32::try_from(length).expect("short") | BUSY;
        for copy in self.header(position) {
            copy.store(busy, Ordering::Relaxed);
        }
        self.written = next;
        self.producer().store(next, Ordering::Release);
        Some(position)
    }

    fn write(&self, position: u64, record: &[u8]) {
        for (index, byte) in record.iter().enumerate() {
            let at = (usize::try_from(position).expect("short") + 8 + index) % RING_BYTES;
            for at in [at, at + RING_BYTES] {
                // SAFETY: inside the data; the record is unfinished, so it is not read.
                unsafe { self.data.add(at).write(*byte) };
            }
        }
    }

    /// Finishes a record; true if it wakes the reader.
    fn commit(&self, ring: &Ring<Mapping>, position: u64, discard: bool) -> bool {
        let length = self.header(position)[0].load(Ordering::Relaxed) & !BUSY;
        let length = length | if discard { DISCARDED } else { 0 };
        for copy in self.header(position) {
            copy.swap(length, Ordering::SeqCst);
        }
        ring.memory.consumer().load(Ordering::Acquire) == position
    }

    fn push(&mut self, ring: &Ring<Mapping>, record: &[u8]) -> Option<bool> {
        let position = self.reserve(ring, record.len())?;
        self.write(position, record);
        Some(self.commit(ring, position, false))
    }
}

fn record(address: [u8; 16], port: u16, version: u8, payload: &[u8], room: usize) -> Vec<u8> {
    let mut record = address.to_vec();
    record.extend(port.to_be_bytes());
    record.extend(u16::try_from(payload.len()).expect("short").to_ne_bytes());
    record.extend([version, 0, 0, 0]);
    record.extend(payload);
    record.resize(RECORD_HEADER_BYTES + room, 0xee);
    record
}

fn v4(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut address = [0; 16];
    address[..4].copy_from_slice(&[10, 1, 2, 3]);
    record(
        address,
        port,
        4,
        payload,
        payload.len().next_multiple_of(128),
    )
}

#[test]
fn packets_are_read_in_place_and_returned_by_the_next_poll() {
    let (mut kernel, mut ring) = Kernel::with_ring();
    assert_eq!(ring.poll(), Ok(0));
    for number in 0..200_u16 {
        let payload = [number.to_be_bytes()[1]; 100];
        assert_eq!(kernel.push(&ring, &v4(number, &payload)), Some(false));
        assert_eq!(ring.poll(), Ok(1));
        let (from, bytes) = ring.packet_at(0);
        assert_eq!(from, SocketAddr::from(([10, 1, 2, 3], number)));
        assert_eq!(bytes, payload);
        let told = ring.memory.consumer().load(Ordering::Relaxed);
        assert!(told < kernel.written, "still ours");
    }
    assert_eq!(ring.poll(), Ok(0));
    let told = ring.memory.consumer().load(Ordering::Relaxed);
    assert_eq!(told, kernel.written | AWAKE);
}

#[test]
fn ipv6_senders_get_their_scope() {
    let (mut kernel, mut ring) = Kernel::with_ring();
    let far: Ipv6Addr = "2001:db8::7".parse().expect("an address");
    let near: Ipv6Addr = "fe80::7".parse().expect("an address");
    for ip in [far, near] {
        kernel.push(&ring, &record(ip.octets(), 9, 6, b"x", 128));
    }
    assert_eq!(ring.poll(), Ok(2));
    assert_eq!(ring.packet_at(0).0, SocketAddrV6::new(far, 9, 0, 0).into());
    assert_eq!(ring.packet_at(1).0, SocketAddrV6::new(near, 9, 0, 3).into());
}

#[test]
fn an_unfinished_record_holds_up_later_ones_and_a_discarded_one_does_not() {
    let (mut kernel, mut ring) = Kernel::with_ring();
    let first = kernel.reserve(&ring, 152).expect("room");
    assert_eq!(kernel.push(&ring, &v4(2, b"second")), Some(false));
    assert_eq!(ring.poll(), Ok(0));
    kernel.commit(&ring, first, true);
    assert_eq!(ring.poll(), Ok(1));
    assert_eq!(ring.packet_at(0).1, b"second");
}

#[test]
fn a_full_ring_takes_no_more_until_something_is_returned() {
    let (mut kernel, mut ring) = Kernel::with_ring();
    let mut filled = 0;
    while kernel.push(&ring, &v4(filled, b"much")).is_some() {
        filled += 1;
    }
    assert_eq!(ring.poll(), Ok(usize::from(filled)));
    assert_eq!(kernel.push(&ring, &v4(0, b"much")), None);
    assert_eq!(ring.poll(), Ok(0));
    assert!(kernel.push(&ring, &v4(0, b"much")).is_some());
}

#[test]
fn a_sleeper_is_woken_and_an_awake_reader_is_not() {
    let (mut kernel, mut ring) = Kernel::with_ring();
    assert!(ring.arm());
    assert_eq!(kernel.push(&ring, &v4(1, b"wake")), Some(true));
    assert_eq!(kernel.push(&ring, &v4(2, b"it is awake")), Some(false));
    ring.disarm();
    assert_eq!(ring.poll(), Ok(2));
    assert_eq!(kernel.push(&ring, &v4(3, b"seen anyway")), Some(false));
    assert!(!ring.arm(), "something is there");
    assert_eq!(ring.poll(), Ok(1));
    assert!(ring.arm());
    // If another thread reads while this one sleeps, the sleep continues.
    assert_eq!(ring.poll(), Ok(0));
    assert_eq!(kernel.push(&ring, &v4(4, b"wake again")), Some(true));
}

#[test]
fn a_reader_continues_where_an_earlier_one_slept() {
    let (mut kernel, mut ring) = Kernel::with_ring();
    kernel.push(&ring, &v4(1, b"read"));
    assert_eq!(ring.poll(), Ok(1));
    assert!(ring.arm());
    kernel.push(&ring, &v4(2, b"unread"));
    let mut next = Ring::new(ring.memory, 0);
    assert_eq!(next.poll(), Ok(1));
    assert_eq!(next.packet_at(0).1, b"unread");
}

#[test]
fn an_awake_reader_publishes_rarely_but_often_enough() {
    let (mut kernel, mut ring) = Kernel::with_ring();
    let told = |ring: &Ring<Mapping>| ring.memory.consumer().load(Ordering::Acquire);
    let mut changes = 0;
    let records = 500_u64;
    for _ in 0..records {
        let before = told(&ring);
        assert_eq!(kernel.push(&ring, &v4(1, b"one by one")), Some(false));
        assert_eq!(ring.poll(), Ok(1));
        changes += u64::from(told(&ring) != before);
        let unpublished = kernel.written - told(&ring);
        // And the records of the last two polls.
        assert!(
            unpublished < RING_BYTES as u64 / UNPUBLISHED_SHARE + 128,
            "{unpublished}"
        );
    }
    assert!((1..records / 4).contains(&changes), "{changes}");
}

#[test]
fn records_that_no_kernel_writes_are_refused() {
    type Spoil = fn(&mut Vec<u8>);
    let spoilt: [(&str, Spoil); 3] = [
        ("shorter than its header", |record| record.truncate(23)),
        ("longer than its record", |record| record[18..20].fill(0xff)),
        ("no IP version", |record| record[20] = 5),
    ];
    for (what, spoil) in spoilt {
        let (mut kernel, mut ring) = Kernel::with_ring();
        let mut record = v4(1, b"good");
        spoil(&mut record);
        kernel.push(&ring, &record);
        let refused = ring.poll().expect_err(what);
        assert!(refused.0.contains(what), "{refused:?}");
    }
    for (what, written) in [
        ("outside", RING_BYTES as u64 + 8),
        ("outside", 4),
        ("longer than what was written", 8),
    ] {
        let (mut kernel, mut ring) = Kernel::with_ring();
        kernel.push(&ring, &v4(1, b"good"));
        kernel.producer().store(written, Ordering::Release);
        let refused = ring.poll().expect_err(what);
        assert!(refused.0.contains(what), "{refused:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 256 },
        // Miri has no file system.
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Arbitrary content of the kernel's pages never causes a read outside them.
    #[test]
    fn arbitrary_memory_is_read_within_its_bounds(
        written in any::<u64>(),
        start in 0..512_u64,
        junk in proptest::collection::vec(any::<u8>(), 64..256),
    ) {
        let (kernel, mut ring) = Kernel::with_ring();
        ring.position = start * 8;
        ring.written = ring.position;
        for at in 0..2 * RING_BYTES {
            // SAFETY: inside the data.
            unsafe { kernel.data.add(at).write(junk[at % RING_BYTES % junk.len()]) };
        }
        for written in [written, written % 4096 * 8] {
            kernel.producer().store(written, Ordering::Release);
            if let Ok(found) = ring.poll() {
                for index in 0..found {
                    let (_, bytes) = ring.packet_at(index);
                    prop_assert!(bytes.len() <= RING_BYTES);
                    std::hint::black_box(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>());
                }
            }
        }
    }

    /// Records come out as they went in, over many rounds of the ring.
    #[test]
    fn every_packet_comes_out_once_and_in_order(
        lengths in proptest::collection::vec(0..1000_usize, 1..80),
        reads in proptest::collection::vec(any::<bool>(), 80),
    ) {
        let (mut kernel, mut ring) = Kernel::with_ring();
        let mut waiting = std::collections::VecDeque::new();
        for (index, (length, read)) in lengths.into_iter().zip(reads).enumerate() {
            let payload: Vec<u8> = (0..length).map(|at| (at * 7 + index).to_le_bytes()[0]).collect();
            while kernel.push(&ring, &v4(1, &payload)).is_none() {
                drain(&mut ring, &mut waiting);
            }
            waiting.push_back(payload);
            if read {
                drain(&mut ring, &mut waiting);
            }
        }
        drain(&mut ring, &mut waiting);
        prop_assert!(waiting.is_empty());
    }
}

fn drain(ring: &mut Ring<Mapping>, waiting: &mut std::collections::VecDeque<Vec<u8>>) {
    loop {
        let found = ring.poll().expect("our own records");
        if found == 0 {
            return;
        }
        for index in 0..found {
            assert_eq!(
                Some(ring.packet_at(index).1),
                waiting.pop_front().as_deref()
            );
        }
    }
}

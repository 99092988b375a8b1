//! Tests of the ring in private memory; Miri runs them.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::memory::RingLayout;
use super::*;
use crate::segment::Segment;

fn layout(slots: usize, area_bytes: usize) -> (Arc<Segment>, RingLayout) {
    let layout = RingLayout::standalone(slots, area_bytes);
    (Arc::new(Segment::on_heap(layout.end())), layout)
}

fn ring(slots: usize, area_bytes: usize) -> (Producer, Consumer) {
    let (segment, layout) = layout(slots, area_bytes);
    (
        Producer::new(Mapped::new(&segment, layout)),
        Consumer::new(Mapped::new(&segment, layout)),
    )
}

fn bytes(number: u64, length: usize) -> Vec<u8> {
    let start = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..length as u64)
        .map(|at| start.wrapping_add(at.wrapping_mul(31)).to_le_bytes()[2])
        .collect()
}

/// The next record: its tag and length. Panics if the payload does not match the tag.
fn take(consumer: &mut Consumer) -> Result<Option<(u64, usize)>, FormatViolation> {
    consumer.take(|tag, payload| {
        let mut copy = vec![0; payload.len()];
        payload.copy_to(&mut copy);
        assert!(copy == bytes(tag, copy.len()), "record {tag}");
        ((tag, copy.len()), None)
    })
}

#[test]
fn records_of_every_length_come_out_whole_and_in_order() {
    let step = if cfg!(miri) { 21_799 } else { 1 };
    let (mut producer, mut consumer) = ring(8, 2 * MAX_RECORD_BYTES);
    for length in (0..300).chain((300..=MAX_RECORD_BYTES).step_by(step)) {
        let number = length as u64;
        assert!(producer.push(number, &bytes(number, length)), "{length}");
        assert_eq!(take(&mut consumer), Ok(Some((number, length))));
        assert_eq!(take(&mut consumer), Ok(None));
        consumer.publish_position();
    }
}

#[test]
fn a_ring_does_what_a_queue_does() {
    let rounds = if cfg!(miri) { 400 } else { 100_000 };
    for (seed, (slots, area)) in [(2, 256), (4, 0), (8, 1024), (64, 4096)].iter().enumerate() {
        let mut random = StdRng::seed_from_u64(seed as u64);
        let (mut producer, mut consumer) = ring(*slots, *area);
        let mut queue = std::collections::VecDeque::new();
        let mut next = 0;
        for _ in 0..rounds {
            if random.random_bool(0.5) {
                let longest = if random.random_bool(0.5) { 113 } else { 700 };
                let length = random.random_range(0..longest);
                if producer.push(next, &bytes(next, length)) {
                    queue.push_back((next, length));
                    next += 1;
                    assert!(queue.len() <= *slots);
                    assert!(length <= INLINE_BYTES || length <= *area);
                } else if queue.is_empty() {
                    consumer.publish_position();
                    assert!(producer.is_read());
                    // A payload of up to half the area always fits into an empty ring.
                    let fits = producer.push(next, &bytes(next, length));
                    assert!(fits || length * 2 > *area, "seed {seed}");
                    if fits {
                        queue.push_back((next, length));
                        next += 1;
                    }
                }
            } else {
                assert_eq!(consumer.has_record(), !queue.is_empty());
                assert_eq!(take(&mut consumer), Ok(queue.pop_front()), "seed {seed}");
            }
        }
        assert!(next > rounds / 20);
    }
}

#[test]
fn records_that_an_idle_consumer_leaves_use_the_wide_area() {
    let (mut producer, mut consumer) = ring(64, 4096);
    for number in 0..20 {
        assert!(producer.push(number, &bytes(number, 200)), "{number}");
    }
    assert!(!producer.push(20, &bytes(20, 200)));
    assert_eq!(producer.near.position, 1024);
    assert!(producer.wide.position > 3500);
    for number in 0..20 {
        assert_eq!(take(&mut consumer), Ok(Some((number, 200))));
    }
    consumer.publish_position();
    // While the consumer keeps up, the wide area stays unused.
    let wide = producer.wide.position;
    for number in 20..200 {
        assert!(producer.push(number, &bytes(number, 200)));
        assert_eq!(take(&mut consumer), Ok(Some((number, 200))));
    }
    assert_eq!(producer.wide.position, wide);
}

#[test]
fn two_threads_move_records_through_a_small_ring() {
    let total = if cfg!(miri) { 200 } else { 300_000 };
    let (mut producer, mut consumer) = ring(8, 1024);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..total {
                let payload = bytes(number, (number % 300) as usize);
                while !producer.push(number, &payload) {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < total {
            match take(&mut consumer).expect("an honest producer") {
                Some(record) => {
                    assert_eq!(record, (next, (next % 300) as usize));
                    next += 1;
                }
                None => {
                    consumer.publish_position();
                    std::thread::yield_now();
                }
            }
        }
    });
}

#[test]
fn positions_beyond_32_bits_are_told_apart() {
    let (segment, layout) = layout(4, 256);
    let mut producer: Producer = Producer::new(Mapped::new(&segment, layout));
    let mut consumer: Consumer = Consumer::new(Mapped::new(&segment, layout));
    // Start as if 2^32 - 6 records had passed.
    let start = (1 << 32) - 6;
    (producer.position, producer.freed) = (start, start);
    (consumer.position, consumer.published) = (start, start);
    for number in 0..40 {
        assert!(!consumer.has_record());
        assert!(producer.push(number, &bytes(number, 120)));
        assert_eq!(take(&mut consumer), Ok(Some((number, 120))));
    }
}

#[test]
fn records_of_a_hostile_producer_are_refused_or_harmless() {
    let rounds = if cfg!(miri) { 100 } else { 20_000 };
    let mut random = StdRng::seed_from_u64(5);
    for _ in 0..rounds {
        let (segment, layout) = layout(4, 1024);
        let memory = Mapped::new(&segment, layout);
        let mut consumer = Consumer::new(Mapped::new(&segment, layout));
        for position in 0..20 {
            let length = match random.random_range(0..4) {
                0 => random.random_range(0..1200_u64),
                1 => random.random_range(0..u64::from(u32::MAX)),
                2 => WIDE | random.random_range(0..1200),
                _ => random.random_range(0..113),
            };
            let stamp = match random.random_bool(0.9) {
                true => stamp(position),
                false => random.random::<u64>() >> 32 << 32,
            };
            let header = memory.header(slot_of(&memory, position));
            header.store(stamp | length, Ordering::Relaxed);
            let shown = consumer.take(|_, payload| {
                let mut copy = vec![0; payload.len()];
                payload.copy_to(&mut copy);
                (copy.len() as u64, None)
            });
            let (area, length) = match length & WIDE {
                0 => (256, length),
                _ => (1024, length - WIDE),
            };
            match shown {
                Ok(Some(shown)) => assert_eq!(shown, length),
                Ok(None) => break,
                Err(FormatViolation(_)) => {
                    assert!(length > area);
                    break;
                }
            }
        }
    }
}

#[test]
fn a_hostile_consumer_position_never_exceeds_the_pushed_records_nor_moves_back() {
    let (segment, layout) = layout(4, 1024);
    let memory = Mapped::new(&segment, layout);
    let mut producer: Producer = Producer::new(Mapped::new(&segment, layout));
    let mut random = StdRng::seed_from_u64(6);
    for number in 0..2000 {
        producer.push(number, &bytes(number, (number % 400) as usize));
        let told = match random.random_range(0..3) {
            0 => random.random(),
            1 => random.random_range(0..producer.position + 2),
            _ => producer.position,
        };
        let before = producer.freed;
        memory.consumed().store(told, Ordering::Relaxed);
        producer.is_read();
        assert!(producer.freed == before || producer.freed == told);
        assert!((before..=producer.position).contains(&producer.freed));
        assert!(producer.near_freed <= producer.near.position);
        assert!(producer.wide_freed <= producer.wide.position);
    }
}

#[test]
fn available_room_is_reported_only_when_requested() {
    let (mut producer, mut consumer) = ring(8, 0);
    assert!(producer.push(0, &[]));
    assert_eq!(take(&mut consumer), Ok(Some((0, 0))));
    consumer.publish_position();
    assert!(!consumer.producer_waits());
    producer.want_room(true);
    assert!(!consumer.producer_waits(), "nothing new was published");
    assert!(producer.push(1, &[]));
    assert_eq!(take(&mut consumer), Ok(Some((1, 0))));
    assert!(producer.take_wanted_room(), "noticed while pushing");
    assert!(!producer.take_wanted_room());
    producer.want_room(true);
    consumer.publish_position();
    assert!(consumer.producer_waits() && !consumer.producer_waits());
    assert!(producer.take_wanted_room() && producer.is_read());
}

#[test]
fn a_push_by_another_sender_keeps_the_request_for_room() {
    let (mut producer, mut consumer) = ring(8, 0);
    for number in 0..8 {
        assert!(producer.push(number, &[]));
    }
    assert!(!producer.push(8, &[]));
    producer.want_room(true);
    assert_eq!(take(&mut consumer), Ok(Some((0, 0))));
    consumer.publish_position();
    assert!(consumer.producer_waits());
    assert!(producer.push(8, &[]), "from another sender");
    assert!(producer.take_wanted_room(), "the first waiter is notified");
}

#[test]
fn a_payload_is_read_within_its_bounds() {
    let (mut producer, mut consumer) = ring(4, 1024);
    assert!(producer.push(1, &7_u64.to_le_bytes()) && producer.push(2, &[]));
    let one = consumer.take(|_, it| {
        assert!(!it.is_empty());
        assert_eq!((it.read_u64(1), it.read_u64(usize::MAX)), (None, None));
        (it.read_u64(0), None)
    });
    assert_eq!(one, Ok(Some(Some(7))));
    let two = consumer.take(|_, it| (it.is_empty() && it.read_u64(0).is_none(), None));
    assert_eq!(two, Ok(Some(true)));
}

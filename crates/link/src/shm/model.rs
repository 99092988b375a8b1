//! The ring and the bell under loom, which tries all interleavings that the memory model allows
//! (within bounds) and reports data races, wrong records and lost wake-ups.

use std::ptr::NonNull;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::{Arc, Condvar, Mutex};

use super::bell::{Sleep, Waking};
use super::memory::{INLINE_BYTES, Location, Memory, SLOT_BYTES};
use super::ring::{Consumer, Producer};

/// Maximum preemptions per run.
const PREEMPTIONS: usize = 3;
const LINE: usize = 64;

/// A ring whose words are loom atomics and whose bytes are tracked by cells: one per slot, one
/// per cache line of the area.
struct Shared {
    consumed: AtomicU64,
    answers: AtomicU64,
    room_wanted: AtomicU64,
    headers: Vec<AtomicU64>,
    slots: Vec<UnsafeCell<[u64; SLOT_BYTES / 8 - 1]>>,
    area: Vec<UnsafeCell<()>>,
    /// The area's bytes; accesses are checked through `area`.
    bytes: std::cell::UnsafeCell<Box<[u64]>>,
    near_bytes: u64,
}

// SAFETY: loom tracks `slots` and `area` and fails the test when two threads access one of them
// without ordering; `bytes` is accessed only after the check through `area`.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing is bound to a thread.
unsafe impl Send for Shared {}

#[derive(Clone)]
struct Model(Arc<Shared>);

impl Model {
    fn new(slots: usize, near_lines: usize, wide_lines: usize) -> Model {
        let area_lines = near_lines + wide_lines;
        let word = || AtomicU64::new(0);
        Model(Arc::new(Shared {
            consumed: word(),
            answers: word(),
            room_wanted: word(),
            headers: (0..slots).map(|_| word()).collect(),
            slots: (0..slots)
                .map(|_| UnsafeCell::new([0; SLOT_BYTES / 8 - 1]))
                .collect(),
            area: (0..area_lines).map(|_| UnsafeCell::new(())).collect(),
            bytes: std::cell::UnsafeCell::new(vec![0; area_lines * LINE / 8].into()),
            near_bytes: (near_lines * LINE) as u64,
        }))
    }

    fn ring(
        slots: usize,
        near_lines: usize,
        wide_lines: usize,
    ) -> (Producer<Model>, Consumer<Model>) {
        let model = Model::new(slots, near_lines, wide_lines);
        (Producer::new(model.clone()), Consumer::new(model))
    }
}

impl Memory for Model {
    type Word = AtomicU64;

    const SPIN_LIMIT: u32 = 1;

    fn slot_count(&self) -> u64 {
        self.0.headers.len() as u64
    }

    fn near_bytes(&self) -> u64 {
        self.0.near_bytes
    }

    fn wide_bytes(&self) -> u64 {
        (self.0.area.len() * LINE) as u64 - self.0.near_bytes
    }

    fn consumed(&self) -> &AtomicU64 {
        &self.0.consumed
    }

    fn answers(&self) -> &AtomicU64 {
        &self.0.answers
    }

    fn room_wanted(&self) -> &AtomicU64 {
        &self.0.room_wanted
    }

    fn header(&self, slot: usize) -> &AtomicU64 {
        &self.0.headers[slot]
    }

    fn bytes(&self, location: Location) -> NonNull<u8> {
        let found = match location {
            Location::Slot(slot) => self.0.slots[slot].with(|words| words.cast::<u8>().cast_mut()),
            Location::Area { at, length } => {
                assert!(at + length <= self.0.area.len() * LINE);
                // SAFETY: the box itself is never written; the offset is inside.
                unsafe {
                    (*self.0.bytes.get())
                        .as_ptr()
                        .cast::<u8>()
                        .add(at)
                        .cast_mut()
                }
            }
        };
        NonNull::new(found).expect("an address")
    }

    fn touch(&self, location: Location, writes: bool) {
        match location {
            Location::Slot(slot) if writes => self.0.slots[slot].with_mut(|_| ()),
            Location::Slot(slot) => self.0.slots[slot].with(|_| ()),
            Location::Area { at, length } => {
                for cell in &self.0.area[at / LINE..(at + length).div_ceil(LINE)] {
                    match writes {
                        true => cell.with_mut(|_| ()),
                        false => cell.with(|_| ()),
                    }
                }
            }
        }
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(model);
}

fn payload(number: u64, length: usize) -> Vec<u8> {
    vec![number.to_le_bytes()[0] + 1; length]
}

/// Takes the next record, if there is one, which must be `number`.
fn take(consumer: &mut Consumer<Model>, number: u64, length: usize) -> bool {
    consumer
        .take(|tag, shown| {
            let mut copy = vec![0; shown.len()];
            shown.copy_to(&mut copy);
            assert_eq!((tag, &copy), (number, &payload(number, length)));
            ((), Some(number + 1))
        })
        .expect("an honest producer")
        .is_some()
}

/// Checks that records of these lengths arrive in order and intact under every interleaving.
fn goes_through(slots: usize, near_lines: usize, wide_lines: usize, lengths: &'static [usize]) {
    check(move || {
        let (mut producer, mut consumer) = Model::ring(slots, near_lines, wide_lines);
        let thread = loom::thread::spawn(move || {
            for (number, length) in (0..).zip(lengths) {
                while !producer.push(number, &payload(number, *length)) {
                    loom::thread::yield_now();
                }
                if producer.is_read() {
                    assert_eq!(producer.answers(), number + 1, "each has an answer");
                }
            }
        });
        for (number, length) in (0..).zip(lengths) {
            while !take(&mut consumer, number, *length) {
                consumer.publish_position();
                loom::thread::yield_now();
            }
        }
        consumer.publish_position();
        thread.join().expect("no panic");
    });
}

#[test]
fn slots_are_reused_only_after_they_were_read() {
    goes_through(2, 0, 0, &[8, 0, INLINE_BYTES, 8]);
}

#[test]
fn the_area_is_reused_only_after_it_was_read() {
    goes_through(4, 0, 4, &[120, 120, 8, 250]);
}

#[test]
fn the_near_area_is_reused_only_after_it_was_read_and_the_wide_area_takes_the_rest() {
    goes_through(4, 4, 2, &[120, 120, 128, 120]);
}

#[test]
fn a_large_ring_publishes_late_and_loses_nothing() {
    goes_through(8, 0, 8, &[8, 130, 8, 200]);
}

/// A hub's sleep: its epoch, and the wake-ups in its socket.
struct Testbed {
    epoch: AtomicU64,
    wakes: Mutex<usize>,
    came: Condvar,
}

impl Testbed {
    fn new() -> Arc<Testbed> {
        Arc::new(Testbed {
            epoch: AtomicU64::new(0),
            wakes: Mutex::new(0),
            came: Condvar::new(),
        })
    }

    /// Does what `Hub::wake_peer` does.
    fn ring(&self, waking: &mut Waking) {
        if waking.is_due(&self.epoch) {
            *self.wakes.lock().expect("no panic") += 1;
            self.came.notify_one();
        }
    }

    /// Sleeps until a wake-up arrives, unless `there` finds something at the last moment. A lost
    /// wake-up is a deadlock, which loom reports.
    fn sleep(&self, sleep: &mut Sleep, there: impl FnOnce() -> bool) {
        sleep.begin(&self.epoch);
        if !there() {
            let mut wakes = self.wakes.lock().expect("no panic");
            while *wakes == 0 {
                wakes = self.came.wait(wakes).expect("no panic");
            }
            *wakes -= 1;
        }
        sleep.end(&self.epoch);
    }
}

#[test]
fn a_consumer_that_sleeps_for_records_is_woken() {
    check(|| {
        let (mut producer, mut consumer) = Model::ring(4, 0, 0);
        let testbed = Testbed::new();
        let sender = {
            let testbed = Arc::clone(&testbed);
            loom::thread::spawn(move || {
                let mut waking = Waking::default();
                for number in 0..2 {
                    assert!(producer.push(number, &payload(number, 8)));
                    testbed.ring(&mut waking);
                }
            })
        };
        let mut sleep = Sleep::default();
        for number in 0..2 {
            while !take(&mut consumer, number, 8) {
                testbed.sleep(&mut sleep, || consumer.has_record());
            }
        }
        sender.join().expect("no panic");
    });
}

/// Reports progress after a poll, as `Hub` does.
fn publish_position(
    consumer: &mut Consumer<Model>,
    took: bool,
    testbed: &Testbed,
    waking: &mut Waking,
) {
    consumer.publish_position();
    let awaited = match took {
        true => consumer.producer_seems_to_wait(),
        false => consumer.producer_waits(),
    };
    if awaited {
        testbed.ring(waking);
    }
}

#[test]
fn a_producer_that_sleeps_for_room_is_woken() {
    check(|| {
        let (mut producer, mut consumer) = Model::ring(1, 0, 0);
        let testbed = Testbed::new();
        let reader = {
            let testbed = Arc::clone(&testbed);
            loom::thread::spawn(move || {
                let mut waking = Waking::default();
                for number in 0..2 {
                    while !take(&mut consumer, number, 8) {
                        publish_position(&mut consumer, false, &testbed, &mut waking);
                        loom::thread::yield_now();
                    }
                    publish_position(&mut consumer, true, &testbed, &mut waking);
                }
                publish_position(&mut consumer, false, &testbed, &mut waking);
            })
        };
        let mut sleep = Sleep::default();
        for number in 0..2 {
            while !producer.push(number, &payload(number, 8)) {
                producer.want_room(true);
                testbed.sleep(&mut sleep, || producer.take_wanted_room());
            }
            producer.want_room(false);
        }
        reader.join().expect("no panic");
    });
}

#[test]
fn a_producer_that_sleeps_until_everything_is_read_is_woken() {
    check(|| {
        let (mut producer, mut consumer) = Model::ring(8, 0, 0);
        let testbed = Testbed::new();
        let reader = {
            let testbed = Arc::clone(&testbed);
            loom::thread::spawn(move || {
                let mut waking = Waking::default();
                let (mut next, mut took) = (0, true);
                while next < 2 || took {
                    let before = next;
                    while take(&mut consumer, next, 8) {
                        next += 1;
                    }
                    took = next > before;
                    publish_position(&mut consumer, took, &testbed, &mut waking);
                    loom::thread::yield_now();
                }
            })
        };
        let mut sleep = Sleep::default();
        for number in 0..2 {
            assert!(producer.push(number, &payload(number, 8)));
        }
        while !producer.is_read() {
            producer.want_room(true);
            testbed.sleep(&mut sleep, || producer.take_wanted_room());
        }
        reader.join().expect("no panic");
    });
}

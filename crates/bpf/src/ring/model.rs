//! Sleeping and waking under loom: all interleavings of the kernel's and the reader's accesses that the
//! memory model allows, within bounds.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use loom::sync::atomic::AtomicU64;
use loom::sync::{Arc, Condvar, Mutex};

use super::super::layout::RECORD_HEADER_BYTES;
use super::*;

const RECORD_BYTES: u64 = (PREFIX_BYTES + RECORD_HEADER_BYTES) as u64;
const RECORDS: u64 = 2;
/// Maximum preemptions per run.
const PREEMPTIONS: usize = 3;

/// A word whose accesses loom tracks.
struct Watched(AtomicU64);

impl Word for Watched {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    fn full_fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

/// Records with an empty payload; only their lengths are tracked.
struct Shared {
    consumer: Watched,
    producer: Watched,
    lengths: Vec<AtomicU64>,
    data: [u8; 256],
    /// Wake-ups that the sleeper has not consumed.
    bell: (Mutex<bool>, Condvar),
}

#[derive(Clone)]
struct Model(Arc<Shared>);

impl Memory for Model {
    type Word = Watched;

    fn ring_bytes(&self) -> usize {
        128
    }

    fn consumer(&self) -> &Watched {
        &self.0.consumer
    }

    fn producer(&self) -> &Watched {
        &self.0.producer
    }

    fn length(&self, at: usize) -> u32 {
        let record = at / usize::try_from(RECORD_BYTES).expect("small");
        let length = self.0.lengths[record].load(Ordering::Acquire);
        u32::try_from(length).expect("written as such")
    }

    fn data(&self, at: usize, length: usize) -> NonNull<u8> {
        NonNull::from(&self.0.data[at..at + length]).cast()
    }
}

/// Writes a packet as the kernel does, on one of its cores.
fn deposit(model: &Model, position: u64) {
    let shared = &model.0;
    let length = u64::from(u32::try_from(RECORD_HEADER_BYTES).expect("small"));
    let record = usize::try_from(position / RECORD_BYTES).expect("small");
    shared.lengths[record].store(length | u64::from(BUSY), Ordering::Relaxed);
    shared
        .producer
        .0
        .store(position + RECORD_BYTES, Ordering::Release);
    shared.lengths[record].swap(length, Ordering::SeqCst);
    // Source: bpf_ringbuf_commit: the exchange is a full barrier.
    loom::sync::atomic::fence(Ordering::SeqCst);
    if shared.consumer.0.load(Ordering::Acquire) == position {
        *shared.bell.0.lock().expect("no panic") = true;
        shared.bell.1.notify_one();
    }
}

#[test]
fn no_interleaving_leaves_a_sleeper_asleep() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(|| {
        let mut data = [0; 256];
        // IP version 4, no sender, empty.
        for record in 0..RECORDS {
            let at = usize::try_from(record * RECORD_BYTES).expect("small") + PREFIX_BYTES;
            data[at + 20] = 4;
        }
        let model = Model(Arc::new(Shared {
            consumer: Watched(AtomicU64::new(0)),
            producer: Watched(AtomicU64::new(0)),
            lengths: (0..RECORDS).map(|_| AtomicU64::new(0)).collect(),
            data,
            bell: (Mutex::new(false), Condvar::new()),
        }));
        let kernel = model.clone();
        let kernel = loom::thread::spawn(move || {
            for record in 0..RECORDS {
                deposit(&kernel, record * RECORD_BYTES);
            }
        });
        let mut ring = Ring::new(model.clone(), 0);
        let mut read = 0;
        while read < RECORDS {
            let found = ring.poll().expect("good records") as u64;
            read += found;
            if found == 0 && ring.arm() {
                let (rung, bell) = &model.0.bell;
                let mut rung = rung.lock().expect("no panic");
                while !*rung {
                    rung = bell.wait(rung).expect("no panic");
                }
                *rung = false;
                drop(rung);
                ring.disarm();
            }
        }
        kernel.join().expect("no panic");
    });
}

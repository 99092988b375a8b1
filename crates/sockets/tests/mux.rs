//! Two peers over a model of TCP: the bytes read are the bytes written, for any order of calls, and
//! poll never sleeps while bytes can be read.

#![allow(missing_docs, reason = "tests")]

use std::collections::VecDeque;

use dipole_sockets::area::{AREA, Area, RING};
use dipole_sockets::mux::{Direction, MARKER, MIN_SHM_BYTES, Stream};
use proptest::prelude::*;
use rustix::io::Errno;

/// One direction of a TCP connection.
#[derive(Default)]
struct Tcp {
    queue: VecDeque<u8>,
    /// Maximum bytes in the queue.
    most: usize,
    sent: u64,
    ended: bool,
}

impl Stream for Tcp {
    fn receive(&mut self, to: &mut [u8], peek: bool) -> Result<usize, Errno> {
        let count = self.queue.len().min(to.len());
        if count == 0 && !self.ended {
            return Err(Errno::AGAIN);
        }
        for (place, byte) in to.iter_mut().zip(&self.queue) {
            *place = *byte;
        }
        if !peek {
            self.queue.drain(..count);
        }
        Ok(count)
    }
    fn send(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let count = bytes.len().min(self.most - self.queue.len());
        self.queue.extend(&bytes[..count]);
        self.sent += count as u64;
        if count == 0 {
            Err(Errno::AGAIN)
        } else {
            Ok(count)
        }
    }
    fn sent(&mut self) -> Option<u64> {
        Some(self.sent)
    }
    fn writable(&mut self) -> bool {
        self.most - self.queue.len() >= MARKER
    }
    fn insist(&mut self) {
        panic!("it was writable");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    /// Written without the library noticing, for example by splice.
    WriteUnseen(usize),
    Read(usize),
    Peek(usize),
    Open,
    Close,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let small = 1..200_usize;
    let length = || {
        prop_oneof![
            small.clone(),
            MIN_SHM_BYTES - 2..MIN_SHM_BYTES * 3,
            1..RING + 5
        ]
    };
    let step = prop_oneof![
        6 => length().prop_map(Step::Write),
        1 => (1..40_000_usize).prop_map(Step::WriteUnseen),
        8 => length().prop_map(Step::Read),
        3 => length().prop_map(Step::Peek),
        1 => Just(Step::Open),
    ];
    (
        proptest::collection::vec(step, 1..80),
        any::<proptest::sample::Index>(),
        any::<bool>(),
    )
        .prop_map(|(mut steps, at, close)| {
            if close {
                let at = at.index(steps.len());
                steps.insert(at, Step::Close);
            }
            steps
        })
}

/// One direction, with the bytes written and read.
struct Model {
    area: Area,
    index: usize,
    tcp: Tcp,
    written: Vec<u8>,
    read: usize,
    by_ring: usize,
}

impl Model {
    fn new(index: usize) -> Model {
        let area = Area::create().expect("memory").0;
        let nonce = u64::from_le_bytes(*b"\x01\x02\x03\x04\x05\x06\x07\x08");
        area.word(8)
            .store(nonce, std::sync::atomic::Ordering::Relaxed);
        let tcp = Tcp {
            most: 300_000,
            ..Tcp::default()
        };
        Model {
            area,
            index,
            tcp,
            written: Vec::new(),
            read: 0,
            by_ring: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        let direction = Direction::new(&self.area, self.index);
        match *step {
            Step::Write(length) => {
                let bytes = self.bytes(length);
                let by_ring = direction
                    .write(&bytes, &mut self.tcp)
                    .expect("the model has no errors");
                let by_ring = by_ring.unwrap_or(0);
                self.by_ring += by_ring;
                let by_tcp = self.tcp.send(&bytes[by_ring..]).unwrap_or(0);
                self.written.extend(&bytes[..by_ring + by_tcp]);
            }
            Step::WriteUnseen(length) => {
                let bytes = self.bytes(length);
                let count = self.tcp.send(&bytes).unwrap_or(0);
                self.written.extend(&bytes[..count]);
            }
            Step::Read(length) => self.read(length),
            Step::Peek(length) => {
                let mut to = vec![0; length];
                let found = direction.peek(&mut to, &mut self.tcp).unwrap_or(0);
                let expected = &self.written[self.read..];
                assert_eq!(
                    found,
                    expected.len().min(length),
                    "a look sees all there is"
                );
                assert_eq!(to[..found], expected[..found]);
            }
            Step::Open => direction.open_again(),
            Step::Close => {
                let unread = direction.unread() > 0;
                assert_eq!(direction.close().is_err(), unread);
            }
        }
        let left = self.written.len() - self.read;
        let direction = Direction::new(&self.area, self.index);
        assert_eq!(direction.readable(self.tcp.queue.len() as u64), left as u64);
        assert_eq!(left > 0, !self.tcp.queue.is_empty(), "poll and read agree");
    }

    fn bytes(&self, length: usize) -> Vec<u8> {
        let at = self.written.len();
        (at..at + length)
            .map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1].wrapping_mul(7))
            .collect()
    }

    fn read(&mut self, length: usize) {
        let mut to = vec![0; length];
        let direction = Direction::new(&self.area, self.index);
        let mut later = None;
        let found = direction
            .read(&mut to, &mut self.tcp, &mut later)
            .unwrap_or(0);
        assert_eq!(later, None);
        let expected = &self.written[self.read..];
        assert_eq!(
            found,
            expected.len().min(length),
            "short only if there is no more"
        );
        assert_eq!(to[..found], expected[..found]);
        self.read += found;
    }
}

/// Repeats at any time the step of a reader's first call after the agreement.
trait OpenAgain {
    fn open_again(&self);
}

impl OpenAgain for Direction<'_> {
    fn open_again(&self) {
        self.open(self.position());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn bytes_read_are_the_bytes_written(one in steps(), other in steps(), opened in any::<bool>()) {
        let mut ways = [Model::new(0), Model::new(1)];
        if opened {
            for way in &ways {
                Direction::new(&way.area, way.index).open(0);
            }
        }
        for number in 0..one.len().max(other.len()) {
            for (way, steps) in ways.iter_mut().zip([&one, &other]) {
                if let Some(step) = steps.get(number) {
                    way.step(step);
                }
            }
        }
        for way in &mut ways {
            way.tcp.ended = true;
            while way.read < way.written.len() {
                way.read(300_000);
            }
            let before = way.read;
            way.read(10);
            prop_assert_eq!(way.read, before, "the end stays the end");
        }
    }
}

#[test]
fn large_writes_use_shared_memory_only_while_the_reader_has_the_direction_open() {
    let mut way = Model::new(0);
    way.step(&Step::Write(MIN_SHM_BYTES));
    assert_eq!(way.by_ring, 0, "the reader is not open yet");
    way.step(&Step::Read(MIN_SHM_BYTES));
    way.step(&Step::Open);
    way.step(&Step::Write(MIN_SHM_BYTES - 1));
    assert_eq!(way.by_ring, 0, "a small write");
    way.step(&Step::Write(MIN_SHM_BYTES));
    assert_eq!(way.by_ring, MIN_SHM_BYTES);
    way.step(&Step::Close);
    way.step(&Step::Write(MIN_SHM_BYTES));
    assert_eq!(way.by_ring, MIN_SHM_BYTES);
    way.step(&Step::Read(RING));
    assert_eq!(way.read, way.written.len());
}

#[test]
fn foreign_bytes_in_place_of_a_marker_are_an_error_and_not_data() {
    let mut way = Model::new(0);
    way.step(&Step::Open);
    way.step(&Step::Write(MIN_SHM_BYTES));
    // Something other than the library removed the marker from the stream.
    way.tcp.queue = (0..MARKER).map(|_| 0).collect();
    let direction = Direction::new(&way.area, 0);
    let found = direction.read(&mut [0; 10], &mut way.tcp, &mut None);
    assert_eq!(found, Err(Errno::IO));
}

#[test]
fn the_lock_of_a_reader_that_died_is_taken_over() {
    let area = Area::create().expect("memory").0;
    let direction = Direction::new(&area, 0);
    std::mem::forget(direction.lock(7, |_| true));
    let locked = direction
        .lock(8, |owner| owner != 7)
        .expect("the dead one's");
    assert_eq!(
        direction.lock(8, |_| true).err(),
        Some(Errno::AGAIN),
        "a signal's handler"
    );
    drop(locked);
    assert!(direction.lock(9, |_| true).is_ok());
}

#[test]
fn the_memory_cannot_be_truncated_and_unsealed_files_are_refused() {
    use std::os::fd::AsFd;
    let (ours, file) = Area::create().expect("memory");
    let theirs = Area::open(file.as_fd()).expect("sealed");
    for length in [0, 4096, AREA as u64 - 1] {
        assert_eq!(rustix::fs::ftruncate(&file, length), Err(Errno::PERM));
    }
    let end = RING as u64 - 3;
    ours.write(1, end, b"around");
    let mut found = [0; 6];
    theirs.read(1, end, &mut found);
    assert_eq!(&found, b"around");
    let unsealed = tempfile::tempfile().expect("a file");
    unsealed.set_len(AREA as u64).expect("room");
    assert!(Area::open(unsealed.as_fd()).is_err());
}
